"""The agent for HotSpot in unmodified virtual machines. ELBOWROOM_TEST_STRESS_SECONDS is for `make -C java stress`."""

import itertools
import os
import re
import shutil
import subprocess
import zipfile

import pytest

from kit import jvm
from kit.page import Page
from kit.programs import Missing
from kit.wait import PATIENCE, eventually

MIB = 1 << 20
VERSIONS = ("11", "17", "21", "25")
FLAGS = {
    "parallel": ["-XX:+UseParallelGC"],
    "g1": ["-XX:+UseG1GC"],
    "shenandoah": ["-XX:+UseShenandoahGC"],
    "serial": ["-XX:+UseSerialGC"],
    "z": ["-XX:+UseZGC"],
    "z-generational": ["-XX:+UseZGC", "-XX:+ZGenerational"],
}
# Collectors with threads to govern that every version has.
GOVERNED = ("parallel", "g1", "shenandoah")
SECONDS = int(os.environ.get("ELBOWROOM_TEST_STRESS_SECONDS", "0"))
ONLY = os.environ.get("ELBOWROOM_TEST_STRESS_ONLY", "").split()
# A program that starts on a busy machine takes its time.
SLOWLY = 60


@pytest.fixture(scope="session")
def machines():
    """The virtual machines of this host by version, when all is built that these tests need."""
    if not jvm.AGENT.exists():
        pytest.fail(f"{jvm.AGENT} is not there: run 'make -C java'")
    try:
        jvm.programs()
    except Missing as missing:
        pytest.skip(f"needs {missing}")
    return jvm.virtual_machines()


@pytest.fixture(params=VERSIONS)
def java(request, machines):
    """A virtual machine of each version."""
    if request.param not in machines:
        pytest.skip(f"needs JDK {request.param} below /usr/lib/jvm, or its home in ELBOWROOM_TEST_JVMS")
    return machines[request.param]


@pytest.fixture
def java17(machines):
    if "17" not in machines:
        pytest.skip("needs JDK 17 below /usr/lib/jvm: tools/setup test")
    return machines["17"]


def can(java, flags):
    """Whether this build of the machine has the collector, and does not say that it is another by now."""
    words = [java, "-XX:+UnlockExperimentalVMOptions", *flags, "-version"]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode == 0 and "warning" not in done.stdout + done.stderr


@pytest.fixture
def view(hand_made, tmp_path):
    """Makes views: `view(cpus=8, memory=1 << 30)`."""

    made = itertools.count()

    def make(cpus, memory):
        number = next(made)
        directory = tmp_path / f"view{number}"
        directory.mkdir()
        return jvm.View(hand_made(f"elbowroom-test-live-java-{os.getpid()}-{number}"), directory, cpus, memory)

    return make


@pytest.fixture
def start(view, tmp_path):
    """Starts Elastic.java with the agent: `start(java, "g1", "-Xmx400m", cpus=8, memory=1 << 30)`. It must end with 0."""
    started = []

    def new(java, collector, *options, cpus=8, memory=1 << 30, agent="jmx=0,period-ms=50", page=None):
        if not can(java, FLAGS[collector]):
            pytest.skip(f"needs a build with {collector}: {java} has none")
        words = [*FLAGS[collector], "-XX:ParallelGCThreads=8", "-XX:ConcGCThreads=4", *options]
        words += [f"-javaagent:{jvm.AGENT}={agent}"] if agent else []
        started.append(jvm.Machine(view(cpus, memory), java, *words, directory=tmp_path, page=page))
        return started[-1]

    yield new
    for machine in started:
        code = machine.close()
        assert code == 0, f"ended with {code}: {machine.errors.read_text()}"


def gives(machine, threads):
    """Collects, and looks whether `threads` GC threads were given."""
    machine.ask("churn", 40)
    return int(machine.ask("room", "GcThreadsGiven") or 0) == threads


# ---- GC threads: section 4.1 ----


@pytest.mark.parametrize("collector", GOVERNED)
def test_every_collection_has_the_threads_of_the_view(java, collector, start):
    machine = start(java, collector, "-Xmx64m")
    machine.room("Explanation")
    for cpus in (3, 2, 3):
        machine.view.cpus(cpus)
        eventually(lambda: gives(machine, cpus), within=SLOWLY)


