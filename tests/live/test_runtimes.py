"""Unmodified programs, and what they make of their view."""

import os
import shutil

import pytest

from kit import need, programs
from kit.container import PYTHON
from kit.wait import eventually

CPUS = os.cpu_count()
MIB = 1 << 20
JAVAS = programs.virtual_machines()


FIRST, *OTHERS = JAVAS or ["none"]


@pytest.fixture(params=[FIRST, *(pytest.param(other, marks=pytest.mark.native) for other in OTHERS)])
def java(request, sees_java):
    """A command that starts Sees.java in one of the virtual machines of this host."""
    if request.param not in JAVAS:
        pytest.skip("needs a JDK below /usr/lib/jvm: tools/setup test")
    return [JAVAS[request.param], "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", sees_java, "Sees"]


@pytest.fixture
def pair(agent, start):
    """Two containers with equal shares and no limits. The first is busy, so it sees every CPU the second leaves it."""
    need.idle_cpus(2)
    container, neighbour = start(), start()
    container.burn(CPUS)
    eventually(container.shows_what_it_has)
    return container, neighbour


def agrees(container, seen, least=1):
    """Whether a program sees as many CPUs as its container really gets."""
    return seen() == max(least, container.shows_what_it_has())


def test_a_jvm_follows_a_neighbours_work(pair, java):
    container, neighbour = pair
    sees = container.program(*java)
    eventually(lambda: agrees(container, lambda: sees()[0]))
    neighbour.burn(CPUS)
    eventually(lambda: sees()[0] <= CPUS // 2)
    neighbour.calm()
    eventually(lambda: agrees(container, lambda: sees()[0]))


def test_a_jvm_sizes_itself_by_its_view(agent, start, java):
    container = start("--cpus", "1", "--memory", "400MiB")
    processors, memory, heap = container.program(*java)()
    assert processors == 1
    assert memory == 400 * MIB
    assert heap < 200 * MIB


@pytest.mark.native
def test_a_jvm_in_docker_follows_an_update(agent, docker, java):
    container = docker.run("--cpus", "1", "--memory", "400m", "--volume", f"{programs.BUILT}:{programs.BUILT}:ro", name="elbowroom-test-java")
    agent.attached(container)
    sees = container.program(*java)
    eventually(lambda: sees()[:2] == [1, 400 * MIB])
    docker.call("update", "--memory", "500m", "--memory-swap", "500m", container.name)
    eventually(lambda: sees()[1] == 500 * MIB)


@pytest.mark.native
def test_go_follows_a_neighbours_work(pair, sees_go):
    need.cpus(4)  # Go never goes below two
    container, neighbour = pair
    sees = container.program(sees_go)
    eventually(lambda: agrees(container, lambda: sees()[0], least=2), within=20)
    neighbour.burn(CPUS)
    eventually(lambda: sees()[0] <= CPUS // 2, within=20)
    neighbour.calm()
    eventually(lambda: agrees(container, lambda: sees()[0], least=2), within=20)


@pytest.mark.native
def test_python_counts_the_cpus_of_its_view(agent, start):
    container = start("--cpus", "1")
    assert container.run(PYTHON, "-c", "import os; print(os.cpu_count(), os.sysconf('SC_NPROCESSORS_ONLN'))") == "1 1\n"


@pytest.mark.native
def test_a_c_program_follows_a_neighbours_work(pair):
    container, neighbour = pair
    neighbour.burn(CPUS)
    eventually(lambda: container.online() <= CPUS // 2)
    neighbour.calm()
    eventually(lambda: agrees(container, container.online))


def test_node_sizes_itself_by_its_view(agent, start):
    node = shutil.which("node")
    if not node:
        pytest.skip("needs node, which is not installed")
    container = start("--cpus", "1", "--memory", "400MiB")
    cpus, memory, *_ = container.program(node, os.path.join(programs.SOURCES, "sees.js"))()
    assert (cpus, memory) == (1, 400 * MIB)
