"""Figures 2, 6, 7, 8 and 9: how many threads of HotSpot collect, and what that costs."""

from lab.jobs.runtimes import gclog, place as places
from lab.jobs.runtimes.rounds import Clock, between, broken, chosen, mean, measure, said, unique, within
from lab.jobs.runtimes.stage import Broken
from lab.job import Refused
from lab.sysinfo import load

TITLES = {
    2: "Figure 2a: GC threads under a quota of half the machine",
    6: "Figure 6: GC threads in containers with equal shares",
    7: "Figure 7: a mask of two CPUs, or no mask and a view",
    8: "Figure 8: one program among neighbours that end one after another",
    9: "Figure 9: GC threads and a large heap",
}
# Work is scaled from its size for a machine with this many CPUs, where five containers take a second or two.
CPUS = 16
COLLECTORS = {"parallel": "ParallelGC", "g1": "G1GC"}
# Heap in MiB (three times the least in which the program ends), parts before the measurement, parts of it, further arguments.
PROGRAMS = {
    "h2": (90, 40, 800),
    "jython": (63, 20, 150),
    "lusearch": (16, 40, 140),
    "sunflow": (16, 1, 4),
    "xalan": (36, 40, 250),
    "trees": (400, 200, 4000, 78),
    "xslt": (64, 40, 500),
    "graph": (768, 100, 48000, 240),
}
WANTED = {
    2: ["lusearch", "xalan", "h2", "trees"],
    6: ["h2", "jython", "lusearch", "sunflow", "xalan", "trees", "xslt"],
    7: ["lusearch", "xalan", "trees"],
    8: ["sunflow", "trees"],
    9: ["graph"],
}
ARMS = {
    2: ["vanilla", "dynamic", "limits", "stock", "hand", "adaptive", "shipped"],
    6: ["vanilla", "dynamic", "stock", "shares", "hand", "adaptive", "shipped"],
    7: ["mask", "adaptive"],
    8: ["vanilla", "dynamic", "stock", "shares", "adaptive", "shipped"],
    9: ["vanilla", "stock", "adaptive"],
}
# Figure 8: containers, and the time from the end of one neighbour to the next.
CROWD, STEP_S = 10, 1
VANILLA, DYNAMIC = ["-XX:-UseContainerSupport", "-XX:-UseDynamicNumberOfGCThreads"], ["-XX:-UseContainerSupport"]


