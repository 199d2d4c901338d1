"""What this kernel offers, as one line of JSON: what `elbowroom check` says of it, and what only trying tells.

  probe.py ELBOWROOM offers    all but the next
  probe.py ELBOWROOM faults    how page faults can be followed; in a guest with one CPU, because QEMU before 8.1 does not survive
                               that a function is patched which another CPU runs"""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

PROGRAM = os.path.abspath(sys.argv[1])
CGROUPS = Path("/sys/fs/cgroup")
V2 = (CGROUPS / "cgroup.controllers").exists()
# 100 ms of two seconds, the only window for a program without CAP_SYS_RESOURCE: Documentation/accounting/psi.rst.
TRIGGER = b"some 100000 2000000\0"


def check():
    done = subprocess.run([PROGRAM, "check", "--format", "json"], capture_output=True, text=True, timeout=120)
    facts = json.loads(done.stdout)["facts"]
    return {"status": done.returncode, "missing": {fact["name"]: fact["lost"] for fact in facts if not fact["present"]}}


def pressure_trigger():
    """Whether the kernel tells of CPU pressure that this program makes itself, by poll(2); else why not."""
    children = []
    try:
        file = os.open("/proc/pressure/cpu", os.O_RDWR | os.O_NONBLOCK)
        os.write(file, TRIGGER)
        for _ in range(os.cpu_count() + 1):
            children.append(subprocess.Popen(["sh", "-c", "while :; do :; done"]))
        poll = select.poll()
        poll.register(file, select.POLLPRI)
        events = poll.poll(60_000)
        return "yes" if events and events[0][1] & select.POLLPRI else "never told"
    except OSError as error:
        return str(error)
    finally:
        for child in children:
            child.kill()
            child.wait()


def text(path):
    return Path(path).read_text().strip() if Path(path).exists() else None


def faults():
    """For each way to follow page faults: yes, or why not."""
    group = CGROUPS / ("" if V2 else "memory") / f"elbowroom-test-live-probe-{os.getpid()}"
    group.mkdir()
    tiers = {}
    try:
        for tier in ("functions", "tracepoints"):
            words = [PROGRAM, "profile", "faults", "--tier", tier, "--for", "10ms", f"/{group.name}"]
            done = subprocess.run(words, capture_output=True, text=True, timeout=120)
            tiers[tier] = "yes" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
    finally:
        group.rmdir()
    return tiers


def offers():
    return {
        "kernel": os.uname().release,
        "cgroups": "v2" if V2 else "v1 hybrid" if (CGROUPS / "unified").exists() else "v1",
        "cpus": os.cpu_count(),
        "check": check(),
        "lru_gen": text("/sys/kernel/mm/lru_gen/enabled"),  # a bit for each part that is on
        "memory_reclaim": V2 and any(CGROUPS.glob("*/memory.reclaim")),
        "pressure_trigger": pressure_trigger(),
    }


print(json.dumps({"offers": offers, "faults": faults}[sys.argv[2]]()))
