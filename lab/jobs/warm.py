"""On a machine whose memory is full of page cache, does effective memory follow what a container could have, and does a neighbour suffer?

A neighbour reads random blocks of a file, all of which is in memory: its working set. After a while a container beside it grows, by a
program that holds as much as it sees (`programs/grows.py`). It has a soft limit, and a hard one that fits beside the working set or does
not. The machine is fresh, with an empty page cache but for the working set, or warm: other files, read once, fill what is left. The rule
is the paper's or the default. These take turns, each with an agent of its own. TMPDIR must be on a disk: a tmpfs has no page cache."""

import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from kit import container as kit_container
from lab import ROOT, cgroups
from lab.job import Refused
from lab.stats import median, spread
from lab.sysinfo import online_cpus

LASTS = "1 min a round, hard limit, machine and rule in a guest"
MACHINES, RULES = ["fresh", "warm"], {"paper": "paper", "waterfill": "default"}
MIB, PAGE = 1 << 20, os.sysconf("SC_PAGE_SIZE")
BLOCK = 1 << 16  # of kit/rereads.py
LARGEST_MIB = 4096  # above this, filling a machine takes too long, and hurts others on it
# A sample: seconds, then MiB; at the end counters of the machine: pages that were in use and were lost, as the agent counts them, pages
# that were read again before long, as the kernel judges, and the seconds that some task waited for memory.
FROM = ["at_s", "host_free", "host_available", "total", "available", "used", "cached", "refaults", "lost", "activated", "stalled_s"]
LOST = ["pswpout", "workingset_refault_anon", "workingset_restore_file"]
LRU_GEN = Path("/sys/kernel/mm/lru_gen/enabled")
END_S = 5  # the end of a run, of which there are medians
GOAL = 97  # percent of what the neighbour does alone


def options(parser):
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--alone", type=float, default=8, help="seconds that the neighbour is alone")
    parser.add_argument("--beside", type=float, default=32, help="seconds that the container grows, and then holds")
    parser.add_argument("--working-set-mib", type=int, default=192, help="what the neighbour reads")
    parser.add_argument("--blocks", type=int, default=1000, help="blocks of 64 KiB a second that it reads, if it can")
    parser.add_argument("--disk-mib", type=int, default=4, help="MiB a second that the disk gives it once all is in memory; 0: any")
    parser.add_argument("--soft-mib", type=int, default=128, help="the container's soft limit")
    parser.add_argument("--hard-mib", type=int, nargs="+", default=[384, 800], help="its hard limits")
    parser.add_argument("--fill", type=int, default=64, help="MiB a second that it takes at most")
    parser.add_argument("--machines", nargs="+", choices=MACHINES, default=MACHINES)
    parser.add_argument("--rules", nargs="+", choices=list(RULES), default=list(RULES), help="values of view_rules.cpu")
    parser.add_argument("--ballast-mib", type=int, default=0, help="memory that is held all the time: a large machine is a small one then")


# ---- record ----


def record(lab, options):
    host = host_mib()
    left = host["MemAvailable"] - options.ballast_mib
    if left > LARGEST_MIB:
        raise Refused(f"page cache does not soon fill {left} MiB: --ballast-mib {left - LARGEST_MIB // 2}, or tools/vm -m 1024")
    directory = lab.scope.directory
    disk = disk_of(directory)
    ballast = hold(lab, options.ballast_mib) if options.ballast_mib else None  # it ends with the run
    working_set, flood = directory / "working-set", directory / "flood"
    write(working_set, options.working_set_mib)
    write(flood, left)
    cells = list(itertools.product(options.hard_mib, options.machines, options.rules))
    keys = ("alone", "beside", "working_set_mib", "blocks", "disk_mib", "soft_mib", "fill")
    raw = {**{key: getattr(options, key) for key in keys}, "cpus": online_cpus(), "host_mib": host["MemTotal"]}
    raw |= {"lru_gen": LRU_GEN.read_text().strip() if LRU_GEN.exists() else None, "runs": []}
    for number in range(options.rounds):
        turn = number % len(cells)
        for hard, machine, rule in cells[turn:] + cells[:turn]:
            name = f"r{number}-{hard}-{machine}-{rule}"
            Path("/proc/sys/vm/drop_caches").write_text("3")
            agent = lab.agent(name, f'view_rules.cpu = "{rule}"', prefix=f"{name}-")
            with (
                lab.container(f"{name}-neighbour") as neighbour,
                lab.container(f"{name}-grows", agent=agent, memory_mib=hard, soft_mib=options.soft_mib) as container,
            ):
                reader = Reader(neighbour, working_set, options.blocks)
                if options.disk_mib:
                    neighbour.group.limit_io(disk, options.disk_mib * MIB)
                if machine == "warm":
                    read(flood)
                run = measure(reader, neighbour, container, options)
            reader.close()
            agent.close()
            raw["runs"].append({"round": number, "hard_mib": hard, "machine": machine, "rule": rule, **run})
            lab.keep(raw)
    return raw


