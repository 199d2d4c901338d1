"""The figures of a run. In the words of resctl-bench: isolation and work conservation. In those of the paper: how fast a burst gets idle
bandwidth. Also the error of what was learned about the disk, and the effect of a burst on latency."""

import math

from lab.fio import quantile_of
from lab.jobs.disk import arms, loads

SERVED = 0.9  # part of the idle bandwidth at which a burst counts as served, and of what it wants at which a victim does
KEPT_S = 5  # seconds over which a burst has that, on the mean, when it is said to keep it
LEARNED_S = 60  # time after which what was learned must be right
TAIL_S = 10  # the end of a burst over which its rate is taken
FIRST_S = 2  # of a burst, in which a victim may not be left alone either
CLOSE_QUIET_MS = 300  # before a burst is due, fio may begin it: early by what it was late with its start
RELIEF_MS = 500  # over which a victim must be served for relief


def study(raw):
    """The figures of each arm, one per run."""
    told = raw["timeline"]
    recorded = [arm for run in raw["runs"] for arm in run]
    by_arm = {name: [figures(arm, arms.part(name, told)) for arm in recorded if arm["policy"] == name] for name in arms.NAMES}
    by_arm = {name: runs for name, runs in by_arm.items() if runs}
    latency_ratios(by_arm, raw["runs"])
    return {**{key: raw.get(key) for key in ("workload", "scale", "direction", "together", "timeline", "absent", "unseen")},
            "runs": len(raw["runs"]), "arms": recorded, "figures": by_arm}  # fmt: skip


def latency_ratios(by_arm, runs):
    """p99 of the worst victim as a multiple of what it has alone in the same run."""
    turn = dict.fromkeys(by_arm, 0)
    for run in runs:
        ours = {}
        for arm in run:
            ours[arm["policy"]] = by_arm[arm["policy"]][turn[arm["policy"]]]
            turn[arm["policy"]] += 1
        base = ours.get("alone", {}).get("latency_us") or {}
        for one in ours.values():
            ratios = [values[1] / base[name][1] for name, values in one["latency_us"].items() if values and base.get(name)]
            one["p99_ratio"] = max(ratios, default=None)


def rates(series, times=None):
    """Bytes per second over each interval between samples."""
    ms, kb = series.get("ms") or times, series["kb"]
    return [(kb[n + 1] - kb[n]) * 1e6 / max(ms[n + 1] - ms[n], 1) for n in range(min(len(ms), len(kb)) - 1)]


def truth(speeds, begin, end):
    """The disk's true speed over an interval, in bytes per second, by when it was really set."""
    ends = [at for at, _ in speeds[1:]] + [math.inf]
    return sum(max(min(end, until) - max(begin, at), 0) * speed for (at, speed), until in zip(speeds, ends)) / max(end - begin, 1)


def mean(values):
    return sum(values) / len(values) if values else 1.0


