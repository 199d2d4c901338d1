"""The loads, and the sizes that make memory the only thing that is short.

Rows are asked for at random, all with the same probability. So with `m` of a database's `D` bytes in memory, one row in `D / (D - m)` has
to be read from the disk. A disk of `R` pages a second then serves `R / (1 - m/D)` rows. The sizes follow that formula, with enough CPU to
spare that the disk is the only limit."""

import random
from collections import namedtuple

from lab.jobs.memory.database import PAGE

WHO = ("A", "B")
ROWS_PER_TRANSACTION = 10
# What mariadbd has beside its part of the database and its buffer pool: measured as anonymous memory and what is not of the table.
SERVER_MIB = 40
# What the kernel and its daemons have of a machine of 3 GiB, by the paper's reference footprint of 2.8 GB.
SYSTEM_MIB = 205
# The paper's limits, and what is asked for.
LIMITS_MIB, HIGH, LOW = (1843, 1024), 800, 200
SCAN_MIB_PER_S = 400

# What is asked of A and of B: "high", "low", "middle", or None: it is not there any more. `scan`: B reads a large file over and over, too.
Step = namedtuple("Step", "title seconds demands scan", defaults=[False])
PHASES = (
    ("1 both high", "high", "high"),
    ("2 B low", "high", "low"),
    ("3 both high", "high", "high"),
    ("4 both low", "low", "low"),
    ("5 A low", "low", "high"),
    ("6 A stopped", None, "high"),
)


def phases(phase, _):
    return [Step(title, phase, demands) for title, *demands in PHASES]


def cycles(phase, _):
    """Twenty times: B is idle, then busy."""
    beat = max(phase // 6, 5)
    return [Step(f"{i + 1} {name}", beat, ["high", demand]) for i in range(20) for name, demand in (("B idle", "low"), ("B busy", "high"))]


def at_random(phase, seed):
    beat, dice = max(phase // 6, 5), random.Random(seed)
    choose = lambda: [dice.choice(("high", "middle", "low")) for _ in WHO]
    return [Step(str(i + 1), dice.randint(beat, 3 * beat), choose()) for i in range(24)]


def flutter(phase, _):
    """Hostile: B's load comes back just when it has been idle for long enough to have lent, over and over."""
    beat = max(phase // 12, 4)
    return [Step(f"{i + 1} {name}", beat, ["high", demand]) for i in range(24) for name, demand in (("B idle", "low"), ("B busy", "high"))]


def scan(phase, _):
    """Hostile: B is asked for little, and every other time reads files that no request needs, as a backup does."""
    beat = max(phase // 3, 5)
    return [Step(f"{i + 1} {'B scans' if scans else 'quiet'}", beat, ["high", "low"], scans) for i in range(5) for scans in (False, True)]


LOADS = {"phases": phases, "cycles": cycles, "random": at_random, "flutter": flutter, "scan": scan}


def rows(scale, guest):
    """Of each database: enough to make memory short, few enough that an emulated machine makes them in a minute."""
    return 300_000 if guest else 19_000_000 if scale == "paper" else 1_000_000


def make(scale, table, guest, load, phase, seed):
    """The story of databases of `table` bytes; a guest's emulated CPUs serve less than a tenth."""
    build = paper if scale == "paper" else small
    story = {"scale": scale, "load": load, "rows": rows(scale, guest), "table": table, "at_once": guest, **build(table, guest)}
    story.update(seconds=phase, settle=table // story["disk"], steps=[list(step) for step in LOADS[load](phase, seed)])
    return story


def small(table, guest):
    """Today's size; committed results are of it."""
    pages = 96 if guest else 1200
    serves = lambda percent: pages * 100 // (100 - percent) // ROWS_PER_TRANSACTION
    role = lambda percent: {"objective": serves(percent) * 4 // 5, "right_mib": SERVER_MIB + mib(table * percent // 100)}
    roles = [role(78), role(47)]
    machine = sum(role["right_mib"] for role in roles)
    return {"machine_mib": machine, "disk": pages * PAGE, "high": serves(83), "low": serves(83) // 30, "roles": roles}


def paper(table, guest):
    """The paper's sizes. A guest has the small ones and the paper's ratio of low to high load: its emulated CPUs do not use more memory.
    The disk's rate is such that one database alone just serves what is asked."""
    if guest:
        return {**(told := small(table, True)), "low": told["high"] * LOW // HIGH}
    pool, pages, size = 128, 2800, mib(table)

    def serves(right):
        cached = min(right - SERVER_MIB - pool, size) / size
        return int(pages / (1 - cached) / (1 - pool / size) / ROWS_PER_TRANSACTION)

    roles = [{"objective": serves(right) * 90 // 100, "right_mib": right} for right in LIMITS_MIB]
    machine = sum(LIMITS_MIB) + SYSTEM_MIB
    return {"machine_mib": machine, "system_mib": SYSTEM_MIB, "pool_mib": pool, "disk": pages * PAGE, "high": HIGH, "low": LOW, "roles": roles}


def mib(size):
    return size >> 20


def shared_mib(story):
    """The memory of the two containers together, in MiB."""
    return story["machine_mib"] - story.get("system_mib", 0)


def steps(story):
    """Of a story as it was recorded; older ones are the six phases and do not say so."""
    recorded = story.get("steps")
    return [Step(*step) for step in recorded] if recorded else phases(story["seconds"], None)


def rate(story, demand):
    """Transactions a second that are asked for."""
    return {"high": story["high"], "low": story["low"], "middle": (story["high"] + story["low"]) // 2, None: 0}[demand]


def length(story):
    return sum(step.seconds for step in steps(story))


def asked(story, at):
    """The demand on A and B, and whether B scans, `at` seconds after the first step began; before, the first step's. None at the end."""
    for step in steps(story):
        if at < step.seconds:
            return [rate(story, demand) if demand else None for demand in step.demands], step.scan
        at -= step.seconds
    return None
