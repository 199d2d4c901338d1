"""What does it cost to compare the page tables of four processes of 500 MB, each way?

The processes are made to measure. Each has 150 MB from the common parent, 100 MB of a file, 20 MB in huge pages, also from the parent, and
230 MB of its own. So what each way finds is checked, too."""

from lab import profiling, stats
from lab.job import Refused
from lab.tables import of_spread

LASTS = "10 s; needs BPF for one way"
NEEDS = ["cc"]
PROCESSES = 4
# Pages of 4 KiB, and of 2 MiB.
SHARED, FILE, OWN, HUGE = 150 * 256, 100 * 256, 230 * 256, 10
SOURCES = ["bpf", "pagemap"]
MADE = {
    "groupable memory": (PROCESSES * (SHARED + HUGE * 512), lambda look: look["heap"]["groupable"]),
    "own memory": (PROCESSES * OWN, lambda look: look["heap"]["entries"] - look["heap"]["groupable"] - look["heap"]["elsewhere"]),
    "groupable file": (PROCESSES * FILE, lambda look: look["file"]["groupable"]),
    "huge": (PROCESSES * HUGE * 512, lambda look: look["heap"]["huge"]),
    "elsewhere": (0, lambda look: look["heap"]["elsewhere"]),
}


def options(parser):
    parser.add_argument("--rounds", type=int, default=11, help="how often each way is taken (11)")


def record(lab, options):
    path = profiling.file(lab, FILE)
    with profiling.own(lab, "pages", "profile-pages", [PROCESSES, SHARED, OWN, HUGE, path, FILE, 0, 0]) as family:
        raw, sources = {"looks": [], "refused": []}, list(SOURCES)
        for number in range(options.rounds):
            for source in profiling.rotated(sources, number + 1):
                try:
                    raw["looks"].append(look(lab, family.cgroup, source, number))
                except profiling.Declined as refused:
                    raw["refused"].append(str(refused))
                    sources.remove(source)
    if not raw["looks"]:
        raise Refused(f"no way works here: {'; '.join(raw['refused'])}")
    return raw


def look(lab, cgroup, source, number):
    answer = profiling.ask(lab, "profile", "pages", "--source", source, cgroup)
    [first] = answer["answer"]["looks"]
    kinds = first["containers"][0]["kinds"]
    keep = ["entries", "groupable", "elsewhere", "huge"]
    return {
        "round": number,
        "source": source,
        "command_cpu_usec": answer["overhead"]["cpu_usec"],
        "look_cpu_usec": first["cpu_usec"],
        **{kind: {name: kinds[kind][name] for name in keep} for kind in ("heap", "file")},
    }


def study(raw):
    ways = {}
    for source in SOURCES:
        looks = [look for look in raw["looks"] if look["source"] == source]
        if looks:
            ways[source] = {
                "runs": len(looks),
                "command": stats.spread(look["command_cpu_usec"] / 1e3 for look in looks),
                "look": stats.spread(look["look_cpu_usec"] / 1e3 for look in looks),
                "found": {name: stats.spread(value(look) for look in looks).median for name, (_, value) in MADE.items()},
            }
    return {"ways": ways, "refused": raw["refused"]}


def draw(studied, out):
    ways = studied["ways"]
    out.say(
        "CPU milliseconds to compare the page tables of four processes of 500 MB: 150 MB from their parent, 100 MB of a file, 20 MB in "
        "huge "
        'pages from their parent, 230 MB of each one\'s own. Ways in turn; medians (smallest to largest). "command" is the whole '
        'process with '
        'loading BPF, "look" the comparison alone. No process is stopped.'
    )
    rows = [[source, way["runs"], of_spread(way["command"]), of_spread(way["look"])] for source, way in ways.items()]
    out.table(["way", "runs", "command", "look"], rows)
    out.say("What was found, beside what was made, in entries of 4 KiB (medians):")
    found = [[f"{ways[source]['found'][name]:.0f}" if source in ways else "-" for source in SOURCES] for name in MADE]
    out.table(["", "made", *SOURCES], [[name, made, *cells] for (name, (made, _)), cells in zip(MADE.items(), found)])
    for said in studied["refused"]:
        out.say(f"Refused here: {said}.")
