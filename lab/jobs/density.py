"""Does the agent keep anything of 500 containers that came and went twenty times?

Descriptors, mounts, threads and memory of the agent's processes are read when no container is there: before the first cycle and after each.
The verdict is a line through the second half of the cycles. The first half fills what the agent remembers of gone containers (changes,
history: thousands of entries at most). A resource grows when it grew by more than 5 % (and by more than two) over that half and the slope
is more than twice its standard error."""

import time

from lab.stats import slope
from lab.tables import plain, whole
from lab.usage import total

LASTS = "10 min"
RESOURCES = {
    "memory": ("Own memory (MiB)", lambda usage: usage["anon_kib"] / 1024),
    "fds": ("Open descriptors", lambda usage: usage["fds"]),
    "mounts": ("Mounts", lambda usage: usage["mounts"]),
    "threads": ("Threads", lambda usage: usage["threads"]),
}
DAY_MS = 86_400_000


def options(parser):
    parser.add_argument("--containers", type=int, default=500, help="containers, each with one sleeping process")
    parser.add_argument("--cycles", type=int, default=20, help="how often they are made and removed")
    parser.add_argument("--stay-seconds", type=int, default=3, help="how long all of them stay")
    parser.add_argument("--load-threads", type=int, default=2, help="threads that keep CPUs busy, in a container of their own")


def record(lab, options):
    backend = lab.backend("elbowroom")
    if options.load_threads:
        burner = backend.container("burner")
        burner.reader("load", time.monotonic_ns(), "busy", 0, DAY_MS, options.load_threads)
    time.sleep(2)
    raw = {"containers": options.containers, "load_threads": options.load_threads, "empty_before": total(backend.pids()), "cycles": []}
    for number in range(options.cycles):
        print(f"cycle {number + 1} of {options.cycles}", flush=True)
        raw["cycles"].append(cycle(backend, options))
        lab.keep(raw)
    return raw


def cycle(backend, options):
    """Once up and down."""
    began = time.monotonic()
    containers = [backend.container(f"d{number + 1}", memory_mib=64) for number in range(options.containers)]
    make_s, before = time.monotonic() - began, total(backend.pids())
    time.sleep(options.stay_seconds)
    full, began = total(backend.pids()), time.monotonic()
    for container in containers:
        container.close()
    remove_s = time.monotonic() - began
    # The agent learns of removals by notification and lets go within a tick; one second is plenty.
    time.sleep(1)
    full_cpus = (full["cpu_s"] - before["cpu_s"]) / max(options.stay_seconds, 1)
    return {"make_s": make_s, "remove_s": remove_s, "full": full, "full_cpus": full_cpus, "empty": total(backend.pids())}


def study(raw):
    """The trend of each resource over the cycles, and the series of each."""
    trends = {label: trend(raw, of) for label, of in RESOURCES.values()}
    # A process that is there only now and then, as the doctor, is left out.
    for name in raw["empty_before"].get("by_name", {}):
        trends[f"Own memory of {name} (MiB)"] = trend(raw, lambda usage: usage.get("by_name", {}).get(name, 0) / 1024)
    points = lambda of, key: [(i + 1, of(one[key])) for i, one in enumerate(raw["cycles"])]
    series = {name: {"all containers": points(of, "full"), "empty": points(of, "empty")} for name, (_, of) in RESOURCES.items()}
    return {"raw": raw, "trends": trends, "series": series}


def trend(raw, of):
    half = len(raw["cycles"]) // 2
    points = [(i, of(one["empty"])) for i, one in enumerate(raw["cycles"])][half:]
    start, line = of(raw["empty_before"]), slope(points)
    if line is None:
        return [plain(start), "-", "-", "-", "too few cycles"]
    (per_cycle, error), first, last = line, points[0][1], points[-1][1]
    grows = per_cycle * (len(points) - 1) > max(0.05 * first, 2) and per_cycle > 2 * error
    return [plain(start), plain(first), plain(last), f"{plain(per_cycle)} ± {plain(error)}", "grows" if grows else "does not grow"]


def draw(studied, out):
    raw = studied["raw"]
    out.say(
        f"{raw['containers']} containers with one sleeping process each, attached and removed {len(raw['cycles'])} times beside "
        f"{raw['load_threads']} busy threads. Sums over the agent's processes; mounts are the most that one of them sees."
    )
    head = ["when empty", "at start", "halfway", "after the last", "per cycle", "verdict"]
    out.table(head, [[label, *cells] for label, cells in studied["trends"].items()])
    both = lambda one, key, unit=1, digits=0: " / ".join(f"{one[when][key] / unit:.{digits}f}" for when in ("empty", "full"))
    rows = [
        [i + 1, f"{one['make_s']:.1f}", f"{one['remove_s']:.1f}", f"{one['full_cpus'] * 100:.1f}", both(one, "fds"), both(one, "mounts"),
         both(one, "threads"), both(one, "anon_kib", 1024, 1), both(one, "rss_kib", 1024, 1)]
        for i, one in enumerate(raw["cycles"])
    ]  # fmt: skip
    head = ["make, s", "remove, s", "CPU when full, % of one", "descriptors, empty / full", "mounts", "threads", "own MiB", "resident MiB"]
    out.table(["cycle", *head], rows)
    for name, (label, _) in RESOURCES.items():
        with out.figure(name, f"{label} of the agent, empty and with {raw['containers']} containers") as axes:
            from lab import plot

            series = studied["series"][name]
            top = max(y for points in series.values() for _, y in points) * 1.1
            plot.axis(axes, "x", "cycle", whole, limits=(1, max(len(raw["cycles"]), 2)))
            plot.axis(axes, "y", label, limits=(0, max(top, 1.1)))
            plot.lines(axes, series, marks=True, colors=[plot.PALETTE[1], plot.PALETTE[0]])
