"""A server with a working set: reads all of a file once, prints `ready`, and from then on reads random blocks of another file. Every second
it prints how many these were. Begins with a line on standard input, when it is in its cgroup. Started by tests/live/test_saving.py.

  rereads.py READ_ONCE WORKING_SET BLOCKS_PER_SECOND"""

import os
import random
import sys
import time

BLOCK = 1 << 16
once, again = (os.open(path, os.O_RDONLY) for path in sys.argv[1:3])
rate = int(sys.argv[3])

sys.stdin.readline()
while os.read(once, 1 << 20):
    pass
blocks = os.fstat(again).st_size // BLOCK
for _ in range(3):  # in use, and not read once
    for block in range(blocks):
        os.pread(again, BLOCK, block * BLOCK)
print("ready", flush=True)
draw, done, due = random.Random(1), 0, time.monotonic()
told = due
while True:
    for _ in range(rate // 10):
        os.pread(again, BLOCK, draw.randrange(blocks) * BLOCK)
        done += 1
    due = max(due + 0.1, time.monotonic())
    time.sleep(max(0.0, due - time.monotonic()))
    if (now := time.monotonic()) - told >= 1:
        print(f"{done / (now - told):.1f}", flush=True)
        told, done = now, 0
