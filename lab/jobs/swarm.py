"""What do a hundred polling containers wait for, and what does the daemon burn?

Every phase starts one variant afresh and makes its containers. It measures the daemon's CPU time three times: at rest (nothing polls),
under pollers of files that are no view, which cost a daemon what busy containers do, and under pollers of views. Then it takes everything
down. Phases of the variants alternate, in an order that rotates. The containers' memory limits all differ, so a poller can tell a wrong
answer from a right one."""

import math
import time

from lab.backends import LXCFS
from lab.container import finish
from lab.polling import counted
from lab.stats import cumulative, histogram, quantiles, spread
from lab.tables import nanoseconds, of_spread
from lab.usage import total

LASTS = "5 min"
VARIANTS = ["native", *LXCFS, "elbowroom"]
FILES = ["/proc/meminfo", "/proc/stat"]
# As many, of the kernel's own under every variant.
OTHERS = ["/proc/version", "/proc/self/stat"]


def options(parser):
    parser.add_argument("--rounds", type=int, default=3, help="phases per variant")
    parser.add_argument("--containers", type=int, default=100, help="containers, one poller each")
    parser.add_argument("--interval-ms", type=int, default=100, help="time between two polls of a container")
    parser.add_argument("--seconds", type=int, default=20, help="length of a phase")
    parser.add_argument("--rest-seconds", type=int, default=5, help="time at rest before each phase")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["native", "lxcfs", "elbowroom"], help="what to compare")


def record(lab, options):
    raw = lab.resumed or {"containers": options.containers, "interval_ms": options.interval_ms, "seconds": options.seconds, "phases": []}
    order = [(number, options.variants[(number + turn) % len(options.variants)])
             for number in range(options.rounds) for turn in range(len(options.variants))]  # fmt: skip
    for number, variant in order[len(raw["phases"]):]:
        print(f"round {number + 1} of {options.rounds}: {variant}", flush=True)
        raw["phases"].append(phase(lab, options, number, variant))
        lab.keep(raw)
    return raw


def phase(lab, options, number, variant):
    backend = lab.backend(variant)
    sizes = range(64, 64 + options.containers)
    containers = [backend.container(f"swarm-{variant}-{mib}", memory_mib=mib) for mib in sizes]
    time.sleep(1)
    before = total(backend.pids())["cpu_s"]
    time.sleep(options.rest_seconds)
    rest_cpus = (total(backend.pids())["cpu_s"] - before) / max(options.rest_seconds, 1)
    *_, others_cpus = poll(options, backend, containers, OTHERS, [0] * len(sizes))
    expected = [0 if variant == "native" else mib * 1024 for mib in sizes]
    latencies, failed, wrong, load_cpus = poll(options, backend, containers, FILES, expected)
    pids = backend.pids()
    held = total(pids)
    for container in containers:
        container.close()
    backend.close()
    return {
        "round": number, "variant": variant, "latency_ns": quantiles(latencies), "histogram": histogram(latencies), "failed": failed,
        "wrong": wrong, "rest_cpus": rest_cpus, "others_cpus": others_cpus, "load_cpus": load_cpus,
        **{key: held[key] for key in ("rss_kib", "anon_kib", "threads")}, "processes": len(pids),
    }  # fmt: skip


