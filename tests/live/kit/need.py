"""Reasons not to run a test here."""

import os
import time
from pathlib import Path

import pytest

from kit import cgroup
from kit.wait import eventually


def cpus(number):
    """Skips a test that needs `number` CPUs where there are fewer."""
    if os.cpu_count() < number:
        pytest.skip(f"needs {number} CPUs: this machine has {os.cpu_count()}; tests/vm has more")


def nodes(number):
    """Skips a test that needs `number` NUMA nodes where there are fewer."""
    if (here := len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))) < number:
        pytest.skip(f"needs {number} NUMA nodes: this machine has {here}; tests/vm has more")


def has_swap():
    """Whether this machine has swap."""
    return len(Path("/proc/swaps").read_text().splitlines()) > 1


def no_swap():
    """Skips a test of a program that is killed at its memory limit: where there is swap, it goes there instead."""
    if has_swap():
        pytest.skip("needs a machine without swap: with swap, what is above a memory limit is swapped and not killed")


TICKS = os.sysconf("SC_CLK_TCK")
# Seconds that all tests of a run together wait for a machine that other programs keep busy; after that each test looks once.
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


# The agent and these tests use less of all CPUs while they wait.
OTHERS = 0.2


def of_idle_cpus(condition, *containers, **bounds):
    """`eventually`, of what these containers make of idle CPUs. It skips the test where it does not come true and others had their part of
    the CPUs meanwhile: they may have begun since `idle_cpus` looked."""
    ours = lambda: sum(cgroup.cpu_time(container.pid) for container in containers)
    before, used_before = cpu_times(), ours()
    try:
        return eventually(condition, **bounds)
    except AssertionError:
        idle, used = (later - earlier for later, earlier in zip(cpu_times(), before))
        others = (used / TICKS - (ours() - used_before)) / max(0.01, (idle + used) / TICKS)
        if others > OTHERS:
            pytest.skip(f"needs an idle machine: others used {others:.0%} of this one meanwhile; tests/vm has machines of its own")
        raise


def busy_part(during):
    """The part of all CPU time that was used."""
    before = cpu_times()
    time.sleep(during)
    idle, used = (later - earlier for later, earlier in zip(cpu_times(), before))
    return used / max(1, used + idle)


def cpu_times():
    """Ticks of all CPUs that were idle, and that were used."""
    user, nice, system, idle, iowait, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return idle + iowait, user + nice + system
