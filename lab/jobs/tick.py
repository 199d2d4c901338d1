"""What does one tick of the sensor cost, sensing and deciding, by number of containers?

CPU time per tick, by number of containers and how many of them run, for each tier. An example program of elbowroom-linux, which contains
the sensor, measures. This job runs it and makes a table and a figure of its output."""

import json
import shlex
import subprocess

from lab.stats import spread
from lab.tables import nanoseconds, of_spread, plain, short

LASTS = "some minutes"
FILES = "files=cargo run --quiet --release --package elbowroom-linux --example tick_cost"


def options(parser):
    parser.add_argument("--rounds", type=int, default=3, help="how often each program is run")
    parser.add_argument("--program", action="append", metavar="TIER=COMMAND",
                        help=f"measures one tier and prints its report in JSON; again for more; default: {FILES}")


def record(lab, options):
    programs, rows = options.program or [FILES], []
    for number in range(options.rounds):
        for turn in range(len(programs)):
            tier, _, command = programs[(number + turn) % len(programs)].partition("=")
            assert command, "--program takes TIER=COMMAND"
            print(f"round {number + 1} of {options.rounds}: {tier}", flush=True)
            report = json.loads(subprocess.run(shlex.split(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout)
            rows += [{"round": number, "tier": tier, **{key: row[key] for key in KEPT if key in row}} for row in report["rows"]]
            lab.keep({"rows": rows})
    return {"rows": rows}


# Of a row in the program's report; results before the program measured what is decided have no views_us.
KEPT = ["groups", "active_percent", "tick_us", "views_us", "per_tick", "missed_ticks"]
FIGURES = {
    "µs per tick": lambda row: row["tick_us"]["median"],
    "p95": lambda row: row["tick_us"]["p95"],
    "mean µs per container": lambda row: row["tick_us"]["mean"] / row["groups"],
    "system calls per tick": lambda row: row["per_tick"]["syscalls"],
    "containers read per tick": lambda row: row["per_tick"]["groups_read"],
    "missed ticks": lambda row: row["missed_ticks"],
    "µs to decide": lambda row: row["views_us"]["median"],
    "mean µs per container to decide": lambda row: row["views_us"]["mean"] / row["groups"],
}


def study(raw):
    """The spread over rounds of each figure, by (tier, percent active, containers)."""
    rows = raw["rows"]
    decided = all("views_us" in row for row in rows)
    figures = {name: of for name, of in FIGURES.items() if decided or "decide" not in name}
    setting = lambda row: (row["tier"], row["active_percent"], row["groups"])
    settings = {}
    for at in sorted(set(map(setting, rows))):
        settings[at] = {name: spread(of(row) for row in rows if setting(row) == at) for name, of in figures.items()}
    return {"rounds": max(row["round"] for row in rows) + 1, "figures": list(figures), "settings": settings}


def draw(studied, out):
    out.say(
        "CPU time of one tick of the sensor in microseconds, and of the default rules that decide by it. Each figure is the median over "
        f"{studied['rounds']} runs (smallest to largest) of the run's median, 95th percentile or mean."
    )
    rows = []
    for (tier, active, groups), figures in studied["settings"].items():
        first, *rest = figures.values()
        rows.append([tier, f"{active} %", groups, of_spread(first), *(short(value.median) for value in rest)])
    out.table(["tier", "active", "containers", *studied["figures"]], rows)

    named = {}
    for (tier, active, groups), figures in studied["settings"].items():
        named.setdefault(f"{tier}, {active} % active", []).append((groups, figures["µs per tick"].median * 1e3))
    with out.figure("tick", "CPU time of one tick by number of containers", right=190) as axes:
        from lab import plot

        points = [point for points in named.values() for point in points]
        plot.axis(axes, "x", "containers (logarithmic)", plain, log=True, limits=plot.decades(x for x, _ in points))
        plot.axis(axes, "y", "CPU time per tick (logarithmic)", nanoseconds, log=True, limits=plot.decades(y for _, y in points))
        plot.lines(axes, named, marks=True)
