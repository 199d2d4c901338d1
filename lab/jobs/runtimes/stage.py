"""The set-up of every figure of the runtimes: an agent, programs in containers of their own, a common start, and a clean end.

Programs are started by `elbowroom run`, with `--no-views` under every arm but the adaptive ones: a cgroup is all they share with those. A
program says "ready", is told the moment to begin, and ends by itself or is ended at its time limit."""

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from pathlib import Path

from kit import cgroup
from kit.wait import PATIENCE
from lab.job import Refused

KILLED = (128 + signal.SIGKILL, -signal.SIGKILL)
# Begins a command when it is told to, for one that does not wait by itself; the moment is its first argument where it wants it.
GATE = 'echo ready; read -r at; exec "$@"'
GATE_AT = 'echo ready; read -r at; program=$1; shift; exec "$program" "$at" "$@"'
PRELOAD = 'LD_PRELOAD="$0${LD_PRELOAD:+:$LD_PRELOAD}" exec "$@"'


class Broken(Exception):
    """An arm that could not be measured; the next one can."""


def gated(command, at=False):
    return ["sh", "-c", GATE_AT if at else GATE, "sh", *command]


def text(path):
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


class Program:
    """One `elbowroom run`, and what it says."""

    def __init__(self, name, process, complaints):
        self.name, self.process, self.complaints = name, process, complaints
        self.said, self.eof, self.status, self.cpu_s, self.peak_mib, self.kills = "", False, None, None, 0, 0
        self.cut_off = False
        os.set_blocking(process.stdout.fileno(), False)

    def line(self, word):
        """The rest of the line that begins with a word; None where there is none."""
        found = re.search(rf"^{word}\b(.*)$", self.said, re.MULTILINE)
        return found.group(1).strip() if found else None

    def hear(self):
        heard = self.process.stdout.read()
        self.said += (heard or b"").decode(errors="replace")
        self.eof = heard == b""

    def go(self, at):
        with contextlib.suppress(OSError):  # it has ended: its status says how
            self.process.stdin.write(f"{at}\n".encode())
            self.process.stdin.close()

    def complaint(self):
        return text(self.complaints)

    def files(self, name):
        return [root / "elbowroom" / self.name / name for root in cgroup.HIERARCHIES]

    def look(self):
        """Memory and kills, as long as the cgroup is there."""
        usage, events = ("memory.current", "memory.events") if cgroup.V2 else ("memory.usage_in_bytes", "memory.oom_control")
        self.peak_mib = max([self.peak_mib, *(int(used) >> 20 for used in map(text, self.files(usage)) if used)])
        kills = re.findall(r"^oom_kill (\d+)", "\n".join(map(text, self.files(events))), re.MULTILINE)
        self.kills = max([self.kills, *map(int, kills)])

    def kill(self):
        """Ends the command, by the numbers of its cgroup's processes; its runner ends then."""
        for pid in {pid for file in self.files("cgroup.procs") for pid in text(file).split()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def outcome(self):
        """As tables say it."""
        if self.cut_off:
            return "not finished"
        if self.status == 0:
            return "finished"
        if "OutOfMemoryError" in self.complaint():
            return "OutOfMemoryError"
        return "killed for memory" if self.status in KILLED else f"failed ({self.status})"

    def report(self):
        """The record of a program, with its complaint where it failed."""
        why = {} if self.outcome() in ("finished", "not finished") else {"complaint": self.complaint()[-300:]}
        return {"outcome": self.outcome(), "total_ms": int(self.line("done")) if self.line("done") else None, "cpu_s": self.cpu_s, **why}


class Stage:
    """An agent that runs under every arm, and programs."""

    def __init__(self, lab, place, name="run"):
        self.lab, self.place, self.count, self.running, self.limit = lab, place, 0, [], None
        self.dir = lab.scope.directory
        self.prefix = f"elbowroom-lab-{os.getpid()}"
        self.hold = f"elbowroom/{self.prefix}-hold"
        self.agent = lab.agent(name, "recorder.enabled = false", "api.enabled = false")
        probe = [*self.runner("probe", True, ["--cpus", "1"]), "cat", "/sys/devices/system/cpu/online"]
        done = subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise Refused(f"a container gets no view: {done.stderr.strip()}")

    def runner(self, name, view, flags):
        run = [self.lab.options.elbowroom, "run", "--run-dir", self.agent.run_dir, "--name", f"{self.prefix}-{name}", *flags]
        return [str(word) for word in [*run, *([] if view else ["--no-views"]), "--"]]

    def start(self, command, flags=(), view=False, env=None, oom="500"):
        """Starts a command in a container of its own, which believes in as many CPUs as the place pretends."""
        self.count += 1
        name = f"{self.prefix}-{self.count}"
        self.lab.scope.add("cgroup", f"elbowroom/{name}")
        if self.place.pretend:
            command = ["sh", "-c", PRELOAD, self.place.pretend, *command]
        complaints = self.dir / f"{name}.err"
        with open(complaints, "wb") as errors:
            process = subprocess.Popen(
                self.runner(str(self.count), view, flags) + [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self.dir,
                env={**os.environ, "LAB_CPUS": str(self.place.believed), **(env or {})},
                # A program is what is killed for memory, and nothing that measures.
                preexec_fn=lambda: Path("/proc/self/oom_score_adj").write_text(oom),
            )
        program = Program(name, process, complaints)
        self.running.append(program)
        return program

    def _listen(self, programs, seconds):
        with selectors.DefaultSelector() as selector:
            for program in programs:
                if not program.eof:
                    selector.register(program.process.stdout, selectors.EVENT_READ, program)
            if not selector.get_map():
                time.sleep(seconds)
            for key, _ in selector.select(seconds) if selector.get_map() else []:
                key.data.hear()

    def ready(self, programs, patience=60):
        """Waits until all have said that they are ready."""
        until = time.monotonic() + patience * PATIENCE
        while late := [program for program in programs if program.line("ready") is None]:
            if time.monotonic() > until or any(program.eof for program in late):
                said = "; ".join(program.complaint()[-300:] for program in late)
                self.end(programs)
                raise Broken(f"not ready: {said}")
            self._listen(late, 0.02)

    def go(self, programs, lead_ms=150):
        """Tells all the moment at which they begin."""
        at = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + lead_ms * 1_000_000
        for program in programs:
            program.go(at)

    def wait(self, programs, patience, look=False):
        """Waits for the end of all, and ends those that are late."""
        until, left = time.monotonic() + patience * PATIENCE, list(programs)
        while left:
            self._listen(left, 0.1 if look else 0.02)
            for program in list(left):
                if look:
                    program.look()
                if self.reap(program):
                    left.remove(program)
                elif time.monotonic() > until and not program.cut_off:
                    program.cut_off = True
                    program.kill()
            if time.monotonic() > until + 20 * PATIENCE:
                raise Broken(f"{len(left)} programs cannot be ended")

    def reap(self, program):
        """Whether it has ended; then its container is gone too."""
        pid, status, usage = os.wait4(program.process.pid, os.WNOHANG)
        if not pid:
            return False
        program.process.returncode = program.status = os.waitstatus_to_exitcode(status)
        program.cpu_s = round(usage.ru_utime + usage.ru_stime, 3)
        program.hear()
        program.process.stdout.close()
        self.running.remove(program)
        self.lab.scope.take_down(("cgroup", f"elbowroom/{program.name}"))
        return True

    def end(self, programs):
        for program in programs:
            program.kill()
        with contextlib.suppress(Broken):
            self.wait([program for program in programs if program in self.running], 0)

    def close(self):
        self.end(list(self.running))
        self.agent.close()
        if self.limit is not None:
            for path in (self.hold, "elbowroom"):
                self.lab.scope.take_down(("cgroup", path))

    def machine(self, mib):
        """A limit for all containers together, which stands for a machine; None is the machine itself."""
        if not mib:
            return
        group = cgroup.ROOT / ("" if cgroup.V2 else "memory") / "elbowroom"
        with contextlib.suppress(OSError):
            for root in cgroup.HIERARCHIES:
                (root / "elbowroom").rmdir()
        if group.exists():
            raise Refused(f"{group} has other containers, which a limit would meet: end them first")
        for path in ("elbowroom", self.hold):
            self.lab.scope.add("cgroup", path)
        cgroup.Cgroup("elbowroom").limit_memory(mib << 20)
        # `elbowroom run` takes the group away with its last container: one without processes, and without a share of CPUs, keeps it.
        hold = cgroup.Cgroup(self.hold, [cgroup.ROOT / ("" if cgroup.V2 else "memory")])
        if cgroup.V2:
            hold.write("cpu", "cpu.weight", 1)
        self.limit = mib

    def free_mib(self):
        """The free memory of the machine, or of the group that stands for it."""
        if self.limit is None:
            found = re.search(r"^MemFree:\s+(\d+)", text("/proc/meminfo"), re.MULTILINE)
            return int(found[1]) >> 10
        file = cgroup.ROOT / ("elbowroom/memory.current" if cgroup.V2 else "memory/elbowroom/memory.usage_in_bytes")
        return self.limit - (int(text(file) or 0) >> 20)
