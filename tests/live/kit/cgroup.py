"""Cgroups made by hand, on v1, v2 and anything between."""

import contextlib
import os
from pathlib import Path

from kit.wait import eventually

ROOT = Path("/sys/fs/cgroup")
V2 = (ROOT / "cgroup.controllers").exists()
# On v1 a container is a directory of the same name in each of these hierarchies.
HIERARCHIES = [ROOT] if V2 else [ROOT / name for name in ("cpu", "cpuacct", "cpuset", "memory") if (ROOT / name).is_dir()]
# The hierarchies of a container whose disk I/O matters; the unified one has its pressure where engines make it.
IO_HIERARCHIES = HIERARCHIES if V2 else HIERARCHIES + [path for path in (ROOT / "blkio", ROOT / "unified") if path.is_dir()]


def limit_memory(path, limit):
    """Sets the memory limit of any cgroup, by its path below the root."""
    directory = ROOT / path.lstrip("/") if V2 else ROOT / "memory" / path.lstrip("/")
    (directory / ("memory.max" if V2 else "memory.limit_in_bytes")).write_text(str(limit))


def limit_cpus(path, cpus):
    """Sets the CPU bandwidth of any cgroup, in CPUs."""
    directory, quota = (ROOT if V2 else ROOT / "cpu") / path.lstrip("/"), int(cpus * 100_000)
    if V2:
        (directory / "cpu.max").write_text(f"{quota} 100000")
    else:
        (directory / "cpu.cfs_quota_us").write_text(str(quota))


def cpu_time(pid):
    """CPU time that a process's cgroup has used, in seconds."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if V2 and not controllers:
            stat = dict(line.split() for line in (ROOT / path.lstrip("/") / "cpu.stat").read_text().splitlines())
            return int(stat["usage_usec"]) / 1e6
        if not V2 and "cpuacct" in controllers.split(","):
            return int((ROOT / "cpuacct" / path.lstrip("/") / "cpuacct.usage").read_text()) / 1e9
    raise AssertionError(f"process {pid} has no cgroup that counts CPU time")


class Cgroup:
    """One cgroup made here, by its path below the root."""

    def __init__(self, path, hierarchies=HIERARCHIES):
        self.path = path
        self.directories = sorted({(root / path).resolve() for root in hierarchies})
        for directory in self.directories:
            if V2 and directory.parent != ROOT:
                for controller in ("cpu", "cpuset", "memory"):
                    (directory.parent / "cgroup.subtree_control").write_text(f"+{controller}")
            directory.mkdir()
        cpuset = ROOT / "cpuset" / path
        if not V2 and cpuset.is_dir():
            # A v1 cpuset starts empty, and takes no process then.
            for file in ("cpuset.cpus", "cpuset.mems"):
                (cpuset / file).write_text((cpuset.parent / file).read_text())

    def write(self, controller, file, value):
        directory = ROOT / self.path if V2 else ROOT / controller / self.path
        (directory / file).write_text(str(value))

    def limit_cpu(self, cpus):
        limit_cpus(self.path, cpus)

    def limit_memory(self, limit):
        limit_memory(self.path, limit)

    def enter(self, pid):
        for directory in self.directories:
            (directory / "cgroup.procs").write_text(str(pid))

    def remove(self):
        """Removes it; its processes must be on their way out."""

        def gone():
            for directory in self.directories:
                try:
                    directory.rmdir()
                except FileNotFoundError:
                    pass
                except OSError:
                    return False
            return True

        eventually(gone)


def directories():
    """Every cgroup of every hierarchy."""
    return below(ROOT)


def below(root):
    """Directories below one, each before those in it; os.walk, before Python 3.12, goes no deeper than Python's stack."""
    waiting = [root]
    while waiting:
        with contextlib.suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield Path(entry.path)
                    waiting.append(entry.path)


def ours():
    """The cgroups that these tests made, themselves or by `elbowroom run`."""
    return {str(path) for path in directories() if path.name.startswith("elbowroom-test-live")}


def strangers():
    """The containers of this machine, by the names of their cgroups: 64 hexadecimal digits, or made by `elbowroom run`."""
    found = set()
    for path in directories():
        word = path.name.removesuffix(".scope").rpartition("-")[2]
        if len(word) == 64 and set(word) <= set("0123456789abcdef"):
            found.add(word)
        elif path.parent.name == "elbowroom":
            found.add(path.name)
    return found
