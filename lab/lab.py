"""What an experiment works with: a claim on the machine, agents, containers, and a place for raw numbers."""

import json
import os
import random
import subprocess
import time
from pathlib import Path

from kit.agent import Agent
from kit.process import descendants, pids
from kit.wait import eventually
from lab import cgroups, sysinfo
from lab.backends import BACKENDS
from lab.container import Container
from lab.job import Refused
from lab.scope import PREFIX, Scope


class Lab:
    """For as long as a `with` lasts. `random` is seeded, `resumed` are the raw numbers of the run to go on with, or None."""

    def __init__(self, name, job, options):
        self.name, self.options = name, options
        self.random, self.resumed, self.directory = random.Random(options.seed), None, None
        self.words = [word for word in (getattr(job, "tag", lambda _: None)(options), options.tag) if word]
        self.info = sysinfo.take(name, options.elbowroom, options.seed)
        if (self.info["commit"] or "").endswith("+") and not options.dirty:
            raise Refused("files differ from the commit, so nobody could run this again: commit first, or say --dirty")
        if options.resume:
            self.directory = options.resume
            self.resumed = json.loads((options.resume / "raw.json").read_text())
        self.began = time.monotonic()
        self.scope = Scope()
        self.parent = f"{PREFIX}{os.getpid()}"  # of all cgroups of the run

    def __enter__(self):
        self.scope.__enter__()
        cgroups.make(self.scope, self.parent)
        return self

    def __exit__(self, *error):
        self.scope.__exit__(*error)

    def keep(self, raw):
        """Writes raw numbers, and the machine's description. A job that takes long does so after every run: `redraw` and `--resume` work
        on what it leaves if it does not come to its end."""
        self.info.update(load_after=sysinfo.load(), seconds=time.monotonic() - self.began)
        if self.directory is None:
            self.directory = new_directory(self.options.results, "-".join([self.info["date"], self.name, *self.words]))
        replace(self.directory / "raw.json", json.dumps(raw, separators=(",", ":")))
        replace(self.directory / "sysinfo.json", json.dumps(self.info, indent=2, ensure_ascii=False) + "\n")

    # ---- things that are taken down with the run ----

    def group(self, name, **limits):
        """A cgroup without processes, of `cgroups.Group`; containers whose names begin with its name and a slash are below it."""
        return cgroups.make(self.scope, f"{self.parent}/{name}", **limits)

    def container(self, name, mounts=(), agent=None, **limits):
        """A container of `lab/container.py`, with a view of `agent` where one is given. `limits`: cpus, memory_mib, soft_mib."""
        container = Container(name, self.group(name, **limits), mounts)
        if agent:
            agent.attach(container)
        return container

    def agent(self, name="run", *settings, prefix=""):
        """A running agent, with a run directory of its own, for the run's containers whose names begin with `prefix`. It attaches only
        what it is asked to; `settings` are lines of its configuration."""
        if not os.access(self.options.elbowroom, os.X_OK):
            raise Refused(f"{self.options.elbowroom} is not there: make build, or say --elbowroom FILE")
        run_dir, log = self.scope.directory / name, self.scope.directory / f"{name}.log"
        run_dir.mkdir()
        lines = ["containers.attach = false", f'containers.cgroups = ["/{self.parent}/{prefix}*"]', *settings, *self.options.settings]
        self.scope.add("agent", run_dir)
        agent = LabAgent(self.options.elbowroom, run_dir, log, "\n".join(lines) + "\n")
        return agent.start(within=20)

    def backend(self, variant):
        """What containers read, started: see lab/backends.py."""
        return BACKENDS[variant](self)

    def start(self, *words, **options):
        """A program on the host, as a Popen; it ends with the run at the latest."""
        child = subprocess.Popen(list(map(str, words)), **options)
        self.scope.process(child)
        return child


class LabAgent(Agent):
    """kit's agent, which is asked for what it costs."""

    def attach(self, container):
        """Mounts its view into a container, which it may not have noticed yet."""

        def attached():
            done = self.cli("attach", container.id)
            assert done.returncode == 0, f"while attaching {container.id}: {done.stderr.strip()}"
            return True

        eventually(attached)

    def pids(self):
        """Every process of it, as /proc says: unlike `status` it asks none that may just have been killed."""
        roots = [pid for pid in pids() if os.fsencode(self.run_dir) in arguments(pid)]
        return sorted({*roots, *(below for pid in roots for below in descendants(pid))})

    def role(self, name):
        """The process of a role: "supervisor", "policy", "view-server", or "api-server", which the agent does not tell; None where it is
        being started."""
        if name == "api-server":
            return next((pid for pid in self.pids() if name.encode() in arguments(pid)), None)
        return self.status()["pids"][name.replace("-", "_")]

    def close(self):
        """Stops it as a service manager does."""
        code = self.stop()
        assert code in (0, None), f"the agent stopped with {code}:\n{self.tail()}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def arguments(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def new_directory(results, base):
    """A directory that there was not, numbered from the second of a name on."""
    results.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        directory = results / (base if number == 1 else f"{base}-{number}")
        try:
            directory.mkdir()
            return directory
        except FileExistsError:
            number += 1


def replace(path, text):
    """In one step: a run that is ended meanwhile leaves what was there."""
    new = path.with_name(f".{path.name}")
    new.write_text(text)
    new.rename(path)
