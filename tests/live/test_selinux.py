"""SELinux enforcing, with containers of the policy's type `container_t` and categories of their own, by runc and by Docker. Tested are
views, page, cgroup files, the file that asks for memory, hook, wrapper, `elbowroom run`, and an agent that is started anew. In a guest:
tools/vm -s."""

import json
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from kit import docker as docker_kit, leftovers
from kit.container import cpu_list
from kit.process import Process
from kit.runc import Runc
from kit.wait import eventually

MIB = 1 << 20
ENFORCE = Path("/sys/fs/selinux/enforce")
CONTAINER = "system_u:system_r:container_t"
CONTENT = "system_u:object_r:container_file_t"
ENGINES = "system_u:object_r:container_runtime_t"
LEVEL = "s0:c11,c22"
# Engines in the domains of Debian's policy. Their pipes have the daemon's categories: with all of them no container could write into one.
RUNTIME = '#!/bin/sh\nexec runcon system_u:system_r:container_engine_t:s0 {program} "$@"\n'
DAEMON = '#!/bin/sh\nexec runcon system_u:system_r:dockerd_t:s0 dockerd "$@"\n'
GROUP = "/elbowroom-test-live-selinux"
LIMITS = {"cpu": (100_000, 100_000), "memory": 64 * MIB}
CGROUPS = f'cgroups = ["{GROUP}"]'
# A container begins with a file of its own; what it runs then may be the machine's.
ENTER = '#!/bin/sh\nexec "$@"\n'
READ_PAGE = """
import mmap, os
fd = os.open("/sys/devices/system/cpu/elbowroom", os.O_RDONLY)
print(mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ)[:7].decode(), end="")
"""
WRITABLE = "import os; os.open('/dev/elbowroom-pressure', os.O_RDWR | os.O_NONBLOCK)"


@pytest.fixture(autouse=True)
def enforcing():
    if not ENFORCE.exists() or ENFORCE.read_text().strip() != "1":
        pytest.skip("needs SELinux, enforcing: tools/vm -s")
    try:
        Path("/sys/fs/selinux/context").write_text(f"{CONTAINER}:s0")
    except OSError:
        pytest.skip("needs a policy with container_t: Debian 13's has it, Debian 12's has not")
    yield
    log = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert not [line for line in log if "avc:  denied" in line and f"scontext={CONTAINER}" in line]


def relabel(path, label):
    subprocess.run(["chcon", "--recursive", label, path], check=True)


class ConfinedRunc(Runc):
    def bundle(self, name, *args):
        super().bundle(name, *args)
        bundle = self.home / name
        (bundle / "root/enter").write_text(ENTER)
        (bundle / "root/enter").chmod(0o755)
        config = json.loads((bundle / "config.json").read_text())
        config["process"] |= {"selinuxLabel": f"{CONTAINER}:{LEVEL}", "args": ["/enter", *config["process"]["args"]]}
        config["linux"]["mountLabel"] = f"{CONTENT}:{LEVEL}"
        config["linux"]["namespaces"].append({"type": "cgroup"})
        (bundle / "config.json").write_text(json.dumps(config))
        relabel(bundle, f"{ENGINES}:s0")
        relabel(bundle / "root", f"{CONTENT}:{LEVEL}")


@pytest.fixture
def runc():
    """runc in an engine's domain."""
    home = Path(tempfile.mkdtemp(prefix=leftovers.PREFIX))
    runtime = home / "runtime"
    runtime.write_text(RUNTIME.format(program="runc"))
    runtime.chmod(0o755)
    (home / "state").mkdir()
    relabel(home, f"{ENGINES}:s0")
    runc = ConfinedRunc(home, runtime)
    yield runc
    runc.clear()
    shutil.rmtree(home)


def shows_its_view(container):
    assert Path(f"/proc/{container.pid}/attr/current").read_text().startswith(CONTAINER)
    assert container.mem_total() == 64 * MIB and container.online_file() == 1
    for name in ("cpuinfo", "stat", "uptime", "loadavg", "vmstat", "pressure/cpu"):
        assert container.read(f"/proc/{name}"), name
    assert container.read("/sys/fs/cgroup/cpu.max").split() == ["100000", "100000"]
    assert container.run("/usr/bin/python3", "-c", READ_PAGE) == "elbowrm"
    container.run("/usr/bin/python3", "-c", WRITABLE)


