"""Does the memory governor kill a program that would live without it? Givers of four kinds of memory, one and fifty; a needer that lies.

A cgroup stands for the machine. In it are givers, whose memory is of one kind: they use all of it and say that they need no more. A needer
says that it is starved, whatever it gets, so that the governor takes as much from givers as it ever will. Every giver also allocates and
frees without pause, which shows a limit below its usage at once. All of it fits, with room to spare, so nothing dies without an agent. Once
more the needer has a claim to most of the room, so that givers have more than they are owed: what was lent is called back, and protected
where the kernel can. What givers go over in their time says what the governor costs them."""

import contextlib
import os
import sys
import time
from pathlib import Path

LASTS = "11 min"
# In MiB. MACHINE: the cgroup that stands for the machine. GIVERS: all of them together. HOLDS and READS: what the needer holds, and what it
# reads over and over, which is more than is free. CLAIM: what it is owed where it has a claim, which leaves less than the givers use.
MACHINE, GIVERS, HOLDS, READS, CLAIM = 768, 320, 128, 512, 640
# What each giver allocates and frees, in MiB, and how long it holds it, in milliseconds; of a scan, in MiB per second.
BURST, BURST_MS, SCAN = 4, 400, 400
KINDS = {"anon": "anonymous memory", "cache": "page cache", "shm": "tmpfs", "locked": "locked memory"}
GOVERNED = {(False, False): "no", (True, False): "yes", (True, True): "with a claim"}
OBJECTIVE = 1000


def options(parser):
    parser.add_argument("--seconds", type=int, default=40, metavar="S", help="how long each case is looked at, 10 to 600")
    parser.add_argument("--givers", default="1,50", help="how many there are, one case after the other")


def record(lab, options):
    raw = lab.resumed or {"seconds": options.seconds, "outcomes": []}
    lab.group("machine", memory_mib=MACHINE)
    done = [outcome["case"] for outcome in raw["outcomes"]]
    for kind in KINDS:
        for givers in map(int, options.givers.split(",")):
            for governed, claim in GOVERNED:
                case = {"kind": kind, "givers": givers, "governed": governed, "claim": claim}
                if case not in done:
                    print(f"{name(case)}, governed: {GOVERNED[governed, claim]}", file=sys.stderr)
                    raw["outcomes"].append(run(lab, case, raw["seconds"]))
                    lab.keep(raw)
    return raw


def run(lab, case, seconds):
    from kit.container import meminfo

    word = {"no": "free", "yes": "governed", "with a claim": "claimed"}[GOVERNED[case["governed"], case["claim"]]]
    each = GIVERS // case["givers"]
    with contextlib.ExitStack() as ends:
        make = lambda who: ends.enter_context(lab.container(f"machine/{word}-{who}"))
        givers, needer = [make(f"giver{i}") for i in range(case["givers"])], make("needer")
        records = {container: lab.scope.directory / f"{i}.probe" for i, container in enumerate([*givers, needer])}
        lines = settings(records, needer if case["claim"] else None)
        agent = ends.enter_context(lab.agent(word, *lines, prefix=f"machine/{word}-")) if case["governed"] else None
        programs = start(lab, case["kind"], givers, needer, each, seconds)
        for _ in range(seconds):
            time.sleep(1)
            for container, file in records.items():
                say(file, 1 if container is needer else OBJECTIVE)
        taken = agent.status()["memory"]["reclaimed_bytes"] >> 20 if agent else 0
        said = [program.communicate()[0] for program in programs]
        work = [gone_over(text) for text in said[: len(givers)]]
        return {
            "case": case,
            "died": sum(program.returncode != 0 for program in programs),
            "oom_kill": sum(container.group.oom_kills() for container in records),
            "limit_hit": sum(giver.group.memory_stat().get("limit_hit", 0) for giver in givers),
            "taken_mib": taken,
            "swap": meminfo(Path("/proc/meminfo").read_text())["SwapTotal"] > 0,
            "gone_over_mib": None if case["kind"] == "locked" else sum(work),
        }


