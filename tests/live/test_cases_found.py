"""Which containers are found, how, and whose view they get: copies of a mount namespace, agents of a node, rare layouts."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from kit.cgroup import ROOT, V2
from kit.container import meminfo
from kit.wait import always, eventually

CPUS = os.cpu_count()
MIB = 1 << 20
HEX = "4f1c2a9be07d53c8a6e1d4b70935fa8210c7be694d3528af71e60b9c8d2f5a34"
NODE = lambda: meminfo(Path("/proc/meminfo").read_text())["MemTotal"]


# ---- containers in containers ----


def inner(binary, run_dir, *command):
    name = f"elbowroom-test-live-inner-{os.getpid()}"
    return [binary, "--run-dir", run_dir, "run", "--name", name, "--cpus", "1", "--memory", "128MiB", "--", *command]


def test_a_run_in_a_run_has_its_own_view_and_the_outer_keeps_its(agent, start, binary, run_dir):
    outer = start("--memory", "512MiB")
    seen = outer.run(*inner(binary, run_dir, "sh", "-c", "cat /proc/meminfo; getconf _NPROCESSORS_ONLN >&2; sleep 1; cat /proc/meminfo"))
    assert [line.split()[1] for line in seen.splitlines() if line.startswith("MemTotal")] == ["131072", "131072"]
    assert outer.mem_total() == 512 * MIB
    assert outer.run(*inner(binary, run_dir, "getconf", "_NPROCESSORS_ONLN")).strip() == "1"


def test_a_run_in_a_run_has_its_own_view_where_no_agent_runs(start, binary, run_dir):
    outer = start("--memory", "512MiB")
    assert outer.run(*inner(binary, run_dir, "head", "-1", "/proc/meminfo")).split() == ["MemTotal:", "131072", "kB"]
    assert outer.mem_total() == 512 * MIB
    outer.close()
    eventually(lambda: not (run_dir / "runs").exists())


def test_what_only_copies_the_namespace_keeps_the_view_that_was_there(agent, start):
    outer = start("--memory", "512MiB")
    assert outer.run("unshare", "-m", "head", "-1", "/proc/meminfo").split()[1] == str(512 * 1024)


@pytest.mark.native
def test_what_an_engine_in_a_container_makes_has_its_own_view(agent, docker):
    if V2:
        pytest.skip("needs cgroup v1: on v2 the outer container's processes have to move first")
    # What --privileged gives, as far as it is needed here, and where that is allowed.
    options = ["--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined", "--volume", "/sys/fs/cgroup:/groups"]
    outer = docker.run(*options, "--memory", "300m", name="elbowroom-test-outer")
    agent.attached(outer)
    # A copy of the outer mount namespace, as a runtime begins with.
    groups = [f"/groups/{name}/docker/{outer.id}/docker/{HEX}" for name in ("memory", "cpu")]
    outer.run("sh", "-c", f"""mkdir -p {" ".join(groups)} || exit 1
        echo {128 * MIB} >{groups[0]}/memory.limit_in_bytes
        (for group in {" ".join(groups)}; do echo 0 >$group/cgroup.procs; done; exec unshare -m sleep 1000) >/dev/null 2>&1 </dev/null &""")
    row = eventually(lambda: next((row for row in agent.list() if row["id"] == f"/docker/{outer.id}/docker/{HEX}" and row["attached"]), None))
    assert row["engine"] == "docker" and row["path"] == f"/docker/{outer.id}/docker/{HEX}" and row["labels"]["governors"] is False
    [inside] = (ROOT / "memory" / row["path"].lstrip("/") / "cgroup.procs").read_text().split()
    assert meminfo(Path(f"/proc/{inside}/root/proc/meminfo").read_text())["MemTotal"] == 128 * MIB
    eventually(lambda: outer.mem_total() == 300 * MIB)


# ---- agents of the node ----


def test_a_container_in_the_hosts_pid_namespace_sees_the_node_and_show_says_so(agent, docker):
    container = docker.run("--pid", "host", "--memory", "300m", "--volume", "/:/host:ro", name="elbowroom-test-node")
    row = eventually(lambda: (found := agent.find(container)) and "PID namespace" in (found["attach_note"] or "") and found)
    assert not row["attached"]
    always(lambda: container.mem_total() == NODE(), during=0.5)
    assert "PID namespace" in agent.cli("show", container.name).stdout
    # A view that is asked for by hand is given.
    assert agent.cli("attach", container.name).returncode == 0
    assert container.mem_total() == 300 * MIB


@pytest.mark.parametrize("options, containers", [(["--label", "elbowroom.dev/views=on"], ""), ([], "host_pid = true\n")])
def test_one_that_is_asked_for_has_its_view_in_the_hosts_pid_namespace(new_agent, docker, options, containers):
    agent = new_agent(containers=containers).start()
    container = docker.run("--pid", "host", "--memory", "300m", *options, name="elbowroom-test-node-asked")
    agent.attached(container)
    eventually(lambda: container.mem_total() == 300 * MIB)


def test_the_hook_leaves_an_agent_of_the_node_alone(agent, docker):
    container = docker.run("--runtime", "elbowroom", "--pid", "host", "--memory", "300m", name="elbowroom-test-node-hook")
    assert container.mem_total() == NODE()
    other = docker.run("--runtime", "elbowroom", "--memory", "300m", name="elbowroom-test-hook")
    assert other.mem_total() == 300 * MIB


# ---- layouts ----


@pytest.fixture
def resident():
    """Puts a process with a mount namespace of its own into a cgroup, by the directories of that."""
    made = []

    def put(*directories, command=("sleep", "1000"), flags=("-m",)):
        script = " && ".join(f"echo 0 >{directory}/cgroup.procs" for directory in directories)
        words = ["sh", "-c", f'{script} && exec unshare {" ".join(flags)} "$@"', "sh", *command]
        made.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
        return made[-1]

    yield put
    for process in made:
        process.kill()
        process.wait()


def nested(hand_made, path):
    """A cgroup with all that are around it."""
    parts = path.split("/")
    return [hand_made("/".join(parts[: count + 1])) for count in range(len(parts))][-1]


def row_of(agent, path):
    """The row of the container whose cgroup is `path`, or None."""
    return next((row for row in agent.list() if row["path"] == path), None)


@pytest.mark.native
def test_a_container_of_a_remapped_docker_has_its_name_and_labels(new_agent, hand_made, resident, scratch):
    group = nested(hand_made, f"elbowroom-test-live-remapped/{HEX}")
    state = scratch / "docker/data/231072.231072/containers" / HEX
    state.mkdir(parents=True)
    (state / "config.v2.json").write_text(json.dumps({"Name": "/web", "Config": {"Labels": {"elbowroom.dev/views": "off"}}}))
    resident(*group.directories)
    agent = new_agent().start()

    def let_alone():
        row = next((row for row in agent.list() if row["id"] == HEX), None)
        assert row, "it is not listed"
        assert (row["engine"], row["name"], row["labels"]["views"]) == ("docker", "web", False)
        return not row["attached"] and "elbowroom.dev/views" in (row["attach_note"] or "")

    eventually(let_alone)


@pytest.mark.native
@pytest.mark.parametrize(
    "path, engine, known",
    [
        (f"elbowroom-test-live.service/libpod-payload-{HEX}", "podman", HEX),
        (f"elbowroom-test-live.slice:cri-containerd:{HEX}", "containerd", HEX),
        ("elbowroom-test-live/lxc.payload.web", "lxc", "web"),
    ],
)
def test_a_rare_layout_is_known_by_its_path(new_agent, hand_made, resident, path, engine, known):
    group = nested(hand_made, path)
    resident(*group.directories)
    agent = new_agent().start()
    # The process may be on its way into it.
    row = eventually(lambda: row_of(agent, f"/{path}"))
    assert (row["engine"], row["id"]) == (engine, known)


# ---- where a container's processes are ----


@pytest.fixture
def plain_group():
    """A cgroup of v2 for a test, without anything that is turned on below it, and what is made in it."""
    if not V2:
        pytest.skip("needs cgroup v2, where groups have types and processes are in leaves")
    (ROOT / "cgroup.subtree_control").write_text("+cpu +memory")
    group = ROOT / f"elbowroom-test-live-type-{os.getpid()}"
    group.mkdir()
    yield group
    for child in [*group.iterdir()]:
        if child.is_dir():
            remove(child)
    remove(group)


def remove(group):
    def gone():
        try:
            group.rmdir()
        except OSError as error:
            raise AssertionError(f"{group}: {error}") from None
        return True

    eventually(gone)


def test_the_processes_of_a_threaded_cgroup_are_found(plain_group, new_agent, resident):
    threaded = plain_group / "workers"
    threaded.mkdir()
    (threaded / "cgroup.type").write_text("threaded")
    agent = new_agent(containers=f'cgroups = ["/{plain_group.name}/workers"]\n').start()
    process = resident(plain_group, threaded)
    try:
        def attached():
            row = row_of(agent, f"/{plain_group.name}/workers")
            assert row, "it is not listed"
            assert row["attached"], row["attach_note"]
            return True

        eventually(attached)
    finally:
        process.kill()
        process.wait()


def test_limits_at_a_containers_root_show_the_view_where_its_processes_moved_down(plain_group, new_agent, resident):
    init = plain_group / "init"
    init.mkdir()
    command = ("sh", "-c", "umount --lazy /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && echo 0 >/sys/fs/cgroup/init/cgroup.procs && exec sleep 1000")
    process = resident(plain_group, command=command, flags=("-m", "-C"))
    try:
        eventually(lambda: str(process.pid) in (init / "cgroup.procs").read_text())
        (plain_group / "memory.max").write_text(str(256 * MIB))
        agent = new_agent(containers=f'cgroups = ["/{plain_group.name}"]\n').start()
        eventually(lambda: (row := row_of(agent, f"/{plain_group.name}")) and row["attached"])
        mounts = Path(f"/proc/{process.pid}/mountinfo").read_text().splitlines()
        views = [line.split()[4] for line in mounts if "fuse.elbowroom" in line]
        assert "/sys/fs/cgroup/memory.max" in views, views
    finally:
        process.kill()
        process.wait()
