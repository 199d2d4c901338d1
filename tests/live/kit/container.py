"""A container with inside.py as its main process, started by any engine."""

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path

from kit import cgroup
from kit.process import pids
from kit.wait import PATIENCE

INSIDE = Path(__file__).with_name("inside.py")
PYTHON = "/usr/bin/python3"
# Starts a command as root of a user namespace of its own. USERS: the kinds of attackers with and without it.
IN_USER_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
USERS = {"host": (), "own": IN_USER_NAMESPACE}
CPUS = os.cpu_count()


def main_process(name):
    """The command of a container, by which it is also known on the host."""
    return [PYTHON, str(INSIDE), name]


class Container:
    """Reads, loads and commands inside a container. `words` start main_process(name) in it, with its streams as theirs."""

    def __init__(self, words, name):
        self.name = name
        self.main = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if not self.main.stdout.readline():
            raise AssertionError(f"{name} did not start: {self.main.communicate(timeout=20 * PATIENCE)[1].strip()}")
        self.pid = host_pid(name)
        lines = Path(f"/proc/{self.pid}/cgroup").read_text().splitlines()
        # Its cgroup's path in any hierarchy, which tells it among the agent's containers under any engine.
        self.cgroups = {line.split(":", 2)[2] for line in lines} - {"/"}

    def directory(self, hierarchy):
        """Its directory in a hierarchy of cgroups."""
        (directory,) = {path for path in (hierarchy.resolve() / path.lstrip("/") for path in self.cgroups) if path.is_dir()}
        return directory

    def _ask(self, *request):
        self.main.stdin.write(json.dumps(request) + "\n")
        self.main.stdin.flush()
        line = self.main.stdout.readline()
        assert line, f"{self.name} ended: {self.main.stderr.read().strip()}"
        answer = json.loads(line)
        assert "error" not in answer, f"in {self.name}, {request}: {answer['error']}"
        return answer["ok"]

    # ---- what programs read ----

    def run(self, *words, timeout=60):
        """A command's standard output; it must succeed."""
        done = self._ask("run", [str(word) for word in words], timeout * PATIENCE)
        assert done["code"] == 0, f"{words} in {self.name}: {done}"
        return done["out"]

    def read(self, path):
        return self._ask("read", path)

    def hold(self, path):
        self._ask("hold", path)

    def reread(self, path):
        return self._ask("reread", path)

    def online(self):
        """The CPUs a C program sees: sysconf(_SC_NPROCESSORS_ONLN)."""
        return int(self.run("getconf", "_NPROCESSORS_ONLN"))

    def online_file(self):
        """How many CPUs are online by sysfs; cheaper than `online`, for polling."""
        return len(cpu_list(self.read("/sys/devices/system/cpu/online")))

    def cpus_used(self, during=1.0):
        """The CPUs that its cgroup used on average, by the kernel's count of nanoseconds: for one that is busy, what it can have. What an
        emulated machine says of itself (/proc/stat) will not do: it counts ticks, and loses three of four of them under load."""
        before, begin = cgroup.cpu_time(self.pid), time.monotonic()
        time.sleep(during)
        return (cgroup.cpu_time(self.pid) - before) / (time.monotonic() - begin)

    def shows_what_it_has(self):
        """Whether as many CPUs are online in it, busy as it is, as it gets beside everything else on this machine; that number, or 0. A view
        stays within 0.6 CPUs of the fair part; on many CPUs the part itself is not steadier than an eighth of them."""
        has, shown = self.cpus_used(), self.online_file()
        assert abs(has - shown) <= max(0.75, CPUS / 8), f"{shown} CPUs are shown, {has:.2f} used"
        return shown

    def mem_total(self):
        """MemTotal, in bytes."""
        return meminfo(self.read("/proc/meminfo"))["MemTotal"]

    def program(self, *words):
        """A program that answers each line of input with a line of numbers; call it for the next answer."""
        number = self._ask("spawn", [str(word) for word in words])
        return lambda: [int(word) for word in self._ask("converse", number).split()]

    def background(self, *words):
        """Starts a program; call the result to end its input, and to wait for it."""
        number = self._ask("spawn", [str(word) for word in words])
        return lambda: self._ask("finish", number)

    def reader(self):
        """Reads views as fast as it can; call the result to stop, for what kit/reader.py counted."""
        number = self._ask("spawn", [PYTHON, str(INSIDE.with_name("reader.py"))])
        self._ask("converse", number)
        return lambda: json.loads(self._ask("finish", number))

    # ---- what programs do ----

    def burn(self, threads):
        self._ask("burn", threads)

    def calm(self):
        self._ask("calm")

    def allocate(self, mib):
        self._ask("allocate", mib)

    def close(self):
        """Ends it by the end of its input; the exit status."""
        with contextlib.suppress(BrokenPipeError):
            self.main.stdin.close()
        try:
            code = self.main.wait(15 * PATIENCE)
        except subprocess.TimeoutExpired:
            self.main.kill()
            code = self.main.wait()
        self.main.stdout.close()
        self.main.stderr.close()
        return code


def host_pid(name):
    """The container's main process, as the host numbers it."""
    words = b"\0".join(word.encode() for word in main_process(name)) + b"\0"
    for pid in pids():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes() == words:
                return pid
    raise AssertionError(f"{name} has no process on this host")


def cpu_list(text):
    """The numbers in a kernel list such as "0-2,5"."""
    cpus = []
    for part in text.split("\n")[0].split(","):
        if part:
            first, _, last = part.partition("-")
            cpus += range(int(first), int(last or first) + 1)
    return cpus


def meminfo(text):
    """/proc/meminfo in bytes by key."""
    lines = (line.split() for line in text.splitlines() if line.strip())
    return {words[0].rstrip(":"): int(words[1]) * (1024 if words[-1] == "kB" else 1) for words in lines}


def stat_cpus(text):
    """The numbers of the cpuN lines of /proc/stat."""
    return [int(line.split()[0][3:]) for line in text.splitlines() if line.startswith("cpu") and line[3].isdigit()]
