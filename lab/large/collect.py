"""Figures 2, 6, 7 and 8: how many threads of HotSpot collect, and what that costs."""

import itertools

import gclog
from stage import Broken, load, said, spread, table, text

TITLES = {
    2: "Figure 2a: GC threads under a quota of half the machine",
    6: "Figure 6: GC threads in containers with equal shares",
    7: "Figure 7: a mask of two CPUs, or no mask and a view",
    8: "Figure 8: one program among nine neighbours that end one after another",
}
# Threads of the program itself, as many as DaCapo has on a machine of so many CPUs.
THREADS = 16
# Compiling threads of each machine, under every arm: GC threads are what is compared.
COMPILERS = 4
# Heap in MiB (three times the least in which the program ends), parts before the measurement, parts of it.
PROGRAMS = {
    "h2": (48, 100, 2400),
    "jython": (63, 20, 150),
    "lusearch": (16, 40, 140),
    "sunflow": (16, 1, 4),
    "xalan": (36, 40, 250),
    "trees": (400, 200, 4000),
}
# Shares of the time of figure 8's program at which its neighbours end, in milliseconds after the start.
ENDS_MS = [400, 800, 1200, 1600, 2000, 2400, 2800, 3200, 3600]
BUSY_THREADS = 4
PATIENCE_S = 25

VANILLA = ["-XX:-UseContainerSupport", "-XX:-UseDynamicNumberOfGCThreads"]
DYNAMIC = ["-XX:-UseContainerSupport"]


def most_threads(cpus):
    """HotSpot's own count of GC threads (`WorkerPolicy::parallel_worker_threads`)."""
    return cpus if cpus <= 8 else 8 + (cpus - 8) * 5 // 8


