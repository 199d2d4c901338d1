"""Descriptors that take their time to be released, sent to every socket of the agent; and policy processes that hang or cannot die.

Where the kernel can refuse descriptors (Linux 6.16) nothing arrives. The same must hold on older kernels: neighbours are heard, the
policy process answers and is replaced, and the agent stops."""

import json
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from kit import cgroup
from kit.container import USERS
from kit.process import Process, state, stat_fields
from kit.slow import SlowWay
from kit.wait import PATIENCE, eventually

PYTHON = "/usr/bin/python3"
PROGRAM = Path(__file__).with_name("programs") / "descriptors.py"
MIB = 1 << 20
SO_PASSRIGHTS = 83
SOCKETS = ["probe.sock", "feed.sock", "api.sock", "agent.sock"]
SEND = "import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect({address!r}); s.send({record!r})"


def refuses_descriptors():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        try:
            one.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
        except OSError:
            return False
    return True


def served(agent, container, number):
    """Waits until the agent has heard from a container what it says now."""
    container.run(agent.binary, "--run-dir", agent.run_dir, "probe", "send", f"served={number}")

    def heard():
        probe = agent.row(container)["probe"]
        return probe and probe["freshness"] == "fresh" and probe["report"]["served"] == number

    eventually(heard)


def replaced(agent, victim, within=20):
    """Waits for another policy process that answers. A process that hangs is replaced after 1.5 s, or later after others that were slow on
    a busy machine (`elbowroom_agent::view_server::policy_silence`)."""

    def answers():
        return agent.has_another("policy", than=victim.pid) and agent.list() is not None

    eventually(answers, within)
    agent.remember()


def policy_of(agent):
    agent.remember()
    return Process(agent.pid("policy"))


def kill_policy(agent):
    victim = policy_of(agent)
    os.kill(victim.pid, signal.SIGKILL)
    replaced(agent, victim)
    return victim


@pytest.fixture
def place():
    """What a FUSE server of an ordinary user needs."""
    place = Path(tempfile.mkdtemp(prefix="elbowroom-test-hostile-"))
    place.chmod(0o755)
    (place / "mnt").mkdir()
    os.mknod(place / "fuse", 0o666 | stat.S_IFCHR, os.makedev(10, 229))
    (place / "fuse").chmod(0o666)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def hostile():
    """Runs descriptors.py: what it says of each socket. It goes with the test, and then nothing hangs any more."""
    made = []

    def run(words, paths, **options):
        process = subprocess.Popen(
            [*words, *paths], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True, **options,
        )  # fmt: skip
        made.append(process)
        line = process.stdout.readline()
        assert line, process.communicate(timeout=20 * PATIENCE)[1]
        return json.loads(line)

    yield run
    for process in made:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=20 * PATIENCE)


def test_an_ordinary_user_who_sends_descriptors_holds_up_no_neighbour(agent, start, new_agent, place, hostile):
    good = start("--memory", "256MiB")
    agent.attached(good)
    served(agent, good, 1)
    eventually(lambda: all((agent.run_dir / name).exists() for name in SOCKETS))
    nobody = pwd.getpwnam("nobody")
    # As where a socket is mounted into a container: whatever the modes of the directories are.
    doors = [os.open(agent.run_dir / name, os.O_PATH) for name in SOCKETS]
    try:
        said = hostile(
            [PYTHON, PROGRAM, place], [f"/proc/self/fd/{fd}" for fd in doors], pass_fds=doors,
            user=nobody.pw_uid, group=nobody.pw_gid, extra_groups=[],
        )  # fmt: skip
    finally:
        for fd in doors:
            os.close(fd)
    said = dict(zip(SOCKETS, said.values()))
    assert said["agent.sock"] == said["api.sock"] == ["EACCES", "EACCES"]
    expect = "EPERM" if refuses_descriptors() else "sent"
    assert said["probe.sock"] == [expect] * 2
    # The feed may have closed the connection of one that may not come in, before that sent anything.
    assert set(said["feed.sock"]) <= {expect, "EPIPE", "ECONNRESET"}

    for number in (2, 3):
        served(agent, good, number)
    cgroup.limit_memory(agent.attached(good)["path"], 300 * MIB)
    eventually(lambda: good.mem_total() == 300 * MIB)
    assert agent.json("list")
    kill_policy(agent)
    served(agent, good, 4)
    assert agent.stop() == 0
    second = new_agent().start()
    second.attached(good)
    served(second, good, 5)
    assert second.stop() == 0


