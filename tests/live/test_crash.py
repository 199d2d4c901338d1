"""Any process of the agent may die at any moment: containers run on, readers notice nothing, and another process takes over."""

import os
import random
import signal
import subprocess
import threading

import pytest

from kit import cgroup
from kit.container import cpu_list, meminfo
from kit.process import Process, comm, holders
from kit.slow import SlowWay
from kit.wait import PATIENCE, always, eventually

CPUS = os.cpu_count()
ROUNDS = int(os.environ.get("ELBOWROOM_TEST_ROUNDS", "10"))
MIB = 1 << 20
PARTS = ["supervisor", "view_server", "policy"]


def part(agent, name):
    pid = agent.status()["pids"][name]
    assert pid > 0, f"the agent has no {name} now"  # and a signal to process 0 goes to ourselves
    return Process(pid)


def whole(agent):
    """Whether all three processes are there and alive, and the agent answers."""
    status = agent.status()
    return status and all(pid > 0 and Process(pid).alive() for pid in status["pids"].values()) and agent.list() is not None


def kill(agent, name):
    """Kills one process and waits for its successor."""
    victim = part(agent, name)
    agent.remember()
    victim.kill()
    eventually(lambda: whole(agent) and agent.has_another(name, than=victim.pid))
    agent.remember()


@pytest.mark.parametrize("name", PARTS)
def test_a_killed_process_is_replaced_and_no_reader_notices(agent, start, name):
    container = start("--memory", "256MiB")
    stop = container.reader()
    kill(agent, name)
    path = agent.attached(container)["path"]
    assert container.mem_total() == 256 << 20
    cgroup.limit_memory(path, 300 << 20)
    eventually(lambda: container.mem_total() == 300 << 20)
    always(lambda: container.mem_total() == 300 << 20, during=1)
    counted = stop()
    assert counted["failed"] == 0, counted
    # A reader without pause is paced by the CPU time that it costs the server, which is much on an emulated CPU.
    assert counted["reads"] > 20, counted


def test_kills_in_any_order_cost_no_read(agent, start):
    container = start("--memory", "256MiB")
    stop = container.reader()
    order = random.Random(1)
    for _ in range(ROUNDS):
        kill(agent, order.choice(PARTS))
    counted = stop()
    assert counted["failed"] == 0, counted
    assert container.mem_total() == 256 << 20


def test_a_killed_standby_is_replaced_and_a_killed_supervisor_too(agent, start):
    """With the policy process stopped, there is but the standby to start a supervisor."""
    container = start("--memory", "256MiB")
    agent.attached(container)
    for _ in range(2):
        victim = Process(agent.standby())
        agent.remember()
        victim.kill()
        eventually(lambda: agent.standby() != victim.pid)
    policy, supervisor = part(agent, "policy"), part(agent, "supervisor")
    agent.remember()
    policy.stop()
    try:
        supervisor.kill()
        eventually(lambda: "elbowroom-super" in map(comm, holders(agent.run_dir)))
    finally:
        # Unless the new supervisor was sooner, to which it was silent for too long.
        policy.send(signal.SIGCONT)
    eventually(lambda: whole(agent))
    agent.remember()
    assert container.mem_total() == 256 << 20


@pytest.mark.native
@pytest.mark.parametrize("names", [("view_server", "policy"), ("supervisor", "policy"), ("supervisor", "view_server")])
def test_two_killed_at_once_are_replaced(agent, start, names):
    container = start("--memory", "256MiB")
    stop = container.reader()
    victims = [part(agent, name) for name in names]
    agent.remember()
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
    eventually(lambda: not any(victim.alive() for victim in victims) and whole(agent))
    agent.remember()
    counted = stop()
    assert counted["failed"] == 0, counted
    assert container.mem_total() == 256 << 20


