"""Under a service manager the agent says how it is, and what it gives into the manager's keeping outlives all of it."""

import os
import signal
import socket
import subprocess

import pytest

from kit import cgroup
from kit.manager import Manager
from kit.process import Process
from kit.wait import PATIENCE, always, eventually


def killed_whole(agent):
    """Kills all its processes before any of them can start another: they stand still by then. The supervisor goes last: the kernel
    would tell what stands still in its session that it hangs up, which is a request to stop."""
    agent.remember()
    named = agent.status()["pids"]
    parts = [Process(pid) for pid in (agent.standby(), named["policy"], named["view_server"], named["supervisor"])]
    for number in [signal.SIGSTOP, signal.SIGKILL]:
        for part in parts:
            part.send(number)
    agent.destroy()


@pytest.fixture
def manager(scratch, request):
    directory = scratch / str(hash(request.node.name))[-6:]
    directory.mkdir()
    made = Manager(directory)
    yield made
    made.close()


def test_it_is_ready_when_it_answers_and_gives_away_what_must_outlive_it(new_agent, manager):
    agent = new_agent(prefix=manager.prefix())
    agent.start()
    manager.heard("READY")
    assert set(manager.store) == {"fuse", "triggers", "slots"}
    manager.heard("WATCHDOG")
    assert agent.stop() == 0
    manager.heard("STOPPING")
    # A clean stop leaves nothing to adopt.
    eventually(lambda: manager.listen() is not None and manager.store == {})


def test_a_manager_that_reads_nothing_delays_neither_a_start_nor_a_stop(new_agent, scratch):
    path = scratch / "deaf.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        deaf.bind(str(path))
        sender.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                sender.sendto(b"X=1", str(path))
        agent = new_agent(prefix=["env", f"NOTIFY_SOCKET={path}"]).start()
        assert agent.stop() == 0
    assert agent.tail().count("the service manager takes no message") == 1, agent.tail()


def test_the_next_agent_adopts_the_views_and_no_read_fails(new_agent, manager, start):
    agent = new_agent(prefix=manager.prefix()).start()
    manager.heard("READY")
    container = start("--memory", "256MiB")
    agent.attached(container)
    connection = os.stat(agent.run_dir / "private/views").st_dev
    stop = container.reader()
    for _ in range(3):
        killed_whole(agent)
        agent = new_agent(prefix=manager.prefix()).start()
        manager.heard("READY")
        path = agent.attached(container)["path"]
        assert os.stat(agent.run_dir / "private/views").st_dev == connection, agent.tail()
    counted = stop()
    assert counted["failed"] == 0 and counted["reads"] > 100, counted
    cgroup.limit_memory(path, 300 << 20)
    eventually(lambda: container.mem_total() == 300 << 20)
    assert agent.stop() == 0


def test_the_watchdog_is_not_fed_while_a_part_is_stuck(new_agent, manager):
    """The view server; a policy process that is stuck is replaced."""
    agent = new_agent(prefix=manager.prefix()).start()
    manager.heard("READY")
    stuck = Process(agent.status()["pids"]["view_server"])
    stuck.stop()
    # No answer to this comes from a cache: a server that has nothing to do is not stuck.
    asks = subprocess.Popen(["stat", "--file-system", agent.run_dir / "private/views"], stdout=subprocess.DEVNULL)
    try:

        def silent():
            manager.listen()
            manager.said.clear()
            always(lambda: not any("WATCHDOG" in words for words in manager.listen()), during=1.2 / PATIENCE)
            return True

        eventually(silent, within=10)
    finally:
        stuck.send(signal.SIGCONT)
    assert asks.wait(10 * PATIENCE) == 0
    manager.heard("WATCHDOG")


def test_a_refused_configuration_costs_no_view_that_was_kept(new_agent, manager, start):
    first = new_agent(prefix=manager.prefix()).start()
    manager.heard("READY")
    container = start("--memory", "256MiB")
    first.attached(container)
    stop = container.reader()
    killed_whole(first)
    second = new_agent(prefix=manager.prefix(), config='[sense]\nperiod = "24"\n')
    with pytest.raises(AssertionError):
        second.start(within=1)
    eventually(lambda: "has no unit" in second.tail())
    assert "READY" not in str(manager.listen())
    assert container.mem_total() == 256 << 20
    second.log.with_suffix(".toml").write_text(second.config.replace('"24"', '"24ms"'))
    manager.heard("READY")
    assert stop()["failed"] == 0
    assert second.stop() == 0


def test_a_stop_while_no_process_knows_the_containers_takes_views_out_of_them(new_agent, manager, start):
    first = new_agent(prefix=manager.prefix()).start()
    manager.heard("READY")
    containers = [start("--memory", f"{size}MiB") for size in (256, 512)]
    for container in containers:
        first.attached(container)
    killed_whole(first)
    # Its policy process cannot start: views stay until a clean stop.
    second = new_agent(prefix=manager.prefix(), config='[sense]\nperiod = "24"\n')
    with pytest.raises(AssertionError):
        second.start(within=1)
    assert [container.mem_total() >> 20 for container in containers] == [256, 512]
    assert second.stop() == 0, second.tail()
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert all(container.mem_total() == machine for container in containers), second.tail()
    assert "views detached" in second.tail()