def disk_of(directory):
    """MAJOR:MINOR of the disk that a directory is on, as cgroups name it."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", directory], capture_output=True, text=True).stdout.strip()
    if kind not in ("ext2/ext3", "xfs"):
        raise Refused(f"{directory} is on {kind}, not on ext4 or xfs on a disk: set TMPDIR")
    number = directory.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    return ((device.parent if (device / "partition").exists() else device) / "dev").read_text().strip()


def hold(lab, mib):
    """A program that holds memory."""
    child = lab.start(sys.executable, ROOT / "tests/live/kit/appetite.py", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    print(f"hold {mib}", file=child.stdin, flush=True)
    assert child.stdout.readline() == "ok\n", "the program that holds memory ended"
    return child


def measure(reader, neighbour, container, options):
    """What was seen twice and more a second: first the neighbour alone, then with the container that grows."""
    program = container.start(sys.executable, ROOT / "lab/programs/grows.py", options.fill, stdin=subprocess.PIPE, stderr=None)
    file = os.open(f"/proc/{container.pid}/root/proc/meminfo", os.O_RDONLY)
    samples, begin, grows = [], time.monotonic(), False
    try:
        while (at := time.monotonic() - begin) < options.alone + options.beside:
            if not grows and at >= options.alone:
                print(file=program.stdin, flush=True)
                grows = True
            host, inside = host_mib(), in_mib(os.pread(file, 1 << 16, 0).decode())
            stat = neighbour.group.memory_stat()
            numbers = host["MemFree"], host["MemAvailable"], inside["MemTotal"], inside["MemAvailable"]
            charged = container.group.memory_bytes() // MIB, stat["file"] // MIB, stat["workingset_refault_file"] * PAGE // MIB
            samples.append([round(at, 2), *numbers, *charged, *of_the_machine()])
            time.sleep(0.25)
        kills = container.group.oom_kills()
    finally:
        os.close(file)
    assert program.poll() is None or kills, f"the program that grows ended with {program.returncode}"
    return {"samples": samples, "blocks": reader.since(begin), "oom_kills": kills}


def of_the_machine():
    stat = cgroups.pairs(Path("/proc/vmstat").read_text())
    pressure = Path("/proc/pressure/memory").read_text()
    mib = lambda *keys: sum(stat.get(key, 0) for key in keys) * PAGE // MIB
    return mib(*LOST), mib("workingset_activate_file"), round(int(pressure.split("total=")[1].split()[0]) / 1e6, 2)


class Reader:
    """The neighbour's program (kit/rereads.py), which has its working set in memory once this is made, and what it says every second."""

    def __init__(self, container, file, blocks):
        words = [sys.executable, ROOT / "tests/live/kit/rereads.py", "/dev/null", file, blocks]
        self.child, self.said = container.start(*words, stdin=subprocess.PIPE, stderr=None), []
        print(file=self.child.stdin, flush=True)
        assert self.child.stdout.readline() == "ready\n", "the neighbour's program ended"
        self.thread = threading.Thread(target=self.listen)
        self.thread.start()

    def listen(self):
        for line in self.child.stdout:
            self.said.append((time.monotonic(), float(line)))

    def since(self, begin):
        """(end of a second, blocks a second in it)."""
        return [[round(at - begin, 2), blocks] for at, blocks in list(self.said) if at > begin]

    def close(self):
        """After its container."""
        self.thread.join()
        self.child.wait()


