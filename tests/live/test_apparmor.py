"""Docker's own AppArmor profile, which denies writing to sysfs and to most of /proc: views, page, the file that asks for memory.
In a guest: tools/vm -a."""

from pathlib import Path

import pytest

MIB = 1 << 20
PROFILE = "docker-default (enforce)"
WRITABLE = "import os; os.open('/dev/elbowroom-pressure', os.O_RDWR | os.O_NONBLOCK)"


@pytest.fixture
def confined(docker):
    enabled = Path("/sys/module/apparmor/parameters/enabled")
    if not enabled.exists() or enabled.read_text().strip() != "Y":
        pytest.skip("needs AppArmor: tools/vm -a")
    if "apparmor" not in docker.call("info", "--format", "{{.SecurityOptions}}").stdout:
        pytest.skip("needs a Docker daemon that loads its profile: is apparmor_parser there?")
    return docker


@pytest.mark.parametrize("made", ["hook", "agent"])
def test_a_confined_container_has_all_of_its_view(agent, confined, made):
    runtime = ["--runtime", "elbowroom"] if made == "hook" else []
    container = confined.run(*runtime, "--cpus", "1", "--memory", "64m", name=f"elbowroom-test-apparmor-{made}")
    assert Path(f"/proc/{container.pid}/attr/current").read_text().strip() == PROFILE
    agent.attached(container)
    assert container.mem_total() == 64 * MIB and container.online_file() == 1
    assert container.run("head", "-c", "7", "/sys/devices/system/cpu/elbowroom") == "elbowrm"
    container.run("/usr/bin/python3", "-c", WRITABLE)


def test_what_a_confined_program_is_told_to_watch_can_be_opened(agent, confined):
    words = ["--runtime", "elbowroom", "--label", "elbowroom.dev/env=on", "--cpus", "1"]
    script = 'test "$MEMORY_PRESSURE_WATCH" = /dev/elbowroom-pressure && exec 3<>"$MEMORY_PRESSURE_WATCH" && echo opened'
    assert confined.run_once("sh", "-c", script, options=words) == "opened\n"


def test_run_works_beside_it(agent, start):
    container = start("--cpus", "1", "--memory", "64MiB")
    assert container.mem_total() == 64 * MIB
