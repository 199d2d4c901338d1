"""A real OpenTelemetry Collector takes what the agent pushes: the values of `/metrics`, and in Prometheus the series of a scrape."""

import contextlib
import json
import re
import socket
import subprocess
import urllib.request

import pytest

from conftest import CONTAINER, PACKAGING, REPOSITORY, UNPACKED, expressions, has, promised_too_much, query, running, running_agent, tool
from kit.openmetrics import scraped
from kit.wait import eventually

# The certificates that Debian's programs trust.
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
GUIDE = REPOSITORY / "docs/guide/otlp.md"
HOST = socket.gethostname()
PUSHED, FAILED = (("elbowroom_otlp_pushes_total", (("outcome", outcome),)) for outcome in ("pushed", "failed"))
TICKS = ("elbowroom_ticks_total", ())
# Units of OpenMetrics, as OTLP writes them (UCUM). Rates have none (docs/decisions/0049-otlp.md).
UCUM = {"bytes": "By", "seconds": "s", "ratio": "1", "requests": "{request}"}


class Push:
    """A line that the collector's file exporter wrote, in the words of OTLP's JSON."""

    def __init__(self, line):
        [all_metrics] = json.loads(line)["resourceMetrics"]
        [scope] = all_metrics["scopeMetrics"]
        self.resource = attributes(all_metrics["resource"])
        self.metrics = {metric["name"]: metric for metric in scope["metrics"]}
        assert len(self.metrics) == len(scope["metrics"]), "two metrics of a name"
        self.kinds, self.values, self.starts = {}, {}, {}
        for name, metric in self.metrics.items():
            self.kinds[name] = "gauge" if "gauge" in metric else "counter"
            data = metric.get("gauge") or metric["sum"]
            if "sum" in metric:
                assert data["aggregationTemporality"] == 2 and data["isMonotonic"], f"{name}: not cumulative and monotonic"
            for point in data["dataPoints"]:
                self.values[name, tuple(sorted(attributes(point).items()))] = point["asDouble"]
                self.starts[name] = int(point.get("startTimeUnixNano", 0))


def attributes(value):
    return {pair["key"]: pair["value"]["stringValue"] for pair in value.get("attributes", [])}


class Collector:
    """The collector of tools/setup, configured by the guide and `more`; what it took is in a file."""

    def __init__(self, directory, receiver, prometheus, more=None):
        self.directory, self.receiver = directory, receiver
        self.log, self.file = directory / "collector.log", directory / "pushes.json"
        [guide] = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
        for theirs, ours in (("127.0.0.1:4318", f"127.0.0.1:{receiver}"), ("prometheus:9090", f"127.0.0.1:{prometheus}")):
            assert theirs in guide
            guide = guide.replace(theirs, ours)
        (directory / "guide.yaml").write_text(guide)
        both = {"file": {"path": str(self.file), "append": True}}
        (directory / "test.yaml").write_text(json.dumps({
            "exporters": both,
            "service": {
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"metrics": {"exporters": ["prometheus_remote_write", *both]}},
            },
        }))
        (directory / "more.yaml").write_text(json.dumps(more or {}))

    def start(self):
        configs = [f"--config={self.directory}/{name}.yaml" for name in ("guide", "test", "more")]
        self.stack = contextlib.ExitStack()
        alive = self.stack.enter_context(running(self.log, [tool("collector", UNPACKED), *configs]))

        def listens():
            alive()
            with socket.socket() as peer:
                return peer.connect_ex(("127.0.0.1", self.receiver)) == 0

        eventually(listens, within=60)

    def stop(self):
        """As a service manager does; what it took is written then."""
        self.stack.close()

    def pushes(self):
        """What it took, in order; a line that is being written is not yet."""
        return [Push(line) for line in self.file.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def complaints(self):
        return [line for line in self.log.read_text().splitlines() if "\tinfo\t" not in line]


class Setting:
    """A collector, a Prometheus that takes what it writes and scrapes too, and an agent that pushes once a second and listens."""


@pytest.fixture(scope="module")
def setting(scratch, free_port):
    made, directory = Setting(), scratch / "collector"
    directory.mkdir()
    listen, receiver, prometheus = free_port(), free_port(), free_port()
    made.page = f"http://127.0.0.1:{listen}/metrics"
    made.prometheus = f"http://127.0.0.1:{prometheus}"
    made.instances = {"scraped": f"127.0.0.1:{listen}", "pushed": HOST}
    made.collector = Collector(directory, receiver, prometheus)
    (directory / "prometheus.yml").write_text(json.dumps({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(PACKAGING / "prometheus/elbowroom.rules.yml")],
        "scrape_configs": [{"job_name": "elbowroom", "static_configs": [{"targets": [f"127.0.0.1:{listen}"]}]}],
    }))
    command = [tool("prometheus"), f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/tsdb",
               f"--web.listen-address=127.0.0.1:{prometheus}", "--web.enable-remote-write-receiver"]
    config = f'[api]\nlisten = "127.0.0.1:{listen}"\n[otlp]\nendpoint = "http://127.0.0.1:{receiver}"\ninterval = "1s"\n'
    with running(directory / "prometheus.log", command) as alive:
        eventually(lambda: alive() or has(made.prometheus, "1"), within=60)
        made.collector.start()
        try:
            with running_agent(directory / "agent", config) as made.agent:
                yield made
        finally:
            made.collector.stop()


