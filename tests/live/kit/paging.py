"""Reads random pages of a file, as many a second as the last line on standard input says. Started by kit/memory.py."""

import os
import random
import select
import sys
import time

BLOCK = 1 << 16

descriptor = os.open(sys.argv[1], os.O_RDONLY)
blocks = os.fstat(descriptor).st_size // BLOCK
# Every miss is one block: nothing is read ahead.
os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
draw, rate, due = random.Random(1), 0.0, time.monotonic()
while True:
    if select.select([0], [], [], max(0.0, due - time.monotonic()))[0]:
        # Unbuffered: a line that waits in a buffer of ours is nothing that select() sees.
        orders = os.read(0, BLOCK).split()
        if not orders:
            break
        rate = float(orders[-1])
    for _ in range(round(rate / 10)):
        os.pread(descriptor, BLOCK, draw.randrange(blocks) * BLOCK)
    due = max(due + 0.1, time.monotonic())
