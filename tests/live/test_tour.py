"""The tour (docs/guide/tour.md): its commands are taken from the page and typed as they stand there, beside the containers that it tells of.

A pattern for each task repeats the page's promise. It must match the output on the page, and the command's output now."""

import io
import os
import re
import shutil
import subprocess
import tarfile
import time
import urllib.request
from typing import NamedTuple

import pytest

from conftest import REPOSITORY
from kit import docker as docker_kit, need
from kit.terminal import Terminal, screen
from kit.wait import PATIENCE, eventually

PAGE = REPOSITORY / "docs/guide/tour.md"
# "each in at most two commands and one minute"
MOST_COMMANDS, MOST_SECONDS = 2, 60
# Patterns in a task's output, over all its commands; `.` is any character.
PROMISES = {
    "How is every container doing?": r"VERDICT.*\nweb +throttled.*\nbackup +ok",
    "What was OOM-killed last night?": r"nightly +killed.*OOM-killed once at its limit of 32MiB.*docker update --memory 64m nightly",
    "Why is `web` slow?": r"verdict +throttled: .*what helps +docker update --cpus 0\.3 web.*quota +0\.2",
    "Let the doctor fix it": r"cpu-throttled.*web",
    "Undo the last fix": r"1 .*cpu-throttled.*reverted",
    "What does this container see?": r"effective CPU .*effective memory .*\n0",
    "Which container may use more memory?": r"CONTAINER +MORE MEMORY.*\ndb ",
    "What limit does `db` need?": r"db .*128MiB",
    "Which container writes to the disk?": r"WRITE/s.*\nbackup .*\d[KM]",
    "Give a container priority on a disk": r"labels +.*priority.*300",
    "Watch a node live": r"CONTAINER.*VERDICT",
    "What was the state eight minutes ago?": r"CONTAINER.*web ",
    "Alerts, also for Prometheus": r"elbowroom_alerts\{kind=\"VERDICT\"\} [1-9].*critical VERDICT +killed nightly",
    "Run one command with a limit": r"at its memory limit of 40MiB",
    "Make a JVM follow its limit": r"Memory Limit: 512\.00M",
    "Is this host ready?": r"ok +kernel.*ok +agent",
    "Which containers are not covered, and why?": r"node-agent .*no.*attached +no: it is in the host's PID namespace",
    "Turn views off for one container": r"attached +no: detached by request.*attached +yes",
    "Open the dashboard": r"http://127\.0\.0\.1:\d+/#code=",
    "JSON for scripts": r"web throttled",
}
# Screens and servers that last until a key is pressed: what they show when they are there, and the key.
LASTING = {"elbowroom top": (b"web ", b"q"), "elbowroom dashboard": (b"#code=", b"\x03")}
# Columns and lines of the terminal.
SCREEN = 80, 16
CONFIG = '[disk]\ndevices = ["loop*"]\n'
CONTAINERS = 'labels = "all"\n'


class Task(NamedTuple):
    title: str
    commands: list
    status: int
    shown: str


def tasks():
    """The tasks of the page: a heading, a block that begins with `$`, and perhaps "Exit status N" below."""
    found = []
    for section in PAGE.read_text().split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        blocks = re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S)
        assert len(blocks) == 1, heading
        commands = re.findall(r"^\$ (.+)$", blocks[0], re.M)
        said = re.search(r"^Exit status (\d+)", text, re.M)
        found.append(Task(re.sub(r"^\d+\. ", "", heading), commands, int(said[1]) if said else 0, blocks[0]))
    return found


