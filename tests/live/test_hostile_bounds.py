"""A container with too many mounts, long names, cgroups or control characters. It loses its own service at most; the policy process stays
small, and a neighbour notices nothing."""

import os
import subprocess
import time

import pytest

from kit import cgroup
from kit.container import PYTHON
from kit.process import Process
from kit.wait import PATIENCE, always, eventually

MIB = 1 << 20
# The most that an attack may add to the policy process.
MOST_GROWTH = 16 * MIB
CGROUPS = 20_000
# More than are followed below one container (elbowroom_linux::sensor::MAX_GROUPS_PER_TENANT), with two files and a watch each.
FOLLOWED = 1_000
LIMIT_CHANGE = 5  # seconds within which a view follows on a busy machine, where it takes a hundredth of that

# Directories of 255 newlines, each four bytes in a mount table, and mounts of the innermost on itself.
MOUNTS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
depth, count, at = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def mount(source, target, kind, flags):
    if libc.mount(source, target, kind, flags, None):
        raise OSError(ctypes.get_errno(), "mount")
mount(b"t", at.encode(), b"tmpfs", 0)
mount(None, at.encode(), None, 1 << 18)  # MS_PRIVATE
os.chdir(at)
for _ in range(depth):
    os.mkdir("\\n" * 255)
    os.chdir("\\n" * 255)
for _ in range(count):
    mount(b".", b".", None, 1 << 12)  # MS_BIND