@pytest.mark.parametrize("collector", GOVERNED)
def test_the_bean_says_nothing_of_a_collection_before_the_first(java, collector, start):
    machine = start(java, collector, "-Xms400m", "-Xmx400m")
    assert "GC threads are governed from the first collection on." in machine.room("Explanation")


def test_hotspot_itself_says_how_many_worked(java17, start, tmp_path):
    machine = start(java17, "g1", "-Xmx64m", f"-Xlog:gc+task:file={tmp_path}/gc.log")
    machine.room("Explanation")

    def worked(threads):
        machine.ask("churn", 40)
        found = re.findall(r"Using (\d+) workers of 8 for evacuation", (tmp_path / "gc.log").read_text())
        return found and int(found[-1]) == threads

    for cpus in (1, 5, 8):
        machine.view.cpus(cpus)
        eventually(lambda: worked(cpus), within=SLOWLY)


def test_parallel_gc_keeps_two_threads(java17, start):
    machine = start(java17, "parallel", "-Xmx64m", cpus=1)
    machine.room("Explanation")
    eventually(lambda: gives(machine, 2), within=SLOWLY)


def test_zgc_with_generations_has_the_threads_of_the_view(java, start):
    machine = start(java, "z-generational" if can(java, FLAGS["z-generational"]) else "z", "-Xmx128m")
    if "ZYoungGCThreads" not in machine.room("Explanation"):
        pytest.skip(f"needs ZGC with generations: {java} has none")
    for cpus in (1, 3, 2):
        machine.view.cpus(cpus)
        eventually(lambda: int(machine.room("GcThreadsGiven")) == cpus, within=SLOWLY)


# ---- the elastic heap: section 4.2 ----


# ParallelGC gives back what its own size policy likes, which goes by how long collections took.
@pytest.mark.parametrize("collector", ["g1", "z", "serial"])
def test_a_heap_gives_back_what_the_view_takes(java17, collector, start):
    machine = start(java17, collector, "-Xmx600m", "-XX:ZUncommitDelay=1", memory=2000 * MIB)
    machine.room("Explanation")
    machine.ask("hold", 300)
    assert machine.committed_mib() >= 300
    machine.ask("hold", 20)
    machine.view.memory(200 * MIB)

    def fits():
        machine.ask("churn", 20)
        return machine.committed_mib() <= 150

    eventually(fits, within=2 * SLOWLY)
    machine.view.memory(2000 * MIB)
    eventually(lambda: machine.room("HeapScenario") == "UNBOUND", within=SLOWLY)
    machine.ask("hold", 300)


@pytest.mark.parametrize("collector", ["parallel", "g1"])
def test_a_heap_does_not_grow_beyond_its_virtual_max(java17, collector, start):
    # One look: nothing later lifts the bound because this machine is slow.
    machine = start(java17, collector, "-Xms16m", "-Xmx600m", memory=200 * MIB, agent="jmx=0,period-ms=3600000")
    assert int(machine.room("VirtualMax")) == 150 * MIB
    assert machine.room("HeapKnob") == "VirtualMax"
    machine.ask("hold", 20)
    for _ in range(10):
        machine.ask("churn", 200)
        assert machine.committed_mib() <= 165


@pytest.mark.parametrize("collector", [*GOVERNED, "serial"])
def test_a_view_is_no_reason_to_run_out_of_memory(java17, collector, start):
    machine = start(java17, collector, "-Xmx400m", memory=100 * MIB)
    machine.room("Explanation")
    for mib in (250, 10, 250):
        assert machine.ask("hold", mib) == "held"


def test_the_heap_of_shenandoah_is_bounded_from_jdk_21_on(java, machines, start):
    machine = start(java, "shenandoah", "-Xmx600m", memory=200 * MIB)
    bounded = java in (machines.get("21"), machines.get("25"))
    assert machine.room("HeapKnob") == ("SoftMaxHeapSize" if bounded else "none")


