"""Everything wrong that people and hosts come up with: one line that names the thing and the way out, exit status 2, and
nothing half done."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from kit import cgroup
from kit.process import descendants
from kit.wait import PATIENCE, eventually

MIB = 1 << 20


def refused(done, *words, status=2):
    """A command that failed as it should: `words` are what its one line must name."""
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    assert done.stderr.startswith("elbowroom: ") and done.stderr.count("\n") == 1, done.stderr
    assert len(done.stderr) < 1000, done.stderr
    for word in words:
        assert word in done.stderr, f"{word!r} is not named in {done.stderr!r}"


@pytest.fixture
def command(binary, run_dir):
    """The command line, with no agent needed."""

    def command(*words, prefix=(), at=run_dir):
        return finished([*prefix, binary, "--run-dir", at, *words], at)

    return command


def finished(words, run_dir):
    """Runs a command that ought to end by itself; one that does not is killed with all it started, and unmounted."""
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=15 * PATIENCE)
        except subprocess.TimeoutExpired:
            for pid in [process.pid, *descendants(process.pid)]:
                os.kill(pid, signal.SIGKILL)
            out, err = process.communicate()
            mounts = [Path(run_dir) / name for name in ("private/views", "private/triggers", "pages")]
            subprocess.run(["umount", "--lazy", *mounts], capture_output=True)
            pytest.fail(f"it went on instead of refusing: {err[-500:]}")
    return subprocess.CompletedProcess(words, process.returncode, out, err)


# ---- the command line ----


@pytest.mark.native
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--frobnicate"], ["--frobnicate", "--help"]),
        (["frobnicate"], ["frobnicate", "--help"]),
        (["list", "--frobnicate"], ["--frobnicate", "elbowroom help list"]),
        (["list", "--format", "xml"], ["xml", "text", "json", "yaml"]),
        (["show"], ["CONTAINER"]),
        (["top", "--interval", "5"], ["5", "unit"]),
        (["top", "--interval", "0ms"], ["0ms"]),
        (["record", "/nonexistent/file"], ["/nonexistent/file"]),
        (["replay", "/nonexistent"], ["/nonexistent"]),
        (["replay", "/etc/passwd"], ["/etc/passwd", "line 1"]),
        (["run", "--memory", "512", "--", "true"], ["512", "unit"]),
        (["run", "--memory", "-5MiB", "--", "true"], ["-5"]),
        (["run", "--memory", "0MiB", "--", "true"], ["--memory", "1MiB"]),
        (["run", "--memory", "99999999999TiB", "--", "true"], ["99999999999TiB"]),
        (["run", "--cpus", "0", "--", "true"], ["0"]),
        (["run", "--cpus", "-1", "--", "true"], ["-1"]),
        (["run", "--cpus", "many", "--", "true"], ["many"]),
        (["run", "--cpus", "nan", "--", "true"], ["nan"]),
        (["run", "--cpus", "1"], ["COMMAND"]),
        (["run", "--cpuset", "3-1", "--", "true"], ["3-1"]),
        (["run", "--cpuset", "0,,1", "--", "true"], ["0,,1"]),
        (["run", "--cpuset", "banana", "--", "true"], ["banana"]),
        (["run", "--cpuset", "100000", "--", "true"], ["100000"]),
        (["run", "--cpuset", "", "--", "true"], ["--cpuset"]),
        (["run", "--cpus", "0.0001", "--", "true"], ["0.0001"]),
        (["run", "--cpu-shares", "1", "--", "true"], ["--cpu-shares 1"]),
        (["run", "--cpu-weight", "20000", "--", "true"], ["--cpu-weight 20000"]),
        (["run", "--memory", "1GiB", "--memory-reservation", "2GiB", "--", "true"], ["2GiB", "1GiB"]),
        (["run", "--name", "a/b", "--", "true"], ["--name", "a/b"]),
        (["run", "--name", "..", "--", "true"], ["--name", ".."]),
        (["run", "--name", "x" * 100, "--", "true"], ["--name", "64"]),
        (["run", "--disk-reservation", "rbps=50", "--", "true"], ["rbps", "50MiB/s"]),
        (["fleet", "--disk", "wiops=5", "node"], ["wiops", "500/s"]),
        (["probe", "try", "exec:/bin/false"], ["/bin/false: ended with exit status: 1\n"]),
        (["ask", "--pid", "4194305", "--network", "--", "true"], ["no process 4194305"]),
        (["ask", "--secret", "/nonexistent", "--", "true"], ["/nonexistent: No such file"]),
        (["audit", "/dev/null"], ["/dev/null", "neither a file nor a directory"]),
    ],
    ids=lambda words: " ".join(words)[:60],
)
def test_a_bad_argument_is_named(command, words, named):
    refused(command(*words), *named)


@pytest.mark.native
def test_a_cpu_that_is_not_there_is_named(command):
    absent = str(os.cpu_count() + 40)
    refused(command("run", "--cpuset", absent, "--", "true"), absent)


@pytest.mark.native
@pytest.mark.parametrize("words", [["list"], ["show", "x"], ["explain", "x"], ["attach", "x"], ["detach", "x"]])
def test_without_an_agent_the_way_to_one_is_said(command, run_dir, words):
    refused(command(*words), str(run_dir), "elbowroom agent")


@pytest.mark.native
def test_a_ring_without_an_agent_makes_nothing(command, tmp_path):
    refused(command("record", "--ring", tmp_path / "no" / "ring"), "elbowroom agent")
    assert not (tmp_path / "no").exists()


HOSTILE = ["no-such", "two words", "..", "../../etc", "/", "-", "*", "a\nb", "\x1b[31mred", "\u202e", "", "x" * 10_000, "%s%n"]


@pytest.mark.native
@pytest.mark.parametrize("verb", ["show", "explain", "attach", "detach"])
def test_containers_that_do_not_exist_are_said_not_to(agent, verb):
    for name in HOSTILE:
        done = agent.cli(verb, "--", name)
        refused(done, "elbowroom list")
        assert "\x1b" not in done.stderr and "\u202e" not in done.stderr


@pytest.mark.native
def test_a_closed_pipe_is_no_error(agent, binary, run_dir):
    script = f"'{binary}' --run-dir '{run_dir}' list --format json; echo $? >&2"
    done = subprocess.run(["bash", "-c", f"({script}) | true"], capture_output=True, text=True)
    assert done.stderr == "0\n"


# ---- the configuration ----


@pytest.mark.native
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[sense]\nperoid = '24ms'", ["line 2", "peroid"]),
        ("[sens]\n", ["sens"]),
        ("[sense]\nperiod = 24", ["line 2", "24", "ms"]),
        ("[sense]\nperiod = '24'", ["line 2", "unit"]),
        ("[sense]\nperiod = '-24ms'", ["line 2", "-24ms"]),
        ("[sense]\nperiod = '0ms'", ["sense.period"]),
        ("[sense]\nsource = 'magic'", ["line 2", "magic"]),
        ("[containers]\nattach = 'yes'", ["line 2"]),
        ("[containers\n", ["line 1"]),
        ("\x00\xff", ["line 1"]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_bad_configuration_is_refused_with_its_line(command, tmp_path, run_dir, text, named):
    file = tmp_path / "bad.toml"
    file.write_text(text)
    refused(command("agent", "--config", file), str(file), *named)
    assert not run_dir.exists() or not list(run_dir.iterdir())


@pytest.mark.native
def test_a_configuration_that_is_not_there_is_named(command):
    refused(command("agent", "--config", "/nonexistent.toml"), "/nonexistent.toml")
    refused(command("agent", "--config", "/"), "/")


# ---- the host ----


@pytest.mark.native
def test_a_second_agent_is_refused_and_the_first_goes_on(agent, command, run_dir):
    before = agent.status()["pids"]
    refused(command("agent"), str(run_dir))
    assert agent.status()["pids"] == before


@pytest.mark.native
def test_a_run_directory_without_room_is_refused(command, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=4", "tmpfs", full], check=True)
    try:
        for number in range(8):
            try:
                (full / f"filler{number}").write_bytes(b"x" * 65536)
            except OSError:
                break
        refused(command("agent", at=full / "run"), str(full))
    finally:
        subprocess.run(["umount", full], check=True)


@pytest.mark.native
@pytest.mark.parametrize("place", ["/proc/elbowroom", "/dev/null/run", "/" + "x" * 300])
def test_a_run_directory_that_cannot_be_is_refused(command, place):
    refused(command("agent", at=place), place[:20])


@pytest.mark.native
def test_a_run_directory_too_long_for_a_socket_is_refused(command, tmp_path):
    refused(command("agent", at=tmp_path / ("x" * 110)), "x" * 20)


@pytest.fixture
def without_fuse(tmp_path):
    """A command that starts another where /dev has what programs need, and no fuse."""
    script = """
        set -e; dir=$1; shift
        mount -t tmpfs tmpfs "$dir"
        for name in null zero full random urandom; do touch "$dir/$name"; mount --bind "/dev/$name" "$dir/$name"; done
        mount --rbind "$dir" /dev
        exec "$@"
    """
    return ["unshare", "--mount", "bash", "-c", script, "-", tmp_path]


def test_a_host_without_fuse_is_named(command, without_fuse):
    refused(command("agent", prefix=without_fuse), "/dev/fuse", "fuse module")


def test_check_says_that_fuse_is_missing(command, without_fuse):
    done = command("check", prefix=without_fuse)
    assert done.returncode == 1 and "fuse" in done.stdout.lower(), (done.stdout, done.stderr)


@pytest.fixture
def without_cgroups():
    """Words that run a command on a host where no cgroup hierarchy is mounted."""
    script = "umount --recursive --lazy /sys/fs/cgroup && exec \"$@\""
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]


def test_an_agent_that_could_never_sense_does_not_start(command, tmp_path, without_cgroups):
    refused(command("agent", prefix=without_cgroups, at=tmp_path / "run"), "no cgroup hierarchy", "/sys/fs/cgroup")
    assert not (tmp_path / "run/private").exists()


def test_check_says_which_controllers_are_missing(command, without_cgroups):
    done = command("check", prefix=without_cgroups)
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    missing = [rest.split("  ")[0].strip() for mark, rest in lines if mark == "MISSING"]
    assert done.returncode == 1 and missing == ["cgroups", "controller cpu", "controller memory"], done.stdout


@pytest.fixture
def without_psi():
    """Words that run a command on a host whose kernel does not account pressure."""
    if not Path("/proc/pressure").exists():
        return []
    script = "mount -t tmpfs tmpfs /proc/pressure && exec \"$@\""
    return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", script, "sh"]


def test_check_says_that_pressure_is_missing_and_not_needed(command, without_psi):
    done = command("check", prefix=without_psi)
    [line] = [line for line in done.stdout.splitlines() if "pressure (PSI)" in line]
    assert done.returncode == 0 and line.split()[0] == "missing" and "psi=1" in done.stdout, done.stdout


def test_a_host_without_pressure_has_views_all_the_same(new_agent, start, without_psi):
    agent = new_agent(prefix=without_psi).start()
    # Where its views are mounted.
    beside = ["nsenter", "--target", agent.supervisor.pid, "--mount"]
    container = start("--cpus", "1", "--memory", "256MiB", prefix=beside)
    assert container.run("ls", "/proc/pressure") == "" or not without_psi
    assert container.online() == 1 and container.mem_total() == 256 * MIB
    cgroup.limit_memory(agent.attached(container)["path"], 300 * MIB)
    eventually(lambda: container.mem_total() == 300 * MIB)


@pytest.mark.native
def test_someone_else_than_root_is_told_so(command):
    done = command("agent", prefix=["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"])
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("content", ["unreadable", "malformed"])
def test_a_cgroup_file_that_cannot_be_read_costs_no_other_container(new_agent, hand_made, start, tmp_path, content):
    bad = hand_made("elbowroom-test-live-bad")
    file = cgroup.ROOT / ("" if cgroup.V2 else "memory") / bad.path / ("memory.max" if cgroup.V2 else "memory.limit_in_bytes")
    # Reading another process's memory at its very beginning is EIO, for root too.
    over = "/proc/1/mem" if content == "unreadable" else str(tmp_path / "banana")
    (tmp_path / "banana").write_text("banana\n")
    prefix = ["unshare", "--mount", "--propagation", "slave", "bash", "-c", f"mount --bind {over} {file} && exec \"$@\"", "-"]
    agent = new_agent(containers='cgroups = ["/elbowroom-test-live-*"]', prefix=prefix).start()
    assert agent.list() is not None
    eventually(lambda: "memory" in agent.tail() and bad.path in agent.tail())
    good = hand_made("elbowroom-test-live-good")
    good.limit_cpu(1)
    eventually(lambda: good.path in [row["path"].lstrip("/") for row in agent.list()])
    assert agent.tail().count(bad.path) < 20, "it is said once per cause, not at every look"


# ---- containers with odd names, and ones that vanish ----


@pytest.mark.native
@pytest.mark.parametrize("name", ["two words", "a..b", "%41%s", "quote'\"", "ünïcödé", "-rf", "x" * 180])
def test_odd_names_of_cgroups_are_listed_and_shown(new_agent, hand_made, name):
    agent = new_agent(containers='cgroups = ["/elbowroom-test-live-odd/*"]').start()
    hand_made("elbowroom-test-live-odd")
    group = hand_made(f"elbowroom-test-live-odd/{name}")
    group.limit_memory(300 * MIB)

    def row():
        return next((row for row in agent.list() if row["path"] == f"/{group.path}"), None)

    eventually(row)
    eventually(lambda: row()["view"]["memory"] == 300 * MIB)
    shown = agent.cli("show", "--", row()["id"])
    assert shown.returncode == 0, shown.stderr
    # Others on this machine may come and go between the two.
    eventually(lambda: agent.cli("list").stdout.count("\n") == len(agent.list()) + 1)
    view_dir = row()["view_dir"]
    assert view_dir.startswith(f"{agent.run_dir}/private/views/") and view_dir.count("/") == str(agent.run_dir).count("/") + 3
    assert f"{300 * 1024} kB" in open(f"{view_dir}/proc/meminfo").readline()


def test_two_containers_of_one_id_have_a_view_each(agent, hand_made):
    """Each namespace of containerd gives out ids as if there were no other."""
    mib, groups = {}, {}
    for number, at in enumerate(["elbowroom-test-live-one", "elbowroom-test-live-two"]):
        hand_made(at)
        hand_made(f"{at}/docker")
        group = hand_made(f"{at}/docker/{'e' * 64}")
        mib[f"/{group.path}"] = 300 + number
        group.limit_memory((300 + number) * MIB)
        groups[f"/{group.path}"] = group

    def shown():
        rows = {row["path"]: row["view_dir"] for row in agent.list() if row["path"] in mib}
        assert len(set(rows.values())) == 2, rows
        return {path: int(open(f"{view}/proc/meminfo").readline().split()[1]) // 1024 for path, view in rows.items()}

    eventually(lambda: shown() == mib)
    agent.remember()
    os.kill(agent.status()["pids"]["policy"], signal.SIGKILL)
    eventually(lambda: agent.status() and shown() == mib)


def test_a_later_process_with_a_mount_namespace_of_its_own_gets_the_view_too(new_agent, hand_made):
    """A service manager's sandbox is made anew for each command of a service, and the first may take long."""
    group = hand_made("elbowroom-test-live-later")
    group.limit_memory(300 * MIB)
    new_agent(containers='cgroups = ["/elbowroom-test-live-later"]').start()
    processes = []

    def total(process):
        with open(f"/proc/{process.pid}/root/proc/meminfo") as file:
            return int(file.readline().split()[1]) // 1024

    try:
        for _ in range(2):
            processes.append(subprocess.Popen(["unshare", "--mount", "sleep", "3000"], stdin=subprocess.DEVNULL))
            group.enter(processes[-1].pid)
            for before in processes[:-1]:
                before.kill()
                before.wait()
            eventually(lambda: total(processes[-1]) == 300, within=20)
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.native
def test_containers_that_vanish_while_they_are_asked_for_are_said_to(agent, binary, run_dir):
    stop = threading.Event()

    def churn(number):
        words = [binary, "--run-dir", run_dir, "run", "--name", f"elbowroom-test-live-churn{number}", "--", "sleep", "0.02"]
        while not stop.is_set():
            subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL)

    def churned():
        return [row["id"] for row in agent.list() if "elbowroom-test-live-churn" in row["id"]]

    threads = [threading.Thread(target=churn, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        outcomes, enough = set(), time.monotonic() + 20
        for _ in range(40):
            if outcomes and time.monotonic() > enough:  # an emulated CPU takes minutes for forty rounds
                break
            for container in churned():
                for verb in ("show", "explain", "detach", "attach"):
                    done = agent.cli(verb, container)
                    outcomes.add(done.returncode)
                    assert done.returncode in (0, 2), done
                    if done.returncode == 2:
                        refused(done)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert outcomes, "no container was ever seen"
    eventually(lambda: not churned())


def test_a_refused_attach_leaves_no_mount(new_agent, hand_made):
    """A cgroup whose process lives in the host's own mount namespace: mounting there would change the host."""
    agent = new_agent(containers='cgroups = ["/elbowroom-test-live-host"]').start()
    group = hand_made("elbowroom-test-live-host")
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            group.enter(process.pid)
            eventually(lambda: f"/{group.path}" in [row["path"] for row in agent.list()])
            refused(agent.cli("attach", f"/{group.path}"), group.path)
            own = Path("/proc/self/mountinfo").read_text().splitlines()
            ours = [line.split()[4] for line in own if line.split()[2] == f"{os.major(agent.device)}:{os.minor(agent.device)}"]
            assert ours == [f"{agent.run_dir}/private/views"]
        finally:
            process.kill()


def test_a_container_that_waits_for_its_view_is_let_alone_once_detached(new_agent, hand_made):
    agent = new_agent(containers='cgroups = ["/elbowroom-test-live-host"]').start()
    group = hand_made("elbowroom-test-live-host")

    def notes():
        return [row["attach_note"] for row in agent.list() if row["path"] == f"/{group.path}"]

    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            group.enter(process.pid)
            eventually(lambda: notes() == ["it shares the host's mount namespace"])
            done = agent.cli("detach", f"/{group.path}")
            assert done.returncode == 0, done.stderr
            assert notes() == ["detached by request"]
        finally:
            process.kill()


@pytest.mark.native
def test_rubbish_on_the_control_socket_is_answered_or_closed_and_harms_nothing(agent):
    for request in ({"show": "x"}, {"nonsense": 1}, [], 7, "list", {"prepare": {"pid": -1}}, {"show": "x" * 100_000}):
        agent.ask(request)
    assert agent.status()
