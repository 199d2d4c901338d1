"""`elbowroom run`: a container of one's own, without an engine."""

import fcntl
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kit import need
from kit.cgroup import ROOT, V2
from kit.container import cpu_list, meminfo, stat_cpus
from kit.process import Process, descendants, mounts_of
from kit.wait import PATIENCE, eventually

CPUS = os.cpu_count()
MIB = 1 << 20
# include/uapi/linux/loop.h
LOOP_CTL_ADD, LOOP_CTL_REMOVE = 0x4C80, 0x4C81


def elbowroom_run(binary, run_dir, *words, **options):
    options = {"capture_output": True, "text": True, "timeout": 60 * PATIENCE, "stdin": subprocess.DEVNULL, **options}
    name = f"elbowroom-test-live-once-{os.getpid()}"
    return subprocess.run([binary, "--run-dir", run_dir, "run", "--name", name, *words], **options)


# ---- what is seen ----


def test_a_cpu_limit_shows_wherever_programs_look(agent, start):
    container = start("--cpus", "1")
    assert container.online() == 1
    assert int(container.run("/usr/bin/python3", "-c", "import os; print(os.cpu_count())")) == 1
    online = cpu_list(container.read("/sys/devices/system/cpu/online"))
    assert stat_cpus(container.read("/proc/stat")) == online
    shown = [line.split()[2] for line in container.read("/proc/cpuinfo").splitlines() if line.startswith("processor")]
    assert [int(number) for number in shown] == online


@pytest.mark.parametrize("limit", ["0.5", *(pytest.param(other, marks=pytest.mark.native) for other in ("0.1", "0.9"))])
def test_a_fraction_of_a_cpu_still_shows_one(agent, start, limit):
    assert start("--cpus", limit).online() == 1


def test_a_fraction_above_shows_the_next_whole_cpu_once_it_is_used(agent, start):
    need.idle_cpus(2)
    container = start("--cpus", "1.5")
    container.burn(2)
    need.of_idle_cpus(lambda: container.online() == 2, container)


def test_a_cpuset_keeps_its_real_numbers(agent, start):
    need.cpus(2)
    container = start("--cpuset", "1")
    assert container.read("/sys/devices/system/cpu/online").strip() == "1"
    assert container.online() == 1


def test_a_container_of_one_node_sees_that_node(agent, start):
    need.nodes(2)
    nodes = "/sys/devices/system/node"
    cpus = Path(nodes, "node1/cpulist").read_text().strip()
    container = start("--cpuset", cpus)
    directory = (ROOT if V2 else ROOT / "cpuset") / own_cgroup(container).lstrip("/")
    (directory / "cpuset.mems").write_text("1")
    eventually(lambda: container.read(f"{nodes}/has_memory").strip() == "1")
    assert container.read(f"{nodes}/has_cpu").strip() == "1"
    # A node's lines are those of /proc/meminfo with its name before them.
    total = [meminfo(container.read(f"{nodes}/node{n}/meminfo").replace(f"Node {n} ", ""))["MemTotal"] for n in (0, 1)]
    real = meminfo(Path(nodes, "node1/meminfo").read_text().replace("Node 1 ", ""))["MemTotal"]
    assert total[0] == 0 and total[1] == container.mem_total() == real
    lines = container.run("lscpu", "--parse=CPU,NODE").splitlines()
    assert [line for line in lines if not line.startswith("#")] == [f"{cpu},1" for cpu in cpu_list(cpus)]


def test_a_memory_limit_is_all_the_memory_there_is(agent, start):
    container = start("--memory", "256MiB")
    assert container.mem_total() == 256 * MIB

    def sums_up():
        total, used, free = map(int, container.run("free", "-b").splitlines()[1].split()[1:4])
        return total == 256 * MIB and 0 < used < total and 0 < free < total

    eventually(sums_up)  # what is used is counted some time after the first instruction


def test_memory_in_use_is_the_containers_own(agent, start):
    container, neighbour = start("--memory", "256MiB"), start("--memory", "512MiB")

    def used(one):
        return int(one.run("free", "-b").splitlines()[1].split()[2])

    before, of_neighbour = used(container), used(neighbour)
    container.allocate(100)
    eventually(lambda: used(container) - before > 90 * MIB)
    assert used(neighbour) - of_neighbour < 20 * MIB
    container.allocate(0)
    eventually(lambda: used(container) - before < 20 * MIB)


@pytest.mark.native
def test_a_disk_that_comes_later_has_its_row(agent, start):
    def rows(text):
        return [line.split()[2] for line in text.splitlines()]

    try:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"needs disks that come and go, and this machine has no loop devices: {error}")
    container = start()
    before = rows(container.read("/proc/diskstats"))
    assert "loop4711" not in before
    try:
        fcntl.ioctl(control, LOOP_CTL_ADD, 4711)
        eventually(lambda: rows(container.read("/proc/diskstats")) == rows(Path("/proc/diskstats").read_text()))
        assert set(rows(container.read("/proc/diskstats"))) >= {*before, "loop4711"}
    finally:
        fcntl.ioctl(control, LOOP_CTL_REMOVE, 4711)
        os.close(control)


