"""Fixtures of the live tests: a real kernel, real containers, the release binary. Nothing is built here but test programs.

Every fixture cleans up after itself and then looks whether it did. A test that cannot run says why: `needs X: reason`."""

import contextlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from kit import cgroup, docker as docker_kit, leftovers, programs
from kit.agent import Agent
from kit.container import Container, main_process
from kit.disk import LoopDisk
from kit.docker import Docker
from kit.memory import LARGEST_HOST, Hungry, host_memory, zram
from kit.process import mounts_of, pids, state
from kit.runc import Runc
from kit.wait import eventually

# What starts tests in the background (`nohup make live`, `make live &` in a script) has children ignore these; programs under test must not.
for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(ignored) == signal.SIG_IGN:
        # Not SIG_DFL: what nohup protects stays protected. A new program never inherits a handler.
        signal.signal(ignored, lambda *_: None)

REPOSITORY = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items):
    reason = None
    if os.geteuid() != 0:
        reason = "needs root: cgroups and mounts are made"
    elif not os.path.exists("/dev/fuse"):
        reason = "needs /dev/fuse: 'modprobe fuse', or a container that is given it"
    if reason:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def only_run():
    """One run at a time, on a machine without what an earlier one left when it was killed."""
    lock = leftovers.alone()
    if lock is None:
        pytest.exit(f"another run of these tests holds {leftovers.LOCK}: wait for it", 2)
    with lock:
        for path in leftovers.clear():
            print(f"removed what a killed run left: {path}")
        yield
        # Nothing else ends an agent that never became ready, or the rest of an agent that a test killed in part.
        leftovers.clear()


@pytest.fixture(scope="session")
def binary():
    """The program under test."""
    path = Path(os.environ.get("ELBOWROOM", REPOSITORY / "target/release/elbowroom")).resolve()
    if not os.access(path, os.X_OK):
        pytest.exit(f"{path} is not there: run 'make build', or set ELBOWROOM", 2)
    if subprocess.run([path, "list"], capture_output=True).returncode == 0:
        pytest.exit("an agent is at work in /run/elbowroom, and two would mount into the same containers: stop it first", 2)
    return path


@pytest.fixture(scope="session")
def scratch(only_run):
    """A directory for the session, with a short name: a socket's path has room for 107 bytes."""
    return Path(tempfile.mkdtemp(prefix=leftovers.PREFIX))


@pytest.fixture(scope="session")
def run_dir(scratch):
    """The run directory every agent of the session uses, one after another."""
    return scratch / "run"


@pytest.fixture(scope="session")
def strangers(scratch):
    """Configuration that leaves alone the containers that were here before us, and knows where our dockerd keeps its own."""
    return f'exclude = {json.dumps(sorted(cgroup.strangers()))}\ndocker_root = "{scratch}/docker/data"\n'


@pytest.fixture(autouse=True)
def nothing_left():
    """No test leaves a cgroup behind."""
    before = cgroup.ours()
    yield

    def gone():
        left = cgroup.ours() - before
        assert not left, f"left behind: {sorted(left)}"
        return True

    eventually(gone)


@pytest.fixture
def new_agent(binary, run_dir, strangers, tmp_path):
    """Makes agents, not started: `new_agent("[sense]\\nperiod = ...")`. Each must stop cleanly unless it is destroyed."""
    made = []

    def new(config="", containers="", prefix=(), args=()):
        # This machine's own runtime is not asked in these tests.
        config += "" if "[nri]" in config else "\n[nri]\nsockets = []\n"
        text = f"{config}\n[containers]\n{strangers}{containers}\n"
        agent = Agent(binary, run_dir, tmp_path / f"agent{len(made)}.log", text, prefix, args)
        made.append(agent)
        return agent

    yield new
    # The last one first: they have one run directory, and look for what is left in it.
    for agent in reversed(made):
        code = agent.stop()
        try:
            assert code in (0, None), f"the agent stopped with {code}:\n{agent.tail()}"
            eventually(lambda: not agent.leftovers())
        except AssertionError:
            left = agent.leftovers()
            agent.destroy()
            unmount(agent)
            pytest.fail(f"after a clean stop ({code}) there is left: {left}\n{agent.tail()}")


def unmount(agent):
    """Unmounts the views here, so that the failure of this test does not fail the next one."""
    for device, name in ((agent.device, "private/views"), (agent.triggers, "private/triggers"), (agent.pages, "pages")):
        if device is not None and mounts_of(device):
            subprocess.run(["umount", "--lazy", agent.run_dir / name], capture_output=True)


@pytest.fixture
def agent(new_agent):
    """A running agent with the default configuration."""
    return new_agent().start()


@pytest.fixture(scope="session")
def runtime(binary, scratch, run_dir):
    """A program that engines take for runc: ours, speaking to the agent of this session."""
    # And one without it, for comparison, that begins as it does.
    for name, command in (("runtime", f"{binary}-runtime"), ("plain", "runc")):
        path = scratch / name
        path.write_text(f'#!/bin/sh\nELBOWROOM_RUN_DIR={run_dir} exec {command} "$@"\n')
        path.chmod(0o755)
    return scratch / "runtime"


