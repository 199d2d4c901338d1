"""Raw numbers of results until 2026-11-28, whose shape was another, as those of today."""

from lab.jobs.runtimes.place import gc_threads

HEAPS = {"trees": 160, "graph": 512, "xslt": 64, "h2": 96}
LARGE_HEAPS = {"h2": 48, "jython": 63, "lusearch": 16, "sunflow": 16, "xalan": 36, "trees": 400}
FIGURES = {"over_threading": 2, "shared_equally": 6, "neighbours": 8, "large_heap": 9, "beyond_the_limit": 11, "heap_over_time": 12}
OUTCOMES = {"done": "finished", "oom_killed": "killed for memory", "out_of_heap": "OutOfMemoryError", "cut_off": "not finished"}
OPENMP = {
    "hand_one": "hand 1", "hand_all": "hand 2, passive", "adaptive_few": "adaptive, 1000 spins", "adaptive_alone": "adaptive, own spins",
}  # fmt: skip


def of_today(raw):
    """A figure's raw numbers; those of today are left as they are."""
    for kind, convert in (("collect", collect), ("open_mp", openmp), ("heap", heap)):
        if kind in raw:
            arms = [(number, arm) for number, run in enumerate(raw[kind]["runs"]) for arm in run]
            return {"figure": FIGURES.get(raw[kind].get("figure"), 10), "broken": [], **convert(raw[kind], arms)}
    return large(raw)


def machine(found):
    return {
        **found,
        "outcome": OUTCOMES[found["outcome"]],
        "cpu_s": found.get("cpu_ms", 0) / 1e3,
        "threads": [[*change, None] for change in found.get("threads", [])],
    }


def collect(raw, arms):
    name = lambda variant: f"hand {variant['hand']}" if isinstance(variant, dict) else {"static": "static limit"}.get(variant, variant)
    return {
        **{key: raw[key] for key in ("collector", "java", "cpus")},
        "believed": raw["pretended"],
        "most": gc_threads(raw["pretended"]),
        "part": 1,
        "threads": 2,
        "compilers": 2,
        "patience_s": 90,
        "quota": None,
        "containers": raw["containers"],
        "adaptive": "a view and the agent for HotSpot alone",
        "heaps": HEAPS,
        "ends_s": [2, 3, 4, 5] if raw["figure"] == "neighbours" else [],
        "arms": [
            {
                "round": number,
                "program": arm["program"],
                "containers": len(arm["machines"]),
                "arm": name(arm["variant"]),
                "machines": list(map(machine, arm["machines"])),
            }
            for number, arm in arms
        ],
    }


def openmp(raw, arms):
    return {
        **{key: raw[key] for key in ("cpus", "containers", "patience_s")},
        "believed": raw["pretended"],
        "quota": raw["quota_percent"] / 100,
        "npb": None,
        "scale": raw["size_percent"] / 100,
        "arms": [
            {
                **{key: arm[key] for key in ("scene", "kernel", "widths")},
                "round": number,
                "arm": OPENMP.get(arm["variant"], arm["variant"]),
                "load": [0, 0, arm["load15"]],
                "cpu_s": arm["cpu_ms"] / 1e3,
                "machines": [{"seconds": seconds} for seconds in arm["seconds"]],
            }
            for number, arm in arms
        ],
    }


def heap(raw, arms):
    sizes, beyond = raw["sizes"], raw["figure"] == "beyond_the_limit"
    alone, live = sizes["live"]
    mib = {
        **sizes,
        "live": live,
        "most": sizes["heap"],
        "start": 16,
        "hand": sizes["hard"] * 3 // 4,
        **({} if beyond else {"live_alone": alone}),
    }
    return {
        **{key: raw[key] for key in ("collector", "java")},
        "mib": mib,
        "group": True,
        "swap_mib": raw.get("swap_mib", 0),
        "pace": "100 times a second, and goes on for four seconds",
        "patience_s": 90,
        "arms": [
            {
                "round": number,
                "program": "trees" if beyond else "grow",
                "containers": len(arm["machines"]),
                "arm": {"aware": "stock"}.get(arm["variant"], arm["variant"]),
                "machines": list(map(machine, arm["machines"])),
            }
            for number, arm in arms
        ],
    }


def large(raw):
    """Figures of lab/large on 2026-11-28."""
    arms = [{"round": 0, **({"program": "grow"} if raw["figure"] == 12 else {}), **arm} for arm in raw["arms"]]
    if raw["figure"] == 10 and "classes" in raw:
        return {"believed": raw["cpus"], "containers": 5, "quota": raw["cpus"] // 4, "npb": raw["classes"], "scale": 1, **raw}
    if raw["figure"] == 12 and "group" not in raw:
        mib = {"hand": raw["mib"]["machine"] * 23 // 128, **raw["mib"]}
        more = {"collector": "parallel", "java": "17", "group": False, "swap_mib": 0, "patience_s": 90}
        pace = "as fast as it can, and goes on for two seconds; it asks to be killed first when memory is short"
        return {**raw, **more, "pace": pace, "mib": mib, "arms": arms}
    if "most" not in raw and raw["figure"] != 10:
        most, part, ends = gc_threads(raw["cpus"]), max(1, raw["cpus"] // 5), [i * 0.4 for i in range(1, 10)] if raw["figure"] == 8 else []
        more = {"containers": 5, "collector": "parallel", "java": "17", "believed": raw["cpus"], "most": most, "part": part}
        more |= {"patience_s": 25, "heaps": LARGE_HEAPS, "ends_s": ends, "quota": raw["cpus"] / 2 if raw["figure"] == 2 else None}
        return {**more, **raw}
    return raw
