"""Engines that Debian 12 does not have, or not as new, built by `tools/setup engines` below .cache/engines/bin; and one container
that each of them can make in the same way.

A `way` is an engine with one of its means to run our hook. `way.once(words)` makes a container with one CPU and 300 MiB whose main
process is `words`, and gives what it printed."""

import base64
import contextlib
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
from kit.cgroup import ROOT, V2
from kit.process import Process, descendants
from kit.wait import PATIENCE, eventually

BUILT = Path(__file__).resolve().parents[3] / ".cache/engines/bin"
IMAGE = "localhost/elbowroom-test:latest"
MEMORY = 300 << 20
HEAD = ["/busybox", "head", "-n1", "/proc/meminfo"]
# Directories of this machine that containers see: the image is next to empty.
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

    def gone(group):
        with contextlib.suppress(OSError):  # the monitor of a container is at its end
            group.rmdir()
        return not group.exists()

    for group in groups(parent):
        eventually(lambda: gone(group))


def groups(name):
    """Cgroups by their path below a hierarchy's root, which may be a pattern."""
    roots = [ROOT] if V2 else [path for path in ROOT.iterdir() if not path.is_symlink()]
    return [path for root in roots for path in root.glob(name[1:]) if path.is_dir()]


def other_agents(run_dir):
    """The agents of this machine that are none of this session's: they look after our containers, too."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended while we looked
            lines.append(path.read_bytes().split(b"\0"))
    return [words for words in lines if words[1:2] == [b"policy"] and str(run_dir).encode() not in words]


def ended(daemon):
    """Ends a daemon and waits for what it started."""
    below = [Process(pid) for pid in descendants(daemon.pid)]
    daemon.terminate()
    daemon.wait(60 * PATIENCE)
    eventually(lambda: not any(process.alive() for process in below), within=20)


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

    def __init__(self, home, image, *options, runtime="/usr/sbin/runc", run=()):
        self.options = [
            "podman", "--root", home / "root", "--runroot", home / "run", "--tmpdir", home / "tmp", "--runtime", runtime,
            "--cgroup-manager", "cgroupfs", "--events-backend", "none", *options,
        ]  # fmt: skip
        self.home, self.runtime, self.run = home, runtime, run
        if image:
            self.call("load", "--quiet", "--input", image)

    def call(self, *words):
        done = subprocess.run([*self.options, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120 * PATIENCE)
        assert done.returncode == 0, f"podman {' '.join(map(str, words))}: {done.stderr.strip()}"
        return done.stdout

    def plain(self):
        ours = Path(self.runtime).with_name("plain")
        return Podman(self.home, None, runtime=ours if ours.exists() else self.runtime)

    def start(self):
        return timed(lambda: self.once("/busybox", "true"))[0]

    def once(self, *words, options=()):
        limits = ["--cpus", "1", "--memory", str(MEMORY), *ULIMITS]
        return self.call("run", "--rm", "--network", "none", *limits, *VOLUMES, *self.run, *options, IMAGE, *words)

    def close(self):
        self.call("rm", "--all", "--force")
        self.call("rmi", "--all", "--force")


class Cri:
    """A container runtime on directories of its own, asked as a kubelet asks it. `ENGINE`: what an agent calls it."""

    def __init__(self, home, image):
        self.home, self.image, self.socket, self.nri = home, image, home / "c.sock", home / "nri.sock"
        self.daemon, self.pods = None, {}

    def begin(self, *words, path=""):
        """Starts the daemon, and waits until it answers."""
        environment = {**os.environ, "PATH": path + os.environ["PATH"]}
        with open(self.home / "log", "ab") as log:
            self.daemon = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment
            )

        def answers():
            assert self.daemon.poll() is None, f"{words[0]} ended: {self.tail()}"
            return self.cri("Status", check=False) is not None

        eventually(answers, within=60, every=0.1)

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
        name, uid = f"elbowroom-test-{uuid.uuid4().hex[:8]}", str(uuid.uuid4())
        config = {
            "metadata": {"name": name, "uid": uid, "namespace": "default"},
            "labels": {f"io.kubernetes.pod.{key}": value for key, value in (("name", name), ("namespace", "default"), ("uid", uid))},
            "log_directory": str(self.home / "logs"),
            "annotations": dict(annotations),
            "linux": {
                "cgroup_parent": self.PARENT,
                "security_context": {"namespace_options": {"network": "NODE", "pid": "CONTAINER"}},
            },
        }
        pod = self.cri("RunPodSandbox", config=config)["podSandboxId"]
        self.pods[pod] = config
        return pod

    def create(self, pod, *words, name=None, annotations=(), cdi=()):
        """A container in a pod, not started; its id and its log."""
        name = name or uuid.uuid4().hex[:8]
        config = {
            "metadata": {"name": name},
            "image": {"image": IMAGE, "user_specified_image": IMAGE},
            "command": [str(word) for word in words],
            "labels": {**self.pods[pod]["labels"], "io.kubernetes.container.name": name},
            "annotations": dict(annotations),
            "log_path": f"{name}.log",
            "mounts": [{"container_path": path, "host_path": path, "readonly": True} for path in SHARED],
            "CDI_devices": [{"name": device} for device in cdi],
            "linux": {
                "resources": {"cpu_quota": 100_000, "cpu_period": 100_000, "memory_limit_in_bytes": MEMORY},
                "security_context": {"namespace_options": {"network": "NODE", "pid": "CONTAINER"}},
            },
        }
        request = {"pod_sandbox_id": pod, "config": config, "sandbox_config": self.pods[pod]}
        return self.cri("CreateContainer", **request)["containerId"], self.home / "logs" / f"{name}.log"

    def run(self, pod, *words, **options):
        """Starts a container in a pod; its id."""
        container, _ = self.create(pod, *words, **options)
        self.cri("StartContainer", container_id=container)
        return container

    def inside(self, container, *words):
        """The output of a program in a container."""
        answer = self.cri("ExecSync", container_id=container, cmd=[str(word) for word in words], timeout=30 * PATIENCE)
        return base64.b64decode(answer.get("stdout", "")).decode()

    def output(self, container, log):
        """Starts a container, waits for its end and gives what it printed."""
        self.cri("StartContainer", container_id=container)
        eventually(lambda: self.cri("ContainerStatus", container_id=container)["status"]["state"] == "CONTAINER_EXITED", within=60)
        lines = [line.split(" ", 3) for line in log.read_text().splitlines()]
        return "".join(text + ("\n" if kind == "F" else "") for _, _, kind, text in lines)

    def remove(self, pod):
        del self.pods[pod]
        # CRI-O gives them as long as the whole call may take.
        for container in self.cri("ListContainers", filter={"pod_sandbox_id": pod}).get("containers", []):
            self.cri("StopContainer", container_id=container["id"], timeout=0)
        self.cri("StopPodSandbox", pod_sandbox_id=pod)
        # A container whose end is not noted yet counts as running.
        eventually(lambda: self.cri("RemovePodSandbox", check=False, pod_sandbox_id=pod) is not None, every=0.2)

    def clear(self):
        for pod in list(self.pods):
            self.remove(pod)

    def end(self):
        """Ends the daemon alone."""
        daemon, self.daemon = self.daemon, None
        ended(daemon)

    def stop(self):
        self.clear()
        self.end()
        remove_groups(self.PARENT)


class Containerd(Cri):
    """A containerd of today."""

    ENGINE, PARENT = "containerd", "/elbowroom-test-cri"

    def __init__(self, home, image, cdi, nri=""):
        super().__init__(home, image)
        self.state = home / "state"
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

    def start(self):
        self.begin(BUILT / "containerd", "--config", self.home / "config.toml", "--log-level", "info", path=f"{BUILT}:")
        ctr = [BUILT / "ctr", "--address", self.socket, "--namespace", "k8s.io"]
        done = subprocess.run([*ctr, "images", "import", self.image], capture_output=True, text=True, timeout=60 * PATIENCE)
        assert done.returncode == 0, done.stderr
        return self


class Crio(Cri):
    """A CRI-O of today with conmon and runc of Debian; crun, which it takes first, where that runs. Its configuration is where that of a
    package would be, because an agent learns there where containers are kept. Podman brings the image: both use containers/storage."""

    ENGINE, PARENT = "crio", "/elbowroom-test-crio"
    CONFIG = Path("/etc/crio/crio.conf.d/elbowroom-test.conf")
    RUNTIME = "crun" if V2 else "runc"

    def __init__(self, home, image, cdi):
        super().__init__(home, image)
        self.cdi, self.hooks = cdi, None
        self.made = [directory for directory in (self.CONFIG.parent, self.CONFIG.parent.parent) if not directory.exists()]
        self.CONFIG.parent.mkdir(parents=True, exist_ok=True)
        (home / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        Podman(home, image)

    @classmethod
    def somebodys(cls):
        """Another CRI-O's configuration, or None. A run that was killed may have left ours."""
        there = [path for path in cls.CONFIG.parent.parent.glob("**/*") if path.is_file() and path != cls.CONFIG]
        return there[0] if there else None

    def start(self):
        self.CONFIG.write_text(f"""
            [crio]
            root = "{self.home}/root"
            runroot = "{self.home}/run"
            storage_driver = "overlay"
            log_dir = "{self.home}/logs"
            version_file = "{self.home}/version"
            clean_shutdown_file = ""
            internal_wipe = false
            internal_repair = false
            [crio.api]
            listen = "{self.socket}"
            [crio.runtime]
            default_runtime = "{self.RUNTIME}"
            cgroup_manager = "cgroupfs"
            pinns_path = "{BUILT}/pinns"
            namespaces_dir = "{self.home}/ns"
            container_exits_dir = "{self.home}/exits"
            container_attach_socket_dir = "{self.home}/attach"
            hooks_dir = ["{self.hooks or self.home / "none"}"]
            cdi_spec_dirs = ["{self.cdi}"]
            enable_criu_support = false
            disable_hostport_mapping = true
            irqbalance_config_restore_file = "disable"
            [crio.runtime.runtimes.{self.RUNTIME}]
            runtime_path = "{shutil.which(self.RUNTIME)}"
            runtime_root = "{self.home}/{self.RUNTIME}"
            monitor_path = "{shutil.which("conmon")}"
            monitor_cgroup = "pod"
            monitor_env = ["PATH={os.environ["PATH"]}"]
            [crio.image]
            pause_image = "{IMAGE}"
            signature_policy = "{self.home}/policy.json"
            signature_policy_dir = "{self.home}/policies"
            [crio.network]
            network_dir = "{self.home}/cni"
            plugin_dirs = ["{self.home}/cni"]
            [crio.nri]
            enable_nri = true
            nri_listen = "{self.nri}"
            nri_plugin_dir = "{self.home}/none"
            nri_plugin_config_dir = "{self.home}/none"
            """)
        self.begin(BUILT / "crio")
        return self

    def with_hooks(self, directory):
        """The same engine, started anew where it reads another directory of OCI hooks."""
        if self.hooks != directory:
            self.end()
            self.hooks = directory
            self.start()
        return self

    def stop(self):
        self.clear()
        self.end()
        # The monitor of a container is in a cgroup of its own, which CRI-O leaves to the kubelet.
        remove_groups(f"{self.PARENT}/*")
        remove_groups(self.PARENT)
        self.CONFIG.unlink()
        for directory in self.made:
            directory.rmdir()


