"""What happens in each scene, as a function of how much memory the machine has. Scenes are called as the paper's sections are."""

# Bytes of a piece of work: an object allocated, an object touched, a block read. The paper does not say its own.
PIECE = 64 << 10
# What a JVM needs besides its heap, in MiB: one that is asked; one that collects all the time with several threads.
JVM_MIB, BUSY_JVM_MIB = 64, 80
# What a service is asked for in a second, here and on an emulated CPU. As often as it can would be no subject: memory that is used at every
# moment is the last that a kernel takes.
RATES = {False: 1000, True: 200}
YOUNG_MIB = 16  # where allocation is not the subject
# The part of its heap that the array of V.A to V.D has when it is full, in percent: two thirds of a limit of half the heap.
ARRAY = 35

TITLES = {
    "III.A": "memory is not reserved",
    "III.B": "anonymous memory evicts the group's own cache",
    "III.C": "the host takes cache from any group",
    "III.D": "the host swaps any group",
    "V.A": "the baseline",
    "V.B": "memory that is not pre-touched, on a machine without free memory",
    "V.C": "a limit without room for page cache",
    "V.D": "a heap of twice the limit",
}
# How results of 2026-11-21 call them.
EARLIER = {"NotReserved": "III.A", "OwnCache": "III.B", "CacheStolen": "III.C", "Swapped": "III.D"}
UNITS = {"allocate": "allocations/s", "fill": "allocations/s", "touch": "requests/s", "read": "reads/s"}

# Remedies for a pitfall, in the order of tables: the paper's by hand, then the product's own commands for the same.
STRATEGIES = {
    "baseline": "baseline: pre-touched, and the machine has memory",
    "none": "nothing is done",
    "pre_touch": "pre-touched",
    "pretouch_command": "`elbowroom pretouch`",
    "room_for_cache": "limit with room for the cache",
    "size_command": "`elbowroom size`",
    "housekeeping": "the host's job has a limit",
    "housekeeping_command": "`elbowroom housekeeping`",
    "no_swap": "the group is not swapped",
    "protect": "memory.low",
    "protect_command": "`elbowroom protect`",
    "protect_no_swap_command": "`elbowroom protect --no-swap`",
    "java_command": "`elbowroom run --java`",
}
OTHERS = {"nothing": None, "cache": "others' cache", "dirty": "others' dirty cache", "anon": "others' anonymous memory"}

# (others, strategy) of each scene.
ARMS = {
    "III.A": [
        ("nothing", "none"), ("cache", "none"), ("dirty", "none"), ("dirty", "pre_touch"), ("dirty", "pretouch_command"), ("anon", "none"),
        ("anon", "pre_touch"), ("anon", "pretouch_command"),
    ],
    "III.B": [("nothing", strategy) for strategy in ("none", "room_for_cache", "size_command")],
    "III.C": [("nothing", strategy) for strategy in ("none", "housekeeping", "housekeeping_command", "protect_command")],
    "III.D": [
        ("nothing", strategy)
        for strategy in ("none", "housekeeping", "housekeeping_command", "no_swap", "protect_command", "protect_no_swap_command")
    ],
    "V.A": [("nothing", "baseline")],
    "V.B": [("nothing", "baseline"), ("anon", "none"), ("anon", "pre_touch"), ("anon", "pretouch_command")],
    "V.C": [("nothing", strategy) for strategy in ("baseline", "none", "room_for_cache", "size_command")],
    "V.D": [("nothing", strategy) for strategy in ("baseline", "none", "java_command")],
}  # fmt: skip
# What needs swap; what works on the whole machine, and not on a cgroup that stands for it; what the command does on cgroup v2 alone.
NEEDS_SWAP = {"III.D", "V.B", "V.D"}
WHOLE_MACHINE = {"pretouch_command", "housekeeping_command"}


def scene_of(raw):
    return raw["scene"] if "scene" in raw else EARLIER[raw["figure"]]


def arms(scene, machine):
    """The arms that are compared here, as [{"others", "strategy"}]."""

    def possible(others, strategy):
        if machine["stand_in"] and (others == "anon" or strategy in WHOLE_MACHINE):
            return False
        # v1 protects memory of its own from swap, and page cache from nothing.
        return machine["cgroup_v2"] or (scene, strategy) != ("III.C", "protect_command")

    return [{"others": others, "strategy": strategy} for others, strategy in ARMS[scene] if possible(others, strategy)]


