"""The manifests as they are: the API server takes them, the kubelet runs what they say, and they allow no more than is needed."""

import json
import subprocess

import pytest

from conftest import REPOSITORY, binary
from kit.wait import eventually
from kube.cluster import ENGINES, KUBE, NODE
from test_node import ALL_AND_MORE, KEY, conditions, overcommitted, promise, taints

KUBERNETES = REPOSITORY / "packaging/kubernetes"
ACCOUNT = "system:serviceaccount:elbowroom:elbowroom"


def account(node):
    """Headers of a request by the account, as a token of a pod on `node` makes it."""
    return {"Impersonate-User": ACCOUNT, "Impersonate-Extra-authentication.kubernetes.io%2Fnode-name": node}


def built(cluster, directory):
    return objects(cluster, cluster.kubectl("kustomize", directory).stdout)


def objects(cluster, manifests):
    """Objects by kind and name."""
    text = cluster.kubectl("create", "--dry-run=client", "--validate=false", "--output", "json", "--filename", "-", input=manifests).stdout
    decoder, found, at = json.JSONDecoder(), {}, 0
    while at < len(text.rstrip()):
        one, at = decoder.raw_decode(text, at + (len(text[at:]) - len(text[at:].lstrip())))
        for item in one.get("items", [one]):
            found[item["kind"], item["metadata"]["name"]] = item
    return found


@pytest.fixture
def deployed(cluster, agent, tmp_path):
    yield from deploy(cluster, agent, tmp_path, ["--hold=1s", "--linger=3s"])


@pytest.fixture
def resizing(cluster, agent, tmp_path):
    """The same with the component `resize`."""
    yield from deploy(cluster, agent, tmp_path, ["--hold=1s", "--linger=3s", "--resize"], "resize")


def deploy(cluster, agent, tmp_path, args, *components):
    """The base, with what a test has elsewhere: a run directory, and no network between pods and the API server."""
    cluster.load("docker.io/library/elbowroom:0.1.0", binary("ELBOWROOM_KUBE", "elbowroom-kube"))
    spec = "/spec/template/spec"
    elsewhere = [
        {"op": "add", "path": f"{spec}/hostNetwork", "value": True},
        {"op": "replace", "path": f"{spec}/volumes/0/hostPath/path", "value": str(agent.run_dir)},
        {"op": "replace", "path": f"{spec}/containers/0/args", "value": args},
        {"op": "add", "path": f"{spec}/containers/0/env/-", "value": {"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"}},
        {"op": "add", "path": f"{spec}/containers/0/env/-", "value": {"name": "KUBERNETES_SERVICE_PORT", "value": str(cluster.ports["api"])}},
    ]  # fmt: skip
    overlay(tmp_path, *components, patches=[{"target": {"kind": "DaemonSet"}, "patch": json.dumps(elsewhere)}])
    cluster.kubectl("apply", "--kustomize", tmp_path)
    yield tmp_path
    cluster.kubectl("delete", "--kustomize", tmp_path, "--ignore-not-found", timeout=120)


def test_the_daemon_set_runs_and_says_what_is_wrong(cluster, deployed, new_pod):
    ready = lambda: cluster.get("daemonset", "elbowroom", "--namespace", "elbowroom")["status"].get("numberReady")
    eventually(lambda: ready() == 1, within=90, every=0.5)
    eventually(lambda: overcommitted(cluster) == "False", within=30, every=0.3)
    pod = new_pod("greedy", requests={"memory": "64Mi"})
    eventually(lambda: pod.show()["labels_by"] == "elbowroom-kube", within=20)
    promise(pod, ALL_AND_MORE)
    eventually(lambda: taints(cluster) == [f"{KEY}:PreferNoSchedule"], within=60, every=0.3)
    promise(pod, None)
    [instance] = cluster.get("pods", "--namespace", "elbowroom")["items"]
    assert instance["status"]["containerStatuses"][0]["restartCount"] == 0
    cluster.kubectl("delete", "daemonset", "elbowroom", "--namespace", "elbowroom")
    eventually(lambda: (conditions(cluster), taints(cluster)) == ({}, []), within=60, every=0.3)
    eventually(lambda: pod.show()["labels_by"] is None, within=30)


