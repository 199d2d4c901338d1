"""What an agent leaves on a host, also one whose processes nobody here started."""

import os
from pathlib import Path

from kit import cgroup
from kit.process import pids
from kit.wait import eventually


def traces(run_dir):
    """Traces of the agent of a run directory: mounts of any process, cgroups, files and processes."""
    mounts = set()
    for pid in pids():
        try:
            lines = Path(f"/proc/{pid}/mountinfo").read_text(errors="replace").splitlines()
        except OSError:
            continue
        mounts |= {line.split(" ", 3)[3] for line in lines if "fuse.elbowroom" in line or str(run_dir) in line}
    groups = {line for root in cgroup.HIERARCHIES for line in map(str, root.glob("*elbowroom*"))}
    files = {str(path) for path in run_dir.glob("**/*")} if run_dir.exists() else set()
    return mounts | groups | files | {f"process {pid}" for pid in agent_processes(run_dir)}


def nothing_left(run_dir, before):
    def gone():
        try:
            left = traces(run_dir) - before
        except OSError as error:  # A connection that was aborted, and whose mount goes in a moment.
            left = {str(error)}
        assert not left, "\n".join(sorted(left))
        return True

    eventually(gone, within=20)


def agent_processes(run_dir):
    def words(pid):
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return b""

    return [pid for pid in pids() if pid != os.getpid() and str(run_dir).encode() in words(pid) and b"elbowroom\0" in words(pid)[:40]]
