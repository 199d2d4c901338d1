"""Labels that count when a container is made: libraries that are preloaded, the agent for HotSpot, words for its environment."""

import subprocess

import pytest

from kit import programs
from kit.wait import eventually

MIB = 1 << 20
LIBRARY = "/sys/fs/fuse/connections/libelbowroom-{}.so"
JAR = "/sys/fs/fuse/connections/elbowroom-agent.jar"
AFFINITY = ["/usr/bin/python3", "-c", "import os; print(len(os.sched_getaffinity(0)))"]


def labels(*names, **values):
    """Options of `docker run` for the wrapper runtime, with these labels."""
    words = [f"{name}=on" for name in names] + [f"{name}={value}" for name, value in values.items()]
    return ["--runtime", "elbowroom", *(word for pair in words for word in ("--label", f"elbowroom.dev/{pair}"))]


def variables(docker, *options):
    return dict(line.split("=", 1) for line in docker.run_once("env", options=options).splitlines())


def reached(agent, container, command):
    """The report on what reaches the processes of that name; at least one must be there."""
    processes = agent.json("explain", container.name)["reached"]["processes"]
    found = [process for process in processes if process["command"] == command]
    assert found, f"no {command} among {[process['command'] for process in processes]}"
    return found


def test_a_labelled_container_is_answered_from_its_view_from_its_first_instruction(agent, docker):
    assert docker.run_once(*AFFINITY, options=[*labels("libc"), "--cpus", "1"]) == "1\n"


def test_what_is_mounted_cannot_be_written_and_goes_with_the_container(agent, docker):
    script = f"cat {LIBRARY.format('openmp')} | head -c 4 | tail -c 3; (echo x > {LIBRARY.format('x')}) 2>&1; :"
    out = docker.run_once("sh", "-c", script, options=labels("openmp"))
    assert out.startswith("ELF") and "Read-only" in out
    read_only = docker.run("--read-only", *labels("libc"), name="elbowroom-test-read-only")
    assert "libelbowroom" in read_only.read("/proc/self/maps")


def test_the_makers_own_settings_stay(agent, docker):
    own = ["--env", "LD_PRELOAD=/lib/x86_64-linux-gnu/libm.so.6", "--env", "JAVA_TOOL_OPTIONS=-Xmx64m", "--env", "GOMAXPROCS=7"]
    limits = ["--cpus", "1.5", "--memory", "512m"]
    seen = variables(docker, *labels("java", "openmp", "libc", "env"), *own, *limits)
    assert seen["LD_PRELOAD"] == f"/lib/x86_64-linux-gnu/libm.so.6:{LIBRARY.format('openmp')}:{LIBRARY.format('libc')}"
    assert seen["JAVA_TOOL_OPTIONS"] == f"-Xmx64m -javaagent:{JAR} -XX:ParallelGCThreads=2"
    assert (seen["GOMAXPROCS"], seen["OMP_NUM_THREADS"], seen["GOMP_SPINCOUNT"]) == ("7", "2", "40000")
    assert "PYTHON_CPU_COUNT" not in seen  # it follows the view
    assert seen["MALLOC_CONF"] == "narenas:8" and seen["MEMORY_PRESSURE_WATCH"] == "/dev/elbowroom-pressure"
    assert seen["NODE_OPTIONS"] == "--max-old-space-size=384"


@pytest.mark.parametrize("words", [(), ("views",), ("nothing",)])
def test_who_asks_for_nothing_is_given_nothing(agent, docker, words):
    ours = ("LD_PRELOAD", "JAVA_TOOL", "GOMP", "KMP", "OMP", "GOMAX", "NODE_OPT", "MALLOC_")
    seen = variables(docker, *labels(*words), "--cpus", "1")
    assert not [name for name in seen if name.startswith(ours)]


def test_who_is_never_asked_for_memory_is_not_told_to_watch(new_agent, docker):
    agent = new_agent('[memory]\nmode = "off"\n').start()
    seen = variables(docker, *labels("env"), "--cpus", "1")
    assert seen["OMP_NUM_THREADS"] == "1" and "MEMORY_PRESSURE_WATCH" not in seen
    assert agent.stop() == 0


def test_the_operators_word_goes_first(new_agent, docker):
    agent = new_agent(containers='labels = "none"').start()
    assert "LD_PRELOAD" not in variables(docker, *labels("libc", "env"), "--cpus", "1")
    assert agent.stop() == 0


def test_a_container_without_a_view_can_have_words(agent, docker):
    seen = variables(docker, *labels("env", "libc", views="off"), "--cpus", "1")
    assert seen["GOMAXPROCS"] == "1" and "LD_PRELOAD" not in seen


def test_without_an_agent_a_labelled_container_starts_as_ever(docker):
    seen = variables(docker, *labels("java", "openmp", "libc", "env"), "--cpus", "1")
    assert not seen.keys() & {"LD_PRELOAD", "JAVA_TOOL_OPTIONS", "GOMAXPROCS"}