class CriWay:
    """A container in a pod of its own."""

    def __init__(self, engine, cdi=(), annotations=()):
        self.engine, self.cdi, self.annotations = engine, cdi, annotations

    def plain(self):
        # The plugin is asked all the same: what that costs is measured by itself. So is a hook of all containers.
        return CriWay(self.engine, annotations={"elbowroom.dev/views": "off"})

    def start(self):
        pod = self.engine.pod(self.annotations)
        try:

            return timed(lambda: self.engine.run(pod, "/busybox", "true", cdi=self.cdi))[0]
        finally:
            self.engine.remove(pod)

    def once(self, *words, pod_annotations=(), annotations=(), name=None):
        pod = self.engine.pod(pod_annotations)
        try:
            return self.engine.output(*self.engine.create(pod, *words, name=name, annotations=annotations, cdi=self.cdi))
        finally:
            self.engine.remove(pod)


class RuncWay:
    """runc by itself, where the noise is least; `hook` is a program and its arguments, which mounts the view or, if it is `idle`, not.
    One with a `name` is in a cgroup of its own by that, and whether its first instruction sees a view is not asked."""

    def __init__(self, home, hook=None, idle=False, name=None):
        self.sees = bool(hook) and not idle if name is None else None
        self.home, self.bundle = home, home / (name or ("with" if self.sees else "idle" if idle else "without"))
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

    def run_in_time(self, runtime="runc"):
        """The same, and again where nothing was seen and the machine is an emulated one: a hook that is late starts a container without a
        view."""
        for _ in range(1 if PATIENCE == 1 else 4):
            took, done = self.run(runtime)
            if done.returncode or f"{MEMORY >> 10} kB" in done.stdout:
                break
        return took, done

    def start(self):
        took, done = self.run()
        assert done.stdout.startswith("MemTotal:") and self.sees in (None, f"{MEMORY >> 10} kB" in done.stdout), done
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
