"""Servers in containers that are hostile to their clients. They get no password, no file, no privilege of root and no time. The host's own
servers are never asked in their place."""

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest

from kit.wait import PATIENCE, eventually

REPOSITORY = Path(__file__).resolve().parents[2]
NOBODY = 65534
MIB = 1 << 20
SOCKET = "/run/mysqld/mysqld.sock"
PASSWORD = "roots-own-word"
# A client that answers any question with what it finds around it.
LOOK = """
import json, os, socket, sys
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
names = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs")
found = {name: status[name].split() for name in names}
found.update(env=sorted(os.environ), home=os.environ["HOME"], run=os.listdir("/run"), tmp=sorted(os.listdir("/tmp")))
found["net"] = [line.split(":")[0].strip() for line in open("/proc/self/net/dev") if ":" in line]
found["files"] = sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}"))
if len(sys.argv) > 1:
    server = socket.socket(socket.AF_UNIX)
    server.connect(sys.argv[1])
    found["said"] = server.recv(100).decode()
print(json.dumps(found))
"""


def packet(number, body):
    return struct.pack("<I", len(body))[:3] + bytes([number]) + body


GREETING = packet(
    0, b"\x0a5.5.5-10.11.0-MariaDB\0" + struct.pack("<I", 7) + b"12345678\0" + b"\xff\xf7" + b"\x21\x02\0" + b"\xff\x81\x15" + bytes(10) + b"123456789012\0"
    b"mysql_native_password\0",
)  # fmt: skip
OK = b"\0\0\0\2\0\0\0"


def word(connection):
    """One packet of the client; what is in it."""
    head = connection.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        raise ConnectionError("the client went")
    return connection.recv(int.from_bytes(head[:3], "little"), socket.MSG_WAITALL)


def clear(connection, say):
    connection.sendall(GREETING)
    word(connection)
    connection.sendall(packet(2, b"\xfemysql_clear_password\0\0"))
    say(f"clear {word(connection)!r}")
    connection.sendall(packet(4, OK))


def infile(connection, say):
    connection.sendall(GREETING)
    word(connection)
    connection.sendall(packet(2, OK))
    word(connection)
    connection.sendall(packet(1, b"\xfb/etc/passwd"))
    say(f"file {word(connection)!r}")


def giant(connection, say):
    connection.sendall(GREETING)
    word(connection)
    connection.sendall(packet(2, OK))
    word(connection)
    column = b"\x03def\0\0\0\x01a\0\x0c\x21\0\xff\0\0\0\xfd\0\0\0\0\0"
    connection.sendall(packet(1, b"\1") + packet(2, column) + packet(3, b"\xfe\0\0\2\0"))
    row, number = b"\xfd" + struct.pack("<I", MIB)[:3] + b"1" * MIB, 4
    for _ in range(4096):
        connection.sendall(packet(number % 256, row))
        number += 1
    say("all of it")


def silent(connection, say):
    with contextlib.suppress(OSError):
        while connection.recv(4096):
            pass


def short(connection, say):
    connection.sendall(b"me")


@pytest.fixture
def rogue(tmp_path):
    """Servers, each in a root directory of its own: `rogue(behaviour)` gives its process' number and what it has heard so far."""
    pids = []

    def start(behaviour, path=SOCKET):
        root = tmp_path / f"root{len(pids)}"
        (root / path[1:]).parent.mkdir(parents=True)
        heard = tmp_path / f"heard{len(pids)}"
        heard.touch()
        listener = socket.socket(socket.AF_UNIX)
        pid = os.fork()
        if pid == 0:
            with open(heard, "a", buffering=1) as log, contextlib.suppress(KeyboardInterrupt):
                os.chroot(root)
                os.chdir("/")
                listener.bind(path)
                os.chmod(path, 0o777)
                listener.listen()
                log.write("listens\n")
                while True:
                    connection, _ = listener.accept()
                    peer = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                    log.write(f"uid {peer[1]}\n")
                    with contextlib.suppress(OSError):
                        behaviour(connection, lambda said: log.write(said + "\n"))
                    connection.close()
            os._exit(0)
        listener.close()
        pids.append(pid)
        eventually(lambda: heard.read_text())
        return pid, root, lambda: heard.read_text().splitlines()[1:]

    yield start
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def asks(binary, tmp_path, program, pid, *words, **environment):
    """Runs a ready-made probe as the agent does: as root, with a password in the usual file. What it did, and in how many seconds."""
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    (home / ".my.cnf").write_text(f"[client]\nuser=root\npassword={PASSWORD}\n")
    variables = {**os.environ, "HOME": str(home), "MYSQL_PWD": PASSWORD, "ELBOWROOM": str(binary), "ELBOWROOM_PROBE_PID": str(pid)}
    begin = time.monotonic()
    done = subprocess.run([program, *words], env={**variables, **environment}, capture_output=True, text=True, timeout=60 * PATIENCE)
    return done, time.monotonic() - begin


def need_mariadb():
    if not shutil.which("mariadb"):
        pytest.skip("needs a MariaDB client: tools/setup runtimes")


