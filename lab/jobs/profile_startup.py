"""How long do containers take to start at 1 to 64 a second, and what does it cost?

Figures 5.1 to 5.4 of the thesis: engines, applications, and a runtime with and without Elbowroom's hook. The measuring is
`elbowroom profile startup --breakdown`; this job runs it for one after another, round after round. Docker and containerd are those that
DOCKER_HOST and CONTAINERD_ADDRESS say; what is not here is left out, and the summary says why."""

import json
import os
import shutil
import subprocess

from lab import profiling, programs, stats
from lab.job import Refused
from lab.lab import LabAgent
from lab.tables import of_spread, short

LASTS = "8 min; 20 min with rates to 64"
NEEDS = ["cc", "runc"]
# Bytes of the file that functions map, and families that a figure tells apart.
FILE = 64 << 20
NAMED = 9
# What the thesis' figure 5.4 counts together, by the product's families.
COLLECTIVES = {"Go collection and allocation": ["go_gc", "go_allocation"], "memory and process start in the kernel": [
    "page_faults", "unmapping", "process_creation",
]}  # fmt: skip
PERCENTILES = {"p50": 500, "p95": 950, "p99": 990}
WHAT = {
    "engines": "engines, each starting `sleep` of the host in an empty root",
    "applications": "applications, each started by the same engine{network}: those of the host over its /usr, and PageRank and two "
    "functions, "
    "of an image with nothing else, which work once before they wait",
    "views": "one bundle, started by runc in turns without and with Elbowroom's hook, an agent running",
}


def options(parser):
    parser.add_argument("--compare", choices=list(WHAT), default="engines", help="what is compared (engines)")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured (3)")
    parser.add_argument("--rate", default="1,2,4,8,16,32,64", help="starts per second (1,2,4,8,16,32,64; the thesis stops at 8)")
    parser.add_argument("--for", dest="duration", default="8s", help="how long at each rate (8s)")
    parser.add_argument("--network", action="store_true", help="containers with the engine's network")
    parser.add_argument("--only", metavar="NAME", action="append", help="only these, repeatable")


def tag(options):
    return options.compare + ("-network" if options.network else "")


# ---- record ----


def record(lab, options):
    variants = {"engines": engines, "applications": applications, "views": views}[options.compare](lab)
    if options.only:
        variants = {name: words for name, words in variants.items() if name in options.only}
    raw = {"compare": options.compare, "network": options.network, "runs": [], "skipped": {}}
    for number in range(options.rounds):
        for name in profiling.rotated(list(variants), number):
            if name in raw["skipped"]:
                continue
            print(f"round {number + 1} of {options.rounds}: {name}", flush=True)
            try:
                raw["runs"].append({"round": number, "name": name, **measure(lab, variants[name], options)})
            except profiling.Declined as refused:
                print(f"warning: {name} is left out: {refused}", flush=True)
                raw["skipped"][name] = str(refused)
        if raw["runs"]:
            lab.keep(raw)
    if not raw["runs"]:
        raise Refused(f"nothing could be measured: {raw['skipped']}")
    return raw


def measure(lab, words, options):
    network = ["--network"] if options.network else []
    command = ["profile", "startup", "--breakdown", "--rate", options.rate, "--for", options.duration]
    # Status 1 says that some starts failed: that is a number, not an error.
    printed = profiling.ask(lab, *command, *network, *words, codes=(0, 1))
    answer, overhead = printed["answer"], printed["overhead"]
    if not answer["breakdown"]:
        raise profiling.Declined("no container started")
    rates = []
    for at in answer["rates"]:
        starts = [{"application": start.get("application", 0), "latency_usec": start["latency_usec"]} for start in at["requests"]]
        rates.append({name: at[name] for name in ("rate", "failures", "achieved_per_second", "saturated")} | {"requests": starts})
    cost = {
        name: answer["breakdown"][name] for name in ("frequency_hz", "starts", "kernel", "user", "told", "resolved", "samples", "programs")
    }
    cost["families"] = [{name: one[name] for name in ("family", "kernel", "user")} for one in answer["breakdown"]["families"]]
    return {
        "profiler_percent": 100 * overhead["cpu_usec"] / overhead["wall_usec"],
        **{name: answer[name] for name in ("engine", "version", "start")},
        "rates": rates,
        "breakdown": cost,
    }


def engines(_lab):
    # crun below Podman refuses a hybrid cgroup hierarchy; runc is what the others use, too.
    found = {name: ["--engine", name] for name in ("docker", "containerd", "podman", "runc", "crun")}
    found["podman"] += ["--runtime", "runc"]
    return found


