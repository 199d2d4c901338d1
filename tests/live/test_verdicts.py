"""How a container is doing, in one word, the same everywhere; kills for memory have a name, also after the container's death."""

import json
import subprocess
import time

import pytest

from kit import api, docker as docker_kit
from kit.wait import PATIENCE, eventually

EATER = "x = bytearray(120 << 20); x[::4096] = b'x' * len(x[::4096]); import time; time.sleep(60)"
BUSY = ["python3", "-c", "while True: pass"]


def background(docker, name, *options, command):
    """A container of which only Docker waits for the end; its id."""
    words = ["run", "--detach", "--name", name, "--network", "none", *docker_kit.mounts(), *options, docker_kit.IMAGE, *command]
    return docker.call(*words).stdout.strip()


def row(rows, name):
    return next((row for row in rows if row["name"] == name), None)


def alerts(agent, name):
    """Alerts about a container's verdict: those that last, and those that ended."""
    report = json.loads(agent.cli("alerts", "--format", "json").stdout)
    of = lambda views: [a for a in views if a["kind"] == "VERDICT" and (a["container"] or {}).get("name") == name]
    return of(report["lasting"]), of(report["ended"])


def screens(agent, run_dir, name):
    """What each program says of a container: status, reason and command."""
    shown = {
        "list": row(agent.json("list"), name),
        "show": agent.json("show", name),
        "explain": agent.json("explain", name)["container"],
        "doctor": json.loads(agent.cli("doctor", name, "--format", "json").stdout),
        "http": row(api.get(run_dir / "api.sock", "/api/v1/containers"), name),
    }
    return {screen: tuple(answer["verdict"][key] for key in ("status", "reason", "command")) for screen, answer in shown.items()}


def test_all_screens_say_the_same_of_a_container_that_runs(new_agent, docker, run_dir, tmp_path):
    name = "elbowroom-test-agreed"
    agent = new_agent("[api]\nenabled = true").start()
    # A part of it is killed, and the rest goes on.
    script = "import subprocess, sys, time; subprocess.run([sys.executable, '-c', sys.argv[1]]); time.sleep(600)"
    container = background(docker, name, "--memory", "64m", "--memory-swap", "64m", command=["python3", "-c", script, EATER])
    status, reason, command = "killed", "OOM-killed once at its limit of 64MiB", f"docker update --memory 128m --memory-swap 128m {name}"

    def agree():
        said = screens(agent, run_dir, name)
        assert set(said.values()) == {(status, reason, command)}, said
        return True

    eventually(agree, within=30, every=0.1)
    [alert], _ = alerts(agent, name)
    assert (alert["topic"], alert["text"]) == (status, f"{name}: {reason}; {command}")
    # For people, too; and what hurts is not called healthy.
    head = f"verdict           {status}: {reason}\nwhat helps        {command}\n"
    assert all(head in agent.cli(verb, name).stdout for verb in ("show", "explain"))
    doctor = agent.cli("doctor", name)
    assert doctor.returncode == 1 and doctor.stdout.startswith(head) and "healthy" not in doctor.stdout, doctor.stdout
    for words in (["list"], ["top", "--once"]):
        [line] = [line for line in agent.cli(*words).stdout.splitlines() if name in line]
        assert status in line.split(), line
    metric = f'status="{status}"'
    told = [line for line in agent.cli("metrics").stdout.splitlines() if line.startswith("elbowroom_container_verdict") and name in line]
    assert [line for line in told if line.endswith(" 1")] == [line for line in told if metric in line] != []
    # A doctor that no agent answers finds what it finds.
    words = [agent.binary, "--run-dir", tmp_path / "nobody", "doctor", container[:12], "--format", "json"]
    alone = json.loads(subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=30 * PATIENCE).stdout)
    assert "verdict" not in alone, alone


