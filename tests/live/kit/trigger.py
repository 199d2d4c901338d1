"""Arms a trigger on a file of pressure, as bun and psimon do, and says what became of it: `armed`, then `fired` or `silent`."""

import os
import select
import sys

path, trigger, seconds = sys.argv[1:]
file = os.open(path, os.O_RDWR | os.O_NONBLOCK)
os.write(file, trigger.encode() + b"\0")
print("armed", flush=True)
poll = select.poll()
poll.register(file, select.POLLPRI)
events = poll.poll(int(float(seconds) * 1000))
print("silent" if not events else "fired" if events[0][1] & select.POLLPRI and not events[0][1] & select.POLLERR else f"events {events}")
