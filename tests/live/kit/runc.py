"""Containers by runc alone: for hosts where no engine's daemon is wanted."""

import json
import subprocess

from kit.container import INSIDE, Container, main_process
from kit.docker import SHARED


class Runc:
    """`runtime` is runc or something that stands in for it; `home` keeps bundles and its state."""

    def __init__(self, home, runtime="runc"):
        self.home, self.runtime = home, str(runtime)
        self.containers = []

    def run(self, name, cgroup, cpu=None, memory=None, shares=None, **more):
        """A container in cgroup path `cgroup`; `cpu` is (quota, period) in microseconds, `memory` in bytes; `more` is more of its
        configuration."""
        self.bundle(name, cgroup, cpu, memory, shares, more)
        return self.again(name)

    def again(self, name):
        """The container of a bundle that was made before, as it is now."""
        words = [self.runtime, "--root", str(self.home / "state"), "run", "--bundle", str(self.home / name), name]
        container = Container(words, name)
        container.id = name
        self.containers.append(container)
        return container

    def bundle(self, name, cgroup, cpu, memory, shares, more):
        bundle = self.home / name
        for path in ("proc", "sys", "dev", "tmp", "usr", "etc", *(path.lstrip("/") for path in [*SHARED, str(INSIDE.parent)])):
            (bundle / "root" / path).mkdir(parents=True, exist_ok=True)
        for link in ("bin", "sbin", "lib", "lib64"):
            (bundle / "root" / link).symlink_to(f"usr/{link}")
        (bundle / "config.json").write_text(json.dumps({**spec(name, cgroup, cpu, memory, shares), **more}, indent=1))

    def clear(self):
        for container in self.containers:
            container.close()
            words = [self.runtime, "--root", str(self.home / "state"), "delete", "--force", container.name]
            subprocess.run(words, capture_output=True)
        self.containers.clear()


def spec(name, cgroup, cpu, memory, shares):
    """The OCI configuration of a container without a network, a terminal or privileges."""
    resources = {"devices": [{"allow": False, "access": "rwm"}]}
    if cpu:
        resources["cpu"] = {"quota": cpu[0], "period": cpu[1]}
    if shares:
        resources.setdefault("cpu", {})["shares"] = shares
    if memory:
        resources["memory"] = {"limit": memory}
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
        {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["nosuid", "noexec", "nodev", "ro"]},
    ]
    for path in [*SHARED, str(INSIDE.parent)]:
        mounts.append({"destination": path, "type": "bind", "source": path, "options": ["rbind", "ro"]})
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": main_process(name),
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "cwd": "/",
        },
        "root": {"path": "root", "readonly": False},
        "mounts": mounts,
        "linux": {
            "cgroupsPath": cgroup,
            "resources": resources,
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")],
        },
    }