@pytest.mark.parametrize("users", USERS)
def test_a_container_that_sends_descriptors_holds_up_no_neighbour(agent, docker, start, hostile, users):
    good = start("--memory", "256MiB")
    bad = docker.run("--cap-drop", "ALL", "--user", "1000", name="elbowroom-test-hostile")
    agent.attached(bad), agent.attached(good)
    # In its own network it speaks to a socket of its own, once that is there.
    eventually(lambda: bad.run(PYTHON, "-c", SEND.format(address="\0elbowroom", record=b"served=1")) == "")
    enter = ["nsenter", "--target", bad.pid, "--net", "setpriv", "--reuid=1000", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]
    said = hostile([str(word) for word in [*enter, *USERS[users], PYTHON, PROGRAM, ""]], ["@elbowroom"])
    assert said == {"@elbowroom": ["EPERM" if refuses_descriptors() else "sent"]}
    for number in (1, 2):
        served(agent, good, number)
    kill_policy(agent)
    served(agent, good, 3)


# Says in the name of another process what a probe says, and waits for the answer: by its number (unix(7)).
FORGE = """
import errno, os, socket, struct, sys
path, pid, record = sys.argv[1:]
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
    s.bind("")
    s.connect(path)
    s.settimeout(20)
    try:
        s.sendmsg([record.encode()], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("3i", int(pid), os.getuid(), os.getgid()))])
        print("heard", s.recv(1024).decode())
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


def test_root_of_a_user_namespace_speaks_in_no_neighbours_name(agent, start):
    """Of a pid namespace of its own it may name processes; elsewhere none but itself."""
    good, bad = start("--memory", "256MiB"), start("--memory", "256MiB", inside=USERS["own"])
    for container in (good, bad):
        agent.attached(container)
    served(agent, good, 1)
    forge = [PYTHON, "-c", FORGE, agent.run_dir / "probe.sock"]
    assert bad.run(*forge, good.pid, "served=7").strip() == "EPERM"
    alone = ["unshare", "--pid", "--fork", *forge]
    assert bad.run(*alone, good.pid, "served=8").strip() == "ESRCH"
    assert bad.run(*alone, 1, "served=9").strip() == "heard"
    report = lambda container: agent.find(container)["probe"]["report"]["served"]
    assert (report(bad), report(good)) == (9, 1)


def waiting_threads(pid):
    """How many threads of a process wait in the kernel and hear no signal."""
    fields = [stat_fields(f"{pid}/task/{task}") for task in os.listdir(f"/proc/{pid}/task")]
    return sum(1 for field in fields if field and field[0] == "D")


def waits_for_fuse(pid):
    """Whether a thread of a process waits for an answer of a FUSE server."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return any((task / "wchan").read_text() == "request_wait_answer" for task in tasks)


