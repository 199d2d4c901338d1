"""What does a limit catch of direct, buffered and mapped I/O?

The same amount of data by every way in which programs read and write files, under a limit that is far below what the disk can do. No
agent runs; the lab writes the limit. A write that ends in the page cache is not over when the program is. What counts is when the data
reached the disk, so each measurement ends with a sync of the file system from outside the container. Beside it, a program without any limit
appends to a file on the same file system and syncs it: a limit on one program can hold up all that share the journal."""

import ctypes
import os
import shutil
import threading
import time

from kit.cgroup import V2
from lab import disks
from lab.stats import spread
from lab.tables import of_spread, short

LASTS = "1 min a run"
NEEDS = ("fio", "mkfs.ext4")
MB = 1_000_000
# A rate up to this many times the limit counts as limited: the journal, which is charged to no container, comes on top.
HELD = 1.5
QUEUE = ["--direct=1", "--ioengine=libaio", "--iodepth=8"]
# fio's words. The first is measured without a limit.
WAYS = {
    "no limit: direct write": ["--rw=write", *QUEUE],
    "direct read": ["--rw=read", *QUEUE],
    "buffered read": ["--rw=read"],
    "direct write": ["--rw=write", *QUEUE],
    "buffered write": ["--rw=write"],
    "buffered write, fsync every MiB": ["--rw=write", "--fsync=16"],
    "buffered write, O_DSYNC": ["--rw=write", "--sync=dsync"],
    "write through mmap": ["--rw=write", "--ioengine=mmap"],
    "small files, 16 kB each": ["--rw=write", "--bs=16k", "--openfiles=1", "--file_service_type=sequential"],
}


def options(parser):
    parser.add_argument("--disk-mb", type=int, default=40, help="MB/s of the disk, in a guest of tools/vm; elsewhere it is what /tmp does")
    parser.add_argument("--limit-mb", type=int, default=4, help="MB/s that the container may")
    parser.add_argument("--amount-mb", type=int, default=32, help="MB that are moved each time")
    parser.add_argument("--runs", type=int, default=3, help="how often each way is measured")


def record(lab, options):
    disk = disks.for_files(lab, options.disk_mb * MB)
    files = disks.mount_ext4(lab, disk)
    raw = lab.resumed or {"limit_mb": options.limit_mb, "amount_mb": options.amount_mb, "cgroup_v2": V2, "runs": []}
    for number in range(len(raw["runs"]), options.runs):
        print(f"run {number + 1} of {options.runs}", flush=True)
        raw["runs"].append([measure(lab, raw, disk, files, way) for way in WAYS])
        lab.keep(raw)
    return raw