PROGRAMS = [(REPOSITORY / "probes/mariadb",), (REPOSITORY / "actuators/mariadb", "get"), (REPOSITORY / "actuators/mariadb", "set", "1048576")]


@pytest.mark.parametrize("program", PROGRAMS, ids=["probe", "get", "set"])
@pytest.mark.parametrize("behaviour", [clear, infile])
def test_a_server_that_asks_for_what_is_roots_gets_nothing(binary, rogue, tmp_path, program, behaviour):
    need_mariadb()
    pid, _, heard = rogue(behaviour)
    done, _ = asks(binary, tmp_path, program[0], pid, *program[1:])
    assert done.returncode != 0 and not done.stdout, done
    assert heard()[0] == f"uid {NOBODY}", heard()
    assert PASSWORD not in str(heard()) and "root:" not in str(heard()), heard()


def test_what_is_configured_for_a_server_is_sent_to_it_and_never_in_clear(binary, rogue, tmp_path):
    need_mariadb()
    options = tmp_path / "options"
    options.write_text("[client]\nuser=watch\npassword=for-this-one\n")
    options.chmod(0o600)

    def login(connection, say):
        connection.sendall(GREETING)
        say(f"login {word(connection)!r}")
        connection.sendall(packet(2, b"\xfemysql_clear_password\0\0"))
        say(f"clear {word(connection)!r}")

    pid, _, heard = rogue(login)
    done, _ = asks(binary, tmp_path, PROGRAMS[0][0], pid, f"--defaults-file={options}")
    assert done.returncode != 0
    assert "watch" in heard()[1], heard()
    assert "for-this-one" not in str(heard()), heard()


@pytest.mark.parametrize("behaviour", [giant, silent])
def test_a_server_that_says_too_much_or_nothing_costs_seconds(binary, rogue, tmp_path, behaviour):
    need_mariadb()
    pid, _, heard = rogue(behaviour)
    done, took = asks(binary, tmp_path, PROGRAMS[0][0], pid)
    assert done.returncode != 0 and not done.stdout, done
    assert took < 15 * PATIENCE, took
    assert "all of it" not in heard()
    # Nothing of it is left.
    eventually(lambda: not clients("mysqld.sock"))


