"""CPU time, memory and descriptors of processes at one instant: the costs of the agent."""

import os
from pathlib import Path

from kit.process import descendants, stat_fields

TICKS = os.sysconf("SC_CLK_TCK")


def usage(pid):
    """CPU time in seconds since it started (the kernel counts in 1/100 s), memory in KiB (`anon_kib`: its own, no page cache), threads,
    descriptors, and mounts in its mount namespace. FileNotFoundError where it is gone."""
    here = Path(f"/proc/{pid}")
    lines = (line.partition(":") for line in (here / "status").read_text().splitlines())
    status = {key: rest.split() for key, _, rest in lines}
    number = lambda key: int(status[key][0]) if key in status else 0
    fields = stat_fields(pid)
    if fields is None:
        raise FileNotFoundError(f"{here} is gone")
    return {
        "cpu_s": (int(fields[11]) + int(fields[12])) / TICKS,
        "rss_kib": number("VmRSS"),
        "anon_kib": number("RssAnon"),
        "threads": number("Threads"),
        "fds": len(os.listdir(here / "fd")),
        "mounts": (here / "mountinfo").read_text().count("\n"),
    }


def total(pids):
    """The sum over processes, less those that are gone; mounts are the most that any process sees. `by_name`: `anon_kib` of each name."""
    total = {"cpu_s": 0.0, "rss_kib": 0, "anon_kib": 0, "threads": 0, "fds": 0, "mounts": 0, "by_name": {}}
    for pid in pids:
        try:
            one, name = usage(pid), Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
        except (FileNotFoundError, ProcessLookupError):
            continue
        total["by_name"][name] = total["by_name"].get(name, 0) + one["anon_kib"]
        mounts = max(total["mounts"], one["mounts"])
        for key in one:
            total[key] += one[key]
        total["mounts"] = mounts
    return total


def family(pid):
    """A process and all below it."""
    return sorted([pid, *descendants(pid)])
