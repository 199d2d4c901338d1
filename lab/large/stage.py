"""What every figure needs: an agent, programs in cgroups of their own, one moment at which all begin, and a clean end.

Programs are started by `elbowroom run`: with `--no-views` for every arm but the adaptive ones, so a cgroup is all they share with those.
"""

import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
# How many times longer than usual something may take: an emulated machine is slow.
slowness = 1


class Broken(Exception):
    """An arm that could not be measured; the next one can."""


def text(path):
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def now_ns():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def layout():
    """v2, hybrid, v1 or none, and the controllers that containers can be given."""
    mounts = [line.split(" - ") for line in text("/proc/self/mountinfo").splitlines()]
    kinds = {right.split()[0] for left, right in mounts if left.split()[4].startswith(str(CGROUPS))}
    if "cgroup" in kinds:
        names = {name for _, right in mounts if right.startswith("cgroup ") for name in right.split()[-1].split(",")}
        return "hybrid" if "cgroup2" in kinds else "v1", sorted(names & {"cpu", "cpuset", "memory"})
    if "cgroup2" in kinds:
        return "v2", sorted(set(text(CGROUPS / "cgroup.controllers").split()) & {"cpu", "cpuset", "memory"})
    return "none", []


def machine(kit):
    """What the numbers were seen on."""
    kind, controllers = layout()
    info = dict(line.split(":", 1) for line in text("/proc/meminfo").splitlines())
    model = re.search(r"model name\s*:\s*(.*)", text("/proc/cpuinfo"))
    return {
        "kernel": os.uname().release,
        "cpu_model": model.group(1) if model else "",
        "cpus": os.cpu_count(),
        "memory_kib": int(info["MemTotal"].split()[0]),
        "swap_kib": int(info["SwapTotal"].split()[0]),
        "huge_pages": text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "cgroups": kind,
        "controllers": controllers,
        "fuse": os.path.exists("/dev/fuse"),
        "clocksource": text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "commit": text(Path(__file__).parent / "commit") or text(kit / "commit"),
        "elbowroom": subprocess.run([kit / "bin/elbowroom", "--version"], capture_output=True, text=True).stdout.strip(),
    }


def load():
    return [float(word) for word in text("/proc/loadavg").split()[:3]]


class Program:
    """One `elbowroom run`, and what it says."""

    def __init__(self, name, process, complaints, directory):
        self.name, self.process, self.complaints, self.directory = name, process, complaints, directory
        self.said, self.eof, self.status, self.cpu_s, self.peak_mib, self.kills = "", False, None, None, 0, 0
        self.cut_off = False

    def line(self, word):
        """What stands behind a word at the beginning of a line."""
        found = re.search(rf"^{word}\b(.*)$", self.said, re.MULTILINE)
        return found.group(1).strip() if found else None

    def go(self, words=""):
        try:
            self.process.stdin.write(f"{words}\n".encode())
            self.process.stdin.close()
        except OSError:
            pass  # it has ended: its status says how

    def complaint(self):
        return self.complaints.read_text(errors="replace").strip()

    def cgroup(self):
        return CGROUPS / "elbowroom" / self.name

    def look(self):
        """Memory and kills, as long as the cgroup is there."""
        current = text(self.cgroup() / "memory.current")
        if current:
            self.peak_mib = max(self.peak_mib, int(current) >> 20)
            kills = re.search(r"^oom_kill (\d+)", text(self.cgroup() / "memory.events"), re.MULTILINE)
            self.kills = max(self.kills, int(kills.group(1)) if kills else 0)

    def kill(self):
        """Ends the command, by the numbers of its cgroup's processes; its runner ends then."""
        for root in [CGROUPS, *CGROUPS.glob("*")]:
            for pid in text(root / "elbowroom" / self.name / "cgroup.procs").split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except (ProcessLookupError, ValueError):
                    pass


