"""The questions of a program about CPUs and memory: strace of it, in a root directory of its own and a limited cgroup."""

import os
import re
import signal
import subprocess

from kit.wait import PATIENCE

# Names as `elbowroom audit --format json` spells them.
CALLS = {"sched_getaffinity", "sysinfo"}
FILES = [
    (re.compile(r"^/sys/devices/system/cpu/(online|possible|present)$"), None),
    (re.compile(r"^/sys/devices/system/cpu(/cpu\d+(/.*)?)?/?$"), "/sys/devices/system/cpu/cpuN"),
    (re.compile(r"^/sys/devices/system/node(/.*)?$"), "/sys/devices/system/node"),
    (re.compile(r"^/proc/(cpuinfo|stat|meminfo|loadavg)$"), None),
]
CGROUP = {
    "cpu.cfs_quota_us", "cpu.shares", "cpu.max", "memory.limit_in_bytes", "memory.soft_limit_in_bytes", "memory.max",
    "memory.high", "memory.pressure",
}
LINE = re.compile(r"^(?:\d+ +)?(\w+)\((.*)$")
PATH = re.compile(r'"((?:[^"\\]|\\.)*)"')


def asks(root, words, log, group, user=None, seconds=30, stop_after=None):
    """Runs `words` in `root` and returns the sources it asked, and its output. A server is stopped after `stop_after` seconds
    and must be at work until then; everything else must end by itself, and well. Threads and children are traced too."""
    mounts = f"mount --make-rprivate / && mount --rbind /proc {root}/proc && mount --rbind /sys {root}/sys"
    mounts += f" && mount --bind /dev {root}/dev && mount -t tmpfs -o mode=1777 tmp {root}/tmp && exec \"$@\""
    chroot = ["chroot", *([f"--userspec={user}"] if user else []), root, *words]
    trace = ["strace", "-f", "-qq", "-s", "256", "-o", log, "-e", "trace=openat,open,sched_getaffinity,sysinfo"]
    process = subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", mounts, "sh", *map(str, trace), *map(str, chroot)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace",
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/tmp"},
        preexec_fn=lambda: group.enter(os.getpid()), start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=(stop_after or seconds) * PATIENCE)
        ended = True
    except subprocess.TimeoutExpired:
        # The first process of the namespace is strace: with it everything below ends.
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        ended = False
    tail = output[-500:]
    if stop_after:
        assert not ended, f"{words[0]} was to serve, and ended with {process.returncode}: {tail}"
    else:
        assert ended, f"{words[0]} did not end within {seconds} s: {tail}"
        assert process.returncode == 0, f"{words[0]} ended with {process.returncode}: {tail}"
    return parse(log.read_text(errors="replace").splitlines()), output


def parse(lines):
    """The sources in lines of strace, also those that were not there: to ask is to open."""
    found = set()
    for line in lines:
        match = LINE.match(line)
        if not match:
            continue
        call, rest = match.groups()
        if call in CALLS:
            found.add(call)
        elif path := PATH.search(rest):
            source = of_path(path.group(1))
            if source:
                found.add(source)
    return found


def of_path(path):
    name = path.rsplit("/", 1)[-1]
    if name in CGROUP and "cgroup" in path:
        return name
    if name == "cpu.cfs_period_us":
        return "cpu.cfs_quota_us"
    for pattern, source in FILES:
        if pattern.match(path):
            return source or path
    return None
