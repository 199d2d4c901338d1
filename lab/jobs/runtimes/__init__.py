"""What do GC threads, parallel regions and heaps that follow a view save, next to those sized once, and to the best hand setting?

The runtimes' figures of *Adaptive Resource Views for Containers* (HPDC'19): HotSpot's GC threads (2, 6, 7, 8, 9), OpenMP's regions (10) and
HotSpot's heap (11, 12). They have the paper's arms: as they come, as they ship today, as limits tell them, by hand, and as they follow a
view.

Each container's runtime has the paper's number of threads for each CPU of this machine (3.75 that collect, 5 of OpenMP). Where its default
is another one, a preloaded library makes programs believe in another number of CPUs. Real programs (`lab/large/fetch`) come beside our own
where they are."""

from pathlib import Path

from lab.jobs.runtimes import collect, heap, old, openmp
from lab.jobs.runtimes.place import CACHE, find
from lab.jobs.runtimes.rounds import say

LASTS = "2 to 20 min a figure; --seconds bounds it"
FIGURES = {**dict.fromkeys([2, 6, 7, 8, 9], collect), 10: openmp, **dict.fromkeys([11, 12], heap)}


def options(parser):
    parser.add_argument("--figure", type=int, choices=FIGURES, required=True, help="the paper's")
    common(parser)


def common(parser):
    """Options that `large` has too."""
    words = lambda text: text.split(",")
    add = parser.add_argument
    add("--runs", type=int, default=10, help="how often each arm is measured (the paper: 10)")
    add("--seconds", type=float, default=1e6, help="ends before, with as many runs as fit")
    add("--programs", type=words, metavar="NAME,...", help="instead of all that are there")
    add("--arms", type=words, metavar="NAME,...", help="what is compared, instead of all")
    add("--scenes", type=words, default=["shares", "quota"], metavar="NAME,...", help="of figure 10: shares, quota, neighbours")
    add("--crowds", type=lambda text: list(map(int, words(text))), metavar="N,...", help="of figure 12: 1, 5")
    add("--size", type=int, default=100, metavar="PERCENT", help="of the programs' work")
    add("--containers", type=int, default=5, help="that run at once")
    add(
        "--per-cpu",
        type=float,
        metavar="THREADS",
        help="for each CPU, of all containers together (the paper: 3.75 that collect, 5 of OpenMP)",
    )
    add("--cpus", type=int, metavar="N", help="what programs are made to believe in, whatever --per-cpu says")
    add("--collector", choices=collect.COLLECTORS, default="parallel", help="of HotSpot")
    add("--quota", type=float, metavar="CPUS", help="of the container that has one, in figure 10; a quarter of the machine")
    add("--patience", type=float, metavar="S", help="how long an arm is waited for")
    add("--hard", type=int, default=1024, metavar="MIB", help="limit of figure 11's container")
    add(
        "--machine",
        type=int,
        default=heap.memory_mib() // 3,
        metavar="MIB",
        help="the cgroup that stands for the machine in figure 12; 0: the machine itself",
    )
    add("--touch", action="store_true", help="touch the machine's memory once before figure 12")
    add("--jdk", type=Path, metavar="HOME", help="instead of the one that is found")
    add("--lib", type=Path, default=CACHE / "lib", metavar="DIR", help="jars of the real programs")
    add("--npb", type=Path, metavar="DIR", help="NPB's programs (cg.A.x, ...), instead of ours in their manner")


def tag(options):
    return f"fig{options.figure}"


def record(lab, options):
    return figure(lab, options, lab.keep, lab.resumed)


def figure(lab, options, keep, raw=None):
    """One figure's raw numbers, going on from what there is."""
    from lab.jobs.runtimes.stage import Stage

    stage = Stage(lab, find(options, openmp=options.figure == 10), f"run-{options.figure}")
    try:
        raw = FIGURES[options.figure].record(lab, stage, options, keep, raw)
    finally:
        stage.close()
    say(f"figure {options.figure}: {len(raw['arms'])} arms; not measured: {len(raw['broken'])}", *raw["broken"][:3])
    return raw


def study(raw):
    raw = old.of_today(raw)
    return raw, FIGURES[raw["figure"]].study(raw)


def draw(studied, out):
    raw, rows = studied
    FIGURES[raw["figure"]].draw(raw, rows, out)