def test_a_confined_container_has_all_of_its_view(new_agent, runc):
    agent = new_agent(containers=CGROUPS).start()
    container = runc.run("elbowroom-test-selinux", GROUP, **LIMITS)
    agent.attached(container)
    shows_its_view(container)


def test_its_view_stays_when_the_agent_goes_and_comes_again(new_agent, runc):
    agent = new_agent(containers=CGROUPS).start()
    container = runc.run("elbowroom-test-selinux", GROUP, **LIMITS)
    agent.attached(container)
    Process(agent.status()["pids"]["policy"]).kill(signal.SIGKILL)
    eventually(lambda: agent.status() and agent.find(container))
    shows_its_view(container)
    agent.stop()
    agent.start().attached(container)
    shows_its_view(container)


def test_check_says_what_is_enforced(binary):
    facts = json.loads(subprocess.run([binary, "check", "--output", "json"], capture_output=True, check=True).stdout)["facts"]
    (fact,) = [fact for fact in facts if fact["name"] == "SELinux"]
    assert fact["present"] and fact["value"] == "enforcing; pages are system_u:object_r:container_ro_file_t:s0"


def test_run_works_beside_it(agent, start):
    container = start("--cpus", "1", "--memory", "64MiB")
    assert container.mem_total() == 64 * MIB
    assert container.run("/usr/bin/python3", "-c", READ_PAGE) == "elbowrm"


@pytest.mark.parametrize("way", ["hook", "wrapper"])
def test_where_an_engine_may_not_ask_the_agent_its_containers_start_and_have_a_view_soon(new_agent, runc, binary, run_dir, way):
    """Debian's policy lets its engines' domains connect to no service's socket."""
    agent = new_agent(containers=CGROUPS).start()
    ours, more = f"{binary}-runtime", {}
    if way == "hook":
        words = ["elbowroom-runtime", "hook", "--run-dir", str(run_dir)]
        more = {"hooks": {"createContainer": [{"path": ours, "args": words, "env": ["PATH=/usr/bin"]}]}}
    else:
        Path(runc.runtime).write_text(RUNTIME.format(program=f"env ELBOWROOM_RUN_DIR={run_dir} {ours}"))
    container = runc.run("elbowroom-test-selinux", GROUP, **LIMITS, **more)
    agent.attached(container)
    shows_its_view(container)


@pytest.fixture
def docker():
    """A Docker daemon in its own domain, that gives containers labels."""
    missing = docker_kit.why_not()
    if missing:
        pytest.skip(f"needs {missing}")
    home = Path(tempfile.mkdtemp(prefix=leftovers.PREFIX))
    daemon = docker_kit.Docker(home, home / "runtime")
    daemon.program, daemon.more = home / "dockerd", ["--selinux-enabled"]
    daemon.program.write_text(DAEMON)
    daemon.program.chmod(0o755)
    relabel(home, "system_u:object_r:container_var_lib_t:s0")
    yield daemon.start()
    daemon.stop()
    shutil.rmtree(home)


def test_a_container_of_docker_has_its_view(agent, docker):
    script = f"""
        until [ "$(/busybox head -n 1 /proc/meminfo)" = "MemTotal:       {64 * MIB >> 10:8} kB" ]; do /busybox sleep 0.1; done
        /busybox cat /proc/self/attr/current /sys/devices/system/cpu/online
        until [ "$(/busybox head -c 7 /sys/devices/system/cpu/elbowroom)" = elbowrm ]; do /busybox sleep 0.1; done
        exec 3<>/dev/elbowroom-pressure && echo opened"""
    options = ["--cpus", "1", "--memory", "64m"]
    label, *rest = docker.run_once("/busybox", "sh", "-c", script, options=options, shared=False).replace("\0", "\n").split()
    assert label.startswith(CONTAINER) and len(cpu_list(rest[0])) == 1 and rest[1:] == ["opened"]
