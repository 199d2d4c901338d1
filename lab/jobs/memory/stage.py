"""The databases, the cgroup around the containers that use them, and one play of the story under an arm."""

import contextlib
import fcntl
import subprocess
import time
from pathlib import Path

from kit.container import meminfo
from kit.wait import eventually
from lab.job import Refused
from lab.jobs.memory import arms, database, samples, story
from lab.jobs.memory.actor import Actor
from lab.jobs.memory.story import WHO

# Of a file system for two databases, which is a file of holes below.
ROOM = {"paper": 14 << 30, "small": 1 << 30}
# While whole files are read.
READ_AHEAD_KIB = 1024
# Longer than any campaign, in milliseconds.
FOREVER = 1 << 40
# The agent remembers its last 20 decisions about a container; each question takes time of the CPUs.
EXPLAIN_EVERY = 5
# Seconds that one database alone is looked at, by scale. Memory is steady when it moves by less than MOVED of all over STEADY seconds. The
# longest wait for that is PATIENCE times the time in which each could read its database.
ALONE, STEADY, MOVED, PATIENCE = {"paper": 60, "small": 15}, 30, 0.02, 3
# The most that a guest keeps for itself beside the two containers: its watermarks, pages of programs, and sysbench.
SPARE_MIB = 64


class Stage:
    def __init__(self, lab, machine, options, phase):
        self.lab, self.machine, self.scale = lab, machine, options.scale
        self.files, self.disk, self.read_ahead = files(lab, machine["guest"], options.data, ROOM[options.scale])
        rows = story.rows(options.scale, machine["guest"])
        with lab.container("maker", memory_mib=2048 if options.scale == "paper" else None) as maker:
            table = database.prepare(starter(maker), self.files, len(WHO), rows, lab.scope.directory)
            database.let_go(self.files)
        self.story = story.make(options.scale, table, machine["guest"], options.load, phase, options.seed)
        self.around = lab.group("machine", memory_mib=self.story["machine_mib"] if machine["stand_in"] else None)
        self.holes = lab.scope.directory / "holes"
        with open(self.holes, "wb") as file:
            file.truncate(4 * self.story["machine_mib"] << 20)
        self.system = lab.container("machine/system") if self.story.get("system_mib") else None
        if self.system:
            self.hold(self.system, self.story["system_mib"], "lock")

    # ---- what is played ----

    def alone(self, who):
        """One container with all memory, under a high load; its samples."""
        with self.playing(WHO[who] + "-alone", {"title": ""}, [who]) as play:
            play.settle()
            play.until(play.begin + ALONE[self.scale], lambda at: ([self.story["high"]] * 2, False))
        return samples.write(play.actors[who].samples(play.begin, ALONE[self.scale]))

    def tell(self, name, arm):
        """All of the story under an arm."""
        with self.playing(name, arm, range(len(WHO))) as play:
            if "probes" in arm:
                play.hear()
            play.settle()
            play.until(play.begin + story.length(self.story), lambda at: story.asked(self.story, at))
        written = [samples.write(play.actors[who].samples(play.begin, story.length(self.story))) for who in range(len(WHO))]
        return {"policy": name, "samples": written, "steady": play.steady, "settled": round(play.settled), **play.decisions()}

    @contextlib.contextmanager
    def playing(self, name, arm, who):
        with contextlib.ExitStack() as ends:
            client = ends.enter_context(self.lab.container("client"))
            ends.enter_context(self.filled())
            actors = {i: ends.enter_context(Actor(self, name, arm, i, client)) for i in who}
            self.warm(actors.values(), even=len(actors) > 1 and arm.get("limits") != "max")
            lines = arms.settings(arm, [actor.described() for actor in actors.values()])
            agent = ends.enter_context(self.lab.agent(name, *lines, prefix=f"machine/{name}-")) if lines is not None else None
            yield Play(self, actors, agent)

    def warm(self, actors, even):
        """Has each read its database at the disk's full speed. Memory is divided evenly to begin with: otherwise the first
        would have most of it, and keep it."""
        half = story.shared_mib(self.story) // 2
        for actor in actors if even else ():
            actor.container.group.limit_memory(half << 20)
        self.read_ahead(READ_AHEAD_KIB)
        readers = [actor.start(["cat", database.table(actor.data)], stdout=subprocess.DEVNULL) for actor in actors]
        for reader in readers:
            if reader.wait():
                raise RuntimeError("a database cannot be read")
        # From now on only what is asked for is read: InnoDB's requests are at random places, and what the kernel guesses is noise.
        self.read_ahead(0)
        for actor in actors:
            if even:
                actor.container.group.limit_memory("max" if self.machine["cgroup_v2"] else -1)
            actor.container.group.limit_io(self.disk, self.story["disk"])

    # ---- a guest that is to be short of memory itself ----

    @contextlib.contextmanager
    def filled(self):
        """Lets go of what is cached; and where no cgroup stands for the machine, a container holds what the two may not use."""
        database.let_go(self.files)
        if self.machine["stand_in"]:
            yield
            return
        with self.lab.container("others") as others:
            available = meminfo(Path("/proc/meminfo").read_text())["MemAvailable"] >> 20
            wanted = self.story["machine_mib"] + SPARE_MIB
            if available <= wanted:
                raise RuntimeError(f"the guest has {available} MiB to give and this needs {wanted}: -m more")
            self.hold(others, available - wanted, "grow")
            # What the kernel keeps for itself is less than what was spared for it; by how much shows only when all is used.
            more = self.left() - self.story["machine_mib"]
            if more > 0:
                self.hold(others, more, "grow")
            yield

    def hold(self, container, mib, verb):
        """Has a container hold `mib` more MiB, until it ends."""
        held = lambda: container.group.memory_stat()["unevictable" if verb == "lock" else "anon"] >> 20
        wanted = held() + mib
        begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        container.reader("load", begin, verb, 0, 1000, mib, FOREVER, stdout=subprocess.DEVNULL)
        eventually(lambda: held() >= wanted - 1, within=120, every=0.2)

    def left(self):
        """How much page cache a container gets that reads more than there is room for, in MiB."""
        with self.lab.container("tide") as container:
            container.output("/usr/bin/env", "sh", "-c", f"cat {self.holes} >/dev/null")
            return container.group.memory_stat()["file"] >> 20


