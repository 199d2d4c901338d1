"""The pages and mounts of a view, as programs of other makers see them: cases that were reported against products like this one."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kit import need
from kit.cgroup import V2
from kit.container import PYTHON, cpu_list, stat_cpus
from kit.wait import always, eventually

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"
UNCOVERED = f"{CPU}/.elbowroom"
REQUIRED = {"cpuset", "cpu", "cpuacct", "memory"}


def installed(command, package):
    if not shutil.which(command):
        pytest.skip(f"needs {command}, which is not installed: apt-get install {package}")


def namespaces():
    """Skips where this machine's root cannot make user namespaces."""
    if subprocess.run(["unshare", "-Urmn", "true"], capture_output=True).returncode:
        pytest.skip("needs user namespaces: user.max_user_namespaces is 0, or a policy forbids them")


def mount_points(container):
    """The paths at which something is mounted in a container, as often as there is."""
    return [line.split()[4] for line in Path(f"/proc/{container.pid}/mountinfo").read_text().splitlines()]


def controllers(text):
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {name: (hierarchy, enabled) for name, hierarchy, _, enabled in rows}


# ---- how runtimes find out that they are in a container ----


def test_controllers_are_those_of_the_kernel_and_those_that_a_runtime_requires(agent, start):
    real = controllers(Path("/proc/cgroups").read_text())
    seen = controllers(start("--cpus", "1").read("/proc/cgroups"))
    assert {name: seen[name] for name in real} == real
    assert seen == real | {name: ("0", "1") for name in REQUIRED - set(real)}


@pytest.fixture
def unlisted(tmp_path):
    """A /proc/cgroups without `memory` and `cpuset`, as kernels without the controllers of cgroup v1 have it."""
    lines = Path("/proc/cgroups").read_text().splitlines(keepends=True)
    stub = tmp_path / "cgroups"
    stub.write_text("".join(line for line in lines if line.split()[0] not in ("memory", "cpuset")))
    subprocess.run(["mount", "--bind", stub, "/proc/cgroups"], check=True)
    yield
    # A view server may hold it open for a moment longer.
    subprocess.run(["umount", "--lazy", "/proc/cgroups"], check=True)


def test_controllers_that_the_kernel_does_not_list_are_enabled_in_a_view(unlisted, new_agent, start):
    assert not {"memory", "cpuset"} & set(controllers(Path("/proc/cgroups").read_text()))
    new_agent().start()
    seen = controllers(start("--cpus", "1", "--memory", "512MiB").read("/proc/cgroups"))
    assert all(seen[name][1] == "1" for name in REQUIRED), seen


@pytest.mark.skipif(not V2, reason="needs cgroup v2 alone: with v1 the kernel lists its controllers; tests/vm has it")
def test_a_jvm_knows_its_container_where_the_kernel_lists_no_controllers(unlisted, new_agent, start):
    installed("java", "openjdk-17-jdk-headless")
    new_agent().start()
    container = start("--cpus", "1", "--memory", "512MiB")
    flags = container.run("java", "-XX:+PrintFlagsFinal", "-version", timeout=120)
    heap = int(re.search(r"MaxHeapSize\s+=\s+(\d+)", flags)[1])
    assert heap <= (256 << 20), "more than half of the container's memory"
    log = container.run("java", "-Xlog:os+container=debug:stdout", "-version", timeout=120)
    assert "required controllers disabled" not in log


# ---- CPUs and NUMA nodes ----


def test_cpus_and_nodes_link_to_each_other(agent, start):
    container = start("--cpus", "1")
    online = cpu_list(container.read(f"{CPU}/online"))
    links = container.run("sh", "-c", f"ls -d {NODE}/node*/cpu[0-9]*").split()
    assert sorted(int(link.rsplit("cpu", 1)[1]) for link in links) == online
    for link in links:
        node, cpu = link.split("/")[-2:]
        assert container.run("readlink", "-f", link).strip() == f"{CPU}/{cpu}"
        assert container.run("readlink", "-f", f"{CPU}/{cpu}/{node}").strip() == f"{NODE}/{node}"
        assert container.run("cat", f"{link}/topology/core_id") == Path(CPU, cpu, "topology/core_id").read_text()
    # As many as cAdvisor's GetNodesInfo counts: links of nodes to CPUs that are online.
    shown = container.read("/proc/cpuinfo").count("processor\t")
    assert len(links) == shown


