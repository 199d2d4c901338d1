"""Is what is limited on one disk felt on another?

Two disks, one agent. On the first disk a hog floods a steady container while the disk slows down and recovers. On the second the same two
containers want less than it can do."""

from lab import disks
from lab.jobs.disk import arms, loads
from lab.jobs.disk.figure import draw_throughput
from lab.jobs.disk.stage import Stage
from lab.jobs.disk.study import rates
from lab.stats import spread

LASTS = "4 min a run"
NEEDS = ("fio", "qemu-storage-daemon")
NAMES = ["first", "second"]
# Of the first disk's story: (from, until).
SPANS = {"before the hog": (2, 13), "hog": (17, 35), "hog, slow disk": (37, 70), "hog, recovered": (72, 88)}


def options(parser):
    parser.add_argument("--runs", type=int, default=5, help="how often the story is told under each policy")
    parser.add_argument("--policies", type=lambda text: text.split(","), default=["none", "lifeline"], metavar="NAME,...")


def timelines():
    """The same actors, as long, on a disk that has not enough for all and on one that has."""
    contested = loads.paper("w4", "paper")
    most = contested["capacity"]
    wants = [[{"at": 0, "want": most * part // 100}] for part in (20, 50)]
    actors = [{**actor, "phases": phases} for actor, phases in zip(contested["actors"], wants)]
    return [contested, {**contested, "speeds": [[0, most]], "actors": actors}]


def record(lab, options):
    told = timelines()
    places = list(zip(disks.slow(lab, 2, told[0]["capacity"]), told))
    raw = lab.resumed or {"timelines": told, "runs": []}
    for number in range(len(raw["runs"]) // len(options.policies), options.runs):
        print(f"run {number + 1} of {options.runs}", flush=True)
        turn = number % len(options.policies)
        for policy in options.policies[turn:] + options.policies[:turn]:
            with Stage(lab, policy, places, "read") as stage:
                raw["runs"].append(stage.tell())
        lab.keep(raw)
    return raw


def study(raw):
    """A row per policy, disk and container: what it got of what it wanted in each span, by run, and the lowest limit in force."""
    told, rows = raw["timelines"], []
    for policy in (name for name in arms.NAMES if any(run[0]["policy"] == name for run in raw["runs"])):
        for disk, name in enumerate(NAMES):
            recorded = [run[disk] for run in raw["runs"] if run[disk]["policy"] == policy]
            for number, actor in enumerate(told[disk]["actors"]):
                parts = [[part(arm["series"][number], actor, *span) for arm in recorded] for span in SPANS.values()]
                caps = [cap for arm in recorded for cap in arm["series"][number]["cap_kb"] if cap is not None]
                rows.append([policy, name, actor["name"], parts, min(caps, default=None)])
    return {"rows": rows, **raw}


def part(series, actor, begin, end):
    return sum(rates(series)[begin:end]) / sum(loads.want(actor, second) for second in range(begin, end))


def draw(studied, out):
    out.say(
        f"Two disks of 1 MB/s, two containers on both, one agent. On the first disk: {loads.story('w4')} On the second A wants 20 % and "
        "B 50 % throughout, and the disk does not change."
    )
    rows = []
    for policy, disk, name, parts, cap in studied["rows"]:
        spreads = [spread(values) for values in parts]
        cells = [f"{one.median * 100:.0f} % ({one.min * 100:.0f} to {one.max * 100:.0f})" for one in spreads]
        rows.append([policy, disk, name, *cells, f"{cap} kB/s" if cap is not None else "none"])
    out.table(["policy", "disk", "container", *SPANS, "limit"], rows)
    out.say(
        "Part of what a container wanted that it got, by the second; median over runs (smallest to largest). Limit: the lowest in force."
    )
    for disk, name in enumerate(NAMES):
        title = f"The {name} disk: throughput by policy"
        draw_throughput(out, name, title, studied["timelines"][disk], [run[disk] for run in studied["runs"]])
