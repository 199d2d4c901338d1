"""How soon a burst on a disk is answered: the default policy, a real disk, and a container that takes all of it from one instant to the next."""

import subprocess
import time
from pathlib import Path

import pytest

from kit import cgroup, disk as disks
from kit.process import Process
from kit.wait import PATIENCE, eventually

CONFIG = '[disk]\nmode = "enforce"\ndevices = ["loop*"]\n'
CONTAINERS = 'cgroups = ["/elbowroom-test-live-relief-*"]\nattach = false'
BURSTS = 5
# Writes past the page cache: so many threads, so many bytes each, so long a pause after each write. One write when it starts, so that its
# cgroup is known at the disk; the rest after a line on its input.
LOAD = """
import mmap, os, sys, threading, time
disk, threads, size, pause = os.open(sys.argv[1], os.O_WRONLY | os.O_DIRECT), *map(int, sys.argv[2:4]), float(sys.argv[4])
page = mmap.mmap(-1, size)
sys.stdin.readline()
os.pwrite(disk, page, 0)
print("known", flush=True)
sys.stdin.readline()
def write():
    while True:
        for at in range(0, 32 << 20, size):
            os.pwrite(disk, page, at)
            if pause: time.sleep(pause)
for _ in range(threads): threading.Thread(target=write).start()
"""


class Load:
    """A process in a cgroup that begins to write when it is told to."""

    def __init__(self, group, disk, threads, size, pause=0.0):
        words = ["/usr/bin/python3", "-c", LOAD, str(disk.path), str(threads), str(size), str(pause)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        group.enter(self.process.pid)
        self.go()
        assert self.process.stdout.readline() == "known\n"

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self):
        Process(self.process.pid).kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def memory_disk():
    """A block device that is as fast as memory, so that what else this machine does to its own disk is not felt."""
    file = Path("/dev/shm/elbowroom-test-live-relief.img")
    try:
        disk = disks.LoopDisk(file, 64 << 20)
    except OSError as error:
        file.unlink(missing_ok=True)
        pytest.skip(f"needs a loop device: {error}")
    yield disk
    disk.close()
    file.unlink()


@pytest.fixture
def groups(hand_made):
    if not disks.has_controller():
        pytest.skip("needs the io controller: blkio on cgroup v1, io on v2")
    disks.enable_controller()
    names = ["victim", *(f"hog{n}" for n in range(BURSTS))]
    return [hand_made(f"elbowroom-test-live-relief-{name}", hierarchies=cgroup.IO_HIERARCHIES) for name in names]


def test_a_burst_is_answered_within_a_second(new_agent, groups, memory_disk):
    agent = new_agent(CONFIG, CONTAINERS).start()
    loads, took = [], []

    def measured(times):
        """Waits for so many more measurements of the disks."""
        since = agent.status()["disk"]["ticks"]
        eventually(lambda: agent.status()["disk"]["ticks"] >= since + times, within=30)

    try:
        loads.append(Load(groups[0], memory_disk, threads=1, size=64 << 10, pause=0.005))
        loads += [Load(group, memory_disk, threads=48, size=256 << 10) for group in groups[1:]]
        loads[0].go()
        measured(6)
        for group, hog in zip(groups[1:], loads[1:]):
            began = time.monotonic()
            hog.go()
            eventually(lambda: disks.limits(group, memory_disk), within=10, every=0.002)
            took.append(time.monotonic() - began)
            hog.close()
            loads.remove(hog)
            measured(3)
    finally:
        for load in loads:
            load.close()
    took.sort()
    print("bursts were answered after " + ", ".join(f"{seconds * 1000:.0f} ms" for seconds in took))
    assert took[BURSTS // 2] <= PATIENCE, took
