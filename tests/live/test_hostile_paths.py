"""Hostile walks. An ordinary user of the host (`nobody`, 65534) can open nothing private below the run directory. A hostile container costs
its neighbours nothing. Programs that read whole trees come to an end."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kit.container import PYTHON, USERS
from kit.memory import file
from kit.process import Process
from kit.wait import eventually

KIT = Path(__file__).with_name("kit")
FIFO = "pressure/elbowroom-pressure"
# The files for others that docs/guide/install.md lists.
FOR_OTHERS = {"probe.sock", "feed.sock"}

# Prints what uid 65534 can list, read, write or execute below a directory, one path a line; also as root of its own user namespace.
WALK = """
import ctypes, os, stat, sys
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
users, top = sys.argv[1:3]
if users == "own":
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(4, 1)  # PR_SET_DUMPABLE: its own files in /proc are its own again
    if libc.unshare(0x10000000 | 0x20000): raise OSError(ctypes.get_errno(), "unshare")  # CLONE_NEWUSER, CLONE_NEWNS
    for name, text in (("setgroups", "deny"), ("uid_map", "0 65534 1"), ("gid_map", "0 65534 1")):
        with open(f"/proc/self/{name}", "w") as file: file.write(text)
    assert os.getuid() == 0
def visit(path):
    try: mode = os.lstat(path).st_mode
    except OSError: return
    if stat.S_ISDIR(mode):
        try: names = os.listdir(path)
        except OSError: names = None
        if names is not None and path != top: print(os.path.relpath(path, top) + "/")
        for name in names or (): visit(os.path.join(path, name))
    elif os.access(path, os.R_OK) or os.access(path, os.W_OK):
        print(os.path.relpath(path, top))
visit(top)
for path in sys.argv[3:]: visit(os.path.join(top, path))
"""


@pytest.fixture
def open_run_dir(run_dir):
    """The run directory as it is on a host: below directories that every user may walk through."""
    closed = []
    Path(run_dir).mkdir(exist_ok=True)
    for directory in [run_dir, *Path(run_dir).parents]:
        mode = stat.S_IMODE(os.stat(directory).st_mode)
        if not mode & 0o001:
            closed.append((directory, mode))
            os.chmod(directory, mode | 0o711)
    yield Path(run_dir)
    for directory, mode in closed:
        os.chmod(directory, mode)


def nobody_reaches(run_dir, *known, users="host"):
    """What the user `nobody` can open below the run directory, by walking it and by names that are known."""
    done = subprocess.run([sys.executable, "-c", WALK, users, str(run_dir), *known], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def known_paths(run_dir):
    """Names that a user could know without listing them, each by where it is and where an older agent had it."""
    names = os.listdir(run_dir / "private/views")
    files = [f"{name}/{file}" for name in names for file in ("proc/meminfo", "sys/devices/system/cpu/online")]
    views = [f"{top}/{file}" for top in ("views", "private/views") for file in files]
    triggers = [f"private/triggers/{name}/proc/pressure/cpu" for name in names]
    pages = [f"pages/{name}" for name in names]
    return [*views, *triggers, *pages, "private", "private/views", "private/triggers", "pages", "pressure", FIFO]


@pytest.mark.parametrize("users", USERS)
def test_an_ordinary_user_can_open_nothing_below_the_run_directory_but_what_is_for_others(agent, start, open_run_dir, users):
    start("--memory", "64MiB", "--priority", "100")
    known = known_paths(open_run_dir)
    assert any("meminfo" in path and (open_run_dir / path).exists() for path in known)
    found = nobody_reaches(open_run_dir, *known, users=users)
    assert found <= FOR_OTHERS, agent.tail()
    for directory in filter(Path.is_dir, open_run_dir.iterdir()):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700, directory


def test_what_an_older_agent_left_open_is_closed_at_start(new_agent, open_run_dir):
    for name in ("pages", "labels"):
        (open_run_dir / name).mkdir(exist_ok=True)
        os.chmod(open_run_dir / name, 0o755)
    agent = new_agent().start()
    assert not {path for path in nobody_reaches(open_run_dir) if path.endswith("/")}
    assert agent.stop() == 0
    (open_run_dir / "labels").rmdir()


def pressure_file(container):
    """Where the container's programs find the file that they watch."""
    return dict(line.split("=", 1) for line in container.run("env").splitlines() if "=" in line)["MEMORY_PRESSURE_WATCH"]


