"""Rounds of arms, and what all figures say of them."""

import time

from lab.jobs.runtimes.stage import Broken
from lab.stats import spread
from lab.tables import of_spread


class Clock:
    """The time that a figure has."""

    def __init__(self, seconds):
        self.until = time.monotonic() + seconds

    def left(self):
        return self.until - time.monotonic()


def say(*words):
    print(time.strftime("%H:%M:%S"), *words, flush=True)


def measure(raw, groups, tell, keep, runs, clock):
    """Measures the arms of each group side by side, {name: value} each. The first one changes from round to round. Measurements in `raw`
    are not repeated. Ends before the time is over, and keeps what there is after each group."""
    took = {}
    for number in range(runs):
        for group in groups:
            turn = number % len(group)
            for key in group[turn:] + group[:turn]:
                if any(arm["round"] == number and all(arm[name] == value for name, value in key.items()) for arm in raw["arms"]):
                    continue
                like = tuple(value for name, value in key.items() if name != "arm")
                if clock.left() < 1.15 * took.get(like, max(took.values(), default=0)):
                    return raw
                name, began = ", ".join(map(str, key.values())), time.monotonic()
                say(f"run {number + 1} of {runs}: {name}")
                try:
                    raw["arms"].append({"round": number, **key, **tell(**key)})
                except Broken as error:
                    say(f"not measured: {name}: {error}")
                    raw["broken"].append(f"{name}: {error}")
                took[like] = max(took.get(like, 0), time.monotonic() - began)
            keep(raw)
    return raw


def chosen(wanted, there, what):
    """The wanted names of `there`, in its order; all where none is named."""
    unknown = [name for name in wanted or [] if name not in there]
    if unknown:
        raise ValueError(f"there is no {what} {', '.join(unknown)} here: {', '.join(there)}")
    return [name for name in there if not wanted or name in wanted]


def said(values):
    return of_spread(spread([value for value in values if value is not None]))


def unique(values):
    return list(dict.fromkeys(values))


def within(runs, others, value):
    """[the ratio of a figure to another arm's in the same round]."""
    base = {arm["round"]: value(arm) for arm in others}
    return [value(arm) / base[arm["round"]] for arm in runs if base.get(arm["round"], 0) > 0]


def between(pair):
    return "-" if pair is None else str(pair[0]) if pair[0] == pair[1] else f"{pair[0]} to {pair[1]}"


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def broken(raw):
    return ["Not measured: " + "; ".join(" ".join(why.split())[:90] for why in raw["broken"]) + "."] if raw["broken"] else []
