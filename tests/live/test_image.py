"""The agent as a container: it works on the host it is on, and is gone with its container, however that ends."""

import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kit.container import meminfo
from kit.memory import host_memory
from kit.traces import nothing_left, traces
from kit.wait import PATIENCE, always, eventually

REPOSITORY = Path(__file__).resolve().parents[2]
MIB = 1 << 20
NAME = "elbowroom-test-agent"
ARM64_COMPILER = "aarch64-linux-gnu-gcc"
# Capabilities that docs/guide/install.md names, instead of --privileged. A machine that lacks one itself cannot give it.
WANTED = "SYS_ADMIN SYS_CHROOT SYS_PTRACE DAC_OVERRIDE DAC_READ_SEARCH KILL SYS_NICE SYS_RESOURCE SYSLOG CHOWN FOWNER SETUID SETGID"
NUMBERS = {"CHOWN": 0, "DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7, "SYS_CHROOT": 18,
           "SYS_PTRACE": 19, "SYS_ADMIN": 21, "SYS_NICE": 23, "SYS_RESOURCE": 24, "SYSLOG": 34}  # fmt: skip
OWN = int(re.search(r"CapBnd:\s*(\w+)", Path("/proc/self/status").read_text()).group(1), 16)
RIGHTS = ["--cap-drop", "ALL", *(word for right in WANTED.split() if OWN >> NUMBERS[right] & 1 for word in ("--cap-add", right)),
          "--device", "/dev/fuse", "--device", "/dev/kmsg:/dev/kmsg:r", "--security-opt", "apparmor=unconfined", "--read-only"]  # fmt: skip


@pytest.fixture(scope="module")
def image(docker_daemon, binary, tmp_path_factory):
    """The image, as `make image` makes it of static programs, of the program under test; and one for arm64, where there is a compiler."""
    directory = tmp_path_factory.mktemp("image")
    programs = [binary, binary.with_name("elbowroom-runtime")]
    if shutil.which(ARM64_COMPILER):
        programs.append(directory / "elbowroom")
        subprocess.run([ARM64_COMPILER, "-static", "-x", "c", "-o", programs[-1], "-"], input=b"int main(void) { return 0; }", check=True)
    file = directory / "image.tar"
    subprocess.run([REPOSITORY / "packaging/image", "--libraries", "-o", file, *programs], check=True, capture_output=True)
    told = docker_daemon.call("load", "--input", file).stdout
    return re.search(r"Loaded image: (\S+)", told).group(1)


class Contained:
    """An agent in a container."""

    def __init__(self, docker, image, run_dir, config):
        self.docker, self.image, self.run_dir, self.config = docker, image, run_dir, config

    def start(self, rights=RIGHTS, words=("agent",)):
        more = ["--config", self.config, "--state-dir", self.config.with_suffix(".state")] if words == ("agent",) else []
        self.docker.call(
            "run", "--detach", "--name", NAME, "--pid", "host", "--cgroupns", "host", "--network", "none", *rights,
            "--health-interval", "1s", "--env", f"ELBOWROOM_RUN_DIR={self.run_dir}", "--env", f"PATH=/elbowroom:{self.run_dir}/image", self.image, *words, *more,
        )  # fmt: skip
        self.pid = int(self.docker.call("inspect", "--format", "{{.State.Pid}}", NAME).stdout)
        return self

    def list(self):
        done = self.docker.call("exec", NAME, "elbowroom", "list", "--format", "json", check=False)
        assert done.returncode == 0, f"{done.stderr} {self.log()}"
        return json.loads(done.stdout)

    def attached(self, container):
        return eventually(lambda: [row for row in self.list() if row["path"] in container.cgroups and row["attached"]], within=20)

    def health(self):
        return self.docker.call("inspect", "--format", "{{.State.Health.Status}}", NAME).stdout.strip()

    def log(self):
        done = self.docker.call("logs", NAME, check=False)
        return done.stdout + done.stderr

    def remove(self):
        self.docker.call("rm", "--force", NAME, check=False)


