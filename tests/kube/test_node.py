"""What a scheduler is told of a node."""

import signal

from kit.wait import always, eventually
from kube.cluster import NODE

KEY = "elbowroom.dev/overcommitted"
# More than any machine has.
ALL_AND_MORE = "64TiB"


def promise(pod, size):
    """Promises memory as the operator of the node does; None takes the promise back."""
    container = pod.row()["id"]
    label = {"container": container, "by": "a test", "promised": {"elbowroom.dev/memory-reservation": size}}
    answer = pod.agent.ask({"label": label} if size else {"unlabel": container})
    assert "error" not in answer, answer


def conditions(cluster):
    found = {c["type"]: c for c in cluster.get("node", NODE)["status"]["conditions"]}
    return {name: condition for name, condition in found.items() if name.startswith("Elbowroom")}


def taints(cluster):
    return [f"{taint['key']}:{taint['effect']}" for taint in cluster.get("node", NODE)["spec"].get("taints", [])]


def overcommitted(cluster):
    return conditions(cluster).get("ElbowroomOvercommitted", {}).get("status")


def test_a_node_that_is_promised_away_says_so_until_it_is_over(cluster, new_pod, speaker):
    eventually(lambda: {c["status"] for c in conditions(cluster).values()} == {"False"}, within=20)
    assert sorted(conditions(cluster)) == ["ElbowroomDiskDegraded", "ElbowroomOvercommitted", "ElbowroomOverloaded"]
    cluster.kubectl("taint", "node", NODE, "example.com/theirs=1:PreferNoSchedule")
    pod = new_pod("greedy")
    promise(pod, ALL_AND_MORE)
    eventually(lambda: taints(cluster) == ["example.com/theirs:PreferNoSchedule", f"{KEY}:PreferNoSchedule"], within=60, every=0.3)
    condition = conditions(cluster)["ElbowroomOvercommitted"]
    assert (condition["status"], condition["reason"]) == ("True", "Overcommit"), condition
    assert condition["message"], condition
    events = cluster.get("events.events.k8s.io")["items"]
    assert any(event["reason"] == "Overcommit" and event["regarding"]["kind"] == "Node" for event in events)
    assert cluster.get("node", NODE)["status"]["conditions"][0]["type"] != "ElbowroomOvercommitted", "the kubelet's are there too"
    promise(pod, None)
    eventually(lambda: taints(cluster) == ["example.com/theirs:PreferNoSchedule"], within=60, every=0.3)
    eventually(lambda: overcommitted(cluster) == "False", within=10)
    cluster.kubectl("taint", "node", NODE, "example.com/theirs-")


def test_what_annotations_claim_is_told_and_taints_nothing(cluster, new_pod, speaker, agent):
    eventually(lambda: overcommitted(cluster) == "False", within=20)
    pod = new_pod("claims", requests={"memory": "16Mi"}, limits={"memory": "64Ti"})
    pod.annotate(f"elbowroom.dev/memory-reservation={ALL_AND_MORE}")
    # Not by the command line, which ends with 1 while something is wrong.
    lasting = lambda: agent.ask("alerts")["alerts"]["lasting"]
    claims = lambda: [alert for alert in lasting() if (alert["kind"], alert.get("topic")) == ("OVERCOMMIT", "claims")]
    eventually(claims, within=60, every=0.3)
    always(lambda: taints(cluster) == [] and overcommitted(cluster) == "False", during=5, every=0.5)


def test_the_scheduler_sends_pods_elsewhere(cluster, new_pod, speaker):
    eventually(lambda: overcommitted(cluster) == "False", within=20)
    assert speaker.stop() == 0
    speaker.start("--taint", "no-schedule")
    pod = new_pod("greedy")
    promise(pod, ALL_AND_MORE)
    eventually(lambda: taints(cluster) == [f"{KEY}:NoSchedule"], within=60, every=0.3)
    new_pod("homeless", node=None, wait=False)
    waits = lambda: cluster.get("pod", "homeless")["status"]["phase"] == "Pending"
    conditions = lambda: cluster.get("pod", "homeless")["status"].get("conditions", [])
    eventually(lambda: any("untolerated taint" in condition.get("message", "") for condition in conditions()), within=30)
    assert waits()
    promise(pod, None)
    eventually(lambda: cluster.get("pod", "homeless")["status"]["phase"] == "Running", within=60, every=0.3)


def test_who_is_stopped_leaves_nothing_and_who_is_killed_leaves_what_the_next_one_takes_off(cluster, new_pod, speaker):
    pod = new_pod("greedy")
    promise(pod, ALL_AND_MORE)
    eventually(lambda: taints(cluster) == [f"{KEY}:PreferNoSchedule"], within=60, every=0.3)
    assert speaker.stop() == 0
    assert (conditions(cluster), taints(cluster)) == ({}, [])
    speaker.start()
    eventually(lambda: taints(cluster) == [f"{KEY}:PreferNoSchedule"], within=60, every=0.3)
    speaker.kill()
    promise(pod, None)
    always(lambda: taints(cluster) == [f"{KEY}:PreferNoSchedule"], during=1, every=0.3)
    speaker.start()
    eventually(lambda: taints(cluster) == [] and overcommitted(cluster) == "False", within=60, every=0.3)


def test_no_pod_is_sent_elsewhere_because_an_agent_is_silent(cluster, new_pod, speaker, agent):
    pod = new_pod("greedy")
    promise(pod, ALL_AND_MORE)
    eventually(lambda: taints(cluster) == [f"{KEY}:PreferNoSchedule"], within=60, every=0.3)
    agent.destroy()
    eventually(lambda: taints(cluster) == [] and overcommitted(cluster) == "Unknown", within=30, every=0.3)
    agent.start()
    # What was promised ended with the agent.
    promise(pod, ALL_AND_MORE)
    eventually(lambda: taints(cluster) == [f"{KEY}:PreferNoSchedule"], within=60, every=0.3)


def test_an_api_server_that_is_away_is_waited_for(cluster, new_pod, speaker):
    eventually(lambda: overcommitted(cluster) == "False", within=20)
    pod = new_pod("greedy")
    cluster.running["kube-apiserver"].send_signal(signal.SIGSTOP)
    try:
        always(lambda: speaker.process.poll() is None, during=2)
    finally:
        cluster.running["kube-apiserver"].send_signal(signal.SIGCONT)
    promise(pod, ALL_AND_MORE)
    eventually(lambda: taints(cluster) == [f"{KEY}:PreferNoSchedule"], within=90, every=0.3)
