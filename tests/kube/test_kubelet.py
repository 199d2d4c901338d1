"""A real kubelet that protects its pods' memory (MemoryQoS) beside an agent that protects it too: both write the same files.

Needs cgroup v2: `tests/vm/run tests/kube/test_kubelet.py` starts a guest that has it."""

import subprocess

import pytest

from conftest import Pod, binary
from kit import cgroup
from kit.agent import Agent
from kit.wait import always, eventually
from kube.cluster import CGROUPS, NODE
from kube.standalone import Standalone, why_not_memory_qos

MIB = 1 << 20
PODS = {
    "burstable": {"requests": {"memory": "64Mi"}, "limits": {"memory": "160Mi"}},
    "guaranteed": {"limits": {"memory": "48Mi", "cpu": "100m"}},
    "besteffort": {},
}
FILES = ("memory.min", "memory.low", "memory.high")
# The kubelet writes the cgroups of its classes once a minute.
MINUTE = 60


@pytest.fixture(scope="module")
def node(scratch, strangers):
    reason = why_not_memory_qos()
    if reason:
        pytest.skip(f"needs {reason}")
    home = scratch / "alone"
    home.mkdir()
    made = Standalone(home)
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture(scope="module")
def pods(node):
    """The cgroups of three containers by name, and what the kubelet wrote before an agent came."""
    for name, resources in PODS.items():
        node.put(name, **resources)
    groups = {name: running(node, name) for name in PODS}
    return groups, written()


@pytest.fixture
def agent(pods, scratch):
    """An agent that enforces: it must stop, and leave what the kubelet wrote."""
    config = '[containers]\nlabels = "all"\n[doctor]\nenabled = false\n'
    made = Agent(binary("ELBOWROOM", "elbowroom"), scratch / "run", scratch / "kubelet-agent.log", config, args=["--enforce"])
    made.start()
    for name in PODS:
        eventually(lambda name=name: row(made, name), within=30)
    yield made

    def gone():
        left = made.leftovers()
        assert not left, f"after a clean stop there is left: {left}\n{made.tail()}"
        return True

    if made.stop() is not None:
        # On a machine that is too busy to unmount in time an agent says so, and the next one does it.
        if "views stay in" in made.tail():
            made.start().stop()
        eventually(gone)


