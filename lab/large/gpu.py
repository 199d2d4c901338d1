"""GPU programs of the characterisation: problem sizes whose kernels are a good part of the time, and what translating code for the GPU costs.

The measuring is `elbowroom profile gpu`: by turns on the host and in a container of runc, as it is and traced."""

import glob
import json
import os
import shutil
import subprocess
from pathlib import Path

from stage import said, spread, table, text

TITLE = "GPU programs: kernels a quarter of the time, and the translation of code"
# Program: size, steps, kernels launched. The GPU has them in 60 to 100 ms.
PROGRAMS = {"stencil": (2048, 4500, 4500), "lu": (4096, 1, 2 * 4095), "filter": (100000, 1000, 3000), "lenet": (256, 1000, 6000)}
# What code is for: the GPU itself; PTX for it; PTX for one of ten years ago.
CODES = ["cubin", "exact", "old"]
CACHES = ["cold", "kept", "shared"]
# What a program is started by: a cache of its own that is new; one that its place keeps; one that all places share, which `profile gpu` has.
STARTERS = {
    "cold": 'CUDA_CACHE_PATH=$(mktemp -d -p "$PWD" cache.XXXXXX) exec "$0" "$@"',
    "kept": 'place=host; [ $$ != 1 ] || place=container; mkdir -p kept-$place; CUDA_CACHE_PATH=$PWD/kept-$place exec "$0" "$@"',
    "shared": 'exec "$0" "$@"',
}
JIT_PROGRAMS = ["stencil", "lenet"]
SHORT = 50


def find_cupti():
    places = [
        "/usr/local/cuda*/extras/CUPTI/lib64",
        "/usr/local/cuda*/lib64",
        "/usr/local/cuda*/targets/x86_64-linux/lib",
        "/usr/lib/x86_64-linux-gnu",
    ]
    places += ["/opt/torch/.venv/lib/python3*/site-packages/nvidia/*/lib", "/opt/*/lib/python3*/site-packages/nvidia/*/lib"]
    for place in places:
        for name in ("libcupti.so.13", "libcupti.so.12"):
            found = sorted(glob.glob(f"{place}/{name}"))
            if found:
                return found[-1]
    return None


def prepare(kit):
    """PATH with runc, where the machine has none; runc's one library too."""
    if shutil.which("runc"):
        return
    os.environ["PATH"] += f":{kit / 'gpu'}"
    if "libseccomp.so.2" not in subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout:
        shutil.copy(kit / "gpu/libseccomp.so.2", "/usr/lib/x86_64-linux-gnu/")
        subprocess.run(["ldconfig"], check=False)


def profile(kit, cupti, program, code, cache, steps, runs):
    size, usual, launches = PROGRAMS[program]
    command = [
        kit / "bin/elbowroom",
        "profile",
        "gpu",
        "--format",
        "json",
        "--runs",
        runs,
        "--see",
        kit,
        "--library",
        kit / "gpu/libelbowroom-gpu.so",
    ]
    command += ["--cupti", cupti, "--see", Path(cupti).parent] if cupti else []
    command += ["--", "/usr/bin/sh", "-c", STARTERS[cache], kit / "gpu/bench", program, size, steps]
    env = {**os.environ, "CODE": str(kit / "gpu" / code), "CHECK": "no"}
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env)
    if done.returncode:
        raise RuntimeError(f"{program}, {code}, {cache}: {done.stderr.strip()[-400:]}")
    answer = json.loads(done.stdout)["answer"]
    keep = ("traced_ns", "before_ns", "kernel_ns", "kernels", "copy_ns", "lost", "complete", "overhead_ns")
    found = []
    for run in answer["runs"]:
        sums = run.get("sums")
        found.append({"container": run["container"], "wall_ns": run["wall_ns"]})
        if sums:
            found[-1]["sums"] = {name: sums[name] for name in keep} | {"calls": {name: call["ns"] for name, call in sums["calls"].items()}}
    return {
        "program": program,
        "code": code,
        "cache": cache,
        "steps": steps,
        "launches": launches if steps == usual else None,
        "runtime": answer.get("runtime"),
        "runs": found,
    }


