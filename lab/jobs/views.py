"""How do effective CPU and memory follow neighbours that come and go, and what do programs see of it?

Five containers with equal shares start together. The first is busy nearly all the time; the second to fourth join it one by one and leave
in the opposite order; the fifth never computes. Three grow past their soft memory limit, one of them close to the hard one, and give the
memory back. Inside each container a process asks every 100 ms how many CPUs and how much memory there are, in the way a runtime does. The
host's cgroup counters say what was used. With `--programs`, programs that size themselves run in the first container and are asked, too."""

import bisect
import contextlib
import subprocess
import threading
import time
from pathlib import Path

from kit import docker, programs as kit_programs
from lab import ROOT, cgroups, programs
from lab.container import Entered, finish
from lab.sysinfo import online_cpus

LASTS = "1 min"
# Share of the run's length during which a container keeps as many threads busy as the machine has CPUs.
BUSY = [(0.04, 0.96), (0.18, 0.82), (0.30, 0.70), (0.42, 0.58), None]
# (begin, end of growth, end of holding) as shares of the run's length, and the size as a share of the hard limit.
GROW = [(0.05, 0.45, 0.75, 0.92), (0.10, 0.30, 0.80, 0.20), None, (0.20, 0.60, 0.85, 0.60), None]
SOFT = 0.3  # the soft limit, as a share of the hard one
USAGE_WINDOW = 5  # usage is a rate over this many samples
ASKED = 0  # the container that programs are in, and what it grows less by for them
PROGRAMS_MIB = 180
ASKED_EVERY_MS = 250
SLACK_MS = 1000  # how long before a program looks, or after, files may have said what it says


def options(parser):
    parser.add_argument("--seconds", type=int, default=60, help="length of the run")
    parser.add_argument("--interval-ms", type=int, default=100, help="time between two samples")
    parser.add_argument("--memory-mib", type=int, default=400, help="each container's hard memory limit; the soft one is 30 %% of it")
    parser.add_argument("--variant", choices=["native", "lxcfs", "elbowroom"], default="elbowroom", help="whose files containers read")
    parser.add_argument("--engine", choices=["own", "docker"], default="own", help="what makes the containers")
    parser.add_argument("--programs", action="store_true", help="asks getconf and free, Go, and each JDK from 17 on, where they are here; "
                        "with --engine docker")  # fmt: skip
    parser.add_argument("--not-jdk", action="append", default=[], metavar="VERSION", help="one that is not asked")


# ---- record ----


def record(lab, options):
    assert options.engine == "docker" or not options.programs, "programs are asked in containers of Docker: --engine docker"
    cpus, samples = online_cpus(), options.seconds * 1000 // options.interval_ms
    with (docker_containers if options.engine == "docker" else own_containers)(lab, options) as containers:
        asked = [Asked(containers[ASKED], *program) for program in (sized(options.not_jdk).items() if options.programs else ())]
        start = time.monotonic_ns() + 2_000_000_000
        for program in asked:
            program.ask(start, options.seconds)
        watchers = []
        for i, container in enumerate(containers):
            watchers.append(container.reader("watch", start, options.interval_ms, samples))
            words = plan(i, options, cpus)
            if words:
                # Its output says nothing; a load that fails shows in the figure, and the container's end is its end.
                container.reader("load", start, *words, stdout=subprocess.DEVNULL, stderr=None)
        used = sample(options, containers, start, samples)
        seen = [seen_by(finish(watcher, "a watcher"), start) for watcher in watchers]
        series = [{"name": one.name, "seen": saw, "used": use} for one, saw, use in zip(containers, seen, used)]
        told = [program.told() for program in asked]
        raw = {key: getattr(options, key) for key in ("seconds", "interval_ms", "memory_mib", "variant")}
        return {**raw, "cpus": cpus, "containers": series, **({"programs": told} if told else {})}


@contextlib.contextmanager
def own_containers(lab, options):
    backend = lab.backend(options.variant)
    limits = {"memory_mib": options.memory_mib, "soft_mib": int(options.memory_mib * SOFT)}
    yield [backend.container(f"c{i + 1}", **limits) for i in range(len(BUSY))]


