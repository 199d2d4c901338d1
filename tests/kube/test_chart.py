"""The chart on a node: the agent in its pod, with NRI; killed and upgraded under a reader; taken away without a trace.

These tests come first: no other agent may be at work. Pods have the host's network, as the cluster has no other, and the agent a run
directory of the tests' own; the rest is the chart as it is."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from conftest import REPOSITORY, binary, make_pod
from kit.memory import host_memory
from kit.traces import nothing_left, traces
from kit.wait import eventually
from kube.cluster import ENGINES
from test_node import conditions, taints

CHART = REPOSITORY / "packaging/kubernetes/helm/elbowroom"
IMAGE, NEXT = (f"docker.io/library/elbowroom:{tag}" for tag in ("0.1.0", "next"))
MIB = 1 << 20
# What a program that looks once sees.
FIRST = ("/busybox", "sh", "-c", "cat /sys/devices/system/cpu/online; head -n 1 /proc/meminfo; exec /busybox sleep infinity")
SEEN = [["0"], ["MemTotal:", str(200 << 10), "kB"]]
# Counts reads, and keeps what failed.
READER = (
    "/busybox", "sh", "-c",
    "n=0; while :; do cat /proc/meminfo /sys/devices/system/cpu/online >/dev/null 2>>/failed; n=$((n+1)); echo $n >/count; done",
)  # fmt: skip


class Release:
    """The chart, by helm."""

    def __init__(self, cluster, directory):
        self.cluster, self.run_dir = cluster, directory / "pod"
        self.renderer = directory / "on-the-hosts-network"
        self.renderer.write_text("#!/bin/sh\nexec sed 's/^    spec:$/&\\n      hostNetwork: true/'\n")
        self.renderer.chmod(0o755)

    def helm(self, *words):
        environment = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig), "HOME": str(self.cluster.home)}
        words = [ENGINES / "helm", *words, "--namespace", "elbowroom"]
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, config):
        values = {
            "image": {"pullPolicy": "Never"}, "runDir": str(self.run_dir),
            "agent": {"args": ["agent", "--config", str(config), "--state-dir", str(config.with_suffix(".state"))]},
            "env": [{"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"},
                    {"name": "KUBERNETES_SERVICE_PORT", "value": str(self.cluster.ports["api"])}],
        }  # fmt: skip
        file = config.with_suffix(".values")
        file.write_text(json.dumps(values))
        self.helm("install", "elbowroom", CHART, "--create-namespace", "--values", file, "--post-renderer", self.renderer)

    def upgrade(self, *values):
        self.helm("upgrade", "elbowroom", CHART, "--reuse-values", "--set", ",".join(values), "--post-renderer", self.renderer)

    def uninstall(self):
        """As docs/guide/kubernetes.md says."""
        foreground = ["--cascade=foreground", "--ignore-not-found"]
        self.cluster.kubectl("delete", "daemonset", "elbowroom", "--namespace", "elbowroom", *foreground, timeout=120)
        self.helm("uninstall", "elbowroom", "--ignore-not-found", "--wait")

    def agent(self):
        """The agent's pod, once it is ready."""
        pods = self.cluster.get("pods", "--namespace", "elbowroom", "--selector", "app.kubernetes.io/name=elbowroom-agent")["items"]
        ready = [pod for pod in pods if any(c["ready"] for c in pod["status"].get("containerStatuses", []))]
        assert len(ready) == len(pods) == 1, [pod["status"] for pod in pods]
        return ready[0]

    def main_process(self):
        [status] = self.agent()["status"]["containerStatuses"]
        return process(self.cluster, status)


def process(cluster, status):
    """The first process of a container, by its status."""
    rows = [line.split() for line in cluster.ctr("tasks", "list").stdout.splitlines()]
    return next(int(row[1]) for row in rows if row[0] == status["containerID"].removeprefix("containerd://"))


