"""The push of metrics by OTLP: a collector gets what /metrics shows, and one that is away, slow or ill costs the node nothing."""

import gzip
import http.server
import os
import re
import ssl
import struct
import subprocess
import threading

import pytest

from kit.openmetrics import scraped
from kit.wait import always, eventually

CONTAINERS = 'cgroups = ["/elbowroom-test-live-otlp-*"]\nattach = false'
# The certificates that Debian's programs trust.
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
# Values of these change from one moment to the next and are not compared.
CHANGES = re.compile(r"_(total|used|seconds)$|_used_|_tick_|_node_memory_|_pool_|_free|_lent_|_entitlement_|_wait|_queue|_cpu_|_memory_")


def fields(message):
    """The fields of a protobuf message, as its specification has them: number and value, in order."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        assert kind in (1, 2), f"wire type {kind}"
        size = 8 if kind == 1 else varint()
        assert at + size <= len(message), "a field is cut"
        yield key >> 3, message[at : at + size]
        at += size


def every(message, number):
    return [value for field, value in fields(message) if field == number]


def first(message, number, default=None):
    return next(iter(every(message, number)), default)


def attributes(message, number):
    pairs = every(message, number)
    return {first(pair, 1).decode(): first(first(pair, 2), 1).decode() for pair in pairs}


class Push:
    """One ExportMetricsServiceRequest, taken apart by the field numbers of opentelemetry-proto 1."""

    def __init__(self, body, headers):
        self.headers = headers
        (resource_metrics,) = every(gzip.decompress(body), 1)
        self.resource = attributes(first(resource_metrics, 1), 1)
        self.kinds, self.values, self.starts = {}, {}, {}
        (scope,) = every(resource_metrics, 2)
        for metric in every(scope, 2):
            name = first(metric, 1).decode()
            data, self.kinds[name] = first(metric, 5), "gauge"
            if data is None:
                data, self.kinds[name] = first(metric, 7), "counter"
                assert (first(data, 2), first(data, 3)) == (2, 1), f"{name}: not cumulative and monotonic"
            for point in every(data, 1):
                labels = tuple(sorted(attributes(point, 7).items()))
                self.values[name, labels] = struct.unpack("<d", first(point, 4))[0]
                self.starts[name] = int.from_bytes(first(point, 2, b"\0"), "little")


class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        server = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.asked += 1
        if server.answer == "hang":
            server.released.wait(60)
            return
        if server.answer == 200:
            server.pushes.append(Push(body, dict(self.headers)))
            assert self.path == "/v1/metrics", self.path
        self.send_response(server.answer)
        if server.answer == 503:
            self.send_header("Retry-After", "3")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def collector():
    """A collector: `pushes` that it took, how often it was `asked`, and what it is to `answer`."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.pushes, server.asked, server.answer, server.released = [], 0, 200, threading.Event()
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.released.set()
        server.shutdown()


def settings(url, more=""):
    return f'[otlp]\nendpoint = "{url}"\ninterval = "1s"\n{more}'


def log_lines(agent, text):
    return [line for line in agent.log.read_text().splitlines() if text in line]


def test_a_collector_gets_what_metrics_shows(new_agent, hand_made, collector):
    group = hand_made("elbowroom-test-live-otlp-a")
    group.limit_memory(64 << 20)
    agent = new_agent(settings(collector.url, 'headers = { authorization = "Bearer word" }\n'), CONTAINERS).start()

    def the_same():
        push, (kinds, values) = collector.pushes[-1], scraped(agent.cli("metrics").stdout)
        assert push.kinds == kinds
        assert push.values.keys() == values.keys()
        # Others on this machine may come and go between the two.
        steady = [key for key in values if not CHANGES.search(key[0])]
        assert len(steady) > 20, steady
        assert {key: push.values[key] for key in steady} == {key: values[key] for key in steady}
        return push

    eventually(lambda: collector.pushes)
    push = eventually(the_same, within=20)
    hard = [value for (name, _), value in push.values.items() if name == "elbowroom_container_memory_hard_bytes"]
    assert 64 << 20 in hard, hard
    assert push.resource["service.name"] == "elbowroom" and push.resource["service.version"]
    assert push.resource["host.name"] == push.resource["service.instance.id"] != ""
    assert push.headers["authorization"] == "Bearer word"
    # A counter of the agent's says since when it counts; one of the kernel's is older than any agent.
    assert push.starts["elbowroom_ticks_total"] > 1_700_000_000 * 10**9
    assert push.starts["elbowroom_container_cpu_used_seconds_total"] == 0
    later = eventually(lambda: collector.pushes[-1] if collector.pushes[-1] is not push else None)
    ticks = ("elbowroom_ticks_total", ())
    assert later.starts[ticks[0]] == push.starts[ticks[0]] and later.values[ticks] > push.values[ticks]
    assert re.search(r"ok +OTLP +http://127.0.0.1: \d+ pushed, 0 failed", agent.cli("check").stdout)


