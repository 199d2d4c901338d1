"""`elbowroom profile startup` with real engines: counts add up, names are found, nothing is left behind."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from kit import cgroup
from kit.wait import PATIENCE, eventually

RUN = Path("/run/elbowroom-profile")
NOWHERE = {"DOCKER_HOST": "unix:///nowhere/docker.sock", "CONTAINERD_ADDRESS": "/nowhere/containerd.sock"}


@pytest.fixture
def profile(binary):
    """Runs `profile startup`; its answer and what it said."""

    def profile(*words, code=0, **environment):
        done = subprocess.run(
            [binary, "profile", "startup", *map(str, words)],
            capture_output=True, text=True, timeout=300 * PATIENCE, env={**os.environ, **environment},
        )  # fmt: skip
        assert done.returncode == code, (done.returncode, done.stdout[-2000:], done.stderr)
        return done

    return profile


@pytest.fixture
def with_runc():
    if not shutil.which("runc"):
        pytest.skip("needs runc, which is not installed: tools/setup test")


@pytest.fixture
def sampling():
    """Skips where the kernel allows no sampling: some virtual machines and sandboxes."""
    if not Path("/proc/sys/kernel/perf_event_paranoid").exists():
        pytest.skip("needs perf_event_open, which this kernel does not have")


def left(tag=""):
    """What profilers made and is still there."""
    groups = [path for path in cgroup.directories() if path.name.startswith(f"elbowroom-profile-{tag}")]
    return [str(path) for path in [*RUN.glob(f"{tag}*"), *groups]]


def check(done, rates, starts, tmp_path):
    """What must hold of every breakdown."""
    printed = json.loads(done.stdout)
    answer = printed["answer"]
    assert [at["rate"] for at in answer["rates"]] == rates
    for at, count in zip(answer["rates"], starts, strict=True):
        assert (at["starts"], at["failures"], len(at["requests"])) == (count, 0, count)
        assert 0 < at["p50_usec"] <= at["p95_usec"] <= at["p99_usec"] <= at["max_usec"], at
    cost = answer["breakdown"]
    assert cost["starts"] == sum(starts)
    samples = cost["kernel"] + cost["user"]
    assert samples == cost["samples"]["watched"] > 2 * sum(starts), cost["samples"]
    for rows in (cost["programs"], cost["families"]):
        assert sum(row["kernel"] + row["user"] for row in rows) == samples
    assert cost["told"] > 0.8 * samples, f"families cover {cost['told']} of {samples}"
    assert cost["resolved"]["named"] > 0.8 * cost["resolved"]["frames"], cost["resolved"]
    folded = (tmp_path / "folded.txt").read_text().splitlines()
    assert sum(int(line.rsplit(" ", 1)[1]) for line in folded) == samples
    assert (tmp_path / "flame.svg").read_text().startswith("<svg")
    assert printed["overhead"]["cpu_usec"] < 0.25 * printed["overhead"]["wall_usec"], printed["overhead"]
    return cost, folded


def test_runc_is_broken_down_and_leaves_nothing(profile, with_runc, sampling, tmp_path):
    page = tmp_path / "page.html"
    words = ["--rate", "2,4", "--for", "3s", "--engine", "runc", "--stacks", tmp_path, "--html", page, "--format", "json"]
    before = left()
    done = profile(*words)
    cost, folded = check(done, [2, 4], [6, 12], tmp_path)
    programs = {program["name"] for program in cost["programs"]}
    assert {"runc", "runc:[2:INIT]"} <= programs, programs
    # runc is Go, stripped, and long gone when its samples are named.
    assert any(line.startswith("runc;") and ";main.main" in line for line in folded)
    assert any("copy_net_ns_[k]" in line or "setup_net_[k]" in line for line in folded)
    html = page.read_text()
    assert html.count("<svg") >= 4 and "<script" not in html
    assert set(left()) <= set(before)


def test_docker_is_broken_down_and_leaves_nothing(profile, docker, sampling, tmp_path):
    host = {"DOCKER_HOST": f"unix://{docker.socket}"}
    done = profile("--rate", "2", "--for", "4s", "--stacks", tmp_path, "--format", "json", **host)
    cost, folded = check(done, [2], [8], tmp_path)
    programs = {program["name"] for program in cost["programs"]}
    assert {"dockerd", "containerd", "containerd-shim", "runc"} <= programs, programs
    assert any(line.startswith("dockerd;") and ";github.com/docker/docker/" in line for line in folded)
    assert docker.call("ps", "--all", "--quiet", "--filter", "label=elbowroom.profile").stdout == ""
    assert "elbowroom-profile" not in docker.call("images").stdout


def test_applications_take_turns(profile, with_runc):
    words = ["--engine", "runc", "--rate", "4", "--for", "2s", "--command", "sleep 1000", "--command", "shell=sh -c 'sleep 1000'"]
    answer = json.loads(profile(*words, "--format", "json").stdout)["answer"]
    assert answer["applications"] == ["sleep", "shell"]
    assert [part["starts"] for part in answer["rates"][0]["applications"]] == [4, 4]


def test_a_container_that_does_not_start_is_a_failure_with_the_engines_words(profile, with_runc):
    words = ["--engine", "runc", "--rate", "4", "--for", "1s", "--command", "/no/such/program", "--breakdown"]
    said = profile(*words, code=1).stdout
    assert "4 did not start" in said and "/no/such/program" in said, said
    assert "CPU time by program" not in said


def test_an_interrupted_profile_leaves_nothing(binary, with_runc):
    words = [binary, "profile", "startup", "--engine", "runc", "--rate", "4", "--for", "60s"]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: left(f"{running.pid}-"), within=30)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60 * PATIENCE)
    finally:
        running.kill()
    assert running.returncode == 2 and "interrupted" in said, said
    assert not left(f"{running.pid}-")


def test_what_a_killed_profile_left_goes_with_cleanup(binary, profile, with_runc):
    words = [binary, "profile", "startup", "--engine", "runc", "--rate", "4", "--for", "3s"]
    running = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # A container that runs, not only a directory: a cgroup of its name.
        eventually(lambda: [path for path in left(f"{running.pid}-") if "/sys/fs/cgroup" in path], within=60)
    finally:
        running.kill()
        running.wait()
    assert left(f"{running.pid}-")
    profile("--cleanup")
    eventually(lambda: not left(f"{running.pid}-"))


def test_what_was_left_at_another_daemon_goes_there(binary, profile, docker):
    here = {**os.environ, "DOCKER_HOST": f"unix://{docker.socket}"}
    words = [binary, "profile", "startup", "--rate", "4", "--for", "3s"]
    running = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=here)

    def there(*which):
        return docker.call("ps", *which, "--quiet", "--filter", "label=elbowroom.profile").stdout.split()

    try:
        eventually(there, within=60)  # one runs, so all are made
    finally:
        running.kill()
        running.wait()
    profile("--cleanup", **NOWHERE)
    assert not there("--all") and not left(f"{running.pid}-")
    assert "elbowroom-profile" not in docker.call("images").stdout


@pytest.mark.parametrize(
    "words, says",
    [
        (["--engine", "docker"], "docker does not answer on /nowhere/docker.sock"),
        (["--engine", "containerd"], "containerd does not answer on /nowhere/containerd.sock"),
        (["--engine", "runc", "--image", "x"], "--bundle or --command"),
        (["--engine", "runc", "--bundle", "/nowhere"], "/nowhere/config.json"),
        (["--rate", "0"], "starts per second"),
        (["--rate", "x\ny"], "starts per second"),
        (["--for", "10"], "10"),
        (["--command", "sleep 1", "--command", "sleep 2"], "two applications are called sleep"),
        (["--html", "/nowhere/page.html"], "/nowhere/page.html"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_two(profile, words, says):
    if "runc" in words and not shutil.which("runc"):
        pytest.skip("needs runc, which is not installed: tools/setup test")
    said = profile(*words, code=2, **NOWHERE).stderr
    assert said.count("\n") == 1 and says in said, said


def test_an_engine_that_is_not_installed_is_one_line_and_status_two(profile):
    said = profile("--engine", "crun", code=2, PATH="/nowhere").stderr
    assert said.count("\n") == 1 and "crun is not installed" in said, said
