"""The agent's container as a service of Podman, by the Quadlet unit of packaging/podman. In a guest of tests/vm/systemd alone: it is
put where a user puts it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kit.container import meminfo
from kit.memory import host_memory
from kit.tree import busybox_root
from kit.wait import PATIENCE, eventually

REPOSITORY = Path(__file__).resolve().parents[2]
UNIT = REPOSITORY / "packaging/podman/elbowroom.container"
MIB = 1 << 20
NAME = "elbowroom-test-reader"
STORAGE = """
[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/run/containers/graph"
"""


def call(*words, check=True):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120 * PATIENCE)
    assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def service():
    if Path("/proc/1/comm").read_text().strip() != "systemd" or "ELBOWROOM_TEST_IMAGE" not in os.environ:
        pytest.skip("needs a guest whose first process is systemd: tests/vm/systemd")
    if not Path("/usr/libexec/podman/quadlet").exists():
        pytest.skip("needs Podman 4.6, for Quadlet: SUITE=trixie tests/vm/systemd tests/live/test_quadlet.py")
    # The guest's own files are on an overlay, which no overlay can be on.
    Path("/etc/containers/storage.conf").write_text(STORAGE)
    told = call("podman", "load", "--input", REPOSITORY / os.environ["ELBOWROOM_TEST_IMAGE"])
    assert re.search(r"^Image=(.*)", UNIT.read_text(), re.M).group(1) == re.search(r"Loaded image: (\S+)", told).group(1)
    Path("/etc/containers/systemd").mkdir(exist_ok=True)
    shutil.copy(UNIT, "/etc/containers/systemd")
    call("systemctl", "daemon-reload")
    call("systemctl", "start", "elbowroom")
    yield
    call("systemctl", "stop", "elbowroom", check=False)
    call("podman", "rm", "--force", "--all", "--time", "0", check=False)


def test_the_unit_gives_containers_their_views_until_it_is_stopped(service, tmp_path):
    busybox_root(tmp_path / "tree")
    limited = ["--detach", "--name", NAME, "--network", "none", "--memory", "300m"]
    call("podman", "run", *limited, "--rootfs", tmp_path / "tree", "/bin/sleep", "1000")
    total = lambda: meminfo(call("podman", "exec", NAME, "/bin/cat", "/proc/meminfo"))["MemTotal"]
    eventually(lambda: total() == 300 * MIB, within=20)
    assert NAME in call("podman", "exec", "elbowroom", "elbowroom", "list")
    # Podman asks by a timer of its own.
    eventually(lambda: call("podman", "inspect", "--format", "{{.State.Health.Status}}", "elbowroom").strip() == "healthy", within=20)
    call("systemctl", "stop", "elbowroom")
    assert total() == host_memory()["MemTotal"]
    assert call("systemctl", "show", "--property", "Result", "elbowroom").strip() == "Result=success"
    assert "elbowroom" not in Path("/proc/self/mountinfo").read_text()
    assert list(Path("/run/elbowroom").glob("**/*")) == []
