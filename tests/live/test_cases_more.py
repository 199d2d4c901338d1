"""More cases that were reported against products like this one: counters and times that agree."""

import time

import pytest

from kit.container import PYTHON
from kit.wait import PATIENCE, eventually


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
