"""Two databases share too little memory, as in the memory consolidation paper: what does each serve under no limits, the kernel's and Elbowroom?

The experiment of Highlighting the Container Memory Consolidation Problems in Linux (NCA 2019). `--scale paper` has its size: two databases
of 4 GiB in 3 GiB, six phases of 180 s; the small scale takes minutes a run. Arms are named sets of configuration lines (arms.toml). Loads
are the six phases, twenty cycles of idle and busy, a random schedule, and two hostile ones. A campaign may be cut at any time: `--resume
DIR` goes on after the last run that came to its end; `--minutes` begins none that would not."""

from pathlib import Path

from lab.jobs.memory import story
from lab.jobs.memory.drawn import draw  # noqa: F401
from lab.jobs.memory.studied import study  # noqa: F401

LASTS = "25 min a run and arm; small: 3"
NEEDS = ("mariadbd", "mariadb", "sysbench", "losetup", "mkfs.ext4")
ARMS = "none,max,protect,probes,shipped,blind,silent"
PHASE = {"paper": 180, "small": 20}


def options(parser):
    parser.add_argument("--scale", choices=PHASE, default="paper", help="of databases and memory")
    parser.add_argument("--load", choices=story.LOADS, default="phases", help="what is asked, when")
    parser.add_argument("--arms", default=ARMS, help="with commas between; soft, v1's soft limit or memory.low, needs a guest on v1")
    parser.add_argument("--arms-file", type=Path, action="append", default=[], metavar="FILE", help="further arms, as in lab/jobs/memory/arms.toml")
    parser.add_argument("--runs", type=int, default=5, help="how often each arm is run, in turns")
    parser.add_argument("--phase", type=int, metavar="S", help="length of a phase, 5 to 600; the other loads follow it")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no run that would not end in that time")
    parser.add_argument("--data", type=Path, metavar="DIR", help="make the databases there, and let them stay for the next campaign")


def tag(options):
    words = [options.scale if options.scale == "paper" else "", options.load if options.load != "phases" else ""]
    return "-".join(word for word in words if word) or None


def record(lab, options):
    from lab.jobs.memory.campaign import campaign

    return campaign(lab, options, options.phase or PHASE[options.scale])
