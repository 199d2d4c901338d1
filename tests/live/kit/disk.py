"""Disks of our own, programs that use them, and the limits that are on them."""

import subprocess
from pathlib import Path

from kit import cgroup
from kit.process import Process

FILES = {"rbps": "read_bps", "wbps": "write_bps", "riops": "read_iops", "wiops": "write_iops"}


def has_controller():
    """Whether containers' I/O can be limited on this machine."""
    if cgroup.V2:
        return "io" in (cgroup.ROOT / "cgroup.controllers").read_text().split()
    return (cgroup.ROOT / "blkio/blkio.throttle.write_bps_device").exists()


def enable_controller():
    if cgroup.V2:
        (cgroup.ROOT / "cgroup.subtree_control").write_text("+io")


class LoopDisk:
    """A loop device over a file."""

    def __init__(self, file, size):
        with open(file, "wb") as empty:
            empty.truncate(size)
        if not Path("/dev/loop-control").exists():
            subprocess.run(["modprobe", "loop"], capture_output=True)
        made = subprocess.run(["losetup", "--find", "--show", file], capture_output=True, text=True)
        if made.returncode != 0:
            raise OSError(made.stderr.strip())
        self.path = Path(made.stdout.strip())
        self.name = self.path.name
        self.number = Path(f"/sys/block/{self.name}/dev").read_text().strip()
        # The kernel keeps the scheduler that the last user of the device chose.
        Path(f"/sys/block/{self.name}/queue/scheduler").write_text("none")

    def close(self):
        subprocess.run(["losetup", "--detach", self.path], check=True)


class Writer:
    """A process in a cgroup that writes to a disk as fast as it can, past the page cache."""

    SCRIPT = (
        "import mmap, os, sys\n"
        "disk = os.open(sys.argv[1], os.O_WRONLY | os.O_DIRECT)\n"
        "page = mmap.mmap(-1, 65536)\n"
        "sys.stdin.readline()\n"
        "while True:\n"
        "    for at in range(0, 32 << 20, 65536): os.pwrite(disk, page, at)\n"
    )

    def __init__(self, group, disk):
        words = ["/usr/bin/python3", "-c", self.SCRIPT, str(disk.path)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, text=True)
        group.enter(self.process.pid)
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self):
        Process(self.process.pid).kill()
        self.process.stdin.close()
        self.process.wait()


def limits(group, disk):
    """The limits in force on a cgroup, by the names of io.max; those that are not there are left out."""
    if cgroup.V2:
        for line in (cgroup.ROOT / group.path / "io.max").read_text().splitlines():
            number, *fields = line.split()
            if number == disk.number:
                pairs = (field.split("=") for field in fields)
                return {name: int(value) for name, value in pairs if value != "max"}
        return {}
    found = {}
    for name, file in FILES.items():
        for line in (cgroup.ROOT / "blkio" / group.path / f"blkio.throttle.{file}_device").read_text().splitlines():
            number, value = line.split()
            if number == disk.number:
                found[name] = int(value)
    return found


def set_limit(group, disk, name, value):
    """Sets one limit, as a user would; None takes it off."""
    if cgroup.V2:
        text = f"{disk.number} {name}={'max' if value is None else value}"
        (cgroup.ROOT / group.path / "io.max").write_text(text)
    else:
        path = cgroup.ROOT / "blkio" / group.path / f"blkio.throttle.{FILES[name]}_device"
        path.write_text(f"{disk.number} {value or 0}")
