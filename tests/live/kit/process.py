"""Processes by identity, and what they hold: a process id alone may be another process's a moment later."""

import contextlib
import os
import signal
from pathlib import Path

from kit.wait import eventually


class Process:
    """One process, told from a later one with the same id by its start time."""

    def __init__(self, pid):
        self.pid = pid
        self.started = start_time(pid)

    def alive(self):
        return self.started is not None and start_time(self.pid) == self.started and state(self.pid) not in "ZX"

    def send(self, number):
        """Sends a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self.alive():
                os.kill(self.pid, number)

    def stop(self):
        """Stops it, and waits until all of its threads stand still: until then one of them may take work."""
        os.kill(self.pid, signal.SIGSTOP)
        eventually(lambda: {state(f"{self.pid}/task/{task}") for task in os.listdir(f"/proc/{self.pid}/task")} <= set("TtZX"))

    def kill(self, number=signal.SIGKILL):
        """Kills it, and waits until it is gone."""
        self.send(number)
        eventually(lambda: not self.alive(), within=20)

    def __repr__(self):
        try:
            words = Path(f"/proc/{self.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            words = ""
        return f"{self.pid} ({words.strip()[:120] or 'gone'})"


def stat_fields(pid):
    """The fields of /proc/PID/stat after the name, the first of which is the state."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def start_time(pid):
    fields = stat_fields(pid)
    return fields[19] if fields else None


def state(pid):
    fields = stat_fields(pid)
    return fields[0] if fields else "X"


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def comm(pid):
    """The name of its main thread, or None."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None


def descendants(pid):
    """Every process below `pid`."""
    children = {}
    for other in pids():
        fields = stat_fields(other)
        if fields:
            children.setdefault(int(fields[1]), []).append(other)
    found, queue = [], [pid]
    while queue:
        queue += (below := children.get(queue.pop(), []))
        found += below
    return found


def holders(directory):
    """Every process that has a file below `directory` open: an agent's hold its lock."""
    found = []
    for pid in pids():
        try:
            links = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue  # it ended while we looked
        if any(link.startswith(f"{directory}/") for link in links):
            found.append(pid)
    return found


def costs(pid):
    """The costs of a process: open descriptors, threads, and resident memory in KiB, but for the program's own pages, which come and go."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    return {
        "fds": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(status["Threads"]),
        "rss_kib": sum(int(status[key].split()[0]) for key in ("RssAnon", "RssShmem")),
    }


def mounts_of(device):
    """Every mount of file system `device` (st_dev) in any mount namespace of this machine, as `PID: mountinfo line`."""
    wanted = f" {os.major(device)}:{os.minor(device)} "
    seen, found = set(), []
    for pid in pids():
        try:
            namespace = os.stat(f"/proc/{pid}/ns/mnt").st_ino
            if namespace in seen:
                continue
            lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        except OSError:
            continue  # it ended while we looked
        seen.add(namespace)
        found += [f"{pid}: {line}" for line in lines if wanted in line]
    return found