def busybox_image():
    """An image that is only busybox, as the one of that name."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("bin", "dev", "etc", "proc", "run", "sys", "tmp"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        tar.add(docker_kit.busybox(), "bin/busybox")
        for name in ("sh", "sleep", "dd", "cat", "grep", "head"):
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return packed.getvalue()


class Shell:
    """Types the commands. `elbowroom` and `docker` are those of this session; the page's state directory is the session's too."""

    def __init__(self, agent, docker, programs):
        programs.mkdir()
        (programs / "elbowroom").symlink_to(agent.binary)
        self.state = str(agent.log.with_suffix(".state"))
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "ELBOWROOM_RUN_DIR": str(agent.run_dir),
            "ELBOWROOM_STATE_DIR": self.state,
            "DOCKER_HOST": f"unix://{docker.socket}",
            "DOCKER_CONFIG": str(docker.home),
        }

    def type(self, command):
        """Types a command; its exit status, and what it said."""
        if command in LASTING:
            return self.press(command)
        # The session is younger than eight minutes, and its files are elsewhere.
        typed = command.replace("/var/lib/elbowroom", self.state).replace("--at -8m", "--at -1s")
        done = subprocess.run(
            ["sh", "-c", typed], env=self.environment, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=MOST_SECONDS * PATIENCE,
        )  # fmt: skip
        return done.returncode, done.stdout

    def press(self, command):
        shows, key = LASTING[command]
        terminal = Terminal(command.split(), *SCREEN, **self.environment)
        terminal.shows(shows, within=MOST_SECONDS)
        seen = terminal.seen
        for port in re.findall(rb"http://127\.0\.0\.1:(\d+)/", seen):
            # It serves what it prints, and from then on it ends as it should.
            page = lambda: urllib.request.urlopen(f"http://127.0.0.1:{int(port)}/", timeout=10).status
            assert eventually(page) == 200
        terminal.press(key)
        return terminal.end(), screen(seen, *SCREEN)


@pytest.fixture
def scene(new_agent, docker, loop_disk, tmp_path):
    """The containers that the page tells of, and an agent that has seen what it tells of them."""
    docker.call("import", "-", "busybox", input=busybox_image())
    agent = new_agent(CONFIG, CONTAINERS).start()
    run = lambda name, *words: docker.call("run", "--detach", "--name", name, "--network", "none", *words)
    run("nightly", "--memory", "32m", "busybox", "dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1")
    run("web", "--cpus", "0.2", "busybox", "sh", "-c", "while :; do :; done")
    run("db", "--memory", "128m", "busybox", "sleep", "3600")
    run("node-agent", "--pid", "host", "busybox", "sleep", "3600")
    write = f"while :; do dd if=/dev/zero of={loop_disk.path} bs=64k count=64 oflag=direct 2>/dev/null; sleep 0.05; done"
    run("backup", "--device", str(loop_disk.path), "busybox", "sh", "-c", write)

    def told():
        rows = {row["name"]: row for row in agent.json("list", "--all")}
        verdicts = {name: row["verdict"]["status"] for name, row in rows.items()}
        assert [verdicts.get(name) for name in ("nightly", "web", "backup")] == ["killed", "throttled", "ok"], verdicts
        assert all(rows[name]["attached"] for name in ("web", "db", "backup")), rows
        assert rows["backup"]["disk"] and rows["backup"]["disk"][0]["wbps"], rows["backup"]["disk"]
        return True

    eventually(told, within=30, every=0.2)
    yield Shell(agent, docker, tmp_path / "programs")
    # The disk is closed after this; what writes to it goes first.
    docker.call("rm", "--force", "backup")


def test_the_page_has_twenty_tasks_of_at_most_two_commands_and_shows_what_it_promises():
    listed = tasks()
    assert [task.title for task in listed] == list(PROMISES) and len(listed) == 20
    for task in listed:
        assert 1 <= len(task.commands) <= MOST_COMMANDS, task.title
        assert re.search(PROMISES[task.title], task.shown, re.S), f"{task.title}: the page does not show what it promises"


def faults(task, typed, took):
    """Differences from the page, of a task whose commands ended with these statuses and outputs."""
    statuses, said = [status for status, _ in typed], "".join(text for _, text in typed)
    # The first of two asks or prepares; the last one answers, and has the status that the page names.
    if statuses[-1] != task.status or any(status not in (0, task.status) for status in statuses):
        yield f"exit statuses {statuses}, the last is to be {task.status}"
    if not re.search(PROMISES[task.title], said, re.S):
        yield f"{PROMISES[task.title]!r} is not in the answer"
    if took > MOST_SECONDS * PATIENCE:
        yield f"it took {took:.0f} s"


def done(scene, task):
    """Types a task, and says what is wrong."""
    begin = time.monotonic()
    typed = [scene.type(command) for command in task.commands]
    took = time.monotonic() - begin
    print(f"## {task.title} ({took:.1f} s)")
    for command, (status, text) in zip(task.commands, typed):
        print(f"$ {command}\n{text}-> {status}")
    return list(faults(task, typed, took))


def test_every_task_of_the_tour_is_done_as_written(scene):
    found = []
    for task in tasks():
        missing = [word for word in ("java", "jq") if re.search(rf"\b{word} ", " ".join(task.commands)) and not shutil.which(word)]
        missing += ["a machine without swap"] * (task.status == 137 and need.has_swap())
        if missing:
            print(f"skipped: {task.title}: needs {missing[0]}")
            continue
        # Containers change from moment to moment, so only a fault in two tries counts.
        found += [f"{task.title}: {fault}" for fault in done(scene, task) and done(scene, task)]
    assert not found, "\n".join(found)