def test_the_account_changes_its_own_node_and_nothing_else(cluster, deployed, tmp_path):
    def on(node):
        """The account as a token of a pod on `node` makes it."""
        path = tmp_path / f"{node}.conf"
        extra = {"as-user-extra": {"authentication.kubernetes.io/node-name": [node]}}
        cluster.write_kubeconfig(path, "admin", **{"as": ACCOUNT}, **extra)
        return lambda *words: cluster.kubectl(*words, kubeconfig=path, check=False)

    # Not ones that the program knows: it would take them away.
    taint = ["taint", "node", NODE, "elbowroom.dev/of-a-test=:PreferNoSchedule", "--overwrite"]
    # The policy counts a moment after it is there.
    eventually(lambda: "only the node that it runs on" in on("another")(*taint).stderr, within=30, every=0.5)
    here = on(NODE)
    assert here(*taint).returncode == 0
    assert here("taint", "node", NODE, "elbowroom.dev/of-a-test-").returncode == 0
    for words in (["taint", "node", NODE, "other.example/full=:NoExecute"], ["cordon", NODE], ["label", "node", NODE, "tier=a"],
                  ["annotate", "node", NODE, "a=b"]):  # fmt: skip
        assert "only its own taints" in here(*words).stderr, words
    if "providerID" not in cluster.get("node", NODE)["spec"]:  # Once set, it cannot be changed.
        assert "only its own taints" in here("patch", "node", NODE, "--patch", '{"spec": {"providerID": "a://b"}}').stderr

    def status(**patch):
        return cluster.patch(f"nodes/{NODE}/status", {"status": patch}, **account(NODE))

    assert status(conditions=[{"type": "ElbowroomOfATest", "status": "True"}]) == ""
    assert status(conditions=[{"type": "ElbowroomOfATest", "$patch": "delete"}]) == ""
    for patch in ({"conditions": [{"type": "Ready", "status": "False"}]}, {"allocatable": {"cpu": "1k"}}, {"nodeInfo": {"kernelVersion": "1"}},
                  {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}, {"images": [{"names": ["a"], "sizeBytes": 1}]},
                  {"volumesInUse": ["a"]}, {"volumesAttached": [{"name": "a", "devicePath": "b"}]}):  # fmt: skip
        assert "only its own conditions" in status(**patch), patch
    for words in (["get", "secrets"], ["delete", "pod", "any"], ["get", "pods", "--subresource=status", "any"], ["delete", "node", NODE]):
        assert "forbidden" in here(*words).stderr, words
    assert here("get", "pods", "--all-namespaces").returncode == 0


def test_the_account_only_raises_limits_and_of_pods_of_its_node_that_allow_it(cluster, resizing, new_pod):
    def resize(pod, cpu, node=NODE):
        patch = {"spec": {"containers": [{"name": "app", "resources": {"limits": {"cpu": cpu}}}]}}
        return cluster.patch(f"namespaces/default/pods/{pod.name}/resize", patch, **account(node))

    bound = {"elbowroom.dev/cpu-max": "400m"}
    alone = new_pod("alone", limits={"cpu": "100m"})
    bounded = new_pod("bounded", limits={"cpu": "100m"}, annotations=bound, sidecar={"cpu": "100m"})
    # The policy counts a moment after it is there.
    eventually(lambda: "only pods of the node that it runs on" in resize(bounded, "101m", "another"), within=30, every=0.5)
    assert "only pods that allow it by an annotation" in resize(alone, "200m")
    assert resize(bounded, "200m") == ""
    assert "only raises limits" in resize(bounded, "150m")
    others = {
        "a limit where there was none": {"containers": [{"name": "app", "resources": {"limits": {"memory": "8Mi"}}}]},
        "its part of busy CPUs": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1m"}}}]},
        "a sidecar's limit": {"initContainers": [{"name": "side", "resources": {"limits": {"cpu": "1m"}, "requests": {"cpu": "1m"}}}]},
    }
    path = f"namespaces/default/pods/{bounded.name}/resize"
    answers = {what: cluster.patch(path, {"spec": spec}, **account(NODE)) for what, spec in others.items()}
    assert [what for what, answer in answers.items() if "only raises limits" not in answer] == [], answers
    # The class of such a pod stays only so.
    whole = {"cpu": "50m", "memory": "32Mi"}
    both = {of: {"cpu": "60m"} for of in ("limits", "requests")}
    guaranteed = new_pod("guaranteed", whole, whole, bound)
    path = f"namespaces/default/pods/{guaranteed.name}/resize"
    assert cluster.patch(path, {"spec": {"containers": [{"name": "app", "resources": both}]}}, **account(NODE)) == ""
    cluster.kubectl("annotate", "namespace", "default", "elbowroom.dev/memory-max.app=1Gi")
    try:
        eventually(lambda: resize(alone, "200m") == "", within=20)
    finally:
        cluster.kubectl("annotate", "namespace", "default", "elbowroom.dev/memory-max.app-")


