"""The HTTP API of a live agent: it answers what the document says, and a client that misbehaves is not felt elsewhere."""

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
from urllib.parse import quote

import jsonschema
import pytest

from kit import api
from kit.process import Process
from kit.wait import eventually

TOKEN = "0123456789abcdef0123456789abcdef"
CONNECTIONS = int(os.environ.get("ELBOWROOM_TEST_CONNECTIONS", "2000"))
PATHS = ["status", "containers", "disks", "memory", "alerts", "snapshot", "history", "history?points=5", "profiles"]


def sock(agent):
    return agent.run_dir / "api.sock"


def ready(agent):
    """Waits until the API answers for the agent; its socket."""

    def answers():
        with contextlib.suppress(OSError):
            return api.ask(sock(agent), "/readyz")[0] == 200

    eventually(answers, within=20)
    return sock(agent)


def api_server(agent):
    """The API's process."""
    for pid in map(int, os.popen(f"pgrep -P {agent.pid('supervisor')}").read().split()):
        # A process that ended since it was listed is not the API's.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"api-server" in file.read().split(b"\0"):
                return Process(pid)
    raise AssertionError("there is no API server")


@pytest.fixture
def port():
    return api.free_port()


@pytest.fixture
def token(tmp_path):
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o600)
    return file


def test_every_answer_is_what_the_document_says(agent, start):
    container = start("--memory", "256MiB")
    row = agent.attached(container)
    where = ready(agent)
    document = api.get(where, "/api/v1/openapi.json")
    eventually(lambda: any(c["id"] == row["id"] for c in api.get(where, "/api/v1/containers")))
    of_one = [f"containers/{quote(row['id'], safe='')}{more}" for more in ("", "/explain", "/network")]
    for path in PATHS + of_one + [f"history?container={quote(row['id'], safe='')}"]:
        template = "/api/v1/" + path.split("?")[0].replace(quote(row["id"], safe=""), "{id}")
        schema = document["paths"][template]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        answer = api.get(where, f"/api/v1/{path}")
        jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(answer)
    assert api.get(where, f"/api/v1/{of_one[0]}")["view"]["memory_hard"] == 256 << 20
    status, headers, body = api.ask(where, "/metrics")
    assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert status == 200 and body.endswith(b"# EOF\n") and row["id"].encode() in body
    assert api.ask(where, "/api/v1/containers/nobody")[0] == 404
    assert "error" in json.loads(api.ask(where, "/api/v1/nothing")[2])


def test_a_change_is_in_the_stream_and_in_the_history_with_its_reason(agent, start):
    container = start("--memory", "256MiB")
    row = agent.attached(container)
    where = ready(agent)
    stream = api.Stream(where)
    event, data = stream.next()
    assert event == "snapshot" and data["node"]["cpus"] == os.cpu_count()
    directory = next(path for path in api_cgroup_paths(row["path"]) if path.exists())
    directory.write_text(str(300 << 20))
    while not (event == "change" and data["container"] == row["id"] and data["what"].endswith("300MiB")):
        event, data = stream.next()
    stream.close()
    assert data["kind"] == "memory" and data["because"] == "its limit is now 300MiB"

    def history():
        told = api.get(where, f"/api/v1/history?container={quote(row['id'], safe='')}")
        assert data in told["changes"], told["changes"]
        assert len(told["time"]) == len(told["series"]["cpu_used"])
        return told["series"]["memory_hard"][-1] == 300 << 20

    eventually(history)


def api_cgroup_paths(path):
    from kit.cgroup import ROOT

    return [ROOT / "memory" / path.lstrip("/") / "memory.limit_in_bytes", ROOT / path.lstrip("/") / "memory.max"]


