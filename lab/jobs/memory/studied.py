"""The figures of a campaign: the paper's Table I with our rows, satisfied seconds, throughput, and the goals of this project. Pure."""

from lab.jobs.memory import samples, story
from lab.jobs.memory.story import WHO
from lab.stats import mean

# Part of a phase's seconds in which a container is served, from which on it counts as satisfied.
SATISFIED = 0.9
# Table I: the busy container reaches this part of its reference while the other is idle, or at least this many times its rate when both
# were busy.
REFERENCE, MORE = 0.95, 1.1
# What the agent calls a loan that hurt.
FAILED = ("hold", "quarantine")
# Arms as results of Rust call them.
OLDER = {"none": "no limits", "max": "max limits", "soft": "soft limits", "probes": "elbowroom", "blind": "elbowroom, no probes"}


def study(raw):
    """Samples by second of each arm's runs, in the order of tables: {arm: {title, agent, runs}}; references; the story."""
    told, steps = raw["story"], story.steps(raw["story"])
    described = raw.get("arms") or {name: {"title": title, "agent": name in ("probes", "blind")} for name, title in OLDER.items()}
    if "arms" not in raw and raw["machine"]["cgroup_v2"]:
        described["soft"]["title"] = "memory.low"
    arms = {}
    for run in [arm for runs in raw["runs"] for arm in runs]:
        arm = arms.setdefault(run["policy"], {**described[run["policy"]], "runs": []})
        arm["runs"].append(one_run(told, run))
    order = [name for name in described if name in arms]
    references = [samples.read(alone, lambda _: told["high"]) for alone in raw["references"]]
    found = {"story": told, "steps": steps, "machine": raw["machine"], "references": references, "runs": len(raw["runs"])}
    return {**found, "arms": {name: arms[name] for name in order}}


def one_run(told, run):
    """By container: samples by second; and the loans that hurt, with what the agent did where that is kept as counts."""
    asked = lambda who: lambda ms: ((story.asked(told, max(ms / 1000 - 1, 0)) or [[0, 0]])[0][who] or 0)
    seconds = []
    for who in range(len(WHO)):
        read = samples.read(run["samples"][who], asked(who))
        seconds.append({samples.second(sample): sample for sample in read if samples.second(sample) is not None})
    return {"seconds": seconds, "decided": run.get("decided", []), "counts": run.get("counts", {}), "steady": run.get("steady")}


def within(studied, run, who, step):
    """A container's samples in a step, by its second; None where it said nothing."""
    begin = sum(before.seconds for before in studied["steps"][:step])
    return [run["seconds"][who].get(begin + i) for i in range(studied["steps"][step].seconds)]


def is_satisfied(told, who, demand, sample):
    """It did its objective, or had nothing left to do that was asked for more than a tenth of a second ago."""
    asked = story.rate(told, demand)
    return sample.tps >= min(told["roles"][who]["objective"], asked) or sample.queue * 10 <= asked


def satisfied(studied, run, who, step):
    """Part of a step's seconds; one in which it said nothing is not counted."""
    demand = studied["steps"][step].demands[who]
    said = [sample for sample in within(studied, run, who, step) if sample]
    return sum(is_satisfied(studied["story"], who, demand, sample) for sample in said) / max(len(said), 1)


def rate(studied, run, who, step):
    """Transactions per second over a step; None of a container that is not there."""
    middle = mean(sample.tps for sample in within(studied, run, who, step) if sample)
    return middle and middle.mean


def recovery(studied, run, who, step):
    """Seconds of a step until the last two in a row in which it was not satisfied are over. One in which it said nothing is one of these."""
    demand = studied["steps"][step].demands[who]
    short = [not (sample and is_satisfied(studied["story"], who, demand, sample)) for sample in within(studied, run, who, step)]
    return max((i + 2 for i in range(len(short) - 1) if short[i] and short[i + 1]), default=0)


def failed_loans(studied, run):
    """The most loans in one step after which the agent took its hands off a container."""
    ends, at = [], 0
    for step in studied["steps"]:
        ends.append(at := at + step.seconds * 1000)
    failed = [next((i for i, end in enumerate(ends) if one["ms"] < end), None) for one in run["decided"] if one["what"] in FAILED and one["ms"] >= 0]
    return max((failed.count(i) for i in range(len(ends))), default=0)


def reference(studied, who):
    """Throughput and footprint alone."""
    alone = studied["references"][who]
    return mean(sample.tps for sample in alone), mean(sample.mib for sample in alone)


def over(studied, arm, value):
    """The mean over an arm's runs of what `value` says of each; None is left out."""
    runs = studied["arms"].get(arm, {"runs": []})["runs"]
    return mean(number for run in runs if (number := value(run)) is not None)


