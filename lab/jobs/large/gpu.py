"""GPU programs of the characterisation: problem sizes whose kernels are a good part of the time, and what translating code costs.

The measuring is `elbowroom profile gpu`: by turns on the host and in a container of runc, as it is and traced."""

import glob
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from lab.jobs.runtimes.place import CACHE
from lab.jobs.runtimes.rounds import broken, said
from lab.stats import spread
from lab.sysinfo import output

TITLE = "GPU programs: kernels a quarter of the time, and the translation of code"
# Program: size, steps, kernels launched. The GPU has them in 60 to 100 ms.
PROGRAMS = {"stencil": (2048, 4500, 4500), "lu": (4096, 1, 2 * 4095), "filter": (100000, 1000, 3000), "lenet": (256, 1000, 6000)}
# Targets of code: the GPU itself; PTX for it; PTX for a GPU of ten years ago.
CODES = ["cubin", "exact", "old"]
CACHES = ["cold", "kept", "shared"]
# Commands that start a program with a new cache of its own, with a cache that its place keeps, or with one that all places share, as
# `profile gpu` has.
STARTERS = {
    "cold": 'CUDA_CACHE_PATH=$(mktemp -d -p "$PWD" cache.XXXXXX) exec "$0" "$@"',
    "kept": 'place=host; [ $$ != 1 ] || place=container; mkdir -p kept-$place; CUDA_CACHE_PATH=$PWD/kept-$place exec "$0" "$@"',
    "shared": 'exec "$0" "$@"',
}
JIT_PROGRAMS = ["stencil", "lenet"]
SHORT = 50
GPU = CACHE / "gpu"


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


def prepare():
    """PATH with runc, where the machine has none; runc's one library too."""
    if shutil.which("runc"):
        return
    os.environ["PATH"] += f":{GPU}"
    if "libseccomp.so.2" not in subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout:
        shutil.copy(GPU / "libseccomp.so.2", "/usr/lib/x86_64-linux-gnu/")
        subprocess.run(["ldconfig"], check=False)


def profile(elbowroom, cupti, program, code, cache, steps, runs):
    size, usual, launches = PROGRAMS[program]
    command = [elbowroom, "profile", "gpu", "--format", "json", "--runs", runs, "--see", GPU, "--library", GPU / "libelbowroom-gpu.so"]
    command += ["--cupti", cupti, "--see", Path(cupti).parent] if cupti else []
    command += ["--", "/usr/bin/sh", "-c", STARTERS[cache], GPU / "bench", program, size, steps]
    env = {**os.environ, "CODE": str(GPU / code), "CHECK": "no"}
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


def record(lab, options, keep, raw=None):
    until = time.monotonic() + options.seconds
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    raw = {"figure": "gpu", "arms": [], "broken": [], "cupti": find_cupti(), "gpu": output(*query)}
    prepare()
    # Sizes first. Translation needs no long programs.
    plan = [(program, "cubin", "shared", PROGRAMS[program][1], 6) for program in PROGRAMS]
    plan += [
        (program, code, cache, SHORT, 3)
        for program in JIT_PROGRAMS
        for code in CODES
        for cache in (CACHES if code != "cubin" else ["shared"])
    ]
    for program, code, cache, steps, runs in plan:
        if time.monotonic() > until - 12:
            raw["broken"].append(f"{program}, {code}, {cache}: no time left")
            continue
        try:
            raw["arms"].append(profile(options.elbowroom, raw["cupti"], program, code, cache, steps, runs))
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
    if not native or not container or spread(native).median == 0:
        return "-"
    return f"{spread(container).median / spread(native).median:.2f}"


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


def study(raw):
    return [arm for arm in raw["arms"] if is_sized(arm)], [arm for arm in raw["arms"] if not is_sized(arm)]


WALL, INSIDE, MODULE = lambda run: run["wall_ns"] / 1e6, ms(lambda sums: sums["traced_ns"]), ms(lambda sums: sums["calls"].get("module", 0))