def test_the_limit_file_of_the_cgroup_agrees(agent, start):
    container = start("--cpus", "1", "--memory", "256MiB")
    if V2:
        assert container.read("/sys/fs/cgroup" + own_cgroup(container) + "/memory.max").strip() == str(256 * MIB)
        quota, period = map(int, container.read("/sys/fs/cgroup" + own_cgroup(container) + "/cpu.max").split())
    else:
        directory = "/sys/fs/cgroup/cpu" + own_cgroup(container)
        quota, period = (int(container.read(f"{directory}/cpu.cfs_{name}_us")) for name in ("quota", "period"))
        limit = container.read("/sys/fs/cgroup/memory" + own_cgroup(container) + "/memory.limit_in_bytes")
        assert int(limit) == 256 * MIB
    assert quota == period


def own_cgroup(container):
    """The container's cgroup as it finds it itself, as a runtime would: by /proc/self/cgroup."""
    for line in container.read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" if V2 else "cpu" in controllers.split(","):
            return path.rstrip("/")
    raise AssertionError("no cgroup")


# Not all CPUs of the machine: on an emulated CPU the agent and these tests need more than one all the time.
def test_views_follow_a_neighbour_that_starts_and_stops_work(agent, start):
    need.idle_cpus(2)
    container, neighbour = start(), start()
    container.burn(CPUS)
    eventually(container.shows_what_it_has)
    neighbour.burn(CPUS)
    eventually(lambda: container.online_file() <= max(1, CPUS // 2))
    neighbour.calm()
    eventually(container.shows_what_it_has)


def test_an_open_file_follows_too(agent, start):
    need.idle_cpus(2)
    container, neighbour = start(), start()
    container.hold("/sys/devices/system/cpu/online")

    def seen():
        return len(cpu_list(container.reread("/sys/devices/system/cpu/online")))

    container.burn(CPUS)
    need.of_idle_cpus(lambda: seen() == CPUS, container, neighbour)
    neighbour.burn(CPUS)
    eventually(lambda: seen() < CPUS)


def test_inside_and_outside_agree(agent, start):
    container = start("--cpus", "1", "--memory", "300MiB")
    view = agent.view(container)
    assert view["cpus"] == container.online()
    assert view["cpus_lower"] <= view["cpus"] <= view["cpus_upper"]
    assert view["memory"] == container.mem_total()
    assert view["memory_soft"] <= view["memory"] <= view["memory_hard"]
    assert cpu_list(view["online"]) == cpu_list(container.read("/sys/devices/system/cpu/online"))


def test_tools_that_people_use_work(agent, start):
    container = start("--cpus", "1", "--memory", "256MiB")
    for words in (["free", "-h"], ["uptime"], ["vmstat"], ["lscpu"], ["top", "-b", "-n", "1"], ["ps", "aux"], ["cat", "/proc/swaps"]):
        assert container.run(*words).strip(), words


def test_a_process_inside_starts_now_and_when_the_host_says(agent, start):
    container = start("--cpus", "1")
    # As `ps -o lstart=`, psutil and the clients of Prometheus reckon: the boot, and the start since then.
    look = "stat = open('/proc/stat').read(); own = open('/proc/self/stat').read(); print(own); print(stat)"
    before = time.time()
    own, stat = container.run("/usr/bin/python3", "-c", look).split("\n", 1)
    since_boot = int(own.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    started = boot_time(stat) + since_boot
    assert before - 2 <= started <= time.time() + 2
    with open("/proc/stat") as host:
        assert boot_time(stat) == boot_time(host.read())


def boot_time(stat):
    return next(int(line.split()[1]) for line in stat.splitlines() if line.startswith("btime "))


# ---- the command ----


@pytest.mark.native
@pytest.mark.parametrize(
    ("script", "expected"),
    [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137), ("kill -15 $$", 143)],
)
def test_the_commands_exit_status_is_ours(agent, binary, run_dir, script, expected):
    done = elbowroom_run(binary, run_dir, "--", "sh", "-c", script)
    assert done.returncode == expected, done.stderr


@pytest.mark.native
def test_the_exit_status_is_ours_also_where_who_starts_us_ignores_the_end_of_children(agent, binary, run_dir):
    ignore = lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    done = elbowroom_run(binary, run_dir, "--", "sh", "-c", "exit 7", preexec_fn=ignore)
    assert done.returncode == 7, done.stderr


@pytest.mark.native
@pytest.mark.parametrize(
    ("command", "expected"),
    [("elbowroom-no-such-command", 127), ("/etc/passwd", 126)],
)
def test_a_command_that_cannot_start_is_named(agent, binary, run_dir, command, expected):
    done = elbowroom_run(binary, run_dir, "--", command)
    assert done.returncode == expected, done.stderr
    assert command in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.native
def test_input_and_output_pass_through(agent, binary, run_dir):
    done = elbowroom_run(binary, run_dir, "--", "tr", "a-z", "A-Z", stdin=None, input="room\n")
    assert (done.returncode, done.stdout) == (0, "ROOM\n"), done.stderr


@pytest.mark.native
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM])
def test_signals_reach_the_command(agent, binary, run_dir, number):
    script = f"trap 'echo caught; exit 5' {number.name[3:]}; echo ready; while :; do sleep 0.05; done"
    words = [binary, "--run-dir", run_dir, "run", "--name", "elbowroom-test-live-signal", "--", "sh", "-c", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout.readline() == "ready\n"
        run.send_signal(number)
        try:
            assert run.communicate(timeout=20 * PATIENCE)[0] == "caught\n"
        finally:
            run.kill()
    assert run.returncode == 5


@pytest.mark.native
def test_a_command_waits_while_a_busy_agent_mounts(agent, binary, run_dir):
    name = f"elbowroom-test-live-lock-{os.getpid()}"
    words = [binary, "--run-dir", run_dir, "run", "--name", name, "--cpus", "1", "--", "getconf", "_NPROCESSORS_ONLN"]
    policy = Process(agent.pid("policy"))
    policy.stop()  # what begins now has a mount namespace of its own, and waits for its view
    try:
        run = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        mine = os.readlink("/proc/self/ns/mnt")
        own = lambda: [pid for pid in descendants(run.pid) if os.readlink(f"/proc/{pid}/ns/mnt") != mine]
        [child] = eventually(own)
        namespace = os.open(f"/proc/{child}/ns/mnt", os.O_RDONLY)
        fcntl.flock(namespace, fcntl.LOCK_EX)
    finally:
        policy.send(signal.SIGCONT)  # unless another has its place by now
    time.sleep(1)  # as long as a view is not waited for in a namespace of others
    os.close(namespace)
    out, error = run.communicate(timeout=20 * PATIENCE)
    assert (run.returncode, out) == (0, "1\n"), error


@pytest.mark.native
def test_a_terminal_that_hangs_up_ends_the_command(agent, binary, run_dir):
    name = f"elbowroom-test-live-hangup-{os.getpid()}"
    words = [binary, "--run-dir", run_dir, "run", "--name", name, "--", "sh", "-c", "echo ready; exec sleep 1000"]
    pid, terminal = pty.fork()
    if pid == 0:  # leads the session of its terminal, as below `ssh -t`
        try:
            os.execv(binary, words)
        finally:
            os._exit(127)
    run = Process(pid)
    try:
        with os.fdopen(terminal, "rb", buffering=0) as output:
            said = b""
            while b"ready" not in said:
                said += output.read(100)
        eventually(lambda: not run.alive())
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGHUP
    finally:
        run.kill()


@pytest.mark.native
def test_without_views_no_agent_is_needed(start):
    container = start("--no-views", "--cpus", "1")
    assert container.online() == CPUS


# ---- what stays behind (that no cgroup does is looked at after every test) ----


@pytest.mark.native
def test_a_process_left_in_the_background_is_let_alone_and_said(agent, binary, run_dir):
    done = elbowroom_run(binary, run_dir, "--", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!; exit 3")
    left = Process(int(done.stdout))
    try:
        assert done.returncode == 3
        assert "1 process " in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert left.alive()
    finally:
        left.kill()
    assert elbowroom_run(binary, run_dir, "--", "true").returncode == 0  # and removes what the first had to leave


@pytest.mark.native
def test_a_killed_run_leaves_its_command_and_the_next_cleans_up(agent, start, binary, run_dir):
    container = start("--memory", "256MiB")
    container.main.kill()
    container.main.wait()
    assert container.mem_total() == 256 * MIB
    command = Process(container.pid)
    container.main.stdin.close()
    eventually(lambda: not command.alive())
    assert elbowroom_run(binary, run_dir, "--", "true").returncode == 0
    eventually(lambda: not agent.find(container))


def test_a_command_that_runs_on_keeps_no_mount_of_an_agent_that_stopped(agent, start):
    if not any("shared:" in line for line in mounts_of(agent.device)):
        pytest.skip("needs a host that shares its mounts, as systemd's do: elsewhere an unmount reaches no copy")
    container = start("--cpus", "1")
    agent.attached(container)
    assert agent.stop() == 0
    eventually(lambda: not agent.leftovers())
    assert container.online() == CPUS


@pytest.mark.native
def test_two_of_one_name_are_refused(agent, start, binary, run_dir):
    first = start("--cpus", "1")
    done = subprocess.run([binary, "--run-dir", run_dir, "run", "--name", first.name, "--", "true"], capture_output=True, text=True)
    assert done.returncode == 2 and first.name in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert first.online() == 1
