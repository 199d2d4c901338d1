"""Debian's Prometheus and Alertmanager, agents that they scrape, and a receiver of alerts."""

import contextlib
import http.server
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests/live"))

from kit.agent import Agent  # noqa: E402
from kit.wait import eventually  # noqa: E402

BINARY = Path(os.environ.get("ELBOWROOM", REPOSITORY / "target/release/elbowroom"))
UNPACKED = REPOSITORY / ".cache/prometheus"
TOOLS = UNPACKED / "usr/bin"
PACKAGING = REPOSITORY / "packaging"

CONTAINER = f"elbowroom-test-prometheus-{os.getpid()}"

# A promise that no machine can keep: after half a minute that is an alert that lasts.
CONFIG = """
[containers]
attach = false
[[claims]]
container = "elbowroom-test-prometheus-*"
memory = { reservation = "64TiB" }
"""


def tool(name, directory=TOOLS):
    """The path of a program of Prometheus."""
    if not (directory / name).exists():
        pytest.skip(f"needs {name}: run 'tools/setup prometheus'")
    return directory / name


@pytest.fixture(scope="session")
def scratch():
    with tempfile.TemporaryDirectory(prefix="elbowroom-test-prometheus-") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def free_port():
    """Ports without a listener: from ELBOWROOM_TEST_PORTS on, where that is set."""
    start = int(os.environ.get("ELBOWROOM_TEST_PORTS", "0"))
    given = set()

    def port():
        for candidate in range(start, start + 100) if start else [0] * 20:
            with socket.socket() as one:
                try:
                    one.bind(("127.0.0.1", candidate))
                except OSError:
                    continue
                number = one.getsockname()[1]
            if number not in given:
                given.add(number)
                return number
        raise AssertionError(f"no free port from {start} on")

    return port


def fetch(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def serve(port, answer):
    """An HTTP server on a thread: `answer(path, body)` gives content type and text."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kind, text = answer(self.path, body)
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@contextlib.contextmanager
def running_agent(directory, more="", prefix=()):
    """An agent of CONFIG and of what this test wants, started by a command that starts another. It must stop cleanly."""
    if os.geteuid() != 0:
        pytest.skip("needs root: cgroups and mounts are made")
    directory.mkdir()
    made = Agent(BINARY, directory / "run", directory / "agent.log", config=CONFIG + more, prefix=prefix).start()
    try:
        yield made
    finally:
        status = made.stop()
    assert status == 0
    assert made.leftovers() == []


@pytest.fixture(scope="session")
def agent(scratch, free_port):
    """An agent whose metrics are on `agent.port`: its own listener, or `elbowroom metrics` where this build has none."""
    port, exporter = free_port(), None
    listens = "api" in subprocess.run([BINARY, "agent", "--config", "/dev/stdin"], input="[nothing]", capture_output=True, text=True).stderr
    with running_agent(scratch / "scraped", f'[api]\nlisten = "127.0.0.1:{port}"' if listens else "") as made:
        if not listens:
            exporter = serve(port, lambda *_: ("application/openmetrics-text; version=1.0.0; charset=utf-8", made.cli("metrics").stdout))
        made.port, made.listens = port, listens
        yield made
    if exporter:
        exporter.shutdown()


@contextlib.contextmanager
def running(log, *commands):
    """Programs that write into one log, ended at the end: gives a function that fails once one of them has ended by itself."""
    processes = []
    with open(log, "ab") as file:
        for words in commands:
            processes.append(subprocess.Popen(words, stdout=file, stderr=file, cwd=log.parent))

    def alive():
        assert all(process.poll() is None for process in processes), log.read_text()[-3000:]

    try:
        yield alive
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


def query(prometheus, expression):
    return fetch(f"{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expression}))["data"]["result"]


def has(prometheus, expression):
    """The answer of a Prometheus that may not have begun to listen."""
    try:
        return query(prometheus, expression)
    except OSError as error:
        raise AssertionError(error) from None


@pytest.fixture(scope="session")
def told(free_port):
    """What a webhook of Alertmanager's was told: `told.alerts` by name, the last word on each; on `told.port`."""

    class Told:
        port = free_port()
        alerts = {}

    def take(_, body):
        for alert in json.loads(body or b"{}").get("alerts", []):
            Told.alerts[alert["labels"]["alertname"]] = alert
        return "text/plain", ""

    server = serve(Told.port, take)
    yield Told
    server.shutdown()


@pytest.fixture(scope="session")
def prometheus(scratch, free_port, agent, told):
    """The address of a Prometheus that scrapes the agent once a second and tells Alertmanager, which tells `told`."""
    port, manager = free_port(), free_port()
    (scratch / "alertmanager.yml").write_text(json.dumps({
        "route": {"receiver": "told", "group_by": ["alertname"], "group_wait": "1s", "group_interval": "1s", "repeat_interval": "1h"},
        "receivers": [{"name": "told", "webhook_configs": [{"url": f"http://127.0.0.1:{told.port}/", "send_resolved": True}]}],
    }))
    (scratch / "prometheus.yml").write_text(json.dumps({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(PACKAGING / "prometheus/elbowroom.rules.yml")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{manager}"]}]}]},
        "scrape_configs": [{"job_name": "elbowroom", "static_configs": [{"targets": [f"127.0.0.1:{agent.port}"]}]}],
    }))
    # Debian's Alertmanager looks for its templates where its package would be, if it were installed.
    share = f"mount -t overlay overlay -o lowerdir={TOOLS.parent}/share:/usr/share /usr/share"
    commands = [
        ["unshare", "--mount", "sh", "-c", f'{share} && exec "$@"', "-", tool("prometheus-alertmanager"), f"--config.file={scratch}/alertmanager.yml",
         f"--storage.path={scratch}/alertmanager", f"--web.listen-address=127.0.0.1:{manager}", "--cluster.listen-address="],
        [tool("prometheus"), f"--config.file={scratch}/prometheus.yml", f"--storage.tsdb.path={scratch}/tsdb",
         f"--web.listen-address=127.0.0.1:{port}"],
    ]
    address = f"http://127.0.0.1:{port}"
    with running(scratch / "prometheus.log", *commands) as alive:
        eventually(lambda: alive() or has(address, "elbowroom_ticks_total"), within=60)
        yield address


def expressions(instance=".*"):
    """What the dashboard asks of this instance: the `expr` of everything in it."""

    def inside(value):
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from [inner] if key == "expr" else inside(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from inside(inner)

    for expression in inside(json.loads((PACKAGING / "grafana/elbowroom.json").read_text())):
        yield expression.replace("$instance", instance).replace("$container", ".*").replace("$__rate_interval", "1m")


@contextlib.contextmanager
def promised_too_much(agent, *command):
    """A container that is promised more than there is; ended by the call of what this gives."""
    words = [agent.binary, "--run-dir", agent.run_dir, "run", "--name", CONTAINER, "--", *(command or ("sleep", "600"))]
    process = subprocess.Popen([str(word) for word in words])

    def end():
        if process.poll() is None:
            process.terminate()
            process.wait(30)

    try:
        yield end
    finally:
        end()


@pytest.fixture
def overcommitted(agent):
    with promised_too_much(agent) as end:
        yield end
