"""A Docker daemon of our own: another data root, socket, containerd namespace and no network, so that a user's daemon on
this machine notices nothing."""

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

from kit.container import INSIDE, Container, main_process
from kit.process import Process, descendants
from kit.wait import PATIENCE, eventually

IMAGE = "elbowroom-test"
# The image is an empty tree: the machine's own programs are seen inside, read-only, at their own paths.
SHARED = ["/usr", "/etc/alternatives", *map(str, Path("/etc").glob("java-*"))]


class Docker:
    """`home` holds everything the daemon writes."""

    def __init__(self, home, runtime):
        self.home, self.runtime = home, runtime
        self.socket = home / "docker.sock"
        self.daemon = None
        self.containers = []
        self.program, self.more, self.environment, self.namespace = "dockerd", [], {}, "elbowroom-test"

    # ---- the daemon ----

    def start(self):
        words = [
            self.program, "--host", f"unix://{self.socket}", "--data-root", self.home / "data", "--exec-root", self.home / "exec",
            "--pidfile", self.home / "pid", "--config-file", self.home / "daemon.json",
            "--containerd-namespace", self.namespace, "--containerd-plugins-namespace", f"{self.namespace}-plugins",
            "--storage-driver", "overlay2", "--bridge", "none", "--iptables=false", "--ip6tables=false",
            "--exec-opt", "native.cgroupdriver=cgroupfs", "--log-level", "warn", *self.more,
        ]  # fmt: skip
        runtimes = {"elbowroom": {"path": str(self.runtime)}, "plain": {"path": str(self.runtime.with_name("plain"))}}
        (self.home / "daemon.json").write_text(json.dumps({"runtimes": runtimes}))
        with open(self.home / "log", "ab") as log:
            self.daemon = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env={**os.environ, **self.environment}
            )

        def answers():
            if self.daemon.poll() is not None:
                raise RuntimeError(f"dockerd ended with {self.daemon.returncode}: {self.tail()}")
            return self.call("version", check=False).returncode == 0

        eventually(answers, within=60, every=0.1)
        self.call("import", "-", IMAGE, input=root_file_system())
        return self

    def stop(self):
        self.clear()
        below = [Process(pid) for pid in descendants(self.daemon.pid)]
        self.daemon.terminate()
        self.daemon.wait(60 * PATIENCE)
        # Its containerd ends by itself, a moment later.
        eventually(lambda: not any(process.alive() for process in below), within=20)

    def tail(self):
        return "".join((self.home / "log").read_text(errors="replace").splitlines(keepends=True)[-15:])

    # ---- containers ----

    def call(self, *words, check=True, timeout=120, **options):
        """The docker command line."""
        environment = {**os.environ, "DOCKER_HOST": f"unix://{self.socket}", "DOCKER_CONFIG": str(self.home)}
        done = subprocess.run(
            ["docker", *words], capture_output=True, timeout=timeout * PATIENCE, env=environment, **options
        )
        done.stdout, done.stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        assert not check or done.returncode == 0, f"docker {' '.join(map(str, words))}: {done.stderr.strip()}"
        return done

    def run(self, *options, name):
        """A container with inside.py as its main process; `options` are those of `docker run`."""
        words = ["docker", "--host", f"unix://{self.socket}", "run", "--rm", "--interactive", "--name", name]
        words += ["--network", "none", *mounts(), *options, IMAGE, *main_process(name)]
        container = Container([str(word) for word in words], name)
        self.containers.append(container)
        container.id = self.call("inspect", "--format", "{{.Id}}", name).stdout.strip()
        return container

    def run_once(self, *words, options=(), shared=True):
        """A container that runs one command; its output. `shared`: with this machine's programs."""
        volumes = mounts() if shared else []
        done = self.call("run", "--rm", "--network", "none", *volumes, *options, IMAGE, *words)
        return done.stdout

    def clear(self):
        """Removes every container."""
        for container in self.containers:
            container.close()
        self.containers.clear()
        left = self.call("ps", "--all", "--quiet").stdout.split()
        if left:
            self.call("rm", "--force", *left)


def mounts():
    return [word for path in [*SHARED, str(INSIDE.parent)] for word in ("--volume", f"{path}:{path}:ro")]


def root_file_system():
    """The image: directories, and on Debian's merged /usr the usual links into it. A static busybox makes it a system of
    its own, for containers without the shared /usr."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:

        def add(name, kind, mode=0o755, target=""):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.linkname = kind, mode, target
            tar.addfile(entry)

        for name in ("dev", "etc", "proc", "run", "sys", "usr", "root"):
            add(name, tarfile.DIRTYPE)
        add("tmp", tarfile.DIRTYPE, 0o1777)
        for name in ("bin", "sbin", "lib", "lib64"):
            add(name, tarfile.SYMTYPE, target=f"usr/{name}")
        tar.add(busybox(), "busybox")
    return packed.getvalue()


def busybox():
    return next(path for path in ("/bin/busybox", "/usr/bin/busybox") if os.path.exists(path))


def why_not():
    """Why there can be no daemon here, or None."""
    for program in ("dockerd", "docker", "runc", "busybox"):
        if subprocess.run(["which", program], capture_output=True).returncode != 0:
            return f"{program}, which is not installed: tools/setup test"
    return None
