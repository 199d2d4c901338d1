"""The black box: what an agent knew at any moment, whatever ended it."""

import json
import os
import random
import subprocess
import time
from datetime import UTC, datetime, timedelta

import pytest

from kit import api
from kit.process import Process
from kit.wait import PATIENCE, eventually

KILLS = int(os.environ.get("ELBOWROOM_TEST_RECORDER_KILLS", "30"))
CONTAINERS = 'cgroups = ["/elbowroom-test-live-recorder-*"]\nattach = false'


@pytest.fixture
def group(hand_made):
    return hand_made("elbowroom-test-live-recorder-a")


def ring_of(agent):
    return agent.log.with_suffix(".state") / "recorder"


def replay(agent, ring, *words):
    return agent.cli("replay", ring, *words)


def shown(agent, ring, *words):
    """The moment as JSON; None while nothing is there."""
    done = replay(agent, ring, "--format", "json", *words)
    return json.loads(done.stdout) if done.returncode == 0 else None


def test_an_agent_records_by_itself_and_any_moment_can_be_seen_again(new_agent, group):
    agent = new_agent("", CONTAINERS).start()
    ring = ring_of(agent)
    first = eventually(lambda: shown(agent, ring))
    assert any(c["path"] == "/" + group.path for c in first["containers"]), first
    eventually(lambda: (last := shown(agent, ring)) and last["time_unix_ms"] > first["time_unix_ms"] + 2_500)
    # Local time, before the next frame, which comes a second after this one, or sooner where this one was late.
    at = datetime.fromtimestamp((first["time_unix_ms"] + 1) / 1000).isoformat(timespec="milliseconds")
    again = shown(agent, ring, "--at", at)
    assert again["time_unix_ms"] == first["time_unix_ms"] and again["containers"] == first["containers"], at
    table = replay(agent, ring, "--at", "-1s").stdout
    assert "CONTAINER" in table and group.path[-8:] in table, table
    assert all(len(line) < 80 for line in table.splitlines()), table
    missing = replay(agent, ring, "--at", "2001-01-01T00:00Z")
    assert missing.returncode == 2 and "nothing is recorded of 2001-01-01" in missing.stderr, missing.stderr
    assert " has 20" in missing.stderr and len(missing.stderr.splitlines()) == 1, missing.stderr
    # Only the owner may read its files: they tell which programs each container runs.
    assert [oct(path.stat().st_mode & 0o777) for path in sorted(ring.glob("*.ring"))] == ["0o600"]
    assert oct(ring.stat().st_mode & 0o777) == "0o700"


def test_what_is_served_of_a_recording_is_for_who_has_the_link(new_agent, group):
    agent = new_agent("", CONTAINERS).start()
    ring = ring_of(agent)
    eventually(lambda: shown(agent, ring))
    port = api.free_port()
    server = subprocess.Popen([agent.binary, "replay", ring, "--serve", f"127.0.0.1:{port}"], stderr=subprocess.PIPE, text=True)
    try:
        lines = [server.stderr.readline(), server.stderr.readline()]
        address, code = lines[1].strip().split("#code=")
        assert address == f"http://127.0.0.1:{port}/", lines
        told = lambda path, token, method="GET": api.ask(port, path, method, {"Authorization": f"Bearer {token}"})
        assert [api.ask(port, path)[0] for path in ("/", "/api/v1/status", "/api/v1/snapshot")] == [200, 401, 401]
        status, _, body = told("/session", code, "POST")
        assert status == 200, body
        token = json.loads(body)["token"]
        assert [told("/api/v1/status", word)[0] for word in (token, code)] == [200, 401]
        paths = [c["path"] for c in json.loads(told("/api/v1/containers", token)[2])]
        assert "/" + group.path in paths, paths
        assert told("/session", code, "POST")[0] == 401, "a code works once"
    finally:
        server.terminate()
        server.communicate()


def test_switched_off_nothing_is_written(new_agent, group):
    agent = new_agent("[recorder]\nenabled = false\n", CONTAINERS).start()
    eventually(lambda: agent.status()["ticks"] > 100)
    assert not ring_of(agent).exists()


def test_a_directory_that_cannot_be_written_is_a_warning_and_no_more(new_agent, group, tmp_path):
    (tmp_path / "file").write_text("")
    agent = new_agent(f'[recorder]\ndirectory = "{tmp_path}/file/ring"\n', CONTAINERS).start()
    eventually(lambda: "nothing is recorded; trying again" in agent.log.read_text())
    assert agent.list() is not None
    assert agent.log.read_text().count("nothing is recorded") == 1


def test_a_full_disk_is_a_warning_and_recording_goes_on_when_there_is_room(new_agent, group, tmp_path):
    # A container that works is recorded in every period.
    work = subprocess.Popen(["/bin/sh", "-c", "while :; do sleep 0.02; head -c 3000000 /dev/zero >/dev/null; done"])
    group.enter(work.pid)
    (full := tmp_path / "full").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", full], check=True)
    try:
        (full / "fill").write_bytes(b"x" * (60 << 10))
        agent = new_agent(f'[recorder]\ndirectory = "{full}/ring"\nperiod = "100ms"\n', CONTAINERS).start()
        eventually(lambda: "nothing is recorded; trying again" in agent.log.read_text(), within=30)
        (full / "fill").unlink()
        eventually(lambda: "recording again" in agent.log.read_text(), within=30)
        eventually(lambda: shown(agent, full / "ring"))
        assert agent.stop() == 0
    finally:
        work.kill()
        work.wait()
        eventually(lambda: subprocess.run(["umount", full], capture_output=True).returncode == 0)


