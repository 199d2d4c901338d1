"""Keeps track of what a run makes, and removes it: at its end, on an error, on Ctrl-C, and after a `kill -9` by `python3 -m lab clean`.

Everything that would outlive the run is written to a ledger before it is made. Things are taken down one by one in the ordinary course;
the scope takes down what is left, newest first. All of it goes by id, nothing by name."""

import contextlib
import ctypes
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kit import cgroup
from kit.process import Process, comm, descendants, holders, pids
from kit.wait import eventually

PREFIX = "elbowroom-lab-"
PR_SET_CHILD_SUBREAPER = 36
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Scope:
    """One run's claim on the machine, for as long as a `with` lasts."""

    def __init__(self):
        self.directory = Path(tempfile.gettempdir(), f"{PREFIX}{os.getpid()}")
        self.directory.mkdir()
        self.ledger = open(self.directory / "made", "w")
        self.made = []
        # The first processes of containers become children of the run, which must reap them.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.note("process", os.getpid(), Process(os.getpid()).started)

    def __enter__(self):
        for number in SIGNALS:
            signal.signal(number, interrupt)
        return self

    def __exit__(self, *_):
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        while self.made:
            self.take_down(self.made[-1])
        self.ledger.close()
        remove_directory(self.directory)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    def path(self, name):
        """A path that nothing has yet, of this name where it is free: what is started again finds nothing of its predecessor."""
        names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
        return next(path for path in (self.directory / name for name in names) if not path.exists())

    def add(self, kind, *words):
        """Puts a thing of one of KINDS in the ledger; to be called before it is made. The thing, for `take_down`."""
        thing = (kind, *map(str, words))
        self.note(*thing)
        self.made.append(thing)
        return thing

    def process(self, child):
        """The same for a process of ours, which is known by a number only once it is there."""
        return self.add("process", child.pid, Process(child.pid).started)

    def note(self, *thing):
        print(json.dumps(thing), file=self.ledger, flush=True)

    def take_down(self, thing):
        """Takes a thing down now rather than at the end."""
        undo(thing)
        with contextlib.suppress(ValueError):
            self.made.remove(thing)


def interrupt(number, _):
    sys.exit(f"lab: interrupted by {signal.Signals(number).name}: everything made so far is taken down")


def undo(thing):
    """A thing that is gone already is fine; what cannot be taken down is said."""
    kind, *words = thing
    try:
        KINDS[kind](*words)
    except (AssertionError, OSError, subprocess.CalledProcessError) as error:
        words = getattr(error, "stderr", None) or error
        print(f"warning: {kind} {thing[1]} is left: {words}; run `python3 -m lab clean` later, or remove it by hand", file=sys.stderr)


def remove_group(path):
    """A cgroup, in every hierarchy, with the processes that are in it."""
    directories = {(root / path).resolve() for root in (cgroup.ROOT, *cgroup.ROOT.iterdir())}

    def gone():
        for directory in filter(Path.is_dir, directories):
            signal_all(map(int, (directory / "cgroup.procs").read_text().split()), signal.SIGKILL)
            with contextlib.suppress(OSError):
                directory.rmdir()
        return not any(map(Path.is_dir, directories))

    eventually(gone)


def remove_delegation(file, controller):
    # Another program may use it by now: then the kernel says EBUSY and it stays, rightly.
    with contextlib.suppress(OSError):
        Path(file).write_text(f"-{controller}")


def remove_mount(at):
    if any(line.split()[4] == at for line in Path("/proc/self/mountinfo").read_text().splitlines()):
        run("umount", "--lazy", at)


def remove_loop(backing):
    """The loop device on a file, whose name is known only after it was made."""
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        if file.read_text().rstrip("\n") == backing:
            run("losetup", "--detach", f"/dev/{file.parents[1].name}")


def remove_swap(device):
    if any(line.split()[0] == device for line in Path("/proc/swaps").read_text().splitlines()):
        run("swapoff", device)


def end_process(pid, started):
    process = Process(int(pid))
    if process.started != started or not process.alive():
        return reap(pid)
    signal_all([process.pid], signal.SIGTERM)
    deadline = time.monotonic() + 2
    while process.alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    reap(pid)


def agent_pids(run_dir):
    """Every process of an agent that lives, as /proc says: unlike its status, this asks none that may just have been killed. A supervisor
    that another started is known by the lock that it holds."""
    roots = {*holders(run_dir), *(pid for pid in pids() if os.fsencode(run_dir) in arguments(pid))}
    return sorted(pid for pid in roots.union(*map(descendants, roots)) if Process(pid).alive())


def arguments(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def end_agent(run_dir):
    """Asks an agent to stop, as a service manager does. Then kills what is left at one moment, so that none can start another, and takes
    away what it mounted."""
    signal_all((pid for pid in agent_pids(run_dir) if comm(pid) == "elbowroom-super"), signal.SIGTERM)

    def gone():
        alive = agent_pids(run_dir)
        if time.monotonic() > deadline:
            for number in (signal.SIGSTOP, signal.SIGKILL):
                signal_all(alive, number)
        return not alive

    deadline = time.monotonic() + 5
    eventually(gone)
    for name in ("private/views", "private/triggers", "pages"):
        remove_mount(f"{run_dir}/{name}")


def end_docker(home, namespace):
    """kit's Docker daemon, which ends its containers; one that was killed left them to shims of its containerd namespace."""
    daemons = [Process(pid) for pid in pids() if os.fsencode(f"{home}/pid") in arguments(pid)]
    signal_all((daemon.pid for daemon in daemons), signal.SIGTERM)
    with contextlib.suppress(AssertionError):
        eventually(lambda: not any(daemon.alive() for daemon in daemons), within=40)
    shims = [pid for pid in pids() if os.fsencode(namespace) in arguments(pid)]
    left = [Process(pid) for pid in {*shims, *(below for pid in shims for below in descendants(pid))}]
    signal_all((process.pid for process in left), signal.SIGKILL)
    eventually(lambda: not any(process.alive() for process in left))
    for process in (*daemons, *left):
        reap(process.pid)


def signal_all(numbers, signal_number):
    for pid in numbers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal_number)


def docker(*words):
    done = subprocess.run(["docker", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0 or "No such" in done.stderr, done.stderr.strip()


def run(*words):
    subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)


def reap(pid):
    """Collects a dead child; harmless for any other process."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(int(pid), os.WNOHANG)


KINDS = {
    "cgroup": remove_group,
    "delegation": remove_delegation,
    "mount": remove_mount,
    "loop": remove_loop,
    "swap": remove_swap,
    "process": end_process,
    "agent": end_agent,
    "docker": end_docker,
    "docker-container": lambda name: docker("rm", "--force", "--volumes", name),
    "docker-image": lambda name: docker("rmi", "--force", name),
}


def clean():
    """Takes down what runs that were killed left; how many such runs there were."""
    found = 0
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        ledger = directory / "made"
        things = list(map(json.loads, ledger.read_text().splitlines())) if ledger.exists() and directory.stat().st_uid == 0 else []
        if not things:
            continue
        process = Process(int(things[0][1]))
        if process.started == things[0][2] and process.alive():
            continue  # that run is alive
        found += 1
        for thing in reversed(things[1:]):
            undo(thing)
        remove_directory(directory)
    return found


def remove_directory(directory):
    """Takes away first what is mounted in it: to delete through a mount is worse than to hide one."""
    for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
        if line.split()[4].startswith(f"{directory}/"):
            subprocess.run(["umount", "--lazy", line.split()[4]])
    shutil.rmtree(directory, ignore_errors=True)