def test_the_daemon_set_may_resize(cluster, resizing, new_pod):
    command = ("/busybox", "sh", "-c", "while :; do :; done")
    new_pod("busy", limits={"cpu": "50m"}, annotations={"elbowroom.dev/cpu-max": "60m"}, command=command)
    limit = lambda: cluster.get("pod", "busy")["spec"]["containers"][0]["resources"]["limits"]["cpu"]
    eventually(lambda: limit() == "60m", within=120, every=0.5)


def test_prometheus_operator_takes_the_pod_monitor(cluster, tmp_path):
    crd = KUBE.parent / "podmonitors.yaml"
    cluster.kubectl("apply", "--server-side", "--filename", crd)
    cluster.kubectl("wait", "--for=condition=Established", "--filename", crd)
    overlay(tmp_path, "monitoring")
    cluster.kubectl("apply", "--filename", tmp_path / "own/namespace.yaml")
    try:
        done = cluster.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "--kustomize", tmp_path)
        assert "podmonitor.monitoring.coreos.com/elbowroom serverside-applied" in done.stdout, done.stdout
        made = built(cluster, tmp_path)
        job = made["PodMonitor", "elbowroom"]["spec"]["jobLabel"]
        labels = made["DaemonSet", "elbowroom"]["spec"]["template"]["metadata"]["labels"]
        assert f'up{{job="{labels[job]}"}}' in (REPOSITORY / "packaging/prometheus/elbowroom.rules.yml").read_text()
    finally:
        cluster.kubectl("delete", "--filename", tmp_path / "own/namespace.yaml")


def overlay(directory, *components, **more):
    """Makes a kustomization of the base and components."""
    for name, source in (("own", "base"), *((name, name) for name in components)):
        subprocess.run(["cp", "-r", KUBERNETES / source, directory / name], check=True)
    (directory / "kustomization.yaml").write_text(json.dumps({"resources": ["own"], "components": components, **more}))


@pytest.mark.parametrize("enabled", [None, "monitoring", "resize", "agent"])
def test_helm_and_kustomize_say_the_same(cluster, tmp_path, enabled):
    if not (ENGINES / "helm").exists():
        pytest.skip("needs helm: run 'tools/setup kube'")
    words = [ENGINES / "helm", "template", "elbowroom", KUBERNETES / "helm/elbowroom", "--namespace", "elbowroom", "--kube-version", "1.36"]
    words += ["--set", ",".join(f"{part}.enabled={json.dumps(part == enabled)}" for part in ("monitoring", "resize", "agent"))]
    rendered = subprocess.run(words, capture_output=True, text=True)
    assert rendered.returncode == 0, rendered.stderr
    crd = KUBE.parent / "podmonitors.yaml"
    cluster.kubectl("apply", "--server-side", "--filename", crd)
    cluster.kubectl("wait", "--for=condition=Established", "--filename", crd)
    by_helm = objects(cluster, rendered.stdout)
    if enabled != "agent":
        overlay(tmp_path, *([enabled] if enabled else []))
    by_kustomize = built(cluster, KUBERNETES if enabled == "agent" else tmp_path)
    del by_kustomize["Namespace", "elbowroom"]
    assert by_helm == by_kustomize
    added = {("PodMonitor", "elbowroom"): "monitoring", ("ClusterRole", "elbowroom-resize"): "resize", ("DaemonSet", "elbowroom-agent"): "agent"}
    assert {part for item, part in added.items() if item in by_helm} == {enabled} - {None}
