"""The same container on every engine and by every means: its first instruction sees its view, and it starts without an agent.

`make engines-test` builds the engines that Debian does not have. The table of engines is in docs/guide/engines.md."""

import math
import os
import re
import shutil
import signal
import socket
import statistics
import threading
import time
from pathlib import Path

import pytest

from kit import docker as docker_kit
from kit import engines, need
from kit.cgroup import V2
from kit.docker import Docker
from kit.engines import HEAD, MEMORY, Containerd, Crio, CriWay, DockerWay, NewDocker, Podman, RuncWay, timed
from kit.process import Process
from kit.wait import PATIENCE, eventually

CPUS = os.cpu_count()
# Seconds that the agent may cost a start at worst, with the share of a loaded machine.
WORST = 2.0 + 1.5 * PATIENCE
SEEN = f"{MEMORY >> 10} kB"
# A CDI directory that engines read; Podman 4.3 knows no other (containers/common, pkg/cdi).
CDI = Path("/var/run/cdi")


# ---- engines ----


@pytest.fixture(scope="module")
def home(scratch):
    path = scratch / "e"  # Podman takes 50 characters for a directory
    path.mkdir()
    # Podman mounts nothing that is not there, and it may be that nothing was compiled yet.
    engines.programs.BUILT.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture(scope="module")
def image(home):
    if missing := engines.why_not("busybox"):
        pytest.skip(f"needs {missing}")
    return engines.image(home)


@pytest.fixture(scope="module")
def cdi(binary, run_dir):
    """Our device, where engines look for it."""
    if (CDI / "elbowroom.json").exists():
        pytest.skip(f"needs {CDI}/elbowroom.json, which another installation owns")
    made = [directory for directory in (CDI,) if not directory.exists()]
    words = [binary, "--run-dir", run_dir, "cdi", CDI]
    assert os.spawnv(os.P_WAIT, binary, [str(word) for word in words]) == 0
    yield CDI
    (CDI / "elbowroom.json").unlink()
    for directory in made:
        directory.rmdir()


@pytest.fixture(scope="module")
def containerd(home, image, cdi):
    if missing := engines.why_not("built/containerd", "built/containerd-shim-runc-v2", "built/ctr", "built/runc", "built/cri"):
        pytest.skip(f"needs {missing}")
    (home / "containerd").mkdir()
    engine = Containerd(home / "containerd", image, cdi).start()
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def strict_containerd(containerd, home, image, cdi):
    """A containerd that makes no container to which a plugin adds a hook."""
    (home / "strict").mkdir()
    validator = "[plugins.'io.containerd.nri.v1.nri'.default_validator]\nenable = true\nreject_oci_hook_adjustment = true"
    engine = Containerd(home / "strict", image, cdi, validator).start()
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def crio(home, image, cdi):
    if missing := engines.why_not("built/crio", "built/pinns", "built/cri", "conmon", "podman", Crio.RUNTIME):
        pytest.skip(f"needs {missing}")
    if path := Crio.somebodys():
        pytest.skip(f"needs a machine without {path}, which another installation owns")
    (home / "c").mkdir()
    engine = Crio(home / "c", image, cdi).start()
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def old_docker(home, runtime):
    if missing := docker_kit.why_not():
        pytest.skip(f"needs {missing}")
    yield from a_docker(Docker(home / "docker", runtime))


@pytest.fixture(scope="module")
def new_docker(home, runtime, cdi):
    if missing := docker_kit.why_not() or engines.why_not("built/dockerd", "built/containerd", "built/runc"):
        pytest.skip(f"needs {missing}")
    yield from a_docker(NewDocker(home / "new-docker", runtime, cdi, nri=home / "docker-nri.sock"))


def a_docker(docker):
    docker.home.mkdir()
    # Below a parent of its own, only an agent that knows this daemon takes its containers for containers.
    parent = f"/elbowroom-test-{docker.home.name}"
    docker.more.append(f"--cgroup-parent={parent}")
    docker.start()
    yield docker
    docker.stop()
    engines.remove_groups(parent)


@pytest.fixture(scope="module")
def podman(home, image):
    """Makes Podmans on one directory, by runc unless they are given another: `podman("--hooks-dir", DIR, runtime=CRUN)`."""
    if missing := engines.why_not("podman", "conmon", "runc"):
        pytest.skip(f"needs {missing}")
    made = []

    def make(*options, **more):
        made.append(Podman(home / "p", None if made else image, *options, **more))
        return made[-1]

    yield make
    for engine in made[:1]:
        engine.close()


