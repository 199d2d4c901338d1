"""What does counting page faults cost those that take them, by each tier?

Loops that do nothing but take page faults, with each way of `elbowroom profile faults` to count them and without, in turn."""

from lab import profiling, stats
from lab.tables import of_spread

LASTS = "1 min; needs BPF"
NEEDS = ["cc"]
KINDS = ["anonymous", "file", "fork"]
NONE = "none"
# Ways to count, and the profiler's arguments.
TIERS = {
    NONE: [],
    "functions": ["--tier", "functions"],
    "functions, with latency": ["--tier", "functions", "--latency"],
    "tracepoints": ["--tier", "tracepoints"],
}
# Pages of the file: lab/programs/fault_loop.c touches every 17th.
FILE = 16_384 * 17


def options(parser):
    parser.add_argument("--rounds", type=int, default=7, help="how often everything is measured (7)")
    parser.add_argument(
        "--batches", type=int, default=9, help="batches of some thousand faults in a measurement; the middle one counts (9)"
    )


def record(lab, options):
    path = profiling.file(lab, FILE)
    raw, tiers = {"batches": options.batches, "measured": [], "refused": []}, list(TIERS)
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", flush=True)
        for turn, kind in enumerate(KINDS):
            with profiling.own(lab, "fault_loop", f"profile-faults-{kind}-{number}", [kind, path]) as loop:
                loop.ask("")  # the first batch pays for page tables and caches
                for tier in profiling.rotated(tiers, number + turn):
                    try:
                        measured = measure(lab, loop, tier, options.batches)
                    except profiling.Declined as refused:
                        raw["refused"].append(str(refused))
                        tiers.remove(tier)
                        continue
                    raw["measured"].append({"round": number, "tier": tier, "kind": kind, **measured})
    return raw


def measure(lab, loop, tier, batches):
    profiler = None if tier == NONE else profiling.Faults(lab, *TIERS[tier], loop.cgroup)
    try:
        found = [[float(word) for word in loop.ask("").split()] for _ in range(batches)]
    finally:
        answer = profiler and profiler.stop()
    if any(faults == 0 for faults, _ in found):
        raise RuntimeError("the loop took no fault")
    return {
        "ns_per_fault": stats.spread(ns / faults for faults, ns in found).median,
        "faults": int(sum(faults for faults, _ in found)),
        "counted": answer and answer["containers"][0]["total"],
    }


def study(raw):
    measured = {(one["round"], one["tier"], one["kind"]): one for one in raw["measured"]}
    rounds = sorted({one["round"] for one in raw["measured"]})
    rows = []
    for kind in KINDS:
        for tier in TIERS:
            found = [
                (measured[number, tier, kind], measured.get((number, NONE, kind))) for number in rounds if (number, tier, kind) in measured
            ]
            if found:
                rows.append({
                    "kind": kind,
                    "tier": tier,
                    "ns": stats.spread(one["ns_per_fault"] for one, _ in found),
                    "ratio": stats.spread(one["ns_per_fault"] / none["ns_per_fault"] for one, none in found if none),
                    "seen": stats.spread(one["counted"] / one["faults"] for one, _ in found if one["counted"] is not None),
                })  # fmt: skip
    return {"batches": raw["batches"], "rounds": len(rounds), "rows": rows, "refused": raw["refused"]}


def draw(studied, out):
    out.say(
        "CPU nanoseconds of a page fault in loops that do nothing else, while nobody counts and while `elbowroom profile faults` does. The "
        f"middle one of {studied['batches']} batches of some thousand faults in each of {studied['rounds']} rounds, tiers in turn; "
        "median over "
        "rounds (smallest to largest), and the ratio within a round. `anonymous`: memory of its own; `file`: a page of a shared file "
        "mapping, "
        "looked up for duplicates; `fork`: children that write what their parent has, and end, per fault with `fork` and `exit`."
    )
    rows = [
        [f"{row['kind']}, {row['tier']}", *(of_spread(row[name]) or "-" for name in ("ns", "ratio", "seen"))] for row in studied["rows"]
    ]
    out.table(["loop, tier", "ns per fault", "relative to none", "counted / accounted"], rows)
    for said in studied["refused"]:
        out.say(f"Refused here: {said}.")
