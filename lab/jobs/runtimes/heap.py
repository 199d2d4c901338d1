"""Figures 11 and 12: heaps that may grow beyond what there is."""

import subprocess
import sys
import threading
import time
from pathlib import Path

from lab.jobs.runtimes import collect, gclog, place as places
from lab.jobs.runtimes.rounds import Clock, broken, chosen, measure, said, unique
from lab.jobs.runtimes.stage import Broken
from lab.sysinfo import field, load

TITLES = {11: "Figure 11: heaps that may grow beyond the limit", 12: "Figure 12: heaps that together are more than the machine"}
ARMS = {11: ["vanilla", "stock", "hand", "elastic"], 12: ["elastic", "vanilla", "hand", "stock"]}
# Parts of the machine in figure 12: what lives in five containers (20 of 128 GB each), the limits of each (30 and 15 GB), and three heaps.
# These are the largest, the one at the start, and the largest that fits five times.
LIVE, HARD, SOFT, MOST, START, FITS = 0.78, 30 / 128, 15 / 128, 28 / 128, 4 / 128, 23 / 128
# Figure 11: the program that does not fit makes trees of which this part of the limit lives; the others must not be harmed.
TREES = 0.35
CROWDS = (1, 5)


def memory_mib():
    return int(field("/proc/meminfo", "MemTotal").split()[0]) >> 10


def swap_mib():
    return int(field("/proc/meminfo", "SwapTotal").split()[0]) >> 10


def sizes(figure, machine, hard):
    """In MiB."""
    part = lambda of: int(machine * of)
    if figure == 11:
        return {
            "machine": None,
            "hard": hard,
            "soft": None,
            "most": machine // 4,
            "start": hard // 2,
            "live": int(hard * TREES),
            "hand": hard * 3 // 4,
        }
    return {
        "machine": machine,
        "hard": part(HARD),
        "soft": part(SOFT),
        "most": part(MOST),
        "start": part(START),
        "live": part(LIVE / 5),
        "hand": part(FITS),
    }


def heap_options(arm, mib):
    """HotSpot's, without the agent."""
    first = [f"-Xms{mib['start']}m"]
    if arm == "stock":
        # Its own part of the limit, which may be less than what the others start with.
        return []
    if arm == "hand":
        # In figure 12 an eighth of it is young: what fits is old.
        return [*first, f"-Xmx{mib['hand']}m", *(["-XX:NewRatio=8"] if mib["soft"] else [])]
    return [*([] if arm == "elastic" else ["-XX:-UseContainerSupport"]), *first, f"-Xmx{mib['most']}m"]


def groups(raw, options, real):
    arms = chosen(options.arms, ARMS[raw["figure"]], "arm")
    if raw["figure"] == 11:
        there = ["trees", *(places.REAL if real else []), "xslt"]
        return [[{"program": name, "containers": 1, "arm": arm} for arm in arms] for name in chosen(options.programs, there, "program")]
    crowds = [count for count in CROWDS if not options.crowds or count in options.crowds]
    return [
        [{"program": "grow", "containers": count, "arm": arm} for arm in arms if count > 1 or arm in ("vanilla", "elastic")]
        for count in crowds
    ]


def record(lab, stage, options, keep, raw=None):
    figure, place = options.figure, stage.place
    # A cgroup stands for a machine that is not to be filled.
    group = (options.machine or None) if figure == 12 else None
    raw = raw or {
        "figure": figure,
        "collector": options.collector,
        "cpus": place.cpus,
        "java": places.version(place.java),
        "mib": sizes(figure, group or memory_mib(), options.hard),
        "group": bool(group),
        "pace": "as fast as it can, and goes on for two seconds; it asks to be killed first when memory is short",
        "swap_mib": swap_mib(),
        "compilers": 2,
        "threads": max(2, place.cpus),
        "scale": options.size / 100 * place.cpus / collect.CPUS,
        "patience_s": options.patience or 90,
        "touch_gib_s": None,
        "arms": [],
        "broken": [],
    }
    stage.machine(group)
    clock = Clock(options.seconds)
    if options.touch and not raw["touch_gib_s"]:
        raw["touch_gib_s"] = touch(int(raw["mib"]["machine"] * 0.9), place.cpus, max(5, clock.left() * 0.3))
        keep(raw)
    if figure == 11 and place.real:
        collect.prepare(stage)
    plan = groups(raw, options, place.real)
    left = lambda: max(10, min(raw["patience_s"], clock.left() - 5))
    return measure(raw, plan, lambda **key: tell(stage, raw, left(), **key), keep, options.runs, clock)


