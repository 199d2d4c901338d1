"""The words and tables of a summary."""

from lab.jobs.disk import loads
from lab.stats import median, spread
from lab.tables import of_spread, short

SAMPLE_MS = 1000
LIMITING = ("static", "aridac", "lifeline")  # arms that write limits


def write(studied, out):
    figures = studied["figures"]
    out.say(introduction(studied))
    shared = {name: runs for name, runs in figures.items() if name != "alone"}
    out.table(["policy", "isolation", "its 5th percentile", "while contested", "work conservation", "while contested",
               "changes of a limit per minute"], [main_row(name, runs) for name, runs in shared.items()])  # fmt: skip
    out.say(
        "Isolation: what the worst served steady container got of what it wanted, second by second and at most all of it. Work "
        "conservation: what was done of what the disk could have done for somebody who wanted it. Contested: the seconds with not enough "
        "for all. Each figure is the median over runs (smallest to largest); the 5th percentile is over seconds."
    )
    every = [one for runs in shared.values() for one in runs]
    if any(one["burst_s"] for one in every):
        out.table(["policy", "burst", "first had 90 % of the idle bandwidth within", "had 90 % of what others did not take, over 5 s, from",
                   "had of the idle bandwidth in its last 10 s"], burst_rows(shared))  # fmt: skip
    if any(part is not None for one in every for _, part in one["learned"]):
        out.table(["policy", "at", "capacity it goes by, of the true one"], learned_rows(shared))
    alerts(studied, out)
    if any(one["latency_us"] and any(one["latency_us"].values()) for one in every):
        latency(figures, out)
    if studied.get("absent"):
        out.say("Not run here: " + "; ".join(f"{arm}: {reason}" for arm, reason in studied["absent"].items()) + ".")


def introduction(studied):
    told, name = studied["timeline"], studied["workload"]
    ways = {"read": "reads", "write": "writes"}
    arms = studied["arms"]
    if name in loads.PAPER:
        style = lambda one: f"{one['name']} with {one['style']['depth']} of {one['style']['block'] >> 10} KiB under way"
        styles = f"direct {ways[studied['direction']]} at random places, {', '.join(map(style, told['actors']))}"
    else:
        styles = "; ".join(groups(told))
    runs = "1 run" if studied["runs"] == 1 else f"{studied['runs']} runs"
    order = "at the same time on equal disks of their own, which they took in turn from run to run"
    if not studied["together"]:
        order = "one after the other on the same disk, in an order that rotated from run to run"
    late = max((ms - number * SAMPLE_MS for arm in arms for one in arm["series"] for number, ms in enumerate(one.get("ms", ()))), default=0)
    kept = " The seed keeps this load for the final run." if studied.get("unseen") else ""
    skew, best = max((arm["skew_ms"] for arm in arms), default=0), short(told["capacity"] / 1e6)
    return (
        f"{name.upper()}: {loads.story(name)} The disk does {best} MB/s at its best; {styles}; {told['seconds']} s; {runs}. "
        f"Policies ran {order}; containers began within {skew} ms of each other, and no sample came more than {late} ms late.{kept}"
    )


def groups(told):
    """Containers that are alike, in words."""
    alike = {}
    for one in told["actors"]:
        wants = " then ".join(f"{phase['want'] / 1e6:.3g} MB/s" if "unit" not in one else f"{phase['want']} {one['unit']} a second"
                              for phase in one["phases"])  # fmt: skip
        words = f"{one['way']}, {one['style']['depth']} of {one['style']['block'] >> 10} KiB under way, wants {wants}"
        alike.setdefault(words, []).append(one["name"])
    return [f"{names[0] if len(names) == 1 else f'{names[0]} to {names[-1]}'} ({words})" for words, names in alike.items()]


def percent(values):
    found = spread(value for value in values if value is not None)
    return f"{found.median * 100:.1f} % ({found.min * 100:.1f} to {found.max * 100:.1f})" if found else "-"


def main_row(name, runs):
    keys = ["isolation", "isolation_p05", "isolation_contested", "conservation", "conservation_contested"]
    return [name, *(percent(one[key] for one in runs) for key in keys), f"{median(one['changes_per_min'] for one in runs):.1f}"]


def nth(runs, key, number):
    return [one[key][number] for one in runs if number < len(one[key])]


def burst_rows(by_arm):
    rows = []
    for name, runs in by_arm.items():
        for number in range(max(len(one["burst_s"]) for one in runs)):
            first, kept, part = (nth(runs, key, number) for key in ("burst_s", "burst_kept_s", "burst_part"))
            rows.append([name, number + 1, times(first), times(kept), percent(part)])
    return rows


def times(values):
    found = spread(value for value in values if value is not None)
    said = [f"{found.median:.0f} s ({found.min:.0f} to {found.max:.0f})"] if found else []
    never = sum(value is None for value in values)
    return ", ".join(said + ([f"not in {never} of {len(values)} runs"] if never else []))


def learned_rows(by_arm):
    rows = []
    for name, runs in by_arm.items():
        for number in range(max(len(one["learned"]) for one in runs)):
            parts = [part for _, part in nth(runs, "learned", number) if part is not None]
            if parts:
                rows.append([name, f"{runs[0]['learned'][number][0]} s", percent(parts)])
    return rows


def alerts(studied, out):
    seen = {}
    for arm in studied["arms"]:
        for ms, kind in arm["told"]["alerts"]:
            seen.setdefault((arm["policy"], kind), []).append(ms / 1e3)
    if not seen:
        return out.say("No alerts.")
    order = list(studied["figures"])
    ordered = sorted(seen.items(), key=lambda row: (order.index(row[0][0]), row[0][1]))
    rows = [[name, kind, len(at), f"{of_spread(spread(at))} s"] for (name, kind), at in ordered]
    out.table(["policy", "alert", "in so many runs", "first at"], rows)


def latency(by_arm, out):
    rows = []
    for name, runs in by_arm.items():
        # The container that fares worst in most runs stands for the victims.
        known = [[values for values in one["latency_us"].values() if values] for one in runs]
        worst = [max(values, key=lambda value: value[1], default=None) for values in known]
        columns = [of_spread(spread(values[n] / 1e3 for values in worst if values)) for n in range(3)]
        ratio = of_spread(spread(one["p99_ratio"] for one in runs if one.get("p99_ratio") is not None))
        parts = [percent(one[key] for one in runs) for key in ("isolation_p01", "isolation_first")]
        answers = waits(runs, "answer_ms") if name in LIMITING else "-"
        rows.append([name, *columns, ratio, *parts, answers, waits(runs, "relief_ms")])
    out.table(["policy", "p50, ms", "p99, ms", "p99.9, ms", "p99 as a multiple of alone", "isolation, 1st percentile",
               "in a burst's first 2 s", "a limit answers within, ms", "the victim has relief within, ms"], rows)  # fmt: skip
    out.say(
        "Latency: from submission to completion as fio counts it, of the worst served steady container, over the contested seconds. Alone: "
        "without the others, under no policy. A limit answers: from when the kernel counts a burst until the first limit on a hog that was "
        "not there. Relief: until a victim has 90 % of what it wants over half a second that begins then; 0 where it never went without."
    )


def waits(runs, key):
    values = [value for one in runs for value in one[key]]
    found = spread(value for value in values if value is not None)
    never = sum(value is None for value in values)
    said = [f"{found.median:.0f} ({found.min:.0f} to {found.max:.0f})"] if found else []
    return ", ".join(said + ([f"not in {never} of {len(values)}"] if never else [])) or "-"
