"""Ways into a program besides files: the view page, what `elbowroom run` preloads, and environment variables."""

import ctypes
import json
import os
import subprocess
from pathlib import Path

import pytest

from kit import cgroup, jvm, programs
from kit.container import cpu_list
from kit.memory import file
from kit.process import Process
from kit.wait import PATIENCE, eventually

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = "/sys/devices/system/cpu/elbowroom"
MIB = 1 << 20
PYTHON = ["env", f"PYTHONPATH={REPOSITORY}/python", "/usr/bin/python3"]
# Answers each line with effective CPU and memory, 0 where there is no view.
NUMBERS = "import elbowroom, sys\nfor line in sys.stdin: print(elbowroom.cpus() or 0, elbowroom.memory() or 0, flush=True)"


def page_of(container):
    return json.loads(container.run(*PYTHON, "-m", "elbowroom"))


def reads_page(container):
    """A program in the container that has the page mapped from its first answer on."""
    return container.program(*PYTHON, "-c", NUMBERS)


def regions(compiler):
    try:
        return programs.c("regions", compiler, "-fopenmp")
    except programs.Missing as missing:
        pytest.skip(f"needs {missing}")


def test_the_last_cpu_is_within_what_programs_size_arrays_by(agent, start):
    """By sysconf, as jemalloc's percpu_arena does, and by the highest possible number, as TCMalloc does."""
    last = max(os.sched_getaffinity(0))
    script = (
        "import ctypes, os\n"
        "print(os.sysconf('SC_NPROCESSORS_CONF'), end=' ')\n"
        f"os.sched_setaffinity(0, [{last}])\n"
        "print(ctypes.CDLL(None).sched_getcpu(), open('/sys/devices/system/cpu/possible').read())\n"
    )
    container = start("--libc", "--cpus", "1")
    configured, cpu, possible = container.run("/usr/bin/python3", "-c", script).split()
    assert int(cpu) == last < int(configured)
    assert max(cpu_list(possible)) >= last
    present = container.read("/sys/devices/system/cpu/present")
    assert len(cpu_list(present)) == agent.view(container)["cpus_upper"] == 1
    assert container.read("/sys/devices/system/cpu/online").strip() == str(min(os.sched_getaffinity(0)))
    assert container.run("test", "-d", "/sys/devices/system/cpu/cpu0") == ""


def test_a_program_of_libomp_starts_where_a_quota_shows_fewer_cpus_than_its_affinity(agent, start):
    """Debian's, compiled with assertions, ended where fewer CPUs were possible than it may run on; two CPUs are too few to see it."""
    seen = start("--cpus", "1").program(regions("clang"))()
    assert seen[0] <= len(os.sched_getaffinity(0)), seen


# ---- the page ----


def test_the_page_says_what_the_files_say(agent, start):
    container = start("--cpus", "1", "--memory", "256MiB")
    page, view = page_of(container), agent.view(container)
    assert (page["cpus"], page["memory"], page["memory_most"]) == (view["cpus"], view["memory"], view["memory_hard"])
    assert page["cpus"] == container.online() and page["memory"] == container.mem_total()


def test_a_program_that_has_it_mapped_sees_each_change(agent, start):
    container = start("--memory", "256MiB")
    ask = reads_page(container)
    assert ask()[1] == 256 * MIB
    cgroup.limit_memory(agent.row(container)["path"], 300 * MIB)
    eventually(lambda: ask()[1] == 300 * MIB)


def test_a_java_program_that_has_it_mapped_sees_each_change(agent, start):
    machines = jvm.virtual_machines()
    if "17" not in machines or not jvm.AGENT.exists():
        pytest.skip(f"needs JDK 17 below /usr/lib/jvm, and {jvm.AGENT}: make java")
    java, source = machines["17"], programs.SOURCES / "Page.java"
    programs.build("Page.class", source, [java.with_name("javac"), "--release", "17", "-cp", jvm.AGENT, "-d", programs.BUILT, source])
    container = start("--cpus", "1", "--memory", "256MiB")
    ask = container.program(java, "-XX:TieredStopAtLevel=1", "-cp", f"{jvm.AGENT}:{programs.BUILT}", "Page")
    assert ask() == [1, 256 * MIB]
    cgroup.limit_memory(agent.row(container)["path"], 300 * MIB)
    eventually(lambda: ask() == [1, 300 * MIB])
    assert agent.stop() == 0
    assert ask() == [0, 0]


@pytest.fixture
def elastic():
    """Words that start Elastic.java with the agent for HotSpot and a heap of 2 GiB; it does what `commands` say, then waits."""
    machines = jvm.virtual_machines()
    if "17" not in machines or not jvm.AGENT.exists():
        pytest.skip(f"needs JDK 17 below /usr/lib/jvm, and {jvm.AGENT}: make java")
    jvm.programs()
    java = f"{machines['17']} -XX:+UseParallelGC -Xms16m -Xmx2g -javaagent:{jvm.AGENT} -cp {programs.BUILT} Elastic"
    return lambda commands, then="": ["sh", "-c", f"(echo '{commands}'; {then or ':'}) | {java}"]


