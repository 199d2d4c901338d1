"""What does a container add to GPU programs, and where does their time go?

The thesis' kinds of programs (stencil, LU decomposition, particle filter, LeNet), each on the host and in a container of runc by turns.
The measuring is `elbowroom profile gpu`; this job runs it for each program and puts the answers together. `lab/large` has larger problems
and the translation of code."""

from pathlib import Path

from lab import profiling, stats
from lab.job import Refused
from lab.tables import of_spread, short

LASTS = "3 min; needs an NVIDIA GPU, and `make gpu`"
NEEDS = ["runc"]
# The benchmarks, and how many kernels each launches.
BENCHMARKS = {"stencil": 50, "lu": 2 * 511, "particle": 2 * 20, "lenet": 6 * 20}
SUMS = ["traced_ns", "before_ns", "kernel_ns", "kernels", "copy_ns", "copy_bytes", "overhead_ns", "lost", "complete"]
# Kinds of calls as the product names them, and as tables do.
CALLS = {
    "start": "start", "module": "module load, JIT", "malloc": "malloc", "memcpy": "memcpy", "launch": "launch", "wait": "wait",
    "other": "other calls",
}  # fmt: skip
PLACES = {"native": False, "container": True}


def options(parser):
    parser.add_argument("--runs", type=int, default=10, help="how often in each of the two places, traced and not (10)")
    parser.add_argument("--bench", type=Path, default=Path("target/gpu/bench"), help="the benchmarks (target/gpu/bench)")
    parser.add_argument(
        "--see", action="append", default=[], metavar="PATH", help="what a program needs of the host besides /usr; repeatable"
    )
    parser.add_argument("--command", nargs="+", metavar="WORD", help="one more program, and its arguments")


def record(lab, options):
    if not options.bench.is_file():
        raise Refused(f"{options.bench} is missing: `make gpu` makes it")
    programs = [(name, launches, [options.bench.resolve(), name]) for name, launches in BENCHMARKS.items()]
    if options.command:
        name = " ".join(word.rpartition("/")[2] for word in dict.fromkeys([options.command[0], options.command[-1]]))
        programs.append((name, None, options.command))
    raw = {"gpu": gpu(), "programs": []}
    for name, launches, command in programs:
        print(name, flush=True)
        see = [word for path in options.see for word in ("--see", path)]
        words = ["profile", "gpu", "--runs", options.runs, *see, "--", *command]
        answer = profiling.ask(lab, *words)["answer"]
        runs = [kept(run) for run in answer["runs"]]
        raw["programs"].append({"name": name, "launches": launches, "runtime": answer["runtime"], "runs": runs})
        lab.keep(raw)
    return raw


def kept(run):
    """The product's numbers that are kept of a run."""
    found = {"container": run["container"], "wall_ns": run["wall_ns"]}
    if sums := run.get("sums"):
        calls = {name: {"calls": call["calls"], "ns": call["ns"]} for name, call in sums["calls"].items()}
        found["sums"] = {name: sums[name] for name in SUMS} | {"calls": calls}
    return found


def gpu():
    """`NVIDIA H100 80GB HBM3, driver 580.159.04`."""
    driver = Path("/proc/driver/nvidia")
    if not driver.is_dir():
        raise Refused("there is no NVIDIA GPU here")
    texts = [path.read_text() for path in sorted(driver.glob("gpus/*/information"))]
    models = [line.partition(":")[2].strip() for text in texts for line in text.splitlines() if line.startswith("Model:")]
    words = (driver / "version").read_text().split()
    return f"{', '.join(models)}, driver {next((word for word in words if word[0].isdigit()), 'of unknown version')}"


# ---- study ----


def wall(run):
    return None if "sums" in run else run["wall_ns"] / 1e6


def of_sums(value):
    return lambda run: value(run["sums"]) if "sums" in run else None


def ms(name):
    return of_sums(lambda sums: sums[name] / 1e6)


def call(kind):
    return of_sums(lambda sums: sums["calls"].get(kind, {"ns": 0})["ns"] / 1e6)


TRACED = ms("traced_ns")
PARTS = {"GPU in kernels": ms("kernel_ns"), "GPU copying": ms("copy_ns"), "cuInit()": ms("before_ns")} | {
    name: call(kind) for kind, name in CALLS.items()
}
SHARES = {
    "kernels": lambda sums: sums["kernel_ns"],
    "copies": lambda sums: sums["copy_ns"],
    "cuInit()": lambda sums: sums["before_ns"],
    "CUDA calls": lambda sums: sum(call["ns"] for call in sums["calls"].values()),
}


