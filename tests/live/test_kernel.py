"""What the kernel decides: `make kernels-test` asks this of each kernel that it can boot, and docs/guide/kernels.md has the answers. One
container for all of it, because starting one more takes many seconds of an emulated CPU."""

import json
import os
import subprocess
import time
from pathlib import Path

from kit import cgroup
from kit.cgroup import V2
from kit.container import PYTHON, meminfo
from kit.process import Process
from kit.wait import PATIENCE, eventually

MIB = 1 << 20
# `make kernels-test` kills 20. Fewer where they take more than KILLING seconds, as on an emulated CPU that other programs use too.
KILLS, KILLING = int(os.environ.get("ELBOWROOM_TEST_SERVER_KILLS", "5")), 60
LOSS = Path(__file__).with_name("kit") / "loss.py"
PAGE = "/sys/devices/system/cpu/elbowroom"


def facts(binary):
    """What `elbowroom check` finds on this host, by name."""
    done = subprocess.run([binary, "check", "--format", "json"], capture_output=True, text=True, timeout=30 * PATIENCE)
    return {row["name"]: row["present"] for row in json.loads(done.stdout)["facts"]}


def cgroup_file(container):
    """Where a program finds its memory limit: below its own cgroup."""
    path, file = ("", "memory.max") if V2 else ("/memory", "memory.limit_in_bytes")
    for line in container.read("/proc/self/cgroup").splitlines():
        _, controllers, own = line.split(":", 2)
        if controllers == "" if V2 else "memory" in controllers.split(","):
            return f"/sys/fs/cgroup{path}{own.rstrip('/')}/{file}"
    raise AssertionError("no cgroup")


def test_what_works_in_a_container(agent, start, record_property):
    container = start("--cpus", "1", "--memory", "256MiB")
    path = agent.attached(container)["path"]
    container.hold("/proc/meminfo")
    limit = cgroup_file(container)

    def shows(mib):
        by_name, held = container.mem_total(), meminfo(container.reread("/proc/meminfo"))["MemTotal"]
        assert by_name == held == int(container.read(limit)) == mib * MIB, (by_name, held)
        return True

    def follows():
        for mib in (300, 200):
            cgroup.limit_memory(path, mib * MIB)
            eventually(lambda: shows(mib))
        return True

    asked = {
        "cpus": lambda: container.online() == 1,
        "memory": lambda: shows(256),
        "follows": follows,
        # The page is memory of the host; without it, its name is an empty file of the view.
        "page": lambda: container.run("stat", "-f", "-c", "%T", PAGE).strip() == "tmpfs",
    }
    wrong = {}
    for name, holds in asked.items():
        try:
            eventually(holds, within=3)
        except AssertionError as error:
            wrong[name] = str(error)
        record_property(name, name not in wrong)
    # Before Linux 5.12 no page can be mounted read-only for good.
    if tuple(map(int, os.uname().release.split(".")[:2])) < (5, 12):
        wrong.pop("page", None)
    assert not wrong, wrong


def test_a_killed_view_server_costs_what_check_says(agent, start, binary, record_property):
    container = start("--memory", "256MiB")
    agent.attached(container)
    reader = container._ask("spawn", [PYTHON, str(LOSS), str(256 * MIB)])
    container._ask("converse", reader)
    print("reading", flush=True)
    kills, end = 0, time.monotonic() + KILLING
    while kills < KILLS and time.monotonic() < end:
        victim = Process(agent.status()["pids"]["view_server"])
        assert victim.pid > 0
        agent.remember()
        victim.kill()
        kills += 1

        def replaced():
            status = agent.status()
            return status and status["pids"]["view_server"] not in (0, victim.pid) and container.mem_total() == 256 * MIB

        eventually(replaced)
        print(f"killed {kills}, {end - time.monotonic():.0f} s left", flush=True)
    counted = {"kills": kills, **json.loads(container._ask("finish", reader))}
    for name, value in counted.items():
        record_property(name, value)
    assert kills > 3 and counted["reads"] > 2 * kills, counted
    if facts(binary)["FUSE resend"]:
        lost = [counted[name] for name in ("failed", "descriptors_lost", "host_seen")]
        assert lost == [0, 0, 0], counted
    else:
        # The reader's read in flight, and the descriptor that it keeps.
        assert counted["failed"] <= kills and counted["descriptors_lost"] <= kills, counted
    assert container.mem_total() == 256 * MIB