def test_links_come_and_go_with_the_cpus_that_are_online(agent, start):
    need.idle_cpus(2)
    container = start("--cpuset", "0-1", "--cpus", "1.5")
    count = lambda: len(container.run("sh", "-c", f"ls -d {NODE}/node0/cpu[0-9]*; true").split())
    follows = lambda: count() == container.online_file()
    eventually(follows)
    container.burn(2)
    need.of_idle_cpus(lambda: container.online_file() == 2, container)
    eventually(follows)
    assert container.run("readlink", f"{CPU}/cpu1/node0").strip() == "../../node/node0"


def test_erlang_binds_its_schedulers(agent, start):
    installed("erl", "erlang-base")
    container = start("--cpus", "2")
    answer = container.run("env", f"HOME={os.environ.get('HOME', '/root')}", "erl", "+sbt", "db", "-noshell", "-eval", 'io:format("ok"),halt().', timeout=120)
    assert answer.endswith("ok")


def test_hwloc_sees_the_containers_cpus_and_memory(agent, start):
    installed("lstopo-no-graphics", "hwloc-nox")
    container = start("--cpus", "1", "--memory", "256MiB")
    text = container.run("lstopo-no-graphics", "--of", "console", "--no-io")
    assert re.search(r"^Machine \(256MB", text), text
    assert len(re.findall(r"\bPU L#", text)) == 1, text


def test_what_nodes_have_adds_up_to_the_view(agent, start):
    container = start("--memory", "256MiB")
    nodes = container.run("sh", "-c", f"ls -d {NODE}/node[0-9]*").split()
    texts = {path: container.read(f"{path}/meminfo") for path in nodes}
    totals = [int(re.search(r"MemTotal:\s+(\d+) kB", text)[1]) << 10 for text in texts.values()]
    assert 0 <= container.mem_total() - sum(totals) < (len(nodes) << 10)
    assert all(total > 0 for total in totals)


def test_cpus_are_numbered_without_a_gap_and_arrays_reach_the_last(agent, start):
    need.cpus(2)
    container = start("--cpus", "1")
    real = cpu_list(Path(CPU, "online").read_text())
    possible, present, online = (cpu_list(container.read(f"{CPU}/{name}")) for name in ("possible", "present", "online"))
    # For programs that index by number, or whose arrays are as long as there are possible CPUs (HotSpot, libbpf) or as the highest number
    # (TCMalloc).
    assert online == present == [0] and possible == list(range(real[-1] + 1))
    assert stat_cpus(container.read("/proc/stat")) == online
    # For programs that list directories, as htop does: a CPU that is possible and not present has none.
    listed = container.run("sh", "-c", f"ls {CPU}").split()
    assert [name for name in listed if re.fullmatch(r"cpu\d+", name)] == ["cpu0"]


def test_collectl_sees_a_busy_cpu(agent, start):
    installed("collectl", "collectl")
    container = start("--cpus", "1")
    container.burn(1)

    def busy():
        # CPU, User, Nice, Sys, ...: how much it is depends on what else this machine does.
        lines = container.run("collectl", "-sC", "-c2", "-i1", timeout=60).splitlines()
        rows = [line.split() for line in lines if re.match(r"^\s*\d", line)]
        return [words for words in rows if words[0] == "0" and int(words[1]) + int(words[3]) > 5]

    eventually(busy, within=30)


# ---- proc and sysfs in user namespaces ----

NESTED = [
    pytest.param(["unshare", "-Urpf", "--mount-proc", "echo", "ok"], id="proc"),
    pytest.param(["unshare", "-Urmn", "sh", "-c", "mount -t sysfs none /mnt && echo ok"], id="sysfs"),
]


