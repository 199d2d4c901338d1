"""Tables, and figures as the paper's: throughput over time, one panel per arm; and what explains it, the application's memory."""

from lab.jobs.pitfalls import scenes
from lab.tables import of_spread, plain

DISKS_MB_PER_S = [20, 64]
HEAD = [
    "variant", "cache at the end, MiB", "most swapped, MiB", "refaults file", "refaults anon", "own limit hit", "pgsteal kswapd, direct",
    "allocstall", "pswpout, pswpin",
]  # fmt: skip
PAPER = {"V.A": "153.61 K", "V.B": "20.15 K (13.1 %)", "V.C": "140.42 K (91.4 %; the text says 10 % lower)", "V.D": "5.68 K (3.7 %)"}


def draw(studied, out):
    scene, story = studied["scene"], studied["story"]
    title = f"{scene}: {scenes.TITLES[scene]}"
    out.say(f"{title}. {explain(scene, story)} {machine(studied['machine'])}")
    unit = scenes.UNITS[story["work"]]
    if scene.startswith("V"):
        out.table(
            ["variant", unit, "of the baseline"],
            [[name, of_spread(row["disturbed"]), percent(row)] for name, row in studied["rows"].items()],
        )
        out.say(f"The paper: {PAPER[scene]} allocations a second, of a baseline of 153.61 K, with objects of a size that it does not say.")
    else:
        quiet, disturbed, part = columns(scene)
        rows = [
            [name, of_spread(row["quiet"]) + row["never"], of_spread(row["disturbed"]), percent(row)]
            for name, row in studied["rows"].items()
        ]
        out.table(["variant", f"{quiet}, {unit}", f"{disturbed}, {unit}", part], rows)
    if studied["victims"]:
        draw_victims(studied["victims"], out)
    out.table(HEAD, [counters(name, found) for name, found in studied["counters"].items()])
    stands = " (here: of the cgroup that stands for it, whose limit's hits are its `allocstall`)" if studied["machine"]["stand_in"] else ""
    out.say(
        f"Medians of {studied['runs']} runs (smallest to largest); variants took turns. Counters are over the whole story: refaults "
        "(`workingset_refault_file` and `_anon`, pages) and hits of the own limit are of the application's cgroup, the others are the "
        f"machine's{stands}. A dash is what this kernel does not count there. Transparent huge pages: `{studied['machine']['thp']}`."
    )
    grey = {"III.B": " Grey: its heap grows.", "III.C": " Grey: the host's job runs.", "III.D": " Grey: the host's job runs."}.get(
        scene, ""
    )
    panels(studied, out, "throughput", title, f"Median over runs; the band is from smallest to largest.{grey}", ["throughput"], unit)
    kinds = ["cache", "heap", "in swap"]
    panels(studied, out, "memory", f"{title}: the application's memory", "As the kernel counts for its cgroup.", kinds, "MiB")


def columns(scene):
    if scene == "III.A":
        return "afterwards", "first pass", "of that with free memory"
    return "before", "after it has grown" if scene == "III.B" else "meanwhile", "of the former"


def percent(row):
    return f"{of_spread(row['part'])} %" if row["part"] else "-"


def counters(name, found):
    text = lambda key: "-" if found[key] is None else f"{found[key]:.0f}"
    pair = lambda one, other: f"{text(one)}, {text(other)}"
    alone = [text(key) for key in ("refaults file", "refaults anon", "limit")]
    return [
        name,
        of_spread(found["cache"]),
        of_spread(found["swapped"]),
        *alone,
        pair("kswapd", "direct"),
        text("stalls"),
        pair("out", "in"),
    ]


def draw_victims(victims, out):
    names = {"app": "first group", "second": "second group", "root": "the host's job"}
    rows = [
        [f"{name}: {names[victim]}", *(of_spread(found[kind]) for kind in ("before", "least", "most", "anon", "swap"))]
        for name, both in victims.items()
        for victim, found in both.items()
    ]
    out.table(["group", "cache before, MiB", "cache at least", "cache at most", "anonymous at most", "swapped at most"], rows)


def machine(found):
    cgroup, (files, swap) = "v2" if found["cgroup_v2"] else "v1", DISKS_MB_PER_S
    if found["stand_in"]:
        text = f"A cgroup ({cgroup}) with a limit of {found['mib']} MiB stands for the machine"
    else:
        text = f"The machine has {found['mib']} MiB to give, cgroups are {cgroup}"
    if found["guest"]:
        return f"{text}; files are on a disk of {files} MB/s, swap on one of {swap}."
    return f"{text}; there is no swap. The application may read {files} MB/s from the disk."