@pytest.mark.native
def test_a_heap_that_does_not_fit_is_bounded_before_the_program_fills_it(agent, start, elastic):
    # This takes less than a second; a heap without a bound is larger than the container by then, which is killed.
    container = start("--memory", "256MiB")
    assert container.run(*elastic("renew 1000")) == f"{90 << 13}\n"


@pytest.mark.native
def test_a_heap_that_needs_more_than_its_view_gets_it(agent, start, elastic):
    container = start("--memory", "600MiB", "--memory-reservation", "300MiB")
    finish = container.background(*elastic("hold 300", then="cat"))
    eventually(lambda: agent.view(container)["memory"] > 350 * MIB, within=60)
    assert finish() == "held\n"


def test_a_container_has_no_page_but_its_own_and_cannot_write_it(agent, start):
    one, other = start("--memory", "256MiB"), start("--memory", "300MiB")
    assert (page_of(one)["memory"], page_of(other)["memory"]) == (256 * MIB, 300 * MIB)
    assert "Read-only" in one.run("sh", "-c", f"(echo x > {PAGE}) 2>&1; :")


def test_root_of_a_user_namespace_cannot_make_the_page_writable(agent, start):
    """In a mount namespace of its own, where what was read-only stays so; in the container's own, root needs no user namespace to harm
    its own page (docs/decisions/0009-view-page.md)."""
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("needs user namespaces")
    container = start("--memory", "256MiB")
    said = container.run(*words, f"mount -o remount,bind,rw {PAGE} 2>/dev/null && echo remounted; (echo x > {PAGE}) 2>&1; :")
    assert "remounted" not in said and "Read-only" in said, said
    assert page_of(container)["memory"] == 256 * MIB


def test_a_container_of_an_engine_has_the_page_too(agent, docker):
    container = docker.run("--memory", "300m", name="elbowroom-test-page")
    agent.attached(container)
    assert container.run("head", "-c", "7", PAGE) == "elbowrm"


@pytest.mark.native
def test_a_page_of_an_agent_that_was_killed_stays_until_the_next_one_takes_over(new_agent, start):
    agent = new_agent().start()
    container = start("--memory", "256MiB")
    ask = reads_page(container)
    assert ask()[1] == 256 * MIB
    path = agent.attached(container)["path"]
    agent.destroy()
    assert ask()[1] == 256 * MIB
    cgroup.limit_memory(path, 300 * MIB)
    successor = new_agent().start()
    eventually(lambda: ask()[1] == 300 * MIB)
    assert successor.stop() == 0


@pytest.mark.native
def test_after_a_clean_stop_no_program_is_told_old_numbers(agent, start):
    container = start("--memory", "256MiB")
    ask = reads_page(container)
    assert ask()[1] == 256 * MIB
    agent.stop()
    assert ask() == [0, 0]
    assert "elbowroom" not in container.run("ls", "/sys/devices/system/cpu")


@pytest.mark.native
def test_a_container_that_is_let_alone_is_told_so(agent, start):
    container = start("--memory", "256MiB")
    agent.attached(container)
    ask = reads_page(container)
    assert ask()[1] == 256 * MIB
    assert agent.cli("detach", container.name).returncode == 0
    assert ask() == [0, 0]
    assert agent.cli("attach", container.name).returncode == 0
    eventually(lambda: ask()[1] == 256 * MIB)


# ---- what is preloaded ----


@pytest.mark.native
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_regions_of_a_running_program_are_as_wide_as_the_view(agent, start, compiler):
    program = regions(compiler)
    container = start("--openmp")
    ask = container.program("env", "OMP_NUM_THREADS=64", program)

    def follows():
        return ask()[0] == agent.view(container)["cpus"]

    eventually(follows)
    cgroup.limit_cpus(agent.row(container)["path"], 1)
    eventually(lambda: agent.view(container)["cpus"] == 1 and ask()[0] == 1)
    # Whether it was asked by this or not: arrays are sized by what does not change.
    assert ask()[10] == 64


@pytest.mark.native
def test_programs_that_read_no_file_get_their_answers_from_the_view(agent, start):
    container = start("--cpus", "1", "--memory", "256MiB", "--libc")
    script = "import os; print(len(os.sched_getaffinity(0)), os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGESIZE'))"
    assert container.run("/usr/bin/python3", "-c", script).split() == ["1", str(256 * MIB)]


@pytest.mark.native
def test_what_is_preloaded_outlives_the_agent(agent, start):
    container = start("--openmp", "--libc")
    agent.stop()
    # The dynamic linker complains, at each start of a program, of what it cannot preload.
    assert container.run("sh", "-c", "cat /dev/null 2>&1") == ""


def run(binary, *words, **environment):
    name = f"elbowroom-test-live-env-{os.getpid()}"
    ours = ("OMP_", "GOMP_", "KMP_", "GOMAXPROCS", "GOMEMLIMIT", "NODE_OPTIONS", "MALLOC_ARENA", "PYTHON_CPU", "LD_PRELOAD", "MEMORY_PRESSURE")
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith(ours)}, **environment}
    return subprocess.run(
        [binary, *words[:2], "run", "--name", name, *words[2:]], env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60 * PATIENCE,
    )  # fmt: skip


