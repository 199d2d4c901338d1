"""`elbowroom run` where no agent runs: the command has one of its own, which comes and goes with it."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from kit.cgroup import HIERARCHIES, ROOT, V2
from kit.container import meminfo
from kit.process import Process, holders, pids
from kit.wait import PATIENCE, always, eventually

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_stays(run_dir):
    """No test leaves a directory, a mount or a process of an agent of a run's own."""
    yield
    eventually(lambda: not leftovers(run_dir), within=30)


def leftovers(run_dir):
    runs = run_dir / "runs"
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(runs) in line]
    return [*runs.glob("*"), *mounts, *attendants(run_dir)]


def attendants(run_dir):
    return [pid for pid in pids() if words(pid)[1:2] == ["run-attendant"] and str(run_dir) in " ".join(words(pid))]


def words(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def own_directory(run_dir, container):
    [found] = (run_dir / "runs").glob(f"{container.name}.*")
    return found


def own_agent(run_dir, container):
    """The processes of a container's own agent, by role."""
    found = {}
    for pid in holders(own_directory(run_dir, container)):
        # A process that ends has no command line any more.
        for role in words(pid)[1:2]:
            found.setdefault(role, Process(pid))
    return found


def run(binary, run_dir, *options, **settings):
    settings = {"capture_output": True, "text": True, "timeout": 60 * PATIENCE, "stdin": subprocess.DEVNULL, **settings}
    name = f"elbowroom-test-live-alone-{os.getpid()}"
    return subprocess.run([binary, "--run-dir", run_dir, "run", "--name", name, *options], **settings)


def test_a_command_sees_its_room_where_no_agent_runs_and_one_line_says_so(binary, run_dir):
    done = run(binary, run_dir, "--cpus", "1", "--memory", "128MiB", "--", "sh", "-c", "nproc --all; getconf _NPROCESSORS_ONLN; cat /proc/meminfo; exit 7")
    assert done.returncode == 7
    assert done.stdout.split()[1] == "1" and meminfo(done.stdout.split("\n", 2)[2])["MemTotal"] == 128 * MIB
    assert done.stderr.count("\n") == 1 and "no agent runs" in done.stderr, done.stderr
    assert not leftovers(run_dir), "it was taken away before the command's end was told"


def test_two_at_once_see_each_its_own(start, run_dir):
    small, large = start("--memory", "128MiB"), start("--memory", "256MiB")
    assert [small.mem_total(), large.mem_total()] == [128 * MIB, 256 * MIB]
    small.close()
    assert large.mem_total() == 256 * MIB
    assert [path.name.rpartition(".")[0] for path in (run_dir / "runs").iterdir()] == [large.name]


def test_its_agent_looks_after_nothing_else(start, run_dir, binary):
    start("--memory", "128MiB", "--no-views")
    mine = start("--memory", "256MiB")
    at = own_directory(run_dir, mine)
    listed = subprocess.run([binary, "--run-dir", at, "list", "--format", "json"], capture_output=True, text=True)
    assert listed.returncode == 0 and mine.name in listed.stdout and listed.stdout.count('"path"') == 1, listed.stdout


@pytest.mark.parametrize("options", [["--no-views"], ["--env-only"]])
def test_what_needs_no_view_starts_no_agent(binary, run_dir, options):
    done = run(binary, run_dir, *options, "--", "sh", "-c", f"ls {run_dir}/runs")
    assert done.returncode == 2 and "no agent runs" not in done.stderr, done.stderr


def test_with_an_agent_no_other_is_started(agent, start, run_dir):
    container = start("--memory", "128MiB")
    assert container.mem_total() == 128 * MIB
    assert not (run_dir / "runs").exists()


def test_any_process_may_be_killed_and_the_view_stays(start, run_dir):
    container = start("--memory", "128MiB")
    for role in ("agent", "view-server", "policy"):
        killed = own_agent(run_dir, container)[role]
        killed.kill()
        assert container.mem_total() == 128 * MIB, f"after the end of the {role}"
        # The successor of the first supervisor has another name.
        eventually(lambda: len(own_agent(run_dir, container)) >= 3, within=20)
        assert container.mem_total() == 128 * MIB
    container.close()


def test_an_agent_that_is_killed_whole_comes_again(start, run_dir):
    container = start("--memory", "128MiB")
    before = own_agent(run_dir, container)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in before.values():
            process.send(number)
    eventually(lambda: not any(process.alive() for process in before.values()))

    def sees():
        try:
            return container.mem_total() == 128 * MIB
        except AssertionError:
            return False  # no process answers for a moment

    eventually(sees, within=30)


def test_a_killed_run_is_cleaned_up_with_its_last_process(start, run_dir):
    container = start("--memory", "128MiB")
    container.main.kill()
    container.main.wait()
    assert container.mem_total() == 128 * MIB
    container.main.stdin.close()
    eventually(lambda: not leftovers(run_dir), within=30)
    assert not list(ROOT.glob(f"**/elbowroom/{container.name}") if V2 else (ROOT / "memory/elbowroom").glob(container.name))


def test_where_the_attendant_is_killed_the_run_cleans_up(start, run_dir):
    container = start("--memory", "128MiB")
    [attendant] = attendants(run_dir)
    Process(attendant).kill()
    assert container.mem_total() == 128 * MIB
    assert container.close() == 0
    assert not leftovers(run_dir)


def test_where_both_are_killed_the_next_run_cleans_up(start, binary, run_dir):
    container = start("--memory", "128MiB")
    [attendant] = attendants(run_dir)
    Process(attendant).kill()
    container.main.kill()
    container.main.wait()
    container.main.stdin.close()
    command = Process(container.pid)
    eventually(lambda: not command.alive())
    assert leftovers(run_dir)
    assert run(binary, run_dir, "--no-views", "--", "true").returncode == 0
    assert not leftovers(run_dir)


def test_its_agent_stays_as_long_as_a_process_in_the_background(binary, run_dir):
    done = run(binary, run_dir, "--memory", "128MiB", "--", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!; exit 3")
    left = Process(int(done.stdout))
    try:
        assert done.returncode == 3 and "1 process " in done.stderr, done.stderr
        see = lambda: Path(f"/proc/{left.pid}/root/proc/meminfo").read_text().split()[1]
        assert int(see()) == 128 * 1024
        always(lambda: attendants(run_dir))
    finally:
        left.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_command_as_ever(binary, run_dir, number):
    words = [binary, "--run-dir", run_dir, "run", "--name", f"elbowroom-test-live-alone-{os.getpid()}", "--", "sh", "-c", "echo ready; exec sleep 1000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        assert running.stdout.readline() == "ready\n"
        running.send_signal(number)
        assert running.wait(60 * PATIENCE) == 128 + number


def test_an_agent_that_is_started_later_takes_over(start, new_agent, run_dir):
    container = start("--memory", "128MiB")
    agent = new_agent().start()
    agent.attached(container)
    assert container.mem_total() == 128 * MIB
    container.close()
    assert not (run_dir / "runs").exists()


def test_an_agent_that_cannot_start_is_an_error_that_says_why_and_leaves_nothing(binary, run_dir):
    done = run(binary, run_dir, "--", "true", preexec_fn=without_fuse)
    assert done.returncode == 125 and done.stderr.count("\n") == 1, done.stderr
    assert "--no-views" in done.stderr and "mounting the views" in done.stderr, done.stderr
    assert not leftovers(run_dir)


def without_fuse():
    os.unshare(os.CLONE_NEWNS) if hasattr(os, "unshare") else __import__("ctypes").CDLL(None).unshare(0x20000)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "--bind", "/dev/null", "/dev/fuse"], check=True)


WAIT_FOR_LOCKS = """import fcntl, os, sys, time
def wait(path):
    while True:
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        except PermissionError:
            os._exit(0)
        fcntl.flock(fd, fcntl.LOCK_EX)
        time.sleep(1000)
for path in sys.argv[1:]:
    if os.fork() == 0:
        wait(path)
print(flush=True)
time.sleep(1000)
"""


def test_a_user_who_waits_for_the_lock_of_a_run_does_not_keep_it(binary, start, run_dir):
    """The name would be taken, or the attendant and the agent would stay for as long as that user likes."""
    start("--memory", "128MiB", "--no-views")
    name = f"elbowroom-test-live-alone-{os.getpid()}"
    user = subprocess.Popen(
        ["/usr/bin/python3", "-c", WAIT_FOR_LOCKS, *(hierarchy / "elbowroom" / name for hierarchy in HIERARCHIES)], stdout=subprocess.PIPE,
        user="nobody", group="nogroup", extra_groups=[], start_new_session=True,
    )  # fmt: skip
    try:
        user.stdout.readline()
        done = run(binary, run_dir, "--memory", "128MiB", "--", "true", timeout=120 * PATIENCE)
        assert done.returncode == 0, done.stderr
        assert not leftovers(run_dir)
    finally:
        os.killpg(user.pid, signal.SIGKILL)
        user.communicate(timeout=20 * PATIENCE)


def test_nothing_of_a_run_is_open_to_others_whatever_the_umask(binary, run_dir, start):
    container = start("--memory", "128MiB", prefix=("sh", "-c", 'umask 0; exec "$@"', "sh"))
    at = own_directory(run_dir, container)
    modes = {str(path.relative_to(run_dir)): path.stat().st_mode & 0o7777 for path in (at.parent, at, at / "agent.log")}
    assert [mode for path, mode in sorted(modes.items(), key=lambda item: len(item[0]))] == [0o711, 0o711, 0o600], modes
    assert run_dir.stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("options", [[], ["--no-views", "--priority", "7"]])
def test_a_run_directory_of_another_user_is_refused_before_anything_in_it_is_touched(binary, tmp_path, options):
    """A link there would have files of root's removed, or written over."""
    precious, theirs = tmp_path / "precious", tmp_path / "theirs"
    for path in (precious / "old", precious / "web.1/file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious")
        os.utime(path, (0, 0))
    theirs.mkdir()
    for name in ("labels", "runs"):
        (theirs / name).symlink_to(precious)
    shutil.chown(theirs, "nobody")
    done = run(binary, theirs, *options, "--", "true")
    assert (precious / "old").exists() and (precious / "web.1/file").exists()
    assert done.returncode == 2 and "others can write there" in done.stderr, done.stderr
    shutil.chown(theirs, "root")
    assert run(binary, theirs, "--no-views", "--", "true").returncode == 0
    assert not (precious / "old").exists(), "it would have been removed"