def test_no_user_on_the_host_can_ask_a_containers_programs_for_memory(agent, start, open_run_dir):
    container = start("--memory", "64MiB")
    path = pressure_file(container)
    assert stat.S_ISFIFO(os.stat(f"/proc/{container.pid}/root{path}").st_mode)
    assert not os.path.exists(path), "on the host there is nothing"
    forge = "import os, sys; os.setgroups([]); os.setresuid(65534, 65534, 65534); os.open(sys.argv[1], os.O_RDWR | os.O_NONBLOCK)"
    for path in (path, f"/proc/{container.pid}/root{path}"):
        done = subprocess.run([sys.executable, "-c", forge, path], capture_output=True, text=True)
        assert done.returncode and ("PermissionError" in done.stderr or "FileNotFoundError" in done.stderr), done


@pytest.fixture
def fast_disk(tmp_path):
    """A directory whose files have a page cache, on a disk that is as fast as memory. Containers that read it are under pressure by their
    limit alone, however busy the machine's own disk is."""
    subprocess.run(["modprobe", "-a", "ext4", "loop"], capture_output=True)  # where they are modules
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="elbowroom-test-disk-") as memory:
        image, directory = Path(memory) / "image", tmp_path / "disk"
        directory.mkdir()
        with open(image, "wb") as out:
            out.truncate(400 << 20)
        for words in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, directory]):
            done = subprocess.run(words, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"needs a loop device: {words[0]}: {done.stderr.strip()}")
        yield directory
        # Programs that read a file there are still exiting.
        eventually(lambda: subprocess.run(["umount", directory], capture_output=True).returncode == 0)


def test_a_reader_that_holds_its_file_up_costs_its_neighbours_nothing(agent, fast_disk, start, background, tmp_path):
    reads = {name: file(fast_disk, name, 128) for name in ("bad", "good")}
    bad, good = (start("--memory", "48MiB") for _ in range(2))
    logs = {"bad": tmp_path / "bad", "good": tmp_path / "good"}
    background(bad, f"{PYTHON} {KIT / 'hanging.py'}", logs["bad"])
    background(good, f"{PYTHON} {KIT / 'watching.py'}", logs["good"])
    eventually(lambda: "hanging" in logs["bad"].read_text(), within=20)
    eventually(lambda: "watching" in logs["good"].read_text(), within=20)
    words = "(echo 20000; cat) | {} {} {}"
    stops = [
        container.background("sh", "-c", words.format(PYTHON, KIT / "paging.py", reads[name]))
        for name, container in (("bad", bad), ("good", good))
    ]
    eventually(lambda: "holds up its writer" in agent.log.read_text(), within=60, every=0.2)
    asked = lambda: logs["good"].read_text().count("asked")
    before = asked()
    eventually(lambda: asked() >= before + 3, within=60, every=0.2)
    # Its thread sleeps where no signal ends it; the process it is of is replaced all the same.
    policy = agent.status()["pids"]["policy"]
    Process(policy).kill()
    eventually(lambda: agent.has_another("policy", than=policy), within=20)
    before = asked()
    eventually(lambda: asked() > before, within=60, every=0.2)
    for stop in stops:
        stop()


def test_readers_of_whole_trees_end(agent, start):
    container = start("--memory", "64MiB")
    readers = ["cat /sys/devices/system/cpu/*", "tar cf /dev/null -C /sys/devices/system cpu node"]
    if shutil.which("busybox"):
        readers.append("busybox grep -rs x /sys/devices/system/cpu")
    for reader in readers:
        container.run("sh", "-c", f"{reader} >/dev/null 2>&1 || :")
    others = "find /sys/devices/system/cpu /sys/devices/system/node ! -type f ! -type d ! -type l"
    assert container.run("sh", "-c", others) == ""