def applications(lab):
    """Programs of this machine, and of an image: own ones and the file that functions map."""
    modules = "/usr/lib/apache2/modules"
    apache = (
        f"apache2 -DFOREGROUND -f /dev/null -C 'LoadModule mpm_event_module {modules}/mod_mpm_event.so' -c 'ServerName localhost' "
        "-c 'Listen 8080' -c 'PidFile /tmp/pid' -c 'ErrorLog /dev/stderr' -c 'DefaultRuntimeDir /tmp'"
    )
    mariadb = (
        "sh -c 'mkdir /tmp/d && exec mariadbd --no-defaults --user=root --skip-grant-tables --skip-networking --datadir=/tmp/d "
        "--socket=/tmp/s --innodb-log-file-size=4M --innodb-buffer-pool-size=8M'"
    )
    python = "/usr/bin/python3 -c 'import json, time, http.client; json.loads(\"{}\"); time.sleep(1000)'"
    # It maps a large file that is there anyway.
    fio = (
        "sh -c 'fio --name=x --ioengine=mmap --rw=randread --bs=4k --size=16m --invalidate=0 --readonly "
        "--filename=$(command -v mariadbd) || exit; exec sleep 1000'"
    )
    image = own_image(lab)
    commands = {"busybox": "busybox sleep 1000", "httpd": f"httpd={apache}", "mariadb": f"mariadb={mariadb}", "python": f"python={python}"}
    commands["fio"] = f"fio={fio}"
    own = {name: ["--image", f"{name}={image} /applications {name} /file once"] for name in ("pagerank", "dense", "sparse")}
    return {name: ["--command", command] for name, command in commands.items()} | own


def own_image(lab):
    root, tar = lab.scope.directory / "applications", lab.scope.directory / "applications.tar"
    root.mkdir()
    shutil.copy(programs.c("applications"), root / "applications")
    (root / "file").write_bytes(bytes([1]) * FILE)
    subprocess.run(["tar", "-cf", tar, "-C", root, "."], check=True)
    image = f"elbowroom-lab-applications-{os.getpid()}:latest"
    lab.scope.add("docker-image", image)
    subprocess.run(["docker", "import", tar, image], check=True, stdout=subprocess.DEVNULL)
    return image


def views(lab):
    """Two bundles that differ in one hook, started in turns by one call."""
    run_dir, log = lab.scope.directory / "startup", lab.scope.directory / "startup.log"
    run_dir.mkdir()
    lab.scope.add("agent", run_dir)
    config = 'containers.attach = false\ncontainers.cgroups = ["/elbowroom-profile-*"]\n'
    LabAgent(lab.options.elbowroom.resolve(), run_dir, log, config).start(within=20)
    root = lab.scope.directory / "root"
    for name in ("dev", "proc", "sys", "usr", "tmp", "etc"):
        (root / name).mkdir(parents=True)
    for link in ("bin", "sbin", "lib", "lib64"):
        (root / link).symlink_to(f"usr/{link}")
    hook = {"path": str(lab.options.elbowroom.resolve()), "args": ["elbowroom", "hook", "--run-dir", str(run_dir)]}
    words = ["--engine", "runc"]
    for name, hooks in (("plain", {}), ("views", {"hooks": {"createContainer": [hook]}})):
        directory = lab.scope.directory / f"bundle-{name}"
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(bundle(root) | hooks))
        words += ["--bundle", f"{name}={directory}"]
    return {"plain, views": words}


def bundle(root):
    quiet = ["nosuid", "noexec", "nodev", "ro"]
    mounts = [
        ("/proc", "proc", "proc", []),
        ("/dev", "tmpfs", "tmpfs", ["nosuid", "mode=755"]),
        ("/sys", "sysfs", "sysfs", quiet),
        ("/sys/fs/cgroup", "cgroup", "cgroup", quiet),
        ("/usr", "bind", "/usr", ["rbind", "ro"]),
    ]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0}, "args": ["sleep", "1000"], "cwd": "/", "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        },
        "root": {"path": str(root), "readonly": False},
        "mounts": [{"destination": at, "type": kind, "source": source, "options": more} for at, kind, source, more in mounts],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")]},
    }  # fmt: skip


# ---- study ----


