"""System containers of LXC, with an init of their own: found by name, and given their view."""

import contextlib
import os
import shutil
import subprocess

import pytest

from kit import cgroup
from kit.container import cpu_list, meminfo
from kit.memory import host_memory
from kit.tree import busybox_root
from kit.wait import PATIENCE, eventually

MIB = 1 << 20
NAME = "elbowroom-test-live-lxc"
CONFIG = """
lxc.uts.name = elbowroom-test
lxc.rootfs.path = dir:{root}
lxc.net.0.type = empty
lxc.mount.auto = proc:mixed sys:ro cgroup:mixed
lxc.init.cmd = /sbin/init
lxc.apparmor.profile = unconfined
# What a machine that has not all capabilities can keep.
lxc.cap.keep = sys_admin chown setuid setgid kill sys_chroot dac_override
"""
LIMITS = {
    False: "lxc.cgroup.memory.limit_in_bytes = 300M\nlxc.cgroup.cpu.cfs_quota_us = 100000\n",
    True: "lxc.cgroup2.memory.max = 300M\nlxc.cgroup2.cpu.max = 100000 100000\n",
}


class Lxc:
    """A container with busybox's init."""

    def __init__(self, home):
        self.home, root = home, home / "root"
        busybox_root(root)
        (home / "config").write_text(CONFIG.format(root=root) + LIMITS[cgroup.V2])
        (home / "path").mkdir()

    def call(self, verb, *words, check=True):
        done = subprocess.run(
            [f"lxc-{verb}", "--name", NAME, "--lxcpath", self.home / "path", *words],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60 * PATIENCE,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"lxc-{verb}: {done.stderr}"
        return done.stdout

    def start(self):
        log = self.home / "log"
        words = ["lxc-start", "--name", NAME, "--lxcpath", self.home / "path", "--rcfile", self.home / "config", "--logfile", log]
        with open(self.home / "output", "wb") as output:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=60 * PATIENCE)
        if done.returncode != 0:
            pytest.skip(f"needs LXC containers, which do not start here: {log.read_text().splitlines()[-1:]}")
        return self

    def read(self, path):
        return self.call("attach", "--", "/bin/cat", path)

    def stop(self):
        self.call("stop", "--kill", check=False)


@pytest.fixture
def lxc(tmp_path):
    if not shutil.which("lxc-start"):
        pytest.skip("needs lxc, which is not installed: apt-get install lxc")
    # LXC's own, which it leaves.
    pivots = lambda: set(cgroup.ROOT.glob("lxc.pivot")) | set(cgroup.ROOT.glob("*/lxc.pivot"))
    before = pivots()
    container = Lxc(tmp_path)
    yield container
    container.stop()

    def gone():
        for left in pivots() - before:
            # Its monitor is in it until it has ended.
            with contextlib.suppress(OSError):
                left.rmdir()
        return not pivots() - before

    eventually(gone)


def row_of(agent):
    return next((row for row in agent.list() if row["name"] == NAME), None)


def test_a_system_container_is_known_by_its_name_and_has_its_view(agent, lxc):
    lxc.start()
    row = eventually(lambda: (row := row_of(agent)) and row["attached"] and row)
    assert (row["engine"], row["id"]) == ("lxc", NAME), row
    eventually(lambda: meminfo(lxc.read("/proc/meminfo"))["MemTotal"] == 300 * MIB)
    eventually(lambda: len(cpu_list(lxc.read("/sys/devices/system/cpu/online"))) == 1)
    lxc.call("stop", "--kill")
    eventually(lambda: row_of(agent) is None)


def test_a_system_container_is_followed_while_its_limit_changes(agent, lxc):
    lxc.start()
    eventually(lambda: (row := row_of(agent)) and row["attached"])
    lxc.call("cgroup", *(["memory.max", "400M"] if cgroup.V2 else ["memory.limit_in_bytes", "400M"]))
    eventually(lambda: meminfo(lxc.read("/proc/meminfo"))["MemTotal"] == 400 * MIB)
    assert agent.cli("detach", NAME).returncode == 0
    assert meminfo(lxc.read("/proc/meminfo"))["MemTotal"] == host_memory()["MemTotal"]
    assert len(cpu_list(lxc.read("/sys/devices/system/cpu/online"))) == os.cpu_count()