def test_a_recorder_that_is_killed_at_any_instant_loses_at_most_the_last_second(new_agent, group, binary, tmp_path):
    agent = new_agent("[recorder]\nenabled = false\n", CONTAINERS).start()
    ring, chance, lost, killed = tmp_path / "ring", random.Random(8), [], None
    for _ in range(KILLS):
        words = [binary, "--run-dir", agent.run_dir, "record", "--ring", ring, "--max-size", "1MiB", "--every", "20ms"]
        before = set(ring.glob("*.ring"))
        recorder = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        eventually(lambda: set(ring.glob("*.ring")) - before)
        began = time.time() * 1000
        if killed is None:  # before the first frame there is nothing to be shown
            eventually(lambda: shown(agent, ring))
        time.sleep(chance.uniform(0.005, 0.12))
        recorder.kill()
        until, killed = killed, time.time() * 1000
        recorder.wait()
        last = shown(agent, ring)
        assert last, replay(agent, ring).stderr
        # Nothing is recorded between the end of a recorder and the start of the next one.
        at = last["time_unix_ms"]
        lost.append(killed - at if until is None or at >= began else killed - began + max(0, until - at))
    print(f"{KILLS} kills: at most {max(lost):.0f} ms lost, {sorted(lost)[len(lost) // 2]:.0f} ms in the middle")
    assert max(lost) < 1000 * PATIENCE, sorted(lost)[-5:]
    assert sum(path.stat().st_size for path in ring.glob("*.ring")) <= 1 << 20


def test_a_killed_agent_leaves_what_it_knew_and_the_next_one_goes_on(new_agent, group):
    agent = new_agent("", CONTAINERS).start()
    ring = ring_of(agent)
    first = eventually(lambda: shown(agent, ring))
    agent.remember()
    policy = agent.status()["pids"]["policy"]
    Process(policy).kill()
    eventually(lambda: agent.has_another("policy", than=policy))
    agent.remember()
    eventually(lambda: (last := shown(agent, ring)) and last["status"]["pids"]["policy"] != policy)
    at = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=first["time_unix_ms"])).isoformat()
    before = shown(agent, ring, "--at", at)
    assert before["status"]["pids"]["policy"] == policy
    other = agent.cli("record", "--ring", ring)
    assert other.returncode == 2 and "another program records into it" in other.stderr, other.stderr


def test_five_hundred_containers_cost_little(new_agent, hand_made):
    """ELBOWROOM_RECORDER_RESULTS=lab/results/DATE-recorder keeps what it costs; without it there is nothing to be kept, and no test."""
    results = os.environ.get("ELBOWROOM_RECORDER_RESULTS")
    if not results:
        pytest.skip("needs ELBOWROOM_RECORDER_RESULTS, a directory for its numbers: it takes three minutes")
    groups = [hand_made(f"elbowroom-test-live-recorder-{n}") for n in range(500)]
    busy = "import time\nkept = []\nwhile True:\n    sum(range(20000)); kept = [bytearray(4096 * (int(time.time()) % 50))]; time.sleep(0.05)\n"
    programs, rows = [], []
    try:
        for group in groups[::10]:
            programs.append(subprocess.Popen(["/usr/bin/python3", "-c", busy]))
            group.enter(programs[-1].pid)
        for n in range(6):
            enabled = n % 2 == 1
            agent = new_agent(f"[doctor]\nenabled = false\n[api]\nenabled = false\n[recorder]\nenabled = {str(enabled).lower()}\n", CONTAINERS).start()
            eventually(lambda: agent.status()["containers"] >= 500, within=60)
            time.sleep(5)  # what a start costs is not the question
            ring = ring_of(agent)
            size = lambda: sum(path.stat().st_size for path in ring.glob("*.ring")) if enabled else 0
            before, bytes_before, began = agent.status()["cpu_usec"], size(), time.monotonic()
            time.sleep(20)
            took = time.monotonic() - began
            cpu = (agent.status()["cpu_usec"] - before) / took / 1e6
            rows.append((n // 2, "on" if enabled else "off", f"{cpu:.4f}", f"{(size() - bytes_before) / took:.0f}"))
            assert agent.stop() == 0
    finally:
        for program in programs:
            program.kill()
            program.wait()
    os.makedirs(results, exist_ok=True)
    with open(os.path.join(results, "cost.tsv"), "w") as file:
        file.write("round\trecorder\tcpu_seconds_per_second\tbytes_per_second\n")
        file.writelines("\t".join(map(str, row)) + "\n" for row in rows)
    median = lambda kind, column: sorted(float(row[column]) for row in rows if row[1] == kind)[1]
    assert median("on", 2) - median("off", 2) < 0.03, rows
    assert median("on", 3) * 3600 < 256 << 20, rows