def program_words(stage, raw, program):
    mib = raw["mib"]
    if program == "grow":
        # As fast as it can, which is what a million a second is; held for two seconds.
        return ["Runtimes", "grow", mib["live"], 1_000_000, 2000]
    if program == "trees":
        # Twenty times the limit, of which a part is three quarters of a MiB.
        return ["Runtimes", "trees", raw["threads"], 0, int(27 * mib["hard"] * raw["scale"] * collect.CPUS / raw["cpus"]), mib["live"]]
    _, warm, amount, *_ = collect.PROGRAMS[program]
    parts = [max(1, int(n * raw["scale"] * 4)) for n in (warm, amount)]
    return ["Programs" if program in places.REAL else "Runtimes", program, raw["threads"], *parts, stage.dir / "index"]


def tell(stage, raw, patience, program, containers, arm):
    mib, elastic = raw["mib"], arm == "elastic"
    agent = [f"-javaagent:{places.AGENT}=jmx=0"] if elastic else []
    flags = ["--memory", f"{mib['hard']}MiB", *(["--memory-reservation", f"{mib['soft']}MiB"] if mib["soft"] else [])]
    programs = []
    for i in range(containers):
        log = stage.dir / f"gc-{i}.log"
        log.unlink(missing_ok=True)
        # The same GC threads under every arm: those are other figures'.
        words = [*collect.java(stage.place, raw, log), f"-XX:ParallelGCThreads={max(2, raw['cpus'] // 5)}", *heap_options(arm, mib), *agent]
        programs.append(stage.start([*words, *program_words(stage, raw, program)], flags, elastic, oom="1000"))
    try:
        stage.ready(programs)
    except Broken:
        # A program that cannot even begin, as in the part of a limit that is too small, is a result.
        if not any("OutOfMemoryError" in one.complaint() for one in programs):
            raise
    began = time.monotonic()
    stage.go([one for one in programs if one in stage.running])
    with Watch(stage) as watch:
        stage.wait([one for one in programs if one in stage.running], patience, look=True)
    found = {
        "seconds": round(time.monotonic() - began, 1),
        "patience_s": round(patience),
        "load": load(),
        "machines": [report(stage, i, one) for i, one in enumerate(programs)],
    }
    return {**found, **({"free_mib": watch.samples} if raw["figure"] == 12 else {})}


class Watch:
    """Records the machine's free memory, twice a second, while a `with` lasts."""

    def __init__(self, stage):
        self.stage, self.samples, self.over = stage, [], threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)

    def look(self):
        began = time.monotonic()
        while not self.over.wait(0.5):
            self.samples.append([round(time.monotonic() - began, 1), self.stage.free_mib()])

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def report(stage, index, program):
    pauses = gclog.of_file(stage.dir / f"gc-{index}.log")
    samples = [sample for sample in map(heap_sample, program.said.splitlines()) if sample]
    step = len(samples) // 60 + 1
    return {
        **program.report(),
        "gc_ms": gclog.total_ms(pauses),
        "pauses": len(pauses),
        "peak_mib": program.peak_mib,
        "kills": program.kills,
        # No more points than a figure can show, and the end.
        "heap": [*samples[::step], *samples[-1:]],
    }


def heap_sample(line):
    """`at 1200 34 60 128`: milliseconds, and MiB used, committed and of VirtualMax."""
    words = line.split(" ")
    return list(map(int, words[1:])) if words[0] == "at" and len(words) == 5 and all(map(str.isdigit, words[1:])) else None