def test_a_bundle_that_was_made_with_an_agent_runs_without_one(new_agent, runc, runtime):
    """The environment in it names the libraries, and the hook has them itself."""
    runc.runtime = str(runtime)
    cgroup = "/elbowroom-test-live-launch"
    agent = new_agent(containers=f'cgroups = ["{cgroup}"]').start()
    annotations = {"elbowroom.dev/libc": "on"}
    first = runc.run("elbowroom-test-launch", cgroup, cpu=(100_000, 100_000), annotations=annotations)
    assert first.run(*AFFINITY) == "1\n"
    runc.clear()
    assert agent.stop() == 0
    second = runc.again("elbowroom-test-launch")
    assert second.run("sh", "-c", "cat /dev/null 2>&1; cat /proc/self/maps | grep -c libelbowroom-libc.so").strip() != "0"


def test_openmp_regions_of_a_labelled_container_follow_its_view(agent, docker):
    try:
        program = programs.c("regions", "gcc", "-fopenmp")
    except programs.Missing as missing:
        pytest.skip(f"needs {missing}")
    share = ["--volume", f"{programs.BUILT}:{programs.BUILT}:ro", "--env", "OMP_NUM_THREADS=64"]
    container = docker.run(*labels("openmp"), *share, "--cpus", "1", name="elbowroom-test-openmp")
    ask = container.program(program)
    eventually(lambda: ask()[0] == agent.view(container)["cpus"] == 1)
    [process] = reached(agent, container, "regions-gcc-fop")
    assert process["openmp"] and process["page"] and not process["libc"]
    assert process["files"] > 5 and process["told"] == ["GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS"]


def test_a_virtual_machine_in_a_labelled_container_has_the_agent(agent, docker, sees_java):
    machines = programs.virtual_machines()
    if not machines:
        pytest.skip("needs a JDK below /usr/lib/jvm: tools/setup test")
    share = ["--volume", f"{programs.BUILT}:{programs.BUILT}:ro"]
    container = docker.run(*labels("java"), *share, "--memory", "400m", name="elbowroom-test-java-label")
    sees = container.program(next(iter(machines.values())), "-cp", sees_java, "Sees")
    assert sees()[1] == 400 * MIB
    eventually(lambda: all(process["java"] and process["java_native"] for process in reached(agent, container, "java")))


@pytest.mark.parametrize("hardened", [["--read-only"], ["--tmpfs", "/tmp:noexec"]])
def test_a_hardened_container_has_the_native_half_of_the_agent_too(agent, docker, sees_java, hardened):
    machines = programs.virtual_machines()
    if not machines:
        pytest.skip("needs a JDK below /usr/lib/jvm: tools/setup test")
    share = ["--volume", f"{programs.BUILT}:{programs.BUILT}:ro"]
    container = docker.run(*labels("java"), *hardened, *share, "--memory", "400m", name="elbowroom-test-java-hard")
    container.program(next(iter(machines.values())), "-cp", sees_java, "Sees")()
    eventually(lambda: all(process["java"] and process["java_native"] for process in reached(agent, container, "java")))


# ---- explain ----


def test_explain_says_what_reaches_each_process(agent, start):
    container = start("--libc", "--cpus", "1")
    container.program("/usr/bin/python3", "-c", "import os, sys\nfor line in sys.stdin: print(len(os.sched_getaffinity(0)), flush=True)")()
    [*_, last] = reached(agent, container, "python3")
    assert last["libc"] and last["page"] and last["files"] > 5 and not last["openmp"] and not last["java"]
    text = agent.cli("explain", container.name).stdout
    assert "what reaches its processes" in text and "python3" in text


def test_explain_without_any_surface_says_so(new_agent, hand_made):
    name = "elbowroom-test-live-bare"
    agent = new_agent(containers=f'cgroups = ["/{name}"]').start()
    group = hand_made(name)
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            group.enter(process.pid)
            eventually(lambda: agent.cli("show", f"/{name}").returncode == 0)
            [bare] = agent.json("explain", f"/{name}")["reached"]["processes"]
            assert (bare["command"], bare["files"], bare["page"], bare["libc"]) == ("sleep", 0, False, False)
        finally:
            process.kill()


# A thousand children, which end with their parent (PR_SET_PDEATHSIG).
CROWD = r"""
import ctypes, os, sys, time
for n in range(1000):
    if not os.fork():
        ctypes.CDLL(None).prctl(1, 9)
        open("/proc/self/comm", "w").write("a\n\x1b[2J%d" % (n % 7))
        time.sleep(600)
for line in sys.stdin:
    print(1, flush=True)
"""


def test_explain_of_a_thousand_processes_with_hostile_names_is_short(agent, start):
    container = start()
    container.program("/usr/bin/python3", "-c", CROWD)()
    done = agent.cli("explain", container.name)
    assert done.returncode == 0, done.stderr
    section = done.stdout.split("what reaches its processes")[1]
    assert "\x1b" not in section and len(section.splitlines()) < 50
    assert "more processes" in section
    assert agent.json("explain", container.name)["reached"]["more"] > 400