def record(kit, clock, keep, tiny=False):
    raw = {"figure": "gpu", "arms": [], "broken": []}
    prepare(kit)
    raw["gpu"] = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True
    ).stdout.strip()
    cupti = find_cupti()
    raw["cupti"] = cupti
    # Sizes first. Translation needs no long programs.
    plan = [(program, "cubin", "shared", PROGRAMS[program][1], 6) for program in PROGRAMS]
    plan += [(program, code, cache, SHORT, 3) for program in JIT_PROGRAMS for code in CODES for cache in (CACHES if code != "cubin" else ["shared"])]
    if tiny:
        plan = [(*some[:4], 1) for some in plan[:2] + plan[5:8]]
    for program, code, cache, steps, runs in plan:
        if clock.left() < 12 and not tiny:
            raw["broken"].append(f"{program}, {code}, {cache}: no time left")
            continue
        try:
            raw["arms"].append(profile(kit, cupti, program, code, cache, steps, runs))
        except (RuntimeError, ValueError, KeyError) as error:
            raw["broken"].append(f"{error}")
        keep(raw)
    return raw


def of(arm, container, value, traced=True):
    values = []
    for run in arm["runs"]:
        if run["container"] == container and ("sums" in run) == traced:
            values.append(value(run))
    return values


def ratio(native, container):
    if not native or not container or spread(native)[0] == 0:
        return "-"
    return f"{spread(container)[0] / spread(native)[0]:.2f}"


def share(run):
    """Kernels, of kernels and all calls but those that wait for them."""
    sums = run["sums"]
    calls = sums["before_ns"] + sum(ns for name, ns in sums["calls"].items() if name != "wait")
    return 100 * sums["kernel_ns"] / (sums["kernel_ns"] + calls)


def part(run):
    """Kernels, of the time from cuInit() on."""
    return 100 * run["sums"]["kernel_ns"] / run["sums"]["traced_ns"]


def ms(of_sums):
    return lambda run: of_sums(run["sums"]) / 1e6


ROWS = [
    ("GPU in kernels", ms(lambda sums: sums["kernel_ns"])),
    ("cuInit()", ms(lambda sums: sums["before_ns"])),
    *[(name, ms(lambda sums, name=name: sums["calls"].get(name, 0))) for name in ("start", "module", "malloc", "memcpy", "launch", "wait")],
]


def is_sized(arm):
    return arm["steps"] == PROGRAMS[arm["program"]][1]


