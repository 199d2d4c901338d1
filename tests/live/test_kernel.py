"""What the kernel decides: `make kernels-test` asks this of each kernel that it can boot, and docs/guide/kernels.md has the answers."""

import json
import os
import subprocess
from pathlib import Path

from kit import cgroup
from kit.container import PYTHON, meminfo
from kit.process import Process
from kit.wait import PATIENCE, eventually

MIB = 1 << 20
KILLS = int(os.environ.get("ELBOWROOM_TEST_SERVER_KILLS", "20"))
LOSS = Path(__file__).with_name("kit") / "loss.py"


def offers(binary, fact):
    """Whether `elbowroom check` finds something on this host."""
    done = subprocess.run([binary, "check", "--format", "json"], capture_output=True, text=True, timeout=30 * PATIENCE)
    return next(row["present"] for row in json.loads(done.stdout)["facts"] if row["name"] == fact)


def test_a_changed_limit_shows_also_in_an_open_file(agent, start):
    container = start("--memory", "256MiB")
    path = agent.attached(container)["path"]
    container.hold("/proc/meminfo")
    total = lambda: meminfo(container.reread("/proc/meminfo"))["MemTotal"]
    assert container.mem_total() == total() == 256 * MIB
    for mib in (300, 200):
        cgroup.limit_memory(path, mib * MIB)
        eventually(lambda: container.mem_total() == total() == mib * MIB)


def test_a_killed_view_server_costs_what_check_says(agent, start, binary, record_property):
    container = start("--memory", "256MiB")
    agent.attached(container)
    reader = container._ask("spawn", [PYTHON, str(LOSS), str(256 * MIB)])
    container._ask("converse", reader)
    for _ in range(KILLS):
        victim = Process(agent.status()["pids"]["view_server"])
        assert victim.pid > 0
        agent.remember()
        victim.kill()

        def replaced():
            status = agent.status()
            successor = status and status["pids"]["view_server"]
            return successor and successor not in (0, victim.pid) and container.mem_total() == 256 * MIB

        eventually(replaced)
    counted = json.loads(container._ask("finish", reader))
    record_property("kills", KILLS)
    for name, value in counted.items():
        record_property(name, value)
    assert counted["reads"] > 2 * KILLS, counted
    if offers(binary, "FUSE resend"):
        lost = [counted[name] for name in ("failed", "descriptors_lost", "host_seen")]
        assert lost == [0, 0, 0], counted
    else:
        # One reader: the read in flight, and the descriptor that it keeps.
        assert counted["failed"] <= KILLS and counted["descriptors_lost"] <= KILLS, counted
    assert container.mem_total() == 256 * MIB
