"""`elbowroom fleet` over real agents and over servers that mean no good."""

import contextlib
import json
import os
import socket
import subprocess
import threading
import time

import pytest

from kit import api
from kit.agent import Agent
from kit.wait import PATIENCE, eventually

TOKEN = "0123456789abcdef0123456789abcdef"
MIB = 1 << 20


def fleet(binary, *words, code=None, timeout=60):
    done = subprocess.run([binary, "fleet", *map(str, words)], capture_output=True, text=True, timeout=timeout * PATIENCE)
    assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def asked(binary, *words, code=None):
    return json.loads(fleet(binary, *words, "--format", "json", code=code).stdout)


def by_name(report):
    return {node["name"]: node for node in report["nodes"]}


@pytest.fixture
def agents(binary, scratch, strangers, tmp_path):
    """More agents, each with a run directory of its own; they mount nothing, so that they can be there together."""
    made = []

    def new(config=""):
        text = f"{config}\n[containers]\n{strangers}attach = false\n[recorder]\nenabled = false\n[doctor]\nenabled = false\n"
        agent = Agent(binary, scratch / f"fleet{len(made)}", tmp_path / f"fleet{len(made)}.log", text)
        made.append(agent)
        agent.start()
        where = agent.run_dir / "api.sock"

        def ready():
            with contextlib.suppress(OSError):
                return api.ask(where, "/readyz")[0] == 200

        eventually(ready, within=20)
        return agent, where

    yield new
    for agent in made:
        assert agent.stop() in (0, None)
        eventually(lambda: not agent.leftovers())


@pytest.fixture
def secured(agents, tmp_path):
    """An agent on TCP with a token and TLS: its port, its certificate and a file with the token."""
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    words += " -addext basicConstraints=critical,CA:FALSE -keyout key.pem -out cert.pem"
    subprocess.run(["openssl", *words.split()], cwd=tmp_path, check=True, capture_output=True)
    (token := tmp_path / "token").write_text(TOKEN + "\n")
    token.chmod(0o600)
    port = api.free_port()
    agents(
        f'[api]\nlisten = "127.0.0.1:{port}"\ntoken_file = "{token}"\n'
        f'tls_certificate = "{tmp_path}/cert.pem"\ntls_key = "{tmp_path}/key.pem"'
    )
    return port, tmp_path / "cert.pem", token


def test_many_agents_are_read_and_a_container_is_placed(binary, agents, secured, tmp_path):
    port, certificate, token = secured
    _, here = agents()
    nodes = tmp_path / "nodes"
    nodes.write_text(f"# two of them\nsocket={here}\nsecured=https://localhost:{port}  # TLS\n")
    words = ["--nodes", nodes, "--token-file", token, "--ca", certificate]

    def measured():
        rows = by_name(asked(binary, *words, code=0))
        # An agent measures memory once a second.
        assert all(row["room"]["memory_free"] is not None for row in rows.values())
        return rows

    rows = eventually(measured)
    total = {line.split()[0]: int(line.split()[1]) for line in open("/proc/meminfo")}["MemTotal:"] * 1024
    for name in ("socket", "secured"):
        room = rows[name]["room"]
        assert room["cpu"] == os.cpu_count() * 1000 and room["memory"] == total
        assert 0 < room["memory_free"] < total

    # A small container fits on neither, one or both nodes: that depends on what this machine uses now.
    placed = asked(binary, *words, "--cpus", "0.01", "--memory", "1MiB", "--headroom", "0%")
    by = {one["node"]: one for one in placed["ranking"]}
    assert set(by) == {"socket", "secured"} and placed["fits"] == sum(int(one["times"]) for one in by.values())
    too_much = asked(binary, *words, "--memory", "64TiB", code=1)
    assert too_much["fits"] == 0 and all("free to lend" in one["because"] for one in too_much["ranking"])
    text = fleet(binary, *words, "--memory", "64TiB", code=1).stdout
    assert "fits nowhere" in text and all(len(line) < 100 for line in text.splitlines())

    text = fleet(binary, *words, "--top", "1", code=0).stdout
    assert "2 of 2 nodes read" in text and "and 1 more: --top 0 shows them" in text
    table = [line for line in fleet(binary, *words, code=0).stdout.splitlines()][3:]
    assert all(len(line) < 110 for line in table), table


