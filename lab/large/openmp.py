"""Figure 10: parallel regions of the NAS benchmarks in containers."""

import itertools
import re

from stage import Broken, load, said, spread, table

TITLE = "Figure 10: OpenMP programs of NPB in containers"
# Each kernel's class: one that takes about a second on a fifth of the machine.
KERNELS = {"cg": "A", "ep": "A", "ft": "A", "is": "B", "lu": "W", "mg": "A"}
TINY = {kernel: "S" for kernel in KERNELS}
PATIENCE_S = 4


def quota(cpus):
    return max(1, cpus // 4)


def arms(scene, cpus):
    """Name: (variables, whether it has a view and `--openmp`)."""
    hands = [cpus // 5 or 1, -(-cpus // 5)] if scene == "shares" else [quota(cpus)]
    every = {"static": ({}, False), "dynamic": ({"OMP_DYNAMIC": "true"}, False)}
    every |= {f"hand {n}": ({"OMP_NUM_THREADS": str(n)}, False) for n in dict.fromkeys(hands)}
    return every | {"adaptive": ({}, True)}


def plan(cpus, tiny):
    return [[(scene, kernel, arm) for arm in arms(scene, cpus)] for kernel in (["cg"] if tiny else KERNELS) for scene in ["shares", "quota"]]


def tell(stage, kit, cpus, scene, kernel, arm, tiny):
    variables, view = arms(scene, cpus)[arm]
    count = (2 if tiny else 5) if scene == "shares" else 1
    flags = ["--cpus", str(quota(cpus))] if scene == "quota" else []
    flags += ["--openmp"] if view else []
    env = {"LD_LIBRARY_PATH": str(kit / "npb"), "OMP_STACKSIZE": "64M", **variables}
    program = kit / "npb" / f"{kernel}.{(TINY if tiny else KERNELS)[kernel]}.x"
    # They begin together: each waits for a word.
    command = ["sh", "-c", 'echo ready; read -r _; exec "$0"', program]
    programs = [stage.start(command, flags, view, env) for _ in range(count)]
    stage.ready(programs, 15)
    before = load()
    stage.go(programs, 0)
    stage.wait(programs, PATIENCE_S)
    return {"scene": scene, "kernel": kernel, "arm": arm, "load": before, "machines": [report(program) for program in programs]}


def report(program):
    seconds = re.search(r"Time in seconds\s*=\s*([\d.]+)", program.said)
    verified = "VERIFICATION SUCCESSFUL" in program.said.upper() or re.search(r"Verification\s*=\s*SUCCESSFUL", program.said)
    if not seconds and not program.cut_off:
        raise Broken(f"{program.name} ended with {program.status}: {program.complaint()[-200:]} {program.said[-100:]}")
    # Where the program itself says that its answer is wrong, that is what was measured.
    wrong = {"wrong": True} if seconds and not verified else {}
    return {"seconds": float(seconds[1]) if seconds and not program.cut_off else None, "cpu_s": program.cpu_s, **wrong}


def record(stage, kit, cpus, clock, keep, tiny=False):
    raw = {"figure": 10, "cpus": cpus, "classes": TINY if tiny else KERNELS, "patience_s": PATIENCE_S, "arms": [], "broken": []}
    took = {}
    for number in itertools.count():
        for group in plan(cpus, tiny):
            turn = number % len(group)
            for scene, kernel, arm in group[turn:] + group[:turn]:
                key = scene, kernel, arm
                if clock.left() < took.get(key, max(took.values(), default=6)) * 1.15:
                    keep(raw)
                    return raw
                with clock.timed(took, key):
                    try:
                        raw["arms"].append({"round": number, **tell(stage, kit, cpus, scene, kernel, arm, tiny)})
                    except Broken as error:
                        raw["broken"].append(f"{scene}, {kernel}, {arm}: {error}")
            keep(raw)
        if tiny:
            return raw


def seconds(raw, arm):
    """The mean over containers; one that was not done counts with the patience, which is too little."""
    values = [raw["patience_s"] if machine["seconds"] is None else machine["seconds"] for machine in arm["machines"]]
    return sum(values) / len(values)


def study(raw):
    rows = []
    for scene, kernel in {(arm["scene"], arm["kernel"]): 0 for arm in raw["arms"]}:
        runs = [arm for arm in raw["arms"] if (arm["scene"], arm["kernel"]) == (scene, kernel)]
        adaptive = {arm["round"]: seconds(raw, arm) for arm in runs if arm["arm"] == "adaptive"}
        for name in arms(scene, raw["cpus"]):
            mine = [arm for arm in runs if arm["arm"] == name]
            if mine:
                machines = [machine for arm in mine for machine in arm["machines"]]
                rows.append(
                    {
                        "scene": scene,
                        "kernel": kernel,
                        "arm": name,
                        "runs": len(mine),
                        "time": [seconds(raw, arm) for arm in mine],
                        "each": [machine["seconds"] for machine in machines],
                        "wrong": sum(machine.get("wrong", False) for machine in machines),
                        "cut": sum(machine["seconds"] is None for machine in machines),
                        "all": len(machines),
                        "cpu": [sum(machine["cpu_s"] for machine in arm["machines"]) for arm in mine],
                        "ratio": [adaptive[arm["round"]] / seconds(raw, arm) for arm in mine if arm["round"] in adaptive],
                    }
                )
    return rows


def best_hand(raw):
    """(scene, kernel): the spread of adaptive by the hand setting whose median is least."""
    found = {}
    for row in study(raw):
        if row["arm"].startswith("hand"):
            key = row["scene"], row["kernel"]
            if key not in found or spread(row["time"])[0] < spread(found[key]["time"])[0]:
                found[key] = row
    return {key: (row["arm"], row["ratio"]) for key, row in found.items()}


def summary(raw):
    cpus = raw["cpus"]
    loads = [arm["load"][2] for arm in raw["arms"]]
    out = [
        f"## {TITLE}",
        f"NPB 3.3's OpenMP programs, gfortran and gcc 12 with libgomp; classes {', '.join(f'{k.upper()}.{c}' for k, c in raw['classes'].items())}. "
        f"*Shares*: five containers with equal shares run the same program at the same time. *Quota*: one container with {quota(cpus)} CPUs of "
        f"{cpus}, alone. "
        f"*static*: a thread for each of {cpus} CPUs; *dynamic*: `OMP_DYNAMIC=true`, which takes the load average of 15 minutes "
        f"({min(loads, default=0):.1f} to {max(loads, default=0):.1f} meanwhile, of what ran before) from {cpus}; *hand N*: `OMP_NUM_THREADS=N`; "
        f"*adaptive*: "
        "`elbowroom run --openmp`. Elbowroom's agent runs under every arm.",
    ]
    for scene in ["shares", "quota"]:
        rows = [
            [
                f"{row['kernel'].upper()}, {row['arm']}",
                row["runs"],
                said(row["time"]),
                said(row["each"]),
                f"{row['cut']} of {row['all']}" if row["cut"] else f"{row['wrong']} wrong" if row["wrong"] else "-",
                said(row["cpu"]),
                said(row["ratio"]),
            ]
            for row in study(raw)
            if row["scene"] == scene
        ]
        out += [f"### {scene}", table(["program, arm", "runs", "time, s", "of each container, s", "not done", "CPU, s", "adaptive by this"], rows)]
    best = "; ".join(
        f"{scene} {kernel.upper()} {said(ratio)} of {arm}" for (scene, kernel), (arm, ratio) in sorted(best_hand(raw).items(), reverse=True)
    )
    out.append(f"Adaptive by the best hand setting: {best}.")
    out.append(
        f"Time is what the program itself says. Medians (smallest to largest) of the mean over containers. A container that was not done "
        f"{raw['patience_s']} s after the "
        f"start was ended and counts with {raw['patience_s']} s, which is too little. Ratios are within a round. Every answer in the table was "
        f"verified by the program, but where it says how many are wrong."
    )
    if raw["broken"]:
        out.append("Not measured: " + "; ".join(" ".join(why.split())[:90] for why in raw["broken"]) + ".")
    return out


def draw(raw, plot, path):
    figure, axes = plot.subplots(2, 1, figsize=(9.5, 6.2))
    for axis, scene in zip(axes, ["shares", "quota"]):
        rows = [row for row in study(raw) if row["scene"] == scene]
        kernels, names = sorted({row["kernel"] for row in rows}), list(arms(scene, raw["cpus"]))
        width = 0.8 / len(names)
        for i, name in enumerate(names):
            found = {row["kernel"]: spread(row["time"]) for row in rows if row["arm"] == name}
            at = [k + (i - (len(names) - 1) / 2) * width for k, kernel in enumerate(kernels) if kernel in found]
            values = [found[kernel] for kernel in kernels if kernel in found]
            errors = [[m - low for m, low, _ in values], [high - m for m, _, high in values]]
            axis.bar(at, [m for m, _, _ in values], width * 0.92, yerr=errors, label=name, color=plot.COLORS[name], error_kw={"lw": 0.8})
            for k, kernel in enumerate(kernels):
                if kernel not in found:
                    at = k + (i - (len(names) - 1) / 2) * width
                    axis.text(at, 0.02, "not right", rotation=90, ha="center", va="bottom", fontsize=7, transform=axis.get_xaxis_transform())
        axis.set_yscale("log")
        axis.set_yticks([0.25, 0.5, 1, 2, 4], ["0.25", "0.5", "1", "2", "4"])
        axis.minorticks_off()
        axis.axhline(raw["patience_s"], color="0.6", lw=0.8, ls=":")
        axis.set_xticks(range(len(kernels)), [kernel.upper() for kernel in kernels])
        axis.set_ylabel("time (s)")
        axis.set_title(
            "five containers, equal shares" if scene == "shares" else f"one container, {quota(raw['cpus'])} CPUs of {raw['cpus']}",
            fontsize=10,
            loc="right",
        )
        axis.legend(ncols=len(names), fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 0.97))
    figure.suptitle(f"{TITLE} (dotted: not waited for longer)", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plot.close(figure)
