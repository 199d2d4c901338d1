"""The machine and the moment a run was recorded on: what a reader needs to judge its numbers. No host name."""

import datetime
import platform
import re
import subprocess
import sys
from pathlib import Path

from kit import cgroup
from kit.container import cpu_list
from lab import ROOT
from lab.backends import LXCFS


def read(path):
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def output(*words):
    """What a program says, or None where it cannot be run. Which stream `--version` uses depends on the program."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError:
        return None
    return (done.stdout or done.stderr).strip() if done.returncode == 0 else None


def field(path, key):
    found = re.search(rf"^{key}\s*:\s*(.*)$", read(path), re.M)
    return found[1] if found else ""


def online_cpus():
    return len(cpu_list(read("/sys/devices/system/cpu/online"))) or 1


def load():
    return [float(word) for word in read("/proc/loadavg").split()[:3]]


def layout():
    if cgroup.V2:
        return "v2"
    return "v1 with an empty unified hierarchy" if (cgroup.ROOT / "unified").is_dir() else "v1"


def commit():
    """Of the working directory, and whether its files differ from it; (None, False) where git cannot tell."""
    git = lambda *words: output("git", "-C", str(ROOT), *words)
    head = git("rev-parse", "--short=12", "HEAD")
    return head, bool(head and git("status", "--porcelain", "--untracked-files=no"))


def command(words):
    """How a job was called. A path elsewhere on the machine says nothing to others: of it there is the name."""
    inside = (word.replace(f"{ROOT}/", "") for word in words)
    return " ".join(["lab", *(Path(word).name if word.startswith("/") else word for word in inside)])


def take(job, elbowroom, seed):
    """`sysinfo.json`, as far as it is known before a run."""
    head, dirty = commit()
    return {
        "job": job,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": command(sys.argv[1:]),
        "kernel": platform.release(),
        "cpu_model": field("/proc/cpuinfo", "model name"),
        "cpus": online_cpus(),
        "memory_kib": int(field("/proc/meminfo", "MemTotal").removesuffix(" kB") or 0),
        "cgroups": layout(),
        "clocksource": read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "elbowroom": output(str(elbowroom), "--version"),
        **{name: (output(lxcfs.program, "--version") or "").strip('"') or None for name, lxcfs in LXCFS.items()},
        "commit": head and head + "+" * dirty,  # "+": files differ from it
        "seed": seed,
        "load_before": load(),
        "load_after": [0.0] * 3,
        "seconds": 0.0,
    }


def text(info):
    """The last line of a summary."""
    machine = (
        f"{info['cpus']} CPUs ({info['cpu_model'] or 'model unknown'}), {info['memory_kib'] / 2**20:.1f} GiB, Linux {info['kernel']}, "
        f"cgroups {info['cgroups']}, clock {info['clocksource']}; load average {info['load_before'][0]:.2f} before, "
        f"{info['load_after'][0]:.2f} after; commit {info['commit'] or 'unknown'}"
    )
    versions = [info["elbowroom"], *(f"lxcfs {info[name]}" for name in LXCFS if info.get(name))]
    return f"{machine}. {', '.join(filter(None, versions))}."
