"""How calm is a container's CPU view under steady load, and how soon does it follow, beside the paper's rule?

Containers want every CPU. The neighbours start, work for a while beside the first, and stop; a thread outside looks at the first one's
`online` file every 5 ms. Rules take turns, one agent at a time."""

import contextlib
import os
import threading
import time

from kit.container import cpu_list
from lab.stats import spread
from lab.sysinfo import online_cpus

LASTS = "1 min a rule and round"
ONLINE = "sys/devices/system/cpu/online"
RULES = ["waterfill", "paper"]
FIGURES = {"down_s": "down, s", "up_s": "up, s", "changes_per_minute": "changes a minute under steady load"}


def options(parser):
    parser.add_argument("--rounds", type=int, default=5, help="how often each rule is measured")
    parser.add_argument("--steady", type=float, default=40, help="seconds of steady load")
    parser.add_argument("--settle", type=float, default=5, help="seconds that a change may take to be followed")
    parser.add_argument("--neighbours", type=int, default=1, help="containers beside the first")
    parser.add_argument("--rules", nargs="+", default=RULES, help="values of view_rules.cpu")


def record(lab, options):
    cpus = online_cpus()
    raw = {"cpus": cpus, "neighbours": options.neighbours, "steady": options.steady, "settle": options.settle, "runs": []}
    for number in range(options.rounds):
        turn = number % len(options.rules)
        for rule in options.rules[turn:] + options.rules[:turn]:
            name = f"r{number}-{rule}"
            agent = lab.agent(name, f'view_rules.cpu = "{rule}"', prefix=f"{name}-")
            with contextlib.ExitStack() as held:
                one, *others = (held.enter_context(lab.container(f"{name}-{n}", agent=agent)) for n in range(1 + options.neighbours))
                raw["runs"].append({"round": number, "rule": rule, **follow(one, others, cpus, options)})
            agent.close()
            lab.keep(raw)
    return raw


def follow(one, others, cpus, options):
    """The figures of a run, in seconds and changes. The loads end before their containers."""
    with contextlib.ExitStack() as held:
        container, *neighbours = (held.enter_context(contextlib.closing(each.inside())) for each in (one, *others))
        watch = held.enter_context(Watch(one.pid))
        container.burn(cpus)
        time.sleep(options.settle)
        begin = time.monotonic()
        for neighbour in neighbours:
            neighbour.burn(cpus)
        time.sleep(options.settle)
        still = time.monotonic()
        time.sleep(options.steady)
        stop = time.monotonic()
        for neighbour in neighbours:
            neighbour.calm()
        time.sleep(options.settle)
        end = time.monotonic()
    return {
        "down_s": round(watch.settled_after(begin, still), 3),
        "up_s": round(watch.settled_after(stop, end), 3),
        "changes_per_minute": round(watch.changes(still, stop) * 60 / (stop - still), 1),
        "shown": {cpus: round(part, 3) for cpus, part in sorted(watch.shown(still, stop).items())},
    }


class Watch:
    """Looks at the CPUs that are online in a container's view every few milliseconds, from outside, as its root directory shows them."""

    def __init__(self, pid, every=0.005):
        self.file = os.open(f"/proc/{pid}/root/{ONLINE}", os.O_RDONLY)
        self.every = every
        self.seen = []  # (time, CPUs) of each change, the first look included
        self.end = threading.Event()
        self.thread = threading.Thread(target=self.look)

    def look(self):
        while not self.end.is_set():
            now = len(cpu_list(os.pread(self.file, 4096, 0).decode()))
            if not self.seen or self.seen[-1][1] != now:
                self.seen.append((time.monotonic(), now))
            time.sleep(self.every)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        self.thread.join()
        os.close(self.file)

    def changes(self, since, until):
        """Changes of the view in that time."""
        return sum(since < at <= until for at, _ in self.seen[1:])

    def settled_after(self, since, until):
        """Seconds from `since` to the last change before `until`; 0 where there was none."""
        return max((at - since for at, _ in self.seen[1:] if since < at <= until), default=0.0)

    def shown(self, since, until):
        """The CPUs shown in that time, each with the part of the time."""
        steps = [*self.seen, (float("inf"), 0)]
        parts = {}
        for (at, cpus), (next_at, _) in zip(steps, steps[1:]):
            time_shown = min(until, next_at) - max(since, at)
            if time_shown > 0:
                parts[cpus] = parts.get(cpus, 0.0) + time_shown / (until - since)
        return parts


def study(raw):
    rules = list(dict.fromkeys(run["rule"] for run in raw["runs"]))
    of = lambda rule, key: spread(run[key] for run in raw["runs"] if run["rule"] == rule)
    return {"neighbours": raw.get("neighbours", 1), **{key: raw[key] for key in ("cpus", "steady")}, "rules": {rule: {key: of(rule, key) for key in FIGURES} for rule in rules}}


def draw(studied, out):
    many, each = {1: ("two", "both")}.get(studied["neighbours"], (1 + studied["neighbours"], "all"))
    out.say(
        f"On {studied['cpus']} CPUs, each shared by {many} containers that want all of them. Down: from the neighbour's start to the last change of the "
        f"view; up: from its end. Changes: in {studied['steady']:g} s in which {each} compute. Medians (smallest to largest)."
    )
    words = lambda figure: f"{figure.median:g} ({figure.min:g} to {figure.max:g})"
    out.table(["rule", *FIGURES.values()], [[rule, *(words(figures[key]) for key in FIGURES)] for rule, figures in studied["rules"].items()])
