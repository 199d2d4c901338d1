"""Containers of systemd-nspawn, by hand and as services of systemd: found by name, and given their view, which a systemd in one survives."""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kit import cgroup
from kit.container import cpu_list, meminfo
from kit.memory import host_memory
from kit.tree import busybox_root
from kit.wait import PATIENCE, eventually

MIB = 1 << 20
NAME = "elbowroom-test-live"
# As `machinectl start` names it: only names of scopes have their dashes escaped.
UNIT = f"systemd-nspawn@{NAME}.service"
LIMITS = ("MemoryMax=300M", "CPUQuota=100%")
MACHINES = Path("/var/lib/machines")


def call(*words, check=True):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60 * PATIENCE)
    assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


class Machine:
    """One machine by its name, started by hand or by systemd."""

    def __init__(self, home):
        self.log = home / "log"
        self.process = None

    def start(self, *words):
        """By hand: `systemd-nspawn`."""
        limits = [f"--property={limit}" for limit in LIMITS]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                ["systemd-nspawn", "--quiet", "--machine", NAME, *limits, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def read(self, path):
        leader = call("machinectl", "show", NAME, "--property", "Leader", "--value").strip()
        return call("nsenter", "--target", leader, "--all", "/bin/cat", path)

    def sees_its_limit(self, memory=300 * MIB):
        assert meminfo(self.read("/proc/meminfo"))["MemTotal"] == memory
        assert len(cpu_list(self.read("/sys/devices/system/cpu/online"))) == 1
        return True

    def ran(self, *words):
        """What a command says that the systemd in it starts as a service."""
        return call("systemd-run", "--machine", NAME, "--pipe", "--wait", "--quiet", "--collect", *words)

    def systemctl(self, *words, check=True):
        return call("systemctl", "--machine", NAME, *words, check=check)

    def terminate(self):
        call("machinectl", "terminate", NAME, check=False)
        if self.process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20 * PATIENCE)
            self.process.kill()
            self.process.wait()


@pytest.fixture
def machine(tmp_path):
    if Path("/proc/1/comm").read_text().strip() != "systemd":
        pytest.skip("needs systemd as the first process, which starts machines and gives them cgroups: tests/vm/systemd")
    if not cgroup.V2 or not shutil.which("systemd-nspawn"):
        pytest.skip("needs systemd-nspawn and cgroup v2: tests/vm/systemd")
    machine = Machine(tmp_path)
    yield machine
    machine.terminate()


def row_of(agent):
    return next((row for row in agent.list() if row["name"] == NAME), None)


def attached(agent, machine):
    def row():
        row = row_of(agent)
        log = machine.log.read_text() if machine.log.exists() else ""
        assert row, f"it is not listed: {log}"
        assert row["attached"], f"it is not attached: {row['attach_note']}: {log}"
        return row

    return eventually(row, within=20)


# What systemd-nspawn does: it changes the root, and mounts procfs and sysfs there only then; here, when it is told to.
LATE = """
mount --bind "$0" "$0" && cd "$0" && mkdir -p old && pivot_root . old && exec /bin/sh -c '
  /bin/busybox umount -l /old; echo changed; read go
  /bin/busybox mount -t proc proc /proc; /bin/busybox mount -t sysfs sysfs /sys; echo mounted
  while read file; do /bin/cat $file; echo end; done'
"""


def test_a_machine_that_mounts_its_file_systems_late_has_a_whole_view(agent, hand_made, tmp_path):
    """By layout alone, on any machine."""
    busybox_root(tmp_path / "root")
    if not any((root / "machine.slice").exists() for root in cgroup.HIERARCHIES):
        hand_made("machine.slice")
    group = hand_made(f"machine.slice/{UNIT}")
    group.limit_memory(300 * MIB)
    process = subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh", "-c", LATE, tmp_path / "root"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: group.enter(os.getpid()),
    )  # fmt: skip

    def say(line, answer):
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        return list(iter(process.stdout.readline, f"{answer}\n"))

    try:
        assert process.stdout.readline() == "changed\n"
        eventually(lambda: (row := row_of(agent)) and row["attached"])
        assert say("go", "mounted") == []
        seen = lambda: meminfo("".join(say("/proc/meminfo", "end")))["MemTotal"]
        eventually(lambda: seen() == 300 * MIB)
        assert row_of(agent)["attached"]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("users", [[], ["-U"]], ids=["root", "private_users"])
def test_a_command_in_a_machine_has_a_view_which_follows_and_goes(agent, machine, tmp_path, users):
    busybox_root(tmp_path / "root")
    machine.start(*users, "--directory", tmp_path / "root", "/bin/sleep", "1000")
    row = attached(agent, machine)
    assert (row["engine"], row["id"]) == ("nspawn", NAME), row
    assert row["path"].startswith("/machine.slice/machine-"), row
    machine.sees_its_limit()
    call("systemctl", "set-property", "--runtime", row["path"].rpartition("/")[2], "MemoryMax=400M")
    eventually(lambda: machine.sees_its_limit(400 * MIB))
    assert agent.cli("detach", NAME).returncode == 0
    assert meminfo(machine.read("/proc/meminfo"))["MemTotal"] == host_memory()["MemTotal"]
    assert agent.cli("attach", NAME).returncode == 0
    eventually(lambda: machine.sees_its_limit(400 * MIB))
    machine.terminate()
    eventually(lambda: row_of(agent) is None)


def test_a_machine_that_is_a_service_has_a_view(agent, machine):
    """As `machinectl start` does it: with a user namespace, an init of its own, and no machine scope."""
    root = MACHINES / NAME
    busybox_root(root)
    try:
        call("systemctl", "set-property", "--runtime", UNIT, *LIMITS)
        call("machinectl", "start", NAME)
        row = attached(agent, machine)
        assert (row["engine"], row["id"], row["path"]) == ("nspawn", NAME, f"/machine.slice/{UNIT}"), row
        eventually(machine.sees_its_limit)
        machine.terminate()
        eventually(lambda: row_of(agent) is None)
    finally:
        call("systemctl", "stop", UNIT, check=False)
        call("systemctl", "revert", UNIT, check=False)
        shutil.rmtree(root)


def test_a_systemd_in_a_machine_boots_and_works_with_its_view(agent, machine):
    """The system in it is this one once more, below a copy-on-write layer."""
    machine.start("--boot", "--directory=/", "--volatile=overlay", "--link-journal=no")
    attached(agent, machine)

    def up():
        state = machine.systemctl("is-system-running", check=False).strip()
        assert state in ("running", "degraded"), f"{state}: {machine.log.read_text()}"
        return state

    def services_see_it():
        assert machine.ran("getconf", "_NPROCESSORS_ONLN").strip() == "1"
        assert machine.ran("free", "--bytes").splitlines()[1].split()[1] == str(300 * MIB)

    eventually(up, within=60)
    assert machine.systemctl("list-units", "--failed", "--plain", "--no-legend") == ""
    machine.sees_its_limit()
    services_see_it()
    machine.systemctl("daemon-reexec")
    machine.systemctl("restart", "systemd-journald.service")
    eventually(up)
    services_see_it()
    call("machinectl", "poweroff", NAME)
    assert machine.process.wait(60 * PATIENCE) == 0, machine.log.read_text()
    eventually(lambda: row_of(agent) is None)