@pytest.fixture(scope="module")
def container(setting, scratch):
    """One that writes on a disk, past the page cache: it has numbers of all kinds."""
    write = f"dd if=/dev/zero of={scratch}/written bs=4k count=25 oflag=direct 2>/dev/null"
    with promised_too_much(setting.agent, "sh", "-c", f"while {write}; do sleep 0.1; done") as end:
        yield end


def test_the_collector_has_what_the_endpoint_shows(setting, container):
    def page():
        try:
            with urllib.request.urlopen(setting.page, timeout=10) as answer:
                text = answer.read().decode()
        except OSError as error:  # An agent that has only begun has no numbers yet.
            raise AssertionError(error) from None
        return text, *scraped(text)

    def the_same():
        """One push between two scrapes: the number of a tick is the time of all three."""
        _, _, before = page()
        push = eventually(lambda: next((push for push in setting.collector.pushes()[-3:] if push.values[TICKS] >= before[TICKS]), None))
        text, kinds, after = eventually(lambda: next((seen for seen in [page()] if seen[2][TICKS] >= push.values[TICKS]), None))
        assert push.kinds == kinds
        assert before.keys() == push.values.keys() == after.keys()
        for key, value in push.values.items():
            if kinds[key[0]] == "counter":
                assert before[key] <= value <= after[key], key
            elif before[key] == after[key]:
                assert value == before[key], key
        return push, text, kinds

    push, text, kinds = eventually(the_same, within=60)
    for word in ("UNIT", "HELP"):
        told = dict(re.findall(rf"^# {word} (\S+) (.*)$", text, re.MULTILINE))
        for name, metric in push.metrics.items():
            family = name.removesuffix("_total").removesuffix("_info")
            shown = told.get(family)
            assert (metric.get("unit") == UCUM.get(shown)) if word == "UNIT" else (metric["description"] == shown), name
    counters = [name for name, kind in kinds.items() if kind == "counter"]
    assert len(counters) > 5 and len(kinds) - len(counters) > 20
    assert all(push.starts[name] > 0 for name in counters if name != "elbowroom_container_cpu_used_seconds_total")
    assert push.starts["elbowroom_container_cpu_used_seconds_total"] == 0
    assert push.resource["service.name"] == "elbowroom" and push.resource["host.name"] == push.resource["service.instance.id"] == HOST
    assert setting.collector.complaints() == []
    assert setting.agent.status()["otlp"]["failed"] == 0


def test_prometheus_has_the_same_series_by_the_collector_as_by_a_scrape(setting, container):
    def series(expression):
        """Those of the node and of our container: others may end, and then differ (below)."""
        found = [one["metric"] for one in query(setting.prometheus, expression)]
        ours = [labels for labels in found if {labels.get("id", CONTAINER), labels.get("name", CONTAINER)} == {CONTAINER}]
        return sorted(tuple(sorted(pair for pair in labels.items() if pair[0] != "instance")) for labels in ours)

    def every_name():
        ways = [series(f'{{__name__=~"elbowroom_.*",job="elbowroom",instance="{instance}"}}') for instance in setting.instances.values()]
        assert ways[0] == ways[1], set(ways[0]) ^ set(ways[1])
        assert "elbowroom_container_disk_bytes_per_second" in {dict(labels)["__name__"] for labels in ways[0]}
        return True

    def every_question():
        answered = 0
        for one, other in zip(*(expressions(instance) for instance in setting.instances.values())):
            if "up{" in one:
                assert series(other) == []
                continue
            assert series(one) == series(other), one
            answered += bool(series(one))
        assert answered > 15, answered
        return True

    eventually(every_name, within=60)
    eventually(every_question, within=60)
    for instance in setting.instances.values():
        alert = f'ALERTS{{alertname="ElbowroomOvercommit",alertstate="firing",instance="{instance}"}}'
        assert eventually(lambda: query(setting.prometheus, alert), within=90)  # noqa: B023


