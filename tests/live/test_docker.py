"""Containers of a Docker daemon: found, given their view, followed, let alone, forgotten."""

import os

import pytest

from kit import need
from kit.process import mounts_of
from kit.wait import eventually

CPUS = os.cpu_count()
MIB = 1 << 20


def test_a_new_container_is_given_its_view(agent, docker):
    container = docker.run("--cpus", "1", "--memory", "300m", name="elbowroom-test-new")
    row = agent.attached(container)
    assert (row["id"], row["name"], row["engine"]) == (container.id, container.name, "docker")
    # The engine makes the cgroup first, and then writes its limits: a view that is there may be a moment older.
    eventually(lambda: container.online() == 1 and container.mem_total() == 300 * MIB)


def test_a_container_older_than_the_agent_is_given_its_view(new_agent, docker):
    container = docker.run("--cpus", "1", "--memory", "300m", name="elbowroom-test-old")
    assert container.online() == CPUS
    agent = new_agent().start()
    agent.attached(container)
    assert container.online() == 1
    assert container.mem_total() == 300 * MIB


@pytest.mark.native
def test_a_view_comes_and_goes_by_hand(new_agent, docker):
    agent = new_agent(containers="attach = false").start()
    container = docker.run("--cpus", "1", name="elbowroom-test-hand")
    eventually(lambda: agent.find(container))
    assert container.online() == CPUS and not agent.row(container)["attached"]

    attached = agent.cli("attach", container.name)
    assert attached.returncode == 0, attached.stderr
    assert agent.row(container)["attached"] and container.online() == 1

    again = agent.cli("attach", container.id[:12])
    assert again.returncode == 0, again.stderr
    assert container.online() == 1

    detached = agent.cli("detach", container.name)
    assert detached.returncode == 0, detached.stderr
    assert not agent.row(container)["attached"] and container.online() == CPUS
    for device in (agent.device, agent.triggers, agent.pages):
        assert not [line for line in mounts_of(device) if line.startswith(f"{container.pid}:")]


@pytest.mark.native
def test_labels_say_what_a_container_wants(new_agent, docker):
    agent = new_agent(containers='labels = "all"').start()
    wanted = {"views": "off", "priority": "tier=1 weight=300", "memory-reservation": "8MiB", "colour": "blue"}
    labels = [word for key, value in wanted.items() for word in ("--label", f"elbowroom.dev/{key}={value}")]
    container = docker.run("--cpus", "1", "--memory", "64m", *labels, name="elbowroom-test-labels")
    row = eventually(lambda: (row := agent.find(container)) and row["attach_note"] and row)
    assert row["labels"]["priority"] == {"tier": 1, "weight": 300} and row["labels"]["memory_reservation"] == 8 * MIB
    assert not row["attached"] and "elbowroom.dev/views" in row["attach_note"]
    [ignored] = row["labels"]["ignored"]
    assert "elbowroom.dev/colour" in ignored
    eventually(lambda: (agent.row(container)["memory"] or {}).get("minimum") == 8 * MIB)
    # The wrapper runtime asks the agent, which knows the label.
    out = docker.run_once(
        "getconf", "_NPROCESSORS_ONLN", options=["--runtime", "elbowroom", "--cpus", "1", "--label", "elbowroom.dev/views=off"]
    )
    assert out == f"{CPUS}\n"
    attached = agent.cli("attach", container.name)
    assert attached.returncode == 0 and container.online() == 1


@pytest.mark.native
def test_who_shares_a_pid_namespace_sees_its_own_room(agent, docker):
    """lxc/lxcfs#543: whose view it is was asked of the first process of the reader's PID namespace."""
    first = docker.run("--cpus", "1", "--memory", "300m", name="elbowroom-test-first")
    agent.attached(first)
    second = docker.run("--pid", f"container:{first.name}", "--memory", "100m", name="elbowroom-test-second")
    agent.attached(second)
    assert first.run("readlink", "/proc/self/ns/pid") == second.run("readlink", "/proc/self/ns/pid")
    eventually(lambda: second.mem_total() == 100 * MIB)
    eventually(lambda: (first.mem_total(), first.online()) == (300 * MIB, 1))
    second.close()
    eventually(lambda: not agent.find(second))
    assert first.mem_total() == 300 * MIB


def test_a_clean_stop_gives_the_host_back(new_agent, docker):
    agent = new_agent().start()
    container = docker.run("--cpus", "1", name="elbowroom-test-stop")
    agent.attached(container)
    eventually(lambda: container.online() == 1)
    assert agent.stop() == 0
    assert container.online() == CPUS
    assert "elbowroom" not in container.read("/proc/self/mountinfo").replace("/elbowroom-test", "").replace(os.getcwd(), "")


