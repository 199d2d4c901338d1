"""Containers to measure in. Every variant of an experiment gets containers made by the same code with the same limits; only the files
mounted over /proc and /sys differ. They are of the lab's own making (`lab/reader contain`: cgroups and namespaces and nothing else), so
they work on a bare kernel, and hundreds are made in a second. Their root file system is the host's."""

import subprocess

from kit.container import Container as Inside, main_process
from kit.process import Process
from kit.wait import eventually
from lab import cgroups, programs
from lab.scope import reap


class Entered:
    """A container that there is: `pid` is its first process as the host numbers it, `group` its cgroup."""

    def __init__(self, name, id, pid, group):
        self.name, self.id, self.pid, self.group = name, id, pid, group

    def words(self, *words):
        """The command line that runs a program in this container: in its cgroups and its namespaces."""
        groups = [word for directory in self.group.directories for word in ("cgroup", str(directory))]
        return [str(programs.reader()), "enter", str(self.pid), *groups, "--", *map(str, words)]

    def start(self, *words, **options):
        """A program, by its whole path, as a Popen whose streams are pipes where `options` do not say otherwise."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(self.words(*words), text=True, **{**streams, **options})

    def reader(self, verb, *words, **options):
        """The same for a verb of `lab/reader`."""
        return self.start(programs.reader(), verb, *words, **options)

    def output(self, *words):
        """The output of a program, which must succeed."""
        return finish(self.start(*words), f"{words[0]} in {self.name}")

    def read(self, verb, *words):
        """The output of a verb of `lab/reader`."""
        return self.output(programs.reader(), verb, *words)


class Container(Entered):
    """A container of the lab's own. It lives until `close`, or until the lab ends in any way: its first process reads the lab's pipe."""

    def __init__(self, name, group, mounts=()):
        """`mounts` are (file on the host, path in the container)."""
        words = [str(programs.reader()), "contain"]
        for controller in cgroups.CONTROLLERS:
            directory = str(group.directory(controller).resolve())
            words += ["cgroup", directory, *([] if controller else ["cgroupns"]), "cgroupfs", controller or ".", directory]
        for source, target in mounts:
            words += ["bind", str(source), str(target)]
        streams = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
        maker = subprocess.Popen(words, text=True, **streams)
        self.life = maker.stdin
        said, complaint = maker.stdout.read(), maker.stderr.read()
        assert maker.wait() == 0, f"while making the container {name}: {complaint.strip()}"
        for stream in (maker.stdout, maker.stderr):
            stream.close()
        super().__init__(name, f"/{group.path}", int(said), group)

    def inside(self):
        """kit's container in it: commands, reads and loads by tests/live/kit/inside.py. Close it before this one."""
        name = self.id.strip("/").replace("/", "-")
        return Inside(self.words(*main_process(name)), name)

    def close(self):
        if self.life.closed:
            return
        self.life.close()
        process = Process(self.pid)
        eventually(lambda: not process.alive(), every=0.001)
        reap(self.pid)
        self.group.remove()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def finish(child, what):
    """The output of a program that ends by itself and must succeed."""
    out, complaint = child.communicate()
    assert child.returncode == 0, f"{what} failed with {child.returncode}: {(complaint or '').strip()}"
    return out
