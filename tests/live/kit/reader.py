"""Reads views for as long as its input lasts, by name and through descriptors that stay open. At the end it prints the number of reads, the
failed ones, and the time of the slowest."""

import json
import os
import select
import sys
import time

VIEWS = {
    "/proc/meminfo": lambda text: text.startswith("MemTotal:") and text.endswith("\n"),
    "/proc/stat": lambda text: text.startswith("cpu ") and "\ncpu" in text,
    "/proc/uptime": lambda text: len(text.split()) == 2,
    "/sys/devices/system/cpu/online": lambda text: text[:1].isdigit() and text.endswith("\n"),
}


def main():
    held = {path: os.open(path, os.O_RDONLY) for path in VIEWS}
    reads, failures, slowest = 0, [], 0.0

    def look(path, read):
        nonlocal reads, slowest
        started = time.monotonic()
        try:
            text = read().decode()
            if "\0" in text or not VIEWS[path](text):
                failures.append(f"{path}: {text[:200]!r}")
        except OSError as error:
            failures.append(f"{path}: {error}")
        slowest = max(slowest, time.monotonic() - started)
        reads += 1

    def by_name(path):
        with open(path, "rb") as file:
            return file.read()

    sys.stdin.readline()
    print("reading", flush=True)
    while not select.select([sys.stdin], [], [], 0.001)[0]:
        for path, descriptor in held.items():
            look(path, lambda: by_name(path))
            look(path, lambda: os.pread(descriptor, 1 << 16, 0))
    print(json.dumps({"reads": reads, "failures": failures[:20], "failed": len(failures), "slowest": slowest}))


main()