def spread(program, place, value):
    values = [value(run) for run in program["runs"] if run["container"] == PLACES[place]]
    return stats.spread(number for number in values if number is not None)


def study(raw):
    programs = [study_program(program) for program in raw["programs"]]
    first = raw["programs"][0]
    runs = sum(1 for run in first["runs"] if not run["container"] and "sums" not in run)
    return {"gpu": raw["gpu"], "runtime": first["runtime"], "runs": runs, "programs": programs}


def study_program(program):
    def both(value):
        return {place: spread(program, place, value) for place in PLACES}

    def share(value):
        return of_sums(lambda sums: 100 * value(sums) / sums["traced_ns"])

    sums = [run["sums"] for run in program["runs"] if "sums" in run]
    untraced, traced = (spread(program, "native", value) for value in (wall, lambda run: run["wall_ns"] / 1e6 if "sums" in run else None))
    return {
        "name": program["name"],
        "wall": both(wall),
        "traced": both(TRACED),
        "parts": {name: both(value) for name, value in PARTS.items()},
        "shares": {name: both(share(value)) for name, value in SHARES.items()},
        "launches": program["launches"],
        "kernels": sorted({one["kernels"] for one in sums}),
        "lost": sum(one["lost"] for one in sums),
        "endless": sum(not one["complete"] for one in sums),
        "longer": 100 * (traced.median / untraced.median - 1) if traced and untraced else None,
    }


# ---- draw ----


def cells(both, none=""):
    native, container = both["native"], both["container"]
    ratio = f"{container.median / native.median:.2f}" if native and container and native.median > 0 else none
    return [of_spread(native), of_spread(container), ratio]


def draw(studied, out):
    programs = studied["programs"]
    out.say(
        f"{studied['gpu']}. Each program by turns on the host and in a container of {studied['runtime']} with the same /usr, "
        f"{studied['runs']} times in each, and as often traced. Milliseconds: medians (smallest to largest)."
    )
    out.say("## End to end")
    out.say(
        "Not traced. *In the program* is of the traced runs, from `cuInit()` to the end: the rest of what a container adds is its own "
        "start "
        "and end."
    )
    head = ["program", "native", "container", "ratio", "in the program, native", "in the program, container", "ratio"]
    out.table(head, [[one["name"], *cells(one["wall"]), *cells(one["traced"])] for one in programs])
    out.say("## Where time goes")
    out.say(
        "Traced. Time in calls is given to the innermost one, and to no call while the tracing itself was in the way; time on the GPU "
        "is when "
        "anything ran there. *cuInit()* is what it does once tracing has begun, with what that needs to begin."
    )
    for one in programs:
        out.say(f"### {one['name']}")
        out.table(["", "native", "container", "ratio"], [[name, *cells(both, "-")] for name, both in one["parts"].items()])
    medians = {
        f"{one['name']}, {place}": [both[place].median if both[place] else 0 for both in one["parts"].values()]
        for one in programs
        for place in PLACES
    }
    title = "GPU and CUDA calls (ms)"
    profiling.bars(out, "parts", title, "ms", list(PARTS), medians)
    out.say("## The GPU's part")
    out.say(
        "Shares of the time in the program, traced: the GPU in kernels, the GPU copying, `cuInit()` and CUDA calls. The GPU works "
        "while calls "
        "wait for it, so they may overlap."
    )
    rows = [
        [f"{one['name']}, {place}", *(f"{short(both[place].median)} %" if both[place] else "" for both in one["shares"].values())]
        for one in programs
        for place in PLACES
    ]
    out.table(["", *SHARES], rows)
    out.say("## How sure this is")
    head = ["program", "kernels launched", "kernels traced", "records lost", "traces without end", "longer when traced"]
    out.table(head, [sureness(one) for one in programs])


def sureness(one):
    found = one["kernels"] or [0]
    traced = str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"
    longer = "" if one["longer"] is None else f"{one['longer']:+.0f} %"
    return [one["name"], "-" if one["launches"] is None else one["launches"], traced, one["lost"], one["endless"], longer]
