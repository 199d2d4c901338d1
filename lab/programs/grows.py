"""A program in a container that sizes itself by what it sees, as a server with an elastic cache does. Ten times a second it reads
/proc/meminfo: it holds at most 95 % of MemTotal, gives back what is above, and takes more while MemAvailable is more than the other 5 %.
Begins with a line on standard input. python3 grows.py MIB_PER_SECOND"""

import mmap
import sys
import time

MIB, PART, PERIOD = 1 << 20, 0.95, 0.1
step, held = int(sys.argv[1]) * PERIOD, []


def seen():
    """MemTotal and MemAvailable, in MiB."""
    with open("/proc/meminfo") as file:
        numbers = {key: int(rest.split()[0]) / 1024 for key, _, rest in (line.partition(":") for line in file)}
    return numbers["MemTotal"], numbers["MemAvailable"]


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE / MIB


sys.stdin.readline()
content, due = bytes([7]) * MIB, time.monotonic()
while True:
    total, available = seen()
    more = min(PART * total - resident(), available - (1 - PART) * total, step)
    for _ in range(int(more)):
        block = mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        block.madvise(mmap.MADV_NOHUGEPAGE)  # what is closed is given back, and not half of a huge page
        block.write(content)
        held.append(block)
    for _ in range(min(len(held), -int(min(0, PART * total - resident())))):
        held.pop().close()
    due = max(due + PERIOD, time.monotonic())
    time.sleep(max(0.0, due - time.monotonic()))