class App:
    """A pod of a user."""

    def __init__(self, cluster, name):
        self.cluster, self.name = cluster, name
        self.root = Path(f"/proc/{self.pid()}/root")

    def pid(self):
        def started():
            [status] = self.cluster.get("pod", self.name)["status"]["containerStatuses"]
            return process(self.cluster, status)

        return eventually(started, within=60)

    def total(self):
        return int((self.root / "proc/meminfo").read_text().split()[1]) << 10

    def sees(self, size):
        return self.total() == size

    def log(self):
        """The words of the two lines that it prints."""

        def printed():
            [file] = (self.cluster.home / "logs").glob(f"*_{self.name}_*/app/0.log")
            lines = file.read_text().splitlines()
            return len(lines) == 2 and [line.split()[3:] for line in lines]

        return eventually(printed)

    def reads(self):
        # It is empty for a moment, before each number.
        return int(eventually(lambda: (self.root / "count").read_text()))

    def failed(self):
        return (self.root / "failed").read_text()


@pytest.fixture
def new_app(cluster):
    made = []

    def new(name, *command, **limits):
        made.append(name)
        make_pod(cluster, name, {"cpu": "10m", "memory": "16Mi"}, limits, command=command)
        return App(cluster, name)

    yield new
    for name in made:
        cluster.kubectl("delete", "pod", name, "--force", "--grace-period=0", "--ignore-not-found")


@pytest.fixture
def release(cluster, scratch, strangers, tmp_path):
    if not (ENGINES / "helm").exists():
        pytest.skip("needs helm: run 'tools/setup kube'")
    if next(scratch.glob("agent*.log"), None):
        pytest.skip("needs no other agent: run this file alone, or first")
    program = binary("ELBOWROOM", "elbowroom")
    programs = [program, program.with_name("elbowroom-runtime"), binary("ELBOWROOM_KUBE", "elbowroom-kube")]
    file = tmp_path / "image.tar"
    subprocess.run([REPOSITORY / "packaging/image", "--libraries", "-o", file, *programs], check=True, capture_output=True)
    cluster.ctr("images", "import", file)
    cluster.ctr("images", "tag", "--force", IMAGE, NEXT)
    made = Release(cluster, scratch)
    made.config = scratch / "agent.toml"
    made.config.write_text(f"[containers]\nexclude = {json.dumps(strangers)}\n[doctor]\nenabled = false\n")
    made.config.chmod(0o600)
    yield made
    with contextlib.suppress(AssertionError):
        made.uninstall()
    cluster.kubectl("delete", "namespace", "elbowroom", "--ignore-not-found", timeout=120)


def test_a_chart_comes_is_killed_upgraded_and_goes(release, cluster, new_app):
    before = traces(release.run_dir)
    reader = new_app("reader", *READER, cpu="1", memory="300Mi")
    eventually(lambda: reader.reads() > 0)

    began = time.monotonic()
    release.install(release.config)
    eventually(lambda: reader.sees(300 * MIB), within=90, every=0.02)
    print(f"\nfrom `helm install` to the first view of a running pod: {time.monotonic() - began:.1f} s")
    first = eventually(release.agent, within=60)
    eventually(lambda: len(conditions(cluster)) == 3, within=60)
    app = new_app("first", *FIRST, cpu="1", memory="200Mi")
    assert app.log() == SEEN

    # A process, which is the container for its engine; then the pod.
    os.kill(release.main_process(), signal.SIGKILL)
    restarts = lambda: release.agent()["status"]["containerStatuses"][0]["restartCount"]
    eventually(lambda: restarts() == 1 and reader.sees(300 * MIB), within=60)
    cluster.kubectl("delete", "pod", first["metadata"]["name"], "--namespace", "elbowroom", "--force", "--grace-period=0")
    eventually(lambda: release.agent()["metadata"]["uid"] != first["metadata"]["uid"] and reader.sees(300 * MIB), within=90)

    release.upgrade("image.tag=next")
    eventually(lambda: release.agent()["spec"]["containers"][0]["image"].endswith(":next") and reader.sees(300 * MIB), within=120)
    again = new_app("again", *FIRST, cpu="1", memory="200Mi")
    assert again.log() == SEEN

    release.uninstall()
    # Helm does not wait for the pods of what it deletes.
    eventually(lambda: reader.sees(host_memory()["MemTotal"]), within=60)
    nothing_left(release.run_dir, before)
    eventually(lambda: (conditions(cluster), taints(cluster)) == ({}, []), within=60)
    print(f"reads of its two files by a pod meanwhile: {reader.reads()}")
    assert (reader.failed(), reader.reads() > 100) == ("", True)
