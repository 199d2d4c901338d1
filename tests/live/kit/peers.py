"""Programs that measure CPUs and memory, and their own tests: how these are run in a container, and what each says.

`tools/setup peers` builds them. Which tests fail in a view, and why, is a table in docs/testing.md."""

import contextlib
import os
import re
import shlex
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit import cgroup

REPOSITORY = Path(__file__).resolve().parents[3]
PEERS = REPOSITORY / ".cache/peers"
GUIDE = REPOSITORY / "docs/testing.md"
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "PYTHONPATH": PEERS / "psutil"}
GO = ("cpu", "disk", "docker", "host", "load", "mem", "net", "process")
# The others of hwloc's tests read recorded files of other machines.
HWLOC = ("tests/hwloc", "tests/hwloc/linux/gather", "utils/hwloc", "utils/lstopo", "utils/hwloc/test-hwloc-dump-hwdata")
# test_sudo sets the machine's clock. test_memleaks needs a program that Debian has not.
PSUTIL = "-m pytest -c /dev/null --rootdir . -p no:cacheprovider -q -rA --tb=short --ignore tests/test_sudo.py --ignore tests/test_memleaks.py tests"


@dataclass
class Suite:
    """`script` is run in the directory `name` of PEERS and appends to `log`. In `results`, files or that log, `outcome` finds each test's
    word and name. Fewer than `least` tests are no run."""

    name: str
    script: str
    results: tuple
    outcome: str
    least: int

    def outcomes(self, container):
        """Runs it: the tests that failed, and those that passed."""
        home, log = PEERS / self.name, PEERS / f"{self.name}.log"
        if not (PEERS / "complete").exists():
            pytest.skip("needs the tests of other programs: tools/setup peers")
        for old in [log, *(path for pattern in self.results for path in home.glob(pattern))]:
            old.unlink(missing_ok=True)
        words = f"cd {shlex.quote(str(home))}; exec >>{shlex.quote(str(log))} 2>&1; {self.script}"
        settings = [f"{key}={value}" for key, value in ENVIRONMENT.items()]
        container.run("env", *settings, "sh", "-c", f"({words}); true", timeout=550)
        end_what_is_left(container)
        failed, passed = set(), set()
        for path in [log] if not self.results else [path for pattern in self.results for path in home.glob(pattern)]:
            for word, test in re.findall(self.outcome, path.read_text(errors="replace"), re.M):
                name = test or str(path.relative_to(home).with_suffix(""))
                (passed if word.startswith("PASS") else failed).add(name)
        assert len(failed | passed) >= self.least, f"{self.name} ran {len(failed | passed)} tests of {self.least}: {log}"
        return failed, passed


def end_what_is_left(container):
    """Ends what a suite left in its container: the next one's would find it."""
    for pid in map(int, (container.directory(cgroup.HIERARCHIES[-1]) / "cgroup.procs").read_text().split()):
        if pid != container.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


SUITES = [
    Suite("psutil", f"/usr/bin/python3 {PSUTIL}", (), r"^(PASSED|FAILED|ERROR) tests/(\S+)", 300),
    Suite(
        "gopsutil",
        f"home=$PWD; for part in {' '.join(GO)}; do cd $home/source/$part; timeout 100 $home/$part.test -test.v | sed \"s/--- [A-Z]*: /&$part./\"; done",
        (), r"^ *--- (PASS|FAIL): (\S+)", 100,
    ),
    Suite("procps", "make --keep-going check", ("testsuite/*.sum", "*/tests/*.trs"), r"^(?::test-result: )?(PASS|FAIL)(?:$|: (.+))", 100),
    Suite(
        "hwloc",
        f"for part in {' '.join(HWLOC)}; do make --keep-going --directory $part check-TESTS; done",
        tuple(f"{part}/*.trs" for part in HWLOC), r"^:test-result: (PASS|FAIL|ERROR)()$", 40,
    ),
]  # fmt: skip


# ---- lxcfs ----

LXCFS = PEERS / "lxcfs"
# Its other scripts are about its own: a cgroup file system, reloading, live upgrades, SIGUSR2, the parser of lists.
SCRIPTS = ("test_proc", "test_read_proc.sh", "test_meminfo_hierarchy.sh")
# lxcfs looks at the reader's cgroup when it reads; a view comes when the agent has seen the cgroup.
CHANGE = re.compile(r"^ *echo .*({tasks_file}|cpuset\.cpus)$", re.M)
SEEN = "for i in $(seq 100); do ! mountpoint -q /proc/meminfo || break; sleep 0.1; done; sleep 0.5"


def lxcfs_scripts(directory):
    """Writes them for the files of a view: {name: path}. What test_proc looks at becomes a script each."""
    scripts = {}
    for name in SCRIPTS:
        text = (LXCFS / f"tests/{name}.in").read_text().replace("{{LXCFS_BUILD_ROOT}}", str(LXCFS))
        head, *looks = re.split(r'^(?=echo "==> Testing )', text, flags=re.M) if name == "test_proc" else [text]
        for look in looks or [""]:
            what = re.match(r'echo "==> Testing (.*)"', look)
            told = f"{name}: {what[1]}" if what else name
            scripts[told] = path = directory / re.sub(r"\W+", "-", told)
            end = "" if "\nPASS=1\n" in look or not look else "PASS=1\n"
            path.write_text(CHANGE.sub(lambda line: f"{line[0]}\n{SEEN}", head + look + end))
            path.chmod(0o755)
    return scripts


# ---- the table ----

HEAD = re.compile(r"^\| suite \| test \|.*\n\|[-|]+\|\n", re.M)


def listed(suite):
    """The tests of a suite that fail with views, by the table."""
    text = GUIDE.read_text()
    tests = set()
    for line in text[HEAD.search(text).end() :].splitlines():
        if not line.startswith("|"):
            break
        name, test, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        tests |= {part.strip("`") for part in test.split(", ")} if name == suite else set()
    return tests