def write(path, mib):
    content = os.urandom(MIB)
    with open(path, "wb") as file:
        for _ in range(mib):
            file.write(content)
        os.fsync(file.fileno())


def read(path):
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(MIB)
        while file.readinto(buffer):
            pass


def host_mib():
    return in_mib(Path("/proc/meminfo").read_text())


def in_mib(text):
    return {key: size // MIB for key, size in kit_container.meminfo(text).items()}


# ---- study ----


def study(raw):
    cells = {}
    for run in raw["runs"]:
        cells.setdefault((run["hard_mib"], run["machine"], run["rule"]), []).append(run)
    order = lambda cell: (cell[0], MACHINES.index(cell[1]), cell[2])
    rows = {}
    for cell in sorted(cells, key=order):
        figures = [figures_of(run, raw) for run in cells[cell]]
        rows[cell] = {key: spread(one[key] for one in figures) for key in figures[0]}
    return {"raw": raw, "rows": rows, "first": {cell: runs[0] for cell, runs in cells.items()}}


def series(run, raw):
    """Samples by name, and beside them `could`: what the container has and what could be had beside it, up to its hard limit, if the
    working set stays."""
    samples = [dict(zip(FROM, sample)) for sample in run["samples"]]
    for one in samples:
        one["could"] = max(0, min(run["hard_mib"], one["used"] + one["host_available"] - raw["working_set_mib"]))
    return samples


def figures_of(run, raw):
    """The figures of a run, in MiB and percent."""
    samples = series(run, raw)
    before, beside = ([one for one in samples if (one["at_s"] >= raw["alone"]) == late] for late in (False, True))
    end = [one for one in beside if one["at_s"] > beside[-1]["at_s"] - END_S]
    # A second that began before the container did is of neither.
    alone = [blocks for at, blocks in run["blocks"] if 1 < at <= raw["alone"]]
    with_it = [blocks for at, blocks in run["blocks"] if at > raw["alone"] + 1]
    level = sum(alone) / len(alone)
    return {
        "free": before[-1]["host_free"],
        "total": median(one["total"] for one in end),
        "available": median(one["available"] for one in end),
        "could": median(one["could"] for one in end),
        "used": median(one["used"] for one in end),
        "above": max(0, *(one["total"] - one["could"] for one in beside)),
        "falls": sum(later["total"] < earlier["total"] for earlier, later in zip(beside, beside[1:])),
        **{key: (beside[-1][key] - before[-1][key]) for key in ("refaults", "lost", "activated")},
        "stalled": 100 * (beside[-1]["stalled_s"] - before[-1]["stalled_s"]) / (beside[-1]["at_s"] - before[-1]["at_s"]),
        "throughput": 100 * sum(with_it) / len(with_it) / level,
        "worst": 100 * min(with_it) / level,
        "kills": run["oom_kills"],
    }


# ---- draw ----


def draw(studied, out):
    raw = studied["raw"]
    out.say(
        f"A machine of {raw['host_mib']} MiB and {raw['cpus']} CPUs; `lru_gen/enabled` is {raw['lru_gen']}. The neighbour reads "
        f"{raw['blocks']} random blocks of 64 KiB a second, if it can, of its {raw['working_set_mib']} MiB; the disk gives it "
        f"{raw['disk_mib'] or 'any'} MiB a second. The container has a soft limit of {raw['soft_mib']} MiB, and grows by at most "
        f"{raw['fill']} MiB a second from second {raw['alone']:g} on, for {raw['beside']:g} s. Sizes in MiB; medians over rounds "
        "(smallest to largest)."
    )
    out.say(
        "*Could have*: what it uses and the machine's MemAvailable, less the working set, at most its hard limit. It, effective "
        f"memory (MemTotal inside), MemAvailable inside and what it uses are medians of the last {END_S} s. *Above*: the most that "
        "effective memory was above what it could have. *Falls*: samples with less effective memory than the one before. *Free*: MemFree "
        "before it grows."
    )
    words = lambda figure, digits=0: f"{figure.median:.{digits}f} ({figure.min:.{digits}f} to {figure.max:.{digits}f})"
    name = lambda cell: [f"{cell[1]}, {RULES[cell[2]]}", cell[0]]
    keys = {"free": "free", "total": "effective memory", "available": "MemAvailable inside", "could": "could have", "used": "uses",
            "above": "above", "falls": "falls"}  # fmt: skip
    rows = [[*name(cell), *(words(row[key]) for key in keys)] for cell, row in studied["rows"].items()]
    out.table(["machine, rule", "hard limit", *keys.values()], rows)
    out.say(
        "The neighbour while the container grows and holds. *Throughput*: in percent of its own before; *worst*: of its worst second. "
        "*Refaults*: its pages that were read again. What the machine counted meanwhile, of which the agent reads the first and the last: "
        "*lost*, pages in use that were lost; *activated*, files' pages that came back soon; *stalled*, the part of that time in which "
        "some task waited for memory."
    )
    keys = {"throughput": "throughput, %", "worst": "worst, %", "refaults": "refaults", "lost": "lost", "activated": "activated",
            "stalled": "stalled, %"}  # fmt: skip
    rows = [[*name(cell), *(words(row[key], int("%" in keys[key])) for key in keys)] for cell, row in studied["rows"].items()]
    out.table(["machine, rule", "hard limit", *keys.values()], rows)
    missed = [(name(cell), row["throughput"].min) for cell, row in studied["rows"].items() if row["throughput"].min < GOAL]
    low = [f"{machine_and_rule}, {hard} MiB: {least:.1f} %" for (machine_and_rule, hard), least in missed]
    out.say(f"The goal is {GOAL} % of the throughput, in each run. " + (f"Missed, with the lowest: {'; '.join(low)}." if low else "Met."))
    killed = sum(run["oom_kills"] for run in raw["runs"])
    out.say(f"Killed for memory: {killed} programs." if killed else "No program was killed for memory.")
    for hard in sorted({cell[0] for cell in studied["first"]}):
        figure(out, hard, studied)


def figure(out, hard, studied):
    """Sizes over time in the first round of each machine and rule."""
    from lab import plot

    raw, cells = studied["raw"], [cell for cell in studied["rows"] if cell[0] == hard]
    drawn = {"effective memory": ("total", plot.PALETTE[0]), "MemAvailable inside": ("available", plot.PALETTE[2]),
             "could have": ("could", plot.PALETTE[4]), "neighbour's refaults": ("refaults", plot.PALETTE[1])}  # fmt: skip
    of_panels = plot.panels(len(cells))
    with out.figure(f"memory-{hard}", f"Effective memory beside a working set, hard limit {hard} MiB", **of_panels) as axes:
        axes = list(axes) if len(cells) > 1 else [axes]
        plot.legend(axes[0], {name: color for name, (_, color) in drawn.items()}, "Area: what it uses", of_panels["height"])
        for one, cell in zip(axes, cells):
            samples = series(studied["first"][cell], raw)
            before = samples[0]["refaults"]
            plot.title(one, f"{cell[1]} machine, {RULES[cell[2]]} rule")
            plot.area(one, [(sample["at_s"], sample["used"]) for sample in samples], color=plot.PALETTE[5])
            for key, color in drawn.values():
                plot.steps(one, [(sample["at_s"], sample[key] - (before if key == "refaults" else 0)) for sample in samples], color=color)
            plot.axis(one, "y", "MiB", limits=(0, hard * 1.1), ticks=4)
            plot.axis(one, "x", "time (s)" if one is axes[-1] else "", limits=(0, raw["alone"] + raw["beside"]), ticks=12)