def arms(figure, cpus):
    """Name: (options of HotSpot, whether it has a view and the agent for HotSpot, flags of `elbowroom run`)."""
    most, part = most_threads(cpus), max(1, cpus // 5)
    adaptive = ([f"-XX:ParallelGCThreads={most}"], True, [])
    all_of = {
        "vanilla": (VANILLA, False, []),
        "limits": (["-XX:-UseDynamicNumberOfGCThreads"], False, []),
        "dynamic": (DYNAMIC, False, []),
        "stock": ([], False, []),
        "hand": ([*DYNAMIC, f"-XX:ParallelGCThreads={part}"], False, []),
        "mask": ([], False, ["mask"]),
        "shares": ([f"-XX:ActiveProcessorCount={-(-cpus // 10)}"], False, []),
        "adaptive": adaptive,
        "shipped": ([], True, []),
    }
    wanted = {
        2: ["vanilla", "limits", "stock", "hand", "adaptive", "shipped"],
        6: ["vanilla", "dynamic", "adaptive", "shipped"],
        7: ["mask", "adaptive"],
        8: ["vanilla", "dynamic", "shares", "adaptive", "shipped"],
    }
    return {name: all_of[name] for name in wanted[figure]}


def explain(figure, cpus):
    most, part = most_threads(cpus), max(1, cpus // 5)
    words = {
        "vanilla": f"no look at limits, always all {most} GC threads",
        "limits": "HotSpot's container support, always all GC threads that it makes for the quota, as JDK 9 had it",
        "dynamic": f"no look at limits, HotSpot chooses among {most} at each collection; what the JDK does as it ships where there is no quota",
        "stock": "the JDK as it ships: container support, and HotSpot chooses among its threads",
        "hand": f"{part} GC threads, by hand",
        "mask": "the JDK as it ships with two CPUs of its own for each container",
        "shares": f"`-XX:ActiveProcessorCount={-(-cpus // 10)}`: the tenth part of {cpus} CPUs, as JDK 10 had it from shares",
        "adaptive": f"`elbowroom run --java`, and {most} GC threads to choose from (`-XX:ParallelGCThreads`), as in the paper",
        "shipped": "`elbowroom run --java` alone: HotSpot makes as many GC threads as its view has CPUs when it starts",
    }
    return "; ".join(f"*{name}*: {words[name]}" for name in arms(figure, cpus))


def plan(figure, cpus, tiny):
    """(program, containers, arm), those to be compared side by side."""
    some = {2: ["lusearch", "xalan"], 6: list(PROGRAMS)[:5], 7: ["lusearch", "xalan"], 8: ["sunflow", "trees"]}[figure]
    counts = {7: sorted({2, min(5, cpus // 2), cpus // 2}), 8: [1]}.get(figure, [5])
    if tiny:
        some, counts = some[-1:], [min(2, count) for count in counts[:1]]
    return [[(program, count, arm) for arm in arms(figure, cpus)] for program in some for count in counts]


def start(stage, kit, cpus, index, program, options, view, flags, scale):
    heap, warm, amount = PROGRAMS[program]
    if "mask" in flags:
        first = 2 * index % cpus
        flags = ["--cpuset", f"{first}-{min(first + 1, cpus - 1)}"]
    log = stage.dir / f"gc-{index}.log"
    log.unlink(missing_ok=True)
    command = [kit / "jdk/bin/java", "-XX:+UseParallelGC", f"-XX:CICompilerCount={COMPILERS}", "-XX:-UsePerfData", *options]
    command += [f"-Xms{heap}m", f"-Xmx{heap}m", gclog.OPTION.format(log), "-cp", classes(kit), "Programs", program, THREADS]
    command += [max(1, int(warm * scale)), max(1, int(amount * scale)), stage.dir / "index"]
    return stage.start(command, [*flags, *(["--java"] if view else [])], view)


def classes(kit):
    return ":".join(str(path) for path in [kit / "classes", *sorted((kit / "lib").glob("*.jar"))])


def prepare(stage, kit):
    """The index that lusearch asks, and the archive of classes that a JDK has."""
    dump = stage.start([kit / "jdk/bin/java", "-Xshare:dump"])
    index = stage.start([kit / "jdk/bin/java", "-cp", classes(kit), "Programs", "index", stage.dir / "index"])
    stage.wait([index, dump], 60)
    if index.status != 0:
        raise Broken(f"no index: {index.complaint()[-300:]}")


def tell(stage, kit, figure, cpus, program, count, arm, scale):
    options, view, flags = arms(figure, cpus)[arm]
    if figure == 2:
        flags = [*flags, "--cpus", str(cpus / 2)]
    scale = scale * 2 if figure == 8 else scale
    programs = [start(stage, kit, cpus, i, program, options, view, flags, scale) for i in range(count)]
    neighbours = []
    if figure == 8:
        neighbours = [stage.start([kit / "bin/busy", BUSY_THREADS, ms]) for ms in ENDS_MS]
    stage.ready(programs + neighbours, 30)
    stage.go(programs + neighbours)
    stage.wait(programs, PATIENCE_S)
    stage.wait(neighbours, 10)
    return {"program": program, "containers": count, "arm": arm, "load": load(), "machines": [report(stage, i, p) for i, p in enumerate(programs)]}


def report(stage, index, program):
    began = program.line("start")
    began = int(began) if began else 0
    pauses = gclog.pauses(text(stage.dir / f"gc-{index}.log"), began)
    done = program.line("done")
    changes, before = [], None
    for at, _, threads, there in pauses:
        if threads is not None and threads != before:
            changes.append([at - began, threads, there])
            before = threads
    complaint = program.complaint()
    outcome = "done" if done else "cut off" if program.cut_off else "out of heap" if "OutOfMemory" in complaint else "failed"
    return {
        "outcome": outcome,
        "total_ms": int(done) if done else None,
        "gc_ms": round(sum(pause[1] for pause in pauses), 1),
        "pauses": len(pauses),
        "cpu_s": program.cpu_s,
        "threads": changes,
        **({} if done else {"complaint": complaint[-400:]}),
    }


def record(stage, kit, figure, cpus, clock, keep, scale=1.0, tiny=False):
    """Rounds of all arms, in an order that rotates, until the time is over; `keep` writes what there is."""
    raw = {"figure": figure, "cpus": cpus, "threads": THREADS, "compilers": COMPILERS, "scale": scale, "arms": [], "broken": []}
    took = {}
    for number in itertools.count():
        for group in plan(figure, cpus, tiny):
            turn = number % len(group)
            for program, count, arm in group[turn:] + group[:turn]:
                key = program, count
                if clock.left() < took.get(key, max(took.values(), default=6)) * 1.15:
                    keep(raw)
                    return raw
                with clock.timed(took, key):
                    try:
                        raw["arms"].append({"round": number, **tell(stage, kit, figure, cpus, program, count, arm, scale)})
                    except Broken as error:
                        raw["broken"].append(f"{program}, {count}, {arm}: {error}")
            keep(raw)
        if tiny:
            return raw


def mean(arm, of):
    values = [of(machine) for machine in arm["machines"]]
    return sum(values) / len(values)


def total_s(arm):
    """A machine that did not end counts with the patience that was had with it."""
    return mean(arm, lambda machine: machine["total_ms"] / 1e3 if machine["total_ms"] is not None else PATIENCE_S)


def gc_s(arm):
    return mean(arm, lambda machine: machine["gc_ms"] / 1e3)


def study(raw):
    """Rows of (program, containers, arm, runs, time, gc, by the first arm, and that of GC, ...)."""
    base = next(iter(arms(raw["figure"], raw["cpus"])))
    found = {}
    for arm in raw["arms"]:
        found.setdefault((arm["program"], arm["containers"]), {}).setdefault(arm["arm"], []).append(arm)
    rows = []
    for (program, count), by_arm in found.items():
        for name in arms(raw["figure"], raw["cpus"]):
            runs = by_arm.get(name, [])
            if not runs:
                continue
            bases = {arm["round"]: arm for arm in by_arm.get(base, [])}
            both = [(arm, bases[arm["round"]]) for arm in runs if arm["round"] in bases]
            machines = [machine for arm in runs for machine in arm["machines"]]
            used = [n for machine in machines for _, n, _ in machine["threads"]]
            there = {n for machine in machines for _, _, n in machine["threads"]}
            rows.append(
                {
                    "program": program,
                    "containers": count,
                    "arm": name,
                    "runs": len(runs),
                    "time": [total_s(arm) for arm in runs],
                    "gc": [gc_s(arm) for arm in runs],
                    "each": [machine["total_ms"] / 1e3 for machine in machines if machine["total_ms"] is not None],
                    "part": [total_s(arm) / total_s(other) for arm, other in both],
                    "gc_part": [gc_s(arm) / gc_s(other) for arm, other in both if gc_s(other) > 0],
                    "pauses": [mean(arm, lambda machine: machine["pauses"]) for arm in runs],
                    "cpu": [mean(arm, lambda machine: machine["cpu_s"]) for arm in runs],
                    "used": (min(used), max(used)) if used else None,
                    "there": (min(there), max(there)) if there else None,
                    "lost": sum(machine["total_ms"] is None for machine in machines),
                }
            )
    return rows


def between(pair):
    return "-" if pair is None else str(pair[0]) if pair[0] == pair[1] else f"{pair[0]} to {pair[1]}"


def summary(raw):
    figure, cpus = raw["figure"], raw["cpus"]
    base = next(iter(arms(figure, cpus)))
    heaps = ", ".join(f"{name} {PROGRAMS[name][0]} MiB" for name in {arm["program"]: 0 for arm in raw["arms"]})
    scene = {
        2: f"Five containers, each with a quota of {cpus / 2:g} CPUs and an equal share, run the same program at the same time.",
        6: "Five containers with equal shares run the same program at the same time.",
        7: "Containers run the same program at the same time: with a mask of two CPUs each, no two the same, or without a mask and with a view.",
        8: f"One container among nine whose {BUSY_THREADS} threads each look for primes and which end {ENDS_MS[0] / 1e3:g} to {ENDS_MS[-1] / 1e3:g} s after the start.",
    }[figure]
    out = [
        f"## {TITLES[figure]}",
        f"{scene} HotSpot 17, ParallelGC, {raw['threads']} threads of the program and {raw['compilers']} that compile in each "
        f"machine under every arm; heaps: {heaps}. {explain(figure, cpus)}. Elbowroom's agent runs under every arm.",
    ]
    head = ["program, containers, arm", "runs", "time, s", "of each container, s", f"by {base}", "collecting, s", f"by {base}", "pauses"]
    head += ["GC threads used", "there are", "CPU, s"]
    rows = []
    for row in study(raw):
        lost = f"; {row['lost']} not finished" if row["lost"] else ""
        values = [said(row[name]) for name in ("time", "each", "part", "gc", "gc_part", "pauses")]
        values[0] += lost
        rows.append(
            [
                f"{row['program']}, {row['containers']}, {row['arm']}",
                row["runs"],
                *values,
                between(row["used"]),
                between(row["there"]),
                said(row["cpu"]),
            ]
        )
    out += [
        table(head, rows),
        "Medians (smallest to largest) of the mean over the containers of a run; of each container, over all of them. Ratios are within a round. "
        "Time is from the common start of "
        "all containers to the program's end, after a warm-up; collecting is all pauses in it.",
    ]
    if raw["broken"]:
        out.append("Not measured: " + "; ".join(raw["broken"]) + ".")
    return out


def draw(raw, plot, path):
    """Bars of each program's time, and of collecting; in figure 8 the GC threads of one program over time, as the paper's 8(b)."""
    rows, names = study(raw), list(arms(raw["figure"], raw["cpus"]))
    keys = list({(row["program"], row["containers"]): 0 for row in rows})
    steps = raw["figure"] == 8
    figure, axes = plot.subplots(2 + steps, 1, figsize=(9.5, 6.2 + 2.4 * steps))
    one = len({count for _, count in keys}) == 1
    for axis, value, label in [(axes[0], "time", "time (s)"), (axes[1], "gc", "collecting (s)")]:
        width = 0.8 / len(names)
        for i, name in enumerate(names):
            found = {(row["program"], row["containers"]): spread(row[value]) for row in rows if row["arm"] == name}
            at = [k + (i - (len(names) - 1) / 2) * width for k, key in enumerate(keys) if key in found]
            values = [found[key] for key in keys if key in found]
            errors = [[m - low for m, low, _ in values], [high - m for m, _, high in values]]
            axis.bar(at, [m for m, _, _ in values], width * 0.92, yerr=errors, label=name, color=plot.COLORS[name], error_kw={"lw": 0.8})
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.set_xticks(range(len(keys)), [program if one else f"{program}, {count}" for program, count in keys])
    if steps:
        firsts = {arm["arm"]: arm["machines"][0] for arm in reversed(raw["arms"]) if arm["program"] == keys[0][0]}
        for name in names:
            if name in firsts:
                end = firsts[name]["total_ms"] or 0
                points = [(at, threads) for at, threads, _ in firsts[name]["threads"]]
                points += [(end, points[-1][1])] if points else []
                axes[2].step([at / 1e3 for at, _ in points], [n for _, n in points], where="post", color=plot.COLORS[name], label=name)
        for at in ENDS_MS:
            axes[2].axvline(at / 1e3, color="0.85", lw=0.8, zorder=0)
        axes[2].set(ylabel=f"GC threads, {keys[0][0]}", xlabel="time (s); grey: a neighbour ends", ylim=(0, None))
    axes[0].set_title(TITLES[raw["figure"]], pad=22, fontsize=11)
    axes[0].legend(ncols=len(names), fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 0.98))
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plot.close(figure)
