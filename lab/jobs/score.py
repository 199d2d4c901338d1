"""What serves containers that share a host best: nothing, the kernel's means, lxcfs, senpai or Elbowroom? One page of other jobs' results.

Touches nothing. Each scene is a result of another job, recorded before; `lab/plans/score` records those of the fixed set and calls this. A
contender that a scene has no run of is a dash. The order of contenders and of scenes is fixed, so that pages of two machines can be compared."""

import json
from pathlib import Path

from lab.job import Refused, find
from lab.jobs.memory import studied as memory
from lab.stats import Spread, spread
from lab.tables import of_spread, short

LASTS = "1 s; the fixed set of lab/plans/score about an hour"
# Arms of the jobs, by the contender that they stand for. What is not here takes part under its own name.
CONTENDERS = {"nothing": ["native", "none", "stock", "without"], "limits by hand": ["static", "max"], "memory.low": ["soft"], "lxcfs": ["lxcfs"],
              "bfq": ["bfq"], "iocost": ["iocost"], "swap": ["stock-swap"], "senpai": ["senpai"], "Aridac": ["aridac"],
              "Elbowroom": ["elbowroom", "lifeline", "waterfill", "silent", "with"], "Elbowroom told rights": ["blind"]}  # fmt: skip
# Arms of `memory` that know more than `silent` and `blind`: what applications say, or one mechanism less.
LEFT_OUT = ("protect", "probes", "shipped", "unasked")
DISKS = {"paper": "1 MB/s", "fast": "100 MB/s", "nvme": "memory"}
LESS, MORE = "less", "more"
OPEN = "open"


def options(parser):
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="results of other jobs")


def record(lab, options):
    scenes, unknown = [], []
    for directory in options.directories:
        raw, info = (json.loads((directory / name).read_text()) for name in ("raw.json", "sysinfo.json"))
        if info["job"] not in SCENES:
            unknown.append(f"{directory} ({info['job']})")
            continue
        what = SCENES[info["job"]]
        rows = what(find(info["job"]).study(raw))
        kept = {key: info[key] for key in ("job", "date", "commit", "kernel", "cgroups")}
        scenes.append({**kept, "result": directory.name, "rows": rows})
    if unknown:
        raise Refused(f"no scene of the score: {', '.join(unknown)}. There are: {', '.join(SCENES)}")
    return {"scenes": scenes}


def row(what, better, cells):
    """A line of the page: what is measured, whether `less` or `more` of it is better, and by arm a figure with its spread."""
    return {"what": what, "better": better, "cells": {arm: list(figure) for arm, figure in cells.items() if figure}}


# ---- what each job's result says ----

def read(studied):
    files = studied["parts"][1, OPEN]
    of = lambda file: {variant: files[file].get(f"{variant} p50") for variant in studied["variants"]}
    return [row(f"open, read and close `{file}`, µs", LESS, of(file)) for file in ("/proc/meminfo", "/sys/devices/system/cpu/online")]


def swarm(studied):
    names = {"latency p50, µs": LESS, "latency p99, µs": LESS, "daemon CPU under pollers, % of one": LESS, "daemon memory, MiB resident": LESS}
    of = lambda name: dict(zip(studied["variants"], studied["rows"][name]))
    many = f"{studied['containers']} containers poll: "
    return [row(many + name, better, of(name)) for name, better in names.items()]


def kills(studied):
    bad = spread([sum(studied[key] for key in ("failed", "torn", "foreign"))])
    return [row(f"reads lost, torn or another's in {studied['times']} kills of the daemon", LESS, {"elbowroom": bad})]


def calm(studied):
    of = lambda key: {rule: figures[key] for rule, figures in studied["rules"].items() if rule != "paper"}
    return [row("view of CPUs: changes a minute under steady load", LESS, of("changes_per_minute")),
            row("view of CPUs: seconds until it falls for a neighbour", LESS, of("down_s"))]  # fmt: skip


def disk(studied):
    figures = {"isolation": ("victim's part of what it wants, %", MORE, 100), "isolation_p05": ("the same, 5th percentile of seconds, %", MORE, 100),
               "conservation_contested": ("of the disk used while contested, %", MORE, 100), "p99_ratio": ("victim's p99, of alone", LESS, 1)}  # fmt: skip
    load = f"{studied['workload'].upper()}, a disk of {DISKS[studied['scale']]}: "
    rows = []
    for key, (what, better, times) in figures.items():
        values = lambda runs: [run[key] * times for run in runs if run[key] is not None]
        rows.append(row(load + what, better, {arm: spread(values(runs)) for arm, runs in studied["figures"].items() if arm != "alone"}))
    return rows


