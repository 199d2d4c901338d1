"""One story, told once under each arm: on disks of their own at the same time, or on one after the other. Throughput comes from the
kernel's counters of each container's cgroup, limits from the knobs. The disk's true speed is what the lab set; the agent is only asked what
it believes."""

import contextlib
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from kit.cgroup import V2
from kit.wait import eventually
from lab import fio
from lab.jobs.disk import arms, loads, programs
from lab.stats import bucket

SAMPLE_MS = 1000
# A burst is looked at more closely for a while: when the kernel sees it, when a limit answers, when the victim has again what it wants.
CLOSE_MS, CLOSE_S = 50, 6
ALL_COLUMNS = 4  # up to this many containers all have all columns; of more, one victim and the hogs
UNCOUNTED = ("buffered", "unpack", "pgbench")  # ways whose first I/O comes when write-back does
numbers = itertools.count(1)  # of stages, whose agents each have a run directory


class Stage:
    """The set-up of a story under one arm: `places` are (disk, timeline), with the same actors. Use it in a `with`."""

    def __init__(self, lab, arm, places, direction, load=None):
        self.lab, self.arm, self.direction, self.load = lab, arm, direction, load
        self.places = [(disk, arms.part(arm, told)) for disk, told in places]
        self.actors = self.places[0][1]["actors"]
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            number = next(numbers)
            prefix, lines = f"{self.arm}{number}-", arms.settings(self.arm, self.places)
            self.agent = stack.enter_context(self.lab.agent(f"{self.arm}{number}", *lines, prefix=prefix)) if lines else None
            self.containers = [stack.enter_context(self.lab.container(prefix + actor["name"])) for actor in self.actors]
            for disk, told in self.places:
                if disk.speed:
                    disk.set_speed(loads.speed(told, 0))
                for container in self.containers:
                    container.group.count_io(disk.number)
                stack.enter_context(arms.in_force(self.arm, disk, told, self.containers))
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        self.stack.__exit__(*error)

    def tell(self):
        """Tells the story, one result per disk; time begins when every container that wants something has done its first I/O."""
        running = [
            [programs.make(self.lab, container, place, actor, self.direction) for container, actor in zip(self.containers, self.actors)]
            for place in self.places
        ]
        for program in itertools.chain(*running):
            program.begin()
        skew_ms = self.await_first_io(running)
        start = time.monotonic()
        unix_ms = time.time() * 1000
        with ThreadPoolExecutor(len(self.places)) as pool:
            told = list(pool.map(lambda place: self.tell_one(place, start), self.places))
        for place, loaded, result in zip(self.places, running, told):
            for program, actor, series in zip(loaded, self.actors, result["series"]):
                program.finish()
                if self.load:
                    add_latencies(series, program.latencies(unix_ms), place[1], actor)
            thin(result["series"], self.actors)
            result["skew_ms"] = skew_ms
        return told

    def await_first_io(self, running):
        """How much earlier the first load began than the last."""
        everywhere = [
            (disk, container, program)
            for (disk, _), loaded in zip(self.places, running)
            for container, program, actor in zip(self.containers, loaded, self.actors)
            if loads.want(actor, 0) and actor.get("way") not in UNCOUNTED
        ]  # fmt: skip
        began = {}

        def all_began():
            for number, (disk, container, program) in enumerate(everywhere):
                if number not in began:
                    program.check()
                    if container_counts(container, disk)[0]:
                        began[number] = time.monotonic()
            return len(began) == len(everywhere)

        eventually(all_began, within=60)
        return round((max(began.values()) - min(began.values())) * 1000) if began else 0

    def tell_one(self, place, start):
        disk, told = place
        series = [{"ms": [], "kb": [], "cap_kb": [], **({"ops": []} if self.load else {})} for _ in self.actors]
        result = {"policy": self.arm, "disk": disk.name, "series": series, "speeds": [[0, loads.speed(told, 0)]]}
        result["told"] = {"disk": [], "lifelines": [[] for _ in self.actors], "alerts": []}
        if self.load:
            result.update(disk_kb=[], close=[])
        others = [self.change_speeds, self.listen, *([self.look_closely] if self.load else [])]
        failed = []

        def run(task):
            try:
                task(disk, told, start, result)
            except Exception as error:  # is raised where the story is told
                failed.append(error)

        threads = [threading.Thread(target=run, args=(task,), daemon=True) for task in (self.sample, *others)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        return result

    def sample(self, disk, told, start, result):
        """Records the kernel's counters and the limits in force: nothing here comes from the agent."""
        first, first_disk = [container_counts(container, disk) for container in self.containers], sum(disk.bytes())
        for second in range(told["seconds"] + 1):
            sleep_until(start, second * SAMPLE_MS)
            for container, actor, series, base in zip(self.containers, self.actors, result["series"], first):
                now = container_counts(container, disk)
                series["ms"].append(ms_since(start))
                series["kb"].append((now[0] - base[0]) // 1000)
                series["cap_kb"].append(self.cap_kb(container, disk, actor))
                if "ops" in series:
                    series["ops"].append(now[1] - base[1])
            if "disk_kb" in result:
                result["disk_kb"].append((sum(disk.bytes()) - first_disk) // 1000)

    def cap_kb(self, container, disk, actor):
        """Thousands of bytes per second. A limit on operations counts as the bytes that this container's requests carry at that rate, and
        one on reads as what it allows of reads and writes together."""
        limits = container.group.io_limits(disk.number)
        parts = fio.WAYS[actor.get("way", self.direction)][1] if actor.get("way") in (*fio.WAYS, None) else (0, 1)
        found = []
        for way, part in enumerate(parts):
            if part:
                found += [limit / part for limit in (limits[way], limits[2 + way] and limits[2 + way] * actor["style"]["block"]) if limit]
        return int(min(found)) // 1000 if found else None

    def change_speeds(self, disk, told, start, result):
        for at, speed in told["speeds"][1:]:
            if at < told["seconds"]:
                sleep_until(start, at * 1000)
                disk.set_speed(speed)
                result["speeds"].append([ms_since(start), speed])

    def listen(self, disk, told, start, result):
        """Records what the agent reports, once a second."""
        key, beliefs = "rbps" if self.direction == "read" else "wbps", result["told"]
        for second in range(told["seconds"]) if self.agent else ():
            sleep_until(start, second * SAMPLE_MS)
            report, rows, at = self.agent.ask("disks")["disks"], self.agent.list(), ms_since(start)
            for one in report["disks"]:
                if one["number"] == disk.number:
                    known = (one.get("capacity") or {}).get(key)  # {"at": bytes per second}, or a word while it is not known
                    beliefs["disk"].append([at, one["state"], known["at"] // 1000 if isinstance(known, dict) and "at" in known else None])
            for container, lifelines in zip(self.containers, beliefs["lifelines"]):
                row = next((row for row in rows if row["id"] == container.id), None)
                standing = next((one for one in row.get("disk") or () if one["disk"] == disk.number), {}) if row else {}
                part = standing.get("lifeline")
                if row:
                    lifelines.append([at, part if part is None else round(part * 1000)])
            for alert in report["alerts"]:
                if alert["kind"] not in [kind for _, kind in beliefs["alerts"]]:
                    beliefs["alerts"].append([at, alert["kind"]])

    def look_closely(self, disk, told, start, result):
        """The first steady container and the hogs around each burst, every 50 ms; when a limit on a hog first changed."""
        hogs = [number for number, actor in enumerate(self.actors) if not actor["steady"]]
        victim = next(number for number, actor in enumerate(self.actors) if actor["steady"])
        for at in sorted({at for number in hogs for at, _ in loads.bursts(self.actors[number], told)}):
            from_ms = at * 1000 - 1000
            look = {"at": at, "ms": [], "victim_kb": [], "hog_kb": [], "caps_kb": []}  # of limits, [ms, the tightest] where it changed
            bytes_of = lambda numbers: sum(container_counts(self.containers[number], disk)[0] for number in numbers)
            base = (bytes_of([victim]), bytes_of(hogs))
            for due in range(from_ms, from_ms + CLOSE_S * 1000, CLOSE_MS):
                sleep_until(start, due)
                look["ms"].append(ms_since(start) - at * 1000)
                look["victim_kb"].append((bytes_of([victim]) - base[0]) // 1000)
                look["hog_kb"].append((bytes_of(hogs) - base[1]) // 1000)
                caps = [self.cap_kb(self.containers[number], disk, self.actors[number]) for number in hogs]
                cap = min((cap for cap in caps if cap is not None), default=None)
                if not look["caps_kb"] or look["caps_kb"][-1][1] != cap:
                    look["caps_kb"].append([look["ms"][-1], cap])
            result["close"].append(look)


def container_counts(container, disk):
    """Bytes and operations so far, read and written together."""
    if V2:
        text = (container.group.directory("") / "io.stat").read_text()
        ours = next((line for line in text.splitlines() if line.startswith(f"{disk.number} ")), "")
        fields = dict(word.split("=") for word in ours.split()[1:])
        number = lambda *keys: sum(int(fields.get(key, 0)) for key in keys)
        return number("rbytes", "wbytes"), number("rios", "wios")
    counts = []
    for file in ("io_service_bytes_recursive", "io_serviced_recursive"):
        text = (container.group.directory("blkio") / f"blkio.throttle.{file}").read_text()
        rows = (line.split() for line in text.splitlines())
        counts.append(sum(int(row[2]) for row in rows if row[0] == disk.number and row[1] in ("Read", "Write")))
    return tuple(counts)


def add_latencies(series, seconds, told, actor):
    """Columns of p50, p99 and p99.9 by the second, and a histogram over the seconds that count: those with not enough for all, or all."""
    columns = [fio.quantiles_us(seconds.get(second, {})) for second in range(told["seconds"])]
    for number, name in enumerate(("p50_us", "p99_us", "p999_us")):
        series[name] = [column and column[number] for column in columns]
    crowded = [second for second in range(told["seconds"]) if loads.contested(told, second)] or range(told["seconds"])
    counts = fio.merge(seconds.get(second, {}) for second in crowded)
    series["latency_us"] = [[round(upper / 1000, 1), count] for upper, count in sorted(coarser(counts).items())]
    if "unit" in actor:
        series["done"] = [sum(seconds.get(second, {}).values()) for second in range(told["seconds"])]


def coarser(counts):
    """In buckets of an eighth of a power of two, where there are more: pgbench's latencies are by the microsecond."""
    return fio.merge({upper if upper < 128 or len(counts) < 300 else bucket(upper): count} for upper, count in counts.items())


def thin(series, actors):
    """Of a crowd, one victim and the hogs keep all columns: the others their bytes and their histogram."""
    if len(series) <= ALL_COLUMNS:
        return
    kept = {next(number for number, actor in enumerate(actors) if actor["steady"])}
    kept |= {number for number, actor in enumerate(actors) if not actor["steady"]}
    for number, columns in enumerate(series):
        if number not in kept:
            for name in set(columns) - {"kb", "latency_us"}:
                del columns[name]


def ms_since(start):
    return int((time.monotonic() - start) * 1000)


def sleep_until(start, ms):
    time.sleep(max(start + ms / 1000 - time.monotonic(), 0))