@pytest.fixture(scope="module")
def crun():
    if missing := engines.why_not("crun"):
        pytest.skip(f"needs {missing}")
    if not V2:
        pytest.skip("needs cgroup v2, for crun refuses what is hybrid: tests/vm/run tests/live/test_engines.py -k crun")
    return shutil.which("crun")


WAYS = {
    "docker 20.10, wrapper": lambda ask: DockerWay(ask("old_docker"), "--runtime", "elbowroom"),
    "docker (moby 2), wrapper": lambda ask: DockerWay(ask("new_docker"), "--runtime", "elbowroom"),
    "docker (moby 2), CDI": lambda ask: DockerWay(ask("new_docker"), "--device", "elbowroom.dev/view=on"),
    "podman, hooks directory": lambda ask: ask("podman")("--hooks-dir", ask("hooks_dir")),
    "podman, CDI": lambda ask: ask("podman")(run=["--device", ask("cdi") and "elbowroom.dev/view=on"]),
    "podman, wrapper": lambda ask: ask("podman")(runtime=ask("runtime")),
    "podman on crun, hooks directory": lambda ask: ask("podman")("--hooks-dir", ask("hooks_dir"), runtime=ask("crun")),
    "containerd, NRI": lambda ask: CriWay(ask("containerd")),
    "containerd, NRI without hooks": lambda ask: CriWay(ask("strict_containerd")),
    "containerd, CDI": lambda ask: CriWay(ask("containerd"), cdi=["elbowroom.dev/view=on"]),
    "cri-o, NRI": lambda ask: CriWay(ask("crio").with_hooks(None)),
    "cri-o, NRI without hooks": lambda ask: CriWay(ask("crio").with_hooks(None)),
    "cri-o, CDI": lambda ask: CriWay(ask("crio").with_hooks(None), cdi=["elbowroom.dev/view=on"]),
    "cri-o, hooks directory": lambda ask: CriWay(ask("crio").with_hooks(ask("hooks_dir"))),
}


@pytest.fixture(scope="module")
def hooks_dir(binary, home, run_dir):
    words = [binary, "--run-dir", run_dir, "oci-hooks", home / "hooks"]
    assert os.spawnv(os.P_WAIT, binary, [str(word) for word in words]) == 0
    return home / "hooks"


@pytest.fixture(params=WAYS)
def way(request):
    way = WAYS[request.param](request.getfixturevalue)
    way.name = request.param
    return way


@pytest.fixture
def agent_of(new_agent):
    """An agent for a way, not started. By default it mounts nothing by itself, so that every view came by the hook. NRI is the exception:
    its plans are for the containers that the agent would mount views into."""

    def make(way, containers=None):
        if containers is None:
            containers = f"attach = {'true' if 'NRI' in way.name else 'false'}"
        config, state = "", ""
        if isinstance(way, CriWay):
            sockets = f'"{way.engine.nri}"' if "NRI" in way.name else ""
            hooks = "false" if "without hooks" in way.name else "true"
            config = f"[nri]\nsockets = [{sockets}]\nhooks = {hooks}\n"
            if isinstance(way.engine, Containerd):
                state = f'containerd_state = "{way.engine.state}"\n'
        agent = new_agent(config, containers=f"{state}{containers}\n")
        if isinstance(way, DockerWay):
            agent.config = re.sub("docker_root = .*", f'docker_root = "{way.docker.home}/data"', agent.config)
        return agent

    return make


def ready(agent, way):
    """Starts an agent, and waits until the runtime has taken its plugin."""
    agent.start()
    if "NRI" in way.name:
        eventually(lambda: "containers get their views before they start" in agent.log.read_text())
    return agent


# ---- what is seen ----


@pytest.mark.parametrize("attempt", range(2))
def test_the_first_instruction_sees_the_view(agent_of, way, attempt):
    ready(agent_of(way), way)
    assert way.once(*HEAD).split(None, 1)[1].strip() == SEEN
    assert way.once("/busybox", "cat", "/sys/devices/system/cpu/online").split() == ["0"]


