"""More cases that were reported against products like this one: counters and times that agree, and triggers of pressure."""

import os
import select
import signal
import threading
import time
from pathlib import Path

import pytest

from kit.container import PYTHON
from kit.process import Process, descendants
from kit.wait import PATIENCE, eventually

# Arms a trigger; for each line of input waits for it, and says what poll(2) gave: 0 where that was nothing.
WAITS = f"""
import os, select, sys
file = os.open("/proc/pressure/cpu", os.O_RDWR | os.O_NONBLOCK)
os.write(file, b"some 50000 500000\\0")
poll = select.poll()
poll.register(file, select.POLLPRI)
for line in sys.stdin:
    print(next((events for _, events in poll.poll({30_000 * PATIENCE:.0f})), 0), flush=True)
"""

# What the kernel's own file answers to everything but waiting; prints what it gave otherwise.
ANSWERS = r"""
import os, select
def errno_of(action, *words):
    try:
        action(*words)
    except OSError as error:
        return os.strerror(error.errno)
def opened():
    return os.open("/proc/pressure/memory", os.O_RDWR)
def events(file):
    poll = select.poll()
    poll.register(file, select.POLLIN | select.POLLPRI)
    return poll.poll(1000)[0][1]
LINE = b"some 100000 2000000\n"
first, second = opened(), opened()
given = [events(first)]
given += [errno_of(os.write, first, line) for line in (b"some 100000\n", b"some 0 2000000\n", b"full 1 10000001\n")]
given += [os.write(first, LINE), errno_of(os.write, first, LINE), os.write(second, LINE), events(first)]
os.close(first)
# A file that is closed leaves its place to another, and there are not many.
for _ in range(100):
    file = opened()
    os.write(file, LINE)
    os.close(file)
files = [opened() for _ in range(50)]
taken = [errno_of(os.write, file, LINE) for file in files]
given += [taken.index(taken[-1]), taken[-1]]
given += [os.stat("/proc/pressure/io").st_mode & 0o777, errno_of(os.chmod, "/proc/pressure/io", 0o600)]
given.append(os.pread(second, 4, 0))
print(given)
"""


CPU = "/sys/devices/system/cpu"


def seconds(words):
    return float(words.split()[0])


def test_ps_says_how_long_a_process_runs_and_when_it_started(agent, start):
    container = start("--cpus", "1")
    begin = time.time()
    age, *started = container.run("sh", "-c", "sleep 2; exec ps -o etimes=,lstart= -p $$").split()
    end = time.time()
    assert 1 <= int(age) <= end - begin + 1
    # It slept for two seconds since, and all of this is in whole ones.
    assert begin - 2 <= time.mktime(time.strptime(" ".join(started))) <= end


def test_uptime_is_the_time_since_the_boot_that_stat_and_sysinfo_say(agent, start):
    container = start("--cpus", "1")
    clock = "print(time.clock_gettime(time.CLOCK_BOOTTIME), time.time(), end='\\n\\n')"
    look = f"import time; {clock}; print(open('/proc/uptime').read()); print(open('/proc/stat').read()); {clock}"
    before, uptime, stat, after = container.run(PYTHON, "-c", look).strip().split("\n\n")
    [boot] = [int(line.split()[1]) for line in stat.splitlines() if line.startswith("btime")]
    # Both clocks were looked at before and after, as far apart as a busy machine has it.
    (earliest, began), (latest, ended) = (map(float, clocks.split()) for clocks in (before, after))
    assert earliest - 1 <= seconds(uptime) <= latest + 1, (before, uptime, after)
    assert began - 2 <= boot + seconds(uptime) <= ended + 2, (before, boot, uptime, after)
    # One CPU is shown: it worked or was idle all that time.
    cpu = [int(ticks) / 100 for ticks in stat.splitlines()[0].split()[1:5]]
    assert sum(cpu) == pytest.approx(seconds(uptime), rel=0.05, abs=2 * PATIENCE)


CHILDREN = """
import os
for _ in range(300):
    child = os.fork()
    if child == 0: os._exit(0)
    began = open(f"/proc/{child}/stat").read().rpartition(")")[2].split()[19]
    print(began, open("/proc/uptime").read().split()[0].replace(".", ""))
    os.waitpid(child, 0)
"""


def test_no_process_began_later_than_uptime_says(agent, start):
    container = start("--cpus", "1")
    times = [tuple(map(int, line.split())) for line in container.run(PYTHON, "-c", CHILDREN).splitlines()]
    # `ps` of Debian 12 subtracts without a sign: it shows such a process as a million years old.
    assert len(times) == 300 and all(began <= now for began, now in times), [pair for pair in times if pair[0] > pair[1]][:3]


