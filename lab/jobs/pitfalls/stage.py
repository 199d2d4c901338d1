"""One scene, told once under each arm, on a machine that has forgotten the one before."""

import contextlib
import os
import subprocess
import time
from pathlib import Path

from kit.cgroup import V2
from kit.container import meminfo
from kit.process import comm, descendants
from kit.wait import eventually
from lab import cgroups, profiling, programs
from lab.job import Refused
from lab.jobs.pitfalls import scenes
from lab.jobs.pitfalls.disks import is_guest, mounted, open_disks, swap_on
from lab.jobs.pitfalls.figures import DISKS_MB_PER_S
from lab.scope import run as call

# A machine with more is not filled; what stands for it.
LARGEST_MACHINE_MIB, STAND_IN_MIB = 4096, 1024
# Counters of the whole machine, or of the group that stands for it; then of the application's group.
WHOLE = [
    "pgsteal_kswapd",
    "pgsteal_direct",
    "allocstall_dma32",
    "allocstall_normal",
    "allocstall_movable",
    "pswpin",
    "pswpout",
    "limit_hit",
]
APP = ["workingset_refault_file", "workingset_refault_anon", "pgmajfault", "limit_hit"]
MEMORY_MS = 200
# From when all is in place to the start, here and on an emulated CPU: time for a command of the product.
LEAD_NS = {False: 2_000_000_000, True: 12_000_000_000}
FOREVER_MS = 3_600_000
DIRTY_MIB = 1400  # what the disk has room for
# Where the agent for HotSpot and its machine's view come from.
JAVA = "elbowroom-lab-pitfalls"


def the_machine():
    """The memory and the kernel of this machine."""
    found = {key: value >> 20 for key, value in meminfo(Path("/proc/meminfo").read_text()).items()}
    stand_in = found["MemTotal"] > LARGEST_MACHINE_MIB
    return {
        "mib": STAND_IN_MIB if stand_in else found["MemAvailable"],
        "stand_in": stand_in,
        "cgroup_v2": V2,
        "guest": is_guest(),
        "thp": Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().strip(),
        "lru_gen": Path("/sys/kernel/mm/lru_gen/enabled").read_text().strip() if Path("/sys/kernel/mm/lru_gen/enabled").exists() else None,
    }


