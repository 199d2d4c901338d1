"""Containers of no engine: runc alone, in cgroups that the configuration names."""

import os
from pathlib import Path

import pytest

from kit.engines import MEMORY, RuncWay

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
    assert container.online() == 1
    assert container.mem_total() == 256 * MIB


def test_a_container_of_no_named_cgroup_is_let_alone(agent, runc):
    container = runc.run("elbowroom-test-runc", "/elbowroom-test-live-other", memory=256 * MIB)
    assert agent.find(container) is None
    assert container.mem_total() > 256 * MIB


# What runtimes differ in: runc runs the hook in the root file system and writes the container's state when it comes to it, crun runs it
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
    took, done = way.run()
    assert done.returncode == 0, done
    assert (f"{MEMORY >> 10} kB" in done.stdout) == sees, done
    assert sees or took > 1
