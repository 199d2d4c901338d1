"""What does a burst do to a neighbour on a disk, under no policy, the kernel's own, a limit by hand, Aridac's and ours?

On a real kernel with a really slow disk, and on one of memory. Each run tells one story (loads.py) under every arm (arms.py). W1 to W4 are
Aridac's; the yardsticks are loads that no policy was tuned on. `python3 -m lab disk-table DIR...` puts results side by side."""

import argparse
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from lab import disks, fio
from lab.job import Refused
from lab.jobs.disk import arms, loads, programs
from lab.jobs.disk.figure import draw_throughput
from lab.jobs.disk.stage import Stage
from lab.jobs.disk.study import study
from lab.jobs.disk.tables import write

LASTS = "1 to 7 min a run; lab/plans/disk runs all"
NEEDS = ("fio", "qemu-storage-daemon")
__all__ = ["study"]
CALIBRATE_S = 3


def options(parser):
    parser.add_argument("--workload", choices=["all", *loads.NAMES], default="w1", metavar="NAME",
                        help="what happens: w1 to w4, speed, or a yardstick; `--workload all` names those that there are")
    parser.add_argument("--scale", choices=list(loads.SCALES), default="paper", help="a disk of 1 MB/s, of 100 MB/s, or of memory")
    parser.add_argument("--runs", type=int, default=5, help="how often the story is told under each arm")
    parser.add_argument("--policies", type=lambda text: text.split(","), default=arms.ASKED, metavar="NAME,...",
                        help=f"of {','.join(arms.ASKED)}")
    parser.add_argument("--direction", choices=["read", "write"], default="read", help="of w1 to w4")
    parser.add_argument("--together", action=argparse.BooleanOptionalAction,
                        help="arms on equal disks at the same time, rather than on one after the other; at 1 MB/s it is so by itself")
    parser.add_argument("--unseen", action="store_true", help="the final run: one of the loads that the seed keeps for it")
    parser.add_argument("--short", action="store_true", help="a story of 25 s, once, to see whether it runs")


def tag(options):
    return f"{options.workload}-{options.scale}"


def record(lab, options):
    check(options)
    together = options.scale == "paper" if options.together is None else options.together
    places, absent, told = prepare(lab, options, together)
    raw = lab.resumed or {
        "workload": options.workload, "scale": options.scale, "direction": options.direction, "together": together, "timeline": told,
        "unseen": options.workload in loads.unseen(options.seed), "absent": absent, "runs": [],
    }  # fmt: skip
    if (raw["workload"], raw["scale"]) != (options.workload, options.scale):
        raise Refused(f"{options.resume} is of {raw['workload']} at {raw['scale']}: say --workload and --scale as it did")
    told, asked = raw["timeline"], ["alone", *(arm for arm in options.policies if arm not in absent)]
    for number in range(len(raw["runs"]), 1 if options.short else options.runs):
        # Neither the same disk nor the same place in the order twice in a row.
        turn = number % len(asked)
        order = asked[turn:] + asked[:turn]
        print(f"run {number + 1} of {options.runs}: {', '.join(order)}", flush=True)
        stage = lambda arm, disk: Stage(lab, arm, [(disk, told)], options.direction, options.workload)
        if together:
            raw["runs"].append(tell_together([stage(arm, disk) for arm, disk in zip(order, places)]))
        else:
            raw["runs"].append([result for arm in order for result in tell_together([stage(arm, places[0])])])
        lab.keep(raw)
    return raw


def check(options):
    kept = loads.unseen(options.seed)
    if options.workload == "all":
        lines = [f"  {name:22}{', '.join(loads.scales(name)):20}{loads.story(name)}" for name in loads.NAMES if name not in kept]
        raise Refused("--workload takes one of these; the seed keeps others for the final run (--unseen):\n" + "\n".join(lines))
    if (options.workload in kept) != options.unseen:
        why = "no load of the final run" if options.unseen else "kept for the final run: say --unseen"
        raise Refused(f"{options.workload} is {why}")
    if options.scale not in loads.scales(options.workload):
        raise Refused(f"{options.workload} makes sense at {', '.join(loads.scales(options.workload))}, not at {options.scale}")
    unknown = set(options.policies) - set(arms.ASKED)
    if unknown:
        raise Refused(f"there is no policy {', '.join(sorted(unknown))}: --policies takes some of {', '.join(arms.ASKED)}")


def prepare(lab, options, together):
    """The disks, the arms that cannot run here with the reason, and the timeline."""
    files = loads.needs_files(options.workload)
    count = len(options.policies) + 1 if together else 1
    speed = loads.SCALES[options.scale]
    places = disks.slow(lab, count, speed) if speed else [disks.of_memory(lab, keeps=files)]
    absent = {arm: reason for arm in options.policies if (reason := arms.missing(arm, places[0]))}
    for arm, reason in absent.items():
        print(f"not under {arm}: {reason}", flush=True)
    if options.workload in loads.PAPER:
        told = loads.paper(options.workload, options.scale)
    else:
        told = loads.yardstick(options.workload, options.scale, lambda *asked: alone(lab, places[0], *asked))
    programs.refuse(told["actors"])
    if files:
        disks.mount_ext4(lab, places[0])
    for place in places:
        place.bound_dirty(4 * told["capacity"] if speed else 256 << 20)
    return places, absent, shortened(told) if options.short else told


def shortened(told):
    """The same with a burst from the 8th second to the 20th."""
    burst = next((at for actor in told["actors"] for at, _ in loads.bursts(actor, told)), 0)
    actors = [{**actor, "phases": [{**phase, "at": 8 if phase["at"] == burst else 20} if phase["at"] else phase
                                   for phase in actor["phases"][:3]]} for actor in told["actors"]]  # fmt: skip
    return {**told, "seconds": 25, "actors": actors, "speeds": told["speeds"][:1]}


def alone(lab, disk, way, block, depth, known={}):
    """Bytes per second of such requests when nothing else uses the disk."""
    way = {"unpack": "write", "pgbench": "write", "buffered": "write"}.get(way, way)
    if (disk.name, way, block, depth) not in known:
        with lab.container(f"calibration-{way}-{block}-{depth}") as container:
            container.group.count_io(disk.number)
            words, _ = fio.WAYS[way]
            arguments = [f"--{word}" for word in words.split("\n")]
            before = sum(disk.bytes())
            style = [f"--bs={block}", f"--iodepth={depth}", "--norandommap", "--thread", "--time_based", f"--runtime={CALIBRATE_S}"]
            container.output("/usr/bin/env", "fio", "--name=alone", f"--filename={disk.path}", *arguments, *style, "--output=/dev/null")
            known[disk.name, way, block, depth] = (sum(disk.bytes()) - before) // CALIBRATE_S
    return known[disk.name, way, block, depth]


def tell_together(stages):
    """Stories under several arms at once, each on a disk of its own."""
    with ExitStack() as stack:
        ready = [stack.enter_context(stage) for stage in stages]
        with ThreadPoolExecutor(len(ready)) as pool:
            return [arm for arms_told in pool.map(lambda stage: stage.tell(), ready) for arm in arms_told]


def draw(studied, out):
    write(studied, out)
    disk = studied["timeline"]["capacity"] / 1e6
    title = f"{studied['workload'].upper()} on a disk of {disk:.0f} MB/s"
    draw_throughput(out, "throughput", title, studied["timeline"], studied["arms"])
