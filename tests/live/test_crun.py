"""Containers of crun, which Podman takes first: each way to a view. It refuses the hybrid layout of cgroup v1."""

import shutil
from pathlib import Path

import pytest

from kit import cgroup
from kit.engines import MEMORY, RuncWay
from kit.runc import Runc
from kit.wait import eventually

OWN = "elbowroom-test-live-cost"


@pytest.fixture
def crun():
    if not shutil.which("crun"):
        pytest.skip("needs crun, which is not installed: tools/setup vm")
    if not cgroup.V2:
        pytest.skip("needs cgroup v2, for crun refuses what is hybrid: tests/vm")
    return shutil.which("crun")


@pytest.fixture
def ready(new_agent):
    return new_agent(containers=f'attach = false\ncgroups = ["/{OWN}-*"]').start()


def check_limit(run, runtime, seen):
    """What a container's first instruction says of its memory."""
    _, done = run(runtime)
    assert done.returncode == 0 and (f"{MEMORY >> 10} kB" in done.stdout) == seen, done


def test_a_running_container_is_given_its_view(new_agent, crun, tmp_path):
    agent = new_agent(containers='cgroups = ["/elbowroom-test-live-crun*"]').start()
    engine = Runc(tmp_path, crun)
    try:
        container = engine.run("elbowroom-test-crun", "/elbowroom-test-live-crun", cpu=(100_000, 100_000), memory=256 << 20)
        agent.attached(container)
        eventually(lambda: container.online() == 1 and container.mem_total() == 256 << 20)
    finally:
        engine.clear()
    eventually(lambda: not list(cgroup.ROOT.glob("elbowroom-test-live-crun*")))


def test_a_hook_gives_the_first_instruction_its_view(ready, crun, binary, run_dir, tmp_path):
    hook = [Path(binary).with_name("elbowroom-runtime"), "hook", "--run-dir", run_dir]
    check_limit(RuncWay(tmp_path, hook).run_in_time, crun, True)
    check_limit(RuncWay(tmp_path).run, crun, False)
    eventually(lambda: not list(cgroup.ROOT.glob(f"{OWN}-*")))


def test_the_wrapper_runs_crun_and_gives_the_first_instruction_its_view(ready, crun, binary, run_dir, tmp_path):
    wrapper, below, ran = (tmp_path / name for name in ("wrapper", "below", "ran"))
    wrapper.write_text(f'#!/bin/sh\nELBOWROOM_OCI_RUNTIME={below} ELBOWROOM_RUN_DIR={run_dir} exec {binary}-runtime "$@"\n')
    below.write_text(f'#!/bin/sh\necho "$@" >> {ran}\nexec {crun} "$@"\n')
    wrapper.chmod(0o755)
    below.chmod(0o755)
    check_limit(RuncWay(tmp_path).run_in_time, wrapper, True)
    assert " run " in ran.read_text() or " create " in ran.read_text()
    assert ready.stop() == 0
    # Without an agent it starts and has no view.
    check_limit(RuncWay(tmp_path / "without").run, wrapper, False)
    eventually(lambda: not list(cgroup.ROOT.glob(f"{OWN}-*")))