def test_programs_start_in_the_view(agent_of, way, sees_go, sees_java):
    need.cpus(2)
    ready(agent_of(way), way)
    script = (
        "grep -c ^processor /proc/cpuinfo; grep -c ^cpu[0-9] /proc/stat; getconf _NPROCESSORS_ONLN; free -k | awk '/Mem:/ {print $2}';"
        "python3 -c 'import os; print(os.cpu_count())'; ls /sys/devices/system/cpu/elbowroom;"
        f"echo | {sees_go}; echo | java -cp {sees_java} Sees"
    )
    out = way.once("sh", "-c", script).split()
    assert out[:6] == ["1", "1", "1", str(MEMORY >> 10), "1", "/sys/devices/system/cpu/elbowroom"]
    # Go takes two CPUs at least by quota, one only by affinity; Java's largest heap is a quarter.
    go, java_cpus, java_memory, heap = map(int, out[6:])
    assert (go, java_cpus, java_memory) == (2, 1, MEMORY) and heap <= MEMORY // 2


# ---- what happens without ----


@pytest.fixture
def alone(way, run_dir):
    """A test cannot hide containers of Podman or CRI-O from another agent, which mounts views of its own into them."""
    if (isinstance(way, Podman) or "cri-o" in way.name) and engines.other_agents(run_dir):
        pytest.skip("needs a machine without another agent, whose views would be taken for ours")


def test_without_an_agent_it_starts_as_ever(way, alone):
    out = way.once(*HEAD)
    assert out.startswith("MemTotal:") and SEEN not in out


@pytest.mark.parametrize("way", [name for name in WAYS if "docker" in name], indirect=True)
def test_a_label_keeps_the_view_out(agent_of, way):
    ready(agent_of(way, "attach = true"), way)
    assert SEEN not in way.once(*HEAD, options=["--label", "elbowroom.dev/views=off"])
    assert SEEN in way.once(*HEAD)


def test_an_agent_that_hangs_costs_two_seconds_and_is_told(agent_of, way, alone):
    agent = ready(agent_of(way, "attach = true"), way)
    script = "head -n1 /proc/meminfo; echo; for i in $(seq 100); do sleep 0.1; grep -q '%s' /proc/meminfo && break; done; head -n1 /proc/meminfo; sleep 1" % SEEN
    tries = []
    # A busy machine makes one start slow, or its first look late; a hook that waits too long makes every start slow.
    while len(tries) < 3 and not (tries and in_time(*tries[-1])):
        usual = max(timed(lambda: way.once(*HEAD))[0] for _ in range(3))
        tries.append((*start_while_it_hangs(agent, way, script), usual))
    assert any(in_time(*each) for each in tries), f"seconds, whether its first look saw the host, and what a start usually takes: {tries}"


def in_time(waited, saw_host, usual):
    return saw_host and waited < usual + WORST


def start_while_it_hangs(agent, way, script):
    """Seconds until the script runs in a container, and whether its first look came before the agent went on; its last one sees the view."""
    # Both: a policy process that hangs alone is replaced.
    stopped = [Process(agent.pid(name)) for name in ("supervisor", "policy")]
    out = {}

    def run():
        out["took"], out["text"] = timed(lambda: way.once("/busybox", "sh", "-c", script))

    for process in stopped:
        process.stop()
    thread = threading.Thread(target=run)
    began = time.monotonic()
    try:
        thread.start()
        started = eventually(lambda: newest(b"grep -q '%s'" % SEEN.encode()), within=20)
        waited = time.monotonic() - began
    finally:
        for process in stopped:
            process.send(signal.SIGCONT)
    late = eventually(lambda: [row for row in agent.list() if row["view_delay_usec"]], within=20)
    thread.join()
    first, last = [line for line in out["text"].splitlines() if line]
    assert last.split(None, 1)[1].strip() == SEEN, out["text"]
    assert started and late[0]["attached"]
    return waited, first.split(None, 1)[1].strip() != SEEN


