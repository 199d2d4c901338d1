"""Pods on a node with an agent, and what becomes of them there."""

import time

from kit.container import cpu_list, meminfo
from kit.wait import always, eventually
from test_node import promise

MIB = 1 << 20


def test_a_pod_sees_its_limits_and_has_the_names_that_kubernetes_gave_it(cluster, new_pod):
    pod = new_pod("web", limits={"cpu": "1", "memory": "256Mi"})
    row = pod.row()
    made = cluster.get("pod", "web")
    assert row["pod"] == {"uid": made["metadata"]["uid"], "name": "web", "namespace": "default"}
    assert (row["engine"], row["name"]) == ("containerd", "app")
    assert made["status"]["containerStatuses"][0]["containerID"] == f"containerd://{row['id']}"
    assert len(cpu_list(pod.read("/sys/devices/system/cpu/online"))) == 1
    assert meminfo(pod.read("/proc/meminfo"))["MemTotal"] == 256 * MIB


def test_a_resize_in_place_is_followed(cluster, new_pod, speaker):
    pod = new_pod("grows", requests={"cpu": "250m", "memory": "128Mi"}, limits={"cpu": "1", "memory": "256Mi"})
    assert meminfo(pod.read("/proc/meminfo"))["MemTotal"] == 256 * MIB
    eventually(lambda: pod.show()["labels"].get("memory_reservation") == 128 * MIB)
    before = pod.row()["id"]
    resources = '{"requests": {"cpu": "500m", "memory": "192Mi"}, "limits": {"cpu": "2", "memory": "384Mi"}}'
    patch = '{"spec": {"containers": [{"name": "app", "resources": %s}]}}' % resources
    cluster.kubectl("patch", "pod", "grows", "--subresource", "resize", "--patch", patch)
    eventually(lambda: meminfo(pod.read("/proc/meminfo"))["MemTotal"] == 384 * MIB, within=60)
    labels = {"priority": {"weight": 50, "tier": 1}, "memory_reservation": 192 * MIB, "memory_promised": 192 * MIB}
    eventually(lambda: pod.show()["labels"] == labels, within=60)
    assert pod.row()["id"] == before, "the container is the same one"


def test_what_a_pod_requests_is_what_it_is_owed(new_pod, speaker, agent):
    guaranteed = new_pod("guaranteed", limits={"cpu": "500m", "memory": "64Mi"})
    nothing = new_pod("besteffort")

    def owed(pod):
        shown = pod.show()
        return shown["labels_by"], shown["labels"].get("priority"), shown["labels"].get("memory_reservation")

    eventually(lambda: owed(guaranteed) == ("elbowroom-kube", {"weight": 50, "tier": 1}, 64 * MIB))
    eventually(lambda: owed(nothing) == ("elbowroom-kube", {"weight": 10, "tier": 0}, None))
    eventually(lambda: guaranteed.show()["memory"]["reservation"] == 64 * MIB)
    assert "(given by elbowroom-kube)" in agent.cli("show", guaranteed.row()["id"]).stdout
    assert speaker.stop() == 0
    # The next one of a rollout would find them.
    assert owed(guaranteed) == ("elbowroom-kube", {"weight": 50, "tier": 1}, 64 * MIB)
    eventually(lambda: owed(guaranteed) == (None, None, None), within=30)


def test_labels_that_another_program_gives_stay(new_pod, speaker):
    pod = new_pod("contested", requests={"memory": "64Mi"})
    given_by = lambda: pod.show()["labels_by"]
    # What elbowroom-kube knows of labels is up to two seconds old: it looks when these are given already.
    for moment in (0.2, 0.4, 0.6, 0.8):
        promise(pod, None)
        time.sleep(moment)
        promise(pod, "48MiB")
        always(lambda: given_by() == "a test", during=3, every=0.3)
    promise(pod, None)
    eventually(lambda: given_by() == "elbowroom-kube")
    promise(pod, "48MiB")
    assert speaker.stop() == 0
    # Longer than it lets its own labels linger.
    always(lambda: given_by() == "a test", during=5, every=0.5)