@pytest.mark.parametrize("attempt", [0, *(pytest.param(again, marks=pytest.mark.native) for again in (1, 2))])
def test_the_wrapper_runtime_shows_the_view_to_the_first_instruction(agent, docker, attempt):
    limits = ["--cpus", "1", "--memory", "300m"]
    files = ["/sys/devices/system/cpu/online", "/proc/meminfo"]
    online, memory = docker.run_once("/busybox", "head", "-qn1", *files, options=["--runtime", "elbowroom", *limits]).splitlines()
    assert (online, memory.split()) == ("0", ["MemTotal:", str(300 * 1024), "kB"])


@pytest.mark.native
def test_without_an_agent_the_wrapper_runtime_starts_containers_as_ever(docker):
    out = docker.run_once("getconf", "_NPROCESSORS_ONLN", options=["--runtime", "elbowroom", "--cpus", "1"])
    assert out == f"{CPUS}\n"


@pytest.mark.native
def test_the_wrapper_runtime_returns_the_commands_status(agent, docker):
    words = ["run", "--rm", "--network", "none", "--runtime", "elbowroom", "elbowroom-test", "/busybox", "sh", "-c", "exit 7"]
    assert docker.call(*words, check=False).returncode == 7


def test_an_update_of_memory_shows_inside(agent, docker):
    container = docker.run("--memory", "300m", name="elbowroom-test-update")
    agent.attached(container)
    docker.call("update", "--memory", "400m", "--memory-swap", "400m", container.name)
    eventually(lambda: container.mem_total() == 400 * MIB)
    docker.call("update", "--memory", "200m", "--memory-swap", "200m", container.name)
    eventually(lambda: container.mem_total() == 200 * MIB)


@pytest.mark.native
def test_an_update_of_cpus_shows_inside(agent, docker):
    need.idle_cpus(2)
    container = docker.run("--cpus", "1", name="elbowroom-test-cpus")
    agent.attached(container)
    docker.call("update", "--cpus", "2", container.name)
    container.burn(2)
    need.of_idle_cpus(lambda: container.online() == 2, container)
    docker.call("update", "--cpus", "1", container.name)
    eventually(lambda: container.online() == 1)


@pytest.mark.native
def test_a_restarted_container_has_its_view_again(agent, docker):
    name = "elbowroom-test-restart"
    docker.call("run", "--detach", "--network", "none", "--cpus", "1", "--volume", "/usr:/usr:ro", "--name", name, "elbowroom-test", "sleep", "3000")  # fmt: skip
    container = docker.call("inspect", "--format", "{{.Id}}", name).stdout.strip()
    eventually(lambda: container in [row["id"] for row in agent.list()])

    def seen():
        return docker.call("exec", name, "getconf", "_NPROCESSORS_ONLN").stdout == "1\n"

    eventually(seen)
    docker.call("restart", "--time", "0", name)
    eventually(seen)
    docker.call("rm", "--force", name)
    eventually(lambda: container not in [row["id"] for row in agent.list()])


@pytest.mark.native
def test_a_cpuset_keeps_its_real_numbers(agent, docker):
    need.cpus(2)
    container = docker.run("--cpuset-cpus", "1", name="elbowroom-test-cpuset")
    agent.attached(container)
    eventually(lambda: container.read("/sys/devices/system/cpu/online").split("\n")[0] == "1")
    assert container.online() == 1


@pytest.mark.native
def test_equal_containers_share_what_there_is(agent, docker):
    need.idle_cpus(2)
    containers = [docker.run(name=f"elbowroom-test-share{n}") for n in range(2)]
    for container in containers:
        agent.attached(container)
        container.burn(CPUS)
    for container in containers:
        need.of_idle_cpus(lambda: container.online_file() == CPUS // 2, *containers)
    containers[1].calm()
    need.of_idle_cpus(lambda: containers[0].online_file() == CPUS, *containers)


@pytest.mark.native
def test_excluded_containers_are_let_alone(new_agent, docker):
    agent = new_agent()
    agent.config = agent.config.replace("exclude = [", 'exclude = ["elbowroom-test-no*", ').replace(", ]", "]")
    agent.start()
    left, taken = (docker.run("--cpus", "1", name=f"elbowroom-test-{word}") for word in ("not", "yes"))
    agent.attached(taken)
    assert not (agent.find(left) or {"attached": False})["attached"]
    assert left.online() == CPUS


@pytest.mark.native
def test_show_and_explain_name_what_people_ask_for(agent, docker):
    container = docker.run("--cpus", "1", "--memory", "300m", name="elbowroom-test-words")
    agent.attached(container)
    for word in (container.name, container.id, container.id[:12]):
        assert agent.json("show", word)["id"] == container.id
    explained = agent.cli("explain", container.name)
    assert explained.returncode == 0 and container.name in explained.stdout
    assert all(len(line) <= 80 for line in agent.cli("list").stdout.splitlines())