def touch(mib, processes, patience):
    """Touches memory once, in `processes` processes, so that a virtual machine's host gives it now and not under the first arm. GiB/s."""
    share = mib // processes
    script = f"import mmap\nm=mmap.mmap(-1,{share}<<20)\nfor i in range(0,{share}<<20,4096): m[i]=1\n"
    first = lambda: Path("/proc/self/oom_score_adj").write_text("1000")
    began = time.monotonic()
    running = [subprocess.Popen([sys.executable, "-c", script], preexec_fn=first) for _ in range(processes)]
    for process in running:
        try:
            process.wait(max(0.1, began + patience - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return round(mib / 1024 / (time.monotonic() - began), 2)


def unit(raw):
    """(name, MiB in it) of what memory is said in."""
    return ("GiB", 1024) if (raw["mib"]["machine"] or 0) >= 16 << 10 else ("MiB", 1)


def study(raw):
    """A row of each program, number of containers and arm."""
    rows, size = [], unit(raw)[1]
    for key in unique((arm["program"], arm["containers"], arm["arm"]) for arm in raw["arms"]):
        runs = [arm for arm in raw["arms"] if (arm["program"], arm["containers"], arm["arm"]) == key]
        machines = [machine for arm in runs for machine in arm["machines"]]
        finished = [machine for machine in machines if machine["outcome"] == "finished"]
        ends = [machine["outcome"] for machine in machines]
        rows.append({
            **dict(zip(("program", "containers", "arm"), key)),
            "runs": len(runs),
            "ends": {end: ends.count(end) for end in sorted(set(ends), key=lambda end: (end != "finished", end))},
            "time": [machine["total_ms"] / 1e3 for machine in finished],
            "gc": [machine["gc_ms"] / 1e3 for machine in finished],
            "committed": [max(sample[2] for sample in machine["heap"]) / size for machine in machines if machine["heap"]],
            "peak": [machine["peak_mib"] / size for machine in machines],
            "free": min((sample[1] / size for arm in runs for sample in arm.get("free_mib", [])), default=None),
            "patience": max(arm.get("patience_s", raw["patience_s"]) for arm in runs),
        })  # fmt: skip
    return rows


def explain(raw):
    mib, (name, size) = raw["mib"], unit(raw)
    amount = lambda what: f"{mib[what] / size:.3g} {name}" if size > 1 else f"{mib[what]} {name}"
    swap = f"there are {raw['swap_mib']} MiB of swap" if raw["swap_mib"] else "there is no swap"
    machine = f"HotSpot {raw['java']}, {collect.COLLECTORS[raw['collector']]}."
    arms = unique(arm["arm"] for arm in raw["arms"])
    if raw["figure"] == 11:
        words = {
            "vanilla": f"`-Xmx` of {amount('most')}, no look at the limit",
            "stock": "the JDK as it ships, whose heap is at most a quarter of the limit (half of one below 512 MiB)",
            "hand": "`-Xmx` of three quarters of the limit",
            "elastic": "vanilla's `-Xmx`, a view and the agent for HotSpot",
        }
        scene = (
            f"A container with a hard limit of {amount('hard')} and no soft one; {swap}. `-Xms` of {amount('start')}. Of the trees of "
            f"`trees` {amount('live')} live; the other programs "
            "need less than the limit."
        )
    else:
        words = {
            "vanilla": f"`-Xmx` of {amount('most')}, no look at limits",
            "stock": "the JDK as it ships, whose heap is at most a quarter of the hard limit",
            "hand": f"`-Xmx` of {amount('hand')}" + (" and `-XX:NewRatio=8`" if mib["soft"] else ""),
            "elastic": "vanilla's `-Xmx`, a view and the agent for HotSpot (`elbowroom-agent.jar=jmx=0`)",
        }
        total = 5 * mib["live"] / mib["machine"] * 100
        host = (
            f"a cgroup with a limit of {amount('machine')}, which stands for the machine"
            if raw["group"]
            else f"a machine that counts as {amount('machine')}"
        )
        alone = f" ({mib['live_alone']} MiB in one alone)" if "live_alone" in mib else ""
        scene = (
            f"Containers with a hard limit of {amount('hard')} and a soft limit (`memory.low` on cgroup v2) of {amount('soft')}, in "
            f"{host}; {swap}. "
            f"The paper's micro-benchmark makes 1 MiB and lets go of half of it until {amount('live')} live in each{alone}, five are "
            f"{total:.0f} % of the machine, "
            f"{raw['pace']}."
        )
    return " ".join([scene.strip(), machine, "; ".join(f"*{arm}*: {words[arm]}" for arm in words if arm in arms) + "."])


def draw(raw, rows, out):
    from lab.jobs.runtimes import pictures

    name = unit(raw)[0]
    out.say(f"## {TITLES[raw['figure']]}")
    out.say(explain(raw))
    head = [
        "program, containers, arm",
        "runs",
        "programs",
        "time, s",
        "collecting, s",
        f"most committed, {name}",
        f"most of a container, {name}",
    ]
    table = []
    for row in rows:
        ends = ", ".join(f"{count} {end}" for end, count in row["ends"].items())
        values = [said(row[value]) for value in ("time", "gc", "committed", "peak")]
        free = "-" if row["free"] is None else f"{row['free']:.3g}"
        table.append([f"{row['program']}, {row['containers']}, {row['arm']}", row["runs"], ends, *values, free, f"{row['patience']:g}"])
    out.table([*head, f"least free, {name}", "waited for, s"], table)
    out.say("Medians (smallest to largest) of the time and of all pauses are over the programs that finished.")
    if raw.get("touch_gib_s"):
        out.say(
            f"Before the first arm 90 % of memory was touched once, at {raw['touch_gib_s']} GiB/s, so that the first arm does not pay for "
            "what the virtual machine had "
            "never used."
        )
    for line in broken(raw):
        out.say(line)
    if raw["figure"] == 11:
        pictures.beyond(rows, TITLES[11], out)
    else:
        pictures.heaps(raw, TITLES[12], unit(raw), out)