def test_wrong_token_wrong_certificate_and_no_tls_are_said_and_never_hidden(binary, secured, tmp_path):
    port, certificate, token = secured
    (wrong := tmp_path / "wrong").write_text("not the token\n")
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout other.key -out other.pem"
    subprocess.run(["openssl", *words.split()], cwd=tmp_path, check=True, capture_output=True)
    good = f"n=https://localhost:{port}"
    for words, expect in [
        ([good, "--token-file", wrong, "--ca", certificate], "does --token-file hold its token?"),
        ([good, "--ca", certificate], "answered 401"),
        ([good, "--token-file", token, "--ca", tmp_path / "other.pem"], "agreeing on TLS"),
        ([f"n=https://127.0.0.1:{port}", "--token-file", token, "--ca", certificate], "agreeing on TLS"),
        ([f"n=http://localhost:{port}", "--token-file", token], "asking"),
        ([f"n=localhost:{api.free_port()}"], "connecting"),
        ([f"n={tmp_path}/no.sock"], "connecting"),
    ]:
        row = by_name(asked(binary, *words, "--timeout", "3s", code=1))["n"]
        assert expect in row["problem"] and "room" not in row, (words, row)
        assert "\nnot read, and not counted:\n  n " in fleet(binary, *words, "--timeout", "3s", code=1).stdout
    for words, expect in [
        ([], "no node was named"),
        (["a b"], "is no address"),
        ([good, "--token-file", tmp_path / "none"], "--token-file"),
        ([good, "--ca", token], "no certificate is in it"),
        (["--prometheus", "localhost"], "is no address"),
        ([good, "--disk", "rbps=5"], "rbps"),
        ([good, "--timeout", "1us"], "too short"),
    ]:
        done = fleet(binary, *words, code=2)
        assert expect in done.stderr and done.stderr.count("\n") == 1 and not done.stdout, (words, done.stderr)


# ---- servers that mean no good ----


@pytest.fixture
def hostile():
    """Servers that do this with every connection: `hostile(function)` gives its port."""
    servers = []

    def serve(do):
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def each(peer):
            with peer, contextlib.suppress(OSError):
                do(peer)

        def run():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=each, args=[server.accept()[0]], daemon=True).start()

        threading.Thread(target=run, daemon=True).start()
        return server.getsockname()[1]

    yield serve
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def silent(peer):
    while peer.recv(1 << 16):
        pass


def dripping(peer):
    peer.recv(1 << 16)
    peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        peer.sendall(b"[")
        time.sleep(0.05)


def answering(status, body, *headers):
    def do(peer):
        peer.recv(1 << 16)
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
        peer.sendall("\r\n".join(lines).encode() + body)

    return do


def endless(what, head=b"HTTP/1.1 200 OK\r\n\r\n"):
    def do(peer):
        peer.recv(1 << 16)
        peer.sendall(head)
        while True:
            peer.sendall(what)

    return do


NUMBERS = {
    "time_unix_ms": 0, "node": {"cpus": 4, "cpu_used_millicpu": 1, "memory_total": 1 << 30, "memory_free": 1 << 29},
    "status": {"version": "0.0.9\u001b[31m"}, "containers": [], "disks": {"disks": []}, "memory": {"pools": []},
}  # fmt: skip