def test_the_process_is_nobody_and_sees_nothing_of_the_agent(agent):
    ready(agent)
    pid = api_server(agent).pid
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    assert "0" not in status["Uid"].split() + status["Gid"].split() and not status["Groups"].strip()
    assert all(int(status[name], 16) == 0 for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"))
    assert status["NoNewPrivs"] == "1"
    # A connection may end between the two.
    held = eventually(lambda: [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")])
    assert not [name for name in held if "/dev/fuse" in name or "memfd" in name or name.endswith("agent.lock")], held


def test_only_its_process_may_ask_at_the_feed(agent):
    where = ready(agent)
    peer = api.raw(agent.run_dir / "feed.sock")
    with contextlib.suppress(BrokenPipeError):  # it is answered before it asks, and may not come to asking
        peer.sendall(b'"status"\n')
    assert b"only the agent's own API server" in peer.makefile("rb").readline()
    assert api.ask(where, "/readyz")[0] == 200


def test_a_crowd_that_is_refused_at_the_feed_costs_little_and_holds_up_no_question(agent):
    where = ready(agent)
    begin = time.monotonic()
    done, refused = threading.Event(), []

    def come_again():
        while not done.is_set():
            with socket.socket(socket.AF_UNIX) as peer, contextlib.suppress(OSError):
                peer.connect(str(agent.run_dir / "feed.sock"))
                refused.append(peer.recv(200))

    # More than the kernel has waiting: one more is told to come again.
    crowd = [threading.Thread(target=come_again) for _ in range(200)]
    for one in crowd:
        one.start()
    try:
        told = [api.ask(where, "/api/v1/findings") for _ in range(5)]
    finally:
        done.set()
    for one in crowd:
        one.join()
    assert [answer[0] for answer in told] == [200] * 5, told
    assert len(refused) < 600 * (time.monotonic() - begin) + len(crowd), "each of them is a thread of the policy process"


def test_it_is_restarted_and_follows_an_agent_whose_parts_die(agent, start):
    container = start("--memory", "256MiB")
    agent.attached(container)
    where = ready(agent)
    agent.remember()
    stop = container.reader()
    api_server(agent).kill()
    ready(agent)
    agent.remember()
    stream = api.Stream(where)
    stream.next()
    for part in ("policy", "view_server", "supervisor"):
        Process(agent.status()["pids"][part]).kill()
        eventually(lambda: (now := agent.status()) and all(Process(pid).alive() for pid in now["pids"].values()), within=20)
        agent.remember()
        killed_at = time.time() * 1000

        def told():
            event, data = stream.next()
            assert event == "snapshot" and data["at"] >= killed_at, f"nothing after {part} died"
            return [c for c in data["containers"] if c["memory_hard"] == 256 << 20]

        eventually(told, within=20, every=0)
    stream.close()
    assert stop()["failed"] == 0
    assert api.ask(where, "/readyz")[0] == 200


def test_root_attaches_over_the_socket_and_nobody_over_tcp(new_agent, start, port):
    agent = new_agent(f'[api]\nlisten = "127.0.0.1:{port}"').start()
    container = start("--memory", "256MiB")
    row = agent.attached(container)
    where = ready(agent)
    one = f"/api/v1/containers/{quote(row['id'], safe='')}"
    eventually(lambda: api.ask(where, one)[0] == 200)
    assert api.ask(port, f"{one}/detach", "POST")[0] == 403
    status, _, body = api.ask(where, f"{one}/detach", "POST")
    assert status == 200 and not json.loads(body)["attached"]
    status, _, body = api.ask(where, f"{one}/attach", "POST")
    assert status == 200 and json.loads(body)["attached"]


def test_over_tcp_only_the_token_opens_and_tls_is_spoken(new_agent, tmp_path, token, port):
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem"
    subprocess.run(["openssl", *words.split()], cwd=tmp_path, check=True, capture_output=True)
    agent = new_agent(
        f'[api]\nlisten = "127.0.0.1:{port}"\ntoken_file = "{token}"\n'
        f'tls_certificate = "{tmp_path}/cert.pem"\ntls_key = "{tmp_path}/key.pem"'
    ).start()
    ready(agent)
    certificate = str(tmp_path / "cert.pem")
    for header, expect in [(None, 401), ("Bearer wrong", 401), (f"Bearer {TOKEN}x", 401), (f"Bearer {TOKEN}", 200)]:
        headers = {"Authorization": header} if header else {}
        assert api.ask(port, "/api/v1/status", headers=headers, tls=certificate)[0] == expect, header
    assert api.ask(port, "/healthz", tls=certificate)[0] == 200
    with pytest.raises((OSError, api.http.client.HTTPException)):
        api.ask(port, "/healthz")


def test_a_port_that_is_taken_costs_nothing_else_and_is_had_when_it_is_free(new_agent, port):
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        agent = new_agent(f'[api]\nlisten = "127.0.0.1:{port}"').start()
        where = ready(agent)
        assert api.get(where, "/api/v1/status")["containers"] >= 0
        eventually(lambda: f"127.0.0.1:{port} cannot be had" in agent.log.read_text())

    def had():
        with contextlib.suppress(OSError):
            return api.ask(port, "/healthz")[0] == 200

    eventually(had, within=15)


def test_without_a_token_a_web_page_by_another_name_is_refused(new_agent, port):
    agent = new_agent(f'[api]\nlisten = "127.0.0.1:{port}"').start()
    ready(agent)
    assert api.ask(port, "/api/v1/status")[0] == 200
    assert api.ask(port, "/api/v1/status", headers={"Host": "rebind.example"})[0] == 421


def test_garbage_slow_readers_and_crowds_disturb_no_view(new_agent, start, port):
    agent = new_agent(f'[api]\nlisten = "127.0.0.1:{port}"').start()
    container = start("--memory", "256MiB")
    agent.attached(container)
    where = ready(agent)
    before = api_server(agent)
    stop = container.reader()
    crowd = []
    for garbage in (b"\0" * 70_000, b"GET / HTTP/9\r\n\r\n", b"\x16\x03\x01" + os.urandom(500), b"GET /" + b"a" * 40_000, b"G"):
        peer = socket.create_connection(("127.0.0.1", port))
        with contextlib.suppress(OSError):
            peer.sendall(garbage)
        crowd.append(peer)
    body = b"POST /api/v1/containers/a/attach HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n"
    peer = socket.create_connection(("127.0.0.1", port))
    peer.sendall(body)
    assert b"413" in peer.recv(100)
    crowd.append(peer)
    # Streams without a reader: they are cut off when the kernel's buffer for them is full.
    for _ in range(20):
        peer = socket.create_connection(("127.0.0.1", port))
        peer.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        crowd.append(peer)
    # More than there are seats: most are sent away.
    come = 0
    for n in range(CONNECTIONS):
        peer = socket.socket()
        peer.settimeout(20)  # one that the kernel has no room for tries again
        with contextlib.suppress(OSError):
            peer.connect(("127.0.0.1", port))
            come += 1
        if n % 4 == 0 and len(crowd) < 600:
            crowd.append(peer)
        else:
            peer.close()
    assert come > 0.9 * CONNECTIONS, come
    # Root still has its way in, and the one over TCP opens again when they are gone.
    assert api.get(where, "/api/v1/status")["containers"] >= 1
    for peer in crowd:
        peer.close()
    eventually(lambda: api.ask(port, "/readyz")[0] == 200, within=15)
    counted = stop()
    assert counted["failed"] == 0 and counted["reads"] > 100, counted
    assert container.mem_total() == 256 << 20
    assert before.alive(), "the API server died of it"
    with open(f"/proc/{before.pid}/status") as file:
        peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    assert peak < 100 << 10, f"{peak} KiB"


def test_switched_off_there_is_none(new_agent):
    agent = new_agent("[api]\nenabled = false").start()
    assert not sock(agent).exists() and not (agent.run_dir / "feed.sock").exists()
    with pytest.raises(AssertionError):
        api_server(agent)