class Stage:
    """An agent that runs under every arm, and programs. Leaving it takes everything down."""

    def __init__(self, kit, settings=()):
        self.kit, self.count, self.running = kit, 0, []
        self.dir = Path(tempfile.mkdtemp(prefix="elbowroom-large.", dir="/run"))
        self.run_dir = self.dir / "agent"
        self.elbowroom = kit / "bin/elbowroom"
        lines = ["containers.attach = false", "recorder.enabled = false", "api.enabled = false", *settings]
        (self.dir / "agent.toml").write_text("\n".join(lines) + "\n")
        self.run_dir.mkdir()
        command = [self.elbowroom, "agent", "--run-dir", self.run_dir, "--state-dir", self.dir / "state", "--config", self.dir / "agent.toml"]
        with open(self.dir / "agent.log", "wb") as log:
            self.agent = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __enter__(self):
        return self

    def is_up(self):
        """Waits until a command gets a view; says why not."""
        until, why = time.monotonic() + 15 * slowness, ""
        while time.monotonic() < until and self.agent.poll() is None:
            run = [*self.runner("probe", True, ["--cpus", "1"]), "cat", "/sys/devices/system/cpu/online"]
            done = subprocess.run(run, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode == 0:
                return True, f"with a quota of one CPU a container sees {done.stdout.strip()}"
            why = done.stderr.strip()
            time.sleep(0.3)
        return False, f"{why or 'the agent has ended'}: {self.log()}"

    def log(self):
        return " | ".join(text(self.dir / "agent.log").splitlines()[-5:])

    def ask(self, *words):
        done = subprocess.run([self.elbowroom, *words, "--format", "json", "--run-dir", self.run_dir], capture_output=True, text=True)
        return json.loads(done.stdout) if done.stdout else None

    def runner(self, name, view, flags):
        return [str(self.elbowroom), "run", "--run-dir", str(self.run_dir), "--name", name, *flags, *([] if view else ["--no-views"]), "--"]

    def start(self, command, flags=(), view=False, env=None, oom="500"):
        """Starts a command in a cgroup of its own."""
        self.count += 1
        name = f"large-{os.getpid()}-{self.count}"
        complaints = self.dir / f"{name}.err"
        with open(complaints, "wb") as errors:
            process = subprocess.Popen(
                self.runner(name, view, list(flags)) + [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self.dir,
                env={**os.environ, **(env or {})},
                # Whoever is killed for memory, it is a program.
                preexec_fn=lambda: Path("/proc/self/oom_score_adj").write_text(oom),
            )
        os.set_blocking(process.stdout.fileno(), False)
        program = Program(name, process, complaints, self.dir)
        self.running.append(program)
        return program

    def _listen(self, programs, seconds):
        with selectors.DefaultSelector() as selector:
            for program in programs:
                if not program.eof:
                    selector.register(program.process.stdout, selectors.EVENT_READ, program)
            if not selector.get_map():
                time.sleep(seconds)
                return
            for key, _ in selector.select(seconds):
                heard = key.fileobj.read()
                if heard:
                    key.data.said += heard.decode(errors="replace")
                elif heard == b"":
                    key.data.eof = True

    def ready(self, programs, patience):
        """Waits until all have said that they are ready."""
        until = time.monotonic() + patience * slowness
        while not all(program.line("ready") is not None for program in programs):
            late = [program for program in programs if program.line("ready") is None]
            if time.monotonic() > until or any(program.eof for program in late):
                said = "; ".join(program.complaint()[-300:] for program in late)
                self.end(programs)
                raise Broken(f"not ready: {said}")
            self._listen(late, 0.02)

    def go(self, programs, lead_ms=150):
        at = now_ns() + lead_ms * 1_000_000
        for program in programs:
            program.go(str(at))
        return at

    def wait(self, programs, patience, look=False):
        """Waits for the end of all; who is late is ended."""
        until = time.monotonic() + patience * slowness
        left = list(programs)
        while left:
            self._listen(left, 0.1 if look else 0.02)
            if look:
                for program in left:
                    program.look()
            late = time.monotonic() > until
            for program in list(left):
                if late and not program.cut_off:
                    program.cut_off = True
                    program.kill()
                pid, status, usage = os.wait4(program.process.pid, os.WNOHANG)
                if pid:
                    program.process.returncode = program.status = os.waitstatus_to_exitcode(status)
                    program.cpu_s = round(usage.ru_utime + usage.ru_stime, 3)
                    self._listen([program], 0)
                    left.remove(program)
                    self.running.remove(program)
            if time.monotonic() > until + 20:
                raise Broken(f"{len(left)} programs cannot be ended")
        return programs

    def end(self, programs):
        for program in programs:
            program.kill()
        for program in programs:
            try:
                program.process.wait(10)
            except subprocess.TimeoutExpired:
                program.process.kill()
            if program in self.running:
                self.running.remove(program)

    def __exit__(self, *_):
        self.end(list(self.running))
        self.agent.terminate()
        try:
            self.agent.wait(10)
        except subprocess.TimeoutExpired:
            self.agent.kill()
            self.agent.wait()
        for line in reversed(text("/proc/self/mountinfo").splitlines()):
            at = line.split()[4]
            if at.startswith(str(self.dir)):
                subprocess.run(["umount", "--lazy", at], check=False)
        for root in [CGROUPS, *CGROUPS.glob("*")]:
            for directory in [*root.glob(f"elbowroom/large-{os.getpid()}-*"), root / "elbowroom"]:
                try:
                    directory.rmdir()
                except OSError:
                    pass  # it was never there, or is another's
        shutil.rmtree(self.dir, ignore_errors=True)


def spread(values):
    """Median, smallest and largest."""
    values = sorted(value for value in values if value is not None)
    if not values:
        return None
    middle = len(values) // 2
    median = values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
    return median, values[0], values[-1]


def said(values, digits=3):
    """A spread as tables have it."""
    found = spread(values)
    if found is None:
        return "-"
    median, least, most = (f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}" for value in found)
    return f"{median} ({least} to {most})"


def table(head, rows):
    rule = [":--", *["--:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in [head, rule, *rows])
