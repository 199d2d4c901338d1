"""The means of an experiment: a claim on the machine, agents, containers, and a place for raw numbers."""

import json
import os
import random
import subprocess
import time

from kit.agent import Agent
from kit.wait import eventually
from lab import cgroups, sysinfo
from lab.backends import BACKENDS
from lab.container import Container
from lab.job import Refused
from lab.scope import PREFIX, Scope, agent_pids, arguments


class Lab:
    """For as long as a `with` lasts. `random` is seeded."""

    def __init__(self, name, job, options):
        self.name, self.options = name, options
        self.random, self.directory = random.Random(options.seed), None  # where it is recorded, once there is something
        self.words = [word for word in (getattr(job, "tag", lambda _: None)(options), options.tag) if word]
        self.info = sysinfo.take(name, options.elbowroom, options.seed)
        if (self.info["commit"] or "").endswith("+") and not options.dirty:
            raise Refused("files differ from the commit, which could not be run again: commit first, or say --dirty")
        self.earlier, self.earlier_s, self.goes_on, self.began = None, 0, not options.resume, time.monotonic()
        if options.resume:
            self.go_on(options.resume)
        self.scope = Scope()
        self.parent = f"{PREFIX}{os.getpid()}"  # of all cgroups of the run
        self.containers = []

    def __enter__(self):
        self.scope.__enter__()
        try:
            cgroups.make(self.scope, self.parent)
        except BaseException:
            self.scope.__exit__()
            raise
        return self

    def __exit__(self, *error):
        self.scope.__exit__(*error)

    def go_on(self, directory):
        """With the run that a directory has, whose time and commit count too."""
        self.directory = directory
        self.earlier, info = (json.loads((directory / name).read_text()) for name in ("raw.json", "sysinfo.json"))
        if info["job"] != self.name:
            raise Refused(f"{directory} holds a run of {info['job']}, not of {self.name}")
        self.earlier_s = info["seconds"]
        if info["commit"] != self.info["commit"]:
            self.info["commit"] = f"{info['commit']}, {self.info['commit']}"

    @property
    def resumed(self):
        """The raw numbers of the run to go on with, or None."""
        self.goes_on = True
        return self.earlier

    def keep(self, raw):
        """Writes raw numbers, and the machine's description. A job that takes long does so after every run: `redraw` and `--resume` work
        on what it leaves if it does not come to its end."""
        if not self.goes_on:
            raise Refused(f"{self.name} cannot go on with a run that was cut: leave out --resume")
        self.info.update(load_after=sysinfo.load(), seconds=self.earlier_s + time.monotonic() - self.began)
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
        self.containers.append(container)  # it ends with the last reference to it
        if agent:
            agent.attach(container)
        return container

    def agent(self, name="run", *settings, prefix=""):
        """A running agent, with a run directory of its own, for the run's containers whose names begin with `prefix`. It attaches only
        what it is asked to; `settings` are lines of its configuration."""
        if not os.access(self.options.elbowroom, os.X_OK):
            raise Refused(f"{self.options.elbowroom} is not there: make build, or say --elbowroom FILE")
        run_dir = self.scope.path(name)
        run_dir.mkdir()
        lines = ["containers.attach = false", f'containers.cgroups = ["/{self.parent}/{prefix}*"]', *settings, *self.options.settings]
        self.scope.add("agent", run_dir)
        agent = LabAgent(self.options.elbowroom, run_dir, run_dir.with_suffix(".log"), "\n".join(lines) + "\n")
        return agent.start(within=20)

    def backend(self, variant):
        """The source of the files that containers read, started: see lab/backends.py."""
        return BACKENDS[variant](self)

    def start(self, *words, **options):
        """A program on the host, as a Popen; it ends with the run at the latest. A Ctrl-C is the run's, which may still need it to end well."""
        child = subprocess.Popen(list(map(str, words)), **{"start_new_session": True, **options})
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
        """Every process of it."""
        return agent_pids(self.run_dir)

    def role(self, name):
        """The process of a role: "supervisor", "policy", "view-server", or "api-server", which the agent does not tell; None where it is
        being started."""
        if name == "api-server":
            return next((pid for pid in self.pids() if name.encode() in arguments(pid)), None)
        pids = (self.status() or {}).get("pids", {})
        return pids.get(name.replace("-", "_")) or None

    def close(self):
        """Stops it as a service manager does."""
        code = self.stop()
        assert code in (0, None), f"the agent stopped with {code}:\n{self.tail()}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


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