def test_a_collector_that_is_ill_is_told_of_once_and_pushed_again(new_agent, collector):
    collector.answer = 503
    agent = new_agent(settings(collector.url)).start()
    otlp = lambda: agent.status()["otlp"]
    eventually(lambda: otlp()["failed"] >= 2, within=20)
    # It asked for 3 s: a push a second would have been more.
    asked = collector.asked
    always(lambda: collector.asked <= asked + 1, during=2.5)
    assert "503" in otlp()["problem"]
    assert re.search(r"missing +OTLP .* 0 pushed, \d+ failed\n.*503", agent.cli("check").stdout)
    collector.answer = 200
    eventually(lambda: otlp()["pushed"] >= 2, within=20)
    assert otlp()["problem"] is None
    pushed = scraped(agent.cli("metrics").stdout)[1]
    assert pushed["elbowroom_otlp_pushes_total", (("outcome", "failed"),)] >= 2
    eventually(lambda: log_lines(agent, "metrics are pushed again"))
    assert len(log_lines(agent, "metrics are not pushed")) == len(log_lines(agent, "metrics are pushed again")) == 1


@pytest.mark.parametrize("trusted", [True, False])
def test_a_collector_gets_nothing_unless_the_host_trusts_its_certificate(new_agent, collector, tmp_path, trusted):
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=collector -keyout key.pem -out cert.pem"
    words += " -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE"
    subprocess.run(["openssl", *words.split()], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    collector.socket = context.wrap_socket(collector.socket, server_side=True)
    if trusted and not os.path.exists(BUNDLE):
        pytest.skip(f"needs {BUNDLE}, which is what the agent trusts on Debian")
    trust = f'mount --bind {tmp_path}/cert.pem {BUNDLE}; exec "$@"'
    prefix = ["unshare", "--mount", "sh", "-ec", trust, "sh"] if trusted else []
    agent = new_agent(settings(collector.url.replace("http:", "https:")), prefix=prefix).start()
    if trusted:
        eventually(lambda: collector.pushes)
    else:
        eventually(lambda: agent.status()["otlp"]["failed"])
        assert "invalid peer certificate" in agent.status()["otlp"]["problem"], agent.status()["otlp"]
        assert collector.asked == 0


@pytest.mark.parametrize("answer", ["hang", "nothing listens"])
def test_a_collector_that_does_not_answer_delays_nothing(new_agent, collector, answer):
    url = "http://127.0.0.1:9" if answer == "nothing listens" else collector.url
    collector.answer = "hang"
    agent = new_agent(settings(url)).start()
    eventually(lambda: collector.asked or agent.status()["otlp"]["failed"])
    ticks = agent.status()["ticks"]
    eventually(lambda: agent.status()["ticks"] > ticks)
    eventually(lambda: agent.status()["otlp"]["failed"] > (answer != "hang"), within=20)
    eventually(lambda: log_lines(agent, "metrics are not pushed"))
    assert len(log_lines(agent, "metrics are not pushed")) == 1
    if answer == "hang":
        # One at a time, 10 s each.
        assert collector.asked <= agent.status()["otlp"]["failed"] + 1
