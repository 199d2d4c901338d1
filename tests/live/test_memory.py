"""The memory governor as its user meets it: two containers in a cgroup with a hard limit, files larger than that."""

import os
import signal
import subprocess
import time

import pytest

from kit import cgroup
from kit.memory import MIB, Paging, Watching
from kit.wait import always, eventually

POOL = "elbowroom-test-live-memory"
SIZE = 160 * MIB
RESERVED = {"a": 96, "b": 40}
CLAIMS = "".join(
    f'[[claims]]\ncontainer = "/{POOL}/{name}"\nmemory = {{ reservation = "{mib}MiB" }}\n' for name, mib in RESERVED.items()
)
CONTAINERS = f'cgroups = ["/{POOL}/*"]'
PRESSURE = "/dev/elbowroom-pressure"
# The unified hierarchy of a hybrid host has the pressure of containers that are there, too.
HIERARCHIES = cgroup.IO_HIERARCHIES
SOFT = "memory.low" if cgroup.V2 else "memory.soft_limit_in_bytes"
NO_PROTECTION = "0" if cgroup.V2 else "9223372036854771712"
# Blocks a second. On cgroup v1 a container that refills within the second what was taken swings around half.
BUSY, IDLE, GREEDY, FILLS = 200, 2, 400, 1000


def knob_file(name, file):
    return (cgroup.ROOT if cgroup.V2 else cgroup.ROOT / "memory") / POOL / name / file


def knob(name, file):
    return knob_file(name, file).read_text().strip()


def limits(name):
    """Everything that could squeeze a container."""
    files = ["memory.max", "memory.high"] if cgroup.V2 else ["memory.limit_in_bytes"]
    return [knob(name, file) for file in files]


@pytest.fixture
def on_disk(tmp_path):
    """A directory whose files have a page cache: not on tmpfs, which is one."""
    if subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True).stdout.strip() != "tmpfs":
        yield tmp_path
        return
    image, directory = tmp_path / "image", tmp_path / "disk"
    directory.mkdir()
    with open(image, "wb") as out:
        out.truncate(3 * SIZE)
    subprocess.run(["modprobe", "-a", "ext4", "loop"], capture_output=True)  # where they are modules
    for words in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, directory]):
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"needs a file system that is no tmpfs: {words[0]}: {done.stderr.strip()}")
    yield directory
    subprocess.run(["umount", directory], check=True)
    image.unlink()  # memory; pytest would keep it until the last test


@pytest.fixture
def pool(hand_made):
    """The cgroup that stands for the machine."""
    pool = hand_made(POOL, hierarchies=HIERARCHIES)
    if not cgroup.V2:
        pool.write("memory", "memory.use_hierarchy", 1)
    pool.limit_memory(SIZE)
    return pool