def variables(done):
    assert (done.returncode, done.stderr) == (0, "")
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


@pytest.mark.native
def test_the_users_own_settings_stay(agent, binary, run_dir):
    own = "/lib/x86_64-linux-gnu/libm.so.6"
    if not os.path.exists(own):
        pytest.skip(f"needs {own}: a library to preload that every program can bear")
    seen = variables(run(binary, "--run-dir", run_dir, "--openmp", "--", "env", LD_PRELOAD=own, GOMP_SPINCOUNT="7"))
    assert seen["LD_PRELOAD"].split(":")[0] == own and seen["LD_PRELOAD"].endswith("/libelbowroom-openmp.so")
    assert seen["GOMP_SPINCOUNT"] == "7"
    quiet = variables(run(binary, "--run-dir", run_dir, "--openmp", "--", "env", OMP_WAIT_POLICY="active"))
    assert not {"GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & quiet.keys()


@pytest.mark.native
def test_without_being_asked_nothing_is_added(agent, binary, run_dir):
    seen = variables(run(binary, "--run-dir", run_dir, "--", "env"))
    assert not [name for name in seen if name.startswith(("LD_PRELOAD", "GOMP", "KMP", "OMP", "GOMAX"))]


# ---- memory pressure ----

KIT = Path(__file__).with_name("kit")


def watch(run_dir):
    """The environment of a program of `run`, which has the host's /dev."""
    return {"MEMORY_PRESSURE_WATCH": f"{run_dir}/pressure/elbowroom-pressure", "MEMORY_PRESSURE_WRITE": "Cg=="}


def watches(seen):
    return {name: value for name, value in seen.items() if name.startswith("MEMORY_PRESSURE")}


@pytest.mark.native
def test_a_program_with_a_view_is_told_what_to_watch_unless_its_user_has(agent, binary, run_dir):
    told = lambda *words, **users: watches(variables(run(binary, "--run-dir", run_dir, *words, "--", "env", **users)))
    assert told() == watch(run_dir)
    for users in ({"MEMORY_PRESSURE_WATCH": "/dev/null"}, {"MEMORY_PRESSURE_WRITE": "eA=="}):
        assert told(**users) == users
    assert told("--no-views") == told("--env-only") == {}


def test_where_memory_is_not_governed_there_is_nothing_to_watch(new_agent, binary, run_dir):
    new_agent('[memory]\nmode = "off"\n').start()
    assert watches(variables(run(binary, "--run-dir", run_dir, "--", "env"))) == {}


@pytest.mark.parametrize("program", ["watching.py", "sd_watching.py"])
def test_a_container_that_waits_for_memory_is_asked_for_it_in_every_mode_and_by_the_next_policy_process_too(
    agent, disk, start, background, tmp_path, program
):
    # The disk before the container: what it keeps mounted ends first.
    if program == "sd_watching.py" and not hasattr(ctypes.CDLL("libsystemd.so.0"), "sd_event_add_memory_pressure"):
        pytest.skip("needs libsystemd 254: set LD_LIBRARY_PATH to where there is one")
    log, reads = tmp_path / "log", file(disk, "reads", 128)
    container = start("--memory", "48MiB")
    background(container, f"/usr/bin/python3 {KIT / program}", log)
    eventually(lambda: "watching" in log.read_text(), within=20)
    eventually(lambda: "asked" in log.read_text())  # by itself
    stop = container.background("sh", "-c", f"(echo 20000; cat) | /usr/bin/python3 {KIT / 'paging.py'} {reads}")
    asked = lambda more: eventually(lambda: log.read_text().count("asked") >= more, within=60, every=0.2)
    asked(3)
    Process(agent.pid("policy")).kill()
    asked(log.read_text().count("asked") + 2)
    assert "end" not in log.read_text()
    stop()


@pytest.mark.native
def test_limits_in_words_need_no_agent(binary, tmp_path):
    words = ("--run-dir", tmp_path, "--env-only", "--cpus", "1.5", "--memory", "512MiB", "--", "env")
    seen = variables(run(binary, *words, OMP_NUM_THREADS="9"))
    assert seen["OMP_NUM_THREADS"] == "9", "the user's own"
    assert (seen["GOMAXPROCS"], seen["PYTHON_CPU_COUNT"], seen["MALLOC_ARENA_MAX"]) == ("2", "2", "16")
    assert seen["MALLOC_CONF"] == "narenas:8" and "MEMORY_PRESSURE_WATCH" not in seen
    assert seen["NODE_OPTIONS"] == "--max-old-space-size=384" and "LD_PRELOAD" not in seen


@pytest.mark.native
@pytest.mark.parametrize("flags", [("--env-only", "--openmp"), ("--no-views", "--libc"), ("--no-views", "--env-only")])
def test_a_bad_pair_of_flags_is_refused(binary, tmp_path, flags):
    done = run(binary, "--run-dir", tmp_path, *flags, "--", "true")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
