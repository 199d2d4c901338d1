"""Alerts of real conditions, from where they arise to a program, an address, and an Alertmanager."""

import json
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from kit import api, cgroup, disk as disks
from kit.process import Process
from kit.wait import PATIENCE, always, eventually

UNPACKED = Path(__file__).resolve().parents[2] / ".cache/prometheus/usr/bin"
ENFORCING = """
[disk]
mode = "enforce"
period = "200ms"
policy = "aridac"
devices = ["loop*"]
[disk.aridac]
samples = 3
max_disk_io = "1MiB/s"
"""
CONTAINERS = 'cgroups = ["/elbowroom-test-live-alerts-*"]\nattach = false'


@pytest.fixture
def group(hand_made):
    if disks.has_controller():
        disks.enable_controller()
        return hand_made("elbowroom-test-live-alerts-a", hierarchies=cgroup.IO_HIERARCHIES)
    return hand_made("elbowroom-test-live-alerts-a")


@pytest.fixture
def ill(group):
    """A container that the doctor has something to say of: `ill(True)`, and nothing any more: `ill(False)`."""
    if cgroup.V2:
        pytest.skip("needs cgroup v1: there the OOM killer of a group can be switched off by one write")
    return lambda is_ill: group.write("memory", "memory.oom_control", int(is_ill))


@pytest.fixture
def alertmanager(tmp_path):
    """A real Alertmanager; its address."""
    program = shutil.which("prometheus-alertmanager", path=f"{UNPACKED}:/usr/bin") or shutil.which("alertmanager")
    if not program:
        pytest.skip("needs Alertmanager: tools/setup prometheus, or prometheus-alertmanager of Debian")
    port = api.free_port()
    (tmp_path / "alertmanager.yml").write_text("route:\n  receiver: nobody\nreceivers:\n- name: nobody\n")
    # Debian's looks for its templates where its package would be, if it were installed.
    share = f"mount -t overlay overlay -o lowerdir={UNPACKED.parent}/share:/usr/share /usr/share && "
    unpacked = ["unshare", "--mount", "sh", "-c", f'{share} exec "$@"', "-"] if program.startswith(str(UNPACKED)) else []
    words = [
        *unpacked, program, f"--config.file={tmp_path}/alertmanager.yml", f"--storage.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
    ]
    with open(tmp_path / "alertmanager.log", "wb") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"

    def ready():
        try:
            return urllib.request.urlopen(f"{url}/-/ready", timeout=5).status == 200
        except OSError:
            return False

    try:
        eventually(ready, within=20)
        yield url
    finally:
        process.terminate()
        process.wait(20 * PATIENCE)


def lasting(agent, kind):
    return [alert for alert in agent.ask("alerts")["alerts"]["lasting"] if alert["kind"] == kind]


def about(alerts, group):
    return [alert for alert in alerts if group.path in alert["text"]]


def test_limits_that_are_taken_back_after_a_kill_reach_a_program_and_an_address(
    new_agent, group, loop_disk, receiver, tmp_path
):
    if not disks.has_controller():
        pytest.skip("needs the io controller: blkio on cgroup v1, io on v2")
    script = tmp_path / "to"
    script.write_text(f'#!/bin/sh\ncat > {tmp_path}/part\necho "$ELBOWROOM_ALERT_SEVERITY" > {tmp_path}/severity\nmv {tmp_path}/part {tmp_path}/told\n')
    script.chmod(0o755)
    receivers = f'[[receivers]]\nexec = ["{script}"]\nkinds = ["LEASE_RESTORED"]\n[[receivers]]\nwebhook = "{receiver.url}"\nkinds = ["LEASE_RESTORED"]\n'
    writer = disks.Writer(group, loop_disk)
    try:
        agent = new_agent(ENFORCING + receivers, CONTAINERS).start()
        eventually(lambda: disks.limits(group, loop_disk).get("wbps"))
        agent.remember()
        Process(agent.pid("policy")).kill()
        eventually(lambda: receiver.posted and (tmp_path / "told").exists(), within=20)
        agent.remember()
    finally:
        writer.close()
    for told in (json.loads((tmp_path / "told").read_text()), receiver.posted[0]):
        assert (told["kind"], told["state"], told["severity"]) == ("LEASE_RESTORED", "began", "warning"), told
        files = [line["file"] for line in told["evidence"]]
        assert any(group.path in file for file in files), files
    assert (tmp_path / "severity").read_text() == "warning\n"
    assert lasting(agent, "LEASE_RESTORED")
    assert 'elbowroom_alerts{kind="LEASE_RESTORED"} 1' in agent.cli("metrics").stdout
    assert not (agent.run_dir / "leases.restored").exists()
    done = agent.cli("alerts")
    assert done.returncode == 1 and "LEASE_RESTORED" in done.stdout, done.stdout