def start(lab, kind, givers, needer, mib, seconds):
    """The givers' programs, and the needer's at the end."""
    begin, end = str(time.clock_gettime_ns(time.CLOCK_MONOTONIC)), seconds * 1000
    programs = []
    for i, giver in enumerate(givers):
        programs.append(giver.reader("load", begin, *plan(kind, mib, end, holes(lab, f"{i}.holes", mib))))
    needs = ["use", 0, 1000, HOLDS, end, "scan", 0, end, SCAN, holes(lab, "holes", READS)]
    return [*programs, needer.reader("load", begin, *needs)]


def plan(kind, mib, end, file):
    """The words for a giver's load: its bursts, then what it holds, because a scan's file must be the last word."""
    verb = {"anon": "use", "shm": "shm", "locked": "lock"}.get(kind)
    holds = [verb, 0, 1000, mib, end] if verb else ["scan", 0, end, min(SCAN, 4 * mib), file]
    return ["churn", 1000, end, BURST, BURST_MS, *holds]


def holes(lab, name, mib):
    """A file of holes, which takes page cache and nothing of the disk."""
    path = lab.scope.directory / name
    with open(path, "wb") as file:
        file.truncate(mib << 20)
    return path


def say(file, served):
    """A record that is seen whole, or the one before."""
    new = file.with_suffix(".new")
    new.write_text(f"served={served:.1f} offered={OBJECTIVE:.1f} objective={OBJECTIVE} kind=throughput\n")
    os.replace(new, file)


def gone_over(said):
    """What a load says at its end: `1204 MiB`."""
    words = said.split()
    return int(words[0]) if len(words) == 2 and words[1] == "MiB" else 0


def settings(records, claim):
    """Every container is promised a little; the needer, which lies, is promised no more unless it has a claim."""
    from lab.jobs.memory.arms import COMMON

    probes = ", ".join(f'{{ container = "{container.id}", file = "{file}" }}' for container, file in records.items())
    lines = [*COMMON, f"probes = [{probes}]"]
    if claim:
        lines.append(f'claims = [{{ container = "{claim.id}", memory = {{ reservation = "{CLAIM}MiB" }} }}]')
    return lines


def study(raw):
    return {"seconds": raw["seconds"], "rows": [row(raw, outcome) for outcome in raw["outcomes"]],
            "has_work": any(outcome.get("gone_over_mib") is not None for outcome in raw["outcomes"])}  # fmt: skip


def row(raw, outcome):
    case = outcome["case"]
    governed = GOVERNED[case["governed"], case.get("claim", False)]
    cells = [name(case), governed, "yes" if outcome["swap"] else "no"]
    return [*cells, *(outcome[key] for key in ("taken_mib", "died", "oom_kill", "limit_hit")), work(raw, outcome)]


def work(raw, outcome):
    """What the givers of a case did, as a part of what the same givers did without the governor."""
    alone = {**outcome["case"], "governed": False, "claim": False}
    all_alone = [other.get("gone_over_mib") for other in raw["outcomes"] if {"claim": False, **other["case"]} == alone]
    ours = outcome.get("gone_over_mib")
    return f"{100 * ours / all_alone[0]:.0f} %" if ours is not None and all_alone and all_alone[0] else "-"


def name(case):
    return f"{case['givers']} with {KINDS[case['kind']]}"


def draw(studied, out):
    out.say(f"Givers that use {GIVERS} MiB together, allocate and free {BURST} MiB without pause, and say that they need no more; a needer that holds "
            f"{HOLDS} MiB, reads {READS} MiB of files over and over and says that it is starved; {MACHINE} MiB for all. Each case "
            f"{studied['seconds']} s.")  # fmt: skip
    columns = 8 if studied["has_work"] else 7
    head = ["givers", "governed", "swap", "MiB taken", "died", "killed for memory", "at a limit", "work of givers"]
    out.table(head[:columns], [row[:columns] for row in studied["rows"]])
