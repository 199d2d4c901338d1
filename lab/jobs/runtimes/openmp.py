"""Figure 10: parallel regions that are wider than the room there is."""

import re

from lab.job import Refused
from lab.jobs.runtimes.rounds import Clock, between, broken, chosen, mean, measure, said, unique, within
from lab.jobs.runtimes.stage import Broken, gated
from lab.sysinfo import load

TITLE = "Figure 10: OpenMP in containers"
# NPB's programs, with the class that takes about a second on a fifth of 16 CPUs; ours in their manner, with rounds of about half a second
# of a CPU.
NPB = {"cg": "A", "ep": "A", "ft": "A", "is": "B", "lu": "W", "mg": "A"}
OURS = {"ep": 150, "cg": 1500, "mg": 200}
SCENES = ["shares", "quota", "neighbours"]
# How long neighbours are busy, in seconds.
BUSY_S = 1


def arms(scene, raw):
    """Name: (variables, whether it has a view and `--openmp`)."""
    part = raw["cpus"] / raw["containers"] if scene != "quota" else raw["quota"]
    hands = unique([int(part) or 1, -int(-part // 1)])
    every = {"static": ({}, False), "dynamic": ({"OMP_DYNAMIC": "true"}, False), "passive": ({"OMP_WAIT_POLICY": "passive"}, False)}
    every |= {f"hand {n}": ({"OMP_NUM_THREADS": str(n)}, False) for n in hands}
    every |= {f"hand {n}, passive": ({"OMP_NUM_THREADS": str(n), "OMP_WAIT_POLICY": "passive"}, False) for n in hands if n > 1}
    return every | {"adaptive": ({}, True)}


def record(lab, stage, options, keep, raw=None):
    """Rounds of all scenes, kernels and arms; the arms of one kernel in one scene side by side."""
    place = stage.place
    raw = raw or {
        "figure": 10,
        "cpus": place.cpus,
        "believed": place.believed,
        "containers": options.containers,
        "quota": options.quota or max(1, place.cpus // 4),
        "npb": NPB if place.npb else None,
        "scale": options.size / 100,
        "patience_s": options.patience or 4,
        "arms": [],
        "broken": [],
    }
    kernels = [name for name in NPB if (place.npb / f"{name}.{NPB[name]}.x").exists()] if place.npb else list(OURS)
    if not kernels:
        raise Refused(f"{place.npb} has no program of NPB such as cg.{NPB['cg']}.x: lab/large/pack builds them")
    kernels, plan = chosen(options.programs, kernels, "program"), []
    for kernel in kernels:
        for scene in chosen(options.scenes, SCENES, "scene"):
            names = chosen(options.arms, arms(scene, raw), "arm")
            plan.append([{"kernel": kernel, "scene": scene, "arm": arm} for arm in names])
    return measure(raw, plan, lambda **key: tell(stage, raw, **key), keep, options.runs, Clock(options.seconds))


def command(place, raw, kernel):
    """Told when to begin, as all others."""
    if place.npb:
        return gated([place.npb / f"{kernel}.{NPB[kernel]}.x"])
    return gated([place.kernels, kernel, max(1, int(OURS[kernel] * raw["scale"]))], at=True)


def tell(stage, raw, scene, kernel, arm):
    (variables, view), place, cpus = arms(scene, raw)[arm], stage.place, raw["cpus"]
    flags = [*(["--cpus", f"{raw['quota']:g}"] if scene == "quota" else []), *(["--openmp"] if view else [])]
    env = {"OMP_STACKSIZE": "64M", **({"LD_LIBRARY_PATH": str(place.npb)} if place.npb else {}), **variables}
    programs = [stage.start(command(place, raw, kernel), flags, view, env) for _ in range(raw["containers"] if scene == "shares" else 1)]
    others = raw["containers"] - 1 if scene == "neighbours" else 0
    neighbours = [stage.start(place.neighbour(i, cpus, BUSY_S)) for i in range(others)]
    stage.ready(programs + neighbours)
    before = load()
    stage.go(programs + neighbours)
    stage.wait(programs, raw["patience_s"] + 0.15)
    stage.wait(neighbours, BUSY_S + 20)
    reports = [report(program) for program in programs]
    widths = [width for one in reports for width in one.pop("widths", [])]
    return {"load": before, "widths": [min(widths), max(widths)] if widths else None, "machines": reports}


def report(program):
    if program.cut_off:
        return {"seconds": None, "cpu_s": program.cpu_s}
    seconds, widths, right = parse(program.said)
    if seconds is None:
        raise Broken(f"{program.name} ended with {program.status}: {program.complaint()[-200:]} {program.said[-100:]}")
    # Where the program itself says that its answer is wrong, that is what was measured.
    return {"seconds": seconds, "cpu_s": program.cpu_s, **({"widths": widths} if widths else {}), **({} if right else {"wrong": True})}


def parse(said):
    """Seconds, narrowest and widest region where a program says them, and whether it says that its answer is right."""
    if ours := re.search(r"^([\d.]+) (\d+) (\d+) \S+$", said, re.MULTILINE):
        return float(ours[1]), [int(ours[2]), int(ours[3])], True
    found = re.search(r"Time in seconds\s*=\s*([\d.]+)", said)
    right = "VERIFICATION SUCCESSFUL" in said.upper() or re.search(r"Verification\s*=\s*SUCCESSFUL", said)
    return (float(found[1]) if found else None), None, bool(right)


def seconds(raw):
    """The mean over containers; one that was not done counts with the patience, which is too little."""
    return lambda arm: mean(raw["patience_s"] if machine["seconds"] is None else machine["seconds"] for machine in arm["machines"])


def cpu_s(arm):
    return arm["cpu_s"] if "cpu_s" in arm else sum(machine["cpu_s"] for machine in arm["machines"])


def study(raw):
    """A row of each scene, kernel and arm."""
    rows, time = [], seconds(raw)
    keys = unique((arm["scene"], arm["kernel"]) for arm in raw["arms"])
    names = [name for name in unique([*arms("quota", raw), *(arm["arm"] for arm in raw["arms"])]) if name != "adaptive"]
    for scene, kernel in keys:
        runs = [arm for arm in raw["arms"] if (arm["scene"], arm["kernel"]) == (scene, kernel)]
        of = {name: [arm for arm in runs if arm["arm"] == name] for name in [*names, "adaptive"]}
        for name, mine in of.items():
            machines = [machine for arm in mine for machine in arm["machines"]]
            widths = [width for arm in mine for width in arm.get("widths") or []]
            if mine:
                rows.append({
                    "scene": scene,
                    "kernel": kernel,
                    "arm": name,
                    "runs": len(mine),
                    "time": list(map(time, mine)),
                    "each": [machine["seconds"] for machine in machines],
                    "widths": (min(widths), max(widths)) if widths else None,
                    "wrong": sum(machine.get("wrong", False) for machine in machines),
                    "cut": sum(machine["seconds"] is None for machine in machines),
                    "all": len(machines),
                    "cpu": list(map(cpu_s, mine)),
                    "by": within(of["adaptive"], mine, time),
                })  # fmt: skip
    return rows


def best_hand(rows):
    """[(scene, kernel, arm, adaptive by it)] of the hand setting whose median is least."""
    from lab.stats import median

    best = {}
    for row in rows:
        key = row["scene"], row["kernel"]
        if row["arm"].startswith("hand") and (key not in best or median(row["time"]) < median(best[key]["time"])):
            best[key] = row
    return [(*key, row["arm"], row["by"]) for key, row in best.items() if row["by"]]


def describe(raw, scene):
    count = raw["containers"]
    return {
        "shares": f"{count} containers with equal shares run it at once",
        "quota": f"one container with a quota of {raw['quota']:g} CPU{'s' if raw['quota'] > 1 else ''}, alone",
        "neighbours": f"one container of {count} with equal shares; the others keep all CPUs busy for {BUSY_S} s",
    }[scene]


def explain(raw):
    loads = [arm["load"][2] for arm in raw["arms"]]
    meanwhile = f"{min(loads, default=0):.1f} to {max(loads, default=0):.1f} meanwhile"
    which = "Kernels in C in the manner of the NAS benchmarks, with gcc's OpenMP: EP has few long regions, CG many short ones, MG both"
    which += f"; sizes at {raw['scale'] * 100:.0f} %"
    if raw["npb"]:
        classes = ", ".join(f"{name.upper()}.{letter}" for name, letter in raw["npb"].items())
        which = f"NPB 3.3's OpenMP programs, gfortran and gcc with libgomp; classes {classes}"
    seen = f"Programs see the machine's {raw['cpus']} CPUs" if raw["believed"] == raw["cpus"] else (
        f"Programs are made to believe in {raw['believed']} CPUs by a preloaded library; there are {raw['cpus']}"
    )  # fmt: skip
    words = {
        "static": "a thread per CPU that is seen",
        "dynamic": f"`OMP_DYNAMIC=true`, which takes the load average of 15 minutes ({meanwhile}) from that",
        "passive": "`OMP_WAIT_POLICY=passive`",
        "spins": "`GOMP_SPINCOUNT=1000`",
        "hand N": "`OMP_NUM_THREADS=N`",
        "adaptive": "`elbowroom run --openmp`",
        "adaptive, 1000 spins": "the same with `GOMP_SPINCOUNT=1000`",
        "adaptive, own spins": "the library alone, with libgomp's own waiting",
    }
    there = {"hand N" if arm["arm"].startswith("hand") else arm["arm"] for arm in raw["arms"]}
    per_cpu = raw["believed"] * raw["containers"] / raw["cpus"]
    each = f"{per_cpu:g} threads of {raw['containers']} static containers for each CPU (the paper: 5)"
    arms = "; ".join(f"*{arm}*: {words[arm]}" for arm in words if arm in there)
    return f"{which}. {seen}: {each}. {arms}. Elbowroom's agent runs under every arm."


def draw(raw, rows, out):
    from lab.jobs.runtimes import pictures

    out.say(f"## {TITLE}")
    out.say(explain(raw))
    head = ["program, arm", "runs", "time, s", "of each container, s", "not done", "threads of a region", "CPU, s", "adaptive by this"]
    for scene in [scene for scene in SCENES if any(row["scene"] == scene for row in rows)]:
        table, mine = [], [row for row in rows if row["scene"] == scene]
        for row in mine:
            lost = f"{row['cut']} of {row['all']}" if row["cut"] else f"{row['wrong']} wrong" if row["wrong"] else "-"
            name = f"{row['kernel'].upper()}, {row['arm']}"
            table.append(
                [name, row["runs"], said(row["time"]), said(row["each"]), lost, between(row["widths"]), said(row["cpu"]), said(row["by"])]
            )
        out.say(f"### {scene}: {describe(raw, scene)}")
        out.table(head, table)
        pictures.openmp(raw, mine, TITLE, scene, describe(raw, scene), out)
    best = "; ".join(f"{scene} {kernel.upper()} {said(by)} of {arm}" for scene, kernel, arm, by in best_hand(rows))
    out.say(f"Adaptive by the best hand setting: {best or '-'}.")
    out.say(
        "Time is what the program itself says. Medians (smallest to largest) of the mean over containers. A container that was not done "
        f"{raw['patience_s']:g} s after the start was ended and counts with {raw['patience_s']:g} s, which is too little. Ratios are "
        "within a round."
    )
    for line in broken(raw):
        out.say(line)