def test_what_the_user_sets_while_it_runs_counts(java17, start):
    machine = start(java17, "z", "-Xmx600m", memory=200 * MIB)

    def jcmd(*words):
        done = subprocess.run([java17.with_name("jcmd"), str(machine.process.pid), *words], capture_output=True, text=True, timeout=60 * PATIENCE)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def soft_max_mib():
        return int(re.search(r"SoftMaxHeapSize=(\d+)", jcmd("VM.flags", "-all").replace(" ", ""))[1]) // MIB

    eventually(lambda: int(machine.room("VirtualMax")) == 150 * MIB, within=SLOWLY)
    assert soft_max_mib() == 150
    jcmd("VM.set_flag", "SoftMaxHeapSize", str(100 * MIB))
    machine.view.memory(400 * MIB)
    # The flag is written before it says so.
    eventually(lambda: int(machine.room("VirtualMax")) == 300 * MIB, within=SLOWLY)
    assert soft_max_mib() == 100
    machine.view.memory(100 * MIB)
    eventually(lambda: int(machine.room("VirtualMax")) == 75 * MIB, within=SLOWLY)
    assert soft_max_mib() == 75
    machine.view.memory(2000 * MIB)
    eventually(lambda: machine.room("HeapScenario") == "UNBOUND", within=SLOWLY)
    assert soft_max_mib() == 100


# An allocation that is large at once has a young collection before its full one: there is nothing young yet.
@pytest.mark.parametrize("what", ["hold 250", "array 200"])
def test_an_allocation_without_room_lifts_the_bound_at_once(java, start, what):
    if "jdk-11" in str(java) or "-11-" in str(java):
        pytest.skip("needs JDK 17: before, ParallelGC has no VirtualMax")
    # The agent looks once and no more. G1 would take single regions when it evacuates, which are never refused.
    machine = start(java, "parallel", "-Xms16m", "-Xmx400m", memory=100 * MIB, agent="jmx=0,period-ms=3600000")
    assert int(machine.room("VirtualMax")) == 75 * MIB
    machine.ask("churn", 100)  # it is in force from the first collection on
    assert machine.ask(*what.split()) == "held"
    assert int(machine.room("Lifts")) > 0


def test_the_sum_of_the_generations_is_bounded_not_each(java, start, tmp_path):
    """More lives than two thirds of VirtualMax: the old generation has what the young one does not need, and the bound stays."""
    if "jdk-11" in str(java) or "-11-" in str(java):
        pytest.skip("needs JDK 17: before, ParallelGC has no VirtualMax")
    page = Page(tmp_path / "page")
    page.show(8, memory=200 * MIB, most_memory=480 * MIB)
    # The young generation stays as small as it begins. The old one is born with 260 MiB at most.
    sizes = ["-XX:-UseAdaptiveSizePolicy", "-Xms16m", "-Xmx390m"]
    machine = start(java, "parallel", *sizes, memory=480 * MIB, page=page.path, agent="jmx=0,period-ms=50,heap=70")
    machine.room("Explanation")
    machine.ask("churn", 100)
    assert machine.ask("hold", 250) == "held"
    # It was lifted to what the hard limit leaves, at most, and not away: that is the second lift.
    assert int(machine.room("Lifts")) <= 1
    eventually(lambda: 0 < int(machine.room("VirtualMax")) <= 336 * MIB, within=SLOWLY)
    assert machine.committed_mib() <= 336


# ---- pools ----


def test_pools_follow_where_they_can(java, start):
    machine = start(java, "g1", "-Xmx64m")

    def said():
        line = next(line for line in machine.room("Explanation").split(" | ") if "Common pool" in line)
        return "untouched" not in line and line

    machine.room("Explanation")
    machine.view.cpus(3)
    if "Common pool: fixed" in eventually(said, within=SLOWLY):
        pytest.skip("needs JDK 19: earlier ones cannot change the common pool")
    for cpus in (3, 5):
        machine.view.cpus(cpus)
        eventually(lambda: machine.ask("pool") == str(cpus - 1), within=SLOWLY)
        eventually(lambda: f"Virtual threads: {cpus}." in said(), within=SLOWLY)


