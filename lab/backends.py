"""The things an experiment compares: nothing (the kernel's own files), lxcfs and Elbowroom. Each is started for itself, in private,
and gives containers its files; what makes containers knows nothing of them."""

import shutil
from pathlib import Path

from kit.cgroup import V2
from kit.wait import eventually
from lab import ROOT
from lab.job import Refused


class Native:
    """The kernel's files."""

    file_system = "proc"
    agent, mounts = None, ()

    def __init__(self, lab):
        self.lab = lab

    def container(self, name, **limits):
        """A container that reads this variant's files. Reading the kernel's own instead is an error: they would be measured just as
        well."""
        container = self.lab.container(name, mounts=self.mounts, agent=self.agent, **limits)
        found = file_system(container.pid, "/proc/meminfo")
        assert found == self.file_system, f"/proc/meminfo in {name} is on {found}, not on {self.file_system}"
        return container

    def pids(self):
        """Every process of the variant."""
        return []

    def close(self):
        """Stops it; its containers must be gone by then."""


class Lxcfs(Native):
    """A private instance of what the distribution packages, with load averages (-l) and quotas shown as CPU counts (--enable-cfs)."""

    file_system = "fuse.lxcfs"
    program, setup = "lxcfs", "tools/setup bench"
    # What lxcfs documents to be mounted over a container's files, less what this kernel or version has not.
    FILES = ["proc/cpuinfo", "proc/diskstats", "proc/loadavg", "proc/meminfo", "proc/stat", "proc/uptime", "sys/devices/system/cpu/online"]

    def __init__(self, lab):
        super().__init__(lab)
        if not shutil.which(self.program):
            raise Refused(f"{self.program} is not here to compare with: {self.setup}")
        self.at = lab.scope.path("lxcfs")
        self.at.mkdir()
        self.mount = lab.scope.add("mount", self.at)
        log = open(self.at.with_suffix(".log"), "w")
        words = [self.program, "-f", "-l", "--enable-cfs", "-p", self.at.with_suffix(".pid"), self.at]
        self.daemon = lab.start(*words, stdout=log, stderr=log)
        eventually((self.at / "proc/meminfo").exists)
        self.mounts = [(self.at / file, f"/{file}") for file in self.FILES if (self.at / file).exists()]

    def pids(self):
        return [self.daemon.pid]

    def close(self):
        self.daemon.terminate()
        self.daemon.wait()
        self.lab.scope.take_down(self.mount)


class Lxcfs7(Lxcfs):
    """The same of the current release, which knows cgroup v2 alone."""

    program, setup = str(ROOT / ".cache/lxcfs/lxcfs"), "tools/setup lxcfs"

    def __init__(self, lab):
        if not V2:
            raise Refused("lxcfs 7 needs cgroup v2: run this in a guest of tools/vm")
        super().__init__(lab)


class Elbowroom(Native):
    """A private agent."""

    file_system = "fuse.elbowroom"

    def __init__(self, lab):
        super().__init__(lab)
        self.agent = lab.agent()

    def pids(self):
        return self.agent.pids()

    def close(self):
        self.agent.close()


LXCFS = {"lxcfs": Lxcfs, "lxcfs-7": Lxcfs7}
BACKENDS = {"native": Native, **LXCFS, "elbowroom": Elbowroom}


def file_system(pid, path):
    """Type of the file system that a path is on for a process."""
    return innermost(Path(f"/proc/{pid}/mountinfo").read_text(), path)


def innermost(mountinfo, path):
    """The type of the last mount of the longest mount point at or above a path."""
    best, kind = 0, None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        at = left.split(" ")[4]
        if (path == at or path.startswith(at.rstrip("/") + "/")) and len(at) >= best:
            best, kind = len(at), right.split(" ")[0]
    return kind
