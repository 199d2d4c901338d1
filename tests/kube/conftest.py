"""A real Kubernetes of one node, an agent on it, and `elbowroom-kube` between them."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests/live"), str(REPOSITORY / "tests/kube")]

from kit import cgroup, leftovers  # noqa: E402
from kit.agent import Agent  # noqa: E402
from kit.wait import PATIENCE, eventually  # noqa: E402
from kube.cluster import NODE, STATE, Cluster, why_not  # noqa: E402
from kube.image import IMAGE  # noqa: E402


def binary(variable, name):
    path = Path(os.environ.get(variable, REPOSITORY / "target/release" / name)).resolve()
    if not os.access(path, os.X_OK):
        pytest.exit(f"{path} is not there: run 'make build', or set {variable}", 2)
    return path


@pytest.fixture(scope="session")
def scratch():
    if os.geteuid() != 0:
        pytest.skip("needs root: cgroups and mounts are made")
    lock = leftovers.alone()
    if lock is None:
        pytest.exit(f"another run of tests holds {leftovers.LOCK}: wait for it", 2)
    with lock, tempfile.TemporaryDirectory(prefix="elbowroom-kube-") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def strangers():
    """Containers that were here before us."""
    return sorted(cgroup.strangers())


@pytest.fixture(scope="session")
def cluster(scratch, strangers):
    reason = why_not()
    if reason:
        pytest.skip(f"needs {reason}")
    made = Cluster(scratch)
    try:
        yield made.start()
    finally:
        made.stop()
        assert not STATE.exists()


@pytest.fixture(scope="session")
def new_agent(scratch, strangers):
    """Makes agents, one after another in the same run directory."""
    program = binary("ELBOWROOM", "elbowroom")
    config = f"[containers]\nexclude = {json.dumps(strangers)}\nlabels = \"all\"\n[doctor]\nenabled = false\n"
    made = []

    def new():
        made.append(Agent(program, scratch / "run", scratch / f"agent{len(made)}.log", config))
        return made[-1].start()

    yield new
    for agent in made:
        if agent.stop() is not None:
            eventually(lambda agent=agent: not agent.leftovers())


@pytest.fixture(scope="session")
def agent(cluster, new_agent):
    return new_agent()


class Speaker:
    """`elbowroom-kube`, started by hand."""

    def __init__(self, cluster, run_dir, log):
        self.cluster, self.run_dir, self.log = cluster, run_dir, log
        self.process = None

    def start(self, *words):
        program = binary("ELBOWROOM_KUBE", "elbowroom-kube")
        words = [program, "--run-dir", self.run_dir, "--node", NODE, "--hold", "1s", "--linger", "3s", *words]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig)},
            )  # fmt: skip
        return self

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(30 * PATIENCE)

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def speaker(cluster, agent, scratch, request):
    made = Speaker(cluster, agent.run_dir, scratch / "speaker.log")
    yield made.start(*getattr(request, "param", []))
    if made.process.poll() is None:
        assert made.stop() == 0, made.log.read_text()


class Pod:
    """A pod with one container, `app`."""

    def __init__(self, cluster, agent, name, uid):
        self.cluster, self.agent, self.name, self.uid = cluster, agent, name, uid

    def row(self):
        """What the agent says of it, once its view is in it."""

        def attached():
            # Not by its name: the container of one that is deleted runs on for a moment, and the next test's may have that name.
            mine = [row for row in self.agent.list() if (row["pod"] or {}).get("uid") == self.uid]
            assert mine, f"{self.name} is not listed"
            assert mine[0]["attached"], f"{self.name} is not attached: {mine[0]['attach_note']}"
            return mine[0]

        return eventually(attached, within=30)

    def show(self):
        return self.agent.json("show", self.row()["id"])

    def read(self, path):
        """A file as programs in the container read it."""
        pid = next(int(pid) for root in hierarchies() for pid in processes(root, self.row()["path"]))
        words = ["nsenter", "--target", str(pid), "--mount", f"--root=/proc/{pid}/root", "/busybox", "cat", path]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def annotate(self, *words):
        self.cluster.kubectl("annotate", "--overwrite", "pod", self.name, *words)

    def events(self):
        """Reasons of the Events about it."""
        items = self.cluster.get("events.events.k8s.io")["items"]
        return [item for item in items if item["regarding"].get("uid") == self.uid]


def hierarchies():
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [words[1] for words in mounts if words[2] in ("cgroup", "cgroup2")]


def processes(root, path):
    with contextlib.suppress(OSError):
        return (Path(root) / path.lstrip("/") / "cgroup.procs").read_text().split()
    return []


SLEEP = ("/busybox", "sleep", "infinity")


def make_pod(cluster, name, requests=None, limits=None, annotations=None, command=SLEEP, node=NODE, wait=True, sidecar=None):
    """Makes a pod and, with `wait`, waits until it runs; its uid."""
    container = {
        "name": "app", "image": IMAGE, "imagePullPolicy": "Never", "command": list(command),
        "resources": {"requests": requests or {}, "limits": limits or {}},
    }  # fmt: skip
    spec = {
        "hostNetwork": True, "containers": [container], "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False, "enableServiceLinks": False, **({"nodeName": node} if node else {}),
    }  # fmt: skip
    if sidecar:
        limited = {"name": "side", "command": list(SLEEP), "restartPolicy": "Always", "resources": {"limits": sidecar}}
        spec["initContainers"] = [{**container, **limited}]
    meta = {"name": name, "annotations": annotations or {}}
    # The account that a new namespace's pods run as comes from a controller.
    eventually(lambda: cluster.get("serviceaccount", "default"), within=30)
    pod = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    created = json.loads(cluster.kubectl("create", "--filename", "-", "--output", "json", input=pod).stdout)
    if wait:
        phase = lambda: cluster.get("pod", name)["status"]["phase"]
        eventually(lambda: phase() == "Running", within=60, every=0.2)
    return created["metadata"]["uid"]


@pytest.fixture
def new_pod(cluster, agent):
    """Makes pods: `new_pod("web", requests={...}, limits={...}, annotations={...})`."""
    made = []

    def new(name, *resources, **options):
        made.append(name)
        return Pod(cluster, agent, name, make_pod(cluster, name, *resources, **options))

    yield new
    for name in made:
        cluster.kubectl("delete", "pod", name, "--force", "--grace-period=0", "--ignore-not-found")