def test_a_pool_that_the_program_settled_is_left_alone(java, start):
    machine = start(java, "g1", "-Xmx64m", "-Djava.util.concurrent.ForkJoinPool.common.parallelism=6")
    machine.room("Explanation")
    machine.view.cpus(3)
    eventually(lambda: "settled by java.util" in machine.room("Explanation"), within=SLOWLY)
    assert machine.ask("pool") == "6"


# ---- a guest ----


def test_the_code_of_a_machine_that_is_not_recognised_is_left_alone(java17, start, tmp_path):
    home = java17.resolve().parents[1]
    copy = tmp_path / "stripped"
    subprocess.run(["cp", "--archive", "--symbolic-link", home, copy], check=True)
    for file in ("bin/java", "lib/libjli.so", "lib/server/libjvm.so", "lib/jvm.cfg", "lib/modules"):
        (copy / file).unlink()
        shutil.copy(home / file, copy / file)
    subprocess.run(["strip", copy / "lib/server/libjvm.so"], check=True)
    machine = start(copy / "bin/java", "g1", "-Xmx64m", cpus=2)
    explanation = machine.room("Explanation")
    assert "GC threads are HotSpot's own: libjvm.so has no symbol table (it was stripped)" in explanation
    machine.ask("churn", 200)
    assert machine.room("GcThreadDecisions") == "0"
    assert machine.room("HeapKnob") == "MaxHeapFreeRatio"


def test_it_attaches_to_a_machine_that_runs(java, start, machines):
    machine = start(java, "parallel", "-Xmx64m", "-XX:+IgnoreUnrecognizedVMOptions", "-XX:+EnableDynamicAgentLoading", cpus=3, agent=None)
    machine.ask("churn", 200)
    words = [java, "-jar", jvm.AGENT, str(machine.process.pid), "period-ms=50"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300 * PATIENCE)
    assert done.returncode == 0, done.stderr
    eventually(lambda: gives(machine, 3), within=SLOWLY)
    assert machine.errors.read_text() == ""


def test_a_guest_says_nothing_and_settles_nothing(java, start, tmp_path):
    machine = start(java, "g1", "-Xmx64m", f"-Xlog:class+load:file={tmp_path}/classes", agent="jmx=off,period-ms=20")
    machine.ask("churn", 200)
    # The agent is at work once it has sized the first thing; its classes say so.
    eventually(lambda: "elbowroom.agent.HeapPolicy$Step" in (tmp_path / "classes").read_text(), within=SLOWLY)
    # Made too early, the class library's own would stay for good.
    assert machine.ask("logs") == "Manager"
    assert machine.errors.read_text() == ""


def test_nonsense_is_ignored_and_said(java17, start):
    machine = start(java17, "g1", "-Xmx64m", agent="jmx=0,heap=1000,colour=blue")
    assert "Not understood, and ignored: colour=blue." in machine.room("Explanation")


def test_a_machine_too_old_could_still_read_the_way_in(machines):
    """JDK 8 reads classes up to version 52, and ends the program when an agent's is newer."""
    with zipfile.ZipFile(jvm.AGENT) as jar:
        way_in = jar.read("elbowroom/agent/Boot.class")
        assert int.from_bytes(way_in[6:8], "big") == 52
        assert jar.testzip() is None


def test_no_file_of_it_stays(java17, start, tmp_path):
    machine = start(java17, "g1", "-Xmx64m", f"-Djava.io.tmpdir={tmp_path}")
    machine.room("Explanation")
    assert not list(tmp_path.glob("elbowroom-*"))


# ---- elbowroom run ----


def test_run_adds_the_agent_to_what_is_there(binary):
    words = [binary, "run", "--no-views", "--java", "--cpus", "0.5", "--", "printenv", "JAVA_TOOL_OPTIONS"]
    done = subprocess.run(words, env={**os.environ, "JAVA_TOOL_OPTIONS": "-Xmx64m"}, capture_output=True, text=True)
    assert done.stdout == f"-Xmx64m -javaagent:{jvm.AGENT} -XX:ParallelGCThreads=1\n", done.stderr


