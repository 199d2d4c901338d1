"""What the jobs about `elbowroom profile` share: its answers, its fault counter, and programs that are looked at."""

import contextlib
import json
import signal
import subprocess

from lab import programs


class Declined(Exception):
    """The product cannot do this here; the message is its own."""


def ask(lab, *words, codes=(0,)):
    """An answer of the product, as JSON."""
    words = [str(word) for word in (lab.options.elbowroom.resolve(), *words, "--format", "json")]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode not in codes:
        raise Declined(done.stderr.strip())
    return json.loads(done.stdout)


class Faults:
    """`elbowroom profile faults` while it counts, from the moment that this is made."""

    def __init__(self, lab, *words):
        words = [lab.options.elbowroom.resolve(), "profile", "faults", "--format", "json", "--for", "1h", *words]
        self.child = lab.start(*words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.child.stderr.readline()
        if "counting" not in line:
            self.child.communicate()
            raise Declined(line.strip())

    def stop(self):
        """Ends it; its counts."""
        self.child.send_signal(signal.SIGINT)
        out, complaint = self.child.communicate()
        if self.child.returncode != 0:
            raise Declined(complaint.strip())
        return json.loads(out)["answer"]


class Program:
    """A program in a cgroup of its own, counted from its first instruction on; `ready` when there is a line of it to wait for."""

    def __init__(self, lab, group, words, ready=True):
        self.lab, self.group = lab, lab.group(group)
        self.cgroup = f"/{self.group.path}"
        script = 'read go; exec "$@"' if ready else 'read go; echo ready; exec "$@" >/dev/null 2>&1'
        self.child = lab.start("sh", "-c", script, "sh", *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.child.pid
        self.group.enter(self.pid)
        answer = self.ask("go")
        if answer != "ready":
            raise RuntimeError(f"{words[0]} said {answer!r} and was not ready")

    def ask(self, line):
        """Writes a line, and reads one."""
        self.child.stdin.write(f"{line}\n")
        self.child.stdin.flush()
        return self.child.stdout.readline().rstrip("\n")

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.close()
        self.child.stdout.close()
        self.lab.scope.take_down(("cgroup", self.group.path))
        self.child.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def own(lab, name, group, words):
    """A program of `lab/programs`, which needs no libraries where it runs."""
    return Program(lab, group, [programs.c(name), *words])


def file(lab, pages):
    """A file of pages of 4 KiB, all in memory, written page by page: what is written at once may lie in one large folio, which one fault
    maps whole."""
    path = lab.scope.directory / "file"
    with open(path, "wb", buffering=0) as out:
        for _ in range(pages):
            out.write(bytes([1]) * 4096)
    return path


def rotated(things, by):
    """The same in turn."""
    things = list(things)
    by = by % len(things) if things else 0
    return things[by:] + things[:by]


def bars(out, name, caption, label, parts, values):
    """A figure of bars made of parts that add up: {name: values}."""
    from lab import plot

    rows = list(values.items())
    with out.figure(name, caption, **plot.bars_height(rows, parts)) as axes:
        plot.bars(axes, rows, parts, label)