def middle(studied, arm, value):
    found = over(studied, arm, value)
    return found and found.mean


def contested(studied, run):
    """Percent of the seconds of phases 1 and 3 in which both are satisfied, container by container."""
    return 100 * mean(satisfied(studied, run, who, step) for step in (0, 2) for who in (0, 1)).mean


def always(studied, run):
    there = [(step, who) for step, each in enumerate(studied["steps"]) for who in (0, 1) if each.demands[who]]
    return 100 * mean(satisfied(studied, run, who, step) for step, who in there).mean


# ---- Table I ----

def isolation(studied, arm):
    """yes or no, in the paper's words: whether A, whose right is larger, has more than B while both are busy."""
    tps = lambda who, step: middle(studied, arm, lambda run: rate(studied, run, who, step)) or 0
    return "yes" if all(tps(0, step) >= MORE * tps(1, step) for step in (0, 2)) else "no"


def consolidation(studied, arm):
    """yes, weak or no: whether the busy one reaches its reference while the other is idle, or at least gains; parts of the reference."""
    tps = lambda who, step: middle(studied, arm, lambda run: rate(studied, run, who, step)) or 0
    busy = ((0, 1), (1, 4))  # A in phase 2, B in phase 5
    parts = [tps(who, step) / reference(studied, who)[0].mean for who, step in busy]
    before = [tps(0, 0), tps(1, 2)]
    if min(parts) >= REFERENCE:
        return "yes", parts
    return ("weak" if all(tps(*at) >= MORE * less for at, less in zip(busy, before)) else "no"), parts


# ---- what is to be reached ----

def goals(studied):
    """Rows of (goal, {arm: text})."""
    return [(goal, {arm: cell(studied, arm) for arm in studied["arms"]}) for goal, cell in GOALS]


def verdict(text, met):
    return text if met is None else f"{text}: {'met' if met else '**missed**'}"


def percent(value, least=None):
    if value is None:
        return "-"
    return verdict(f"{value:.1f} %", None if least is None else value >= least)


def isolated(studied, arm):
    most = middle(studied, "max", lambda run: contested(studied, run))
    return percent(middle(studied, arm, lambda run: contested(studied, run)), most and most - 1)


def of_none(who, step):
    def cell(studied, arm):
        tps = lambda name: middle(studied, name, lambda run: rate(studied, run, who, step))
        ours, none = tps(arm), tps("none")
        return percent(ours / none * 100, 90) if ours is not None and none else "-"

    return cell


def of_reference(who, step):
    def cell(studied, arm):
        tps, alone = middle(studied, arm, lambda run: rate(studied, run, who, step)), reference(studied, who)[0]
        return percent(tps / alone.mean * 100, 95) if tps is not None and alone else "-"

    return cell


def both_served(studied, arm):
    return percent(middle(studied, arm, lambda run: 100 * min(satisfied(studied, run, who, 3) for who in (0, 1))), 100 * SATISFIED)


def slowest(studied, arm):
    seconds = max(recovery(studied, run, who, 2) for run in studied["arms"][arm]["runs"] for who in (0, 1))
    return verdict("never" if seconds >= studied["steps"][2].seconds else f"{seconds} s", seconds < 5)


def hurt(studied, arm):
    arm = studied["arms"][arm]
    if not has_agent(arm):
        return "-"
    most = max(failed_loans(studied, run) for run in arm["runs"])
    return verdict(str(most), most <= 3)


def has_agent(arm):
    return arm.get("agent") not in (None, False)


def satisfied_always(studied, arm):
    told = middle(studied, "probes", lambda run: always(studied, run)) if arm == "blind" else None
    return percent(middle(studied, arm, lambda run: always(studied, run)), told and told - 5)


GOALS = [
    ("satisfied in phases 1 and 3: within 1 point of max limits", isolated),
    ("A's throughput in phase 2: at least 95 % of its reference", of_reference(0, 1)),
    ("B's throughput in phase 5: at least 95 % of its reference", of_reference(1, 4)),
    ("B's throughput in phase 6: at least 95 % of its reference", of_reference(1, 5)),
    ("A's throughput in phase 2: at least 90 % of that without limits", of_none(0, 1)),
    ("B's throughput in phase 5: at least 90 % of that without limits", of_none(1, 4)),
    ("satisfied in phase 4, the less satisfied of both: at least 90 %", both_served),
    ("neither short for two seconds in a row any more in phase 3, slowest run: within 5 s", slowest),
    ("loans that hurt, most in a phase: at most 3", hurt),
    ("satisfied in all phases; without probes within 5 points of with", satisfied_always),
]