@pytest.mark.native
def test_a_policy_process_that_is_killed_takes_nothing_back(agent, start):
    """Its successor shows the old values until it knows new ones: not zero usage, and not the soft limit."""
    container = start("--memory", "256MiB", "--memory-reservation", "96MiB")
    container.allocate(150)
    eventually(lambda: container.mem_total() > 160 * MIB, within=30)
    seen = []

    def look():
        now = meminfo(container.read("/proc/meminfo"))
        seen.append((now["MemTotal"] // MIB, (now["MemTotal"] - now["MemFree"]) // MIB))

    eventually(lambda: look() or seen[-1][1] > 150)
    for _ in range(3):
        victim = part(agent, "policy")
        agent.remember()
        seen.clear()
        victim.kill()
        always(lambda: look() or True, during=2, every=0)
        eventually(lambda: whole(agent))
        assert all(total > 160 and used > 140 for total, used in seen), sorted(set(seen))


@pytest.mark.native
def test_a_view_server_killed_while_it_starts_a_supervisor_costs_no_read(agent, start):
    """It forks then, and pages it reads requests into must not need copying before they can be written again."""
    container = start("--memory", "256MiB")
    path = agent.attached(container)["path"]
    stop = container.reader()
    ended = threading.Event()

    def change():
        """Every change of the limit makes the kernel forget pages, so that readers ask."""
        while not ended.wait(0.003):
            cgroup.limit_memory(path, random.randint(300, 350) << 20)

    changes = threading.Thread(target=change)
    changes.start()
    try:
        for _ in range(ROUNDS):
            supervisor, server = (part(agent, name) for name in ("supervisor", "view_server"))
            agent.remember()
            os.kill(supervisor.pid, signal.SIGKILL)
            ended.wait(random.uniform(0, 0.004))
            os.kill(server.pid, signal.SIGKILL)
            eventually(lambda: not supervisor.alive() and not server.alive() and whole(agent))
            agent.remember()
    finally:
        ended.set()
        changes.join()
    counted = stop()
    assert counted["failed"] == 0, counted


def test_after_all_are_killed_the_next_agent_takes_over(new_agent, docker):
    first = new_agent().start()
    container = docker.run("--cpus", "1", "--memory", "256m", name="elbowroom-test-adopted")
    first.attached(container)
    eventually(lambda: container.online() == 1 and container.mem_total() == 256 << 20)
    first.destroy()
    assert container.run("/busybox", "true") == ""  # the container itself is well

    second = new_agent().start()
    second.attached(container)
    eventually(lambda: container.online() == 1 and container.mem_total() == 256 << 20)
    docker.call("update", "--memory", "300m", "--memory-swap", "300m", container.name)
    eventually(lambda: container.mem_total() == 300 << 20)
    assert second.stop() == 0
    assert container.online() == CPUS


def test_what_was_read_is_there_though_all_are_dead(new_agent, start):
    """From the page cache, which asks no process: through a file that stays open, and one that is opened anew."""
    first = new_agent().start()
    container = start("--cpus", "1", "--memory", "256MiB")
    first.attached(container)
    first.remember()
    parts = {name: part(first, name) for name in PARTS} | {"standby": Process(first.standby())}
    # The policy process forgets what has changed, and is started anew.
    for name in ("supervisor", "policy"):
        parts[name].stop()
    paths = ["/proc/meminfo", "/sys/devices/system/cpu/online"]
    for path in paths:
        container.hold(path)

    def seen():
        texts = [look(path) for look in (container.reread, container.read) for path in paths]
        assert [meminfo(text)["MemTotal"] for text in texts[::2]] == [256 << 20] * 2
        assert [len(cpu_list(text)) for text in texts[1::2]] == [1, 1]
        return texts

    before = seen()
    # When the first of a session ends, the kernel has those go on that were stopped.
    for name in ("standby", "policy", "view_server", "supervisor"):
        parts[name].kill()
    first.destroy()
    assert seen() == before

    second = new_agent().start()
    second.attached(container)
    assert container.mem_total() == 256 << 20
    assert second.stop() == 0


@pytest.mark.native
@pytest.mark.parametrize("name", ["private/views", "private/triggers", "pages"])
def test_what_another_program_unmounts_is_made_anew(agent, start, name):
    container = start("--memory", "256MiB")
    agent.attached(container)
    victim = part(agent, "policy")
    agent.remember()
    subprocess.run(["umount", "--lazy", agent.run_dir / name], check=True)
    eventually(lambda: whole(agent) and agent.has_another("policy", than=victim.pid), within=30)
    agent.attached(container)
    assert container.mem_total() == 256 << 20
    assert start("--memory", "300MiB").mem_total() == 300 << 20
    mounts = ("private/views", "private/triggers", "pages")
    agent.device, agent.triggers, agent.pages = (os.stat(agent.run_dir / mount).st_dev for mount in mounts)


@pytest.fixture
def slow(tmp_path):
    way = SlowWay(tmp_path / "slow")
    yield way
    way.close()


@pytest.mark.native
def test_a_container_whose_file_system_hangs_keeps_no_process_from_ending(slow, agent, start, new_agent):
    bad, good = start(), start("--memory", "256MiB")
    for container in (bad, good):
        agent.attached(container)
    bad.run("mount", "--bind", "/proc/stat", slow.path / "x")  # a view, at the end of a way that is the container's
    slow.hang()
    done = agent.cli("detach", bad.name)
    assert slow.asked.is_set() and done.returncode != 0, done

    # A thread of it waits in the kernel, where no signal reaches it.
    kill(agent, "policy")
    cgroup.limit_memory(agent.attached(good)["path"], 300 << 20)
    eventually(lambda: good.mem_total() == 300 << 20)
    assert agent.stop() == 0
    again = new_agent().start()
    again.attached(good)
    assert good.mem_total() == 300 << 20

    # The attach that failed meanwhile can be done now.
    slow.release()
    eventually(lambda: again.cli("attach", bad.name).returncode == 0)
    assert bad.online_file() == again.attached(bad)["view"]["cpus"]
    assert again.stop() == 0
    # Only the view that the container bound to its slow path is left, and goes with the container.
    eventually(lambda: all(str(slow.path) in line for line in agent.leftovers()))


@pytest.mark.native
def test_a_stuck_policy_process_delays_no_reader(agent, start):
    container = start("--memory", "256MiB")
    container.read("/proc/meminfo")

    def delayed():
        policy = part(agent, "policy")
        agent.remember()
        policy.stop()
        try:
            stop = container.reader()
            always(lambda: [container.mem_total()] == [256 << 20] or pytest.fail(f"sees {container.mem_total()}"), during=1)
            counted = stop()
        finally:
            # Unless another has its place by now.
            policy.send(signal.SIGCONT)
        assert counted["failed"] == 0, counted
        eventually(lambda: whole(agent))
        return counted["slowest"]

    # A reader that depends on the stopped process is slow each time; one slow time may be due to this machine.
    slowest = []
    while not slowest or slowest[-1] >= 0.5 * PATIENCE:
        assert len(slowest) < 3, slowest
        slowest.append(delayed())


def test_limits_changed_while_no_agent_looked_are_seen_afterwards(agent, start):
    container = start("--memory", "256MiB")
    path = agent.attached(container)["path"]
    victim = part(agent, "policy")
    victim.stop()
    cgroup.limit_memory(path, 300 << 20)
    agent.processes.setdefault((victim.pid, victim.started), victim)
    victim.kill()
    eventually(lambda: whole(agent))
    eventually(lambda: container.mem_total() == 300 << 20)


@pytest.mark.native
def test_a_container_that_ended_while_no_agent_looked_is_forgotten(agent, start):
    container, other = start(), start()
    agent.attached(container)
    victim = part(agent, "policy")
    victim.stop()
    container.close()
    agent.processes.setdefault((victim.pid, victim.started), victim)
    victim.kill()
    eventually(lambda: whole(agent))
    eventually(lambda: agent.find(other) and not agent.find(container))
