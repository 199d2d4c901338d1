"""Tables, and figures as the paper's 1 to 3: what each container does, and what memory it has, over time; one panel for each arm."""

from lab.jobs.memory import studied as study
from lab.jobs.memory.story import WHO, length, mib
from lab.stats import mean
from lab.tables import of_mean, plain

THRESHOLD = f"{study.SATISFIED:.0%}".replace("%", " %")


def draw(studied, out):
    out.say(explain(studied))
    (a, a_mib), (b, b_mib) = (study.reference(studied, who) for who in (0, 1))
    out.say(f"Reference, each alone with all memory: A {of_mean(a)} transactions per second and {of_mean(a_mib)} MiB, B {of_mean(b)} and "
            f"{of_mean(b_mib)} MiB.")  # fmt: skip
    if not studied["arms"]:
        return out.say("No run yet.")
    if studied["story"].get("load", "phases") == "phases":
        by_phase(studied, out)
    else:
        by_load(studied, out)
    unsteady = sum(run["steady"] is False for arm in studied["arms"].values() for run in arm["runs"])
    late = f" In {unsteady} runs memory still moved when the first phase began." if unsteady else ""
    out.say(f"Means of {studied['runs']} runs ± standard deviation; policies took turns.{late} {studied['machine']['versions']}.")
    figures(studied, out)


def by_phase(studied, out):
    out.say("Table I of the paper, in its words. Isolation: A, whose right is larger, has at least a tenth more throughput than B in phases 1 "
            "and 3. Consolidation: who is busy while the other is idle (A in phase 2, B in 5) has 95 % of its reference; weak, where it only has "
            "a tenth more than in the phase before. Beside it, the part of their seconds in which both containers are satisfied in phases 1 and "
            "3.")  # fmt: skip
    head = ["mechanism", "memory consolidation", "memory performance isolation", "of the reference, A in 2 and B in 5", "satisfied in 1 and 3"]
    out.table(head, table_one(studied))
    head = ["policy", "", *(step.title for step in studied["steps"])]
    out.say(f"Satisfied: the part of a phase's seconds in which a container did its objective, or all that it was asked; yes from {THRESHOLD} on.")
    out.table(head, rows(studied, satisfied_cell))
    out.say("Transactions per second:")
    out.table(head, rows(studied, rate_cell))
    out.say("Memory at the end of a phase, MiB:")
    out.table(head, rows(studied, memory_cell))
    out.say("What was to be reached:")
    out.table(["goal", *titles(studied).values()], [[goal, *cells.values()] for goal, cells in study.goals(studied)])


def table_one(studied):
    lines = []
    for name, title in titles(studied).items():
        word, parts = study.consolidation(studied, name)
        seconds = study.over(studied, name, lambda run: study.contested(studied, run))
        of_reference = ", ".join(f"{100 * part:.0f} %" for part in parts)
        lines.append([title, word, study.isolation(studied, name), of_reference, f"{seconds.mean:.1f} ± {seconds.deviation:.1f} %"])
    return lines


def by_load(studied, out):
    """Other loads than the six phases: what each arm serves over all of it."""
    out.say("Over all of the load: the part of its seconds in which a container is satisfied, the worst run beside the mean; and transactions "
            "per second.")  # fmt: skip
    head = ["policy", "A satisfied", "worst", "B satisfied", "worst", "A per second", "B per second", "loans that hurt, most"]
    out.table(head, [load_row(studied, name, title) for name, title in titles(studied).items()])


def load_row(studied, name, title):
    arm, row = studied["arms"][name], [title]
    for who in (0, 1):
        parts = [overall(studied, run, who) for run in arm["runs"]]
        row += [f"{mean(parts).mean:.1f} ± {mean(parts).deviation:.1f} %", f"{min(parts):.1f} %"]
    for who in (0, 1):
        row.append(of_mean(mean(mean(s.tps for s in run["seconds"][who].values()).mean for run in arm["runs"] if run["seconds"][who])))
    return [*row, str(max(study.failed_loans(studied, run) for run in arm["runs"])) if study.has_agent(arm) else "-"]


def overall(studied, run, who):
    """Percent of a container's seconds in which it is satisfied."""
    there = (step for step, each in enumerate(studied["steps"]) if each.demands[who])
    counted = [(step, sum(sample is not None for sample in study.within(studied, run, who, step))) for step in there]
    seconds = sum(n for _, n in counted)
    return 100 * sum(study.satisfied(studied, run, who, step) * n for step, n in counted) / max(seconds, 1)


def titles(studied):
    return {name: arm["title"] for name, arm in studied["arms"].items()}


def rows(studied, cell):
    """Per arm and container, what `cell` says of each phase."""
    lines = []
    for name, title in titles(studied).items():
        for who in (0, 1):
            there = (step.demands[who] for step in studied["steps"])
            lines.append([title, WHO[who], *(cell(studied, name, who, i) if demand else "-" for i, demand in enumerate(there))])
    return lines