def clients(mark):
    """Processes of the user `nobody` with this text in their command line."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if directory.stat().st_uid == NOBODY and mark.encode() in (directory / "cmdline").read_bytes():
                found.append(int(directory.name))
    return found


def test_an_answer_is_a_number_or_none(binary, rogue, tmp_path):
    """What a server says becomes words of a record: it is to say nothing but its number."""
    client = tmp_path / "bin/mariadb"
    client.parent.mkdir()
    for answer in ("1 objective=9", "", "$(touch /x)", "1; reboot", "a[0]", "1\x1b[2J"):
        client.write_text(f"#!/bin/sh\nprintf '%s\\n' 'Questions\t{answer}'\n")
        client.chmod(0o755)
        program = tmp_path / "probe"
        program.write_text(PROGRAMS[0][0].read_text().replace("PATH=/usr/bin:", f"PATH={client.parent}:"))
        program.chmod(0o755)
        variables = {**os.environ, "ELBOWROOM_PROBE_PID": ""}
        done = subprocess.run([program], env=variables, capture_output=True, text=True)
        assert done.returncode != 0 and not done.stdout, (answer, done)


def ask(binary, pid, *words, **more):
    return subprocess.run([binary, "ask", "--pid", str(pid), *words], capture_output=True, text=True, **more)


def test_a_client_is_nobody_and_has_nothing(binary, rogue, tmp_path):
    pid, _, heard = rogue(short)
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    inherited = os.open("/etc/shadow", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    words = ["--socket", "/nowhere", "--socket", SOCKET, "--secret", str(secret), "--env", "A=b", "--", "/usr/bin/python3", "-Ic", LOOK, "{}"]
    done = ask(binary, pid, *words, pass_fds=[inherited], env={**os.environ, "PASSWORD": PASSWORD})
    os.close(inherited)
    assert done.returncode == 0, done
    found = json.loads(done.stdout)
    nobody = [str(NOBODY)] * 4
    assert (found["Uid"], found["Gid"], found["Groups"]) == (nobody, nobody, []), found
    assert all(int(found[name][0], 16) == 0 for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")) and found["NoNewPrivs"] == ["1"], found
    assert found["env"] == ["A", "HOME", "LC_ALL", "PATH"] and found["home"] == "/nonexistent", found
    assert (found["run"], found["tmp"], found["net"]) == ([], ["mysqld.sock", "secret"], ["lo"]), found
    assert len(found["files"]) == 4, found  # the standard ones, and the socket
    assert found["said"] == "me" and heard() == [f"uid {NOBODY}"]


def test_a_link_that_comes_and_goes_never_leads_to_the_hosts_server(binary, rogue, tmp_path):
    pid, root, heard = rogue(short)
    host, asked = tmp_path / "host", []
    host.mkdir()
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(host / "mysqld.sock"))
    (host / "mysqld.sock").chmod(0o777)
    server.listen()
    server.settimeout(0.1)
    ended = threading.Event()

    def serve():
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                asked.append(server.accept())

    def swap():
        """Of the directory, and of the socket, as fast as it goes."""
        real, link, there = (root / "run" / name for name in ("real", "link", "mysqld"))
        link.symlink_to(host)
        (there / "link").symlink_to(host / "mysqld.sock")
        while not ended.is_set():
            os.rename(there, real)
            os.rename(link, there)
            os.rename(there, link)
            os.rename(real, there)
            for one, other in (("mysqld.sock", "real"), ("link", "mysqld.sock"), ("mysqld.sock", "link"), ("real", "mysqld.sock")):
                os.rename(there / one, there / other)

    threads = [threading.Thread(target=work) for work in (serve, swap)]
    for thread in threads:
        thread.start()
    connect = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(10).decode())"
    try:
        answers = [ask(binary, pid, "--socket", SOCKET, "--", "/usr/bin/python3", "-Ic", connect, "{}") for _ in range(60)]
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        server.close()
    assert not asked, f"{len(asked)} questions were the host's"
    good = [done for done in answers if done.returncode == 0]
    assert good and all(done.stdout == "me\n" for done in good), answers
    assert all("without links" in done.stderr for done in answers if done.returncode != 0), answers


def test_a_client_ends_with_who_started_it(binary, rogue):
    pid, _, heard = rogue(silent)
    wait = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(10)"
    words = [binary, "ask", "--pid", str(pid), "--socket", SOCKET, "--", "/usr/bin/python3", "-Ic", wait, "{}"]
    asking = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually(heard)
    assert clients(wait)
    asking.kill()
    asking.wait()
    eventually(lambda: not clients(wait))


def test_the_agent_asks_a_hostile_server_and_goes_on(new_agent, start, rogue):
    need_mariadb()
    _, root, heard = rogue(clear)
    config = f'[[probes]]\ncontainer = "elbowroom-test-live-*"\nexec = ["{PROGRAMS[0][0]}", "--socket={root}{SOCKET}"]\ntimeout = "5s"\nttl = "5s"\n'
    agent = new_agent(config).start()
    container = start("--memory", "256MiB")
    problem = lambda: (agent.row(container)["probe"] or {}).get("problem")
    said = eventually(problem, within=30)
    assert set(heard()) <= {f"uid {NOBODY}", "clear b''"}, heard()
    assert "\n" not in said


@pytest.mark.parametrize("page", ["moved", "endless", "slow"])
def test_a_hostile_page_of_metrics_costs_its_own_probe(new_agent, start, tmp_path, page):
    """A page that leads to the host, one without end, and one that comes a byte at a time."""
    server = socket.create_server(("127.0.0.1", 0))
    elsewhere = socket.create_server(("127.0.0.1", 0))
    elsewhere.settimeout(0.1)
    ended, sent = threading.Event(), [0]
    head = b"HTTP/1.1 200 OK\r\n\r\n"

    def serve():
        server.settimeout(0.1)
        while not ended.is_set():
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                if page == "moved":
                    connection.sendall(f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{elsewhere.getsockname()[1]}/\r\n\r\n".encode())
                connection.sendall(head)
                while page != "moved" and not ended.is_set():
                    sent[0] += connection.send(b"x 1\n" * (1 if page == "slow" else 16_384))
                    ended.wait(0.05 if page == "slow" else 0)
                connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    port = server.getsockname()[1]
    config = f'[[probes]]\ncontainer = "elbowroom-test-live-*"\nscrape = "http://localhost:{port}/"\nmetrics.served_total = "x"\n'
    try:
        agent = new_agent(config + 'every = "5s"\nttl = "5s"\n').start()
        before = resident(agent)
        container = start("--memory", "256MiB")
        eventually(lambda: (agent.row(container)["probe"] or {}).get("problem"), within=30)
        assert sent[0] < 64 * MIB and resident(agent) < before + 32 * MIB, (sent, before, resident(agent))
        with pytest.raises(TimeoutError):
            elsewhere.accept()
    finally:
        ended.set()
        thread.join()
        server.close()
        elsewhere.close()


def resident(agent):
    """Bytes of memory of the policy process."""
    pid = agent.pid("policy")
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_label_takes_nothing_from_others(agent, docker):
    """By default no label of a container claims anything; see test_labels.py for what counts where the operator heeds them."""
    wanted = {"memory-reservation": "1TiB", "priority": "10000", "governors": "off", "disk-reservation": "rbps=10GiB/s"}
    labels = [word for key, value in wanted.items() for word in ("--label", f"elbowroom.dev/{key}={value}")]
    container = docker.run(*labels, name="elbowroom-test-greedy")
    row = agent.attached(container)
    assert set(row["labels"]) == {"ignored"} and len(row["labels"]["ignored"]) == 4, row["labels"]
    eventually(lambda: agent.row(container)["memory"], within=20)
    assert agent.row(container)["memory"]["reservation"] == 0
