"""Profiles of page tables and page faults, as their user meets them, of programs whose page tables and faults are known."""

import json
import os
import signal
import subprocess
import time

import pytest

from kit.programs import BUILT, build
from kit.wait import PATIENCE, eventually

PAGE = 4096
REPOSITORY = BUILT.parents[1]
# The kernel has page tables of its own in every process, and libc and the stack have some pages.
NOISE = 60
GPU = os.path.exists("/dev/nvidia0")


def program(name):
    source = REPOSITORY / f"lab/programs/{name}.c"
    build(f"lab-{name}", source, ["cc", "-O1", "-static", "-o", BUILT / f"lab-{name}", source])
    return BUILT / f"lab-{name}"


@pytest.fixture
def group(hand_made):
    def group(name):
        return hand_made(f"elbowroom-test-live-profile-{os.getpid()}-{name}")

    return group


@pytest.fixture
def run(tmp_path):
    """Starts a program of the lab in a cgroup, and waits until it is ready."""
    running = []

    def run(group, name, *arguments):
        words = ["sh", "-c", 'read go; exec "$@"', "sh", program(name), *map(str, arguments)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(process)
        group.enter(process.pid)
        assert ask(process, "go") == "ready"
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()


def ask(process, line=""):
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def file_of(tmp_path, pages):
    """A file in memory, written page by page: one fault maps all of a large folio."""
    path = tmp_path / "file"
    with open(path, "wb", buffering=0) as file:
        for _ in range(pages):
            file.write(b"1" * PAGE)
    return path


def profile(binary, *words, status=0):
    done = subprocess.run([binary, "profile", *words], capture_output=True, text=True, timeout=60 * PATIENCE)
    assert done.returncode == status, done.stderr
    return done


def has_bpf(binary, group):
    """Why faults cannot be counted here; None where they can."""
    done = subprocess.run(
        [binary, "profile", "faults", "--for", "10ms", f"/{group.path}"], capture_output=True, text=True
    )
    return None if done.returncode == 0 else done.stderr.strip()


def test_pages_that_processes_have_in_common_are_counted_by_container(binary, group, run, tmp_path):
    a = group("a")
    run(a, "pages", 3, 2000, 1000, 0, file_of(tmp_path, 500), 500, 0, 0)
    page = tmp_path / "pages.html"
    answer = json.loads(
        profile(binary, "pages", "--format", "json", "--html", page, "--source", "pagemap", f"/{a.path}").stdout
    )
    [container] = answer["answer"]["looks"][0]["containers"]
    heap, file = container["kinds"]["heap"], container["kinds"]["file"]
    assert container["processes"] == 3
    assert 0 <= heap["groupable"] - 3 * 2000 <= NOISE
    assert 0 <= heap["entries"] - heap["groupable"] - 3 * 1000 <= NOISE
    assert (file["entries"], file["groupable"]) == (1500, 1500)
    assert "active" not in heap
    assert answer["overhead"]["cpu_usec"] > 0
    html = page.read_text()
    assert "groupable" in html and "<script" not in html


def test_activity_is_known_when_it_was_watched_and_a_second_look_comes_later(binary, group, run, tmp_path):
    a = group("a")
    run(a, "pages", 2, 4000, 10, 0, file_of(tmp_path, 1), 0, 1000, 0)
    words = ("--format", "json", "--active", "500ms", "--after", "900ms", f"/{a.path}")

    def known():
        began = time.time()
        looks = json.loads(profile(binary, "pages", *words).stdout)["answer"]["looks"]
        ended = time.time()
        [first, second] = [look["at_seconds"] for look in looks]
        assert first == 0 and 0.9 <= second < ended - began
        read = [look["read_unix_ms"] / 1000 for look in looks]
        assert began + 0.5 <= read[0] < read[1] <= ended
        for look in looks:
            assert abs(look["total"]["active"] - 2000) <= 20 + NOISE
        return True

    # On a busy machine half a second may be too little for a program to write to all that it has.
    eventually(known, within=20)


def test_a_profile_that_is_kept_can_be_listed_and_shown(binary, group, run, tmp_path):
    a = group("a")
    run(a, "pages", 1, 100, 10, 0, file_of(tmp_path, 1), 0, 0, 0)
    state = ("--state-dir", tmp_path / "state")
    assert "no profiles" in profile(binary, "list", *state).stdout
    done = profile(binary, "pages", "--keep", *state, f"/{a.path}")
    [kept] = json.loads(profile(binary, "list", "--format", "json", *state).stdout)
    assert kept["kind"] == "pages" and kept["name"] in done.stderr
    assert kept["name"] in profile(binary, "list", *state).stdout
    assert profile(binary, "show", kept["name"], *state).stdout == done.stdout
    answer = json.loads(profile(binary, "show", kept["name"], "--format", "json", *state).stdout)
    assert answer["profile"] == "pages" and len(answer["answer"]["looks"]) == 1


def test_faults_are_counted_by_class_while_they_happen(binary, group, run, tmp_path):
    a = group("a")
    if why := has_bpf(binary, a):
        pytest.skip(f"needs BPF: {why}")
    case = run(a, "faults", "anonymous", 5000, file_of(tmp_path, 1))
    words = [binary, "profile", "faults", "--latency", "--format", "json", "--for", "1h", f"/{a.path}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as counting:
        try:
            assert "counting" in counting.stderr.readline()
            assert ask(case) == "done"
            counting.send_signal(signal.SIGINT)
            answer = json.loads(counting.communicate(timeout=30 * PATIENCE)[0])["answer"]
        finally:
            counting.kill()
    [container] = answer["containers"]
    assert 0 <= container["classes"]["anonymous"] - 5000 <= 12
    assert container["total"] == sum(container["classes"].values())
    assert answer["cost"]["ns_per_call"] >= 0
    by_tracepoints = answer["tier"] == "tracepoints"
    assert ("no_functions" in answer, "no_latency" in answer, "latency" in container) == (by_tracepoints, by_tracepoints, not by_tracepoints)


def test_live_tables_come_until_the_end_and_then_everything(binary, group, run, tmp_path):
    a = group("a")
    if why := has_bpf(binary, a):
        pytest.skip(f"needs BPF: {why}")
    text = profile(binary, "faults", "--live", "--interval", "200ms", "--for", "3s", f"/{a.path}").stdout
    assert text.count("FAULTS PER SECOND") >= 3
    assert "Page faults" in text and "Cost of counting" in text


@pytest.mark.native
@pytest.mark.parametrize(
    "words, reason",
    [
        (("pages", "no-such-container"), 'no container "no-such-container"'),
        (("pages", "--after", "5"), "5"),
        (("pages", "--html", "/no/such/directory/x.html", "/"), "/no/such/directory/x.html"),
        (("pages", "--source", "rumour"), "rumour"),
        (("pages", "--keep", "--state-dir", "/proc/nowhere", "/"), "/proc/nowhere/profiles"),
        (("show", "pages-1", "--state-dir", "/no/such/directory"), "profile list"),
        (("faults", "--interval", "2s"), "--live"),
        (("gpu", "--trace", "/bin/sh"), "ELBOWGPU"),
        (("gpu", "--", "no-such-program"), "no-such-program" if GPU else "no NVIDIA GPU"),
        (("faults", "--tier", "rumour"), "rumour"),
        (("faults", "--tier", "tracepoints", "--latency"), "--tier functions"),
    ],
)
def test_a_bad_request_for_a_profile_is_refused_on_one_line(binary, words, reason):
    done = profile(binary, *words, status=2)
    assert reason in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""
