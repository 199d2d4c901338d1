"""Podman as root, as Debian 12 has it: crun and systemd keep a container's limits in a cgroup below its scope."""

import shutil
import subprocess
from pathlib import Path

import pytest

from kit import cgroup
from kit.container import cpu_list, meminfo
from kit.memory import host_memory
from kit.tree import busybox_root
from kit.wait import PATIENCE, eventually

MIB = 1 << 20
NAME = "elbowroom-test-podman"
LIMITS = ["--memory", "300m", "--memory-swap", "300m", "--cpus", "1"]
RESERVE = f'[disk]\nmode = "off"\n[memory]\nmode = "enforce"\n[[claims]]\ncontainer = "{NAME}"\n'
RESERVE += 'memory = { reservation = "100MiB", guaranteed = true }\n'


class Podman:
    """Podman with its defaults, except the place of its files."""

    def __init__(self, home):
        self.home, self.root = home, home / "tree"
        busybox_root(self.root)

    def call(self, *words, options=(), check=True):
        keep = ["--storage-driver", "vfs", *options]
        done = subprocess.run(
            ["podman", *keep, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120 * PATIENCE
        )
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def run(self, *words, options=(), run=()):
        """`podman run`."""
        return self.call("run", "--network", "none", *LIMITS, *run, "--rootfs", self.root, *words, options=options)

    def start(self, *run):
        """Starts a container that runs on; the path of its scope."""
        ident = self.run("/bin/sleep", "1000", run=["--detach", "--name", NAME, *run]).strip()
        return f"/machine.slice/libpod-{ident}.scope"

    def read(self, path):
        return self.call("exec", NAME, "/bin/cat", path)

    def sees(self, memory=300 * MIB, quota=100_000):
        assert meminfo(self.read("/proc/meminfo"))["MemTotal"] == memory
        assert len(cpu_list(self.read("/sys/devices/system/cpu/online"))) == 1
        assert self.read("/sys/fs/cgroup/memory.max").strip() == str(memory)
        assert self.read("/sys/fs/cgroup/cpu.max").split() == [str(quota), "100000"]
        return True

    def remove(self):
        self.call("rm", "--force", "--all", "--time", "0", check=False)


@pytest.fixture
def podman(tmp_path):
    if Path("/proc/1/comm").read_text().strip() != "systemd":
        pytest.skip("needs systemd as the first process, which makes scopes: tests/vm/systemd")
    missing = [name for name in ("podman", "crun") if not shutil.which(name)]
    if missing or not cgroup.V2:
        pytest.skip(f"needs {', '.join(missing) or 'cgroup v2'}: tests/vm/systemd")
    podman = Podman(tmp_path)
    yield podman
    podman.remove()


def attached(agent):
    """The rows of all containers, when the only one has its view."""

    def rows():
        rows = [row for row in agent.list() if row["path"].startswith("/machine.slice/")]
        assert len(rows) == 1 and rows[0]["attached"], [(row["path"], row["attach_note"]) for row in rows]
        return rows[0]

    return eventually(rows, within=20)


@pytest.mark.parametrize("first", ["agent", "container"])
def test_a_container_has_the_view_of_the_limits_below_its_scope(new_agent, podman, first):
    agent = new_agent()
    if first == "agent":
        agent.start()
    scope = podman.start()
    inner = cgroup.ROOT / scope[1:] / "container"
    assert (inner / "memory.max").read_text().strip() == str(300 * MIB), "this crun keeps limits elsewhere"
    if first == "container":
        agent.start()
    row = attached(agent)
    ident = scope.partition("-")[2].partition(".")[0]
    assert (row["engine"], row["id"], row["name"], row["path"]) == ("podman", ident, NAME, scope), row
    eventually(podman.sees)
    assert (row["view"]["memory_hard"], row["view"]["cpus_upper"]) == (300 * MIB, 1), row["view"]
    # Its user changes limits later, by the engine and by hand.
    podman.call("update", "--memory", "200m", "--memory-swap", "200m", "--cpus", "0.5", NAME)
    eventually(lambda: podman.sees(200 * MIB, 50_000))
    (inner.parent / "memory.max").write_text(str(128 * MIB))
    eventually(lambda: meminfo(podman.read("/proc/meminfo"))["MemTotal"] == 128 * MIB)
    (inner.parent / "memory.max").write_text("max")
    eventually(lambda: podman.sees(200 * MIB, 50_000))
    shown = agent.json("show", NAME)
    assert (shown["id"], shown["view"]["memory_hard"]) == (ident, 200 * MIB), shown
    podman.remove()
    eventually(lambda: all(row["name"] != NAME for row in agent.list()))


@pytest.mark.parametrize("way", ["hook", "wrapper", "neither"])
def test_the_first_instruction_sees_the_limits(agent, podman, binary, run_dir, way):
    options = []
    if way == "hook":
        subprocess.run([binary, "--run-dir", run_dir, "oci-hooks", podman.home / "hooks"], check=True, capture_output=True)
        options = ["--hooks-dir", podman.home / "hooks"]
    elif way == "wrapper":
        wrapper = podman.home / "wrapper"
        wrapper.write_text(f'#!/bin/sh\nELBOWROOM_OCI_RUNTIME=/usr/bin/crun ELBOWROOM_RUN_DIR={run_dir} exec {binary}-runtime "$@"\n')
        wrapper.chmod(0o755)
        options = ["--runtime", wrapper]
    seen = meminfo(podman.run("/bin/cat", "/proc/meminfo", run=["--rm"], options=options))
    expected = host_memory()["MemTotal"] if way == "neither" else 300 * MIB
    assert seen["MemTotal"] == expected


def test_a_kill_is_counted_and_time_that_the_quota_took(agent, podman):
    podman.start()
    attached(agent)
    # As long as the agent measures, more than it may.
    spin = "while :; do :; done & while :; do :; done"
    podman.call("exec", "--detach", NAME, "/bin/sh", "-c", spin)

    def verdict(status):
        row = next(row for row in agent.list() if row["name"] == NAME)
        assert row["verdict"]["status"] == status, row["verdict"]
        return row["verdict"]

    eventually(lambda: verdict("throttled"), within=30)
    podman.call("exec", NAME, "/bin/busybox", "dd", "if=/dev/zero", "of=/dev/null", "bs=400M", "count=1", check=False)
    said = eventually(lambda: verdict("killed"), within=30)
    assert said["reason"] == "OOM-killed once at its limit of 300MiB", said
    assert said["command"] and f"podman update --memory 600m --memory-swap 600m {NAME}" in said["command"], said


def test_memory_is_kept_for_it_at_its_scope(new_agent, podman):
    agent = new_agent(RESERVE)
    scope = podman.start("--memory-reservation", "50m")
    knob = lambda path, file="memory.min": int((cgroup.ROOT / path[1:] / file).read_text())
    assert (knob(scope), knob("/machine.slice")) == (0, 0)
    agent.start()
    attached(agent)

    def kept():
        assert (knob(scope), knob("/machine.slice")) == (100 * MIB, 100 * MIB)
        return True

    eventually(kept, within=30)
    assert knob(f"{scope}/container", "memory.low") == 50 * MIB, "what its user set stays"
    assert agent.stop() == 0
    assert (knob(scope), knob("/machine.slice")) == (0, 0)