def summary(raw):
    runtime = next((arm["runtime"] for arm in raw["arms"]), "")
    out = [
        f"## {TITLE}",
        f"{raw['gpu']}; {runtime}. Code is compiled before (`bench --compile`), and the CPU checks no answers (`CHECK=no`). Medians (smallest to "
        f"largest), milliseconds.",
    ]
    sized = [arm for arm in raw["arms"] if is_sized(arm)]
    wall = lambda run: run["wall_ns"] / 1e6
    inside = ms(lambda sums: sums["traced_ns"])
    rows = []
    for arm in sized:
        pairs = [(of(arm, False, wall, False), of(arm, True, wall, False)), (of(arm, False, inside), of(arm, True, inside))]
        kernels = {run["sums"]["kernels"] for run in arm["runs"] if "sums" in run}
        rows.append(
            [
                arm["program"],
                len(pairs[0][0]),
                *(cell for native, container in pairs for cell in (said(native), said(container), ratio(native, container))),
                said(of(arm, False, part)),
                said(of(arm, False, share)),
                said(of(arm, True, share)),
                "yes" if kernels == {arm["launches"]} else str(sorted(kernels)),
            ]
        )
    out.append(
        table(
            [
                "program, machine code",
                "runs",
                "native",
                "container",
                "ratio",
                "from cuInit() on, native",
                "container",
                "ratio",
                "kernels, % of that, native",
                "of kernels and calls, %, native",
                "container",
                "all kernels traced",
            ],
            rows,
        )
    )
    out.append(
        "Kernels and calls: the time that the GPU has in kernels and all of the driver's calls, `cuInit()` too, less those that wait for "
        "kernels. Launching waits as well, for room in "
        "the queue, and counts as a call."
    )
    for arm in sized:
        rows = [
            [name, said(of(arm, False, value)), said(of(arm, True, value)), ratio(of(arm, False, value), of(arm, True, value))]
            for name, value in ROWS
        ]
        out += [f"### {arm['program']}", table(["", "native", "container", "ratio"], rows)]
    rows = []
    for arm in raw["arms"]:
        if is_sized(arm):
            continue
        module = ms(lambda sums: sums["calls"].get("module", 0))
        native, container = of(arm, False, module), of(arm, True, module)
        ends = of(arm, False, wall, False), of(arm, True, wall, False)
        rows.append(
            [
                f"{arm['program']}, {arm['code']}, {arm['cache']}",
                len(native),
                said(native),
                said(container),
                ratio(native, container),
                said(ends[0]),
                said(ends[1]),
                ratio(*ends),
            ]
        )
    out += [
        "### Translating code",
        f"{SHORT} steps of each. *cubin*: machine code for this GPU; *exact*: PTX for it (compute_90); *old*: PTX for compute_50. *cold*: a "
        f"cache of translated code that is new in each "
        "run, as in a container that is made anew; *kept*: one of the host's and one of the container's own, as in a container that is started "
        "again; *shared*: one that the host and all containers "
        "have. Only loading is translation; the first run of *kept* and *shared* fills the cache and is not traced.",
        table(["program, code, cache", "runs", "loading code, native", "container", "ratio", "end to end, native", "container", "ratio"], rows),
    ]
    if raw["broken"]:
        out.append("Not measured: " + "; ".join(raw["broken"]) + ".")
    return out


def draw(raw, plot, path):
    figure, axes = plot.subplots(1, 2, figsize=(10.5, 4.2))
    sized = [arm for arm in raw["arms"] if is_sized(arm)]
    bottom = [0.0] * (2 * len(sized))
    labels = [f"{arm['program']},\n{place}" for arm in sized for place in ("host", "container")]
    colors = ["#0072B2", "#bbbbbb", "#d9d9d9", "#D55E00", "#CC79A7", "#E69F00", "#009E73"]
    for color, (name, value) in zip(colors, ROWS):
        heights = [spread(of(arm, place, value))[0] for arm in sized for place in (False, True)]
        axes[0].bar(range(len(labels)), heights, 0.7, bottom=bottom, label=name, color=color)
        bottom = [a + b for a, b in zip(bottom, heights)]
    axes[0].set_xticks(range(len(labels)), labels, fontsize=7, rotation=45, ha="right")
    axes[0].set_ylabel("ms")
    axes[0].set_title("GPU and driver calls (without waiting)", fontsize=10)
    axes[0].legend(fontsize=7, frameon=False, ncols=2)
    axes[0].margins(y=0.35)
    rest = [arm for arm in raw["arms"] if not is_sized(arm)]
    module = ms(lambda sums: sums["calls"].get("module", 0))
    for shift, place, color, label in [(-0.2, False, "#6e6e6e", "host"), (0.2, True, "#0072B2", "container")]:
        found = [(i, spread(of(arm, place, module))) for i, arm in enumerate(rest) if of(arm, place, module)]
        axes[1].barh(
            [i + shift for i, _ in found],
            [s[0] for _, s in found],
            0.36,
            xerr=[[s[0] - s[1] for _, s in found], [s[2] - s[0] for _, s in found]],
            color=color,
            label=label,
            error_kw={"lw": 0.8},
        )
    axes[1].set_yticks(range(len(rest)), [f"{arm['program']}, {arm['code']}, {arm['cache']}" for arm in rest], fontsize=7)
    axes[1].invert_yaxis()
    axes[1].set_xscale("log")
    axes[1].set_xlabel("loading code (ms)")
    axes[1].set_title("Translating code", fontsize=10)
    axes[1].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plot.close(figure)