@pytest.mark.parametrize("collector", FLAGS)
def test_a_jvm_that_starts_in_a_small_view_has_gc_threads_for_the_largest(java, binary, collector):
    """As many as the view may become, and the user's own number where there is one, also below the concurrent threads of ours."""
    if not can(java, FLAGS[collector]):
        pytest.skip(f"this JDK has no {collector}")

    def threads(*options):
        small = [*FLAGS[collector], *options, "-XX:ActiveProcessorCount=1", "-XX:+UnlockExperimentalVMOptions", "-XX:+PrintFlagsFinal", "-version"]
        words = [binary, "run", "--no-views", "--java", "--", java, *small]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60 * PATIENCE)
        assert done.returncode == 0, done.stdout + done.stderr
        return int(re.search(r" ParallelGCThreads += (\d+)", done.stdout)[1])

    cpus = os.cpu_count()
    assert threads() == (cpus if cpus <= 8 else 8 + (cpus - 8) * 5 // 8)
    assert threads("-XX:ParallelGCThreads=1") == 1


def test_a_java_program_runs_with_it(java, binary):
    words = [binary, "run", "--no-views", "--java", "--", java, "-version"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0
    assert f"-javaagent:{jvm.AGENT}" in done.stderr and "version" in done.stderr


# ---- stress ----


def test_graphs_stay_intact_while_everything_changes(machines, view):
    """Every collector of every JDK at once, where it is asked for by name; else those with threads to govern, of JDK 17."""
    pairs = [(version, collector) for version in VERSIONS for collector in FLAGS] if SECONDS else [("17", name) for name in GOVERNED]
    pairs = [pair for pair in pairs if not ONLY or any(word in "-".join(pair) for word in ONLY)]
    there = [(version, name) for version, name in pairs if version in machines and can(machines[version], FLAGS[name])]
    print(f"not here: {', '.join(' '.join(pair) for pair in pairs if pair not in there) or 'none'}")
    if not there:
        pytest.skip(f"needs a JDK below /usr/lib/jvm, or its home in ELBOWROOM_TEST_JVMS, with one of {pairs}")
    seconds = SECONDS or 7
    started = {}
    # G1 takes what lives beyond its bound when it evacuates, which is not refused, and JDK 11's ParallelGC has no bound.
    lifts = {pair: 0 for pair in there if pair[1] == "parallel" and pair[0] != "11"}
    try:
        for number, (version, collector) in enumerate(there):
            here = view(8, 640 * MIB)
            words = [machines[version], "-XX:+UnlockExperimentalVMOptions", *FLAGS[collector], "-Xms16m", "-Xmx320m", "-XX:ParallelGCThreads=8"]
            words += ["-XX:ConcGCThreads=4", f"-javaagent:{jvm.AGENT}=jmx=0,period-ms=5", "-cp", jvm.BUILT, "Stress"]
            words += [str(seconds), here.cpu_file, here.memory_file, "8"]
            if number % 2:
                page = Page(here.cpu_file.with_name("page"))
                page.show(8, memory=640 * MIB, most_memory=680 * MIB)
                words = [f"ELBOWROOM_VIEW={page.path}", *words, page.path]
            options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "cwd": here.cpu_file.parent}
            started[version, collector] = here.start(words, **options)
        failed = []
        for (version, collector), process in started.items():
            said, _ = process.communicate(timeout=seconds + 300 * PATIENCE)
            print(f"JDK {version} {collector}: {said}", end="")
            intact = process.returncode == 0 and said.startswith("intact")
            counted = lambda what: int(re.search(rf"(\d+) {what}", said)[1]) if intact else 0
            # The agent was ready before the first collection.
            ready = "those of concurrent marking are not" not in said
            if (version, collector) in lifts:
                lifts[version, collector] = counted("lifts")
            if not (intact and ready) or collector in GOVERNED and counted("capped") == 0:
                failed.append(f"JDK {version} {collector} ended with {process.returncode}: {said}")
        assert not failed, "\n".join(failed)
        assert not lifts or any(lifts.values()), f"no bound was lifted: {lifts}"
    finally:
        for process in started.values():
            process.kill()
            process.wait()
