"""A real Prometheus scrapes a live agent, takes the packaged rules, and an alert comes out at the other end."""

import contextlib
import json
import re
import subprocess
import urllib.request

from conftest import PACKAGING, expressions, fetch, query, running, tool
from kit.wait import eventually

RULES = PACKAGING / "prometheus/elbowroom.rules.yml"


def promtool(*words, cwd=None):
    done = subprocess.run([tool("promtool"), *map(str, words)], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_rules_and_scrape_example_are_well_formed():
    assert re.search(r"SUCCESS: \d+ rules found", promtool("check", "rules", RULES))
    promtool("check", "config", "--syntax-only", PACKAGING / "prometheus/scrape.yml")


def test_rules_fire_when_they_should_and_only_then():
    promtool("test", "rules", "elbowroom.rules.test.yml", cwd=RULES.parent)


def test_the_agent_is_up_and_every_rule_is_healthy(prometheus):
    assert query(prometheus, 'up{job="elbowroom"}')[0]["value"][1] == "1"

    def healthy():
        groups = fetch(f"{prometheus}/api/v1/rules")["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert len(rules) > 15
        assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
        return True

    eventually(healthy, within=30)


def test_every_question_of_the_dashboard_is_understood(prometheus):
    asked = list(expressions())
    assert len(asked) > 30
    for expression in asked:
        query(prometheus, expression)
    assert query(prometheus, "elbowroom_containers")


def test_an_alert_comes_out_of_the_webhook_and_is_resolved(prometheus, overcommitted, told):
    alert = eventually(lambda: told.alerts.get("ElbowroomOvercommit"), within=90)
    assert alert["status"] == "firing"
    assert alert["labels"]["kind"] == "OVERCOMMIT" and alert["labels"]["severity"] == "warning"
    assert "More is promised" in alert["annotations"]["summary"]
    overcommitted()
    eventually(lambda: told.alerts["ElbowroomOvercommit"]["status"] == "resolved", within=90)


def test_the_fleet_is_read_from_it(prometheus, agent):
    eventually(lambda: query(prometheus, "elbowroom_node_cpus_used"), within=30)
    words = [agent.binary, "fleet", "--prometheus", prometheus, "--cpus", "0.001", "--headroom", "0%", "--format", "json"]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    [node] = report["nodes"]
    assert node["name"] == f"127.0.0.1:{agent.port}" and "problem" not in node, node
    assert node["room"]["cpu"] == 1000 * int(query(prometheus, "elbowroom_node_cpus")[0]["value"][1])
    assert 0 < node["room"]["memory_free"] < node["room"]["memory"]
    refused = subprocess.run([agent.binary, "fleet", "--prometheus", prometheus + "/none"], capture_output=True, text=True)
    assert refused.returncode == 2 and "asking Prometheus" in refused.stderr and refused.stderr.count("\n") == 1


def test_node_exporter_takes_the_page_as_a_text_file(scratch, free_port, agent):
    directory, port = scratch / "textfile", free_port()
    directory.mkdir()
    (directory / "elbowroom.prom").write_text(agent.cli("metrics").stdout)
    exporter = [tool("prometheus-node-exporter"), "--collector.disable-defaults", "--collector.textfile",
                f"--collector.textfile.directory={directory}", f"--web.listen-address=127.0.0.1:{port}"]

    def page():
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return answer.read().decode()

    with running(scratch / "node-exporter.log", exporter):
        text = eventually(page, within=10)
    assert "\nnode_textfile_scrape_error 0\n" in text, text
    for name in ["elbowroom_info{", "elbowroom_containers ", "elbowroom_ticks_total "]:
        assert f"\n{name}" in text, name
