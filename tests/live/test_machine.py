"""What depends on the processor: the program itself, its pages, and the numbers of system calls. `make vm-test-arm64` runs it on arm64."""

import contextlib
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kit import api, need
from kit.container import cpu_list
from kit.process import descendants
from kit.wait import eventually

LIVE = Path(__file__).resolve().parent
# Lines that a view computes, and one that changes from read to read.
COMPUTED = {"siblings", "cpu cores", "cpu MHz"}


def test_the_program_is_this_machines_and_finds_what_it_needs(agent):
    assert agent.json("version")["target"] == f"{platform.machine()}-linux"
    done = agent.cli("check")
    assert done.returncode == 0, done.stdout + done.stderr


def processors(text):
    """The records of /proc/cpuinfo, by their numbers; what fills the text up to its size is none."""
    pairs = lambda record: (line.partition(":") for line in record.splitlines() if line.strip())
    lines = lambda record: {key.strip(): value.strip() for key, _, value in pairs(record)}
    records = [lines(record) for record in text.split("\n\n")]
    return {int(record.pop("processor")): record for record in records if "processor" in record}


def test_cpuinfo_has_the_hosts_records_of_the_cpus_shown(agent, start):
    need.cpus(2)
    container = start("--cpuset", "1")
    seen, host = processors(container.read("/proc/cpuinfo")), processors(Path("/proc/cpuinfo").read_text())
    assert list(seen) == [1] == cpu_list(container.read("/sys/devices/system/cpu/online"))
    assert {key: value for key, value in seen[1].items() if key not in COMPUTED} == {
        key: value for key, value in host[1].items() if key not in COMPUTED
    }


class KernelLog:
    """The kernel's log from now on."""

    def __init__(self):
        self.file = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self.file, 0, os.SEEK_END)
        self.lines = []

    def refused(self, pids):
        """Refused system calls of these processes (audit's records of the type AUDIT_SECCOMP)."""
        while True:
            try:
                self.lines.append(os.read(self.file, 1 << 13).decode(errors="replace"))
            except BlockingIOError:
                break
        return [line for line in self.lines if "type=1326" in line and any(f" pid={pid} " in line for pid in pids)]


def test_no_system_call_of_a_confined_process_is_refused(agent, start):
    log = KernelLog()
    # Whether this kernel says it at all, and not to a program such as auditd.
    words = "from kit import listened as l; l.filter_sysinfo(l.REFUSE, l.LOG); l.libc.syscall(l.SYSINFO, 0)"
    with subprocess.Popen([sys.executable, "-c", words], env={**os.environ, "PYTHONPATH": str(LIVE)}) as told:
        pass
    try:
        eventually(lambda: log.refused([told.pid]), within=2)
    except AssertionError:
        pytest.skip("needs a kernel log with refused system calls: audit is off here, or a program has its records")
    container = start("--cpus", "1", "--memory", "256MiB")
    agent.attached(container)
    views = {line.split()[4] for line in container.read("/proc/self/mountinfo").splitlines() if " fuse.elbowroom " in line}
    container.run("sh", "-c", 'find "$@" -type f -exec cat {} + >/dev/null 2>&1 || :', "-", *sorted(views))
    eventually(lambda: answers(agent), within=20)
    eventually(lambda: api.get(agent.run_dir / "api.sock", "/api/v1/containers"))
    status = lambda pid: Path(f"/proc/{pid}/status").read_text()
    # A short-lived process of the agent may end meanwhile.
    confined = eventually(lambda: [pid for pid in descendants(agent.supervisor.pid) if "\nSeccomp:\t2\n" in status(pid)])
    assert len(confined) >= 2, "the view server and the API's process have filters"
    assert not log.refused(confined)


def answers(agent):
    """Whether its API is up."""
    with contextlib.suppress(OSError):
        return api.ask(agent.run_dir / "api.sock", "/readyz")[0] == 200
