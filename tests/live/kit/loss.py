"""Reads a container's memory for as long as its input lasts, by name and through a descriptor that stays open, and says at the end what
went wrong. A descriptor that fails is opened anew, as a program would. `loss.py BYTES`: what MemTotal has to be."""

import json
import os
import select
import sys
import time

FILE = "/proc/meminfo"
held = None


def by_name():
    with open(FILE, "rb") as file:
        return file.read()


def through_descriptor():
    global held
    if held is None:
        held = os.open(FILE, os.O_RDONLY)
    try:
        return os.pread(held, 1 << 16, 0)
    except OSError:
        os.close(held)
        held = None
        raise


def shown(text):
    """MemTotal, the file's first line, in bytes."""
    word, kib, unit, *_ = text.split(maxsplit=3)
    if (word, unit) != (b"MemTotal:", b"kB"):
        raise ValueError(f"no meminfo: {text[:60]!r}")
    return int(kib) << 10


def main():
    right = int(sys.argv[1])
    count = {"reads": 0, "failed": 0, "descriptors_lost": 0, "host_seen": 0}
    errors, last_right, longest = {}, time.monotonic(), 0.0
    through_descriptor()
    sys.stdin.readline()
    print("reading", flush=True)
    while not select.select([sys.stdin], [], [], 0.001)[0]:
        for read, failure in ((by_name, "failed"), (through_descriptor, "descriptors_lost")):
            count["reads"] += 1
            try:
                seen = shown(read())
            except (OSError, ValueError) as error:
                count[failure] += 1
                errors[str(error)] = errors.get(str(error), 0) + 1
                continue
            if seen == right:
                longest, last_right = max(longest, time.monotonic() - last_right), time.monotonic()
            else:
                count["host_seen"] += 1
    print(json.dumps({**count, "longest_s": round(longest, 3), "errors": errors}))


main()
