"""The figures of a campaign: throughput before and while something happens to the application, and what the kernel counted. Pure."""

from lab.jobs.pitfalls import scenes
from lab.stats import median, spread

# How long after its start a JVM counts as warm; time between two points of a figure.
WARM_MS, STEP_MS = 1000, 200
STALLS = ["allocstall_dma32", "allocstall_normal", "allocstall_movable"]
VICTIMS = {"app": "memory", "second": "second_memory", "root": "root_memory"}


def study(raw):
    scene, story = scenes.scene_of(raw), raw["story"]
    arms = sorted((arm for run in raw["runs"] for arm in run), key=lambda arm: scenes.order(arm["variant"]))
    by_name = {}
    for arm in arms:
        by_name.setdefault(scenes.name(scene, arm["variant"]), []).append(arm)
    parts = parts_of(raw, scene)
    return {
        "scene": scene,
        "machine": raw["machine"],
        "story": story,
        "runs": len(raw["runs"]),
        "rows": {name: throughput(scene, story, found, parts.get(name, [])) for name, found in by_name.items()},
        "counters": {name: counters(raw["machine"], found) for name, found in by_name.items()},
        "victims": {name: victims(found) for name, found in by_name.items() if "second_memory" in found[0]},
        "curves": {name: curves(story, found) for name, found in by_name.items()},
    }


# ---- throughput ----


def between(low, high, x):
    return low[1] + (x - low[0]) / max(1, high[0] - low[0]) * (high[1] - low[1])


def done_at(done, ms):
    """Pieces done by some time, between samples in proportion. The first sample can be late: nothing was done at 0."""
    before = (0, 0)
    for sample in done:
        if sample[0] >= ms:
            return between(before, sample, ms)
        before = sample
    return before[1]


def rate(done, start, end):
    """Pieces a second between two times."""
    return (done_at(done, end) - done_at(done, start)) / (end - start) * 1e3


def when(done, pieces):
    """When `pieces` of them were done; None for never."""
    flipped = [(count, ms) for ms, count in done]
    return done_at(flipped, pieces) if flipped and flipped[-1][0] >= pieces else None


def rates(scene, story, done):
    """Throughput while something happens, and otherwise. In III.A that is over the first pass through the young generation, and after it:
    None where that never ended. In V it is over the whole run, and there is no otherwise."""
    start, end = story["disturbed"]
    if scene.startswith("V"):
        return rate(done, 0, story["end"]), None
    if scene == "III.A":
        passed = when(done, scenes.first_pass(story))
        quiet = rate(done, passed, end) if passed is not None and passed < end else None
        return rate(done, 0, end if passed is None else passed), quiet
    # The throughput that it lost with its cache does not come back when it has grown.
    default = (end, story["end"]) if scene == "III.B" else (start, end)
    return rate(done, *story.get("measured", default)), rate(done, WARM_MS, start)


def parts_of(raw, scene):
    """Of each arm by name, percent of what it is compared with in the same run: free memory (III.A), the baseline (V), itself before."""
    found, free = {}, {"others": "nothing", "strategy": "none" if scene == "III.A" else "baseline"}
    for run in raw["runs"]:
        of = lambda arm: rates(scene, raw["story"], arm["done"])
        base = next((of(arm)[0] for arm in run if arm["variant"] == free), None)
        for arm in run:
            disturbed, quiet = of(arm)
            below = base if scene == "III.A" or scene.startswith("V") else quiet
            if below:
                found.setdefault(scenes.name(scene, arm["variant"]), []).append(100 * disturbed / below)
    return found


def throughput(scene, story, arms, parts):
    found = [rates(scene, story, arm["done"]) for arm in arms]
    quiet = [quiet for _, quiet in found if quiet is not None]
    never = f"; not reached in {len(found) - len(quiet)} of {len(found)} runs" if len(quiet) < len(found) and scene == "III.A" else ""
    return {"quiet": spread(quiet), "never": never, "disturbed": spread(disturbed for disturbed, _ in found), "part": spread(parts)}


# ---- counters ----


def counters(machine, arms):
    def count(where, keys):
        values = [[arm[where][key] for key in keys if key in arm[where]] for arm in arms]
        return median(sum(some) for some in values) if all(values) else None

    memory = lambda value: spread(value(arm["memory"]) for arm in arms)
    return {
        "cache": memory(lambda samples: samples[-1][1][0] if samples else 0),
        "swapped": memory(lambda samples: max((mib[2] for _, mib in samples), default=0)),
        "refaults file": count("app", ["workingset_refault_file"]),
        "refaults anon": count("app", ["workingset_refault_anon"]),
        "limit": count("app", ["limit_hit"]),
        "kswapd": count("whole", ["pgsteal_kswapd"]),
        "direct": count("whole", ["pgsteal_direct"]),
        "stalls": count("whole", ["limit_hit"] if machine["stand_in"] else STALLS),
        "out": count("whole", ["pswpout"]),
        "in": count("whole", ["pswpin"]),
    }


def victims(arms):
    """Of both groups and the host's, in MiB: cache before it begins, at least and at most, anonymous memory and swap at most."""

    def of(arm, key):
        samples = [mib for _, mib in arm[key]]
        return {
            "before": samples[0][0],
            "least": min(s[0] for s in samples),
            "most": max(s[0] for s in samples),
            "anon": max(s[1] for s in samples),
            "swap": max(s[2] for s in samples),
        }

    found = {victim: [of(arm, key) for arm in arms if arm.get(key)] for victim, key in VICTIMS.items()}
    return {victim: {kind: spread(one[kind] for one in values) for kind in values[0]} for victim, values in found.items() if values}


# ---- curves ----


def curves(story, arms):
    """Points (s, Spread) of throughput, and of cache, heap and swap."""
    step = max(STEP_MS, story["sample"])
    times = range(step, story["end"] + 1, step)
    middle = lambda ms: (ms - step / 2) / 1e3

    def memory(arm, ms, kind):
        before = [mib for at, mib in arm["memory"] if at <= ms] or [arm["memory"][0][1]]
        return before[-1][kind]

    found = {"throughput": [(middle(ms), spread(rate(arm["done"], ms - step, ms) for arm in arms)) for ms in times]}
    for kind, name in enumerate(("cache", "heap", "in swap")):
        found[name] = [(middle(ms), spread(memory(arm, ms, kind) for arm in arms)) for ms in times]
    return found
