"""What do LinkedIn's pitfalls of memory in cgroups cost a JVM, and what does each strategy save?

The paper's sections III.A to III.D and V.A to V.D, made for real on a machine that is short of memory. A machine of more than 4 GiB is not
filled, for others work on it: there a cgroup with a limit stands for the machine. It has no kswapd, no watermarks and no swap, and the
commands that work on the whole machine (pretouch, housekeeping) have nothing to do there. A guest of `tools/vm` has all of that."""

from lab.jobs.pitfalls import scenes
from lab.jobs.pitfalls.figures import draw  # noqa: F401
from lab.jobs.pitfalls.throughput import study  # noqa: F401

LASTS = "2 to 10 min a scene of III, 20 min a variant of V"
NEEDS = ["java", "javac", "cc", "mkfs.ext4", "losetup"]


def options(parser):
    parser.add_argument("--scene", choices=list(scenes.TITLES), required=True, help="the paper's section")
    parser.add_argument("--runs", type=int, default=5, help="how often each variant is measured (5)")
    parser.add_argument("--seconds", type=int, default=300, help="how long a run of V lasts (300, as in the paper)")
    parser.add_argument("--again", action="store_true", help="III.C: the host reads its files over and over, not once as in the paper")


def tag(options):
    return options.scene + ("-again" if options.again else "")


def record(lab, options):
    from lab.jobs.pitfalls.stage import Stage, the_machine

    machine = the_machine()
    story = scenes.story(options.scene, machine["mib"], machine["guest"], options.seconds, options.again)
    raw = lab.resumed or {"scene": options.scene, "machine": machine, "story": story, "runs": []}
    with Stage(lab, options.scene, raw["story"], machine) as stage:
        for run in range(len(raw["runs"]), options.runs):
            arms = scenes.arms(options.scene, machine)
            told = []
            for i, arm in enumerate(turn := arms[run % len(arms) :] + arms[: run % len(arms)]):
                name = scenes.name(options.scene, arm)
                print(f"run {run + 1} of {options.runs}, {i + 1} of {len(turn)}: {name}", flush=True)
                told.append(stage.tell(arm))
            raw["runs"].append(told)
            lab.keep(raw)
    return raw
