"""Says what this Python sees, once for every line of its input: os.cpu_count(), its affinity, physical memory."""

import os
import sys

for _ in sys.stdin:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    print(os.cpu_count(), len(os.sched_getaffinity(0)), memory, flush=True)
