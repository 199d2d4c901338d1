"""The life of the packages on a Debian with systemd: installed, upgraded, killed, stopped, removed, purged; in this order, in a
guest that is thrown away (tests/packages/run). Readers in a container read all the while."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FIRST, SECOND = (sorted(Path(os.environ["ELBOWROOM_TEST_DEBS"], part).glob("*.deb")) for part in ("first", "second"))
UNIT = "elbowroom.service"
KEEPER = "elbowroom-keeper.service"
MEMORY = 256 << 20
# An emulated CPU is about ten times slower.
PATIENCE = 60
# The highest score that `systemd-analyze security` may give, from 0 (shut in) to 10; docs/guide/install.md has the score.
LOOSEST = 6.1


def sh(*words, check=True, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, **options)
    assert not check or done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def eventually(condition, within=PATIENCE):
    """Waits until a condition holds; its value."""
    until, error = time.monotonic() + within, None
    while time.monotonic() < until:
        try:
            if value := condition():
                return value
        except (AssertionError, OSError, ValueError, KeyError) as now:
            error = now
        time.sleep(0.1)
    raise AssertionError(f"not within {within} s: {error}\n{journal()[-4000:]}")


def journal():
    return sh("journalctl", "--unit", UNIT, "--no-pager", "--output=cat")


def show(name, unit=UNIT):
    return sh("systemctl", "show", unit, "--property", name, "--value").strip()


def request(what):
    done = sh("elbowroom", what, "--format", "json")
    return json.loads(done)


def pids():
    """The agent's processes by what they do."""
    group = Path("/sys/fs/cgroup/system.slice") / UNIT / "cgroup.procs"
    names = {}
    for pid in map(int, group.read_text().split()):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if len(words) > 1:
            names[words[1].decode()] = pid
    return names


def whole():
    """Its processes, when they all are there and it answers."""
    now = pids()
    assert {"agent", "view-server", "policy"} <= set(now), now
    assert sh("systemctl", "is-active", UNIT).strip() == "active"
    request("list")
    return now


def views():
    """Mounts of views and of view pages, in any mount namespace."""
    seen, lines = set(), set()
    for table in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            space = os.readlink(table.parent / "ns/mnt")
            if space not in seen:
                lines |= {line for line in table.read_text().splitlines() if re.search(r" - \S+ elbowroom ", line)}
                seen.add(space)
        except OSError:
            pass
    return lines


