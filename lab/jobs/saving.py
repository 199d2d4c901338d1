"""What does saving save, and what does it cost its owners: idle sandboxes of Python, a JVM, PostgreSQL under pgbench?

Each scene runs with an agent that saves and with one that does not, in turn. Sandboxes hold what they once loaded, and for a request go over
a part of it; of the database, transactions read a tenth. The last half of what is looked at counts. Needs cgroup v2 with memory.reclaim:
tools/vm -c 4 -m 4096 -t 3600 -d 4G -w lab/results -- /usr/bin/python3 -m lab saving"""

import asyncio
import contextlib
import sys
import threading
import time

LASTS = "8 min a scene and run, both arms"
SCENES = {"python": "idle sandboxes of Python", "jvm": "a JVM", "postgres": "PostgreSQL under pgbench"}
ARMS = {"off": "without saving", "on": "with saving"}
# A disk as a small server has it, also for swap.
DISK_BYTES_PER_S, SWAP_MIB = 200_000_000, 2048
# Rows that transactions read, of those that pgbench makes for a scale of 5.
ROWS_READ = 50_000
READ = f"\\set aid random(1, {ROWS_READ})\nSELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
LOOK_EVERY_S = 5


def options(parser):
    parser.add_argument("--scenes", default=",".join(SCENES), help="with commas between")
    parser.add_argument("--sandboxes", type=int, default=40, help="of Python, each holds 32 MiB and uses 2; one is asked every 20 s")
    parser.add_argument("--heap", type=int, default=256, metavar="MIB", help="what the JVM holds; it uses a sixteenth of it all the time")
    parser.add_argument("--look", type=float, default=240, metavar="S", help="how long an arm is looked at; saving begins after a minute")
    parser.add_argument("--runs", type=int, default=3)


def record(lab, options):
    from kit import cgroup
    from lab import disks
    from lab.job import Refused

    scenes = options.scenes.split(",")
    if unknown := [scene for scene in scenes if scene not in SCENES]:
        raise Refused(f"there is no {', '.join(unknown)}: {', '.join(SCENES)}")
    if not cgroup.V2:
        raise Refused("cgroup v1 saves nothing: run it in a guest of tools/vm, see --help")
    disk = disks.for_files(lab, DISK_BYTES_PER_S)
    disks.mount_ext4(lab, disk)
    raw = {"sandboxes": options.sandboxes, "heap": options.heap, "look": options.look, "runs": []}
    for run in range(options.runs):
        for scene in scenes:
            for arm in sorted(ARMS, reverse=run % 2 == 1):
                print(f"run {run + 1} of {options.runs}, {SCENES[scene]}: {ARMS[arm]}", file=sys.stderr)
                raw["runs"].append({"run": run, "scene": scene, "arm": arm, **play(lab, options, disk, scene, arm, run)})
                lab.keep(raw)
    return raw


def play(lab, options, disk, scene, arm, run):
    """One arm of a scene: what the containers have of memory, and how long their clients wait."""
    from lab.jobs.density_of_sandboxes import swap

    with contextlib.ExitStack() as ends:
        ends.enter_context(swap(lab, SWAP_MIB, disk.folder))
        kind = {"postgres": Database}.get(scene, Sandboxes)
        settings = ['memory.mode = "enforce"', f"memory.saving = {str(arm == 'on').lower()}", 'disk.mode = "off"']
        agent = ends.enter_context(lab.agent(f"{arm}-{scene}-{run}", *settings, prefix=kind.prefix.format(scene=scene, arm=arm)))
        load = kind(lab, options, disk, (scene, arm), agent)
        ends.callback(load.close)
        began = time.monotonic()
        memory = []

        def look():
            while (now := time.monotonic() - began) < options.look:
                memory.append((round(now), load.group.memory_bytes() >> 20, load.group.memory_stat().get("swap", 0) >> 20))
                time.sleep(LOOK_EVERY_S)

        looking = threading.Thread(target=look)
        looking.start()
        taken = load.ask(began + options.look)
        looking.join()
        killed = load.group.oom_kills()
    late = sorted(1000 * seconds for at, seconds in taken if at - began >= options.look / 2 and seconds is not None)
    return {"memory": memory, "killed": killed, "lost": sum(seconds is None for _, seconds in taken), **latencies(late, options.look / 2)}


def latencies(ordered_ms, seconds):
    from lab.stats import quantile

    at = lambda per_mille: round(quantile(ordered_ms, per_mille), 3) if ordered_ms else None
    return {"rate": len(ordered_ms) / seconds, "p50": at(500), "p95": at(950), "p99": at(990)}