@pytest.mark.parametrize("words", NESTED)
def test_proc_and_sysfs_can_be_mounted_in_a_user_namespace_inside(agent, start, words):
    namespaces()
    container = start("--cpus", "1")
    assert container.run(*words).strip() == "ok"
    assert container.online_file() == 1
    assert {f"{UNCOVERED}/proc", f"{UNCOVERED}/sys"} <= set(mount_points(container))
    # Readers of whole trees do not meet them.
    assert ".elbowroom" not in container.run("ls", "-A", CPU)


def test_bubblewrap_runs_inside(agent, start):
    namespaces()
    installed("bwrap", "bubblewrap")
    words = "bwrap --ro-bind / / --unshare-user --unshare-pid --proc /proc --dev /dev echo ok".split()
    assert start("--cpus", "1").run(*words).strip() == "ok"


def test_copies_of_proc_go_with_the_view(agent, start):
    container = start("--cpus", "1")
    assert f"{UNCOVERED}/proc" in mount_points(container)
    agent.cli("detach", container.name, check=True)
    eventually(lambda: not [path for path in mount_points(container) if path.startswith(CPU)])
    agent.cli("attach", container.name, check=True)
    eventually(lambda: f"{UNCOVERED}/proc" in mount_points(container))


def test_copies_of_proc_are_gone_after_every_process_of_the_agent_was_killed_and_one_has_followed(new_agent, start):
    killed = new_agent().start()
    container = start("--cpus", "1")
    assert f"{UNCOVERED}/sys" in mount_points(container)
    killed.destroy()
    follower = new_agent().start()
    follower.attached(container)
    assert container.online_file() == 1
    assert mount_points(container).count(f"{UNCOVERED}/proc") == 1
    assert follower.stop() == 0
    assert not [path for path in mount_points(container) if path.startswith(CPU)]


# By the agent, and by the hook, which runs before an engine masks anything.
HOW = [pytest.param([], id="agent"), pytest.param(["--runtime", "elbowroom"], id="hook")]


@pytest.mark.parametrize("how", HOW)
def test_what_an_engine_masks_stays_masked(agent, docker, how):
    names = [f"elbowroom-test-live-masked-{n}" for n in range(5)]
    for container in [docker.run("--cpus", "1", *how, name=name) for name in names]:
        agent.attached(container)
        eventually(lambda: container.online_file() == 1)
        always(lambda: [path for path in mount_points(container) if path.startswith(UNCOVERED)] == [], during=0.3)
        inside = container.run("sh", "-c", f"cat {UNCOVERED}/proc/sys/kernel/core_pattern 2>&1; true")
        assert "No such file" in inside, inside


@pytest.mark.parametrize("how", HOW)
def test_what_an_engine_does_not_mask_is_kept(agent, docker, how):
    container = docker.run("--cpus", "1", "--security-opt", "systempaths=unconfined", *how, name="elbowroom-test-live-unmasked")
    agent.attached(container)
    eventually(lambda: f"{UNCOVERED}/proc" in mount_points(container))
    # No walk gets there: what the container starts may have its /sys, and not all of its /proc.
    assert container.run("ls", "-A", UNCOVERED) == ""


# ---- mount tables ----


def test_no_mount_of_a_view_has_a_size(agent, start):
    container = start("--cpus", "1")
    # No path leads to what is below the last one.
    ours = [path for path in mount_points(container) if path.startswith((CPU, NODE, "/proc/")) and not path.startswith(f"{UNCOVERED}/")]
    sizes = {path: container.run("stat", "-f", "-c", "%b", path).strip() for path in ours}
    assert len(sizes) > 10 and set(sizes.values()) == {"0"}, sizes
    # df's status is of every mount, the host's dead ones included.
    assert "elbowroom" not in container.run("sh", "-c", "df; true")