def test_a_container_that_is_gone_stays_in_prometheus_where_the_agent_is_not_scraped(setting, container):
    """As docs/guide/otlp.md says: only a scrape tells Prometheus that a series has ended."""
    asked = {way: f'elbowroom_container_memory_used_bytes{{instance="{instance}",name="{CONTAINER}"}}' for way, instance in setting.instances.items()}
    eventually(lambda: all(query(setting.prometheus, question) for question in asked.values()), within=30)
    container()
    eventually(lambda: not query(setting.prometheus, asked["scraped"]), within=30)
    assert query(setting.prometheus, asked["pushed"])


def test_a_collector_that_was_away_lacks_the_pushes_of_that_time_and_nothing_else(setting):
    status = lambda: setting.agent.status()
    before = status()
    setting.collector.stop()
    eventually(lambda: status()["otlp"]["failed"] >= before["otlp"]["failed"] + 3, within=30)
    away = status()
    assert away["ticks"] > before["ticks"] and away["pids"] == before["pids"]
    assert setting.collector.complaints() == []
    setting.collector.start()
    eventually(lambda: status()["otlp"]["pushed"] >= away["otlp"]["pushed"] + 3, within=30)

    def all_there():
        pushes = setting.collector.pushes()
        # Each says how many the agent knows to be taken, itself not among them.
        assert [push.values[PUSHED] for push in pushes] == list(range(len(pushes)))
        assert len(pushes) >= status()["otlp"]["pushed"] - 1
        return pushes

    pushes = eventually(all_there, within=30)
    assert pushes[-1].values[FAILED] == status()["otlp"]["failed"] >= 3
    assert len({push.starts[TICKS[0]] for push in pushes}) == 1, "the collector's end began a counter again"
    pushed = f'elbowroom_ticks_total{{instance="{HOST}"}}[10m]'
    eventually(lambda: float(query(setting.prometheus, f"count_over_time({pushed})")[0]["value"][1]) >= len(pushes), within=30)
    assert query(setting.prometheus, f"resets({pushed})")[0]["value"][1] == "0"
    assert setting.collector.complaints() == []


@pytest.mark.parametrize("token", ["word", "another"])
def test_a_collector_with_tls_and_a_token_takes_only_pushes_that_have_it(scratch, free_port, token):
    directory, receiver = scratch / f"token-{token}", free_port()
    directory.mkdir()
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=collector -keyout key.pem -out cert.pem"
    words += " -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE"
    subprocess.run(["openssl", *words.split()], cwd=directory, check=True, capture_output=True)
    http = {"tls": {"cert_file": f"{directory}/cert.pem", "key_file": f"{directory}/key.pem"}, "auth": {"authenticator": "bearertokenauth"}}
    collector = Collector(directory, receiver, 9, {
        "receivers": {"otlp": {"protocols": {"http": http}}},
        "extensions": {"bearertokenauth": {"token": "word"}},
        "service": {"extensions": ["bearertokenauth"], "pipelines": {"metrics": {"exporters": ["file"]}}},
    })
    config = f'[otlp]\nendpoint = "https://127.0.0.1:{receiver}"\ninterval = "1s"\nheaders = {{ authorization = "Bearer {token}" }}\n'
    # As a host that trusts this certificate.
    trust = ["unshare", "--mount", "sh", "-ec", f'mount --bind {directory}/cert.pem {BUNDLE}; exec "$@"', "sh"]
    collector.start()
    try:
        with running_agent(directory / "agent", config, trust) as agent:
            otlp = lambda: agent.status()["otlp"]
            if token == "word":
                eventually(lambda: collector.pushes() and otlp()["pushed"], within=30)
                assert otlp()["failed"] == 0
            else:
                eventually(lambda: otlp()["failed"] >= 2, within=30)
                assert otlp()["pushed"] == 0 and "it answered 401" in otlp()["problem"], otlp()
                assert collector.pushes() == []
    finally:
        collector.stop()
