"""Containers of rootless Podman, in the cgroup that systemd delegates to a user: none until the configuration names them."""

import pwd
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kit import cgroup
from kit.container import cpu_list, meminfo
from kit.memory import host_memory
from kit.tree import busybox_root
from kit.wait import PATIENCE, eventually

MIB = 1 << 20
USER = "elbowroom-test"
PATTERN = 'cgroups = ["/user.slice/**/libpod-*/container"]'
LIMITS = ["--memory", "300m", "--cpus", "1"]


class User:
    """A user of this machine, with a systemd of its own."""

    def __init__(self):
        subprocess.run(["useradd", "--create-home", USER], check=True)
        self.uid, self.home = pwd.getpwnam(USER).pw_uid, Path(pwd.getpwnam(USER).pw_dir)
        subprocess.run(["systemctl", "start", f"user@{self.uid}.service"], check=True)
        busybox_root(self.home / "root")
        subprocess.run(["chown", "--recursive", f"{USER}:", self.home / "root"], check=True)

    def call(self, *words, check=True):
        """A command, as a service of that systemd."""
        run = f"/run/user/{self.uid}"
        session = ["env", f"XDG_RUNTIME_DIR={run}", f"DBUS_SESSION_BUS_ADDRESS=unix:path={run}/bus"]
        service = ["systemd-run", "--user", "--quiet", "--pipe", "--wait", "--collect"]
        # As from a shell: with this variable Podman leaves its monitor in the service, which ends.
        done = subprocess.run(
            ["runuser", "--user", USER, "--", *session, *service, "env", "--unset=INVOCATION_ID", *words],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120 * PATIENCE,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def podman(self, *words, options=(), check=True):
        return self.call("podman", "--storage-driver", "vfs", *options, *words, check=check)

    def run(self, *words, options=(), run=()):
        """`podman run`."""
        return self.podman(
            "run", "--network", "none", *LIMITS, *run, "--rootfs", self.home / "root", *words, options=options
        )  # fmt: skip

    def remove(self):
        self.podman("rm", "--force", "--all", "--time", "0", check=False)
        subprocess.run(["systemctl", "stop", f"user@{self.uid}.service"], check=True)
        subprocess.run(["userdel", "--remove", USER], capture_output=True, check=True)


@pytest.fixture
def user():
    if Path("/proc/1/comm").read_text().strip() != "systemd":
        pytest.skip("needs systemd as the first process, which delegates cgroups to users: tests/vm/systemd")
    missing = [name for name in ("podman", "crun", "newuidmap", "useradd") if not shutil.which(name)]
    if missing or not cgroup.V2:
        pytest.skip(f"needs {', '.join(missing) or 'cgroup v2'}: tests/vm/systemd")
    user = User()
    yield user
    user.remove()


def ours(agent, user):
    return [row for row in agent.list() if f"user@{user.uid}.service" in row["path"]]


def test_a_container_of_a_user_has_a_view_where_the_configuration_names_it(new_agent, user):
    user.run("/bin/sleep", "1000", run=["--detach", "--name", "web"])
    read = lambda path: user.podman("exec", "web", "/bin/cat", path)
    plain = new_agent().start()
    assert ours(plain, user) == []
    # `elbowroom check` says why.
    found = re.search(r"missing +rootless engines +1 without a view\n +(.*)", plain.cli("check").stdout)
    assert found and "containers.cgroups" in found[1], plain.cli("check").stdout
    assert meminfo(read("/proc/meminfo"))["MemTotal"] == host_memory()["MemTotal"]
    assert plain.stop() == 0

    agent = new_agent(containers=PATTERN).start()

    def attached():
        rows = ours(agent, user)
        # Its monitor, which is in a cgroup of nearly the same name, is no container.
        assert len(rows) == 1 and rows[0]["attached"], [(row["path"], row["attach_note"]) for row in rows]
        return rows[0]

    row = eventually(attached)
    # No engine of the host answers for a name that a user gave.
    assert (row["engine"], row["id"], row["name"]) == ("plain", row["path"], None), row
    assert "rootless engines" not in agent.cli("check").stdout
    assert meminfo(read("/proc/meminfo"))["MemTotal"] == 300 * MIB
    assert len(cpu_list(read("/sys/devices/system/cpu/online"))) == 1
    cgroup.limit_memory(row["path"], 200 * MIB)
    eventually(lambda: meminfo(read("/proc/meminfo"))["MemTotal"] == 200 * MIB)
    user.podman("rm", "--force", "--time", "0", "web")
    eventually(lambda: ours(agent, user) == [])


@pytest.mark.parametrize("way", ["hook", "wrapper"])
def test_a_container_of_a_user_starts_with_our_hook_which_finds_no_agent_for_him(agent, user, binary, run_dir, way):
    """Only root may ask the agent."""
    if way == "hook":
        subprocess.run([binary, "--run-dir", run_dir, "oci-hooks", user.home / "hooks"], check=True, capture_output=True)
        options = ["--hooks-dir", user.home / "hooks"]
    else:
        wrapper = user.home / "wrapper"
        wrapper.write_text(f'#!/bin/sh\nELBOWROOM_OCI_RUNTIME=/usr/bin/crun ELBOWROOM_RUN_DIR={run_dir} exec {binary}-runtime "$@"\n')
        wrapper.chmod(0o755)
        options = ["--runtime", wrapper]
    seen = user.run("/bin/cat", "/proc/meminfo", run=["--rm"], options=options)
    assert meminfo(seen)["MemTotal"] == host_memory()["MemTotal"]