@contextlib.contextmanager
def docker_containers(lab, options):
    """Five of a daemon of our own, each with this machine's programs and a view."""
    assert options.variant == "elbowroom", "containers of Docker read Elbowroom's files: --variant elbowroom"
    assert not docker.why_not(), f"this needs {docker.why_not()}"
    home = lab.scope.directory / "docker"
    home.mkdir()
    (home / "runtime").symlink_to("/usr/bin/false")  # that of the live tests: not used here
    daemon = docker.Docker(home, home / "runtime")
    daemon.namespace = lab.parent
    lab.scope.add("docker", home, lab.parent)
    daemon.start()
    agent, made = lab.agent(), []
    seen = [programs.reader().parent, kit_programs.BUILT, ROOT / ".cache/runtimes"]
    volumes = [f"--volume={path}:{path}:ro" for path in seen if path.exists()]
    limits = [f"--memory={options.memory_mib}m", f"--memory-reservation={int(options.memory_mib * SOFT)}m"]
    for i in range(len(BUSY)):
        inside = daemon.run(*limits, *volumes, name=f"{lab.parent}-c{i + 1}")
        made.append(Entered(f"c{i + 1}", inside.id, inside.pid, cgroups.of(inside.pid)))
        lab.scope.add("cgroup", made[-1].group.path)
        agent.attach(made[-1])
    yield made
    daemon.stop()


def sized(not_jdk):
    """Programs that answer every line of input with how many CPUs they see, and how many bytes of memory if they look at that: the
    shell's command by name."""
    free = """while read -r _; do echo $(getconf _NPROCESSORS_ONLN) $(free -b | awk "/^Mem/ { print \\$2 }"); done"""
    found = {"getconf, free": free, "Go, at least 2": f"exec {kit_programs.go()}"}
    homes, versions = [*Path("/usr/lib/jvm").glob("java-*"), *(ROOT / ".cache/runtimes").glob("jdk-*")], {}
    for home in homes:
        release = home / "release"
        if release.exists() and (home / "bin/java").exists():
            version = release.read_text().split('JAVA_VERSION="')[1].split(".")[0].split('"')[0]
            versions.setdefault(int(version), home)
    for version, home in sorted(versions.items()):
        if version >= 17 and str(version) not in not_jdk:  # what they run is compiled for that
            found[f"JDK {version}"] = f"exec {home}/bin/java -XX:+UseSerialGC -Xmx64m -cp {kit_programs.java()} Sees"
    return found


def plan(i, options, cpus):
    """The load of a container, as words for `reader load`."""
    ms, words = lambda share: round(options.seconds * 1000 * share), []
    if BUSY[i]:
        words += ["busy", *map(ms, BUSY[i]), cpus]
    if GROW[i]:
        begin, grown, until, size = GROW[i]
        programs_mib = PROGRAMS_MIB if i == ASKED and options.programs else 0
        words += ["grow", ms(begin), ms(grown), max(round(options.memory_mib * size - programs_mib), 1), ms(until)]
    return words


def sample(options, containers, start, samples):
    """(ms after the start, µs of CPU time used, bytes charged) of each container, as the host counts."""
    series = [[] for _ in containers]
    for i in range(samples):
        due = start + i * options.interval_ms * 1_000_000
        if time.monotonic_ns() > due + options.interval_ms * 1_000_000:
            continue  # this machine had no time for us; a late sample would make a false rate
        time.sleep(max(due - time.monotonic_ns(), 0) / 1e9)
        for container, one in zip(containers, series):
            at = max(time.monotonic_ns() - start, 0) // 1_000_000
            one.append([at, container.group.cpu_us(), container.group.memory_bytes()])
    return series


