"""A Kubernetes of one node, from programs in .cache: etcd, the API server, a scheduler, controllers, containerd and a kubelet.
Everything it writes is below one directory, except containerd's state, whose place says that a container is containerd's."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from kit.wait import PATIENCE, eventually
from kube.image import IMAGE, archive

REPOSITORY = Path(__file__).resolve().parents[3]
KUBE, ENGINES = REPOSITORY / ".cache/kube/bin", REPOSITORY / ".cache/engines/bin"
NODE_PROGRAMS = [KUBE / "kubelet", *(ENGINES / name for name in ("containerd", "containerd-shim-runc-v2", "ctr", "runc"))]
PROGRAMS = [KUBE / name for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")] + NODE_PROGRAMS
# Where the agent looks for containerd's containers.
STATE = Path("/run/containerd")
NODE = "elbowroom-test"
# All cgroups of pods are below this one.
CGROUPS = "elbowroom-test-kube"

CONTAINERD = """
version = 3
root = "{home}/containerd"
state = "{state}"
[grpc]
address = "{home}/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{image}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
conf_dir = "{home}/network"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"
"""

# Without a network the node is not ready; pods of the host's network are never connected to it.
NETWORK = {"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "loopback"}]}

CONTROLLERS = [
    "daemonset-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller", "node-lifecycle-controller",
    "garbage-collector-controller", "namespace-controller",
]  # fmt: skip


def why_not(programs=PROGRAMS):
    """Why there can be none here, or None."""
    missing = [program.name for program in programs if not os.access(program, os.X_OK)]
    if missing:
        return f"{', '.join(missing)}: run 'tools/setup kube'"
    if (STATE / "io.containerd.runtime.v2.task").exists():
        return f"{STATE} to itself, and a containerd is at work there"
    return None


class Cluster:
    """`home` has a short name, for sockets are in it."""

    def __init__(self, home):
        self.home = home
        self.running = {}
        self.ports = {name: free_port() for name in ("etcd", "peer", "api", "kubelet")}
        self.kubeconfig = home / "admin.conf"

    # ---- life ----

    def start(self):
        self.keys()
        self.write_kubeconfig(self.kubeconfig, "admin")
        etcd, peer = (f"http://127.0.0.1:{self.ports[name]}" for name in ("etcd", "peer"))
        self.spawn(
            KUBE / "etcd", "--data-dir", self.home / "etcd", "--unsafe-no-fsync", "--listen-client-urls", etcd,
            "--advertise-client-urls", etcd, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}",
        )  # fmt: skip
        self.spawn(
            KUBE / "kube-apiserver", "--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--secure-port", self.ports["api"],
            "--tls-cert-file", self.home / "api.pem", "--tls-private-key-file", self.home / "api.key",
            "--client-ca-file", self.home / "ca.pem", "--token-auth-file", self.home / "tokens", "--authorization-mode", "RBAC",
            "--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", self.home / "sa.pub",
            "--service-account-signing-key-file", self.home / "sa.key", "--service-cluster-ip-range", "10.255.255.0/24",
            "--allow-privileged",
        )  # fmt: skip
        eventually(lambda: self.kubectl("get", "--raw", "/readyz", check=False).returncode == 0, within=120, every=0.3)
        self.spawn(
            KUBE / "kube-controller-manager", "--kubeconfig", self.kubeconfig, "--leader-elect=false", "--secure-port=0",
            "--controllers", ",".join(CONTROLLERS), "--root-ca-file", self.home / "ca.pem",
            "--service-account-private-key-file", self.home / "sa.key",
        )  # fmt: skip
        self.spawn(KUBE / "kube-scheduler", "--kubeconfig", self.kubeconfig, "--leader-elect=false", "--secure-port=0")
        self.start_node()
        return self

    def start_node(self):
        self.start_containerd()
        self.start_kubelet("--kubeconfig", self.kubeconfig)

    def start_containerd(self):
        text = CONTAINERD.format(home=self.home, state=STATE, image=IMAGE, runc=ENGINES / "runc")
        (self.home / "containerd.toml").write_text(text)
        (self.home / "network").mkdir()
        (self.home / "network/none.conflist").write_text(json.dumps(NETWORK))
        path = {"PATH": f"{ENGINES}:{os.environ['PATH']}"}
        self.spawn(ENGINES / "containerd", "--config", self.home / "containerd.toml", environment=path)
        eventually(lambda: self.ctr("version", check=False).returncode == 0, within=60, every=0.2)
        self.load(IMAGE)
        for hierarchy in cgroups():
            hierarchy.mkdir(exist_ok=True)

    def start_kubelet(self, *words):
        (self.home / "kubelet.conf").write_text(json.dumps(self.kubelet_configuration()))
        self.spawn(
            KUBE / "kubelet", "--config", self.home / "kubelet.conf", "--root-dir", self.home / "kubelet", "--cert-dir",
            self.home / "kubelet-pki", "--hostname-override", NODE, *words,
        )  # fmt: skip
        eventually(self.is_ready, within=120, every=0.3)

    def kubelet_configuration(self):
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": "127.0.0.1", "port": self.ports["kubelet"], "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{CGROUPS}", "failCgroupV1": False, "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{self.home}/containerd.sock",
            "enforceNodeAllocatable": ["pods"], "makeIPTablesUtilChains": False, "resolvConf": "",
            # A machine that other tests fill is not to evict ours.
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1Mi", "imagefs.available": "1Mi"},
            "imageGCHighThresholdPercent": 100, "localStorageCapacityIsolation": False,
            "podLogsDir": f"{self.home}/logs", "volumePluginDir": f"{self.home}/plugins",
            "nodeStatusUpdateFrequency": "1s", "syncFrequency": "5s",
        }  # fmt: skip

    def stop(self):
        """Ends every pod, then every program, the last that was started first."""
        if "kubelet" in self.running:
            self.end_pods()
            for container in self.ctr("tasks", "list", "--quiet", check=False).stdout.split():
                self.ctr("tasks", "kill", "--signal", "SIGKILL", container, check=False)
            eventually(lambda: not populated(), within=60, every=0.2)
        for program in reversed(self.running.values()):
            program.terminate()
        for program in self.running.values():
            try:
                program.wait(30 * PATIENCE)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
        self.running.clear()
        self.end_shims()
        for root in cgroups():
            for directory in sorted(root.glob("**/"), key=lambda path: -len(path.parts)):
                directory.rmdir()
        unmount_below(self.home)
        unmount_below(STATE)
        shutil.rmtree(STATE, ignore_errors=True)

    def end_pods(self):
        """Ends what would start containers anew."""
        self.kubectl("delete", "pods,daemonsets", "--all", "--all-namespaces", "--force", "--grace-period=0", check=False)

    def end_shims(self):
        """A shim outlives its containerd: those that are ours have our socket on their command lines."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if f"{self.home}/containerd.sock".encode() in words:
                subprocess.run(["kill", "-KILL", path.parent.name])

    def spawn(self, program, *words, environment=None):
        log = open(self.home / f"{program.name}.log", "ab")
        self.running[program.name] = subprocess.Popen(
            [str(program), *map(str, words)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        log.close()

    def tail(self, name):
        return "".join((self.home / f"{name}.log").read_text(errors="replace").splitlines(keepends=True)[-8:])

    def is_ready(self):
        for name, program in self.running.items():
            assert program.poll() is None, f"{name} ended: {self.tail(name)}"
        node = self.get("node", NODE)
        status = {c["type"]: c["status"] for c in node["status"]["conditions"]} if node else {}
        assert status.get("Ready") == "True", f"the node is not ready: {status} {self.tail('kubelet')}"
        # The controllers have taken the taint of a node that is not ready off.
        return not node["spec"].get("taints")

    # ---- keys ----

    def keys(self):
        """An authority, the API server's certificate, the key of service accounts, and the users' tokens."""
        def openssl(*words):
            subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, cwd=self.home)

        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", 2, "-subj", "/CN=ca")
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "api.key", "-out", "api.pem", "-days", 2, "-subj", "/CN=api",
                "-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE")
        openssl("genrsa", "-out", "sa.key", 2048)
        openssl("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")
        (self.home / "tokens").write_text('admin,admin,1,"system:masters"\n')

    def write_kubeconfig(self, path, token, **user):
        """For the user of `token`; `user` has further fields of that entry."""
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {
                "server": f"https://127.0.0.1:{self.ports['api']}", "certificate-authority": str(self.home / "ca.pem")}}],
            "users": [{"name": "test", "user": {"token": token, **user}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }))  # fmt: skip

    # ---- questions ----

    def kubectl(self, *words, check=True, input=None, kubeconfig=None, timeout=60):
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig or self.kubeconfig), "HOME": str(self.home)}
        done = subprocess.run(
            [str(KUBE / "kubectl"), *map(str, words)], capture_output=True, text=True, input=input, timeout=timeout * PATIENCE, env=environment
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(map(str, words))}: {done.stderr.strip()}"
        return done

    def get(self, *words):
        """An object, or None where there is none."""
        done = self.kubectl("get", *words, "--output", "json", check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def patch(self, path, patch, **headers):
        """Patches an object without reading it first, which kubectl would do; what the API server says where it refuses."""
        headers = {"Authorization": "Bearer admin", "Content-Type": "application/strategic-merge-patch+json", **headers}
        url = f"https://127.0.0.1:{self.ports['api']}/api/v1/{path}"
        request = urllib.request.Request(url, json.dumps(patch).encode(), headers, method="PATCH")
        try:
            with urllib.request.urlopen(request, timeout=30, context=ssl.create_default_context(cafile=self.home / "ca.pem")):
                return ""
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def ctr(self, *words, check=True, **options):
        words = [ENGINES / "ctr", "--address", self.home / "containerd.sock", "--namespace", "k8s.io", *words]
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
        assert not check or done.returncode == 0, f"{words}: {done.stderr}"
        return done

    def load(self, name, program=None):
        """An image of a busybox, or of a program."""
        file = self.home / "image.tar"
        file.write_bytes(archive(name, program))
        self.ctr("images", "import", file)
        file.unlink()


def populated():
    """Whether a process is left in one of our cgroups."""
    try:
        return any(path.read_text().split() for root in cgroups() for path in root.glob("**/cgroup.procs"))
    except OSError:
        # One went while it was looked at.
        return True


def cgroups():
    """Our cgroup in every hierarchy."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [Path(words[1]) / CGROUPS for words in mounts if words[2] in ("cgroup", "cgroup2")]


def unmount_below(directory):
    for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
        if line.split()[4].startswith(f"{directory}/"):
            subprocess.run(["umount", "--lazy", line.split()[4]])


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