class Play:
    """Asks the actors, second by second, for what the story says."""

    def __init__(self, stage, actors, agent):
        self.stage, self.story, self.actors, self.agent = stage, stage.story, actors, agent
        self.asked_agent, self.known, self.decided, self.steady, self.begin = 0.0, set(), [], None, None
        for actor in actors.values():
            actor.play()

    def settle(self):
        """The first step's load until memory moves no more, as is seen from outside."""
        least, began = self.story["settle"], time.monotonic()
        first = lambda at: story.asked(self.story, 0) if len(self.actors) > 1 else ([self.story["high"]] * 2, False)
        self.steady = False
        while not self.steady and time.monotonic() < began + max(PATIENCE * least, 2 * STEADY):
            self.until(time.monotonic() + 1, first)
            enough = time.monotonic() >= began + max(least, min(STEADY, least + 10))
            self.steady = enough and all(actor.moved(min(STEADY, least)) <= MOVED * self.story["machine_mib"] for actor in self.actors.values())
        self.begin, self.settled = time.monotonic(), time.monotonic() - began

    def until(self, end, asked):
        while (now := time.monotonic()) < end:
            at = now - (self.begin if self.begin is not None else now)
            rates, scans = asked(at) or ([None, None], False)
            for who, actor in self.actors.items():
                actor.ask(rates[who], scans and who == 1)
                actor.check()
            if self.agent and now >= self.asked_agent + EXPLAIN_EVERY:
                self.explain()
                self.asked_agent = now
            time.sleep(0.05)

    def hear(self):
        """Refuses to go on where the agent does not hear what it is to be told."""
        ids = {actor.container.id: WHO[who] for who, actor in self.actors.items()}

        def heard():
            fresh = {row["path"]: (row["probe"] or {}).get("freshness") for row in self.agent.list() if row["path"] in ids}
            deaf = [f"{ids[id]}: {fresh.get(id)}" for id in ids if fresh.get(id) != "fresh"]
            assert not deaf, f"the agent hears no probe of {', '.join(deaf)}"
            return True

        eventually(heard, within=30, every=0.5)

    def explain(self):
        for who, actor in self.actors.items():
            told = (self.agent.ask({"explain": actor.container.id}) or {}).get("explain")
            if told:
                self.decided += new_decisions(told, who, self.known)

    def decisions(self):
        """Decisions that hurt, one by one; moves of memory, as counts and MiB."""
        begin, told, counts = self.begin * 1e6, [], {}
        for at, who, what, amount in self.decided:
            if what in ("hold", "quarantine", "lease"):
                told.append({"ms": round((at - begin) / 1e3), "who": WHO[who], "what": what, "mib": amount})
            else:
                count = counts.setdefault(f"{WHO[who]} {what}", [0, 0])
                count[0], count[1] = count[0] + 1, count[1] + (amount or 0)
        return {"decided": told, "counts": counts} if self.agent else {}


def new_decisions(told, who, known):
    """(when in microseconds, who, what, MiB) of an explanation of the agent's that was not known."""
    found = []
    for one in (told.get("memory") or {}).get("decisions", []):
        if (one["at"], who) not in known:
            known.add((one["at"], who))
            amount = next((one[key] for key in ("amount", "high", "ceiling") if isinstance(one.get(key), int)), None)
            found.append((one["at"], who, one["what"], amount and amount >> 20))
    return found


def claim(image):
    """An image, open: two runs that mount it would destroy it."""
    file = open(image, "ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refused(f"another run has {image}: say another --data") from None
    return file


def starter(container):
    """Starts words in a container."""
    return lambda words, **streams: container.start("/usr/bin/env", *words, **{"stdout": subprocess.DEVNULL, **streams})


def files(lab, guest, data, room):
    """A file system for the databases, the number of its disk, and the file that sets its read-ahead. The disk is a loop device here, and
    an NVMe device in a guest of tools/vm."""
    at = lab.scope.directory / "files"
    at.mkdir()
    if guest:
        name = next((path.parts[3] for path in sorted(Path("/sys/block").glob("*/device/serial")) if path.read_text().startswith("disk")), None)
        if not name:
            raise RuntimeError("the guest has no disk for databases: give tools/vm -d 1G")
        fresh = True
    else:
        image = (data or lab.scope.directory) / "databases.img"
        image.parent.mkdir(parents=True, exist_ok=True)
        fresh = not image.exists()
        lab.databases = claim(image)  # for as long as the run lives
        lab.databases.truncate(max(room, image.stat().st_size))
        lab.scope.add("loop", image.resolve())
        name = Path(database.run("losetup", "--find", "--show", "--direct-io=on", image).strip()).name
        Path(f"/sys/block/{name}/queue/scheduler").write_text("none")
    if fresh:
        database.run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", f"/dev/{name}")
    lab.scope.add("mount", at)
    database.run("mount", f"/dev/{name}", at)
    block = Path(f"/sys/block/{name}")
    return at, (block / "dev").read_text().strip(), lambda kib: (block / "queue/read_ahead_kb").write_text(str(kib))