def install(debs):
    # As apt does it, with the unit's own start and restart in it.
    return sh("dpkg", "--install", *debs, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"})


class Readers:
    """A container with a view, and programs in it that read the view."""

    def __init__(self):
        words = ["elbowroom", "run", "--name", "readers", "--memory", "256MiB", "--cpu-weight", "5", "--", sys.executable, HERE / "readers.py"]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "reading\n"

    def stop(self):
        counted = json.loads(self.process.communicate(timeout=PATIENCE)[0].splitlines()[-1])
        print(f"{counted['reads']} reads, {counted['failed']} failed, the slowest took {counted['slowest']:.2f} s")
        return counted


class Asker:
    """A program with a call that the keeper answers."""

    def __init__(self):
        words = [sys.executable, HERE / "asker.py", "/run/elbowroom/keeper.sock"]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "asking\n"
        # What systemd holds: the keeper's record, and a listener for each that asks.
        eventually(lambda: show("NFileDescriptorStore", KEEPER) == "2")

    def stop(self):
        counted = json.loads(self.process.communicate(timeout=PATIENCE)[0])
        assert counted["asked"] > 100 and counted["failed"] == 0, counted
        eventually(lambda: show("NFileDescriptorStore", KEEPER) == "1")


def counted_without_failure(readers):
    counted = readers.stop()
    assert counted["failed"] == 0, counted
    # As fast as an emulated CPU beside others is.
    assert counted["reads"] > 100, counted


@pytest.fixture
def readers():
    """Ten readers, none of which may see a read that failed or is torn by the end of the test."""
    made = Readers()
    eventually(lambda: any(row["attached"] and row["view"]["memory"] == MEMORY for row in request("list")))
    yield made
    counted_without_failure(made)


def device():
    """The connection behind the views: another number is another one."""
    return os.stat("/run/elbowroom/private/views").st_dev


def test_an_installed_package_is_a_service_that_runs():
    install(FIRST)
    whole()
    assert show("Type") == "notify" and show("NFileDescriptorStore") == "3"
    status = sh("systemctl", "status", UNIT, "--no-pager")
    assert "active (running)" in status and "enabled" in status
    assert os.readlink("/proc/1/ns/mnt") == os.readlink(f"/proc/{pids()['agent']}/ns/mnt"), "views would be out of sight"
    assert sh("getent", "group", "elbowroom") and sh("getent", "passwd", "elbowroom")
    assert sh("elbowroom", "check", check=False)


def test_the_unit_is_as_hard_as_mounting_into_containers_allows():
    verdict = sh("systemd-analyze", "security", "--no-pager", UNIT).splitlines()[-1]
    print(verdict)
    assert float(re.search(r": ([0-9.]+) ", verdict)[1]) <= LOOSEST
    assert sh("systemd-analyze", "verify", "--man=no", f"/lib/systemd/system/{UNIT}") == ""


def test_every_file_is_where_debian_looks_for_it():
    for path in [
        "/usr/bin/elbowroom-runtime", "/usr/share/man/man1/elbowroom.1.gz", "/usr/share/elbowroom/elbowroom-agent.jar",
        "/usr/share/bash-completion/completions/elbowroom", "/usr/share/zsh/vendor-completions/_elbowroom",
        "/usr/share/fish/vendor_completions.d/elbowroom.fish", "/usr/include/elbowroom/view.h",
        "/usr/share/elbowroom/prometheus/elbowroom.rules.yml", "/usr/share/elbowroom/grafana/elbowroom.json",
        "/etc/elbowroom/elbowroom.toml", "/usr/share/doc/elbowroom/copyright", "/usr/lib/elbowroom/probes/mariadb", "/usr/lib/elbowroom/actuators/redis",
    ]:
        assert os.path.exists(path), path
    for example in ("enforce.conf", "probes.toml"):
        named = re.findall(r'[="](/[^ "\n]+)', Path("/usr/share/doc/elbowroom/examples", example).read_text())
        assert named and all(os.path.isfile(path) for path in named), (example, named)
    assert sh(sys.executable, "-c", "import elbowroom; print(elbowroom.__file__)").startswith("/usr/lib/python3/dist-packages")
    assert "libelbowroom.so.1" in sh("ldconfig", "-p")


def test_a_restart_and_an_upgrade_fail_no_read(readers):
    before, connection = whole(), device()
    sh("systemctl", "restart", UNIT)
    between = whole()
    assert set(before.values()).isdisjoint(between.values()) and device() == connection
    assert show("ActiveState", KEEPER) == "inactive" and show("UnitFileState", KEEPER) == "disabled"
    sh("systemctl", "enable", "--now", KEEPER)
    keeper, asker = show("MainPID", KEEPER), Asker()
    install(SECOND)
    assert show("ActiveState", KEEPER) == "active" and show("UnitFileState", KEEPER) == "enabled"
    assert show("MainPID", KEEPER) != keeper, "the program before still answers"
    asker.stop()
    # Still enabled for what follows; it would bring the run directory back where the agent is stopped.
    sh("systemctl", "stop", KEEPER)
    after = whole()
    assert set(between.values()).isdisjoint(after.values()) and device() == connection
    version = sh("dpkg-query", "--show", "--showformat", "${Version}", "elbowroom")
    assert version in SECOND[0].name and version not in FIRST[0].name
    assert journal().count("views of the agent before adopted") == 2
    sh("systemctl", "restart", UNIT)
    assert device() == connection


@pytest.mark.parametrize("name", ["agent", "view-server", "policy"])
def test_a_killed_process_is_replaced(readers, name):
    before, connection = whole(), device()
    os.kill(before[name], signal.SIGKILL)
    eventually(lambda: whole()[name] != before[name])
    assert device() == connection


def test_all_killed_at_once_are_replaced_and_views_stay(readers):
    before, connection = whole(), device()
    for pid in before.values():
        os.kill(pid, signal.SIGSTOP)
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: set(whole().values()).isdisjoint(before.values()))
    assert device() == connection


@pytest.fixture
def short_watchdog():
    """A watchdog of eight seconds instead of thirty."""
    drop_in = Path(f"/run/systemd/system/{UNIT}.d/watchdog.conf")
    drop_in.parent.mkdir(exist_ok=True)
    drop_in.write_text("[Service]\nWatchdogSec=8\n")
    sh("systemctl", "daemon-reload")
    sh("systemctl", "restart", UNIT)
    yield
    drop_in.unlink()
    sh("systemctl", "daemon-reload")
    sh("systemctl", "restart", UNIT)