def name(scene, arm):
    """What tables and figures call an arm."""
    others, strategy = OTHERS[arm["others"]], STRATEGIES[arm["strategy"]]
    if scene == "III.A" and not others:
        return "memory is free"
    if not others:
        return strategy
    return f"memory full of {others}" + ("" if arm["strategy"] == "none" else f", {strategy}")


def order(arm):
    return list(OTHERS).index(arm["others"]), list(STRATEGIES).index(arm["strategy"])


def heap_mib(young, held):
    """A tenth more than what is held, and never less than HotSpot wants to begin with."""
    return young + held * 11 // 10 + 16


def story(scene, mib, emulated=False, seconds=300, again=False):
    """One scene on a machine with `mib` MiB of memory to give. Sizes in MiB, times in milliseconds after the start. The paper's machine has
    64 GB: sizes are its parts of that."""
    part = lambda percent: int(mib * percent / 100)
    quiet = {
        "work": "read", "rate": RATES[emulated], "young_mib": YOUNG_MIB, "held_mib": 0, "grow_mib": 0, "file_mib": 0,
        "others_mib": part(110), "crowded": False, "spare_mib": part(8), "limit_mib": None, "housekeeping_mib": part(4), "host": None,
        "second": False, "disturbed": [3000, 11_000], "end": 14_000, "sample": 100,
    }  # fmt: skip
    if scene.startswith("V"):
        return quiet | evaluation(scene, part, seconds)
    if scene == "III.A":
        # Memory that is there is passed through in a few hundredths of a second.
        return quiet | {"work": "allocate", "rate": 0, "young_mib": part(30), "disturbed": [0, 6000], "end": 6000, "sample": 20}
    if scene == "III.B":
        limit, grow = part(45), part(45) * 7 // 20
        times = {"disturbed": [3000, 5000], "measured": [8000, 12_000], "end": 12_000}
        return quiet | {"limit_mib": limit, "file_mib": limit - JVM_MIB - 2 * YOUNG_MIB, "grow_mib": grow, **times}
    two = {"second": True, "limit_mib": part(20 / 64 * 100)}
    if scene == "III.C":
        files = part(24 / 64 * 100)
        rate = part(30) if again else files // 8
        cached = part(20 / 64 * 100)
        sizes = {"limit_mib": cached + JVM_MIB, "file_mib": cached, "others_mib": files}
        return quiet | two | sizes | {"host": {"scan": rate}}
    times = {"disturbed": [3000, 15_000], "end": 17_000}
    return quiet | two | times | {"work": "touch", "held_mib": part(15 / 64 * 100) - JVM_MIB // 2, "host": {"grow": part(35 / 64 * 100)}}


def evaluation(scene, part, seconds):
    """V.A to V.D: two threads fill an array with objects and let go of them when it is full."""
    heap = part(20 / 64 * 100)
    found = {
        "work": "fill", "rate": 0, "heap_mib": heap, "held_mib": heap * ARRAY // 100, "limit_mib": heap + BUSY_JVM_MIB, "young_mib": 0,
        "disturbed": [0, seconds * 1000], "end": seconds * 1000, "sample": 1000,
    }  # fmt: skip
    if scene == "V.B":
        found["swappiness"] = 50
    if scene == "V.C":
        found |= {"file_mib": heap, "copies": True}
    if scene == "V.D":
        found |= {"swappiness": 50, "tight_mib": heap // 2}
    return found


def limit_mib(arm, story):
    """The hard limit of the application's group."""
    if arm["strategy"] == "room_for_cache":
        return story["limit_mib"] + story["file_mib"]
    tight = story.get("tight_mib")
    return tight if tight and arm["strategy"] != "baseline" else story["limit_mib"]


def largest_heap_mib(story):
    """`-Xmx`."""
    return story.get("heap_mib") or heap_mib(story["young_mib"], story["held_mib"] + story["grow_mib"])


def first_pass(story):
    """Pieces that the young generation takes: what is allocated before the first collection. HotSpot gives two tenths of it to the
    survivors (SurvivorRatio 8)."""
    return (story["young_mib"] << 20) * 8 // 10 // PIECE


def jvm(scene, arm, story):
    """Its options."""
    heap = largest_heap_mib(story)
    words = [f"-Xms{heap}m", f"-Xmx{heap}m", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
    words += ["-XX:+UseParallelGC"] if story["work"] == "fill" else ["-XX:+UseSerialGC", f"-Xmn{story['young_mib']}m"]
    touched = arm["strategy"] in ("pre_touch", "baseline") or scene == "V.C"
    return [*words, *(["-XX:+AlwaysPreTouch"] if touched else [])]