def test_a_container_that_misbehaves_is_said_in_time_and_holds_no_other_up(binary, agents, hostile):
    _, here = agents()

    def old(age):
        return json.dumps({**NUMBERS, "time_unix_ms": int((time.time() - age) * 1000)}).encode()

    elsewhere = hostile(answering("200 OK", old(0)))
    limit = f"{3 * PATIENCE:.0f}"
    servers = {
        "silent": (silent, f"no answer within {limit} s"),
        "dripping": (dripping, f"no answer within {limit} s"),
        "closing": (lambda peer: None, "asking"),
        "garbage": (lambda peer: peer.sendall(b"SSH-2.0-OpenSSH_9\r\n" * 9), "asking"),
        "html": (answering("200 OK", b"<html>hello</html>"), "is its agent of another version?"),
        "deep": (answering("200 OK", b"[" * (1 << 20)), "is its agent of another version?"),
        "lacking": (answering("200 OK", b'{"time_unix_ms": 1}'), "missing field"),
        "huge": (endless(b" " * 65536), "an answer of at most"),
        "headers": (endless(b"X-A: b\r\n" * 100, b"HTTP/1.1 200 OK\r\n"), "asking"),
        "away": (answering("302 Found", b"", f"Location: http://127.0.0.1:{elsewhere}/"), "it answered 302"),
        "busy": (answering("503 X", json.dumps({"error": "later\n\u001b[31m"}).encode()), "later\\n"),
        "yesterday": (answering("200 OK", old(86400)), "old, or its clock is behind"),
        "tomorrow": (answering("200 OK", old(-86400)), "its clock is ahead"),
    }
    words = [f"{name}=127.0.0.1:{hostile(do)}" for name, (do, _) in servers.items()]
    words += [f"good={here}", f"older=127.0.0.1:{elsewhere}"]
    began = time.monotonic()
    done = fleet(binary, *words, "--timeout", f"{limit}s", "--oldest", "1h", "--format", "json", code=1)
    assert time.monotonic() - began < 30 * PATIENCE
    rows = by_name(json.loads(done.stdout))
    for name, (_, expect) in servers.items():
        assert expect in rows[name]["problem"] and "room" not in rows[name], rows[name]
    assert rows["good"]["room"]["cpu"] == os.cpu_count() * 1000
    assert rows["older"]["version"].startswith("0.0.9")

    text = fleet(binary, *words, "--timeout", f"{PATIENCE:.0f}s", code=1).stdout
    assert "2 of 15 nodes read" in text and "versions: " in text and "\x1b" not in text
    for name in servers:
        assert f"\n  {name} " in text


def test_room_that_was_there_all_the_time_is_what_counts(binary, hostile):
    # Used memory alternates: what both looks saw free is the lesser.
    looks = []

    def do(peer):
        looks.append(1)
        node = {**NUMBERS["node"], "memory_free": (100 if len(looks) % 2 else 300) * MIB}
        body = json.dumps({**NUMBERS, "node": node, "time_unix_ms": int(time.time() * 1000)}).encode()
        answering("200 OK", body)(peer)

    words = [f"n=127.0.0.1:{hostile(do)}", "--memory", "50MiB", "--headroom", "0%"]
    report = asked(binary, *words, "--for", "3s", "--every", "100ms", code=0)
    assert report["looks"] >= 3 and report["fits"] == 2, report


def test_watching_goes_on_until_it_is_told_to_stop(binary, agents):
    _, here = agents()
    words = [str(binary), "fleet", f"n={here}", "--watch", "--every", "50ms", "--format", "json"]
    watching = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        times = [json.loads(watching.stdout.readline())["nodes"][0]["time_unix_ms"] for _ in range(5)]
        assert times == sorted(times)
    finally:
        watching.terminate()
        watching.wait(10 * PATIENCE)
        watching.stdout.close()


def test_a_large_fleet_is_read_and_ranked(binary, agents, start, tmp_path):
    """As many nodes as ELBOWROOM_FLEET_NODES says, all of them one agent. Writes to ELBOWROOM_FLEET_RESULTS where that is set."""
    count = int(os.environ.get("ELBOWROOM_FLEET_NODES", "500"))
    results = os.environ.get("ELBOWROOM_FLEET_RESULTS")
    agent, here = agents()
    containers = [start("--memory", "64MiB", at=agent.run_dir) for _ in range(10 if results else 2)]
    eventually(lambda: len(api.get(here, "/api/v1/snapshot")["containers"]) >= len(containers), within=20)
    size = len(api.ask(here, "/api/v1/snapshot")[2])
    nodes = tmp_path / "nodes"
    nodes.write_text("".join(f"node{n}={here}\n" for n in range(count)))
    took = []
    for _ in range(5 if results else 1):
        before = os.times()
        report = asked(binary, "--nodes", nodes, "--memory", "1MiB", "--headroom", "0%", "--parallel", "64", "--timeout", "30s", "--oldest", "1h")
        after = os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        took.append((report["took_ms"], round(cpu * 1000)))
        assert len(report["ranking"]) == count, [node for node in report["nodes"] if "problem" in node][:3]
    line = {"nodes": count, "containers_each": len(containers), "snapshot_bytes": size, "read_ms": [t for t, _ in took], "cpu_ms": [c for _, c in took]}
    print(json.dumps(line))
    if results:
        os.makedirs(results, exist_ok=True)
        with open(os.path.join(results, "read.json"), "w") as file:
            file.write(json.dumps(line) + "\n")
