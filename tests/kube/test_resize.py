"""`elbowroom-kube --resize`: limits that verdicts find too low are raised in place, up to what annotations allow."""

import json

import pytest
from kit.container import meminfo
from kit.wait import always, eventually

MIB = 1 << 20
RESIZING = pytest.mark.parametrize("speaker", [["--resize"]], indirect=True)
BUSY = ("/busybox", "sh", "-c", "while :; do :; done")


def limit(cluster, pod, resource):
    """What the pod is to have, and what the kubelet says it has."""
    made = cluster.get("pod", pod.name)
    wanted, actual = made["spec"]["containers"][0], made["status"]["containerStatuses"][0]
    return wanted["resources"]["limits"][resource], actual["resources"]["limits"][resource]


def told(pod, reason):
    return [event["note"] for event in pod.events() if event["reason"] == reason]


def test_a_container_at_its_quota_gets_more_cpu_up_to_its_bound_where_that_is_on(cluster, new_pod, speaker):
    bound = {"elbowroom.dev/cpu-max": "60m"}
    free = new_pod("free", limits={"cpu": "50m"}, command=BUSY)
    bounded = new_pod("bounded", limits={"cpu": "50m"}, annotations=bound, command=BUSY)
    eventually(lambda: free.show()["verdict"]["status"] == bounded.show()["verdict"]["status"] == "throttled", within=30)
    [ignored] = eventually(lambda: told(bounded, "AnnotationIgnored"), within=30)
    assert "elbowroom.dev/cpu-max" in ignored, "by default it is off, and that is told"
    always(lambda: limit(cluster, bounded, "cpu") == ("50m", "50m"), during=5, every=0.5)
    assert speaker.stop() == 0
    speaker.start("--resize")
    eventually(lambda: limit(cluster, bounded, "cpu") == ("60m", "60m"), within=60, every=0.3)
    [note] = eventually(lambda: told(bounded, "Resized"), within=20)
    assert "app: cpu limit 50m -> 60m, at most 60m: its quota of 0.05 CPUs holds its threads back" in note, note
    # It is throttled on, which changes nothing any more, and nothing of the other.
    limits = lambda: [limit(cluster, pod, "cpu") for pod in (bounded, free)]
    always(lambda: limits() == [("60m", "60m"), ("50m", "50m")], during=5, every=0.5)
    assert cluster.get("pod", "bounded")["status"]["containerStatuses"][0]["restartCount"] == 0


@RESIZING
def test_a_container_that_outgrows_its_memory_limit_gets_more_and_the_rest_of_its_pod_stays(cluster, new_pod, speaker):
    grows = ("/busybox", "sh", "-c", "/busybox dd if=/dev/zero of=/dev/shm/data bs=1M count=60 && exec /busybox sleep infinity")
    resources = {"cpu": "500m", "memory": "64Mi"}
    pod = new_pod("grows", resources, resources, {"elbowroom.dev/memory-max": "72Mi"}, command=grows)
    eventually(lambda: limit(cluster, pod, "memory") == ("72Mi", "72Mi"), within=90, every=0.3)
    made = cluster.get("pod", "grows")
    assert made["status"]["qosClass"] == "Guaranteed"
    assert made["spec"]["containers"][0]["resources"] == {of: {**resources, "memory": "72Mi"} for of in ("requests", "limits")}
    assert made["status"]["containerStatuses"][0]["restartCount"] == 0
    eventually(lambda: meminfo(pod.read("/proc/meminfo"))["MemTotal"] == 72 * MIB, within=20)
    assert eventually(lambda: told(pod, "Resized"), within=20)


@RESIZING
def test_what_the_cluster_refuses_is_told_once_and_left_alone(cluster, new_pod, speaker):
    spec = {"limits": [{"type": "Container", "max": {"cpu": "60m"}}]}
    most = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "most"}, "spec": spec}
    cluster.kubectl("create", "--filename", "-", input=json.dumps(most))
    try:
        pod = new_pod("refused", limits={"cpu": "50m"}, annotations={"elbowroom.dev/cpu-max": "2"}, command=BUSY)
        [note] = eventually(lambda: told(pod, "ResizeRefused"), within=60)
        assert "cpu limit 50m -> 80m, at most 2000m: " in note and "maximum cpu usage per Container is 60m" in note, note
        # Longer than from one change to the next.
        always(lambda: len(told(pod, "ResizeRefused")) == 1 and limit(cluster, pod, "cpu") == ("50m", "50m"), during=65, every=2)
        assert not any("series" in event for event in pod.events() if event["reason"] == "ResizeRefused")
    finally:
        cluster.kubectl("delete", "limitrange", "most")