def newest(text):
    """The pid of a process whose command line has this text, other than an engine's own."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"/busybox" and any(text in word for word in words):
            return path.parent.name
    return None


@pytest.mark.parametrize("after", [0.02, 0.08, 0.2])
def test_an_agent_that_dies_while_a_container_is_made_keeps_it_from_nothing(agent_of, way, after):
    agent = ready(agent_of(way), way)
    out = {}
    thread = threading.Thread(target=lambda: out.update(text=way.once(*HEAD)))
    policy = agent.status()["pids"]["policy"]
    thread.start()
    time.sleep(after * PATIENCE)
    os.kill(policy, signal.SIGKILL)
    thread.join()
    assert out["text"].startswith("MemTotal:")
    eventually(lambda: agent.has_another("policy", than=policy))


# ---- one means alone ----


def test_the_wrapper_puts_limits_into_the_environment_on_request(podman, runtime, agent_of):
    engine = podman(runtime=runtime)
    engine.name = "podman, wrapper"
    asks = ["--annotation", "elbowroom.dev/env=on", "--env", "GOMAXPROCS=7"]
    assert "OMP_NUM_THREADS" not in engine.once("/busybox", "env", options=asks), "an agent has a word in it"
    ready(agent_of(engine), engine)
    assert "OMP_NUM_THREADS" not in engine.once("/busybox", "env")
    out = engine.once("/busybox", "env", options=asks).splitlines()
    assert "OMP_NUM_THREADS=1" in out and "GOMAXPROCS=7" in out and f"GOMEMLIMIT={MEMORY * 90 // 100}" in out


@pytest.fixture(params=["containerd", "crio"])
def cri(request):
    engine = request.getfixturevalue(request.param)
    return engine.with_hooks(None) if request.param == "crio" else engine


@pytest.fixture
def nri(cri, agent_of):
    """A runtime with an agent at its NRI: `nri("env = true")`."""

    def make(containers="attach = true"):
        way = CriWay(cri)
        way.name = "NRI"
        way.agent = ready(agent_of(way, containers), way)
        return way

    return make


def test_annotations_of_pods_and_containers_count_as_labels_do(nri):
    way = nri()
    off, on = {"elbowroom.dev/views": "off"}, {"elbowroom.dev/views": "on"}
    assert SEEN not in way.once(*HEAD, pod_annotations=off)
    assert SEEN not in way.once(*HEAD, annotations=off)
    assert SEEN in way.once(*HEAD, pod_annotations=off, annotations=on)
    one = {"elbowroom.dev/views.web": "off"}
    assert SEEN not in way.once(*HEAD, name="web", pod_annotations=one)
    assert SEEN in way.once(*HEAD, name="side", pod_annotations=one)
    # A label of the pod alone counts as the container's, for everything that looks for its labels later.
    pod = way.engine.pod({"elbowroom.dev/probe": "objective=300", "elbowroom.dev/colour": "blue"})
    container = way.engine.run(pod, "/busybox", "sleep", "1000")
    row = eventually(lambda: next((row for row in way.agent.list() if row["id"] == container), None))
    assert row["labels"]["probe"] == "objective=300" and row["engine"] == way.engine.ENGINE
    assert "elbowroom.dev/colour" in row["labels"]["ignored"][0]
    eventually(lambda: way.agent.json("show", container)["attached"])
    assert way.agent.json("show", container)["view_delay_usec"] is None
    way.engine.remove(pod)


def test_annotations_count_without_a_plugin_where_the_runtime_hands_them_on(crio, hooks_dir, agent_of):
    way = CriWay(crio.with_hooks(hooks_dir))
    way.name = "cri-o, hooks directory"
    ready(agent_of(way, "attach = true"), way)
    off = {"elbowroom.dev/views": "off"}
    assert SEEN in way.once(*HEAD)
    assert SEEN not in way.once(*HEAD, pod_annotations=off)
    assert SEEN not in way.once(*HEAD, annotations=off)
    one = {"elbowroom.dev/views.web": "off"}
    assert SEEN not in way.once(*HEAD, name="web", pod_annotations=one)
    assert SEEN in way.once(*HEAD, name="side", pod_annotations=one)


def test_a_running_container_is_given_its_view_and_nothing_stays_of_it(cri, agent_of):
    way = CriWay(cri)
    way.name = "no hook"
    pod = cri.pod()
    container = cri.run(pod, "/busybox", "sleep", "1000", name="web")
    try:
        agent = agent_of(way, "attach = true").start()
        row = eventually(lambda: next((row for row in agent.list() if row["id"] == container and row["attached"]), None))
        assert SEEN in cri.inside(container, *HEAD)
        meta = cri.pods[pod]["metadata"]
        assert (row["name"], row["engine"], row["pod"]) == ("web", cri.ENGINE, {key: meta[key] for key in ("uid", "name", "namespace")})
        assert pod not in [row["id"] for row in agent.list()], "a pod is no container"
    finally:
        cri.remove(pod)
    eventually(lambda: container not in [row["id"] for row in agent.list()])
    eventually(lambda: not [path for path in engines.groups(f"{cri.PARENT}/*") if container in path.name and "conmon" not in path.name])


def test_a_node_and_a_container_say_who_is_given_a_view(nri):
    way = nri("attach = false")
    assert SEEN not in way.once(*HEAD)
    assert SEEN in way.once(*HEAD, annotations={"elbowroom.dev/views": "on"})


def test_limits_are_put_into_the_environment_on_request(nri):
    way = nri()
    words = ["/busybox", "env"]
    assert "OMP_NUM_THREADS" not in way.once(*words)
    out = way.once(*words, annotations={"elbowroom.dev/env": "on"}).splitlines()
    assert "OMP_NUM_THREADS=1" in out and f"GOMEMLIMIT={MEMORY * 90 // 100}" in out


def test_labels_for_libraries_are_heeded_or_the_log_says_why_not(nri):
    way = nri()
    words = ["/busybox", "sh", "-c", "/busybox env; /busybox ls /sys/fs/fuse/connections"]
    asks = {"elbowroom.dev/openmp": "on", "elbowroom.dev/libc": "on"}
    out = way.once(*words, annotations=asks).splitlines()
    libraries = [f"libelbowroom-{name}.so" for name in ("openmp", "libc")]
    assert "LD_PRELOAD=" + ":".join(f"/sys/fs/fuse/connections/{name}" for name in libraries) in out
    assert "OMP_NUM_THREADS=1" in out and set(libraries) <= set(out)
    assert "LD_PRELOAD" not in way.once("/busybox", "env")


def test_a_plugin_comes_back_to_a_runtime_and_an_agent_that_restarts(nri):
    way = nri()
    told = "containers get their views before they start"
    way.engine.end()
    way.engine.start()
    eventually(lambda: way.agent.log.read_text().count(told) == 2)
    assert SEEN in way.once(*HEAD)
    os.kill(way.agent.status()["pids"]["policy"], signal.SIGKILL)
    eventually(lambda: way.agent.log.read_text().count(told) == 3)
    assert SEEN in way.once(*HEAD)


def test_a_runtime_that_refuses_hooks_makes_no_container_with_one(strict_containerd, agent_of):
    way = CriWay(strict_containerd)
    way.name = "containerd, NRI"
    ready(agent_of(way), way)
    with pytest.raises(AssertionError, match="hook"):
        way.once(*HEAD)


def test_a_runtime_that_refuses_hooks_needs_none(strict_containerd, agent_of):
    way = CriWay(strict_containerd)
    way.name = "containerd, NRI without hooks"
    agent = ready(agent_of(way), way)
    asks = {"elbowroom.dev/libc": "on", "elbowroom.dev/env": "on"}
    out = way.once("/busybox", "sh", "-c", "/busybox head -n1 /proc/meminfo; /busybox env", annotations=asks)
    # What only a hook can bring is left out, and the log says so.
    assert SEEN in out and "OMP_NUM_THREADS=1" in out and "LD_PRELOAD" not in out
    assert "this runtime takes no hooks" in agent.log.read_text()
    assert SEEN not in way.once(*HEAD, annotations={"elbowroom.dev/views": "off"})
    pod = strict_containerd.pod()
    container, _ = strict_containerd.create(pod, "/busybox", "sleep", "1000")
    strict_containerd.cri("StartContainer", container_id=container)
    assert agent.json("show", container)["attached"] and agent.json("show", container)["view_delay_usec"] is None
    strict_containerd.remove(pod)


def test_dockers_own_nri_is_left_alone(new_docker, new_agent):
    agent = new_agent(f'[nri]\nsockets = ["{new_docker.home.parent}/docker-nri.sock"]\n').start()
    eventually(lambda: "Docker's NRI takes no hooks" in agent.log.read_text())
    assert new_docker.run_once(*HEAD).startswith("MemTotal:")


# ---- what it costs ----

# More of them, and a directory for what was measured: `make engines-bench`.
ROUNDS = int(os.environ.get("ELBOWROOM_ENGINES_ROUNDS", "2"))


@pytest.fixture(scope="module")
def costs():
    """Takes rows of what was measured: a name, then pairs of milliseconds without and with."""
    rows = {}
    yield rows
    if directory := os.environ.get("ELBOWROOM_ENGINES_RESULTS"):
        Path(directory).mkdir(parents=True, exist_ok=True)
        with open(Path(directory) / "starts.tsv", "w") as file:
            file.write("what\tround\twithout_ms\twith_ms\n")
            for name, pairs in rows.items():
                file.writelines(f"{name}\t{n}\t{a:.3f}\t{b:.3f}\n" for n, (a, b) in enumerate(pairs))
        with open(Path(directory) / "summary.md", "w") as file:
            file.write(summary(rows))


def summary(rows):
    lines = [
        "# What a view costs the start of a container", "",
        f"`make engines-bench`, {time.strftime('%F %R')}, load average {' '.join(f'{load:.1f}' for load in os.getloadavg())} "
        f"on {CPUS} CPUs. Milliseconds; with and without our hook in turn, in one engine under one agent.", "",
        "| | rounds | without: least, median | with: least, median | more: least | more: median of the pairs, 95 % interval |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, pairs in rows.items():
        without, given = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        more = sorted(b - a for a, b in pairs)
        least, most = interval_of_median(len(more))
        lines.append(
            f"| {name} | {len(pairs)} | {min(without):.2f}, {statistics.median(without):.2f} | {min(given):.2f}, "
            f"{statistics.median(given):.2f} | {min(given) - min(without):+.2f} | {statistics.median(more):+.2f}, "
            f"{more[least]:+.2f} to {more[most]:+.2f} |"
        )
    return "\n".join(lines) + "\n"


def interval_of_median(count):
    """Which of so many sorted values enclose their median with 95 %: the normal approximation to the sign test."""
    reach = 0.98 * math.sqrt(count)
    return max(0, math.floor(count / 2 - reach)), min(count - 1, math.ceil(count / 2 + reach))


def in_turn(costs, name, without, given, rounds):
    """Starts by turns, the first of each pair by turns too. The extra time of `given`, in milliseconds: the lower quartile, because
    other work on this machine shows in the upper ones."""
    without(), given()
    pairs = []
    for n in range(rounds):
        first, second = (without, given) if n % 2 else (given, without)
        a, b = first() * 1000, second() * 1000
        pairs.append((a, b) if n % 2 else (b, a))
    costs[name] = pairs
    return sorted(b - a for a, b in pairs)[(rounds - 1) // 4]


def test_cost_of_a_start(agent_of, way, costs):
    ready(agent_of(way), way)
    plain = way.plain()
    assert in_turn(costs, way.name, plain.start, way.start, ROUNDS) < 500 * PATIENCE


def test_cost_of_a_start_by_runc(new_agent, binary, run_dir, tmp_path, costs):
    if missing := engines.why_not("runc", "busybox"):
        pytest.skip(f"needs {missing}")
    new_agent(containers='attach = false\ncgroups = ["/elbowroom-test-live-cost-*"]\n').start()
    hook = Path(binary).with_name("elbowroom-runtime")  # as `elbowroom oci-hooks` has it
    given, without = RuncWay(tmp_path, [hook, "hook", "--run-dir", run_dir]), RuncWay(tmp_path)
    assert in_turn(costs, "runc by itself", without.start, given.start, 10 * ROUNDS) < 250 * PATIENCE
    idle = RuncWay(tmp_path, [docker_kit.busybox(), "true"], idle=True)
    in_turn(costs, "runc by itself, a hook that does nothing", without.start, idle.start, 10 * ROUNDS)
    in_turn(costs, "runc by itself, CPU time with its children", without.cpu, given.cpu, 5 * ROUNDS)


def test_cost_of_a_start_without_a_hook(new_agent, tmp_path, costs):
    """The agent finds a container that no hook told it of, and mounts the view while it starts."""
    if missing := engines.why_not("runc", "busybox"):
        pytest.skip(f"needs {missing}")
    new_agent(containers='cgroups = ["/elbowroom-test-live-cost-seen"]\n').start()
    seen, unseen = RuncWay(tmp_path, name="seen"), RuncWay(tmp_path, name="unseen")
    assert in_turn(costs, "runc by itself, no hook", unseen.start, seen.start, 10 * ROUNDS) < 250 * PATIENCE


def test_cost_of_a_plan_by_nri(new_agent, costs, tmp_path):
    """A runtime of our own that asks for a plan again and again: the time of a whole answer."""
    request = (Path(__file__).resolve().parents[2] / "fuzz/corpus/nri/create").read_bytes()
    with socket.socket(socket.AF_UNIX) as runtime:
        runtime.bind(str(tmp_path / "nri.sock"))
        runtime.listen()
        new_agent(f'[nri]\nsockets = ["{tmp_path}/nri.sock"]\n').start()
        peer, _ = runtime.accept()
        with peer:
            assert b"RegisterPlugin" in peer.recv(4096)

            def ask():
                peer.sendall(request)
                answer = b""
                while b"OMP_NUM_THREADS" not in answer:
                    answer += peer.recv(4096)

            ask()
            costs["plan by NRI, asked over its socket"] = [(0.0, timed(ask)[0] * 1000) for _ in range(100 * ROUNDS)]
    assert statistics.median(given for _, given in costs["plan by NRI, asked over its socket"]) < 50 * PATIENCE