def test_a_finding_of_the_doctor_begins_and_ends(new_agent, group, ill, receiver):
    ill(True)
    to = f'[[receivers]]\nwebhook = "{receiver.url}"\nkinds = ["FINDING"]\n'
    agent = new_agent('[doctor]\nperiod = "5s"\n' + to, CONTAINERS).start()
    told = lambda state: [a for a in receiver.posted if a["topic"] == "oom-killer-off" and a["state"] == state]
    eventually(lambda: told("began"), within=30)
    assert f"/{group.path}: Its OOM killer is off" in told("began")[0]["text"], told("began")
    report = agent.ask("findings")["findings"]
    assert report["problem"] is None and report["cpu_usec"] > 0 and report["period_usec"] == 5_000_000, report
    assert [f["cgroup"] for f in report["findings"] if f["check"] == "oom-killer-off"] == [f"/{group.path}"]
    ill(False)
    eventually(lambda: told("ended"), within=60)
    assert not about(lasting(agent, "FINDING"), group)
    assert len(told("began")) == len(told("ended")) == 1


def test_a_finding_ends_with_its_container(new_agent, hand_made, group, ill):
    ill(True)
    agent = new_agent('[doctor]\nperiod = "6s"\n', CONTAINERS).start()
    found = lambda: [a for a in about(lasting(agent, "FINDING"), group) if a["topic"] == "oom-killer-off"]
    eventually(found, within=60, every=0.1)
    group.remove()
    # Long before the doctor looks again, which would have to miss it twice.
    eventually(lambda: not found(), within=5)


def test_a_kill_is_told_once(new_agent, hand_made, hungry, receiver):
    group = hand_made("elbowroom-test-live-alerts-killed")
    group.limit_memory(32 << 20)
    group.write("memory", "memory.swap.max" if cgroup.V2 else "memory.memsw.limit_in_bytes", 0 if cgroup.V2 else 32 << 20)
    to = f'[[receivers]]\nwebhook = "{receiver.url}"\nkinds = ["VERDICT"]\nseverity = "critical"\n'
    agent = new_agent(to, CONTAINERS).start()
    eventually(lambda: [row for row in agent.list() if row["path"].strip("/") == group.path.strip("/")])
    with pytest.raises(AssertionError, match="ended"):
        hungry(group)("hold 64")
    told = lambda: about([a for a in receiver.posted if (a["topic"], a["state"]) == ("killed", "began")], group)
    alert = eventually(told)[0]
    assert alert["severity"] == "critical" and "OOM-killed once at its limit of 32MiB" in alert["text"], alert
    always(lambda: len(told()) == 1, during=3, every=0.5)


def test_a_doctor_that_may_not_look_is_not_started(new_agent, group):
    agent = new_agent('[doctor]\nenabled = false\nperiod = "5s"\n', CONTAINERS).start()
    always(lambda: agent.ask("findings")["findings"] == {
        "period_usec": None, "looked_unix_ms": None, "cpu_usec": 0, "problem": None, "findings": []
    }, during=7, every=0.5)
    done = agent.cli("alerts")
    assert (done.returncode, done.stdout) in [(0, "nothing is wrong\n"), (1, done.stdout)], done


def test_a_real_alertmanager_takes_alerts_keeps_them_and_lets_them_go(new_agent, group, ill, alertmanager):
    ill(True)
    to = f'[[receivers]]\nwebhook = "{alertmanager}"\nformat = "alertmanager"\nresend = "1s"\nlink = "https://node1.example/"\nkinds = ["FINDING"]\n'
    agent = new_agent('[doctor]\nperiod = "5s"\n' + to, CONTAINERS).start()

    def known():
        with urllib.request.urlopen(f"{alertmanager}/api/v2/alerts?filter=topic%3Doom-killer-off", timeout=30) as answer:
            return json.load(answer)

    alert = eventually(known, within=30)[0]
    assert alert["labels"]["alertname"] == "ElbowroomFinding" and alert["labels"]["severity"] == "warning", alert
    assert alert["labels"]["instance"] and group.path in alert["annotations"]["summary"], alert
    assert "oom_kill_disable = 1" in alert["annotations"]["description"], alert
    assert alert["generatorURL"] == "https://node1.example/", alert
    # Each time it ends four seconds later: it is told again, or it would be gone by then.
    first = alert["endsAt"]
    eventually(lambda: known()[0]["endsAt"] > first, within=20)
    always(known, during=5, every=0.2)
    receivers = agent.status()["receivers"]
    assert receivers[0]["delivered"] >= 3 and receivers[0]["failed"] == 0, receivers
    ill(False)
    eventually(lambda: not known(), within=60)
