"""What are the runtimes' figures on a machine of the paper's size, and what do containers cost GPU programs?

For a machine of 16 CPUs and 100 GiB or more with cgroup v2, on which only Python 3 is needed. `lab/large/pack` makes a kit for it: the
parts of this repository that the job needs, with a JDK, libraries and programs. Each figure has a part of the time that is given, and
measurements are kept as they are made."""

import copy
import time

from lab import ROOT
from lab.jobs import runtimes
from lab.jobs.large import gpu
from lab.jobs.runtimes.place import CACHE
from lab.jobs.runtimes.rounds import say
from lab.sysinfo import online_cpus

LASTS = "--seconds: 12 min for 6,2,10,8,7 and 12"
# How much of the time each figure has, by what it has to show; figure 12 fills the machine, and is better asked for alone.
PARTS = {"2": 70, "6": 180, "7": 50, "8": 140, "9": 60, "10": 160, "11": 60, "12": 110, "gpu": 200}


def options(parser):
    parser.add_argument(
        "--figures", type=lambda text: text.split(","), default=["6", "2", "10", "8", "7"], metavar="N,...", help=f"of {', '.join(PARTS)}"
    )
    runtimes.common(parser)
    npb = CACHE / "npb" if (CACHE / "npb").is_dir() else None
    parser.set_defaults(runs=1000, seconds=590, cpus=online_cpus(), machine=0, npb=npb, touch=True, crowds=[5])


def record(lab, options):
    """{figure: its raw numbers}."""
    if (ROOT / "commit").exists():
        lab.info["commit"] = (ROOT / "commit").read_text().strip()
    until, raw = lab.began + options.seconds, lab.resumed or {}
    for i, figure in enumerate(options.figures):
        one = copy.copy(options)
        one.figure, one.seconds = int(figure) if figure.isdigit() else figure, share(figure, options.figures[i:], until - time.monotonic())
        say(f"figure {figure}: {one.seconds:.0f} s")

        def keep(found, figure=figure):
            raw[figure] = found
            lab.keep(raw)

        try:
            keep((gpu.record if figure == "gpu" else runtimes.figure)(lab, one, keep, raw.get(figure)))
        except Exception as error:  # the next figure can be measured all the same
            say(f"figure {figure} failed: {error!r}")
    return raw


def share(figure, left, seconds):
    """The part of the time that is left that a figure has before those after it."""
    return seconds * PARTS[figure] / sum(PARTS[name] for name in left)


def study(raw):
    return [
        (figure, (raw[figure], gpu.study(raw[figure])) if figure == "gpu" else runtimes.study(raw[figure]))
        for figure in PARTS
        if figure in raw
    ]


def draw(studied, out):
    for figure, (raw, found) in studied:
        if figure == "gpu":
            gpu.draw(raw, found, out)
        else:
            runtimes.draw((raw, found), out)
