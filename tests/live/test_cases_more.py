"""More cases that were reported against products like this one: pressure that programs wait for, and counters and times that agree."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from kit import cgroup
from kit.cgroup import V2
from kit.container import INSIDE, PYTHON
from kit.wait import PATIENCE, eventually

CPUS = os.cpu_count()
TRIGGER = INSIDE.with_name("trigger.py")
RESOURCES = ("cpu", "io", "memory")


# ---- pressure ----


@pytest.fixture(autouse=True)
def accounted(request):
    if "pressure" in request.node.name and not Path("/proc/pressure/memory").exists():
        pytest.skip("needs a kernel that accounts pressure: CONFIG_PSI, and psi=1 where it is off by default")


def own_files(container):
    """The files of the container's cgroup in a hierarchy of v2, by resource; none where it has no cgroup of its own there."""
    [path] = [line[3:] for line in Path(f"/proc/{container.pid}/cgroup").read_text().splitlines() if line.startswith("0::")]
    root = cgroup.ROOT if V2 else cgroup.ROOT / "unified"
    files = {name: root / path.lstrip("/") / f"{name}.pressure" for name in RESOURCES}
    return files if path != "/" else {}


@pytest.fixture
def start(start):
    """Containers that have a group in a hierarchy of v2 on a host of v1 too, where it has one: it is that of the process that starts them."""
    unified = cgroup.ROOT / "unified"
    if V2 or not unified.is_dir():
        yield start
        return
    group = unified / f"elbowroom-test-live-more-{os.getpid()}"
    group.mkdir()
    containers = []

    def grouped(*options):
        containers.append(start(*options, prefix=("sh", "-c", f'echo 0 >{group}/cgroup.procs && exec "$@"', "sh")))
        return containers[-1]

    yield grouped
    for container in containers:
        container.close()

    def gone():
        try:
            group.rmdir()
        except OSError as error:
            raise AssertionError(f"{group}: {error}") from None
        return True

    eventually(gone)


def total(text):
    return int(text.split("total=")[1].split()[0])


@pytest.mark.parametrize("resource", RESOURCES)
def test_a_trigger_of_pressure_is_accepted_inside(agent, start, resource):
    container = start("--cpus", "1")
    assert container.run("sh", "-c", f'echo "some 100000 2000000" 1<>/proc/pressure/{resource} && echo accepted').strip() == "accepted"


def test_a_trigger_of_pressure_fires_for_the_containers_own_and_for_no_neighbours(agent, start):
    container, neighbour = start("--cpus", "1"), start("--cpus", "1")
    words = [PYTHON, TRIGGER, "/proc/pressure/cpu", "some 100000 2000000"]
    wait = 8 * max(1, PATIENCE / 4)
    if own_files(container):
        neighbour.burn(4)
        eventually(lambda: total(neighbour.read("/proc/pressure/cpu")) > 0)
        assert container.run(*words, "3").split() == ["armed", "silent"]
        neighbour.calm()
    # More than its one CPU can do: some of it always waits.
    container.burn(4)
    assert container.run(*words, str(wait)).split() == ["armed", "fired"]


def test_pressure_is_the_containers_own_where_the_kernel_counts_it(agent, start):
    container = start("--cpus", "1")
    if not own_files(container):
        pytest.skip("needs a container with a cgroup of v2: tests/vm has it")
    container.burn(4)
    for name, file in own_files(container).items():
        before = total(file.read_text())
        inside = total(container.read(f"/proc/pressure/{name}"))
        assert before <= inside <= total(file.read_text()), name


def test_pressure_is_the_machines_again_after_a_detach(agent, start):
    container = start("--cpus", "1")
    mounts = lambda: [line for line in Path(f"/proc/{container.pid}/mountinfo").read_text().splitlines() if "/proc/pressure" in line]
    assert len(mounts()) == len(own_files(container))
    agent.cli("detach", container.name, check=True)
    assert mounts() == []
    agent.cli("attach", container.name, check=True)
    eventually(lambda: len(mounts()) == len(own_files(container)))


def test_an_unprivileged_user_may_do_with_pressure_what_he_may_without_a_view(agent, start):
    words = ["setpriv", "--reuid", "65534", "--clear-groups", "--no-new-privs", PYTHON, str(TRIGGER), "/proc/pressure/memory", "some 100000 2000000", "0"]
    outside = subprocess.run(words, capture_output=True, text=True, cwd="/")
    container = start("--cpus", "1")
    inside = container.run("sh", "-c", '"$@" 2>/dev/null; true', "sh", *words)
    assert inside.split()[:1] == outside.stdout.split()[:1]


# ---- times and counters ----


def seconds(words):
    return float(words.split()[0])


def test_ps_says_how_long_a_process_runs_and_when_it_started(agent, start):
    container = start("--cpus", "1")
    begin = time.time()
    age, *started = container.run("sh", "-c", "sleep 2; exec ps -o etimes=,lstart= -p $$").split()
    assert 1 <= int(age) <= time.time() - begin + 1
    assert abs(time.mktime(time.strptime(" ".join(started))) - begin) <= 2 * PATIENCE


def test_uptime_is_the_time_since_the_boot_that_stat_and_sysinfo_say(agent, start):
    container = start("--cpus", "1")
    look = "import time; print(open('/proc/uptime').read()); print(open('/proc/stat').read()); print(time.clock_gettime(time.CLOCK_BOOTTIME), time.time())"
    uptime, stat, clocks = container.run(PYTHON, "-c", look).split("\n\n", 2)
    [boot] = [int(line.split()[1]) for line in stat.splitlines() if line.startswith("btime")]
    since_boot, now = map(float, clocks.split())
    assert abs(seconds(uptime) - since_boot) < 1 * PATIENCE and abs(now - boot - seconds(uptime)) < 2 + PATIENCE
    # One CPU is shown: it worked or was idle all that time.
    cpu = [int(ticks) / 100 for ticks in stat.splitlines()[0].split()[1:5]]
    assert sum(cpu) == pytest.approx(seconds(uptime), rel=0.05, abs=2 * PATIENCE)


def test_interrupts_and_switches_are_those_of_the_files_beside_stat(agent, start):
    container = start("--cpus", "1")

    def counters():
        lines = (line.split() for line in container.read("/proc/stat").splitlines())
        return {words[0]: int(words[1]) for words in lines if words[0] in ("intr", "ctxt", "softirq")}

    first = counters()
    assert min(first.values()) > 0 and len(first) == 3
    eventually(lambda: all(now > first[name] for name, now in counters().items()))