def satisfied_cell(studied, arm, who, step):
    part = study.over(studied, arm, lambda run: 100 * study.satisfied(studied, run, who, step))
    return f"{'yes' if part.mean >= 100 * study.SATISFIED else '**no**'}, {part.mean:.0f} ± {part.deviation:.0f} %"


def rate_cell(studied, arm, who, step):
    return of_mean(study.over(studied, arm, lambda run: study.rate(studied, run, who, step)))


def memory_cell(studied, arm, who, step):
    last = lambda run: next((sample.mib for sample in reversed(study.within(studied, run, who, step)) if sample), None)
    return of_mean(study.over(studied, arm, last))


def explain(studied):
    story, machine = studied["story"], studied["machine"]
    a, b = story["roles"]
    place = f"A cgroup ({'v2' if machine['cgroup_v2'] else 'v1'}) with that limit stands for the machine; there is no swap."
    if not machine["stand_in"]:
        place = "The machine is a guest (cgroup v1), where another container holds all else, without swap."
    if story.get("system_mib"):
        place += f" {story['system_mib']} MiB of it are locked, as the kernel and its daemons are of the paper's machine of 3 GB."
    by = "by one statement" if story.get("at_once") else "by its oltp_read_only"
    late = " What is not begun in its time is not asked for again." if "steps" in story else ""
    lasts = f"a phase lasts {story['seconds']} s"
    if story.get("load", "phases") != "phases":
        lasts = f"the load is `{story['load']}`, {length(story)} s of it"
    return (f"Two containers with a database each (MariaDB, a table of {mib(story['table'])} MiB that is read through the page cache, ten rows at "
            f"random a transaction of sysbench, {by}) share {story['machine_mib']} MiB. {place} Each may read {plain(story['disk'] / 1e6)} MB/s from "
            f"the disk, so what is not in memory costs. A is entitled to {a['right_mib']} MiB and has an objective of {a['objective']} transactions "
            f"per second, B to {b['right_mib']} MiB and {b['objective']}. High is {story['high']} transactions per second asked for, low "
            f"{story['low']}; {lasts}.{late}")  # fmt: skip


# ---- figures ----

def figures(studied, out):
    story = studied["story"]
    alone = [study.reference(studied, who) for who in (0, 1)]
    objectives, rights = ([role[key] for role in story["roles"]] for key in ("objective", "right_mib"))
    tps, footprint = (mean(each[i].mean for each in alone).mean for i in (0, 1))
    panels(studied, out, "throughput", "Transactions per second: mean over runs, and deviation", "per second", lambda sample: sample.tps,
           objectives, tps, story["low"], "Green: the reference. Black: the low load. Dashed: the objectives.")  # fmt: skip
    panels(studied, out, "memory", "Memory of each container: mean over runs, and deviation", "MiB", lambda sample: sample.mib,
           rights, footprint, None, "Green: the reference. Dashed: what each is entitled to.")  # fmt: skip


def panels(studied, out, name, title, unit, value, marks, reference, low, caption):
    import numpy
    from lab import plot

    arms, count = studied["arms"], len(studied["arms"])
    colors, end = plot.PALETTE[:2], length(studied["story"])
    curves = {arm: [over_runs(each["runs"], who, value, end) for who in (0, 1)] for arm, each in arms.items()}
    top = 1.08 * max([point.mean + point.deviation for both in curves.values() for curve in both for _, point in curve] + [*marks, reference])
    height = 62 + min(max(620 // count, 128), 210) * count + 56
    with out.figure(name, title, height, rows=count, head=88, right=24) as all_axes:
        all_axes = numpy.atleast_1d(all_axes)
        for axes, arm in zip(all_axes, arms):
            panel(axes, studied, curves[arm], marks, reference, low, colors)
            plot.title(axes, arms[arm]["title"])
            plot.axis(axes, "y", unit, limits=(0, top))
            plot.axis(axes, "x", "time (s)" if axes == all_axes[-1] else "", limits=(0, end))
        plot.legend(all_axes[0], dict(zip(WHO, colors)), caption, height)


def panel(axes, studied, curves, marks, reference, low, colors):
    begins = [sum(step.seconds for step in studied["steps"][:i]) for i in range(1, len(studied["steps"]))]
    for begin in begins:
        axes.axvline(begin, color="#787878", linewidth=1)
    axes.axhline(reference, color="#009e73", linewidth=1.5)
    if low:
        axes.axhline(low, color="black", linewidth=1)
    for curve, mark, color in zip(curves, marks, colors):
        axes.axhline(mark, color=color, linewidth=1.5, linestyle="--")
        times = [at for at, _ in curve]
        lower, upper = ([max(p.mean + sign * p.deviation, 0) for _, p in curve] for sign in (-1, 1))
        axes.fill_between(times, lower, upper, color=color, alpha=0.25, linewidth=0)
        axes.plot(times, [p.mean for _, p in curve], color=color)


def over_runs(runs, who, value, end):
    """The mean over runs at the middle of each second in which something was said."""
    found = []
    for second in range(end):
        said = [value(run["seconds"][who][second]) for run in runs if second in run["seconds"][who]]
        if said:
            found.append((second + 0.5, mean(said)))
    return found
