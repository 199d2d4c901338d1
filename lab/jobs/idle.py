"""What does the agent cost while no container works?

Containers have one sleeping process each. Modes take turns within a round, one agent at a time; each mode is measured with no container, then
with more and more of them. CPU time is the scheduler's count of every thread (`/proc/PID/task/TID/schedstat`, nanoseconds), so that short
runs between two ticks of the clock count too. PSS is the proportional set size of all processes (`smaps_rollup`)."""

import time
from pathlib import Path

from lab.stats import spread

LASTS = "6 min a round"
MODES = {
    "views": ['mode = "views"'],
    "default": [],
    "enforce": ['disk.mode = "enforce"', 'memory.mode = "enforce"'],
}


def options(parser):
    parser.add_argument("--rounds", type=int, default=3, help="how often each mode is measured")
    parser.add_argument("--containers", type=int, nargs="+", default=[0, 10, 100], help="so many at once, ascending")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES), help="what the agent does")
    parser.add_argument("--settle", type=float, default=10, help="seconds before a measurement")
    parser.add_argument("--seconds", type=float, default=30, help="seconds of a measurement")


def record(lab, options):
    raw = {"seconds": options.seconds, "runs": []}
    for number in range(options.rounds):
        turn = number % len(options.modes)
        for mode in options.modes[turn:] + options.modes[:turn]:
            name = f"r{number}-{mode}"
            agent, containers = lab.agent(name, *MODES[mode], prefix=f"{name}-"), []
            for count in sorted(options.containers):
                while len(containers) < count:
                    containers.append(lab.container(f"{name}-{len(containers)}", agent=agent, memory_mib=64))
                time.sleep(options.settle)
                raw["runs"].append({"round": number, "mode": mode, "containers": count, **measure(agent, options.seconds)})
            for container in containers:
                container.close()
            agent.close()
            lab.keep(raw)
    return raw


def measure(agent, seconds):
    """CPU time in percent of one CPU and memory in KiB, each by the names of processes."""
    before, began = cpu_ns(agent.pids()), time.monotonic()
    time.sleep(seconds)
    after, took = cpu_ns(agent.pids()), time.monotonic() - began
    used, memory = {}, {}
    for pid, (name, ns) in after.items():
        used[name] = used.get(name, 0) + ns - before.get(pid, (name, 0))[1]
        memory[name] = memory.get(name, 0) + pss_kib(pid)
    return {"cpu_percent": {name: ns / took / 1e7 for name, ns in used.items()}, "pss_kib": memory}


def cpu_ns(pids):
    """The name of each process that is there, and the time that its threads ran, in nanoseconds."""
    times = {}
    for pid in pids:
        try:
            threads = list(Path(f"/proc/{pid}/task").iterdir())
            times[pid] = (Path(f"/proc/{pid}/comm").read_text().strip(), sum(ran(thread) for thread in threads))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return times


def ran(thread):
    try:
        return int((thread / "schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def pss_kib(pid):
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def study(raw):
    """Per mode and number of containers: the sum over processes, and each process's part, as spreads over rounds."""
    rows = {}
    for run in raw["runs"]:
        rows.setdefault((run["mode"], run["containers"]), []).append(run)
    figures = []
    for (mode, count), runs in sorted(rows.items(), key=lambda item: (item[0][1], list(MODES).index(item[0][0]))):
        names = sorted({name for run in runs for name in run["cpu_percent"]})
        figures.append({
            "mode": mode,
            "containers": count,
            "cpu": spread(sum(run["cpu_percent"].values()) for run in runs),
            "pss_mib": spread(sum(run["pss_kib"].values()) / 1024 for run in runs),
            "by_name": {name: (spread(run["cpu_percent"].get(name, 0) for run in runs), spread(run["pss_kib"].get(name, 0) / 1024 for run in runs)) for name in names},
        })  # fmt: skip
    return {"figures": figures, "seconds": raw["seconds"]}


def draw(studied, out):
    words = lambda figure, digits: f"{figure.median:.{digits}f} ({figure.min:.{digits}f} to {figure.max:.{digits}f})"
    out.say(
        f"Sums over all processes of the agent, in {studied['seconds']:g} s in which no container works. CPU in percent of one CPU. "
        "Medians (smallest to largest)."
    )
    rows = [[one["containers"], one["mode"], words(one["cpu"], 3), words(one["pss_mib"], 1)] for one in studied["figures"]]
    out.table(["containers", "mode", "CPU, %", "PSS, MiB"], rows)
    out.say("The same by process:")
    rows = [
        [one["containers"], one["mode"], name, words(cpu, 3), words(pss, 1)]
        for one in studied["figures"]
        for name, (cpu, pss) in one["by_name"].items()
    ]
    out.table(["containers", "mode", "process", "CPU, %", "PSS, MiB"], rows)
