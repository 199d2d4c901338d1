"""What does one read cost inside a container: the kernel's files, lxcfs, Elbowroom?

Three containers stand side by side and differ only in the files that are mounted over /proc and /sys. Every round reads each file in each
of them in turn, in an order that rotates from round to round. Ratios are taken within a round, where the neighbours' noise is the same, and
then over rounds. lxcfs has no file of the quota."""

import json
import os

from kit.cgroup import V2
from lab.backends import LXCFS
from lab.stats import ratios, spread
from lab.sysinfo import online_cpus
from lab.tables import nanoseconds, of_spread

LASTS = "3 min"
VARIANTS = ["native", *LXCFS, "elbowroom"]
QUOTA = "cpu quota (cgroup)"
FILES = ["/proc/meminfo", "/proc/stat", "/proc/cpuinfo", "/proc/uptime", "/proc/loadavg", "/sys/devices/system/cpu/online", QUOTA]
OPS = ["open", "pread"]
PAIRS = [*((variant, "native") for variant in VARIANTS[1:]), *((lxcfs, "elbowroom") for lxcfs in LXCFS), ("lxcfs-7", "lxcfs")]


def options(parser):
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured")
    parser.add_argument("--iterations", type=int, default=5000, help="operations per measurement and thread")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of reading threads")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["native", "lxcfs", "elbowroom"], help="what to compare")
    parser.add_argument("--pin", type=int, metavar="CPU", help="keeps readers and daemons on this one CPU: leaves out what waking an idle "
                        "CPU costs, which differs between machines")  # fmt: skip


def record(lab, options):
    if options.pin is not None:
        os.sched_setaffinity(0, [options.pin])
    # A quota of all CPUs: readers are never throttled, and daemons that compute with the quota still do.
    limits = {"cpus": online_cpus(), "memory_mib": 512}
    containers = [(variant, lab.backend(variant).container(f"read-{variant}", **limits)) for variant in options.variants]
    raw = {"iterations": options.iterations, "pin": options.pin, "measurements": []}
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", flush=True)
        for setting in [(file, op, threads) for file in FILES for op in OPS for threads in options.threads]:
            turn = number % len(containers)
            raw["measurements"] += [
                measure(container, variant, number, options.iterations, *setting)
                for variant, container in containers[turn:] + containers[:turn]
                if setting[0] != QUOTA or variant not in LXCFS
            ]
    return raw


def measure(container, variant, number, iterations, file, op, threads):
    path = file if file != QUOTA else f"/sys/fs/cgroup/{'cpu.max' if V2 else 'cpu/cpu.cfs_quota_us'}"
    bench = json.loads(container.read("bench", op, iterations, threads, path))
    return {"round": number, "file": file, "op": op, "threads": threads, "variant": variant, **bench}


def study(raw):
    """For each (threads, op): spreads of p50 and p99 in µs, and of ratios of p50, by file and column; and p50 in ns for the figure."""
    measurements = raw["measurements"]
    variants = [variant for variant in VARIANTS if any(m["variant"] == variant for m in measurements)]
    parts = {}
    for threads, op in sorted({(m["threads"], m["op"]) for m in measurements}):
        here = [m for m in measurements if (m["threads"], m["op"]) == (threads, op)]
        parts[threads, op] = {file: columns([m for m in here if m["file"] == file], variants) for file in FILES}
    return {
        "iterations": raw["iterations"], "pin": raw["pin"], "variants": variants, "parts": parts,
        "rounds": max(m["round"] for m in measurements) + 1, "clock": spread(m["clock_ns"] for m in measurements),
    }  # fmt: skip


def columns(measurements, variants):
    us = lambda variant, key: {m["round"]: m[key] / 1e3 for m in measurements if m["variant"] == variant}
    pairs = [pair for pair in PAIRS if set(pair) <= set(variants)]
    return {
        **{f"{variant} p50": spread(us(variant, "p50").values()) for variant in variants},
        **{f"{variant} p99": spread(us(variant, "p99").values()) for variant in variants},
        **{f"{a} / {b}": spread(ratios(us(a, "p50"), us(b, "p50"))) for a, b in pairs},
    }


def draw(studied, out):
    free = studied["pin"] is None
    where = "The scheduler placed readers and daemons." if free else f"Readers and daemons ran on CPU {studied['pin']} only."
    out.say(
        f"Microseconds per operation inside a container, {studied['iterations']} operations per thread and measurement, "
        f"{studied['rounds']} rounds, variants in turn within each round. Each figure is the median over rounds "
        '(smallest to largest). "open" is open + one '
        'read of up to 64 KiB + close; "pread" is one pread at offset 0 of a held descriptor. The clock\'s own '
        f"{of_spread(studied['clock'])} ns are subtracted. {where}"
    )
    for (threads, op), files in studied["parts"].items():
        out.say(f"## {op}, {threads} thread{'s' if threads != 1 else ''}")
        names = list(next(iter(files.values())))
        out.table(["file", *names], [[file, *(of_spread(columns[name]) for name in names)] for file, columns in files.items()])
        if threads == 1:
            figure(out, op, files, studied)


def figure(out, op, files, studied):
    from lab import plot

    in_ns = lambda spread: type(spread)(*(us * 1e3 for us in spread))
    rows = [
        (file, {variant: in_ns(columns[f"{variant} p50"]) for variant in studied["variants"] if columns[f"{variant} p50"]})
        for file, columns in files.items()
    ]
    series = {variant: plot.VARIANTS[variant] for variant in studied["variants"]}
    ends = [end for _, dots in rows for spread in dots.values() for end in (spread.min, spread.max)]
    title = f"{op}: median latency inside a container, {studied['rounds']} rounds"
    with out.figure(op, title, **plot.spreads_height(rows, series)) as axes:
        plot.axis(axes, "x", "time per read (logarithmic)", nanoseconds, log=True, limits=plot.decades(ends))
        plot.spreads(axes, rows, series)
