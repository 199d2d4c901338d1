"""Arms that divide the disk: none, the kernel's own means, a limit by hand, the paper's policy, ours. Each says what it needs."""

import subprocess
from contextlib import contextmanager

from kit.cgroup import ROOT, V2

# In the order of tables. `alone` has the steady containers without the others: what their latency is compared with.
NAMES = ["alone", "none", "bfq", "iocost", "static", "aridac", "lifeline"]
ASKED = NAMES[1:]
ARIDAC_SAMPLES = 2  # N, a second apart: fitted to the paper's figure 7 (docs/papers/aridac.md)
ALONE_S = 15  # of a disk without contention there is not more to see


def missing(arm, disk):
    """Why an arm cannot run on a disk here; None where it can."""
    if arm == "bfq" and "bfq" not in disk.schedulers() and not loaded("bfq"):
        return "the kernel has no bfq (CONFIG_IOSCHED_BFQ)"
    if arm == "iocost" and not V2:
        return "cgroup v1 has no io.cost.qos: iocost needs the io controller of cgroup v2"
    if arm == "iocost" and not (ROOT / "io.cost.qos").exists():
        return "the kernel has no iocost (CONFIG_BLK_CGROUP_IOCOST)"
    return None


def loaded(module):
    return subprocess.run(["modprobe", module], capture_output=True).returncode == 0


def settings(arm, places):
    """Lines of the agent's configuration; None where no agent runs. CPU and memory are not the subject, so they are sensed at leisure.
    Lifeline is told nothing; Aridac the disk's speed."""
    if arm not in ("aridac", "lifeline"):
        return None
    devices = ", ".join(f'"{disk.name}"' for disk, _ in places)
    lines = ['sense.period = "500ms"', 'disk.mode = "enforce"', f'disk.policy = "{arm}"', f"disk.devices = [{devices}]"]
    told = [f'disk.aridac.max_disk_io = "{places[0][1]["capacity"]}B/s"', f"disk.aridac.samples = {ARIDAC_SAMPLES}"]
    return lines + told if arm == "aridac" else lines


@contextmanager
def in_force(arm, disk, told, containers):
    """Switches the kernel's means on for a disk, and off again."""
    if arm == "bfq":
        disk.schedule("bfq")
    elif arm == "iocost":
        # Its model is told, as its tuning tool would find it: one page costs as much in every request, at the disk's speed at its best.
        speed, pages = told["capacity"], told["capacity"] // 4096
        rates = " ".join(f"{way}bps={speed} {way}seqiops={pages} {way}randiops={pages}" for way in "rw")
        (ROOT / "io.cost.model").write_text(f"{disk.number} ctrl=user model=linear {rates}")
        (ROOT / "io.cost.qos").write_text(f"{disk.number} enable=1 ctrl=user rpct=0 wpct=0 min=100 max=100")
    elif arm == "static":
        for container in containers:
            container.group.limit_io(disk.number, told["capacity"] // len(containers))
    try:
        yield
    finally:
        if arm == "bfq":
            disk.schedule("none")
        elif arm == "iocost":
            (ROOT / "io.cost.qos").write_text(f"{disk.number} enable=0")


def part(arm, told):
    """The containers of a load that take part under an arm."""
    if arm != "alone":
        return told
    steady = [actor for actor in told["actors"] if actor["steady"]]
    return {**told, "actors": steady if len(steady) < len(told["actors"]) else steady[:1], "seconds": min(told["seconds"], ALONE_S)}
