"""Disks to measure with. Slow ones are slow below the kernel's block layer, which sees them as any slow disk, in queues and waits; their
speed changes while they are used. Here each is a process of its own, `qemu-storage-daemon`, that exports a throttled image through FUSE,
and a loop device on it with direct I/O. In a guest of `tools/vm -d ...` they are NVMe devices that QEMU throttles; the guest asks for
another speed over a port. Fast ones are memory: a loop device over a tmpfs, and in a guest null_blk."""

import os
import socket
import subprocess
from pathlib import Path

from kit.wait import eventually
from lab.job import Refused
from lab.qmp import Qmp

# Bytes of a disk on this machine: with requests at random places, only that it is more than any cache.
SIZE = 1 << 30
GUEST_PORT = os.environ.get("ELBOWROOM_VM_MONITOR")


class Disk:
    """A block device, by its name below /sys/block. `speed` sets its bytes per second, where that can be; `parts` are of the scope."""

    def __init__(self, lab, name, speed=None, parts=()):
        self.lab, self.name, self.speed, self.parts = lab, name, speed, list(parts)
        self.path = f"/dev/{name}"
        self.number = Path(f"/sys/block/{name}/dev").read_text().strip()  # MAJOR:MINOR
        self.folder = None  # of its file system
        self.schedule("none")  # the kernel keeps what the last user of a loop device chose

    def set_speed(self, bytes_per_s):
        """Makes it this fast from now on, read and written together."""
        if self.speed is None:
            raise Refused(f"nothing makes {self.name} slow")
        self.speed(bytes_per_s)

    def schedule(self, name):
        Path(f"/sys/block/{self.name}/queue/scheduler").write_text(name)

    def schedulers(self):
        return Path(f"/sys/block/{self.name}/queue/scheduler").read_text().replace("[", "").replace("]", "").split()

    def bytes(self):
        """Bytes read and written so far by all processes: fields 3 and 7 of /sys/block/DISK/stat are sectors of 512 bytes."""
        fields = Path(f"/sys/block/{self.name}/stat").read_text().split()
        return [int(fields[2]) * 512, int(fields[6]) * 512]

    def bound_dirty(self, size):
        """Bytes that may wait in the page cache for it, so that write-back begins within a short run: Linux 6.2 and later."""
        bdi = Path(f"/sys/block/{self.name}/bdi")
        if (bdi / "max_bytes").exists():
            (bdi / "strict_limit").write_text("1")
            (bdi / "max_bytes").write_text(str(size))

    def close(self):
        for part in reversed(self.parts):
            self.lab.scope.take_down(part)


def slow(lab, count, bytes_per_s):
    """`count` disks, equal in everything. On this machine they keep nothing of what is written and read as zeros, so no memory and no
    other disk is involved."""
    disks = in_guest(lab, count) if GUEST_PORT else [throttled(lab, number) for number in range(count)]
    for disk in disks:
        disk.set_speed(bytes_per_s)
    return disks


def for_files(lab, bytes_per_s):
    """A disk for a file system. In a guest it does `bytes_per_s`. On this machine it is as fast as the file system below its image, because
    QEMU's FUSE export loses concurrent writes. Before QEMU 10.1 `fuse_write` polls, and the next request then overwrites the buffer that it
    writes from."""
    if GUEST_PORT:
        return slow(lab, 1, bytes_per_s)[0]
    image = lab.scope.directory / "image"
    with open(image, "wb") as empty:
        empty.truncate(SIZE)
    return loop(lab, image)


def of_memory(lab, keeps=False):
    """A disk of the NVMe class. null_blk, which a guest may load, has less to do than a loop device, but does not keep what is written:
    `keeps` says that a file system needs it to."""
    if GUEST_PORT and not keeps:
        subprocess.run(["modprobe", "null_blk", "nr_devices=1", "gb=4", "queue_mode=2", "irqmode=0"], capture_output=True)
        if Path("/sys/block/nullb0").exists():
            return Disk(lab, "nullb0")
    at = lab.scope.directory / "memory"
    at.mkdir()
    mount = lab.scope.add("mount", at)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE + (64 << 20)}", "tmpfs", at], check=True)
    image = at / "image"
    with open(image, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, SIZE)
    return loop(lab, image, parts=[mount])


