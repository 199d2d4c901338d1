"""Engines that Debian 12 does not have, or not as new, built by `tools/setup engines` below .cache/engines/bin; and one container
that each of them can make in the same way.

A `way` is an engine with one of its means to run our hook. `way.once(words)` makes a container with one CPU and 300 MiB whose main
process is `words`, and gives what it printed."""

import hashlib
import io
import json
import os
import resource
import shutil
import subprocess
import tarfile
import time
import uuid
from pathlib import Path

from kit import docker as docker_kit
from kit import programs
from kit import runc as runc_kit
from kit.process import descendants
from kit.wait import PATIENCE, eventually

BUILT = Path(__file__).resolve().parents[3] / ".cache/engines/bin"
IMAGE = "localhost/elbowroom-test:latest"
MEMORY = 300 << 20
HEAD = ["/busybox", "head", "-n1", "/proc/meminfo"]
# What containers see of this machine: the image is next to empty.
SHARED = [*docker_kit.SHARED, str(programs.BUILT)]
VOLUMES = [word for path in SHARED for word in ("--volume", f"{path}:{path}:ro")]
# No CAP_SYS_RESOURCE is needed for what is no more than this test's own.
ULIMITS = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]


def why_not(*programs):
    """Why an engine cannot be started here, or None."""
    for program in programs:
        if program.startswith("built/"):
            if not (BUILT / program[6:]).exists():
                return f"{program[6:]}, which is not built: make engines-test"
        elif not shutil.which(program):
            return f"{program}, which is not installed: tools/setup engines"
    return None


def image(directory):
    """The image as `docker save` writes it, for engines that import nothing else."""
    layer = docker_kit.root_file_system()
    config = {"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/busybox", "sleep", "1000000"]}, "rootfs": {"type": "layers"}}
    config["rootfs"]["diff_ids"] = ["sha256:" + hashlib.sha256(layer).hexdigest()]
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    path = directory / "image.tar"
    with tarfile.open(path, "w") as tar:
        for name, content in [
            ("layer.tar", layer), ("config.json", json.dumps(config).encode()), ("manifest.json", json.dumps(manifest).encode()),
        ]:  # fmt: skip
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def remove_groups(parent):
    """Takes away the cgroups that an engine made above its containers'."""
    for controller in Path("/sys/fs/cgroup").iterdir():
        group = controller / parent[1:]
        if group.is_dir():
            group.rmdir()