def seen_by(text, start):
    """(ms after the start, CPUs online, MemTotal in KiB) as a watcher printed them; -1 for what could not be read."""
    numbers = (list(map(int, line.split())) for line in text.splitlines())
    return [[max(ns - start, 0) // 1_000_000, cpus, kib] for ns, cpus, kib in numbers]


class Asked:
    """A program in a container, which has answered once when this is made, and is asked again and again by a thread of its own."""

    def __init__(self, container, name, command):
        self.name, self.answers = name, []
        self.child = container.start("/bin/sh", "-c", command, stdin=subprocess.PIPE, stderr=None)
        self.answer()

    def answer(self):
        """CPUs, and KiB of memory, or 0 from a program that does not look at that."""
        print(file=self.child.stdin, flush=True)
        line = self.child.stdout.readline()
        words = line.split()
        assert words and words[0].isdigit(), f"{self.name} answers {line!r}, which is no number of CPUs"
        return int(words[0]), int(words[1]) // 1024 if len(words) > 1 else 0

    def ask(self, start, seconds):
        def run():
            since = lambda: (time.monotonic_ns() - start) // 1_000_000
            while since() < seconds * 1000:
                asked = since()
                cpus, kib = self.answer()
                if asked >= 0:
                    # Between which moments it looked: where many threads want few CPUs, that takes seconds.
                    self.answers.append({"asked": asked, "answered": since(), "cpus": cpus, "kib": kib})
                time.sleep(ASKED_EVERY_MS / 1000)
            self.child.stdin.close()
            self.child.wait()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def told(self):
        self.thread.join()
        assert self.answers, f"{self.name} answered nothing while it was asked"
        return {"name": self.name, "told": self.answers}


# ---- study ----


def study(raw):
    rows = [row(i, container, raw["seconds"]) for i, container in enumerate(raw["containers"])]
    seen = raw["containers"][ASKED]["seen"]
    return {"raw": raw, "rows": rows, "programs": [program_row(program, seen) for program in raw.get("programs", [])]}


def cpus_used(used):
    """(time in s, CPUs used) over a sliding window."""
    pairs = zip(used, used[USAGE_WINDOW:])
    return [(last[0] / 1e3, max(last[1] - first[1], 0) / 1e3 / max(last[0] - first[0], 1)) for first, last in pairs]


def between(values):
    values = list(values)
    return f"{min(values):.0f} to {max(values):.0f}" if values else "-"


def changes(values):
    return sum(before != after for before, after in zip(values, values[1:]))


def row(i, container, seconds):
    """A table's row: what a container saw and used."""
    seen, cpus = container["seen"], [cpus for _, cpus, _ in container["seen"]]
    busy = "{:.0f} to {:.0f} s".format(*(share * seconds for share in BUSY[i])) if BUSY[i] else "never"
    return [
        container["name"], busy, between(cpus), changes(cpus), f"{max((cpus for _, cpus in cpus_used(container['used'])), default=0):.2f}",
        between(kib / 1024 for *_, kib in seen), f"{max((size for *_, size in container['used']), default=0) / 2**20:.0f}",
        sum(cpus < 1 or kib < 1 for _, cpus, kib in seen),
    ]  # fmt: skip


def program_row(program, seen):
    """What a program said, beside what files said while it looked, or not more than SLACK_MS before or after. Memory is computed anew
    with every tick, and a file and a program are not read at the same time: what lies between what files said is the same."""
    told, times = program["told"], [ms for ms, *_ in seen]
    same_cpus, same_memory = [], []
    for answer in told:
        first, last = bisect.bisect_left(times, answer["asked"] - SLACK_MS), bisect.bisect_right(times, answer["answered"] + SLACK_MS)
        meanwhile = seen[first:last]
        same_cpus.append(any(cpus == answer["cpus"] for _, cpus, _ in meanwhile))
        if answer["kib"]:
            sizes = [kib for *_, kib in meanwhile]
            same_memory.append(bool(sizes) and min(sizes) <= answer["kib"] <= max(sizes))
    share = lambda same: f"{100 * sum(same) / len(same):.1f} %" if same else "-"
    cpus, took = [answer["cpus"] for answer in told], sorted(answer["answered"] - answer["asked"] for answer in told)
    return [
        program["name"], len(told), took[len(took) // 2], between(cpus), changes(cpus), share(same_cpus),
        between(answer["kib"] / 1024 for answer in told if answer["kib"]), share(same_memory),
    ]  # fmt: skip


# ---- draw ----


def draw(studied, out):
    raw = studied["raw"]
    out.say(
        f"{len(BUSY)} containers with equal shares and no quota on {raw['cpus']} CPUs, hard memory limit {raw['memory_mib']} MiB, soft "
        f"limit {raw['memory_mib'] * SOFT:.0f} MiB, reading {raw['variant']} files for {raw['seconds']} s. What a container sees is read "
        f"inside it every {raw['interval_ms']} ms from /sys/devices/system/cpu/online and /proc/meminfo; what it uses is "
        "counted by the host."
    )
    head = ["container", "busy", "CPUs seen", "changes", "CPUs used, peak", "MiB seen", "MiB used, peak", "failed reads"]
    out.table(head, studied["rows"])
    titles = [one["name"] + ("" if BUSY[i] else " (never computes)") for i, one in enumerate(raw["containers"])]
    cpus = [([(ms / 1e3, seen) for ms, seen, _ in one["seen"]], cpus_used(one["used"])) for one in raw["containers"]]
    caption = "Dark line: CPUs online as read inside the container. Area: CPUs it used."
    title = f"Effective CPU over time, {raw['variant']} ({raw['cpus']} CPUs)"
    figure(out, "cpu", title, caption, "CPUs", raw["cpus"], zip(titles, cpus), raw)
    memory = [([(ms / 1e3, kib / 1024) for ms, _, kib in one["seen"]], [(ms / 1e3, size / 2**20) for ms, _, size in one["used"]])
              for one in raw["containers"]]  # fmt: skip
    highest = max(raw["memory_mib"], *(mib for seen, _ in memory for _, mib in seen))
    caption = "Dark line: MemTotal as read inside the container. Area: memory charged to it."
    figure(out, "memory", f"Effective memory over time, {raw['variant']}", caption, "MiB", highest, zip(titles, memory), raw)
    if studied["programs"]:
        draw_programs(studied, out, cpus[ASKED][0])


def draw_programs(studied, out, files):
    raw = studied["raw"]
    name = raw["containers"][ASKED]["name"]
    out.say(
        f"Programs in {name}, asked {ASKED_EVERY_MS} ms after each answer meanwhile. *As the files say*: answers that are what the files "
        f"said while the program looked, or not more than {SLACK_MS} ms before or after."
    )
    head = ["program", "answers", "ms to answer, median", "CPUs", "changes", "as the files say", "memory, MiB", "as the files say"]
    out.table(head, studied["programs"])
    said = [([(answer["answered"] / 1e3, answer["cpus"]) for answer in program["told"]], files) for program in raw["programs"]]
    titles = [program["name"] for program in raw["programs"]]
    caption = "Dark line: CPUs that the program says. Area: CPUs online as a reader of files sees them."
    figure(out, "programs", f"What programs see in {name} ({raw['cpus']} CPUs)", caption, "CPUs", raw["cpus"], zip(titles, said), raw)


def figure(out, name, title, caption, label, highest, panels, raw):
    """Panels of (title, (what is seen, what is used)), each over time."""
    from lab import plot

    panels = list(panels)
    of_panels = plot.panels(len(panels))
    with out.figure(name, title, **of_panels) as all_axes:
        all_axes = list(all_axes) if len(panels) > 1 else [all_axes]
        plot.legend(all_axes[0], {}, caption, of_panels["height"])
        for axes, (subject, (seen, used)) in zip(all_axes, panels):
            plot.title(axes, subject)
            plot.area(axes, used, color=plot.PALETTE[5])
            plot.steps(axes, seen, color=plot.PALETTE[0])
            plot.axis(axes, "y", label, limits=(0, highest * 1.1), ticks=4)
            plot.axis(axes, "x", "time (s)" if axes is all_axes[-1] else "", limits=(0, raw["seconds"]), ticks=12)