def databases(studied):
    def of(value):
        each = lambda arm: [number for run in arm["runs"] if (number := value(run)) is not None]
        return {name: spread(each(arm)) for name, arm in studied["arms"].items() if name not in LEFT_OUT}

    def part(who, step):
        alone = memory.reference(studied, who)[0]
        return lambda run: alone and (tps := memory.rate(studied, run, who, step)) and 100 * tps / alone.mean

    return [row("two databases busy: seconds in which both are served, %", MORE, of(lambda run: memory.contested(studied, run))),
            row("one idles: A's transactions, % of alone", MORE, of(part(0, 1))),
            row("one idles: B's transactions, % of alone", MORE, of(part(1, 4)))]  # fmt: skip


def sandboxes(studied):
    of = lambda language: {row["arm"]: row["fits"] for row in studied["rows"] if row["language"] == language}
    languages = dict.fromkeys(row["language"] for row in studied["rows"])
    return [row(f"{language} sandboxes that fit in {studied['machine']} MiB", MORE, of(language)) for language in languages]


def startup(studied):
    return [row(f"start of a container, {pair['rate']:g} a second, ms", LESS, {"without": pair["without"], "with": pair["with"]})
            for pair in studied["pairs"][-1:]]  # fmt: skip


SCENES = {"read": read, "swarm": swarm, "kills": kills, "calm": calm, "memory": databases, "density-of-sandboxes": sandboxes, "disk": disk,
          "profile-startup": startup}  # fmt: skip


# ---- the page ----

def study(raw):
    """Rows in the order of SCENES, with cells by contender and the best contender. There is no sum: a row of isolation and one of what it
    costs do not weigh the same for every reader."""
    rows = []
    order = list(SCENES)
    for scene in sorted(raw["scenes"], key=lambda scene: (order.index(scene["job"]), scene["result"])):
        for line in (line for line in scene["rows"] if line["cells"]):
            cells = {contender(arm): Spread(*figure) for arm, figure in line["cells"].items()}
            won = winners(cells, line["better"]) if len(cells) > 1 else []
            rows.append({"what": line["what"], "better": line["better"], "cells": cells, "won": won, "scene": scene})
    names = [name for name in CONTENDERS if any(name in line["cells"] for line in rows)]
    return {"rows": rows, "contenders": names}


def contender(arm):
    return next((name for name, arms in CONTENDERS.items() if arm in arms), arm)


def winners(cells, better):
    """The best median, and each whose spread reaches it."""
    good = max if better == MORE else min
    best = good(figure.median for figure in cells.values())
    reaches = lambda figure: figure.max >= best if better == MORE else figure.min <= best
    return [name for name, figure in cells.items() if reaches(figure)]


def draw(studied, out):
    out.say(
        "Medians (smallest to largest). **Bold**: the best of those that ran, and each whose spread reaches it. A dash: it does nothing of the "
        "kind, or did not run here; the scene's own page says which. Elbowroom is told nothing about the containers; *told rights*, it knows how "
        "much memory each has a right to, as limits by hand do. Lines that one contender alone has are no contest."
    )
    for version in dict.fromkeys(line["scene"]["cgroups"].split()[0] for line in studied["rows"]):
        lines = [line for line in studied["rows"] if line["scene"]["cgroups"].split()[0] == version]
        names = [name for name in studied["contenders"] if any(name in line["cells"] for line in lines)]
        out.say(f"## cgroup {version}")
        out.table(["", "better", *names], [[line["what"], line["better"], *(cell(line, name) for name in names)] for line in lines])
    scenes = {line["scene"]["result"]: line["scene"] for line in studied["rows"]}
    out.say("## Scenes")
    out.table(["result", "commit", "kernel"], [[f"[{name}](../{name}/summary.md)", scene["commit"], scene["kernel"]] for name, scene in scenes.items()])


def cell(line, name):
    figure = line["cells"].get(name)
    if not figure:
        return "-"
    text = short(figure.median) if figure.min == figure.max else of_spread(figure)
    return f"**{text}**" if name in line["won"] else text
