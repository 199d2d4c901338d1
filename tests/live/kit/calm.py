"""How calm a CPU view is, and how soon it follows: numbers of a run, from the file that programs read."""

import os
import threading
import time

from kit.container import cpu_list

ONLINE = "sys/devices/system/cpu/online"


class Watch:
    """Looks at the CPUs that are online in a container's view every few milliseconds, from outside, as its root directory shows them."""

    def __init__(self, container, every=0.005):
        self.file = os.open(f"/proc/{container.pid}/root/{ONLINE}", os.O_RDONLY)
        self.every = every
        self.seen = []  # (time, CPUs) of each change, the first look included
        self.end = threading.Event()
        self.thread = threading.Thread(target=self.look)

    def look(self):
        while not self.end.is_set():
            now = len(cpu_list(os.pread(self.file, 4096, 0).decode()))
            if not self.seen or self.seen[-1][1] != now:
                self.seen.append((time.monotonic(), now))
            time.sleep(self.every)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        self.thread.join()
        os.close(self.file)

    def changes(self, since, until):
        """Changes of the view in that time."""
        return sum(since < at <= until for at, _ in self.seen[1:])

    def settled_after(self, since, until):
        """Seconds from `since` to the last change before `until`; 0 where there was none."""
        return max((at - since for at, _ in self.seen[1:] if since < at <= until), default=0.0)

    def shown(self, since, until):
        """The CPUs shown in that time, each with the part of the time."""
        steps = [*self.seen, (float("inf"), 0)]
        parts = {}
        for (at, cpus), (next_at, _) in zip(steps, steps[1:]):
            time_shown = min(until, next_at) - max(since, at)
            if time_shown > 0:
                parts[cpus] = parts.get(cpus, 0.0) + time_shown / (until - since)
        return parts


def follow(container, neighbour, cpus, steady, settle):
    """A container and a neighbour that both want all CPUs. The neighbour starts and stops once; then both run for `steady` seconds. What a
    report says of that, in seconds and changes."""
    with Watch(container) as watch:
        time.sleep(settle)
        begin = time.monotonic()
        neighbour.burn(cpus)
        down_until = begin + settle
        time.sleep(settle)
        still = time.monotonic()
        time.sleep(steady)
        stop = time.monotonic()
        neighbour.calm()
        time.sleep(settle)
        up_until = time.monotonic()
    return {
        "down_s": round(watch.settled_after(begin, down_until), 3),
        "up_s": round(watch.settled_after(stop, up_until), 3),
        "changes_per_minute": round(watch.changes(still, stop) * 60 / (stop - still), 1),
        "shown": {cpus: round(part, 2) for cpus, part in sorted(watch.shown(still, stop).items())},
    }