def test_a_policy_process_that_cannot_die_is_replaced(new_agent, start, tmp_path):
    """A thread of it holds all its files and waits for a container's file system. Another process takes its place meanwhile."""
    way = SlowWay(tmp_path / "slow")
    try:
        agent = new_agent(f'[[probes]]\ncontainer = "elbowroom-test-live-*"\nfile = "{way.path}/x"\nevery = "100ms"\n').start()
        container = start("--memory", "256MiB")
        agent.attached(container)
        way.hang()
        first = policy_of(agent)
        eventually(lambda: way.holds(1) and waits_for_fuse(first.pid))
        kill_policy(agent)
        # The kill wakes it, to wait once more.
        eventually(lambda: waiting_threads(first.pid))
        for limit in (300, 310):
            cgroup.limit_memory(agent.attached(container)["path"], limit * MIB)
            eventually(lambda: container.mem_total() == limit * MIB)
        # The next one waits there too, and so does the one after.
        second = policy_of(agent)
        eventually(lambda: waiting_threads(second.pid) or way.holds(2) and waits_for_fuse(second.pid))
        kill_policy(agent)
        assert agent.stop() == 0
        again = new_agent().start()
        again.attached(container)
        assert container.mem_total() == 310 * MIB
        assert again.stop() == 0
        eventually(lambda: waiting_threads(first.pid) and waiting_threads(second.pid))
    finally:
        way.release()
        way.close()
    eventually(lambda: not Path(f"/proc/{first.pid}").exists() and not Path(f"/proc/{second.pid}").exists())


def test_after_all_were_killed_and_one_cannot_die_an_agent_starts(new_agent, start, tmp_path):
    way = SlowWay(tmp_path / "slow")
    try:
        agent = new_agent(f'[[probes]]\ncontainer = "elbowroom-test-live-*"\nfile = "{way.path}/x"\nevery = "100ms"\n').start()
        container = start("--memory", "256MiB")
        agent.attached(container)
        way.hang()
        stuck = policy_of(agent)
        eventually(lambda: way.holds(1) and waits_for_fuse(stuck.pid))
        # The supervisor last: at its death the kernel lets stopped processes go on.
        parts = [Process(pid) for pid in (agent.standby(), *agent.status()["pids"].values())]
        parts.sort(key=lambda part: part.pid == agent.supervisor.pid)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for part in parts:
                part.send(number)
        agent.supervisor.wait(10 * PATIENCE)
        agent.supervisor = None
        # The kill wakes it, to wait once more.
        eventually(lambda: waiting_threads(stuck.pid))
        again = new_agent().start()
        again.attached(container)
        assert container.mem_total() == 256 * MIB
        assert again.stop() == 0
    finally:
        way.release()
        way.close()


@pytest.mark.native
def test_a_policy_process_that_stands_still_is_replaced(agent, start):
    container = start("--memory", "256MiB")
    agent.attached(container)
    victim = policy_of(agent)
    os.kill(victim.pid, signal.SIGSTOP)
    replaced(agent, victim)
    eventually(lambda: not victim.alive())
    cgroup.limit_memory(agent.attached(container)["path"], 300 * MIB)
    eventually(lambda: container.mem_total() == 300 * MIB)


def test_a_policy_process_that_stands_still_before_it_works_is_replaced(agent):
    victim = policy_of(agent)
    os.kill(victim.pid, signal.SIGKILL)
    supervisor = agent.supervisor.pid

    def child():
        for other in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
            words = Path(f"/proc/{other}/cmdline").read_bytes().split(b"\0")
            if int(other) != victim.pid and b"policy" in words[:2]:
                return Process(int(other))

    young = eventually(child, every=0)
    os.kill(young.pid, signal.SIGSTOP)
    eventually(lambda: state(young.pid) == "T")
    replaced(agent, young)


def test_sockets_are_born_with_their_modes(new_agent):
    agent = new_agent(prefix=["sh", "-c", 'umask 0; exec "$@"', "sh"]).start()
    eventually(lambda: all((agent.run_dir / name).exists() for name in SOCKETS))
    seen = {name: os.stat(agent.run_dir / name) for name in SOCKETS}
    modes = {name: stat.S_IMODE(status.st_mode) for name, status in seen.items()}
    assert modes["agent.sock"] == 0o600 and modes["feed.sock"] == 0o660 and modes["probe.sock"] == 0o666
    assert modes["api.sock"] in (0o600, 0o660) and {status.st_uid for status in seen.values()} == {0}
    assert seen["feed.sock"].st_gid != 0 and seen["agent.sock"].st_gid == 0
