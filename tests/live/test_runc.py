"""Containers of no engine: runc alone, in cgroups that the configuration names."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from kit.cgroup import V2
from kit.engines import MEMORY, RuncWay
from kit.wait import PATIENCE, eventually

MIB = 1 << 20
PLAIN = 'cgroups = ["/elbowroom-test-live-runc*"]'


@pytest.mark.parametrize("wrapped", [False, True], ids=["by itself", "by the wrapper runtime"])
def test_a_container_of_a_named_cgroup_is_given_its_view(new_agent, runc, runtime, wrapped):
    agent = new_agent(containers=PLAIN).start()
    if wrapped:
        runc.runtime = str(runtime)
    container = runc.run("elbowroom-test-runc", "/elbowroom-test-live-runc", cpu=(100_000, 100_000), memory=256 * MIB)
    row = agent.attached(container)
    assert row["engine"] == "plain"
    # The runtime makes the cgroup first, and then writes its limits.
    eventually(lambda: container.online() == 1 and container.mem_total() == 256 * MIB)


def test_a_container_older_than_the_agent_was_idle_before_it(new_agent, runc):
    container = runc.run("elbowroom-test-runc", "/elbowroom-test-live-runc", cpu=(100_000, 100_000))
    age = lambda: float(container.run("ps", "-o", "etimes=", "-p", "1"))
    eventually(lambda: age() >= 4)
    new_agent(containers=PLAIN).start().attached(container)
    stat, uptime = container.run("head", "-q", "-n", "1", "/proc/stat", "/proc/uptime").splitlines()
    cpu = [int(ticks) / 100 for ticks in stat.split()[1:5]]
    up, idle = map(float, uptime.split())
    # It has one CPU: what it has not used of its time, this was idle.
    assert up >= 4 and 0.8 * up < sum(cpu) < 1.2 * up and idle >= cpu[3], (up, idle, cpu)


def test_a_container_of_no_named_cgroup_is_let_alone(agent, runc):
    container = runc.run("elbowroom-test-runc", "/elbowroom-test-live-other", memory=256 * MIB)
    assert agent.find(container) is None
    assert container.mem_total() > 256 * MIB


# Runtimes differ: runc runs the hook in the root file system and writes the container's state when it comes to it, crun runs it
# in the bundle.
@pytest.mark.parametrize(
    ("begin", "sees"),
    [("cd {bundle}", True), ("exec 0<>{silent}", True), ("cd {bundle}; exec 0<>{silent}", False)],
    ids=["in the bundle", "a state that never comes", "both"],
)
def test_the_hook_asks_its_runtime_for_no_more_than_it_needs(new_agent, binary, run_dir, tmp_path, begin, sees):
    new_agent(containers='attach = false\ncgroups = ["/elbowroom-test-live-cost-*"]').start()
    silent, script = tmp_path / "silent", tmp_path / "script"
    os.mkfifo(silent)
    way = RuncWay(tmp_path, [script])
    hook = Path(binary).with_name("elbowroom-runtime")
    begin = begin.format(bundle=way.bundle, silent=silent)
    script.write_text(f"#!/bin/sh\n{begin}\nexec {hook} hook --run-dir {run_dir}\n")
    script.chmod(0o755)
    took, done = way.run_in_time() if sees else way.run()
    assert done.returncode == 0, done
    assert (f"{MEMORY >> 10} kB" in done.stdout) == sees, done
    assert sees or 1 < took < 10 * PATIENCE


def test_a_hook_that_runs_below_its_containers_cgroup_finds_its_view(new_agent, binary, run_dir, tmp_path):
    """crun on cgroup v2 puts processes into `<scope>/container`."""
    if not V2:
        pytest.skip("needs cgroup v2; tests/vm")
    new_agent(containers='attach = false\ncgroups = ["/elbowroom-test-live-cost-*"]').start()
    script = tmp_path / "script"
    way = RuncWay(tmp_path, [script])
    hook = Path(binary).with_name("elbowroom-runtime")
    own = "/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)"
    move = f'own={own}\nmkdir "$own/container" && echo $$ >"$own/container/cgroup.procs" || exit 1'
    script.write_text(f"#!/bin/sh\n{move}\nexec {hook} hook --run-dir {run_dir}\n")
    script.chmod(0o755)
    _, done = way.run_in_time()
    assert done.returncode == 0, done
    assert f"{MEMORY >> 10} kB" in done.stdout, done


EVIL = """
#include <fcntl.h>
__attribute__((constructor)) static void loaded(void) { open("%s", O_CREAT | O_WRONLY, 0600); }
"""


@pytest.mark.native
@pytest.mark.parametrize("way", ["cdi", "oci-hooks", "wrapper"])
def test_what_an_image_says_of_its_environment_reaches_no_hook(new_agent, binary, runtime, run_dir, tmp_path, way):
    """Runtimes give a hook without an environment the container's, and run it in the image's root directory."""
    new_agent(containers='attach = false\ncgroups = ["/elbowroom-test-live-cost-*"]').start()
    mark = tmp_path / "loaded"
    sh = ["/bin/sh", "sh", "-c", "true"]
    plain = RuncWay(tmp_path / "plain", sh, idle=True)
    ours = RuncWay(tmp_path / "ours", sh)
    if way != "wrapper":
        subprocess.run([binary, "--run-dir", run_dir, way, tmp_path / way], check=True, stdout=subprocess.DEVNULL)
        said = json.loads((tmp_path / way / "elbowroom.json").read_text())
        hook = said["hook"] if way == "oci-hooks" else said["devices"][0]["containerEdits"]["hooks"][0]
        hook.pop("hookName", None)
    for bundle in (plain, ours):
        config = json.loads((bundle.bundle / "config.json").read_text())
        config["process"]["env"] = ["LD_PRELOAD=/proc/self/cwd/evil.so"]
        if bundle is ours:
            config["hooks"] = {} if way == "wrapper" else {"createContainer": [hook]}
        (bundle.bundle / "config.json").write_text(json.dumps(config))
        source = tmp_path / "evil.c"
        source.write_text(EVIL % mark)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", bundle.bundle / "root/evil.so", source], check=True)
    plain.run()
    print("a hook without an environment", "loads what the image says" if mark.exists() else "has none of the container's here")
    mark.unlink(missing_ok=True)
    took, done = ours.run(*([runtime] if way == "wrapper" else []))
    assert f"{MEMORY >> 10} kB" in done.stdout, done
    assert not mark.exists()