def of_both(arm, value, traced=True):
    """Native, container and their ratio, as cells."""
    native, container = of(arm, False, value, traced), of(arm, True, value, traced)
    return [said(native), said(container), ratio(native, container)]


def draw(raw, studied, out):
    sized, translated = studied
    runtime = next((arm["runtime"] for arm in raw["arms"]), "")
    out.say(f"## {TITLE}")
    out.say(
        f"{raw['gpu']}; {runtime}. Code is compiled before (`bench --compile`), and the CPU checks no answers (`CHECK=no`). Medians "
        "(smallest to "
        "largest), milliseconds."
    )
    rows = []
    for arm in sized:
        kernels = {run["sums"]["kernels"] for run in arm["runs"] if "sums" in run}
        cells = [
            *of_both(arm, WALL, False),
            *of_both(arm, INSIDE),
            said(of(arm, False, part)),
            said(of(arm, False, share)),
            said(of(arm, True, share)),
        ]
        rows.append(
            [arm["program"], len(of(arm, False, WALL, False)), *cells, "yes" if kernels == {arm["launches"]} else str(sorted(kernels))]
        )
    head = ["program, machine code", "runs", "native", "container", "ratio", "from cuInit() on, native", "container", "ratio"]
    out.table([*head, "kernels, % of that, native", "of kernels and calls, %, native", "container", "all kernels traced"], rows)
    out.say(
        "Kernels and calls: the time that the GPU has in kernels and all of the driver's calls, `cuInit()` too, less those that wait for "
        "kernels. Launching waits as well, for room in the queue, and counts as a call."
    )
    for arm in sized:
        out.say(f"### {arm['program']}")
        out.table(["", "native", "container", "ratio"], [[name, *of_both(arm, value)] for name, value in ROWS])
    out.say("### Translating code")
    out.say(
        f"{SHORT} steps of each. *cubin*: machine code for this GPU; *exact*: PTX for it (compute_90); *old*: PTX for compute_50. *cold*: "
        "a "
        "cache of translated code that is new in each run, as in a container that is made anew; *kept*: one of the host's and one of the "
        "container's "
        "own, as in a container that is started again; *shared*: one that the host and all containers have. Only loading is translation; "
        "the first run "
        "of *kept* and *shared* fills the cache and is not traced."
    )
    rows = [[name_of(arm), len(of(arm, False, MODULE)), *of_both(arm, MODULE), *of_both(arm, WALL, False)] for arm in translated]
    out.table(
        ["program, code, cache", "runs", "loading code, native", "container", "ratio", "end to end, native", "container", "ratio"], rows
    )
    for line in broken(raw):
        out.say(line)
    figures(sized, translated, out)


def name_of(arm):
    return f"{arm['program']}, {arm['code']}, {arm['cache']}"


def figures(sized, translated, out):
    from lab import plot

    places = {"native": False, "container": True}
    bars = [
        (f"{arm['program']}, {name}", [spread(of(arm, place, value)).median for _, value in ROWS])
        for arm in sized
        for name, place in places.items()
    ]
    parts = [name for name, _ in ROWS]
    with out.figure("figure-gpu", "GPU and driver calls, without waiting", **plot.bars_height(bars, parts[:-1])) as axes:
        plot.bars(axes, [(name, values[:-1]) for name, values in bars], parts[:-1], "time (ms)")
    rows = [
        (name_of(arm), {name: spread(of(arm, place, MODULE)) for name, place in places.items() if of(arm, place, MODULE)})
        for arm in translated
    ]
    series = {"native": plot.VARIANTS["native"], "container": plot.VARIANTS["elbowroom"]}
    with out.figure("figure-gpu-code", "Loading code", **plot.spreads_height(rows, series)) as axes:
        plot.spreads(axes, rows, series)
        plot.axis(axes, "x", "time (ms)", log=True)