def study(raw):
    names = list(dict.fromkeys(run["name"] for run in raw["runs"]))
    rates = [at["rate"] for at in raw["runs"][0]["rates"]]
    of = {name: [run for run in raw["runs"] if run["name"] == name] for name in names}
    families = largest_families(of)
    return {
        "compare": raw["compare"],
        "network": raw.get("network", False),
        "rounds": max(run["round"] for run in raw["runs"]) + 1,
        "skipped": raw["skipped"],
        "names": names,
        "latency": [{"name": name, "rate": rate, **latency(of[name], rate)} for name in names for rate in rates],
        "pairs": [{"rate": rate, **paired(raw["runs"], rate)} for rate in rates] if raw["compare"] == "views" else [],
        "cost": {name: cost(of[name]) for name in names},
        "families": families,
        "spent": {name: spent(of[name], families) for name in names},
        "collectives": {name: collectives(of[name]) for name in names},
        "programs": {name: programs_of(of[name]) for name in names},
    }


def latency(runs, rate):
    at = [at for run in runs for at in run["rates"] if at["rate"] == rate]
    sorted_ms = [sorted(start["latency_usec"] / 1e3 for start in one["requests"]) for one in at]
    sorted_ms = [values for values in sorted_ms if values]
    return {
        "starts": sum(len(one["requests"]) for one in at),
        "failed": sum(one["failures"] for one in at),
        "mean": stats.spread(sum(values) / len(values) for values in sorted_ms),
        **{name: stats.spread(stats.quantile(values, part) for values in sorted_ms) for name, part in PERCENTILES.items()},
        "answered": stats.spread(one["achieved_per_second"] for one in at),
        "behind": sum(one["saturated"] for one in at),
    }


def paired(runs, rate):
    """Medians of the two bundles within one call, and their difference, round by round."""
    at = [at for run in runs for at in run["rates"] if at["rate"] == rate]

    def median(one, application):
        own = sorted(start["latency_usec"] / 1e3 for start in one["requests"] if start.get("application", 0) == application)
        return stats.quantile(own, 500)

    both = [(median(one, 0), median(one, 1)) for one in at]
    return {
        "without": stats.spread(without for without, _ in both),
        "with": stats.spread(with_ for _, with_ in both),
        "difference": stats.spread(with_ - without for without, with_ in both),
    }


def breakdowns(runs):
    return [run["breakdown"] for run in runs if run["breakdown"]]


def ms(one, samples):
    """Milliseconds of one start."""
    return samples * 1e3 / one["frequency_hz"] / max(1, one["starts"])


def used(share):
    return share["kernel"] + share["user"]


def percent(part, whole):
    return 100 * part / max(1, whole)


COST = {
    "ms": lambda one: ms(one, used(one)),
    "kernel %": lambda one: percent(one["kernel"], used(one)),
    "threads": lambda one: ms(one, one["samples"]["kernel_threads"]),
    "samples": used,
    "told %": lambda one: percent(one["told"], used(one)),
    "named %": lambda one: percent(one["resolved"]["named"], one["resolved"]["frames"]),
    "lost": lambda one: one["samples"]["lost"],
}


def cost(runs):
    split = {part: stats.spread(ms(one, one[part]) for one in breakdowns(runs)) for part in ("kernel", "user")}
    found = {name: stats.spread(value(one) for one in breakdowns(runs)) for name, value in COST.items()}
    return found | split | {"version": runs[0]["version"], "profiler": stats.spread(run["profiler_percent"] for run in runs)}


def family_ms(runs, family):
    found = stats.spread(
        ms(one, next((used(share) for share in one["families"] if share["family"] == family), 0)) for one in breakdowns(runs)
    )
    return found.median if found else 0


def largest_families(of):
    """The largest over all, where each name counts the same, however much it uses."""
    sums = {}
    for runs in of.values():
        every = cost(runs)["ms"]
        for family in {share["family"] for one in breakdowns(runs) for share in one["families"]}:
            sums[family] = sums.get(family, 0) + family_ms(runs, family) / every.median
    return sorted(sums, key=lambda family: (-sums[family], family))[:NAMED]


def spent(runs, families):
    row = [family_ms(runs, family) for family in families]
    return [*row, max(0, cost(runs)["ms"].median - sum(row))]


def collectives(runs):
    """The thesis' two collectives, percent of a start's CPU time."""

    def share(one, families):
        return percent(sum(used(share) for share in one["families"] if share["family"] in families), used(one))

    return {name: stats.spread(share(one, families) for one in breakdowns(runs)) for name, families in COLLECTIVES.items()}