class Sandboxes:
    """The sandboxes of density-of-sandboxes: many that are asked now and then, or one that is asked all the time."""

    prefix = "machine-{arm}-{scene}/"

    def __init__(self, lab, options, _, place, agent):
        from lab.jobs.density_of_sandboxes import Sandbox

        (scene, arm), self.random = place, lab.random
        self.group = lab.group(f"machine-{arm}-{scene}")
        many = scene == "python"
        options.holds, options.hot = (32, 2) if many else (options.heap, options.heap // 16)
        self.gap = 20 if many else 0
        self.all = [Sandbox(lab, options, arm, scene, number, self.group, agent) for number in range(options.sandboxes if many else 1)]
        for sandbox in self.all:
            assert sandbox.start(), f"a sandbox of {scene} did not start"

    def ask(self, end):
        from lab.jobs.density_of_sandboxes import ask_all

        return asyncio.run(ask_all(self.random, [sandbox.socket for sandbox in self.all], self.gap, end))

    def close(self):
        for sandbox in self.all:
            sandbox.close()
            sandbox.socket.unlink(missing_ok=True)
        self.group.remove()


class Database:
    """PostgreSQL in a container with its files on the disk, and pgbench with two clients, which reads a tenth of the rows."""

    prefix = "{scene}-{arm}"

    def __init__(self, lab, options, disk, place, agent):
        from lab.jobs.disk import programs

        (scene, arm), self.script = place, lab.scope.directory / "read.sql"
        programs.refuse([{"way": "pgbench"}])
        self.script.write_text(READ)
        self.script.chmod(0o644)
        lab.scope.directory.chmod(0o755)
        self.container = lab.container(self.prefix.format(scene=scene, arm=arm), agent=agent)
        self.group = self.container.group
        self.server = programs.Pgbench(lab, self.container, disk, {"phases": [{"want": 1}]}, 1)

    def ask(self, end):
        ask = ["pgbench", "-h", self.server.logs, "-U", "postgres", "-n", "-c", 2, "-T", round(end - time.monotonic()), "-f", self.script]
        begin = time.time() - time.monotonic()
        self.server.run(*ask, "-l", f"--log-prefix={self.server.logs}/log")
        taken = []
        for log in self.server.logs.glob("log*"):
            for line in log.read_text().splitlines():
                _, _, latency_us, _, second, microsecond, *_ = line.split()
                taken.append((int(second) + int(microsecond) / 1e6 - begin, int(latency_us) / 1e6))
        return taken

    def close(self):
        import shutil

        self.server.stop()
        shutil.rmtree(self.server.logs)
        self.container.close()


# ---- what it amounts to ----

def study(raw):
    """By scene: memory, rate and latencies of each arm over runs, and the ratios within each run."""
    from lab.stats import median, ratios, spread

    rows, curves = [], {}
    for scene in dict.fromkeys(run["scene"] for run in raw["runs"]):
        runs = {arm: {run["run"]: run for run in raw["runs"] if (run["scene"], run["arm"]) == (scene, arm)} for arm in ARMS}
        late = lambda run: median(mib for at, mib, _ in run["memory"] if at >= raw["look"] * 3 / 4)
        of = {"mib": late, "rate": lambda run: run["rate"], "p95": lambda run: run["p95"], "p99": lambda run: run["p99"]}
        figures = {name: {arm: {n: get(run) for n, run in some.items()} for arm, some in runs.items()} for name, get in of.items()}
        row = {name: {arm: spread(values.values()) for arm, values in by.items()} for name, by in figures.items()}
        row["ratio"] = {name: spread(ratios(by["on"], by["off"])) for name, by in figures.items()}
        bad = {arm: sum(run["killed"] + run["lost"] for run in some.values()) for arm, some in runs.items()}
        rows.append({"scene": scene, "bad": bad, **row})
        curves[scene] = {ARMS[arm]: [(at, mib) for at, mib, _ in next(iter(some.values()))["memory"]] for arm, some in runs.items() if some}
    return {"rows": rows, "curves": curves, "look": raw["look"], "sandboxes": raw["sandboxes"], "heap": raw["heap"]}


def draw(studied, out):
    from lab.tables import of_spread, plain

    out.say(f"Each arm is looked at for {plain(studied['look'])} s. Memory is the median of the last quarter; what asks counts from the middle on. "
            f"There are {studied['sandboxes']} sandboxes of Python, each of which is asked every 20 s; the JVM holds {studied['heap']} MiB and, like "
            "the database, is asked all the time. Ratios are of the two arms within a run: median (smallest to largest).")  # fmt: skip
    head = ["scene", "memory, MiB", "with saving", "of it", "requests a second, of those without saving", "p95", "p99", "killed or lost, without and with"]
    rows = []
    for row in studied["rows"]:
        ratio = {name: of_spread(found) for name, found in row["ratio"].items()}
        bad = f"{row['bad']['off']} and {row['bad']['on']}"
        rows.append([SCENES[row["scene"]], of_spread(row["mib"]["off"]), of_spread(row["mib"]["on"]), ratio["mib"], ratio["rate"], ratio["p95"], ratio["p99"], bad])
    out.table(head, rows)
    for scene, curves in studied["curves"].items():
        figure(out, scene, curves)


def figure(out, scene, curves):
    from lab import plot

    points = [point for curve in curves.values() for point in curve]
    with out.figure(scene, f"Memory of {SCENES[scene]}, first run") as axes:
        plot.axis(axes, "x", "seconds", limits=(0, max(at for at, _ in points)))
        plot.axis(axes, "y", "MiB", limits=(0, 1.05 * max(mib for _, mib in points)))
        plot.lines(axes, curves)