@pytest.fixture
def reads(hand_made, on_disk, pool):
    """Starts a program in a container below the pool that reads a file which does not fit: `reads("a").read(3000)`."""
    programs = []

    def start(name):
        group = hand_made(f"{POOL}/{name}", hierarchies=HIERARCHIES)
        path = on_disk / name.replace("/", "-")
        path.write_bytes(os.urandom(MIB) * (SIZE // MIB))
        descriptor = os.open(path, os.O_RDWR)
        os.fsync(descriptor)
        # What is cached already is charged to the cgroup that wrote it.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        programs.append(Paging(group, path))
        return programs[-1]

    yield start
    for program in programs:
        program.end()


@pytest.fixture
def busy(reads):
    """Two containers in a pool."""
    return {name: reads(name) for name in RESERVED}


@pytest.fixture
def governed(new_agent):
    config = '[disk]\nmode = "off"\n[memory]\nmode = "%s"\n%s'

    def start(mode, claims=CLAIMS, attach=False, containers=CONTAINERS):
        return new_agent(config % (mode, claims), f"{containers}\nattach = {str(attach).lower()}").start()

    return start


def standing(agent, name):
    return agent.json("show", f"/{POOL}/{name}")["memory"]


def used(agent, name):
    return (standing(agent, name) or {"usage": 0})["usage"] / MIB


def fill(agent, busy):
    """Both read until the pool is full, faster than afterwards."""
    for program in busy.values():
        program.read(FILLS)
    eventually(lambda: used(agent, "a") + used(agent, "b") > 0.9 * SIZE / MIB, within=60, every=0.2)
    for program in busy.values():
        program.read(BUSY)


def test_who_reads_most_does_not_get_what_another_has_reserved_and_idle_memory_moves(governed, busy):
    agent = governed("enforce")
    fill(agent, busy)
    # The same load on both: without reservations each would have half, 80 MiB.
    eventually(lambda: used(agent, "a") >= 0.95 * RESERVED["a"], within=30, every=0.5)
    busy["b"].read(IDLE)
    eventually(lambda: standing(agent, "b")["colour"] == "green", within=40, every=0.5)

    def lends():
        assert standing(agent, "b")["lent"] > 4 * MIB, agent.json("explain", f"/{POOL}/b")["memory"]
        return True

    # A first loan may find pages that were in use until now; then nothing is taken for a while.
    eventually(lends, within=150, every=0.5)
    assert used(agent, "b") < RESERVED["b"] + 20
    decisions = agent.json("explain", f"/{POOL}/b")["memory"]["decisions"]
    kinds = {decision["what"] for decision in decisions}
    assert "lend" in kinds and all(decision["because"] for decision in decisions), decisions
    shown = agent.json("show", f"/{POOL}/b")["view"]["memory"]
    assert shown < SIZE, "its view shows less while it lends"
    busy["b"].read(BUSY)
    eventually(lambda: used(agent, "b") >= 0.9 * RESERVED["b"], within=30, every=0.5)
    eventually(lambda: agent.json("show", f"/{POOL}/b")["memory"]["lent"] == 0, within=30, every=0.5)


def test_a_pod_of_two_containers_gives_to_one_outside_of_it(governed, hand_made, reads):
    pod = hand_made(f"{POOL}/pod", hierarchies=HIERARCHIES)
    pod.limit_memory(SIZE * 3 // 4)
    busy = {name: reads(name) for name in ("a", "pod/b", "pod/sidecar")}
    agent = governed("enforce", containers=f'cgroups = ["/{POOL}/a", "/{POOL}/pod/*"]')
    busy["pod/sidecar"].read(IDLE)
    busy["pod/b"].read(FILLS)
    eventually(lambda: used(agent, "pod/b") > 0.6 * SIZE / MIB, within=60, every=0.2)
    # What it has reserved is not in the pod that is full, and the pod has nothing reserved.
    busy["pod/b"].read(BUSY)
    busy["a"].read(GREEDY)
    eventually(lambda: used(agent, "a") >= 0.95 * RESERVED["a"], within=60, every=0.5)
    # It has use for more than that, and the pod has none.
    busy["pod/b"].read(IDLE)
    eventually(lambda: standing(agent, "pod/b")["lent"] > 0, within=150, every=0.5)
    pools = {pool["path"]: pool["containers"] for pool in agent.json("memory")["pools"]}
    assert pools == {"/": 3, f"/{POOL}": 3, f"/{POOL}/pod": 2}


@pytest.fixture
def watching(tmp_path):
    """Starts a process that watches for memory pressure beside a program: `watching(busy["b"])`."""
    started = []

    def start(program):
        started.append(Watching(program, PRESSURE, tmp_path / f"watching{len(started)}"))
        return started[-1]

    yield start
    for process in started:
        process.end()


def test_programs_are_asked_for_memory_before_it_is_lent_and_one_that_ends_keeps_no_other_waiting(governed, busy, watching):
    agent = governed("enforce", attach=True)
    owner, gone = watching(busy["b"]), watching(busy["b"])
    eventually(lambda: owner.said() and gone.said(), within=20)
    gone.end()
    fill(agent, busy)
    busy["a"].read(GREEDY)  # it has use for more on the fastest of disks
    busy["b"].read(IDLE)
    time.sleep(3)  # the last second under its load is over: from now on only the governor asks
    asked = owner.said().count("asked")
    eventually(lambda: standing(agent, "b")["lent"] > 0, within=150, every=0.2)
    assert owner.said().count("asked") > asked
    assert agent.json("show", f"/{POOL}/b")["view"]["memory"] < SIZE
    # A watcher that only reads sees the end once no process is left that could ask.
    assert "end" not in owner.said()
    assert agent.stop() == 0
    eventually(lambda: owner.said()[-1] == "end", within=5)


def test_a_foreign_writer_wins_and_is_told_of(governed, busy):
    agent = governed("enforce")
    fill(agent, busy)
    eventually(lambda: knob("a", SOFT) != NO_PROTECTION, within=30)
    theirs = str(7 * MIB)
    knob_file("a", SOFT).write_text(theirs)
    busy["a"].read(IDLE)  # others may have what it keeps: what is there would be written anew
    told = lambda: [alert for alert in agent.json("memory")["alerts"] if alert["kind"] == "FOREIGN_WRITER"]
    eventually(told, within=60)
    assert told()[0]["container"]["path"] == f"/{POOL}/a"
    always(lambda: knob("a", SOFT) == theirs, during=3)
    assert not standing(agent, "a")["enforced"]
    assert agent.stop() == 0
    assert knob("a", SOFT) == theirs


def test_who_is_governed_no_more_has_all_of_its_room_again(governed, busy):
    agent = governed("enforce")
    fill(agent, busy)
    shown = lambda name: agent.json("show", f"/{POOL}/{name}")["view"]["memory"]
    eventually(lambda: knob("a", SOFT) != NO_PROTECTION, within=30)
    # A container that gives memory back sees that in its view first.
    eventually(lambda: shown("b") < SIZE, within=60)
    for name in RESERVED:
        labels = {"elbowroom.dev/governors": "off"}
        agent.ask({"label": {"container": f"/{POOL}/{name}", "by": "a test", "promised": labels}})["container"]
        eventually(lambda: knob(name, SOFT) == NO_PROTECTION and shown(name) == SIZE, within=10)
        assert standing(agent, name) is None


def test_a_liar_keeps_nothing_that_a_neighbour_has_reserved(governed, busy):
    usage = lambda name: int(knob(name, "memory.current" if cgroup.V2 else "memory.usage_in_bytes")) / MIB
    busy["a"].read(BUSY), busy["b"].read(GREEDY)
    eventually(lambda: usage("a") + usage("b") > 0.9 * SIZE / MIB, within=60, every=0.5)
    # Without the governor, the container that reads most has most.
    eventually(lambda: usage("a") < 0.7 * RESERVED["a"], within=60, every=0.5)
    # On a disk as fast as memory nothing waits: a container of class `latency` has use for its memory all the same.
    agent = governed("enforce", CLAIMS.replace("memory =", 'class = "latency"\nmemory =', 1))

    def has_while_b_complains(share):
        told = agent.cli("probe", "send", "--container", f"/{POOL}/b", "served=1", "offered=1000", "objective=1000")
        believed = told.returncode == 0 and (standing(agent, "b") or {}).get("colour") == "red"
        return believed and usage("a") >= share * RESERVED["a"]

    eventually(lambda: has_while_b_complains(0.93), within=30, every=0.5)
    # On cgroup v1 nothing holds a borrower that reads everything back within the second of the recall.
    always(lambda: has_while_b_complains(0.9 if cgroup.V2 else 0.85), during=5, every=0.1)


def test_a_clean_stop_leaves_nothing_behind(governed, busy):
    before = {name: limits(name) for name in RESERVED}
    agent = governed("enforce")
    fill(agent, busy)
    eventually(lambda: knob("a", SOFT) != NO_PROTECTION, within=20)
    assert agent.stop() == 0
    assert [knob(name, SOFT) for name in RESERVED] == [NO_PROTECTION] * 2
    assert {name: limits(name) for name in RESERVED} == before


def test_a_policy_process_that_is_killed_leaves_no_container_squeezed(governed, busy):
    before = {name: limits(name) for name in RESERVED}
    agent = governed("enforce")
    fill(agent, busy)
    for _ in range(5):
        time.sleep(0.3)  # somewhere in a period
        os.kill(eventually(lambda: agent.pid("policy")), signal.SIGKILL)
        eventually(lambda: {name: limits(name) for name in RESERVED} == before, within=5)
        eventually(lambda: standing(agent, "a"), within=20)


def test_observing_decides_and_moves_nothing(governed, busy):
    before = {name: limits(name) for name in RESERVED}
    agent = governed("observe")
    fill(agent, busy)
    eventually(lambda: standing(agent, "a")["colour"] != "green", within=30, every=0.5)
    unchanged = lambda: {name: limits(name) for name in RESERVED} == before and knob("a", SOFT) == NO_PROTECTION
    always(unchanged, during=3)
    assert agent.status()["memory"]["reclaimed_bytes"] == 0
    assert agent.json("show", f"/{POOL}/a")["view"]["memory"] == SIZE
    assert "observing" in agent.cli("memory").stdout


def test_memory_that_is_not_governed_says_so(governed):
    agent = governed("off")
    assert agent.cli("memory").stdout.startswith("off: set memory.mode")