def settings(raw):
    """Name: (options of HotSpot, whether it has a view and the agent for HotSpot, what that is)."""
    most, part, crowd = raw["most"], raw["part"], CROWD if raw["figure"] == 8 else raw["containers"]
    share = -(-raw["cpus"] // crowd)
    concurrent = [f"-XX:ConcGCThreads={(most + 2) // 4}"] if raw["collector"] == "g1" else []
    fixed = [f"-XX:ParallelGCThreads={most}", *concurrent]
    by_hand = {arm["arm"]: ([], False, "GC threads by hand") for arm in raw["arms"] if arm["arm"].startswith("hand ")}
    return {
        "vanilla": (VANILLA, False, f"no look at limits, always all {most} GC threads"),
        "limits": (
            ["-XX:-UseDynamicNumberOfGCThreads"],
            False,
            "container support, always all GC threads that HotSpot makes for the quota, as JDK 9 had it",
        ),
        "dynamic": (DYNAMIC, False, f"no look at limits, HotSpot chooses among {most} at each collection"),
        "stock": (
            [],
            False,
            "the JDK as it ships: container support, and HotSpot chooses among the threads that it makes for the quota, if there is one",
        ),
        "hand": ([*DYNAMIC, f"-XX:ParallelGCThreads={part}"], False, f"{part} GC threads, by hand"),
        **by_hand,
        "mask": ([], False, "the JDK as it ships with two CPUs of its own for each container"),
        "shares": (
            [f"-XX:ActiveProcessorCount={share}"],
            False,
            f"`-XX:ActiveProcessorCount={share}`, the share of one of {crowd}, as JDK 10 had it",
        ),
        "static limit": ([], False, "`-XX:ActiveProcessorCount=1`, the share of one of five containers, rounded up"),
        "adaptive": (
            fixed,
            True,
            f"{raw.get('adaptive', '`elbowroom run --java`')}, and {most} GC threads to choose from, as in the paper",
        ),
        "shipped": ([], True, "`elbowroom run --java` alone"),
    }


def groups(raw, options, real):
    """The arms of each program side by side, and in figure 7 of each number of containers."""
    figure, cpus = raw["figure"], raw["cpus"]
    if figure == 7 and cpus < 4:
        raise Refused(f"figure 7 needs masks of two CPUs for two containers, and this machine has {cpus} CPUs")
    there = [name for name in WANTED[figure] if real or name not in places.REAL]
    counts = {7: sorted({2, min(5, cpus // 2), min(10, cpus // 2)}), 8: [1]}.get(figure, [options.containers])
    arms = chosen(options.arms, ARMS[figure], "arm")
    return [
        [{"program": program, "containers": count, "arm": arm} for arm in arms]
        for program in chosen(options.programs, there, "program")
        for count in counts
    ]


def record(lab, stage, options, keep, raw=None):
    """Rounds of all arms, in an order that rotates, until there are as many as were asked for or the time is over."""
    place = stage.place
    raw = raw or {
        "figure": options.figure,
        "collector": options.collector,
        "cpus": place.cpus,
        "believed": place.believed,
        "most": places.gc_threads(place.believed),
        "containers": options.containers,
        "part": max(1, place.cpus // options.containers),
        "threads": max(2, place.believed),
        "compilers": max(2, min(4, place.cpus // 4)),
        "scale": options.size / 100 * place.cpus / CPUS,
        "patience_s": options.patience or 60,
        "java": places.version(place.java),
        "quota": place.cpus / 2 if options.figure == 2 else None,
        "ends_s": [(i + 1) * STEP_S for i in range(CROWD - 1)] if options.figure == 8 else [],
        "heaps": {name: PROGRAMS[name][0] for name in WANTED[options.figure]},
        "arms": [],
        "broken": [],
    }
    plan = groups(raw, options, place.real)
    if place.real:
        prepare(stage)
    return measure(raw, plan, lambda **key: tell(stage, raw, **key), keep, options.runs, Clock(options.seconds))


def prepare(stage):
    """The index that lusearch asks."""
    index = stage.start([stage.place.java, "-cp", stage.place.classes, "Programs", "index", stage.dir / "index"])
    stage.wait([index], 120)
    if index.status != 0:
        raise Broken(f"no index: {index.complaint()[-300:]}")


def command(stage, raw, index, name, options, scale):
    heap, warm, amount, *more = PROGRAMS[name]
    log = stage.dir / f"gc-{index}.log"
    log.unlink(missing_ok=True)
    words = [*java(stage.place, raw, log), *options, f"-Xms{heap}m", f"-Xmx{heap}m"]
    sizes = [max(1, int(parts * scale)) for parts in (warm, amount)]
    return [*words, "Programs" if name in places.REAL else "Runtimes", name, raw["threads"], *sizes, *(more or [stage.dir / "index"])]


def java(place, raw, log):
    """As many threads compile under every arm: GC threads are what is compared."""
    return [
        place.java,
        f"-XX:+Use{COLLECTORS[raw['collector']]}",
        f"-XX:CICompilerCount={raw['compilers']}",
        "-XX:-UsePerfData",
        gclog.OPTION.format(log),
        "-cp",
        place.classes,
    ]


def tell(stage, raw, program, containers, arm):
    cpus, ends_s = raw["cpus"], raw["ends_s"]
    options, view, _ = settings(raw)[arm]
    flags = ["--java"] if view else []
    flags += ["--cpus", f"{raw['quota']:g}"] if raw["quota"] else []
    programs = []
    for i in range(containers):
        mask = ["--cpuset", f"{2 * i % cpus}-{min(2 * i % cpus + 1, cpus - 1)}"] if arm == "mask" else []
        # The program of figure 8 goes on until the last neighbour has ended.
        scale = raw["scale"] * (STEP_S * 5 if ends_s else 1)
        programs.append(stage.start(command(stage, raw, i, program, options, scale), [*flags, *mask], view))
    neighbours = [stage.start(stage.place.neighbour(i, max(1, cpus // 4), end)) for i, end in enumerate(raw["ends_s"])]
    stage.ready(programs + neighbours)
    stage.go(programs + neighbours)
    stage.wait(programs, raw["patience_s"])
    stage.wait(neighbours, len(ends_s) * STEP_S + 20)
    return {"load": load(), "machines": [report(stage, i, machine) for i, machine in enumerate(programs)]}


def report(stage, index, program):
    began = int(program.line("start") or 0)
    pauses = gclog.of_file(stage.dir / f"gc-{index}.log", began)
    changes = gclog.changes(pauses, began)
    used = [threads for _, _, threads, _ in pauses if threads is not None]
    return {
        **program.report(),
        "gc_ms": gclog.total_ms(pauses),
        "pauses": len(pauses),
        "used": [min(used), max(used)] if used else None,
        # No more points than a figure can show: raw numbers are kept for years.
        "threads": changes[:: len(changes) // 40 + 1],
    }


def total_s(raw):
    """The mean over containers; a machine that did not end counts with its time limit."""
    return lambda arm: mean(
        machine["total_ms"] / 1e3 if machine["total_ms"] is not None else raw["patience_s"] for machine in arm["machines"]
    )


def gc_s(arm):
    return mean(machine["gc_ms"] / 1e3 for machine in arm["machines"])


def ends(values):
    values = list(values)
    return (min(values), max(values)) if values else None


def study(raw):
    """A row of each program, number of containers and arm."""
    rows = []
    total, base = (
        total_s(raw),
        raw["arms"][0:1] and next(name for name in ARMS[raw["figure"]] if any(arm["arm"] == name for arm in raw["arms"])),
    )
    for program, count in unique((arm["program"], arm["containers"]) for arm in raw["arms"]):
        mine = [arm for arm in raw["arms"] if (arm["program"], arm["containers"]) == (program, count)]
        for name in [name for name in settings(raw) if any(arm["arm"] == name for arm in mine)]:
            runs, bases = ([arm for arm in mine if arm["arm"] == wanted] for wanted in (name, base))
            machines = [machine for arm in runs for machine in arm["machines"]]
            changes = [change for machine in machines for change in machine["threads"]]
            rows.append({
                "program": program,
                "containers": count,
                "arm": name,
                "base": base,
                "runs": len(runs),
                "time": list(map(total, runs)),
                "gc": list(map(gc_s, runs)),
                "each": [machine["total_ms"] / 1e3 for machine in machines if machine["total_ms"] is not None],
                "part": within(runs, bases, total),
                "gc_part": within(runs, bases, gc_s),
                "pauses": [mean(machine["pauses"] for machine in arm["machines"]) for arm in runs],
                "cpu": [mean(machine["cpu_s"] for machine in arm["machines"]) for arm in runs],
                "used": ends([n for _, n, _ in changes] + [n for machine in machines for n in machine.get("used") or []]),
                "there": ends(there for _, _, there in changes if there is not None),
                "lost": sum(machine["total_ms"] is None for machine in machines),
                "steps": [(change[0] / 1e3, change[1]) for change in runs[0]["machines"][0]["threads"]],
            })  # fmt: skip
    return rows


def title(raw):
    return TITLES[raw["figure"]] if raw["figure"] != 2 or raw["quota"] else "Figure 2: more GC threads than CPUs"


def explain(raw):
    cpus, count = raw["cpus"], max(arm["containers"] for arm in raw["arms"])
    quota = f"a quota of {raw['quota']:g} of {cpus} CPUs" if raw["quota"] else "no quota"
    scene = {
        2: f"{count} containers, each with {quota} and an equal share, run the same program at the same time.",
        7: "Containers run the same program at the same time: with a mask of two CPUs each, or without a mask and with a view.",
        8: "One container among others with equal shares that keep all CPUs busy and end one after another.",
    }.get(raw["figure"], f"{count} containers with equal shares run the same program at the same time.")
    heaps = ", ".join(f"{name} {heap} MiB" for name, heap in raw["heaps"].items() if any(arm["program"] == name for arm in raw["arms"]))
    believed = (
        ""
        if raw["believed"] == cpus
        else f" Programs are made to believe in {raw['believed']} CPUs by a preloaded library; there are {cpus}."
    )
    known = settings(raw)
    arms = "; ".join(f"*{name}*: {known[name][2]}" for name in known if any(arm["arm"] == name for arm in raw["arms"]))
    threads = f"{raw['most'] * count / cpus:.2g}" if raw["figure"] not in (7, 8) else None
    ratio = f" {raw['most']} GC threads in {count} containers are {threads} for each CPU (the paper: 3.75)." if threads else ""
    collector = COLLECTORS[raw["collector"]]
    return (
        f"{scene}{believed}{ratio} HotSpot {raw['java']}, {collector}, {raw['threads']} threads of the program and {raw['compilers']} that "
        "compile in each "
        f"machine under every arm; heaps: {heaps}. {arms}. Elbowroom's agent runs under every arm."
    )


def draw(raw, rows, out):
    from lab.jobs.runtimes import pictures

    base = rows[0]["base"] if rows else "-"
    out.say(f"## {title(raw)}")
    out.say(explain(raw))
    head = ["program, containers, arm", "runs", "time, s", "of each container, s", f"by {base}", "collecting, s", f"by {base}", "pauses"]
    table = []
    for row in rows:
        lost = f"; {row['lost']} not finished" if row["lost"] else ""
        values = [said(row[name]) for name in ("time", "each", "part", "gc", "gc_part", "pauses")]
        values[0] += lost
        name = f"{row['program']}, {row['containers']}, {row['arm']}"
        table.append([name, row["runs"], *values, between(row["used"]), between(row["there"]), said(row["cpu"])])
    out.table([*head, "GC threads used", "there are", "CPU, s"], table)
    out.say(
        "Medians (smallest to largest) of the mean over the containers of a run; of each container, over all of them. Ratios are within a "
        "round. Time is from "
        "the common start of all containers to the program's end; collecting is all pauses in it. CPU time is the container's, its start "
        "included."
    )
    for line in broken(raw):
        out.say(line)
    pictures.collect(raw, rows, title(raw), out)