def test_a_crash_loop_for_memory_has_a_name_while_it_lasts_and_after(new_agent, docker, run_dir):
    name = "elbowroom-test-oomer"
    agent = new_agent("[api]\nenabled = true").start()
    options = ["--memory", "64m", "--memory-swap", "64m", "--restart", "on-failure:3"]
    background(docker, name, *options, command=["python3", "-c", EATER])

    def killed():
        # It may have waited for memory before, and been told of that.
        report, _ = alerts(agent, name)
        return ("killed", "critical") in [(alert["topic"], alert["severity"]) for alert in report]

    eventually(lambda: int(docker.call("inspect", "--format", "{{.RestartCount}}", name).stdout) >= 1, within=30, every=0.1)
    eventually(killed)

    # It ends for good after its fourth death; between two of them it has ended too.
    def last_death():
        dead = row(agent.json("list", "--all"), name)
        assert dead and "OOM-killed 4 times" in dead["verdict"]["reason"] and dead["ended_unix_ms"], dead and dead["verdict"]
        return dead

    dead = eventually(last_death, within=60, every=0.1)
    assert row(agent.list(), name) is None and row(agent.json("list"), name)["ended_unix_ms"] == dead["ended_unix_ms"]
    assert dead["verdict"]["status"] == "killed" and "at its limit of 64MiB" in dead["verdict"]["reason"], dead["verdict"]
    assert dead["verdict"]["command"] == f"docker update --memory 128m --memory-swap 128m {name}"
    # Its alert counts on, and names it.
    counted = f"{name}: OOM-killed 4 times"
    [alert] = eventually(lambda: [a for a in alerts(agent, name)[0] if a["text"].startswith(counted)])
    assert alert["text"].endswith(dead["verdict"]["command"])
    for words in (["explain", name], ["show", name], ["alerts"], ["list", "-a"]):
        said = agent.cli(*words).stdout
        assert name in said and ("OOM-killed 4 times" in said or "killed" in said), (words, said)
    doctor = agent.cli("doctor", name)
    assert doctor.returncode == 1 and "It is gone: OOM-killed 4 times" in doctor.stdout, doctor
    listed = lambda which: row(api.get(run_dir / "api.sock", f"/api/v1/containers{which}"), name)
    # It hears of it a second later.
    eventually(lambda: (told := listed("?all=true")) and told["verdict"] == dead["verdict"])
    eventually(lambda: listed("") is None)
    # The command is one that Docker takes.
    docker.call(*dead["verdict"]["command"].split()[1:])


def test_a_kill_is_counted_though_its_cgroup_is_gone_at_once(agent, docker):
    names = [f"elbowroom-test-gone-{n}" for n in range(4)]
    for name in names:
        # Its only process is killed, so Docker removes its cgroup within milliseconds.
        command = ["python3", "-c", "import time; time.sleep(1); x = bytearray(64 << 20)"]
        background(docker, name, "--memory", "32m", "--memory-swap", "32m", "--restart", "on-failure:2", command=command)

    def counted():
        rows = agent.json("list", "--all")
        said = [(row(rows, name) or {}).get("verdict", {}).get("reason", "") for name in names]
        assert all(reason.startswith("OOM-killed 3 times") for reason in said), said
        return True

    eventually(counted, within=60, every=0.2)


def test_a_crash_loop_does_not_flicker(agent, docker):
    name = "elbowroom-test-loop"
    background(docker, name, "--memory", "64m", "--memory-swap", "64m", "--restart", "always", command=["python3", "-c", EATER])
    eventually(lambda: row(agent.ask("ended")["list"], name), within=30, every=0.01)
    ran, ended, deadline = set(), set(), time.time() + 60 * PATIENCE
    while len(ran) < 3 or len(ended) < 3:
        assert time.time() < deadline, (ran, ended)
        [one] = [row for row in agent.json("list") if row["name"] == name]
        assert one["verdict"]["status"] == "killed", one["verdict"]
        (ended if one["ended_unix_ms"] else ran).add(one["verdict"]["reason"])
        [line] = [line for line in agent.cli("top", "--once").stdout.splitlines() if name in line]
        assert line.split()[:2] == [name, "killed"]
    docker.call("rm", "--force", name)
    shown = eventually(lambda: (text := agent.cli("show", name).stdout) and "\nended " in text and text)
    assert "\nattached          no: it has ended\n" in shown


def test_no_fix_writes_to_a_cgroup_that_is_gone(agent):
    name = "elbowroom-test-run-and-gone"
    # It is killed when the agent knows it: it sees its limit. Locked memory is not swapped out instead.
    seen = "import ctypes, time\nwhile int(open('/proc/meminfo').read().split()[1]) > 40 << 10: time.sleep(0.01)\n"
    locked = f"{seen}ctypes.CDLL(None).mlockall(3); {EATER}"
    agent.cli("run", "--memory", "40MiB", "--name", name, "--", "python3", "-c", locked)
    eventually(lambda: (row(agent.ask("ended")["list"], name) or {}).get("verdict", {}).get("status") == "killed")
    reason = "OOM-killed once at its limit of 40MiB; run it with more: `elbowroom run --memory 80MiB`"
    eventually(lambda: f"{name}: {reason}\n" in agent.cli("alerts").stdout)
    told = [" ".join(agent.cli(*words).stdout.split()) for words in (["alerts"], ["explain", name], ["show", name], ["doctor", name], ["doctor"])]
    assert all(reason in text for text in told), told
    assert not any(f"/{name}/memory." in text for text in told), told