def test_annotations_are_followed_when_they_change(new_pod, speaker, agent):
    limits = {"memory": "256Mi"}  # a claim counts up to the container's own limit
    pod = new_pod("annotated", {"cpu": "1", "memory": "16Mi"}, limits, {"elbowroom.dev/priority": "class=latency"})
    eventually(lambda: pod.show()["labels"].get("priority") == {"weight": 100, "tier": 1, "class": "latency"})
    pod.annotate("elbowroom.dev/priority=weight=700", "elbowroom.dev/memory-reservation=96MiB")
    eventually(lambda: pod.show()["labels"]["priority"] == {"weight": 700, "tier": 1})
    eventually(lambda: pod.show()["memory"]["reservation"] == 96 * MIB)
    pod.annotate("elbowroom.dev/priority-", "elbowroom.dev/memory-reservation-")
    labels = {"priority": {"weight": 100, "tier": 1}, "memory_reservation": 16 * MIB, "memory_promised": 16 * MIB}
    eventually(lambda: pod.show()["labels"] == labels)
    eventually(lambda: pod.show()["memory"]["reservation"] == 16 * MIB)


def test_a_namespace_speaks_for_its_pods(cluster, new_pod, speaker):
    pod = new_pod("spoken-for", annotations={"elbowroom.dev/priority": "class=latency"})
    namespace = cluster.get("pod", "spoken-for")["metadata"]["namespace"]
    annotate = lambda *words: cluster.kubectl("annotate", "namespace", namespace, "--overwrite", *words)
    annotate("elbowroom.dev/memory-reservation=48MiB", "elbowroom.dev/priority=9")
    try:
        eventually(lambda: pod.show()["labels"].get("memory_reservation") == 48 * MIB)
        assert pod.show()["labels"]["priority"]["class"] == "latency", "a pod's own word goes first"
    finally:
        annotate("elbowroom.dev/memory-reservation-", "elbowroom.dev/priority-")
    eventually(lambda: "memory_reservation" not in pod.show()["labels"])


def test_views_go_and_come_with_their_annotation(new_pod, speaker, agent):
    pod = new_pod("views", limits={"memory": "256Mi"})
    row = pod.row()
    pod.annotate("elbowroom.dev/views=off")
    eventually(lambda: not agent.json("show", row["id"])["attached"])
    pod.annotate("elbowroom.dev/views=on")
    eventually(lambda: agent.json("show", row["id"])["attached"])
    assert meminfo(pod.read("/proc/meminfo"))["MemTotal"] == 256 * MIB


def test_a_pod_that_is_not_governed_is_the_hosts(new_pod, speaker, agent):
    pod = new_pod("governed", requests={"memory": "64Mi"})
    eventually(lambda: pod.show()["memory"] and pod.show()["memory"]["reservation"] == 64 * MIB)
    pod.annotate("elbowroom.dev/governors=off")
    eventually(lambda: pod.show()["memory"] is None)
    pod.annotate("elbowroom.dev/governors-")
    eventually(lambda: pod.show()["memory"] and pod.show()["memory"]["reservation"] == 64 * MIB)


def test_an_annotation_that_is_not_understood_is_told_once(new_pod, speaker):
    pod = new_pod("mistaken", annotations={"elbowroom.dev/prioriti": "3"})
    told = lambda: [event for event in pod.events() if event["reason"] == "AnnotationIgnored"]
    event = eventually(told, within=30, every=0.3)[0]
    assert event["type"] == "Warning" and "elbowroom.dev/prioriti" in event["note"], event
    always(lambda: len(told()) == 1 and "series" not in told()[0], during=4, every=0.5)
    pod.annotate("elbowroom.dev/prioriti-")
    eventually(lambda: [event for event in pod.events() if event["reason"] == "AnnotationIgnoredEnded"], within=30, every=0.3)


def test_an_agent_that_is_killed_and_started_anew_finds_its_pods_and_is_told_of_them(cluster, new_pod, speaker, agent):
    pod = new_pod("survivor", requests={"memory": "64Mi"}, limits={"memory": "256Mi"}, annotations={"elbowroom.dev/priority": "9"})
    reserve = lambda: pod.show()["labels"].get("memory_reservation")
    eventually(lambda: reserve() == 64 * MIB)
    started = cluster.get("pod", "survivor")["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    agent.destroy()
    assert speaker.process.poll() is None
    agent.start()
    assert meminfo(pod.read("/proc/meminfo"))["MemTotal"] == 256 * MIB
    eventually(lambda: reserve() == 64 * MIB and pod.show()["labels"]["priority"]["weight"] == 9, within=20)
    status = cluster.get("pod", "survivor")["status"]["containerStatuses"][0]
    assert (status["restartCount"], status["state"]["running"]["startedAt"]) == (0, started)