@pytest.fixture
def contained(docker, image, run_dir, strangers, tmp_path):
    config = tmp_path / "agent.toml"
    config.write_text(f"[nri]\nsockets = []\n[containers]\n{strangers}")
    agent = Contained(docker, image, run_dir, config)
    yield agent
    agent.remove()


@pytest.mark.parametrize("rights", [["--privileged"], RIGHTS], ids=["privileged", "rights"])
def test_an_agent_in_a_container_gives_others_their_views(contained, docker, rights):
    if rights == ["--privileged"] and OWN != (1 << int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1) - 1:
        pytest.skip("needs every capability, to give a container: this machine's root has not")
    before = traces(contained.run_dir)
    old = docker.run("--cpus", "1", "--memory", "300m", name="elbowroom-test-older")
    contained.start(rights)
    new = docker.run("--cpus", "1", "--memory", "200m", name="elbowroom-test-newer")
    for container, size in ((old, 300), (new, 200)):
        contained.attached(container)
        eventually(lambda: container.online() == 1 and container.mem_total() == size * MIB)
    eventually(lambda: contained.health() == "healthy", within=20)
    # The program that an engine would run as a hook is there, on the host.
    assert os.access(contained.run_dir / "image/elbowroom-runtime", os.X_OK)
    docker.call("stop", "--time", "30", NAME)
    assert docker.call("inspect", "--format", "{{.State.ExitCode}}", NAME).stdout.strip() == "0", contained.log()
    assert new.mem_total() > 200 * MIB and new.online() == os.cpu_count()
    nothing_left(contained.run_dir, before)


@pytest.mark.parametrize("end", ["rm", "kill"])
def test_a_container_of_the_agent_that_is_killed_takes_its_views_along(contained, docker, end):
    before = traces(contained.run_dir)
    container = docker.run("--cpus", "1", "--memory", "300m", name="elbowroom-test-reader")
    contained.start().attached(container)
    eventually(lambda: container.mem_total() == 300 * MIB)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        # `kill`: one process, which is the container for its engine: that ends the others.
        ending = pool.submit(docker.call, "rm", "--force", NAME) if end == "rm" else pool.submit(os.kill, contained.pid, signal.SIGKILL)
        deadline, total = time.monotonic() + 20 * PATIENCE, 0
        # No read fails in between: each is answered by the view or by the host.
        while (total := meminfo(container.read("/proc/meminfo"))["MemTotal"]) == 300 * MIB:
            assert time.monotonic() < deadline, "the view is still there"
        ending.result()
    assert total == host_memory()["MemTotal"]
    contained.remove()
    nothing_left(contained.run_dir, before)


def test_the_next_container_of_the_agent_waits_for_the_one_before(contained, docker):
    container = docker.run("--cpus", "1", "--memory", "300m", name="elbowroom-test-again")
    contained.start().attached(container)
    docker.call("kill", NAME)
    docker.call("start", NAME)
    contained.attached(container)
    eventually(lambda: container.mem_total() == 300 * MIB)
    always(lambda: contained.docker.call("inspect", "--format", "{{.State.Running}}", NAME).stdout.strip() == "true")


def test_a_container_with_process_ids_of_its_own_is_told_what_it_lacks(docker, image):
    for options, expect in ((RIGHTS, "--pid=host"), (["--pid", "host"], "--privileged")):
        done = docker.call("run", "--rm", "--network", "none", *options, image, "agent", check=False)
        assert done.returncode == 2 and expect in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_the_image_of_another_machine_is_loaded_beside_it(docker, image):
    if not shutil.which(ARM64_COMPILER):
        pytest.skip(f"needs {ARM64_COMPILER}, which is not installed: tools/setup arm64")
    machine = lambda name: docker.call("image", "inspect", "--format", "{{.Architecture}}", name).stdout.strip()
    assert (machine(image), machine(f"{image}-arm64")) == ("amd64", "arm64")