def poll(options, backend, containers, files, expected):
    """A poller in each container, for the length of a phase. `expected`: what each should find as MemTotal, in KiB, or 0.
    Latencies in ns, reads that failed, wrong answers, and the daemon's CPU seconds per second meanwhile."""
    interval, polls = options.interval_ms, options.seconds * 1000 // options.interval_ms
    start = time.monotonic_ns() + 500_000_000 + 5_000_000 * len(containers)
    pollers = [
        container.reader("poll", start + interval * 1_000_000 * i // len(containers), interval, polls, kib, *files)
        for i, (container, kib) in enumerate(zip(containers, expected))
    ]
    time.sleep(max(start - time.monotonic_ns(), 0) / 1e9)
    began = total(backend.pids())["cpu_s"]
    time.sleep(options.seconds)
    cpus = (total(backend.pids())["cpu_s"] - began) / options.seconds
    latencies, failed, wrong = [], 0, 0
    for poller in pollers:
        some, *others = counted(finish(poller, "a poller"))
        latencies, failed, wrong = latencies + some, failed + others[0], wrong + others[1]
    return latencies, failed, wrong, cpus


def study(raw):
    """The spread over phases of each figure, and the distribution of latencies, by variant."""
    us = lambda key: lambda p: p["latency_ns"][key] / 1000
    per_read = lambda p, cpus: cpus * raw["seconds"] * 1e6 / max(p["latency_ns"]["samples"], 1)
    figures = {
        "reads per phase": lambda p: p["latency_ns"]["samples"],
        **{f"latency {name}, µs": us(name.replace(".", "")) for name in ("p50", "p90", "p99", "p99.9", "max")},
        "failed reads": lambda p: p["failed"],
        "wrong MemTotal": lambda p: p["wrong"],
        "daemon CPU at rest, % of one": lambda p: p["rest_cpus"] * 100,
        "daemon CPU under pollers, % of one": lambda p: p["load_cpus"] * 100,
        "daemon CPU under pollers of other files, % of one": lambda p: p["others_cpus"] * 100,
        "daemon CPU per read, µs": lambda p: per_read(p, p["load_cpus"]),
        "of it for that views are read, µs": lambda p: per_read(p, p["load_cpus"] - p["others_cpus"]),
        "daemon memory, MiB resident": lambda p: p["rss_kib"] / 1024,
        "of it its own (anonymous), MiB": lambda p: p["anon_kib"] / 1024,
        "daemon threads": lambda p: p["threads"],
        "daemon processes": lambda p: p["processes"],
    }
    phases = {variant: [p for p in raw["phases"] if p["variant"] == variant] for variant in VARIANTS}
    phases = {variant: some for variant, some in phases.items() if some}
    # Without a daemon there is nothing to cost, and no answer to be wrong.
    said = lambda variant, name: variant != "native" or name.startswith(("reads", "latency", "failed"))
    cell = lambda variant, name, of: spread(map(of, phases[variant])) if said(variant, name) else None
    rows = {name: [cell(variant, name, of) for variant in phases] for name, of in figures.items()}
    return {
        **{key: raw[key] for key in ("containers", "interval_ms", "seconds")}, "rounds": max(p["round"] for p in raw["phases"]) + 1,
        "variants": list(phases), "rows": rows, "latencies": {variant: nines(some) for variant, some in phases.items()},
    }  # fmt: skip


def nines(phases):
    """The cumulative distribution by "nines": 0 is the fastest read, 1 the 90th percentile, 3 the 99.9th."""
    counts = {}
    for upper, count in (pair for p in phases for pair in p["histogram"].items()):
        counts[upper] = counts.get(upper, 0) + count
    return [(-math.log10(1 - share), ns) for share, ns in cumulative(counts) if share <= 0.9999]


def percent(nines):
    """A place on the axis as people say it: whole percents have no fraction."""
    return f"{100 * (1 - 10.0**-nines):.2f}".rstrip("0").rstrip(".") + " %"


def draw(studied, out):
    out.say(
        f"{studied['containers']} containers, each of which opens, reads and closes {' and '.join(FILES)} every "
        f"{studied['interval_ms']} ms, for {studied['seconds']} s per phase, phases per variant: {studied['rounds']}, in turn. "
        "Each figure is the median over phases "
        "(smallest to largest). CPU is user and system time of all the daemon's processes."
    )
    out.table(["per phase", *studied["variants"]], [[name, *map(of_spread, spreads)] for name, spreads in studied["rows"].items()])
    with out.figure("latency", f"What {studied['containers']} pollers wait for") as axes:
        from lab import plot

        latencies = studied["latencies"]
        ends = plot.decades(ns for points in latencies.values() for _, ns in points)
        plot.axis(axes, "x", "share of reads that were at least as fast", percent, limits=(0, 4))
        axes.set_xticks(range(5))
        plot.axis(axes, "y", "time per read (logarithmic)", nanoseconds, log=True, limits=ends)
        plot.lines(axes, latencies, colors=[plot.VARIANTS[variant] for variant in latencies])
