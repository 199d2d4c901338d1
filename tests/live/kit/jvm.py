"""Java virtual machines that see the limits of a test without any limit in force. Files of the test are bound over their cgroup's limit
files, in a mount namespace of their own."""

import contextlib
import os
import subprocess
from pathlib import Path

from kit import cgroup
from kit.programs import BUILT, SOURCES, Missing, build
from kit.wait import PATIENCE, eventually

REPOSITORY = Path(__file__).resolve().parents[3]
AGENT = REPOSITORY / "target/java/elbowroom-agent.jar"
STRESS = REPOSITORY / "java/stress"
PERIOD = 100_000

# A library that makes a machine believe in 16 CPUs: its affinity bounds what a quota may say.
SIXTEEN = BUILT / "sixteen.so"


def virtual_machines():
    """{"17": java, ...}: one of each version, here or where ELBOWROOM_TEST_JVMS (a path list of homes) says."""
    homes = [Path(home) for home in os.environ.get("ELBOWROOM_TEST_JVMS", "").split(":") if home]
    homes += sorted(Path("/usr/lib/jvm").glob("*"))
    found = {}
    for home in homes:
        release = home / "release"
        if release.is_file() and (home / "bin/java").exists():
            lines = dict(line.split("=", 1) for line in release.read_text().splitlines() if "=" in line)
            found.setdefault(lines.get("JAVA_VERSION", '"?"').strip('"').split(".")[0], home / "bin/java")
    return found


def programs():
    """Compiles what these tests run; the directory of the classes."""
    javac = sorted(Path("/usr/lib/jvm").glob("*-17-*/bin/javac")) or sorted(Path("/usr/lib/jvm").glob("*/bin/javac"))
    if not javac:
        raise Missing("a Java compiler in /usr/lib/jvm, where there is none: tools/setup test")
    for source in (STRESS / "Stress.java", SOURCES / "Elastic.java"):
        build(f"{source.stem}.class", source, [javac[0], "--release", "11", "-d", BUILT, source])
    build(SIXTEEN.name, STRESS / "sixteen.c", ["cc", "-shared", "-fPIC", "-O2", "-o", SIXTEEN, STRESS / "sixteen.c"])
    return BUILT


class View:
    """The limit files of one cgroup, as a test wants them read."""

    def __init__(self, group, directory, cpus, memory):
        self.group = group
        self.cpu_file, self.memory_file = directory / "cpu", directory / "memory"
        self.cpu_file.touch()
        self.memory_file.touch()
        self.cpus(cpus)
        self.memory(memory)

    def cpus(self, cpus):
        quota = cpus * PERIOD
        self.write(self.cpu_file, f"{quota:010} {PERIOD}" if cgroup.V2 else f"{quota:010}")

    def memory(self, limit):
        self.write(self.memory_file, f"{limit:015}")

    @staticmethod
    def write(file, text):
        # In place and of one length: a bind mount shows the file, not the name, and no reader may see half of it.
        with open(file, "r+") as opened:
            opened.write(text + "\n")

    def command(self, words):
        """Words that start `words` in the cgroup, with these files."""
        root = [cgroup.ROOT / self.group.path] * 2 if cgroup.V2 else [cgroup.ROOT / name / self.group.path for name in ("cpu", "memory")]
        names = ("cpu.max", "memory.max") if cgroup.V2 else ("cpu.cfs_quota_us", "memory.limit_in_bytes")
        lines = [f"echo 0 > {directory}/cgroup.procs" for directory in self.group.directories]
        lines += [f"mount --bind {file} {directory}/{name}" for file, directory, name in zip((self.cpu_file, self.memory_file), root, names)]
        script = "set -e; " + "; ".join(lines) + '; exec "$@"'
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *map(str, words)]

    def start(self, words, **options):
        environment = {key: value for key, value in os.environ.items() if key != "JAVA_TOOL_OPTIONS"}
        # unshare and sh get by without; only the machine is to believe in sixteen.
        words = self.command(["env", f"LD_PRELOAD={SIXTEEN}", *words])
        return subprocess.Popen(words, env=environment, text=True, **options)


class Machine:
    """Elastic.java in a view, with a page of it where it is given; what it says on standard error is kept in `errors`."""

    def __init__(self, view, java, *options, directory, page=None):
        self.view = view
        self.errors = directory / "stderr"
        with open(self.errors, "w") as errors:
            words = [f"ELBOWROOM_VIEW={page}"] if page else []
            words += [java, "-XX:+UnlockExperimentalVMOptions", *options, "-cp", BUILT, "Elastic"]
            self.process = view.start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=directory)

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the machine ended with {self.process.wait()}: {self.errors.read_text()}"
        return line.strip()

    def room(self, attribute):
        """An attribute of the agent's bean, which is there some time after the start."""
        return eventually(lambda: self.ask("room", attribute), within=60)

    def committed_mib(self):
        return int(self.ask("committed")) >> 20

    def close(self):
        """Ends it by the end of its input; the exit status."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            code = self.process.wait(60 * PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process.stdout.close()
        return code
