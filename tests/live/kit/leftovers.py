"""Removes what a run of these tests left. A run does so at its end; after a killed run the next one does, as it would fail otherwise."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from kit import cgroup
from kit.process import pids, state
from kit.wait import eventually

# Every directory of a run begins so, the session's and that of each program that keeps data.
PREFIX = "elbowroom-test-live-"
LOCK = Path("/run/elbowroom-test-live.lock")


def alone():
    """The lock that one run at a time holds: two agents would mount into each other's containers. None while another run has it."""
    lock = open(LOCK, "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def directories():
    return [path for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*") if path.is_dir() and path.owner() == "root"]


def clear():
    """Takes away what dead runs left; what that was. The caller holds the lock."""
    homes, groups = directories(), sorted(map(Path, cgroup.ours()), reverse=True)
    eventually(lambda: not kill(homes))
    for home in homes:
        remove(home)
    for group in groups:
        eventually(lambda: gone(group))
    return [str(path) for path in [*homes, *groups]]


def kill(homes):
    """Kills what is alive of them. An agent's processes start each other anew: until there is none."""
    found = [pid for pid in pids() if belongs(pid, homes)]
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def belongs(pid, homes):
    """Whether a process is one of theirs: in a cgroup of theirs, started with a directory of theirs, or living on one."""
    with contextlib.suppress(OSError):
        if state(pid) in "ZX":
            return False
        here = Path(f"/proc/{pid}")
        groups = [part for line in (here / "cgroup").read_text().splitlines() for part in line.split("/")]
        start = (here / "cmdline").read_bytes() + (here / "environ").read_bytes()
        roots = [line for line in (here / "mountinfo").read_text().splitlines() if line.split()[4] == "/"]
        marks = start.decode(errors="replace") + "".join(roots)
        return any(part.startswith("elbowroom-test-live") for part in groups) or any(f"{home}/" in marks for home in homes)
    return False


def remove(home):
    """Deletes a directory, and takes away first what is mounted in it: to delete through a mount is worse than to hide one."""
    for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
        if line.split()[4].startswith(f"{home}/"):
            subprocess.run(["umount", "--lazy", line.split()[4]])
    shutil.rmtree(home)


def gone(group):
    for directory in reversed([group, *cgroup.below(group)]):
        with contextlib.suppress(OSError):
            os.rmdir(directory)
    return not group.exists()