def low(values, percent):
    """The value below which `percent` of a hundred are."""
    ordered = sorted(values)
    return ordered[len(ordered) * percent // 100] if ordered else 1.0


def figures(arm, told):
    """One story under one arm. Parts of 1."""
    times = next((series["ms"] for series in arm["series"] if "ms" in series), [])
    of = [rates(series, times) for series in arm["series"]]
    seconds = min(told["seconds"], *(len(one) for one in of))
    speed = [truth(arm["speeds"], times[n], times[n + 1]) for n in range(seconds)]
    everything = range(seconds)
    contested = [second for second in everything if loads.contested(told, second)]
    steady = [number for number, actor in enumerate(told["actors"]) if actor["steady"]]

    def served(number, which):
        actor, done = told["actors"][number], arm["series"][number].get("done")
        got = done if "unit" in actor else of[number]
        return [min(got[second] / loads.want(actor, second), 1.0) for second in which if second < len(got) and loads.want(actor, second)]

    worst = lambda which, figure: min([1.0, *(figure(served(number, which)) for number in steady)])
    first = [at + n for actor in told["actors"] for at, _ in loads.bursts(actor, told) for n in range(FIRST_S)]
    conserved = conservation(arm, told, of, speed)
    return {
        "isolation": worst(everything, mean),
        "isolation_p05": worst(everything, lambda values: low(values, 5)),
        "isolation_p01": worst(everything, lambda values: low(values, 1)),
        "isolation_contested": worst(contested, mean),
        "isolation_first": worst([second for second in first if second < seconds], mean) if first else None,
        "conservation": conserved(everything),
        "conservation_contested": conserved(contested),
        "learned": learned(arm, told),
        "changes_per_min": changes(arm, told),
        "latency_us": {told["actors"][number]["name"]: latency(arm["series"][number]) for number in steady},
        "answer_ms": [answer(look) for look in arm.get("close", ())],
        "relief_ms": [relief(look, told) for look in arm.get("close", ()) if "unit" not in told["actors"][steady[0]]],
        **served_bursts(told, of, speed, seconds),
    }


def conservation(arm, told, of, speed):
    """The part that was done of the work that the disk could have done for containers that wanted it. On cgroup v1 buffered writes are
    charged to no container, so the disk's own count beyond the containers' is added. Requests count as what the disk could have done of the
    best ones in that time."""
    weight = [told["capacity"] / loads.most(actor, told) for actor in told["actors"]]
    disk = arm.get("disk_kb")
    disk_rates = [(after - before) * 1000 for before, after in zip(disk, disk[1:])] if disk else None
    unnamed = [part for part, actor in zip(weight, told["actors"]) if actor.get("way") in ("buffered", "unpack")] or [min(weight)]

    def done(second):
        own = sum(one[second] * part for one, part in zip(of, weight))
        rest = disk_rates[second] - sum(one[second] for one in of) if disk_rates else 0
        return own + max(rest, 0) * unnamed[0]

    def conserved(which):
        possible = {second: min(speed[second], loads.wanted(told, second)) for second in which}
        return sum(min(done(second), possible[second]) for second in which) / max(sum(possible.values()), 1.0)

    return conserved


def served_bursts(told, of, speed, seconds):
    """Three figures of each burst; None for never. The second in which it first had 90 % of what the others' demand left idle: before a
    policy knows of a burst, nothing holds it back. The second from which it had 90 % of what the others did not take, on the mean over
    five. What it had of the idle bandwidth over its last ten seconds."""
    found = {"burst_s": [], "burst_kept_s": [], "burst_part": []}
    for number, actor in enumerate(told["actors"]):
        weight = told["capacity"] / loads.most(actor, told)
        for begin, end in loads.bursts(actor, told):
            window = list(range(begin, min(end, seconds)))
            others = lambda second: loads.wanted(told, second) - loads.demand(actor, told, second)
            mine = lambda second: of[number][second] * weight
            part = lambda second: mine(second) / max(speed[second] - others(second), 1.0)
            weighed = lambda second: [one[second] * told["capacity"] / loads.most(other, told) for one, other in zip(of, told["actors"])]
            taken = lambda second: sum(weighed(second)) - mine(second)
            left = lambda second: mine(second) / max(speed[second] - taken(second), 1.0)
            found["burst_s"].append(next((float(second + 1 - begin) for second in window if part(second) >= SERVED), None))
            fives = [window[n:n + KEPT_S] for n in range(len(window) - KEPT_S + 1)]
            kept = (float(five[0] + 1 - begin) for five in fives if mean([left(second) for second in five]) >= SERVED)
            found["burst_kept_s"].append(next(kept, None))
            found["burst_part"].append(mean([part(second) for second in window[::-1][:TAIL_S]]))
    return found


def learned(arm, told):
    """(second, learned capacity as a part of the truth): a minute after the first burst and after every change of speed, or when the next
    change comes first. None where nothing was learned."""
    contested = [second for second in range(told["seconds"]) if loads.contested(told, second)]
    if not contested:
        return []
    events = [contested[0], *(at for at, _ in told["speeds"] if contested[0] < at < contested[-1])]
    found = []
    for event, end in zip(events, [*events[1:], contested[-1] + 1]):
        at = min(event + LEARNED_S, end)
        known = [kb for time, _, kb in arm["told"]["disk"] if time < at * 1000][-1:]
        kb = known[0] if known else None
        found.append((at, kb and kb * 1000 / truth(arm["speeds"], at * 1000 - 1000, at * 1000)))
    return found


def changes(arm, told):
    """How often a limit changed, per container and minute."""
    caps = [series["cap_kb"] for series in arm["series"] if "cap_kb" in series]
    changed = sum(before != after for one in caps for before, after in zip(one, one[1:]))
    return changed * 60 / told["seconds"] / max(len(caps), 1)


def latency(series):
    """p50, p99 and p99.9 in microseconds over the seconds that count; None where nothing was measured."""
    counts = {upper: count for upper, count in series.get("latency_us", ())}
    return [quantile_of(counts, part) for part in (500, 990, 999)] if counts else None


def began(look):
    """The look in which the kernel saw the burst: the hogs had as much within 100 ms as before it in a second. Where it counts nothing for
    them, as of buffered writes on cgroup v1, the one in which the burst was due."""
    before = max((kb for ms, kb in zip(look["ms"], look["hog_kb"]) if ms < -CLOSE_QUIET_MS), default=0)
    quiet = before / (1 - CLOSE_QUIET_MS / 1000) if before else 0
    for n in range(2, len(look["ms"])):
        if look["ms"][n] >= -CLOSE_QUIET_MS and look["hog_kb"][n] - look["hog_kb"][n - 2] > max(quiet, 1):
            return n
    return next(n for n, ms in enumerate(look["ms"]) if ms >= 0)


def answer(look):
    """Milliseconds from a burst to the first limit on a hog, or the first that is another; None where none came. 0 where a hog was held to
    its habit before."""
    start = began(look)
    since = look["ms"][start]
    if [cap for ms, cap in look["caps_kb"] if ms < since][-1] is not None:
        return 0
    return next((ms - since for ms, _ in look["caps_kb"] if ms >= since), None)


def relief(look, told):
    """Milliseconds from a burst until the first victim has 90 % of what it wants, over half a second that begins then; None where it has
    not within five seconds."""
    victim = next(actor for actor in told["actors"] if actor["steady"])
    start = began(look)
    want_kb = loads.want(victim, look["at"]) / 1000
    for n in range(start, len(look["ms"])):
        end = next((k for k in range(n, len(look["ms"])) if look["ms"][k] - look["ms"][n] >= RELIEF_MS), None)
        if end is None:
            return None
        if look["victim_kb"][end] - look["victim_kb"][n] >= SERVED * want_kb * (look["ms"][end] - look["ms"][n]) / 1000:
            return look["ms"][n] - look["ms"][start]
    return None
