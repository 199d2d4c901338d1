"""Effective memory where the machine's memory is full of page cache, as it is on every machine that has been up for a day."""

import os

import pytest

from kit import cgroup
from kit.container import meminfo
from kit.memory import MIB, file, host_memory
from kit.wait import always, eventually

RESERVED, FILLED, LIMIT = 256, 400, 1024
WORKING_SET = 96


def refaults(group):
    """Pages of files that were in use, were reclaimed and had to be read again."""
    directory = cgroup.ROOT / group.path if cgroup.V2 else cgroup.ROOT / "memory" / group.path
    stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
    return int(stat["workingset_restore_file"] if "workingset_restore_file" in stat else stat["workingset_refault_file"])


@pytest.fixture
def neighbour(disk, hungry, hand_made):
    """A program whose working set is a file in memory, which it reads again and again."""
    group = hand_made("elbowroom-test-warm-neighbour")
    program = hungry(group)
    program(f"read {file(disk, 'working-set', WORKING_SET)} 100")
    eventually(lambda: cached(group) >= WORKING_SET * MIB * 9 // 10, within=30)
    return group


def cached(group):
    directory = cgroup.ROOT / group.path if cgroup.V2 else cgroup.ROOT / "memory" / group.path
    stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
    return int(stat["active_file"]) + int(stat["inactive_file"])


@pytest.fixture
def warm(small_host, disk, neighbour):
    """A machine with hardly any free memory, all but a part of which could be had."""
    size = host_memory()["MemTotal"] // MIB
    flood = disk / "flood"
    with open(flood, "wb") as out:
        for _ in range(size):
            out.write(bytes(MIB))
        os.fsync(out.fileno())
    memory = host_memory()
    if memory["MemFree"] > memory["MemTotal"] // 8 or memory["MemAvailable"] < memory["MemTotal"] // 2:
        pytest.skip(f"needs memory full of page cache: of {memory['MemTotal'] // MIB} MiB {memory['MemFree'] // MIB} are free, "
                    f"{memory['MemAvailable'] // MIB} could be had")
    yield
    flood.unlink()


def filled(start):
    container = start("--memory", f"{LIMIT}MiB", "--memory-reservation", f"{RESERVED}MiB")
    container.allocate(FILLED)
    return container


def test_a_container_grows_as_on_a_fresh_machine_and_no_neighbour_suffers(warm, neighbour, agent, start):
    before = refaults(neighbour)
    container = filled(start)
    shown = eventually(lambda: (now := agent.view(container)["memory"]) > FILLED * MIB and now, within=10)
    assert shown <= LIMIT * MIB
    inside = eventually(lambda: (now := meminfo(container.read("/proc/meminfo")))["MemTotal"] > FILLED * MIB and now)
    assert 0 < inside["MemAvailable"] <= min(inside["MemTotal"], host_memory()["MemAvailable"] + 64 * MIB), inside
    always(lambda: agent.view(container)["memory"] > FILLED * MIB, during=2)
    lost = refaults(neighbour) - before
    assert lost * os.sysconf("SC_PAGE_SIZE") < WORKING_SET * MIB // 20, f"the neighbour read {lost} pages again"
