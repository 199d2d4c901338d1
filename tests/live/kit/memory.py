"""Programs that eat memory, files that fill caches, and disks in memory to swap to."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit.container import meminfo
from kit.wait import eventually

MIB = 1 << 20
APPETITE = Path(__file__).with_name("appetite.py")
# Above this, filling a host takes too long, and hurts others on it.
LARGEST_HOST = 4 << 30


def host_memory():
    return meminfo(Path("/proc/meminfo").read_text())


class Hungry:
    """A process of kit/appetite.py in a cgroup of its own, or in none."""

    def __init__(self, group=None):
        self.group = group
        self.process = subprocess.Popen(
            [sys.executable, APPETITE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if group:
            group.enter(self.process.pid)

    def __call__(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ok\n", f"the program ended at {order!r}"

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Paging:
    """A process of kit/paging.py in a cgroup and, as containers are, in a mount namespace of its own: a program that reads a file larger
    than its memory."""

    def __init__(self, group, path):
        # A /dev of its own, as containers have, in which there is a place for the file that asks for memory.
        dev = "mount -t tmpfs dev /dev && mknod -m 666 /dev/null c 1 3 && exec \"$@\""
        own = ["unshare", "--mount", "--propagation", "private", "sh", "-c", dev, "-"]
        self.group = group
        self.process = subprocess.Popen(
            [*own, sys.executable, Path(__file__).with_name("paging.py"), path], stdin=subprocess.PIPE, text=True
        )
        group.enter(self.process.pid)

    def read(self, blocks_per_second):
        self.process.stdin.write(f"{blocks_per_second}\n")
        self.process.stdin.flush()

    def end(self):
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()


class Watching:
    """A process of kit/watching.py beside a program, in its cgroup and mount namespace, that watches the file `path` there."""

    def __init__(self, program, path, log):
        self.log = log
        words = ["nsenter", "--target", str(program.process.pid), "--mount", sys.executable]
        with open(log, "w") as out:
            self.process = subprocess.Popen([*words, Path(__file__).with_name("watching.py"), path], stdout=out)
        program.group.enter(self.process.pid)

    def said(self):
        return self.log.read_text().split()

    def end(self):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def zram(size):
    """A compressed disk in memory, of which zeroes take nothing."""
    subprocess.run(["modprobe", "zram", "num_devices=0"], capture_output=True)
    add = Path("/sys/class/zram-control/hot_add")
    if not add.exists():
        pytest.skip("needs the zram module: tests/vm has it")
    number = add.read_text().strip()
    Path(f"/sys/block/zram{number}/disksize").write_text(size)
    try:
        yield f"/dev/zram{number}"
    finally:
        eventually(lambda: not remove(number))


def remove(number):
    try:
        Path("/sys/class/zram-control/hot_remove").write_text(number)
    except OSError as error:
        return error
    return None


def file(directory, name, mib):
    """A file of zeroes that are written, not a hole; out of the cache again, where it would be charged to us."""
    path = directory / name
    with open(path, "wb") as out:
        for _ in range(mib):
            out.write(bytes(MIB))
        os.fsync(out.fileno())
        os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path
