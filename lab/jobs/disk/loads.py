"""The loads: how much of the disk each container wants and when, in what requests, and how fast the disk is.

W1 to W4 are Aridac's set-up: a disk of 1 MB/s, a container that wants 200 kB/s, and one that bursts to 2 MB/s (its figures 4 to 8); times
are the paper's, shortened. The yardsticks are loads that no policy was tuned on: other sizes, writes, crowds, a database. A third of them,
drawn by the seed, is kept for the final run."""

import random

# Bytes per second of a disk at its best, by scale: the paper's, one that a small machine keeps up with, one of memory, which is measured.
SCALES = {"paper": 1_000_000, "fast": 100_000_000, "nvme": None}
FLOOD = 200  # percent of the disk: more than there is, as in the paper
SLOW = [(0, 100), (35, 55), (70, 100)]  # percent from a second on
KIB, MIB = 1 << 10, 1 << 20


def actor(name, steady, way, block, depth, percents, most, **more):
    """A container of a load. `steady`: it never wants more than its part, so it is the one that can be starved. `percents`: (second,
    percent of `most`), from which it wants bytes per second."""
    phases = [{"at": at, "want": most * percent // 100} for at, percent in percents]
    style = {"block": block, "depth": depth}
    return {"name": name, "steady": steady, "style": style, "phases": phases, **({"way": way} if way else {}), **more}


def timeline(seconds, capacity, actors, speeds=((0, 100),)):
    return {"seconds": seconds, "capacity": capacity, "actors": actors, "speeds": [[at, capacity * part // 100] for at, part in speeds]}


# ---- the paper's ----

TURNS = [[(20 * n, (50, 15)[(n + first) % 2]) for n in range(6)] for first in (0, 1)]
# By name: the story in one sentence, seconds, what A and B want, and the disk's speeds.
PAPER = {
    "w1": ("A wants 20 % of the disk throughout; B wants 10 %, then bursts and stays.", 105, [(0, 20)], [(0, 10), (25, FLOOD)], [(0, 100)]),
    "w2": ("A wants 20 % of the disk throughout; B wants 10 %, bursts, is quiet again, and bursts again.",
           110, [(0, 20)], [(0, 10), (25, FLOOD), (50, 10), (75, FLOOD), (100, 10)], [(0, 100)]),
    "w3": ("A and B take turns of 20 s: one wants 50 % of the disk while the other wants 15 %. Meanwhile the disk slows down to 55 % and "
           "recovers.", 120, *TURNS, [(0, 100), (50, 55), (85, 100)]),
    "w4": ("A wants 30 % of the disk throughout; B is a hog that comes and goes. Meanwhile the disk slows down to 55 % and recovers.",
           115, [(0, 30)], [(0, 5), (15, FLOOD), (90, 5)], SLOW),
    "speed": ("A wants 30 % of the disk throughout; B is a hog that stays. The disk slows down to 55 % and recovers, with more than a "
              "minute at each speed.", 210, [(0, 30)], [(0, 5), (15, FLOOD)], [(0, 100), (80, 55), (145, 100)]),
}  # fmt: skip


def paper(name, scale):
    """A is a server with a few requests under way, B a batch job that keeps the disk's queue full of larger ones."""
    _, seconds, a, b, speeds = PAPER[name]
    most, block = SCALES[scale], 4 * KIB if scale == "paper" else 64 * KIB
    turns = name == "w3"  # neither ever wants more than its part
    hog = (block, 2) if turns else (2 * block, 32)
    actors = [actor("A", True, None, block, 2, a, most), actor("B", turns, None, *hog, b, most)]
    return timeline(seconds, most, actors, speeds)


# ---- the yardsticks ----

def sizes(victim, hog):
    def actors(scale):
        small = victim == 4 and scale == "fast"  # two CPUs serve no 5,000 requests a second of such a disk
        return [("A", True, "read", victim * KIB, 2, 5 if small else 20), ("B", False, "read", hog * KIB, 32, FLOOD)]
    return actors  # fmt: skip


def pair(victim, hog):
    """A victim and a hog of two ways, in the paper's requests, or larger ones at 100 MB/s."""
    def actors(scale):
        block = 64 * KIB if scale == "fast" else 4 * KIB
        depths = [1 if way in ("log", "buffered") else depth for way, depth in ((victim, 2), (hog, 32))]
        return [("A", True, victim, block, depths[0], 20), ("B", False, hog, 2 * block, depths[1], FLOOD)]
    return actors  # fmt: skip


def crowd(steady, percent, hogs):
    def actors(scale):
        block = 16 * KIB if scale == "fast" else 4 * KIB
        victims = [(f"A{n}", True, "read", block, 2, percent) for n in range(1, steady + 1)]
        return victims + [(f"B{n}", False, "read", 4 * block, 16, FLOOD) for n in range(1, hogs + 1)]
    return actors  # fmt: skip


def unpacked(scale):
    return [("A", True, "read", 4 * KIB, 2, 20), ("image", False, "unpack", 64 * KIB, 1, FLOOD)]


def served(scale):
    return [("database", True, "pgbench", 8 * KIB, 1, 0), ("B", False, "read", 128 * KIB, 32, FLOOD)]


ALL, LARGE, FILES = ("paper", "fast", "nvme"), ("fast", "nvme"), ("nvme",)
# By name: a title, the scales on which it makes sense, and its containers. A request of 1 MiB takes a second at 1 MB/s; a file system needs
# a disk that keeps what is written. A container is (name, steady, way, bytes per request, requests under way, percent of the disk).
YARDSTICKS = {
    "sizes-4k-4k": ("victim and hog read 4 KiB", ("paper", "nvme"), sizes(4, 4)),
    "sizes-4k-64k": ("the victim reads 4 KiB, the hog 64 KiB", ALL, sizes(4, 64)),
    "sizes-4k-1m": ("the victim reads 4 KiB, the hog 1 MiB", LARGE, sizes(4, 1024)),
    "sizes-64k-4k": ("the victim reads 64 KiB, the hog 4 KiB", FILES, sizes(64, 4)),
    "sizes-1m-4k": ("the victim reads 1 MiB, the hog 4 KiB", FILES, sizes(1024, 4)),
    "sizes-1m-1m": ("victim and hog read 1 MiB", LARGE, sizes(1024, 1024)),
    "writes": ("victim and hog write", ALL, pair("write", "write")),
    "read-beside-writes": ("the victim reads, the hog writes", ALL, pair("read", "write")),
    "write-beside-reads": ("the victim writes, the hog reads", ALL, pair("write", "read")),
    "read-beside-buffered": ("the victim reads, the hog writes through the page cache", ALL, pair("read", "buffered")),
    "log": ("the victim appends and makes each write durable, as a database's log; the hog reads", ALL, pair("log", "read")),
    "log-beside-buffered": ("the victim is a database's log, the hog writes through the page cache", ALL, pair("log", "buffered")),
    "mixed": ("victim and hog read 70 % and write 30 %", ALL, pair("mixed", "mixed")),
    "eight": ("six victims of 8 % each and two hogs", ALL, crowd(6, 8, 2)),
    "fifty": ("46 victims of 1 % each and four hogs", LARGE, crowd(46, 1, 4)),
    "image": ("the victim reads, an image of small and large files is unpacked as the burst", FILES, unpacked),
    "database": ("PostgreSQL under pgbench is the victim, the hog reads", FILES, served),
}  # fmt: skip
# Seconds of quiet in which a policy may learn, of the burst, and after it.
TIMES = {"paper": (15, 30, 5), "fast": (12, 18, 5), "nvme": (12, 18, 5)}
NAMES = [*PAPER, *YARDSTICKS]
TRANSACTIONS_PER_S = 100  # that pgbench asks for


def unseen(seed):
    """The third of the yardsticks that is kept for the final run."""
    return set(random.Random(seed).sample(sorted(YARDSTICKS), len(YARDSTICKS) // 3))


def story(name):
    return PAPER[name][0] if name in PAPER else f"{YARDSTICKS[name][0][0].upper()}{YARDSTICKS[name][0][1:]}."


def scales(name):
    """Those on which a load is."""
    return ("paper", "fast") if name in PAPER else YARDSTICKS[name][1]


def needs_files(name):
    return name in ("image", "database")


def yardstick(name, scale, alone):
    """`alone(way, block, depth)`: bytes per second of such requests when nothing else uses the disk, which on a disk of memory depends on
    them. Each container's part is of that."""
    quiet, burst, rest = TIMES[scale]
    actors = []
    for who, steady, way, block, depth, percent in YARDSTICKS[name][2](scale):
        most = SCALES[scale] or alone(way, block, depth)
        phases = [(0, percent)] if steady else [(0, 0 if way == "unpack" else percent_before(name)), (quiet, percent), (quiet + burst, 0)]
        more = {"alone": most} if SCALES[scale] is None else {}
        actors.append(actor(who, steady, way, block, depth, phases, most, **more))
        if way == "pgbench":
            actors[-1].update(unit="transactions", phases=[{"at": 0, "want": TRANSACTIONS_PER_S}])
    capacity = SCALES[scale] or max(one["alone"] for one in actors)
    return timeline(quiet + burst + rest, capacity, actors)


def percent_before(name):
    """The demand of a hog before its burst, in percent: a policy that goes by habits knows it by then."""
    return 1 if name in ("eight", "fifty") else 5


# ---- questions about a timeline ----

def want(actor, second):
    return next((phase["want"] for phase in reversed(actor["phases"]) if phase["at"] <= second), 0)


def most(actor, told):
    """Bytes per second that it could have alone on the disk at its best."""
    return actor.get("alone", told["capacity"])


def demand(actor, told, second):
    """The demand of an actor, in bytes per second of the requests that the disk is best at. Transactions are no bytes and count as none."""
    return 0 if "unit" in actor else want(actor, second) * told["capacity"] / most(actor, told)


def wanted(told, second):
    """The demand of all actors together."""
    return sum(demand(actor, told, second) for actor in told["actors"])


def speed(told, second):
    """The speed that the disk is set to."""
    return next((speed for at, speed in reversed(told["speeds"]) if at <= second), told["capacity"])


def contested(told, second):
    """Whether there is not enough for all."""
    return wanted(told, second) > speed(told, second)


def bursts(actor, told):
    """Seconds at which it begins to want more than the disk can do, and at which it ends to."""
    phases = actor["phases"]
    ends = [phase["at"] for phase in phases[1:]] + [told["seconds"]]
    return [(phase["at"], end) for phase, end in zip(phases, ends) if phase["want"] >= most(actor, told) and "unit" not in actor]