@pytest.fixture(scope="session")
def docker_daemon(scratch, runtime):
    missing = docker_kit.why_not()
    if missing:
        pytest.skip(f"needs {missing}")
    home = scratch / "docker"
    home.mkdir()
    daemon = Docker(home, runtime)
    try:
        daemon.start()
    except RuntimeError as error:
        pytest.skip(f"needs a Docker daemon, which does not start here: {error}")
    yield daemon
    daemon.stop()


@pytest.fixture
def docker(docker_daemon):
    """Our Docker daemon; its containers go with the test."""
    yield docker_daemon
    docker_daemon.clear()


@pytest.fixture
def runc(tmp_path):
    """Containers by runc alone."""
    if not shutil.which("runc"):
        pytest.skip("needs runc, which is not installed: tools/setup test")
    runc = Runc(tmp_path)
    yield runc
    runc.clear()


@pytest.fixture
def start(binary, run_dir):
    """Starts containers by `elbowroom run`: `start("--cpus", "1")`. By default at the agent of this session, if it runs. `inside`: what
    starts the main process in there."""
    made = []

    def start(*options, at=run_dir, prefix=(), inside=()):
        name = f"elbowroom-test-live-{os.getpid()}-{len(made)}"
        words = [*prefix, binary, "--run-dir", at, "run", "--name", name, *options, "--", *inside, *main_process(name)]
        container = Container([str(word) for word in words], name)
        made.append(container)
        return container

    yield start
    for container in made:
        container.close()


@pytest.fixture
def background(start):
    """Starts commands in containers by `elbowroom run`, which end with the test."""
    containers = []

    def run(container, command, log):
        containers.append(container)
        container.run("sh", "-c", f"exec setsid {command} >{log} 2>&1 </dev/null &")

    yield run

    def inside(container):
        of = lambda pid: {line.split(":", 2)[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()}
        found = []
        for pid in pids():
            with contextlib.suppress(OSError):
                if pid != container.pid and of(pid) & container.cgroups and state(pid) != "Z":
                    found.append(pid)
        return found

    def gone():
        for container in containers:
            for pid in inside(container):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return not any(inside(container) for container in containers)

    eventually(gone)


@pytest.fixture
def hand_made():
    """Makes cgroups by hand: `hand_made("elbowroom-test-x")`."""
    made = []

    def make(path, **options):
        made.append(cgroup.Cgroup(path, **options))
        return made[-1]

    yield make
    for group in reversed(made):
        group.remove()


@pytest.fixture
def many():
    """Makes many cgroups in a directory, and takes them away."""
    made = []

    def many(directory, names):
        for name in names:
            path = directory / name
            path.mkdir()
            made.append(path)

    yield many
    for path in reversed(made):
        path.rmdir()


@pytest.fixture
def loop_disk(tmp_path):
    """A block device of our own."""
    try:
        disk = LoopDisk(tmp_path / "disk", 64 << 20)
    except OSError as error:
        pytest.skip(f"needs a loop device: {error}")
    yield disk
    disk.close()


# ---- memory ----


@pytest.fixture
def made(hand_made):
    """Makes a cgroup that the doctor takes for a container; a plain one with `container=False`."""

    def make(name, limit=None, container=True):
        group = hand_made(f"elbowroom-test-live-{'doctor' if container else 'plain'}-{os.getpid()}-{name}")
        if limit:
            group.limit_memory(limit)
        return group

    return make


@pytest.fixture
def doctors_config(tmp_path):
    """A configuration by which the cgroups of `made` are containers."""
    config = tmp_path / "doctor.toml"
    config.write_text(f'[containers]\ncgroups = ["/elbowroom-test-live-doctor-{os.getpid()}-*"]\n')
    return config


@pytest.fixture
def hungry(hand_made):
    """Starts programs that eat memory: `hungry(group)("hold 64")`."""
    made = []

    def start(group=None):
        made.append(Hungry(group))
        return made[-1]

    yield start
    for process in made:
        process.end()


@pytest.fixture
def small_host():
    """Skips where the host cannot be filled."""
    total = host_memory()["MemTotal"]
    if total > LARGEST_HOST:
        pytest.skip(f"needs a host with less than {LARGEST_HOST >> 30} GiB, to fill it: this one has {total >> 30}; tests/vm")


@pytest.fixture
def disk(tmp_path):
    """A directory on a file system that has page cache of its own: not a tmpfs, whose files are memory."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True).stdout.strip()
    if kind in ("ext2/ext3", "xfs", "btrfs"):
        yield tmp_path
        return
    with zram("4G") as device:
        subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", device], check=True)
        (mount := tmp_path / "disk").mkdir()
        subprocess.run(["mount", device, mount], check=True)
        yield mount
        # Programs that read a file there are still exiting.
        eventually(lambda: subprocess.run(["umount", mount], capture_output=True).returncode == 0)


# ---- test programs ----


@pytest.fixture(scope="session")
def sees_java():
    """The directory of Sees.class."""
    return built(programs.java)


@pytest.fixture(scope="session")
def sees_go():
    """A Go program that says its GOMAXPROCS."""
    return built(programs.go)


def built(program):
    try:
        return program()
    except programs.Missing as missing:
        pytest.skip(f"needs {missing}")


@pytest.fixture
def receiver():
    """An address that takes what is posted: `receiver.url`, `receiver.posted`."""

    class Server(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    posted = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server.url, server.posted = f"http://127.0.0.1:{server.server_port}/alerts", posted
        yield server
        server.shutdown()