def test_interrupts_and_switches_are_those_of_the_files_beside_stat(agent, start):
    container = start("--cpus", "1")

    def counters():
        lines = (line.split() for line in container.read("/proc/stat").splitlines())
        return {words[0]: int(words[1]) for words in lines if words[0] in ("intr", "ctxt", "softirq")}

    first = counters()
    assert min(first.values()) > 0 and len(first) == 3
    eventually(lambda: all(now > first[name] for name, now in counters().items()))


def with_own_pressure(agent, container):
    """The container, when triggers of its own pressure can be armed in it."""
    agent.attached(container)
    tops = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    if not any(Path(top + group, "cpu.pressure").exists() for top in tops for group in container.cgroups):
        pytest.skip("needs pressure of cgroups: cgroup v2, also beside v1, and a kernel with PSI")
    # Beside v1 a container is found by a cgroup that has none.
    eventually(lambda: container.run(PYTHON, "-c", "import os; print(os.open('/proc/pressure/io', os.O_RDWR))"))
    return container


@pytest.fixture
def armed(agent, start):
    """A container that gets a fifth of a CPU, and can have triggers of its own pressure."""
    return with_own_pressure(agent, start("--cpus", "0.2"))


def test_a_psi_trigger_of_a_shell_is_taken(armed):
    lines = [f"echo '{line} 2000000' {how} /proc/pressure/{name}" for name, line, how in (
        ("memory", "some 100000", "1<>"), ("cpu", "full 100000", ">"), ("io", "some 2000000", ">>"))]
    armed.run("sh", "-ec", "; ".join(lines))
    assert armed.read("/proc/pressure/memory").split()[0] == "some"


def test_a_psi_trigger_of_a_docker_container_is_taken(agent, docker):
    container = with_own_pressure(agent, docker.run(name="elbowroom-test-psi"))
    container.run("sh", "-c", "echo 'some 100000 2000000' 1<>/proc/pressure/memory")


def test_pressure_files_answer_as_the_kernels_do(armed):
    error = select.POLLIN | select.POLLPRI | select.POLLERR
    inval, busy, full = "Invalid argument", "Device or resource busy", "No space left on device"
    expect = [error, inval, inval, inval, 20, busy, 20, select.POLLIN, 7, full, 0o666, "Operation not permitted", b"some"]
    assert eval(armed.run(PYTHON, "-c", ANSWERS)) == expect
    # Reads still give whole pages, and totals never fall.
    totals = [int(armed.read("/proc/pressure/cpu").split()[4].split("=")[1]) for _ in range(3)]
    assert totals == sorted(totals)


def test_a_psi_trigger_wakes_who_waits_when_tasks_of_its_container_wait(armed):
    wait = armed.program(PYTHON, "-c", WAITS)
    armed.burn(2)
    for _ in range(2):
        assert wait() == [select.POLLPRI]


def test_a_psi_trigger_outlives_the_view_server(agent, armed):
    wait = armed.program(PYTHON, "-c", WAITS)
    before = set(descendants(armed.pid))
    armed.burn(2)
    burners = set(descendants(armed.pid)) - before
    assert wait() == [select.POLLPRI]
    for pid in burners:
        os.kill(pid, signal.SIGSTOP)
    given = []
    waiter = threading.Thread(target=lambda: given.append(wait()))
    waiter.start()
    for _ in range(3):
        victim = Process(agent.pid("view_server"))
        agent.remember()
        victim.kill()
        eventually(lambda: agent.has_another("view_server", than=victim.pid))
    for pid in burners:
        os.kill(pid, signal.SIGCONT)
    waiter.join(60 * PATIENCE)
    assert given == [[select.POLLPRI]]


def test_what_an_engine_masks_of_every_cpu_and_no_view_has_is_no_news(agent, docker, tmp_path):
    # Engines since 2025 cover thermal_throttle of each CPU: on a large machine that is a hundred mounts in every container.
    masked = [path for path in Path(CPU).glob("cpu[0-9]*/hotplug") if path.is_dir()]
    if not masked:
        pytest.skip("needs a kernel with CPU hotplug: a directory of each CPU that views do not have")
    (tmp_path / "over/mine").mkdir(parents=True)
    options = [word for path in masked for word in ("--volume", f"{tmp_path}/over:{path}:ro")]
    container = docker.run("--cpus", "1", *options, name="elbowroom-test-masked")
    agent.attached(container)
    eventually(lambda: container.online_file() == 1)
    assert not [line for line in agent.json("show", container.name)["missing"] if "hotplug" in line]
    assert "hidden by its view" not in agent.log.read_text()
    assert "hotplug" not in container.run("ls", f"{CPU}/cpu0")
    assert agent.cli("detach", container.name).returncode == 0
    assert [container.run("ls", path) for path in masked] == ["mine\n"] * len(masked)