"""


def memory(process, key):
    """A number of /proc/PID/status, in bytes."""
    with open(f"/proc/{process.pid}/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(f"{key}:"))


def cpu_seconds(process):
    with open(f"/proc/{process.pid}/stat") as stat:
        words = stat.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def policy(agent):
    return Process(agent.pid("policy"))


def follows(container, mib):
    """A view shows a lower limit in the usual time; how long that took."""
    (path,) = {path for path in container.cgroups if (cgroup.HIERARCHIES[-1] / path.lstrip("/")).is_dir()}
    cgroup.limit_memory(path, mib * MIB)
    begin = time.monotonic()
    eventually(lambda: container.mem_total() == mib * MIB, within=LIMIT_CHANGE, every=0.005)
    return time.monotonic() - begin


# The bounds of the table's bytes and of a line's; the second table has 300 MB.
@pytest.mark.parametrize(("depth", "count", "why"), [(12, 400, "more than 4194304 bytes"), (100, 1_500, "a line longer than 65536 bytes")])
def test_a_giant_mount_table_costs_the_policy_process_nothing(agent, start, depth, count, why):
    neighbour, hostile = start("--cpus", "1"), start("--cpus", "1")
    for container in (neighbour, hostile):
        agent.attached(container)
    before = memory(policy(agent), "VmHWM")
    words = ["nsenter", f"--mount=/proc/{hostile.pid}/ns/mnt", PYTHON, "-c", MOUNTS, depth, count, "/mnt"]
    subprocess.run([str(word) for word in words], check=True, timeout=60 * PATIENCE)

    # A policy process that starts reads the table of every container.
    first = policy(agent)
    first.kill()
    eventually(lambda: agent.has_another("policy", than=first.pid))
    agent.attached(neighbour)
    assert neighbour.online_file() == 1
    begin = time.monotonic()
    later = start("--cpus", "1")
    agent.attached(later)
    assert time.monotonic() - begin < 10 * PATIENCE
    assert later.online_file() == 1
    eventually(lambda: why in (agent.row(hostile)["attach_note"] or ""))
    # A detach reads the mount table once more. The container keeps its view.
    refused = agent.cli("detach", hostile.name)
    assert hostile.online_file() == 1

    peak = memory(policy(agent), "VmHWM")
    print(f"policy's peak: {before >> 20} MiB before, {peak >> 20} MiB after")
    eventually(lambda: why in agent.log.read_text())
    assert peak - before <= MOST_GROWTH, f"{before >> 10} kB before, {peak >> 10} kB after"
    assert refused.returncode != 0 and why in refused.stderr, refused
    # Said once, though it is tried every two seconds.
    always(lambda: agent.log.read_text().count("view not attached") == 1, during=5)


@pytest.fixture
def flood():
    """Makes `count` cgroups below a directory, and takes them away at the end."""
    made = []

    def flood(directory, count):
        for n in range(count):
            (directory / f"flood{n}").mkdir()
            made.append(directory / f"flood{n}")

    yield flood
    for path in reversed(made):
        path.rmdir()


def test_a_flood_of_cgroups_is_one_containers_own_matter(agent, start, flood):
    neighbour, hostile = start("--memory", "512MiB"), start("--memory", "512MiB")
    for container in (neighbour, hostile):
        agent.attached(container)
    process = policy(agent)
    before, files, quiet = memory(process, "VmHWM"), len(os.listdir(f"/proc/{process.pid}/fd")), follows(neighbour, 448)
    (directory,) = {
        path for path in (cgroup.HIERARCHIES[0].resolve() / path.lstrip("/") for path in hostile.cgroups) if path.is_dir()
    }
    used, begin = cpu_seconds(process), time.monotonic()
    flood(directory, CGROUPS // 2)
    during = follows(neighbour, 384)
    flood(directory / "flood0", CGROUPS // 2)
    busy = (cpu_seconds(process) - used) / (time.monotonic() - begin)

    after = follows(neighbour, 320)
    used, begin = cpu_seconds(process), time.monotonic()
    time.sleep(3)
    idle = (cpu_seconds(process) - used) / (time.monotonic() - begin)
    peak, more_files = memory(process, "VmHWM"), len(os.listdir(f"/proc/{process.pid}/fd")) - files
    print(
        f"policy's peak: {before >> 20} MiB before, {peak >> 20} MiB after; {more_files} more files; "
        f"{busy:.2f} CPUs while cgroups are made, {idle:.2f} afterwards; "
        f"the neighbour's view follows in {quiet * 1e3:.0f}, {during * 1e3:.0f} and {after * 1e3:.0f} ms"
    )
    assert policy(agent).pid == process.pid
    eventually(lambda: "the others are not followed" in agent.log.read_text(), within=30)
    assert peak - before <= MOST_GROWTH, f"{before >> 10} kB before, {peak >> 10} kB after"
    assert more_files <= 3 * FOLLOWED
    assert idle < 0.5
    # The container's own view is that of its own group as before.
    follows(hostile, 448)
    said = [line for line in agent.log.read_text().splitlines() if "the others are not followed" in line]
    assert len(said) == 1, said


def test_text_of_a_container_reaches_no_terminal_as_it_is(agent, start):
    escape = "\x1b[31m\x9b31m\x07"
    container = start("--cpus", "1")
    agent.attached(container)
    given = {"container": container.name, "by": f"a{escape}", "asked": {"elbowroom.dev/probe": f"file:/tmp/{escape}", f"elbowroom.dev/{escape}": escape}}
    answer = agent.ask({"label": given})
    assert "container" in answer, answer
    eventually(lambda: agent.row(container)["probe"])
    shown = [agent.cli(*words) for words in (
        ["show", container.name], ["list"], ["explain", container.name], ["probe", "list"], ["alerts"], ["top", "--once"],
        ["doctor"], ["show", f"no{escape}"], ["list", "--format", "json"], ["probe", "list", "--format", "json"],
    )]
    for done in shown:
        for character in "\x1b\x9b\x07":
            assert character not in done.stdout + done.stderr, (done.args, done.stdout, done.stderr)
    for text in (shown[0].stdout, shown[3].stdout, shown[7].stderr):
        assert "\\u{1b}[31m\\u{9b}31m" in text, text
    assert "\\u009b" in shown[-1].stdout, shown[-1].stdout
    log = agent.log.read_text()
    assert not set("\x1b\x9b\x07") & set(log), log
