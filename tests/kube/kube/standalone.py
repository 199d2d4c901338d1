"""A kubelet alone, without an API server: it runs the pods of a directory. With MemoryQoS, on cgroup v2."""

import json
import urllib.request

from kit import cgroup
from kube.cluster import CGROUPS, NODE_PROGRAMS, Cluster, free_port, why_not
from kube.image import IMAGE


def why_not_memory_qos():
    """Why there can be none here, or None."""
    if not cgroup.V2:
        return "cgroup v2, where alone the kubelet protects memory: tests/vm/run tests/kube/test_kubelet.py"
    return why_not(NODE_PROGRAMS)


class Standalone(Cluster):
    """A node whose kubelet writes memory.low, memory.min and memory.high."""

    def start(self):
        self.ports["pods"] = free_port()
        self.manifests = self.home / "manifests"
        self.manifests.mkdir()
        controllers = (cgroup.ROOT / "cgroup.controllers").read_text().split()
        (cgroup.ROOT / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
        self.start_node()
        return self

    def start_node(self):
        self.start_containerd()
        self.start_kubelet()

    def kubelet_configuration(self):
        return {
            **super().kubelet_configuration(), "staticPodPath": str(self.manifests), "fileCheckFrequency": "1s",
            "readOnlyPort": self.ports["pods"], "featureGates": {"MemoryQoS": True}, "memoryThrottlingFactor": 0.9,
            "memoryReservationPolicy": "TieredReservation",
            # A pod that gets a CPU of its own changes the others' cpusets, for which the runtime writes all of their resources anew.
            "cpuManagerPolicy": "static", "cpuManagerReconcilePeriod": "1s", "reservedSystemCPUs": "0",
        }  # fmt: skip

    def is_ready(self):
        kubelet = self.running["kubelet"]
        assert kubelet.poll() is None, f"the kubelet ended: {self.tail('kubelet')}"
        try:
            self.pods()
        except OSError as error:
            raise AssertionError(f"the kubelet does not answer: {error} {self.tail('kubelet')}") from None
        return True

    def end_pods(self):
        kubelet = self.running.pop("kubelet")
        kubelet.terminate()
        kubelet.wait()

    def put(self, name, requests=None, limits=None):
        """Starts a pod with one container of the same name, or changes it: then it is another one."""
        container = {
            "name": name, "image": IMAGE, "imagePullPolicy": "Never", "command": ["/busybox", "sleep", "infinity"],
            "resources": {"requests": requests or {}, "limits": limits or {}},
        }  # fmt: skip
        spec = {"hostNetwork": True, "terminationGracePeriodSeconds": 0, "enableServiceLinks": False, "containers": [container]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        # The kubelet takes no file whose name begins with a dot.
        (self.manifests / f".{name}").write_text(json.dumps(pod))
        (self.manifests / f".{name}").rename(self.manifests / f"{name}.json")

    def remove(self, name):
        (self.manifests / f"{name}.json").unlink()

    def pods(self):
        """What the kubelet says of its pods, by the names that they were given."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['pods']}/pods", timeout=30) as answer:
            items = json.load(answer)["items"] or []
        return {pod["spec"]["containers"][0]["name"]: pod for pod in items}

    def cgroup_of(self, name):
        """The cgroup of a pod's container, which must run: below kubepods, without a leading slash."""
        pod = self.pods().get(name)
        status = (pod or {}).get("status", {}).get("containerStatuses", [{}])[0]
        assert "running" in status.get("state", {}), f"{name} does not run: {status} {self.tail('kubelet')}"
        uid = pod["metadata"]["annotations"]["kubernetes.io/config.hash"]
        kind = {"Guaranteed": "", "Burstable": "burstable/", "BestEffort": "besteffort/"}[pod["status"]["qosClass"]]
        return f"{CGROUPS}/kubepods/{kind}pod{uid}/{status['containerID'].removeprefix('containerd://')}"