def other_agents(run_dir):
    """The agents of this machine that are none of this session's: they look after our containers, too."""
    lines = [path.read_bytes().split(b"\0") for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    return [words for words in lines if words[1:2] == [b"policy"] and str(run_dir).encode() not in words]


def ended(daemon):
    """Ends a daemon and waits for what it started."""
    below = descendants(daemon.pid)
    daemon.terminate()
    daemon.wait(60 * PATIENCE)
    eventually(lambda: not [pid for pid in below if Path(f"/proc/{pid}/exe").exists()], within=20)


class NewDocker(docker_kit.Docker):
    """A dockerd of today on directories of its own, with the containerd and runc it belongs to."""

    def __init__(self, home, runtime, cdi, nri=None):
        super().__init__(home, runtime)
        self.program = BUILT / "dockerd"
        self.more = ["--cdi-spec-dir", str(cdi)]
        if nri:
            self.more += ["--nri-opts", f"enable=true,socket-path={nri},plugin-path={home}/none,plugin-config-path={home}/none"]
        # Its own runc, and a command line older than it.
        self.environment = {"PATH": f"{BUILT}:{os.environ['PATH']}", "DOCKER_MIN_API_VERSION": "1.41"}
        self.namespace = "elbowroom-test-new"


class DockerWay:
    """`docker run` with some options."""

    def __init__(self, docker, *options):
        self.docker, self.options = docker, options

    def plain(self):
        """The same without our hook."""
        return DockerWay(self.docker, *(["--runtime", "plain"] if "--runtime" in self.options else []))

    def start(self):
        """Seconds until a container that does nothing is gone again."""
        return timed(lambda: self.once("/busybox", "true"))[0]

    def once(self, *words, options=()):
        return self.docker.run_once(*words, options=["--cpus", "1", "--memory", str(MEMORY), *VOLUMES, *self.options, *options], shared=False)


class Podman:
    """Podman on directories of its own, with an image to load or with that of the last one there."""

    def __init__(self, home, image, *options, run=()):
        self.options = [
            "podman", "--root", home / "root", "--runroot", home / "run", "--tmpdir", home / "tmp", "--runtime", "/usr/sbin/runc",
            "--cgroup-manager", "cgroupfs", "--events-backend", "none", *options,
        ]  # fmt: skip
        self.home, self.more, self.run = home, options, run
        if image:
            self.call("load", "--quiet", "--input", image)

    def call(self, *words):
        done = subprocess.run([*self.options, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120 * PATIENCE)
        assert done.returncode == 0, f"podman {' '.join(map(str, words))}: {done.stderr.strip()}"
        return done.stdout

    def plain(self):
        more = ["--runtime", self.more[1].with_name("plain")] if "--runtime" in self.more else []
        return Podman(self.home, None, *more)

    def start(self):
        return timed(lambda: self.once("/busybox", "true"))[0]

    def once(self, *words, options=()):
        limits = ["--cpus", "1", "--memory", str(MEMORY), *ULIMITS]
        return self.call("run", "--rm", "--network", "none", *limits, *VOLUMES, *self.run, *options, IMAGE, *words)

    def close(self):
        self.call("rm", "--all", "--force")
        self.call("rmi", "--all", "--force")


class Containerd:
    """A containerd of today on directories of its own, asked as a kubelet asks it."""

    PARENT = "/elbowroom-test-cri"

    def __init__(self, home, image, cdi, nri=""):
        self.home, self.socket, self.nri, self.state = home, home / "c.sock", home / "nri.sock", home / "state"
        self.daemon, self.pods = None, {}
        (home / "config.toml").write_text(f"""
            version = 3
            root = "{home}/root"
            state = "{self.state}"
            [grpc]
            address = "{self.socket}"
            [ttrpc]
            address = "{self.socket}.ttrpc"
            [plugins.'io.containerd.cri.v1.images'.pinned_images]
            sandbox = "{IMAGE}"
            [plugins.'io.containerd.cri.v1.runtime']
            restrict_oom_score_adj = true
            cdi_spec_dirs = ["{cdi}"]
            [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
            runtime_type = "io.containerd.runc.v2"
            container_annotations = ["elbowroom.dev/*"]
            [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
            BinaryName = "{BUILT}/runc"
            [plugins.'io.containerd.nri.v1.nri']
            disable = false
            socket_path = "{self.nri}"
            plugin_path = "{home}/none"
            plugin_config_path = "{home}/none"
            {nri}
            """)
        self.image = image

    def start(self):
        environment = {**os.environ, "PATH": f"{BUILT}:{os.environ['PATH']}"}
        words = [BUILT / "containerd", "--config", self.home / "config.toml", "--log-level", "info"]
        with open(self.home / "log", "ab") as log:
            self.daemon = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment
            )

        def answers():
            assert self.daemon.poll() is None, f"containerd ended: {self.tail()}"
            return self.cri("Status", check=False) is not None

        eventually(answers, within=60, every=0.1)
        ctr = [BUILT / "ctr", "--address", self.socket, "--namespace", "k8s.io"]
        done = subprocess.run([*ctr, "images", "import", self.image], capture_output=True, text=True, timeout=60 * PATIENCE)
        assert done.returncode == 0, done.stderr
        return self

    def tail(self):
        return "".join((self.home / "log").read_text(errors="replace").splitlines(keepends=True)[-15:])

    def cri(self, method, check=True, **request):
        """One call of the container runtime interface; its answer."""
        words = [BUILT / "cri", self.socket, method]
        done = subprocess.run(words, input=json.dumps(request), capture_output=True, text=True, timeout=120 * PATIENCE)
        if done.returncode != 0:
            assert not check, f"{method}: {done.stderr.strip()}"
            return None
        return json.loads(done.stdout or "{}")

    def pod(self, annotations=()):
        """A pod on the host's network, with no container yet."""
        name = f"elbowroom-test-{uuid.uuid4().hex[:8]}"
        config = {
            "metadata": {"name": name, "uid": str(uuid.uuid4()), "namespace": "default"},
            "log_directory": str(self.home / "logs"),
            "annotations": dict(annotations),
            "linux": {"cgroup_parent": self.PARENT, "security_context": {"namespace_options": {"network": "NODE"}}},
        }
        pod = self.cri("RunPodSandbox", config=config)["podSandboxId"]
        self.pods[pod] = config
        return pod

    def create(self, pod, *words, annotations=(), cdi=()):
        """A container in a pod, not started; its id."""
        name = uuid.uuid4().hex[:8]
        config = {
            "metadata": {"name": name},
            "image": {"image": IMAGE},
            "command": [str(word) for word in words],
            "annotations": dict(annotations),
            "log_path": f"{name}.log",
            "mounts": [{"container_path": path, "host_path": path, "readonly": True} for path in SHARED],
            "CDI_devices": [{"name": device} for device in cdi],
            "linux": {"resources": {"cpu_quota": 100_000, "cpu_period": 100_000, "memory_limit_in_bytes": MEMORY}},
        }
        request = {"pod_sandbox_id": pod, "config": config, "sandbox_config": self.pods[pod]}
        return self.cri("CreateContainer", **request)["containerId"], self.home / "logs" / f"{name}.log"

    def output(self, container, log):
        """Starts a container, waits for its end and gives what it printed."""
        self.cri("StartContainer", container_id=container)
        eventually(lambda: self.cri("ContainerStatus", container_id=container)["status"]["state"] == "CONTAINER_EXITED", within=60)
        lines = [line.split(" ", 3) for line in log.read_text().splitlines()]
        return "".join(text + ("\n" if kind == "F" else "") for _, _, kind, text in lines)

    def remove(self, pod):
        del self.pods[pod]
        self.cri("StopPodSandbox", pod_sandbox_id=pod)
        # A container whose end is not noted yet counts as running.
        eventually(lambda: self.cri("RemovePodSandbox", check=False, pod_sandbox_id=pod) is not None, every=0.2)

    def clear(self):
        for pod in list(self.pods):
            self.remove(pod)

    def stop(self):
        self.clear()
        ended(self.daemon)
        remove_groups(self.PARENT)


class CriWay:
    """A container in a pod of its own."""

    def __init__(self, containerd, cdi=(), annotations=()):
        self.containerd, self.cdi, self.annotations = containerd, cdi, annotations

    def plain(self):
        # The plugin is asked all the same: what that costs is measured by itself.
        return CriWay(self.containerd, annotations={"elbowroom.dev/views": "off"})

    def start(self):
        pod = self.containerd.pod(self.annotations)
        try:

            def create_and_start():
                container, _ = self.containerd.create(pod, "/busybox", "true", cdi=self.cdi)
                self.containerd.cri("StartContainer", container_id=container)

            return timed(create_and_start)[0]
        finally:
            self.containerd.remove(pod)

    def once(self, *words, pod_annotations=(), annotations=()):
        pod = self.containerd.pod(pod_annotations)
        try:
            return self.containerd.output(*self.containerd.create(pod, *words, annotations=annotations, cdi=self.cdi))
        finally:
            self.containerd.remove(pod)


class RuncWay:
    """runc by itself, where the noise is least; `hook` is a program and its arguments, which mounts the view or, if it is `idle`, not."""

    def __init__(self, home, hook=None, idle=False):
        self.sees = bool(hook) and not idle
        self.home, self.bundle = home, home / ("with" if self.sees else "idle" if idle else "without")
        root = self.bundle / "root"
        for name in ("proc", "sys", "dev"):
            (root / name).mkdir(parents=True)
        shutil.copy(docker_kit.busybox(), root / "busybox")
        config = runc_kit.spec(self.bundle.name, f"/elbowroom-test-live-cost-{self.bundle.name}", (100_000, 100_000), MEMORY, None)
        config["process"]["args"] = HEAD
        config["mounts"] = [mount for mount in config["mounts"] if mount["type"] != "bind"]
        if hook:
            config["hooks"] = {"createContainer": [{"path": str(hook[0]), "args": [str(word) for word in hook]}]}
        (self.bundle / "config.json").write_text(json.dumps(config))

    def run(self, runtime="runc"):
        words = [runtime, "--root", self.home / "state", "run", "--bundle", self.bundle, f"elbowroom-test-{self.bundle.name}"]
        return timed(lambda: subprocess.run(words, capture_output=True, text=True))

    def start(self):
        took, done = self.run()
        assert (f"{MEMORY >> 10} kB" in done.stdout) == self.sees, done
        return took

    def cpu(self):
        """Seconds of CPU time of the same: what a busy machine does not stretch as much."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.start()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def timed(action):
    """Seconds that something took, and what came of it."""
    began = time.monotonic()
    result = action()
    return time.monotonic() - began, result
