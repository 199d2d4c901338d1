"""Watches a file for memory pressure as https://systemd.io/MEMORY_PRESSURE has it, and says so in lines: `watching`, `asked` each
time, `end` where there is nothing to be watched any more. Started by tests, in containers and out of them.

The file is that of the environment, or the first argument, which is opened to be read only; it is waited for."""

import base64
import os
import select
import stat
import sys
import time

path, write = os.environ.get("MEMORY_PRESSURE_WATCH"), os.environ.get("MEMORY_PRESSURE_WRITE")
if len(sys.argv) > 1:
    path, write = sys.argv[1], None


def is_there():
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


while not is_there():
    time.sleep(0.02)
descriptor = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC)
if write:
    os.write(descriptor, base64.b64decode(write))
poll = select.poll()
poll.register(descriptor, select.POLLIN)
print("watching", flush=True)
while True:
    (_, events), *_ = poll.poll()
    if events & select.POLLIN:
        os.read(descriptor, 4096)
        print("asked", flush=True)
    else:
        print("end", flush=True)
        break