def test_a_stuck_policy_process_is_replaced_alone(readers):
    before, connection = whole(), device()
    os.kill(before["policy"], signal.SIGSTOP)
    eventually(lambda: whole()["policy"] != before["policy"])
    assert whole()["agent"] == before["agent"] and device() == connection


@pytest.mark.parametrize("name", ["agent", "view-server"])
def test_a_stuck_process_is_found_by_the_watchdog(short_watchdog, readers, name):
    before, connection = whole(), device()
    os.kill(before[name], signal.SIGSTOP)
    eventually(lambda: set(whole().values()).isdisjoint(before.values()))
    assert device() == connection
    assert "Watchdog timeout" in journal()


def test_a_hurried_sequence_of_restarts_fails_no_read(readers):
    connection = device()
    for _ in range(3):
        sh("systemctl", "restart", UNIT)
    sh("systemctl", "kill", "--signal=KILL", UNIT)
    eventually(whole)
    assert device() == connection


def test_a_stop_takes_views_out_and_a_start_puts_them_in_again():
    readers = Readers()
    eventually(lambda: any(row["attached"] for row in request("list")))
    assert views()
    # An open file is still read from the page cache; by name there is the host's file again.
    counted_without_failure(readers)
    sleeper = subprocess.Popen(["elbowroom", "run", "--memory", "256MiB", "--", "sleep", "600"])
    eventually(lambda: any(row["attached"] for row in request("list")))
    sh("systemctl", "stop", UNIT)
    assert views() == set() and not os.path.exists("/run/elbowroom") and show("NFileDescriptorStore") == "0"
    sh("systemctl", "start", UNIT)
    eventually(lambda: any(row["attached"] for row in request("list")))
    sleeper.terminate()
    sleeper.wait(PATIENCE)


def test_a_refused_configuration_is_in_the_journal_and_costs_no_read(readers):
    connection = device()
    config = Path("/etc/elbowroom/elbowroom.toml")
    assert config.stat().st_mode & 0o777 == 0o640, "addresses of webhooks hold tokens"
    good = config.read_text()
    config.write_text(good.replace('#period = "24ms"', 'period = "24"'))
    try:
        sh("systemctl", "restart", "--no-block", UNIT)
        eventually(lambda: "has no unit" in journal())
    finally:
        config.write_text(good)
    eventually(whole)
    assert device() == connection


def test_removal_leaves_the_configuration_and_nothing_that_runs():
    sleeper = subprocess.Popen(["elbowroom", "run", "--memory", "256MiB", "--", "sleep", "600"])
    eventually(lambda: any(row["attached"] for row in request("list")))
    sh("systemctl", "start", KEEPER)
    processes = [*pids().values(), int(show("MainPID", KEEPER))]
    asker = Asker()
    assert "of running containers (1)" in subprocess.run(["dpkg", "--remove", "elbowroom"], capture_output=True, text=True).stderr
    assert all(os.path.exists(f"/proc/{pid}") for pid in processes) and whole()
    asker.stop()
    sh("dpkg", "--remove", "elbowroom")
    assert views() == set() and not os.path.exists("/run/elbowroom")
    assert not any(os.path.exists(f"/proc/{pid}") for pid in processes)
    assert sleeper.poll() is None, "the container itself goes on"
    sleeper.terminate()
    sleeper.wait(PATIENCE)
    assert os.path.exists("/etc/elbowroom/elbowroom.toml") and not os.path.exists("/usr/bin/elbowroom")


def test_purge_leaves_nothing():
    sh("dpkg", "--purge", "elbowroom", "libelbowroom-dev", "libelbowroom1", "python3-elbowroom")
    listed = sh("find", "/", "-xdev", "-iname", "*elbowroom*", "-not", "-path", "/var/lib/dpkg/*", "-not", "-path", "/proc/*")
    # The journal and dpkg's log are the machine's own memory.
    assert [line for line in listed.splitlines() if not line.startswith(("/mnt/", "/tmp/pytest"))] == []
    assert "elbowroom" not in Path("/etc/group").read_text() + Path("/etc/passwd").read_text()
    groups = [str(path) for path in Path("/sys/fs/cgroup").rglob("*elbowroom*")]
    assert groups == []
    limits = [str(p) for p in Path("/sys/fs/cgroup").rglob("io.max") if p.read_text().strip()]
    assert limits == [] and views() == set()