def test_a_throttled_container_is_told_of_until_it_ends(agent, docker):
    name = "elbowroom-test-throttled"
    background(docker, name, "--cpus", "0.2", command=BUSY)
    eventually(lambda: row(agent.list(), name))

    def throttled():
        # On a busy machine it may wait for a CPU before its quota is used up.
        verdict = row(agent.list(), name)["verdict"]
        assert verdict["status"] == "throttled", verdict
        return verdict

    def told():
        lasting = alerts(agent, name)[0]
        assert [a["topic"] for a in lasting] == ["throttled"], lasting
        return lasting[0]

    verdict, alert = eventually(throttled, within=20), eventually(told, within=20)
    assert verdict["command"] == f"docker update --cpus 0.3 {name}"
    assert verdict["command"] in alert["text"]
    metric = [line for line in agent.cli("metrics").stdout.splitlines() if line.startswith("elbowroom_container_verdict") and name in line]
    assert [line for line in metric if line.endswith(" 1")] == [line for line in metric if 'status="throttled"' in line]
    # The doctor begins with that, and has the files that show it.
    doctor = json.loads(agent.cli("doctor", name, "--format", "json").stdout)
    assert [doctor["verdict"][key] for key in ("status", "command")] == ["throttled", verdict["command"]], doctor
    assert "cpu-throttled" in [finding["check"] for finding in doctor["findings"]] and not doctor["healthy"], doctor
    # Its command was taken, and does not do: the same alert has the next.
    docker.call(*verdict["command"].split()[1:])
    eventually(lambda: [a for a in alerts(agent, name)[0] if f"docker update --cpus 0.45 {name}" in a["text"]], within=20)
    assert "throttled" not in [a["topic"] for a in alerts(agent, name)[1]]
    docker.call("rm", "--force", name)
    eventually(lambda: not alerts(agent, name)[0] and alerts(agent, name)[1])


# They print when the cause is there.
THROTTLED = "import time; print(time.time(), flush=True)\nwhile True: pass"
KILLED = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {EATER!r}]); print(time.time(), flush=True); time.sleep(600)"
SOON = 2


@pytest.mark.parametrize(
    "topic, program, options",
    [("throttled", THROTTLED, ["--cpus", "0.1"]), ("killed", KILLED, ["--memory", "64m", "--memory-swap", "64m"])],
    ids=["throttled", "killed"],
)
def test_an_alert_begins_within_two_seconds_of_its_cause(agent, docker, topic, program, options):
    delays = []
    # A busy machine is late now and then. A rule that waits is late each time.
    for attempt in range(3):
        name = f"elbowroom-test-soon-{attempt}"
        background(docker, name, *options, command=["python3", "-c", program])
        topics = lambda: [a["topic"] for a in agent.ask("alerts")["alerts"]["lasting"] if (a["container"] or {}).get("name") == name]
        eventually(lambda: topic in topics(), within=30)
        begun = time.time()
        delays.append(begun - float(eventually(lambda: docker.call("logs", name).stdout)))
        # Alerts end with the container, except those of kills, which last until two minutes after the kill.
        docker.call("rm", "--force", name)
        gone = time.time()
        if topic == "killed":
            assert topics() == ["killed"]
        else:
            eventually(lambda: not topics())
            delays[-1] = max(delays[-1], time.time() - gone)
        if delays[-1] <= SOON * PATIENCE:
            return
    pytest.fail(f"each began or ended more than {SOON} s after its cause: {delays}")


def test_a_container_that_gets_what_it_asks_for_is_ok_and_the_worst_come_first(agent, docker):
    background(docker, "elbowroom-test-aaa-fine", "--memory", "200m", command=["sleep", "600"])
    background(docker, "elbowroom-test-zzz-slow", "--cpus", "0.1", command=BUSY)
    listed = lambda: [(r["name"], r["verdict"]["status"]) for r in agent.json("list") if (r["name"] or "").startswith("elbowroom-test-")]
    eventually(lambda: listed() == [("elbowroom-test-zzz-slow", "throttled"), ("elbowroom-test-aaa-fine", "ok")], within=20, every=0.2)

    def table():
        heading, *rows = (line.split() for line in agent.cli("list").stdout.splitlines())
        # Others on this machine may be worse.
        ours = [row[:2] for row in rows if row[0].startswith("elbowroom-test-")]
        assert heading[:2] == ["CONTAINER", "VERDICT"], heading
        assert ours == [["elbowroom-test-zzz-slow", "throttled"], ["elbowroom-test-aaa-fine", "ok"]], ours
        return True

    eventually(table, within=20)
    shown = agent.cli("show", "elbowroom-test-aaa-fine").stdout
    assert "verdict           ok: it gets what it asks for" in shown
    assert alerts(agent, "elbowroom-test-aaa-fine") == ([], [])


def test_a_container_that_ended_well_is_listed_and_accused_of_nothing(agent, docker):
    name = "elbowroom-test-short"
    background(docker, name, command=["sleep", "600"])
    eventually(lambda: row(agent.list(), name))
    docker.call("rm", "--force", name)
    ended = eventually(lambda: row(agent.ask("ended")["list"], name))
    assert (ended["verdict"]["status"], ended["verdict"]["reason"]) == ("ok", "it ended")
    assert agent.cli("explain", name).returncode == 0
    assert alerts(agent, name) == ([], [])


@pytest.mark.parametrize("words", [["show"], ["explain"]])
def test_a_name_that_never_was_is_refused(agent, words):
    done = agent.cli(*words, "elbowroom-test-never")
    assert done.returncode == 2 and "no container" in done.stderr
