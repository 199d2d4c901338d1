"""The own tests of programs that measure CPUs and memory, with a view and without: what fails only with one is in docs/testing.md."""

import os
import subprocess

import pytest

from kit import cgroup, peers
from kit.wait import PATIENCE, eventually

# Shares of nearly the whole machine: the view is what the limits say, whatever else runs on this machine.
LIMITS = ("--memory", "512MiB", "--cpu-shares", "262144", "--cpus")
CPUS = ("1", "2")


@pytest.mark.parametrize("suite", peers.SUITES, ids=lambda suite: suite.name)
def test_a_suite_fails_with_views_only_where_the_table_says(new_agent, start, suite):
    new_agent("[view_rules]\nhierarchy = false\n").start()
    listed, ran = peers.listed(suite.name), set()

    def differing():
        """The tests that fail in a view and pass without."""
        found, passed = set(), run("--no-views", *LIMITS, CPUS[0])[1]
        for cpus in CPUS:
            failed = run(*LIMITS, cpus)[0]
            print(f"{suite.name}, {cpus} CPUs:", *sorted(failed & passed), sep="\n  ")
            found |= failed & passed
        return found

    def run(*options):
        container = start(*options)
        failed, passed = suite.outcomes(container)
        container.close()
        ran.update(failed, passed)
        return failed, passed

    new = differing() - listed
    # Some fail now and then on a busy machine, wherever they run.
    for _ in range(2):
        new = new and new & differing()
    assert not new, f"fail with views, pass without, and are not in {peers.GUIDE.name}: {sorted(new)}"
    assert listed <= ran, f"are in {peers.GUIDE.name}, and not in {suite.name}: {sorted(listed - ran)}"


def test_lxcfs_scripts_find_in_a_view_what_they_look_for(new_agent, hand_made, tmp_path):
    if cgroup.V2:
        pytest.skip("needs cgroup v1: on v2 the scripts make cgroups at the root of the hierarchy")
    if not (peers.PEERS / "complete").exists():
        pytest.skip("needs the scripts of lxcfs: tools/setup peers")
    name = f"elbowroom-test-live-peers-{os.getpid()}"
    new_agent(containers=f'cgroups = ["/{name}/*"]').start()
    failed = set()
    for told, script in peers.lxcfs_scripts(tmp_path).items():
        group = hand_made(name)
        group.write("cpuset", "cgroup.clone_children", 1)
        try:
            # They move process 1, which must not be the machine's.
            words = ["unshare", "--fork", "--mount", "--pid", "--kill-child", "--mount-proc", script]
            done = subprocess.run(
                words, env={**os.environ, "LXCFSDIR": "/"}, preexec_fn=lambda: group.enter(os.getpid()),
                capture_output=True, text=True, timeout=60 * PATIENCE,
            )  # fmt: skip
        finally:
            below = [path for directory in group.directories for path in directory.glob("**/") if path != directory]
            for directory in sorted(below, reverse=True):
                eventually(lambda: directory.rmdir() is None)
            group.remove()
        print(f"{told}: {done.returncode}", done.stderr)
        failed |= {told} if done.returncode else set()
    assert failed == peers.listed("lxcfs")