@pytest.fixture
def needy(agent):
    """Makes containers say that they need memory, until the test ends: then the agent protects what they are entitled to."""
    saying = []

    def start(name):
        words = [agent.binary, "--run-dir", agent.run_dir, "probe", "send", "--container", row(agent, name)["id"], "-"]
        says = f"while echo red; do sleep 0.5; done | {' '.join(map(str, words))}"
        saying.append(subprocess.Popen(["sh", "-c", says], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    yield start
    for process in saying:
        # It ends with the agent, which no longer answers it.
        process.terminate()
        process.wait()


def running(node, name):
    return eventually(lambda: node.cgroup_of(name), within=60, every=0.3)


def row(agent, name):
    rows = [row for row in agent.list() if (row["pod"] or {}).get("name") == f"{name}-{NODE}"]
    assert rows and rows[0]["attached"], f"{name}: {rows}"
    return rows[0]


def knob(path, file):
    text = (cgroup.ROOT / path / file).read_text().strip()
    return text if text == "max" else int(text)


def protection(path):
    return [knob(path, file) for file in FILES]


def written():
    """What is in the files of all of the kubelet's cgroups."""
    root = cgroup.ROOT / CGROUPS
    return {str(path.relative_to(cgroup.ROOT)): protection(path.relative_to(cgroup.ROOT)) for path in root.glob("**/")}


def standing(agent, name):
    return eventually(lambda: agent.json("show", row(agent, name)["id"])["memory"])


def foreign_writers(agent):
    """How many such alerts have begun."""
    return dict(agent.ask("alerts")["alerts"]["begun"]).get("FOREIGN_WRITER", 0)


def test_the_kubelet_writes_what_pods_request(pods):
    groups, before = pods
    high = (64 * MIB + int(0.9 * (160 - 64) * MIB)) // 4096 * 4096
    assert protection(groups["burstable"]) == [0, 64 * MIB, high]
    assert protection(groups["guaranteed"]) == [48 * MIB, 0, "max"]
    assert protection(groups["besteffort"])[:2] == [0, 0]
    # Of pods and classes too: a claim counts only as far as all groups above make it.
    assert before[groups["burstable"].rpartition("/")[0]][:2] == [0, 64 * MIB]
    assert before[f"{CGROUPS}/kubepods/burstable"][:2] == [0, 64 * MIB]
    assert before[f"{CGROUPS}/kubepods"][:2] == [(64 + 48) * MIB, 0]


def test_what_the_kubelet_wrote_is_the_owners_claim(pods, agent):
    groups, before = pods
    for name, claim in {"burstable": 64 * MIB, "guaranteed": 48 * MIB, "besteffort": 0}.items():
        eventually(lambda name=name: standing(agent, name)["reservation"] == claim, within=20)
        assert agent.json("explain", row(agent, name)["id"])["memory"]["reservation"] == claim
        assert row(agent, name)["memory"]["reservation"] == claim
    uid = row(agent, "burstable")["pod"]["uid"]
    view = Pod(None, agent, f"burstable-{NODE}", uid).read("/sys/fs/cgroup/memory.high")
    assert int(view) == before[groups["burstable"]][2]
    assert foreign_writers(agent) == 0


def test_a_kubelet_that_writes_again_raises_no_alert_and_both_are_in_force(node, pods, agent, needy):
    groups, before = pods
    container, kind = groups["burstable"], f"{CGROUPS}/kubepods/burstable"
    ours = lambda path: knob(path, "memory.low") > 64 * MIB
    theirs = lambda path: knob(path, "memory.low") == 64 * MIB
    needy("burstable")
    eventually(lambda: ours(container) and ours(kind), within=30)
    # In its minute it writes its class, and not the container.
    eventually(lambda: theirs(kind), within=MINUTE)
    assert ours(container) and standing(agent, "burstable")["reservation"] == 64 * MIB
    eventually(lambda: ours(kind), within=40)
    # A pod with a CPU of its own changes the cpusets of the others: the runtime writes all that the kubelet ever said of them.
    node.put("pinned", limits={"cpu": "1", "memory": "16Mi"})
    eventually(lambda: theirs(container), within=60)
    assert standing(agent, "burstable")["reservation"] == 64 * MIB
    eventually(lambda: ours(container) and ours(kind) and standing(agent, "burstable")["enforced"], within=40)
    always(lambda: foreign_writers(agent) == 0, during=MINUTE // 3, every=0.5)
    assert knob(container, "memory.high") == before[container][2]
    node.remove("pinned")


def test_another_request_is_another_claim(node, pods, agent, needy):
    groups, _ = pods
    node.put("burstable", requests={"memory": "80Mi"}, limits={"memory": "160Mi"})
    eventually(lambda: node.cgroup_of("burstable") != groups["burstable"], within=60, every=0.3)
    groups["burstable"] = running(node, "burstable")
    assert knob(groups["burstable"], "memory.low") >= 80 * MIB
    eventually(lambda: standing(agent, "burstable")["reservation"] == 80 * MIB, within=30)
    assert foreign_writers(agent) == 0


@pytest.mark.parametrize("comes_back", [True, False], ids=["restarted", "restored"])
def test_what_the_kubelet_wrote_stands_after_a_kill_of_all(pods, agent, needy, comes_back):
    groups, _ = pods
    container = groups["burstable"]
    needy("burstable")
    eventually(lambda: knob(container, "memory.low") > 80 * MIB, within=30)
    agent.destroy()
    if comes_back:
        agent.start()
        eventually(lambda: standing(agent, "burstable")["reservation"] == 80 * MIB, within=30)
        assert agent.stop() == 0
    else:
        assert agent.cli("restore").returncode == 0
    left = {path: values[:2] for path, values in written().items()}
    assert left[container] == left[container.rpartition("/")[0]] == left[f"{CGROUPS}/kubepods/burstable"] == [0, 80 * MIB]
    assert left[groups["guaranteed"]] == [48 * MIB, 0] and left[f"{CGROUPS}/kubepods"] == [(80 + 48) * MIB, 0]
    assert all(low == 0 for path, (_, low) in left.items() if "burstable" not in path), left
    # The mounts of one that was killed go with the next one.
    agent.start()