def mount_ext4(lab, disk):
    """Makes an ext4 on a disk and mounts it in the run's directory; where."""
    quick = "lazy_itable_init=0,lazy_journal_init=0"
    done = subprocess.run(["mkfs.ext4", "-q", "-F", "-E", quick, disk.path], capture_output=True, text=True)
    assert done.returncode == 0, f"mkfs.ext4: {done.stderr.strip()}"
    disk.folder = lab.scope.directory / f"files-{disk.name}"
    disk.folder.mkdir()
    disk.parts.append(lab.scope.add("mount", disk.folder))
    subprocess.run(["mount", "-t", "ext4", disk.path, disk.folder], check=True)
    return disk.folder


def throttled(lab, number):
    """A slow disk of this machine: a file that QEMU exports over FUSE."""
    file = lambda kind: lab.scope.directory / f"disk{number}.{kind}"
    export, port, log = file("export"), file("qmp"), file("log")
    export.touch()
    mount = lab.scope.add("mount", export)
    words = [
        # Any limit will do to start with; without one the group would have no timer.
        *("--object", "throttle-group,id=speed,x-bps-total=1000000"),
        *("--blockdev", f"null-co,node-name=image,size={SIZE},read-zeroes=on"),
        *("--blockdev", "throttle,node-name=slow,file=image,throttle-group=speed"),
        *("--chardev", f"socket,id=qmp,path={port},server=on,wait=off", "--monitor", "qmp"),
        *("--export", f"fuse,id=export,node-name=slow,mountpoint={export},writable=on"),
    ]
    daemon = lab.start("qemu-storage-daemon", *words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=open(log, "w"))
    process = lab.scope.made[-1]

    def exported():
        if daemon.poll() is not None:
            raise OSError(f"qemu-storage-daemon ended: {log.read_text().strip()}")
        return export.stat().st_size == SIZE

    eventually(exported)
    monitor = socket.socket(socket.AF_UNIX)
    monitor.connect(str(port))
    qmp = Qmp(monitor)
    speed = lambda bytes_per_s: qmp.execute("qom-set", path="/objects/speed", property="limits", value={"bps-total": bytes_per_s})
    return loop(lab, export, speed, [process, mount])  # the mount is taken down before the process that serves it


def loop(lab, file, speed=None, parts=()):
    """A loop device with direct I/O; `parts` are what it stands on."""
    if not Path("/dev/loop-control").exists():
        subprocess.run(["modprobe", "loop"], capture_output=True)
    part = lab.scope.add("loop", file)
    made = subprocess.run(["losetup", "--find", "--show", "--direct-io=on", file], capture_output=True, text=True)
    assert made.returncode == 0, f"losetup: {made.stderr.strip()}"
    return Disk(lab, Path(made.stdout.strip()).name, speed, [*parts, part])


def in_guest(lab, count):
    """Disks that QEMU gave the guest, in their order."""
    serial = lambda path: path.read_text().strip()
    found = sorted((serial(path), path.parts[3]) for path in Path("/sys/block").glob("*/device/serial") if serial(path).startswith("disk"))
    if len(found) < count:
        raise Refused(f"this needs {count} disks and the guest has {len(found)}: give tools/vm more of -d")
    qmp = Qmp(open(GUEST_PORT, "r+b", buffering=0))
    others = dict.fromkeys(("bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"), 0)

    def speed_of(name):
        return lambda bytes_per_s: qmp.execute("block_set_io_throttle", device=name, bps=bytes_per_s, **others)

    return [Disk(lab, name, speed_of(serial)) for serial, name in found[:count]]