def programs_of(runs):
    every = sorted({program["name"] for one in breakdowns(runs) for program in one["programs"]})
    rows = []
    for name in every:
        found = [
            (one, next((program for program in one["programs"] if program["name"] == name), {"kernel": 0, "user": 0}))
            for one in breakdowns(runs)
        ]
        both = stats.spread(ms(one, used(program)) for one, program in found)
        rows.append((name, both, stats.spread(ms(one, program["kernel"]) for one, program in found).median))
    rows.sort(key=lambda row: -row[1].median)
    return [row for row in rows[:8] if row[1].median >= 0.05]


# ---- draw ----


def draw(studied, out):
    network = "" if studied["network"] else ", without a network"
    what = WHAT[studied["compare"]]
    what = what.format(network=network) if "{" in what else what + (network if studied["compare"] == "engines" else "")
    out.say(
        f"Starts of {what}. Latency is from when a start was due until the engine answered; requests come whether or not earlier ones are "
        f"done. Figures are medians over {studied['rounds']} rounds (smallest to largest)."
    )
    for name, why in studied["skipped"].items():
        out.say(f"Left out: {name}: {why}")
    out.say("## Latency, ms")
    if studied["compare"] == "views":
        head = ["starts/s, both together", "p50 without", "p50 with the hook", "difference"]
        out.table(
            head, [[f"{row['rate']:g}", *(of_spread(row[name]) for name in ("without", "with", "difference"))] for row in studied["pairs"]]
        )
    else:
        draw_latency(studied, out)
    draw_cost(studied, out)
    draw_families(studied, out)
    out.say("## By program")
    rows = [
        [name, program, of_spread(both), f"{100 * kernel / both.median:.0f} %"]
        for name, found in studied["programs"].items()
        for program, both, kernel in found
    ]
    out.table(["", "program", "ms per start", "in the kernel"], rows)


def draw_latency(studied, out):
    head = ["", "starts/s", "starts", "failed", "mean", "p50", "p95", "p99", "answered/s", "rounds that fell behind"]
    rows = [
        [
            row["name"], f"{row['rate']:g}", row["starts"], row["failed"],
            *(of_spread(row[name]) for name in ("mean", "p50", "p95", "p99", "answered")), row["behind"],
        ]
        for row in studied["latency"]
    ]  # fmt: skip
    out.table(head, rows)
    lines = {
        name: [(row["rate"], row["p50"].median) for row in studied["latency"] if row["name"] == name and row["p50"]]
        for name in studied["names"]
    }
    from lab import plot

    with out.figure("latency", "Median latency of a start by rate") as axes:
        plot.axis(axes, "x", "starts per second", plot.whole, limits=(0, max(row["rate"] for row in studied["latency"])))
        plot.axis(axes, "y", "ms", log=True, limits=plot.decades(ms for points in lines.values() for _, ms in points))
        plot.lines(axes, lines, marks=True)


def draw_cost(studied, out):
    out.say("## CPU time per start")
    out.say(
        "The engine and everything that it started, between a rate's first request and its last answer, from samples of all CPUs; of "
        "kernel "
        "threads, which also work for others, beside it."
    )
    head = [
        "", "ms per start", "in the kernel, %", "kernel threads, ms", "samples", "in a telling family, %", "frames with a name, %",
        "samples lost", "profiler, % of one CPU",
    ]  # fmt: skip
    rows = [
        [f"{name} ({found['version']})", *(of_spread(found[one]) for one in [*COST, "profiler"])] for name, found in studied["cost"].items()
    ]
    out.table(head, rows)
    bars = {name: [found["kernel"].median, found["user"].median] for name, found in studied["cost"].items() if found["kernel"]}
    profiling.bars(out, "split", "CPU time per start, in the kernel and in programs (ms)", "ms per start", ["kernel", "programs"], bars)


def draw_families(studied, out):
    out.say("## What it is spent on")
    names = [family.replace("_", " ") for family in [*studied["families"], "the rest"]]
    rows = [
        [name, *(f"{short(row[i])} ({100 * row[i] / (sum(row) or 1):.0f} %)" for row in studied["spent"].values())]
        for i, name in enumerate(names)
    ]
    out.table(["ms per start (share)", *studied["names"]], rows)
    profiling.bars(out, "families", "CPU time per start by what it is spent on (ms)", "ms per start", names, studied["spent"])
    thesis = {"Go collection and allocation": "21.8", "memory and process start in the kernel": "19.85"}
    rows = [[name, *(of_spread(found[name]) for found in studied["collectives"].values()), thesis[name]] for name in COLLECTIVES]
    rows.append(["in the kernel", *(of_spread(found["kernel %"]) for found in studied["cost"].values()), "56.94"])
    out.table(["percent of a start", *studied["names"], "thesis"], rows)