class Stage:
    """The files and the cgroup that all arms share."""

    def __init__(self, lab, scene, story, machine):
        self.lab, self.scene, self.story, self.machine = lab, scene, story, machine
        if scene in scenes.NEEDS_SWAP and not machine["guest"] and meminfo(Path("/proc/meminfo").read_text())["SwapTotal"] == 0:
            raise Refused(f"{scene} needs swap: lab/plans/pitfalls runs it in a guest that has some")
        self.java, self.reader = programs.java("Application"), programs.reader()
        self.disks = open_disks(lab)
        files = mounted(lab, self.disks[0])
        if len(self.disks) > 1 and not story["crowded"]:  # or others' memory would not stay where it is
            swap_on(lab, self.disks[1])
        # Files that the application reads. The host and others read files of holes, which take cache but no time of the disk.
        self.data, self.second_data = files / "data", files / "second"
        self.holes, self.dirty = files / "holes", files / "dirty"
        for path in (self.data, self.second_data)[: 1 + story["second"]]:
            with open(path, "wb") as out:
                out.writelines([bytes([7]) * (1 << 20)] * story["file_mib"])
                out.flush()
                os.fsync(out.fileno())
        with open(self.holes, "wb") as out:
            out.truncate(story["others_mib"] << 20)
        self.above = lab.group("machine", memory_mib=machine["mib"] if machine["stand_in"] else None)
        self.config = lab.scope.directory / "product.toml"
        self.config.write_text(f'[containers]\ncgroups = ["/{self.above.path}/app", "/{self.above.path}/second"]\n')
        self.agent = lab.agent("java") if any(arm["strategy"] == "java_command" for arm in scenes.arms(scene, machine)) else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass  # what it made is the lab's to take down

    # ---- one arm ----

    def tell(self, arm):
        story = self.story
        self.forget()
        if self.machine["guest"]:
            self.disks[0].set_speed(DISKS_MB_PER_S[1] * 10**6)  # until the application is ready
        with contextlib.ExitStack() as stack:
            group = lambda name, mib=None: self.group(stack, name, mib)
            limit = scenes.limit_mib(arm, story)
            groups = {"memory": group("app", limit)}
            if story["second"]:
                groups["second_memory"] = group("second", limit)
            host, others = group("host"), group("others")
            if story["second"]:
                groups["root_memory"] = host
            self.set_swappiness(arm, groups)
            # Where the heap is not there yet, the others have the machine before the JVM begins.
            late = self.scene == "V.B"
            if late:
                self.fill(others, arm)
            machines = [self.start(groups, key, arm) for key in groups if key != "root_memory"]
            if not late:
                self.fill(others, arm)
            self.slow_down(groups)
            self.apply(arm, groups, host)
            start = time.monotonic_ns() + LEAD_NS[self.machine["guest"]]
            self.disturb(arm, host, groups["memory"], start)
            self.follow(arm, groups, host, start)
            if time.monotonic_ns() > start:
                raise RuntimeError("the commands of this arm took longer than there is time before the start")
            before = groups["memory"].memory_stat(), self.whole()
            for machine in machines:
                machine.stdin.write(str(start))
                machine.stdin.close()
            samples, stat = self.watch(groups, start)
            done = [counted(machine) for machine in machines]
            after = stat, self.whole()
            found = {"app": difference(APP, before[0], after[0]), "whole": difference(WHOLE, before[1], after[1])}
            self.take_back(arm)
        return {"variant": arm, "done": done[0], **samples, **found}

    def group(self, stack, name, mib):
        path = f"machine/{name}"
        made = self.lab.group(path, memory_mib=mib)
        # Processes that are in it end with it.
        stack.callback(self.lab.scope.take_down, ("cgroup", made.path))
        return made

    def set_swappiness(self, arm, groups):
        """v1: of the application's groups. The paper's groups are never swapped by their own requests where it does not say 50."""
        if V2:
            return
        wanted = self.story.get("swappiness", 60) if arm["strategy"] != "baseline" else 0
        for group in victims(groups):
            group.set_memory("memory.swappiness", 0 if arm["strategy"] == "no_swap" else wanted)

    def spawn(self, group, *words, **streams):
        """A program in a group from its first instruction on."""
        child = self.lab.start("sh", "-c", 'read go; exec "$@"', "sh", *words, stdin=subprocess.PIPE, text=True, **streams)
        group.enter(child.pid)
        child.stdin.write("go\n")
        child.stdin.flush()
        return child

    def start(self, groups, key, arm):
        """A JVM that has made what it holds, read what it reads, and waits for its start."""
        story = self.story
        words = ["java", *scenes.jvm(self.scene, arm, story), "-cp", ":".join([self.java]), "Application", story["work"]]
        numbers = [story["rate"], story["held_mib"], story["grow_mib"], *story["disturbed"], story["sample"], story["end"]]
        words += [*numbers, self.data if key == "memory" else self.second_data]
        if arm["strategy"] == "java_command":
            limit = scenes.limit_mib(arm, story)
            product = [
                self.lab.options.elbowroom.resolve(),
                "run",
                "--run-dir",
                self.agent.run_dir,
                "--name",
                JAVA,
                "--memory",
                f"{limit}MiB",
            ]
            words = [*product, "--java", "--", *words]
        machine = self.spawn(groups[key], *words, stdout=subprocess.PIPE)
        line = machine.stdout.readline()
        if line != "ready\n":
            raise RuntimeError(f"the application did not start: {line.strip()} (exit status {machine.wait()})")
        if arm["strategy"] == "java_command":
            groups[key] = cgroups.of(next(pid for pid in [machine.pid, *descendants(machine.pid)] if comm(pid) == "java"))
            if not V2:
                groups[key].set_memory("memory.swappiness", story["swappiness"])
        return machine

    def fill(self, others, arm):
        """Gives all memory to another group."""
        kind = "anon" if self.story["crowded"] else arm["others"]
        free = max(1, self.free_mib() - self.story["spare_mib"])
        if kind == "cache":
            self.spawn(others, "cat", self.holes, stdout=subprocess.DEVNULL).wait()
        elif kind == "dirty":
            if self.machine["guest"]:  # which is forgotten
                for name, percent in (("dirty_ratio", 90), ("dirty_background_ratio", 80)):
                    Path("/proc/sys/vm", name).write_text(str(percent))
            size = min(free, DIRTY_MIB)
            self.spawn(others, "dd", "if=/dev/zero", f"of={self.dirty}", "bs=1M", f"count={size}", "status=none").wait()
        elif kind == "anon":
            self.load(others, time.monotonic_ns(), "grow", 0, 1000, free, FOREVER_MS)

            def filled():
                stat = others.memory_stat()
                return stat["anon"] + stat.get("swap", 0) >= free << 20

            eventually(filled, within=60)

    def load(self, group, start, kind, *numbers):
        return self.spawn(group, self.reader, "load", start, kind, *numbers, stdout=subprocess.DEVNULL)

    def disturb(self, arm, host, app, start):
        """The host's job, and in V.C the copies in the application's own group."""
        first, last = self.story["disturbed"]
        match self.story["host"]:
            case {"grow": mib}:
                self.load(host, start, "use", first, first + 2000, mib, last)
            case {"scan": mib_per_s}:
                self.load(host, start, "scan", first, last, mib_per_s, self.holes)
        if self.story.get("copies") and arm["strategy"] != "baseline":
            script = 'while :; do cp "$1" "$1.copy" || exit; done'
            self.spawn(app, "sh", "-c", script, "sh", self.data)

    # ---- strategies ----

    def apply(self, arm, groups, host):
        """The settings of an arm, when all is in place."""
        strategy = arm["strategy"]
        if strategy == "housekeeping":
            host.limit_memory(self.story["housekeeping_mib"] << 20)
        elif strategy == "no_swap" and V2:
            for group in victims(groups):
                group.set_memory("memory.swap.max", 0)
        elif strategy == "pretouch_command":
            self.product("pretouch", f"/{groups['memory'].path}", f"{scenes.largest_heap_mib(self.story)}MiB")
        elif strategy in ("protect_command", "protect_no_swap_command"):
            for group in victims(groups):
                self.product("protect", f"/{group.path}", "--yes", *(["--no-swap"] if "no_swap" in strategy else []))

    def follow(self, arm, groups, host, start):
        """Commands about what runs already: the host's job, and files that are read back."""
        if arm["strategy"] == "housekeeping_command":
            jobs = profiling.ask(self.lab, "housekeeping", "--config", self.config, codes=(0, 1))["jobs"]
            name = next((one["name"] for one in jobs if one["place"].get("group") == f"/{host.path}"), None)
            if name is None:
                raise RuntimeError(f"housekeeping does not list /{host.path}: {[one['name'] for one in jobs]}")
            self.product("housekeeping", name, "--apply", "--yes")
        elif arm["strategy"] == "size_command":
            # It looks while files are read back: from when the heap has grown on, and in V.C from the tenth part on.
            after = self.story["disturbed"][1] if self.scene == "III.B" else self.story["end"] // 10
            wait = (start - time.monotonic_ns()) / 1e9 + after / 1e3
            binary, path = self.lab.options.elbowroom.resolve(), f"/{groups['memory'].path}"
            script = 'sleep "$1"; shift; "$@"; "$@"; exit 0'
            words = [binary, "size", path, "--for", "1s", "--apply", "--yes", *self.journal()]
            streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            self.lab.start("sh", "-c", script, "sh", wait, *words, **streams)

    def journal(self):
        return ["--config", self.config, "--state-dir", self.lab.scope.directory / "state"]

    def product(self, *words):
        """A command of the product; what it says where it does less than it was asked for."""
        command = [str(word) for word in (self.lab.options.elbowroom.resolve(), *words, *self.journal())]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        if done.returncode == 2:
            raise RuntimeError(f"elbowroom {words[0]}: {done.stderr.strip()}")
        if done.returncode == 1:
            print(f"elbowroom {words[0]}: {(done.stderr or done.stdout).strip()}", flush=True)

    def take_back(self, arm):
        if arm["strategy"].endswith("_command") and arm["strategy"] not in ("java_command", "pretouch_command"):
            call(str(self.lab.options.elbowroom.resolve()), "undo", "--all", "--state-dir", str(self.lab.scope.directory / "state"))

    # ---- the machine ----

    def forget(self):
        """Lets go of the cache that the arm before had."""
        for path in (self.data, self.second_data, self.holes, self.dirty, self.data.with_suffix(".copy")):
            if path.exists():
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.dirty.unlink(missing_ok=True)

    def free_mib(self):
        """Memory that no group has."""
        if self.machine["stand_in"]:
            return self.machine["mib"] - (self.above.memory_bytes() >> 20)
        return meminfo(Path("/proc/meminfo").read_text())["MemFree"] >> 20

    def slow_down(self, groups):
        """The disk that the application reads from is as slow as it is in every guest; here, for each application alone."""
        speed = DISKS_MB_PER_S[0] * 10**6
        if self.machine["guest"]:
            self.disks[0].set_speed(speed)
        else:
            for group in victims(groups):
                group.limit_io(self.disks[0].number, speed)

    def whole(self):
        if self.machine["stand_in"]:
            return self.above.memory_stat()
        return cgroups.pairs(Path("/proc/vmstat").read_text())

    def watch(self, groups, start):
        """(ms, [cache, anonymous memory, swap]) of the groups, in MiB, until the end, and the last counters of the application's."""
        found, last = {key: [] for key in groups}, {}
        for due in range(0, self.story["end"] + 1, max(MEMORY_MS, self.story["sample"])):
            time.sleep(max(0, (start - time.monotonic_ns()) / 1e9 + due / 1e3))
            for key, group in groups.items():
                # A container of `elbowroom run` goes with its command, which may be at its end by now.
                with contextlib.suppress(FileNotFoundError):
                    at, stat = (time.monotonic_ns() - start) // 10**6, group.memory_stat()
                    found[key].append([max(0, at), [stat.get(kind, 0) >> 20 for kind in ("file", "anon", "swap")]])
                    last[key] = stat
        return found, last["memory"]


def victims(groups):
    """The applications' groups, without the host's."""
    return [group for key, group in groups.items() if key != "root_memory"]


def counted(machine):
    """The application's counts: (ms, pieces done so far)."""
    lines = machine.stdout.read().splitlines()
    if machine.wait() != 0 or not lines:
        raise RuntimeError(f"the application failed with {machine.returncode}")
    return [[int(word) for word in line.split()] for line in lines]


def difference(keys, before, after):
    """How much each grew; nothing for those that the kernel does not have."""
    return {key: max(0, after[key] - before[key]) for key in keys if key in before and key in after}
