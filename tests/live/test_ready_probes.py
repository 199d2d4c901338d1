"""The probes of probes/, beside the programs they are for: a real MariaDB, PostgreSQL and JVM."""

import glob
import shutil
import subprocess
from pathlib import Path

import pytest

from kit.programs import as_user
from kit.wait import eventually

REPOSITORY = Path(__file__).resolve().parents[2]
PROBES = REPOSITORY / "probes"


def served(agent, container):
    row = agent.find(container)
    seen = row and row["probe"]
    return seen["report"]["served"] if seen and seen["freshness"] == "fresh" and seen["report"] else None


def test_mariadb(new_agent, start, background, tmp_path):
    if not shutil.which("mariadbd") or not shutil.which("mariadb-install-db"):
        pytest.skip("needs MariaDB: apt-get install mariadb-server")
    home = tmp_path / "db"  # as root: Debian's package of the programs alone brings no user
    home.mkdir()
    socket = home / "socket"
    config = f'[[probes]]\ncontainer = "elbowroom-test-live-*"\nexec = ["{PROBES}/mariadb", "--objective=50", "--socket={socket}"]\n'
    agent = new_agent(config + 'timeout = "5s"\nttl = "10s"\n').start()
    container = start("--memory", "512MiB")
    container.run("mariadb-install-db", "--user=root", f"--datadir={home}/data", "--skip-test-db", timeout=120)
    words = f"mariadbd --no-defaults --user=root --datadir={home}/data --socket={socket} --skip-networking --pid-file={home}/pid"
    background(container, words, tmp_path / "log")
    client = ["mariadb", "--no-defaults", f"--socket={socket}"]
    eventually(lambda: subprocess.run([*client, "-e", "SELECT 1"], capture_output=True).returncode == 0, within=60)
    # The probe is the user `nobody` in the server too.
    subprocess.run([*client, "-e", "CREATE USER nobody@localhost IDENTIFIED VIA unix_socket"], check=True)
    # About a hundred questions a second, and some more that go unanswered.
    background(container, f"sh -c 'while :; do echo \"SELECT 1;\"; sleep 0.01; done | {' '.join(client)} -n'", tmp_path / "load")
    eventually(lambda: (served(agent, container) or 0) > 5, within=60)
    assert agent.row(container)["probe"]["report"]["objective"] == 50.0


def test_postgres(new_agent, start, background, tmp_path):
    programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    if not programs or not Path(programs[-1], "initdb").exists():
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    home = as_user("postgres", tmp_path / "db")
    psql = ["psql", f"--host={home}", "--username=postgres", "--dbname=postgres"]
    words = ", ".join(f'"{word}"' for word in [f"{PROBES}/postgres", *psql[1:]])
    config = f'[[probes]]\ncontainer = "elbowroom-test-live-*"\nexec = [{words}]\nevery = "2s"\ntimeout = "5s"\nttl = "10s"\n'
    agent = new_agent(config).start()
    container = start("--memory", "512MiB")
    container.run("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", f"{programs[-1]}/initdb", "-D", f"{home}/data", "-A", "trust", timeout=120)
    server = f"setpriv --reuid=postgres --regid=postgres --clear-groups {programs[-1]}/postgres -D {home}/data -k {home} -h ''"
    background(container, server, tmp_path / "log")
    eventually(lambda: subprocess.run([*psql, "-c", "SELECT 1"], capture_output=True).returncode == 0, within=60)
    # Of a transaction that touches no table a session reports nothing (PostgreSQL 15, pgstat_report_stat).
    background(container, f"sh -c 'while :; do echo \"SELECT count(*) FROM pg_am;\"; sleep 0.01; done | {' '.join(psql)} -q'", tmp_path / "load")
    eventually(lambda: (served(agent, container) or 0) > 5, within=60)


def test_a_jvm_by_one_of_its_beans(agent, start, background, tmp_path):
    if not shutil.which("javac"):
        pytest.skip("needs a JDK: tools/setup test")
    (tmp_path / "Sleep.java").write_text("class Sleep { public static void main(String[] a) throws Exception { Thread.sleep(1000000); } }")
    container = start("--memory", "512MiB")
    background(container, f"java {tmp_path}/Sleep.java", tmp_path / "log")
    # The launcher of a source file is the JVM that runs it; without a pid namespace its number is the host's.
    jvm = lambda: subprocess.run(["pgrep", "-f", f"^java {tmp_path}/Sleep.java"], capture_output=True, text=True).stdout.split()
    eventually(jvm)
    # The one thing every JVM counts at a known rate: its uptime, in milliseconds.
    probe = f"java {PROBES}/Jmx.java {jvm()[0]} served_total=Uptime@java.lang:type=Runtime objective=500"
    script = tmp_path / "probe"
    script.write_text(f"#!/bin/sh\n{probe} | {agent.binary} --run-dir {agent.run_dir} probe send -\n")
    script.chmod(0o755)
    background(container, script, tmp_path / "said")

    def counted():
        rate = served(agent, container)
        return rate is not None and 800 < rate < 1200

    try:
        eventually(counted, within=60)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{(tmp_path / 'said').read_text()}\n{(tmp_path / 'log').read_text()}") from None