def explain(scene, story):
    start, end = (ms // 1000 for ms in story["disturbed"])
    asked = f"A JVM {{}}is asked {story['rate']} times a second"
    block = f"for a block of 64 KiB at random of a file of {story['file_mib']} MiB that is cached"
    if scene.startswith("V"):
        return explain_evaluation(scene, story)
    if scene == "III.A":
        return (
            f"A JVM with a young generation of {story['young_mib']} MiB allocates objects of 64 KiB as fast as it can, each of which "
            "dies at once. "
            "It starts while memory is free, then another group fills what it has not touched, and then it begins. First pass: until "
            "the young "
            "generation is full for the first time."
        )
    if scene == "III.B":
        return (
            f"{asked.format('')} {block}; between {start} and {end} s its heap grows by {story['grow_mib']} MiB, which fits in its "
            "limit of "
            f"{story['limit_mib'] or 0} MiB. The strategy raises the limit by the file."
        )
    if story.get("second"):
        what = block if scene == "III.C" else f"to touch an object of 64 KiB at random, of the {story['held_mib']} MiB that it holds"
        job = f"reads {story['others_mib']} MiB of files" if scene == "III.C" else f"fills {story['host']['grow']} MiB of memory"
        two = f"Two JVMs, each with a limit of {story['limit_mib']} MiB, are asked {story['rate']} times a second {what}."
        return f"{two} From {start} s to {end} s the host {job}."
    if scene == "III.C":
        return (
            f"{asked.format('without a limit ')} {block}. All but {story['spare_mib']} MiB of the machine's memory is other containers' "
            "heaps. "
            f"Between {start} and {end} s the host reads {story['others_mib']} MiB of files over and over; they are holes, so they take "
            "no time of "
            "the disk."
        )
    return (
        f"{asked.format('without a limit ')} to touch an object of 64 KiB at random, of the {story['held_mib']} MiB that it holds. "
        f"From {start} s "
        f"the host fills more memory than there is left; it ends at {end} s."
    )


def explain_evaluation(scene, story):
    text = (
        f"Two threads of a JVM allocate objects of 64 KiB into arrays as fast as they can, and let go of them when the arrays are full, "
        "for "
        f"{story['end'] // 1000} s. Its heap is {story['heap_mib']} MiB, of which {scenes.ARRAY} % live when the arrays are full; its "
        "limit is "
        f"{story['limit_mib']} MiB."
    )
    more = {
        "V.B": " Others' anonymous memory leaves too little free; swappiness is 50, and 0 in the baseline.",
        "V.C": f" Beside the baseline, a file of {story['file_mib']} MiB is copied in the same group over and over.",
        "V.D": f" Beside the baseline, its limit is {story.get('tight_mib')} MiB, and swappiness is 50.",
    }
    return text + more.get(scene, "")


def panels(studied, out, name, title, caption, kinds, unit):
    from lab import plot

    story, curves = studied["story"], studied["curves"]
    colors = dict(zip(("throughput", "cache", "heap", "in swap"), (plot.PALETTE[i] for i in (0, 0, 2, 1))))
    top = max([spread.max for one in curves.values() for kind in kinds for _, spread in one[kind]] + [1e-9]) * 1.08
    one = min(max(620 // len(curves), 128), 210)
    height = 62 + one * len(curves) + 48
    start, end = (ms / 1e3 for ms in story["disturbed"])
    with out.figure(name, title, height=height, rows=len(curves), head=84, right=24) as axes:
        axes = [axes] if len(curves) == 1 else list(axes)
        plot.legend(axes[0], {kind: colors[kind] for kind in kinds} if len(kinds) > 1 else {}, caption, height)
        for panel, (label, found) in zip(axes, curves.items()):
            plot.title(panel, label)
            if end < story["end"] / 1e3:
                panel.axvspan(start, end, color="#bebebe", alpha=0.22, linewidth=0)
            for kind in kinds:
                times = [at for at, _ in found[kind]]
                low, middle, high = ([getattr(spread, part) for _, spread in found[kind]] for part in ("min", "median", "max"))
                panel.fill_between(times, low, high, color=colors[kind], alpha=0.22, linewidth=0)
                panel.plot(times, middle, color=colors[kind])
            plot.axis(panel, "y", unit, plain, limits=(0, top))
        plot.axis(axes[-1], "x", "time (s)", plain, limits=(0, story["end"] / 1e3))
