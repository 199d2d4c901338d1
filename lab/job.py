"""An experiment and its three phases, one module of lab/jobs each.

A job is a module `lab/jobs/NAME.py` (or a package; a dash of the verb is an underscore of the module) with

- a docstring whose first line is its question;
- `LASTS`, such as "3 min", and, where it has needs, `NEEDS`: programs that are looked for first;
- `options(parser)`: adds its arguments to an argparse parser;
- `record(lab, options)`: touches the machine, and returns raw numbers that JSON can hold. A long one calls `lab.keep(raw)` after each
  run, and goes on from `lab.resumed`, the raw numbers of `--resume DIR` or None;
- `study(raw)`: pure; what tables and figures need. With numpy and pandas imported inside, the list of jobs works without them;
- `draw(studied, out)`: says paragraphs and tables (`out.say`), draws figures (`out.figure`), writes other files (`out.write`);
- where several runs of it are results of their own, `tag(options)`: a word for the name of the directory.

Raw numbers are committed, so study and draw can be done again, years later, on another machine: `python3 -m lab redraw DIR`."""

import argparse
import contextlib
import importlib
import json
import os
import pkgutil
import shutil
import sys
from pathlib import Path

from lab import ROOT, jobs
from lab.tables import table

# The most that a raw.json in the repository may have.
RAW_LIMIT = 500_000


class Refused(Exception):
    """Why a job is not run, or a directory not drawn; the message says the way out."""


def names():
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(jobs.__path__))


def find(name):
    return importlib.import_module(f"lab.jobs.{name.replace('-', '_')}")


def listing():
    """Each job, its question, its needs, and how long it lasts."""
    lines = []
    for name in names():
        job = find(name)
        needs = f" Needs {', '.join(job.NEEDS)}." if getattr(job, "NEEDS", ()) else ""
        lines.append(f"{name:24}{job.__doc__.splitlines()[0]}{needs} ({job.LASTS})")
    return "\n".join(lines)


def parser(name):
    job = find(name)
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"python3 -m lab {name}", description=job.__doc__, formatter_class=plain)
    common = parser.add_argument_group("every job")
    common.add_argument("--tag", help="a word for the name of the result's directory")
    common.add_argument("--results", type=Path, default=ROOT / "lab/results", metavar="DIR", help="where results go")
    common.add_argument("--elbowroom", type=Path, default=ROOT / "target/release/elbowroom", metavar="FILE", help="the binary under test")
    common.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE",
                        help="a line of every agent's configuration, such as 'view_rules.cpu =\"paper\"'; again for more")
    common.add_argument("--seed", type=int, default=1, help="of what is random")
    common.add_argument("--resume", type=Path, metavar="DIR", help="go on with a run that was cut")
    common.add_argument("--dirty", action="store_true", help="run though files differ from the commit; the result says so")
    job.options(parser)
    return parser


def run(name, words):
    """Records, then studies and draws; prints where."""
    from lab.lab import Lab

    job, options = find(name), parser(name).parse_args(words)
    missing = [program for program in getattr(job, "NEEDS", ()) if not shutil.which(program)]
    if missing:
        raise Refused(f"{name} needs {', '.join(missing)}: tools/setup lab")
    if os.geteuid() != 0:
        raise Refused("experiments make cgroups and namespaces: run as root")
    with Lab(name, job, options) as lab:
        try:
            lab.keep(job.record(lab, options))
        except BaseException:
            if lab.directory:
                print(f"what was recorded before is kept: python3 -m lab redraw {lab.directory}", file=sys.stderr)
            raise
    size = (lab.directory / "raw.json").stat().st_size
    if size > RAW_LIMIT:
        print(f"warning: raw.json has {size // 1000} kB: keep it out of the repository, or record less", file=sys.stderr)
    try:
        redraw(lab.directory)
    except ImportError as error:  # of matplotlib: a machine that measures need not draw
        print(f"recorded in {lab.directory}; {error.name} is not here: draw it elsewhere by `python3 -m lab redraw`", file=sys.stderr)


def redraw(directory):
    """Studies a recorded run and draws it. The result as it is printed."""
    directory = Path(directory)
    try:
        raw, info = (json.loads((directory / name).read_text()) for name in ("raw.json", "sysinfo.json"))
    except FileNotFoundError as error:
        raise Refused(f"{error.filename} is not there: {directory} holds no result of a job") from None
    if info.get("job") not in names():
        raise Refused(f"{directory} holds the result of no job that there is: {info.get('job')}")
    job = find(info["job"])
    out = Folder(directory, info)
    job.draw(job.study(raw), out)
    text = out.finish()
    print(f"written to {directory}", file=sys.stderr)
    return text


class Folder:
    """A result directory being drawn: the summary's head and foot are the same for all jobs."""

    def __init__(self, directory, info):
        self.directory, self.info = directory, info
        self.paragraphs = [f"# {info['job']}, {info['date']}", f"`{info['command']}` ({info['seconds']:.0f} s)"]

    def say(self, text):
        """Adds a paragraph, a heading or a table to the summary."""
        self.paragraphs.append(text.rstrip())

    def table(self, head, rows):
        self.say(table(head, rows))

    def write(self, name, text):
        """Writes a file beside the summary."""
        (self.directory / name).write_text(text)

    @contextlib.contextmanager
    def figure(self, name, caption, height=440, **options):
        """Gives axes to draw on (`lab/plot.py` has what the figures share), and writes NAME.svg and its place in the summary.
        `options` are those of `plot.new`."""
        from lab import plot

        figure, axes = plot.new(caption, height, **options)
        yield axes
        plot.save(figure, self.directory / f"{name}.svg")
        self.say(f"![{caption}]({name}.svg)")

    def finish(self):
        from lab import sysinfo

        text = "\n\n".join([*self.paragraphs, sysinfo.text(self.info)]) + "\n"
        self.write("summary.md", text)
        return text
