"""Reasons not to run a test here."""

import os
import time
from pathlib import Path

import pytest


def cpus(number):
    """Skips a test that needs so many CPUs."""
    if os.cpu_count() < number:
        pytest.skip(f"needs {number} CPUs: this machine has {os.cpu_count()}; tests/vm has more")


def nodes(number):
    """Skips a test that needs so many NUMA nodes."""
    if (here := len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))) < number:
        pytest.skip(f"needs {number} NUMA nodes: this machine has {here}; tests/vm has more")


def has_swap():
    """Whether this machine has swap."""
    return len(Path("/proc/swaps").read_text().splitlines()) > 1


def no_swap():
    """Skips a test of a program that is killed at its memory limit: where there is swap, it goes there instead."""
    if has_swap():
        pytest.skip("needs a machine without swap: with swap, what is above a memory limit is swapped and not killed")


# So many seconds a run of the tests waits for a machine that others keep busy, all its tests together; then each test looks once.
IDLE_PATIENCE = 10
waited = 0.0


def idle_cpus(number):
    """Skips a test that watches how containers divide idle CPUs among them, where others keep those busy."""
    global waited
    cpus(number)
    look = 0.3
    while (busy := busy_part(during=look)) > 0.1:
        waited += look
        if waited > IDLE_PATIENCE:
            pytest.skip(f"needs an idle machine: others use {busy:.0%} of this one; tests/vm has machines of its own")
    waited = 0.0


def busy_part(during):
    """The part of all CPU time that was used."""

    def times():
        user, nice, system, idle, iowait, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
        return idle + iowait, user + nice + system

    idle, used = times()
    time.sleep(during)
    idle, used = (later - earlier for later, earlier in zip(times(), (idle, used)))
    return used / max(1, used + idle)