def test_a_program_that_looks_at_each_mount_point_finds_a_directory_or_file(agent, start):
    container = start("--cpus", "1")
    assert f"{UNCOVERED}/proc" in mount_points(container)
    # As lsof does, and psutil's own tests; in the host's mounts there may be some that are covered.
    looked = container.run("sh", "-c", "cut -d' ' -f5 /proc/self/mountinfo | xargs stat -c '' 2>&1; true")
    assert CPU not in looked and "/proc/" not in looked, looked
    # What is found at the copies' names are no copies.
    assert container.run("sh", "-c", f"ls -A {UNCOVERED}/proc {UNCOVERED}/sys").split() == [f"{UNCOVERED}/proc:", f"{UNCOVERED}/sys:"]


def test_a_users_own_mount_inside_a_directory_of_the_view_stays(agent, docker, tmp_path):
    need.cpus(2)
    mine = tmp_path / "online"
    mine.write_text("0-7\n")
    container = docker.run("--cpus", "1", "-v", f"{mine}:{CPU}/online:ro", name="elbowroom-test-live-own")
    eventually(lambda: cpu_list(container.read(f"{CPU}/present")) == [0])
    assert container.read(f"{CPU}/online") == "0-7\n"
    shown = agent.json("show", container.name)
    assert any(f"{CPU}/online" in line for line in shown["missing"]), shown["missing"]
    agent.cli("detach", container.name, check=True)
    eventually(lambda: len(cpu_list(container.read(f"{CPU}/present"))) == os.cpu_count())
    assert container.read(f"{CPU}/online") == "0-7\n"


# ---- what a process sees beside a page ----


def test_a_process_that_was_killed_for_memory_is_counted(agent, start):
    container = start("--memory", "64MiB")
    killed = lambda: int(re.search(r"^oom_kill (\d+)", container.read("/proc/vmstat"), re.M)[1])
    assert killed() == 0
    kill = f"{PYTHON} -c 'import sys; sys.stdout = [bytearray(b\"x\" * (1 << 20)) for _ in range(1 << 12)]'; echo $?"
    assert container.run("sh", "-c", kill).split() == ["137"]
    eventually(lambda: killed() == 1)


def test_a_fast_sampler_sees_motion(agent, start):
    container = start("--cpus", "1")
    container.burn(1)
    sampler = (
        "import time\n"
        "def used():\n"
        "    words = open('/proc/stat').readline().split()\n"
        "    return sum(map(int, words[1:4]))\n"
        "seen = [used()]\n"
        "for _ in range(20):\n"
        "    time.sleep(0.1)\n"
        "    seen.append(used())\n"
        "print(sum(a == b for a, b in zip(seen, seen[1:])))\n"
    )
    # A machine that others keep busy may stop the agent, or the container, for as long as a sample.
    need.of_idle_cpus(lambda: int(container.run("/usr/bin/python3", "-c", sampler)) <= 1, container, within=30)


def test_the_load_page_counts_the_threads_that_are_there(agent, start):
    container = start("--cpus", "1")

    def agrees():
        threads = int(container.read("/proc/loadavg").split()[3].split("/")[1])
        tasks = [len(os.listdir(f"/proc/{pid}/task")) for pid in group_pids(container)]
        return threads == sum(tasks)

    eventually(agrees)


def group_pids(container):
    """The processes of a container's cgroup."""
    own = set(Path(f"/proc/{container.pid}/cgroup").read_text().splitlines())
    found = []
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            if own == set(path.read_text().splitlines()):
                found.append(path.parent.name)
        except OSError:
            pass
    return found


def test_pools_of_huge_pages_of_a_node_are_those_that_its_programs_can_use(agent, start):
    # /sys/kernel/mm/hugepages, which no view covers, says how many there are; numastat, DPDK and VPP ask for each node.
    pools = sorted(Path(NODE).glob("node*/hugepages/*/*_hugepages"))
    if not pools:
        pytest.skip("needs a kernel with HugeTLB")
    container = start("--memory", "256MiB")
    shown = container.run("sh", "-c", f"grep -r . {NODE}/node*/hugepages").split()
    assert sorted(shown) == [f"{path}:{path.read_text().strip()}" for path in pools]
