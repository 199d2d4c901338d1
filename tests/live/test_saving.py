"""Saving, on cgroup v2: memory that a container does not read is reclaimed before any container needs it, and what it reads stays."""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from kit import cgroup
from kit.memory import MIB, file, zram
from kit.wait import PATIENCE, always, eventually

PARENT = "elbowroom-test-live-saving"
READ_ONCE, WORKING_SET = 200, 40
# Blocks a second, which an emulated CPU can do beside the agent.
RATE = 200 if PATIENCE == 1 else 50
CONFIG = '[disk]\nmode = "off"\n[memory]\nmode = "enforce"\nsaving = true\n'
# Not `memory.low`: what a container uses is protected while it could use more, saving or not.
LIMITS = ["memory.high", "memory.max", "memory.swap.max"]
# Saving begins a minute after a container was first seen, and takes up to a quarter in the next; seconds, also on an emulated CPU.
SETTLED, SAVED = 200, 240


def knob(name, file):
    return (cgroup.ROOT / PARENT / name / file).read_text().strip()


def used(name):
    return int(knob(name, "memory.current")) / MIB


def saving(agent, name):
    return ((agent.json("show", f"/{PARENT}/{name}") or {}).get("memory") or {}).get("saving")


class Server:
    """A process of kit/rereads.py in a cgroup."""

    def __init__(self, group, log, words):
        self.log = log
        with open(log, "w") as out:
            program = [sys.executable, Path(__file__).parent / "kit/rereads.py", *words]
            self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=out, text=True)
        group.enter(self.process.pid)
        self.process.stdin.write("begin\n")
        self.process.stdin.flush()

    def rates(self):
        return [float(line) for line in self.log.read_text().split()[1:]]

    def end(self):
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def v2():
    if not cgroup.V2 or not (cgroup.ROOT / "memory.reclaim").exists() and not list(cgroup.ROOT.glob("*/memory.reclaim")):
        pytest.skip("needs cgroup v2 with memory.reclaim (Linux 5.19): tests/vm has it")
    if not os.path.exists("/proc/pressure/memory"):
        pytest.skip("needs a kernel that counts pressure (psi=1)")


@pytest.fixture
def parent(v2, hand_made):
    return hand_made(PARENT)


@pytest.fixture
def serve(parent, disk, hand_made, tmp_path):
    """Starts servers: `serve("a")`."""
    started = []

    def start(name):
        words = [file(disk, f"{name}-once", READ_ONCE), file(disk, f"{name}-again", WORKING_SET), str(RATE)]
        started.append(Server(hand_made(f"{PARENT}/{name}"), tmp_path / f"{name}.log", words))
        eventually(lambda: started[-1].rates(), within=60)
        return started[-1]

    yield start
    for server in started:
        server.end()


@pytest.fixture
def saves(new_agent):
    return lambda: new_agent(CONFIG, f'cgroups = ["/{PARENT}/*"]\nattach = false').start()


def eventually_saved(agent, name, part, before):
    """Waits until this part of what a container had is saved, by the kernel's count and by the agent's."""

    def is_saved():
        status = saving(agent, name)
        assert status and status["saved"] >= part * before * MIB, (status, used(name), agent.json("explain", f"/{PARENT}/{name}")["memory"])
        return used(name) <= (1 - 0.9 * part) * before

    eventually(is_saved, within=SAVED / PATIENCE, every=1)


def test_what_is_not_read_is_saved_what_is_read_stays_and_a_label_says_no(saves, serve):
    server, spared = serve("saved"), serve("spared")
    before, spared_before, limits = used("saved"), used("spared"), [knob("saved", name) for name in LIMITS]
    agent = saves()
    labels = {"elbowroom.dev/memory-saving": "off"}
    agent.ask({"label": {"container": f"/{PARENT}/spared", "by": "a test", "promised": labels}})["container"]
    eventually(lambda: saving(agent, "saved") and saving(agent, "spared") is None, within=20)
    eventually(lambda: "less than a minute" in saving(agent, "saved")["because"])
    eventually(lambda: saving(agent, "saved")["active"], within=SETTLED / PATIENCE, every=1)
    quiet = server.rates()[-20:]
    eventually_saved(agent, "saved", 0.2, before)
    # Its working set is there: it reads about as fast as before, or as one that is left alone. How much slower is the lab's to measure.
    busy = server.rates()[-20:]
    assert statistics.mean(busy) >= 0.9 * min(statistics.mean(quiet), statistics.mean(spared.rates()[-20:])), (quiet, busy)
    assert abs(used("spared") - spared_before) < 0.05 * spared_before
    table = agent.cli("memory").stdout
    assert "SAVED" in table and " saved\n" in table, table
    assert "elbowroom_container_memory_saved_bytes" in agent.cli("metrics").stdout
    # Nothing is set that could stay: not while it saves, and not when all of it is killed at one moment.
    assert [knob("saved", name) for name in LIMITS] == limits
    agent.destroy()
    assert [knob("saved", name) for name in LIMITS] == limits
    after = used("saved")
    always(lambda: used("saved") > after - 2, during=2)
    successor = saves()  # takes away the mounts of the one that was killed
    eventually(lambda: (saving(successor, "saved") or {}).get("saved") == 0, within=20)
    assert successor.stop() == 0
    assert [knob("saved", name) for name in LIMITS] == limits


def test_anonymous_memory_is_saved_where_there_is_swap(saves, parent, hand_made, hungry):
    with zram("512M") as device:
        subprocess.run(["mkswap", "-q", device], check=True)
        subprocess.run(["swapon", device], check=True)
        try:
            group = hand_made(f"{PARENT}/heap")
            hungry(group)("hold 150")
            before = used("heap")
            eventually_saved(saves(), "heap", 0.15, before)
            assert int(knob("heap", "memory.swap.current")) > 0.1 * before * MIB
        finally:
            subprocess.run(["swapoff", device], check=True)


def test_a_kernel_that_cannot_save_says_why(saves, hand_made, hungry):
    if cgroup.V2:
        pytest.skip("needs cgroup v1, which has no memory.reclaim")
    hand_made(PARENT)
    group = hand_made(f"{PARENT}/a", hierarchies=cgroup.HIERARCHIES)
    hungry(group)("hold 20")
    agent = saves()
    eventually(lambda: saving(agent, "a") and "memory.pressure: cgroup v2" in saving(agent, "a")["because"], within=20)
    assert "nothing is taken of" in agent.cli("memory").stdout
