"""The disk that the application reads from, and one to swap to. In a guest of `tools/vm -d` they are NVMe devices that QEMU throttles. On
this machine there is only the first: a loop device as fast as the file system below its image, on which the application has a limit."""

import json
import os
import select
import subprocess
import time
from pathlib import Path

from lab import job

# Where tools/vm tells a guest the port to its own emulator.
PORT = "ELBOWROOM_VM_MONITOR"
SIZE = 2 << 30


def is_guest():
    return PORT in os.environ


class Disk:
    """One, by its name below /sys/block; `serial` is QEMU's name of it, None on this machine."""

    def __init__(self, name, serial=None):
        self.path, self.serial = f"/dev/{name}", serial
        self.number = Path(f"/sys/block/{name}/dev").read_text().strip()

    def set_speed(self, bytes_per_s):
        """In a guest: bytes per second, read and written together."""
        limits = {"device": self.serial, "bps": bytes_per_s} | dict.fromkeys(("bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"), 0)
        ask("qmp_capabilities", {})  # refused, rightly, where an earlier user of the port has asked
        error = ask("block_set_io_throttle", limits)
        if error:
            raise RuntimeError(f"QEMU does not slow {self.serial} down: {error}")


def ask(command, arguments, within=20):
    """One command of QEMU's machine protocol, over the port; what it says is wrong, or None."""
    number = time.monotonic_ns()
    port = os.open(os.environ[PORT], os.O_RDWR)
    try:
        os.write(port, json.dumps({"execute": command, "arguments": arguments, "id": number}).encode() + b"\n")
        unread, deadline = b"", time.monotonic() + within
        while select.select([port], [], [], max(0, deadline - time.monotonic()))[0]:
            *lines, unread = (unread + os.read(port, 4096)).split(b"\n")
            for answer in (json.loads(line) for line in lines if line.strip()):
                if answer.get("id") == number:
                    return answer.get("error", {}).get("desc")
    finally:
        os.close(port)
    raise RuntimeError(f"QEMU does not answer within {within} s")


def open_disks(lab):
    """The disk for files, and in a guest that for swap."""
    if not is_guest():
        image = lab.scope.directory / "image"
        with open(image, "wb") as file:
            file.truncate(SIZE)
        lab.scope.add("loop", image.resolve())
        path = output("losetup", "--find", "--show", "--direct-io=on", image.resolve())
        name = path.rpartition("/")[2]
        # The kernel keeps the scheduler that an earlier user of the device chose.
        Path(f"/sys/block/{name}/queue/scheduler").write_text("none")
        return [Disk(name)]
    found = {}
    for file in Path("/sys/block").glob("*/device/serial"):
        found[file.read_text().strip()] = file.parents[1].name
    serials = sorted(serial for serial in found if serial.startswith("disk"))
    if len(serials) < 2:
        raise job.Refused(f"this needs 2 disks and the guest has {len(serials)}: give tools/vm more of -d")
    return [Disk(found[serial], serial) for serial in serials[:2]]


def mounted(lab, disk):
    """A new ext4 on the disk, in the run's directory."""
    output("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", disk.path)
    at = lab.scope.directory.resolve() / "files"
    at.mkdir()
    lab.scope.add("mount", at)
    output("mount", disk.path, at)
    return at


def swap_on(lab, disk):
    output("mkswap", disk.path)
    lab.scope.add("swap", disk.path)
    output("swapon", disk.path)


def output(*words):
    done = subprocess.run(list(map(str, words)), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()