def measure(lab, raw, disk, files, way):
    with lab.container("writer") as container:
        group, data = container.group, files / "data"
        group.count_io(disk.number)
        data.mkdir()
        words = [*WAYS[way], f"--directory={data}", "--name=data", "--output=/dev/null"]
        size = raw["amount_mb"] * MB
        small = [f"--nrfiles={size >> 14}", "--filesize=16k", "--fallocate=none"]
        words += small if way.startswith("small") else [f"--size={size}", "--bs=64k"]
        if way.endswith(("read", "mmap")):
            container.output("/usr/bin/env", "fio", *words, "--create_only=1")  # the file is written before there is a limit
        sync(files)
        if way != next(iter(WAYS)):
            group.limit_io(disk.number, raw["limit_mb"] * MB)
        before, over, began = group.io_bytes(disk.number), threading.Event(), time.monotonic()
        seen, waited = [], []
        beside = [(watch, (disk, over, seen)), (append, (files / "neighbour", over, waited))]
        threads = [threading.Thread(target=task, args=arguments) for task, arguments in beside]
        for thread in threads:
            thread.start()
        try:
            container.output("/usr/bin/env", "fio", *words)
            program_s = time.monotonic() - began
            sync(files)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        own_kb = [(after - first) // 1000 for first, after in zip(before, group.io_bytes(disk.number))]
        shutil.rmtree(data)
    return {"way": way, "program_s": program_s, "disk_kb": seen, "own_kb": own_kb, "neighbour_ms": max(waited)}


def sync(files):
    descriptor = os.open(files, os.O_RDONLY)
    done = ctypes.CDLL(None, use_errno=True).syncfs(descriptor)
    os.close(descriptor)
    assert done == 0, f"while syncing {files}: {os.strerror(ctypes.get_errno())}"


def watch(disk, over, seen):
    """[ms, thousands of bytes read, written] at the disk, for whatever program, where they changed, every 20 ms until `over`."""
    start, first = time.monotonic(), disk.bytes()
    seen.append([0, 0, 0])
    while True:
        last = over.is_set()
        now = [(count - base) // 1000 for base, count in zip(first, disk.bytes())]
        if seen[-1][1:] != now:
            seen.append([int((time.monotonic() - start) * 1000), *now])
        if last:
            return
        time.sleep(0.02)


def append(path, over, waited):
    """How long each of its syncs took, in ms."""
    waited.append(0.0)
    with open(path, "wb", buffering=0) as file:
        while not over.is_set():
            began = time.monotonic()
            file.write(b"\7" * 4096)
            os.fdatasync(file.fileno())
            waited.append((time.monotonic() - began) * 1e3)
            time.sleep(0.05)


def study(raw):
    """Figures of each way, by run."""
    ways = {}
    for run in raw["runs"]:
        for one in run:
            figures = ways.setdefault(one["way"], {"program": [], "disk": [], "own": [], "neighbour": []})
            figures["program"].append(raw["amount_mb"] / one["program_s"])
            figures["disk"].append(rate(one["disk_kb"]) / 1e6)
            figures["own"].append(one["own_kb"][writes(one["disk_kb"])] / 1000 / raw["amount_mb"] * 100)
            figures["neighbour"].append(one["neighbour_ms"])
    spreads = {way: {name: spread(values) for name, values in figures.items()} for way, figures in ways.items()}
    return {**{key: raw[key] for key in ("limit_mb", "amount_mb", "cgroup_v2")}, "runs": len(raw["runs"]), "ways": spreads}


def writes(disk_kb):
    return bool(disk_kb) and disk_kb[-1][2] > disk_kb[-1][1]


def rate(disk_kb):
    """Bytes per second at the disk, in the direction that carried more, over the middle nine tenths of what went there: free of how long
    programs take to start."""
    points = [(ms, written if writes(disk_kb) else read) for ms, read, written in disk_kb]
    total = points[-1][1] if points else 0
    head = [point for point in points if point[1] <= total * 0.05]
    before = head[-1] if head else (0, 0)
    after = next((point for point in points if point[1] >= total * 0.95), before)
    return (after[1] - before[1]) * 1e6 / max(after[0] - before[0], 1)


def draw(studied, out):
    limit = studied["limit_mb"]
    out.say(
        f"What a limit of {limit} MB/s catches on ext4, cgroup {'v2' if studied['cgroup_v2'] else 'v1'}: {studied['amount_mb']} MB each "
        f"time, medians of {studied['runs']} runs (smallest to largest). The first row is without the limit."
    )
    rows = []
    for number, (way, figures) in enumerate(studied["ways"].items()):
        held = "yes" if figures["disk"].median <= limit * HELD else "**no**"
        wait = figures["neighbour"]
        waited = f"{short(round(wait.median))} ({wait.min:.0f} to {wait.max:.0f})"
        seen = [of_spread(figures["program"]), of_spread(figures["disk"]), held if number else "-", f"{of_spread(figures['own'])} %"]
        rows.append([way, *seen, waited])
    out.table(["way", "the program saw, MB/s", "reached the disk at, MB/s", "limited", "counted for the container",
               "a neighbour's sync took up to, ms"], rows)  # fmt: skip
    out.say(
        "Limited: no faster at the disk than 1.5 times the limit; the journal, which is nobody's, comes on top. The neighbour has no "
        "limit; it appends 4 kB to a file of its own on the same file system and syncs it, 20 times a second."
    )
