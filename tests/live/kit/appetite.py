"""A program with an appetite, to be put into a cgroup before it eats. Orders come on standard input, one a line, and each is
answered with `ok`:

  hold MIB       memory of its own, written to
  use [R]        goes on writing to all of it, again and again, at most R MiB a second
  read FILE [R]  goes on reading FILE from start to end, at most R MiB a second
  burn           goes on computing
  rest           none of these any more, but keeps what it holds
"""

import mmap
import os
import sys
import threading
import time

PAGE = mmap.PAGESIZE
held = []
busy = threading.Event()


def touch(rate=None):
    for block in held:
        for start in range(0, len(block), 1 << 20):
            for at in range(start, start + (1 << 20), PAGE):
                block[at] = 1
            if rate:
                time.sleep(1 / int(rate))
            if not busy.is_set():
                return


def read(path, rate=None):
    buffer = bytearray(1 << 20)
    with open(path, "rb", buffering=0) as file:
        while busy.is_set() and file.readinto(buffer):
            if rate:
                time.sleep(1 / int(rate))


def forever(work, *arguments):
    def loop():
        while busy.is_set():
            work(*arguments)

    busy.set()
    threading.Thread(target=loop, daemon=True).start()


for line in sys.stdin:
    order, _, argument = line.strip().partition(" ")
    if order == "hold":
        block = mmap.mmap(-1, int(argument) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page = bytes([7]) * PAGE
        for at in range(0, len(block), PAGE):
            block[at : at + PAGE] = page
        held.append(block)
    elif order == "use":
        forever(touch, *argument.split())
    elif order == "read":
        forever(read, *argument.split())
    elif order == "burn":
        forever(lambda: sum(range(100_000)))
    elif order == "rest":
        busy.clear()
    os.write(1, b"ok\n")
