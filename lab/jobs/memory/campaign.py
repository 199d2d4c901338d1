"""A campaign: references, then runs of each arm in turns; it can be stopped and goes on."""

import os
import sys
import time
from pathlib import Path

from kit import cgroup
from kit.container import meminfo
from lab.job import Refused
from lab.jobs.memory import arms, database, samples, story
from lab.jobs.memory.stage import Stage
from lab.jobs.memory.story import WHO
from lab.stats import mean

# A database alone has to do this part of the most that is asked of it.
KEEPS_UP = 0.9
# A guest with more is not filled.
LARGEST_MACHINE = 4 << 30
GUEST_PORT = "ELBOWROOM_VM_MONITOR"


def campaign(lab, options, phase):
    machine, known = here(), arms.read(*options.arms_file)
    chosen = options.arms.split(",")
    refuse(machine, known, chosen, phase)
    stage = Stage(lab, machine, options, phase)
    raw = lab.resumed or {"machine": machine, "story": stage.story, "arms": {}, "references": [], "runs": []}
    if raw["story"] != stage.story:
        raise Refused("the run to go on with has another story: say --scale, --load, --phase and --seed as it did")
    raw["arms"].update({name: {**known[name], "title": arms.title(known[name], machine["cgroup_v2"])} for name in chosen})
    while (who := len(raw["references"])) < len(WHO):
        say(f"reference of {WHO[who]}")
        raw["references"].append(keeps_up(WHO[who], stage.alone(who), stage.story["high"]))
        lab.keep(raw)
    deadline = time.monotonic() + 60 * options.minutes if options.minutes else None
    for run, name in left(raw["runs"], chosen, options.runs):
        began = time.monotonic()
        if deadline and began + lasts(stage.story) > deadline:
            say(f"no time for another run: --resume {lab.directory} goes on")
            break
        say(f"run {run + 1} of {options.runs}: {raw['arms'][name]['title']}")
        while len(raw["runs"]) <= run:
            raw["runs"].append([])
        raw["runs"][run].append(stage.tell(name, raw["arms"][name]))
        lab.keep(raw)
    return raw


def here():
    total, guest = meminfo(Path("/proc/meminfo").read_text())["MemTotal"], GUEST_PORT in os.environ
    return {"stand_in": cgroup.V2 or total > LARGEST_MACHINE, "cgroup_v2": cgroup.V2, "guest": guest, "versions": database.versions()}


def refuse(machine, known, chosen, phase):
    if unknown := [name for name in chosen if name not in known]:
        raise Refused(f"there is no arm {', '.join(unknown)}: {', '.join(known)}")
    if not 5 <= phase <= 600:
        raise Refused(f"--phase {phase}: a phase lasts 5 to 600 s")
    soft = any(known[name].get("limits") == "soft" for name in chosen)
    if soft and machine["stand_in"] and not machine["cgroup_v2"]:
        raise Refused("soft limits of cgroup v1 do nothing while the machine has memory: run them in a guest, lab/plans/memory vm v1")


def left(runs, chosen, count):
    """(run, arm) of what is not recorded yet; whose turn it is rotates from run to run."""
    for run in range(count):
        done = [arm["policy"] for arm in runs[run]] if run < len(runs) else []
        turn = run % len(chosen)
        yield from ((run, name) for name in chosen[turn:] + chosen[:turn] if name not in done)


def lasts(told):
    """Seconds that a run takes, with warming and settling."""
    return story.length(told) + 2 * told["settle"] + 30


def keeps_up(name, alone, asked):
    """Its samples; refuses a machine that is too slow to satisfy a database that has all memory."""
    tps = mean(sample.tps for sample in samples.read(alone, lambda _: asked))
    if not tps or tps.mean < KEEPS_UP * asked:
        raise Refused(f"{name} alone, with all memory, does {tps.mean if tps else 0:.0f} transactions per second of {asked} that are asked for: this "
                      "machine is too slow, or does something else")  # fmt: skip
    return alone


def say(text):
    print(text, file=sys.stderr, flush=True)
