"""The command line as users of docker and kubectl expect it: forms of output, names, exit statuses, and a screen in a terminal."""

import json
import os
import re
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from kit import need
from kit.terminal import Terminal
from kit.wait import PATIENCE


@pytest.fixture
def two(agent, start):
    """Two containers that are seen: their agent, and they."""
    pair = start(), start()
    for container in pair:
        agent.attached(container)
    return agent, *pair


def test_a_list_has_the_forms_that_programs_read(two):
    agent, *containers = two
    names = {container.name for container in containers}
    done = lambda *words: agent.cli("list", *words).stdout
    assert names <= {row["name"] for row in json.loads(done("-o", "json"))}
    assert all(re.search(rf'^ +name: "{name}"$', done("-o", "yaml"), re.M) for name in names)
    assert names <= set(done("-o", "name").split())
    assert done("-q") == done("-o", "name") == agent.cli("ps", "-q").stdout
    heading, *rows = done().splitlines()
    assert heading.split()[:2] == ["CONTAINER", "VERDICT"]
    assert len(done("--no-headers").splitlines()) == len(rows)
    assert done("-o", "wide").splitlines()[0].split()[-1] == "CGROUP"


def test_moments_in_json_are_those_of_a_calendar(two):
    agent, first, _ = two
    moments = [change["at"] for change in agent.json("explain", first.name)["explain"]["changes"]]
    # None: before the agent's first look at the clock.
    dated = [datetime.fromisoformat(at) for at in moments if at is not None]
    assert moments and all(abs(datetime.now(UTC) - at) < timedelta(minutes=10) for at in dated), moments


def test_a_beginning_names_a_container_and_a_typo_is_answered(two):
    agent, first, second = two
    both = os.path.commonprefix([first.name, second.name])
    many = agent.cli("show", both)
    assert many.returncode == 2 and first.name in many.stderr and second.name in many.stderr, many.stderr
    # Of the two, the last letter decides.
    assert agent.json("show", first.name)["name"] == first.name
    wrong = agent.cli("show", first.name.replace("live", "lvie"))
    assert wrong.returncode == 2 and "did you mean" in wrong.stderr, wrong.stderr


@pytest.mark.parametrize(("word", "meant"), [("lsit", "list"), ("docter", "doctor"), ("explian", "explain"), ("status", "list")])
def test_a_verb_that_is_none_is_answered_with_the_nearest(binary, word, meant):
    done = subprocess.run([binary, word], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"did you mean `elbowroom {meant}`?" in done.stderr


def test_exit_statuses_are_those_of_the_table(two, binary, tmp_path):
    agent, first, _ = two
    for words in (["list"], ["show", first.name], ["memory"], ["disks"], ["version"], ["top", "--once"]):
        assert agent.cli(*words).returncode == 0, words
    lasting = agent.cli("alerts", "-o", "json")
    assert lasting.returncode == int(bool(json.loads(lasting.stdout)["lasting"]))
    assert agent.cli("show", "no-such-container").returncode == 2
    nobody = subprocess.run([binary, "--run-dir", tmp_path, "list"], capture_output=True, text=True)
    assert nobody.returncode == 2 and "elbowroom agent" in nobody.stderr


def test_a_terminal_is_told_that_nproc_says_more_and_explain_says_which_programs(agent, start, binary, run_dir):
    if (kernel := len(os.sched_getaffinity(0))) < 2:
        pytest.skip("needs two CPUs: with one, `nproc` cannot say more")
    container = start("--cpus", "1")
    agent.attached(container)
    # Its size is set before it asks for it.
    shell = ["sh", "-c", f"stty cols 100 rows 40; exec {binary} --run-dir {run_dir} list"]
    terminal = Terminal(shell, 100, 40)
    terminal.shows(b"`nproc` asks the kernel")
    assert terminal.end() == 0
    assert "nproc" not in agent.cli("list").stdout
    said = f"see {container.online()} CPU; those that ask the kernel (`nproc`, musl, Python's affinity) see {kernel}."
    assert said in agent.cli("explain", container.name).stdout
    # Where system calls are answered from the view too, there is no difference.
    told = start("--cpus", "1", "--libc")
    agent.attached(told)
    told.program("/usr/bin/python3", "-c", "import sys\nfor line in sys.stdin: print(1, flush=True)")()
    assert "ask the kernel" not in agent.cli("explain", told.name).stdout


def test_check_is_no_wider_than_its_terminal(binary, tmp_path):
    check = f"{binary} --run-dir {tmp_path} check"
    # Its size is set before it asks for it.
    terminal = Terminal(["sh", "-c", f"stty cols 80 rows 40; {check}; echo its end"], 80, 40)
    terminal.shows(b"its end")
    lines = terminal.seen.decode().splitlines()
    assert max(map(len, subprocess.run(check.split(), capture_output=True, text=True).stdout.splitlines())) > 80
    assert max(map(len, lines)) <= 80 and any("kernel" in line for line in lines), lines
    assert terminal.end() == 0


def test_a_container_whose_engine_keeps_its_files_elsewhere_is_told_of(new_agent, docker, tmp_path):
    agent = new_agent()
    agent.config = re.sub("docker_root = .*", f'docker_root = "{tmp_path}"', agent.config)
    container = docker.run(name="elbowroom-test-unnamed")
    agent.start().attached(container)
    wrong = agent.cli("show", container.name)
    assert wrong.returncode == 2 and "no container" in wrong.stderr and "containers.docker_root" in wrong.stderr, wrong.stderr


def test_a_recording_says_what_it_holds(two, tmp_path):
    agent, *_ = two
    done = agent.cli("record", "--ring", tmp_path / "ring", "--for", "1s")
    assert done.returncode == 0 and f"recorded: `elbowroom replay {tmp_path}/ring`" in done.stderr, done.stderr


def test_the_version_names_the_agent_that_answers(agent):
    told = agent.json("version")
    assert told["agent"] == told["version"], told


def test_the_option_says_what_the_verb_says(binary):
    says = lambda *words: subprocess.run([binary, *words], capture_output=True, text=True, check=True).stdout
    told = json.loads(says("version", "-o", "json"))
    build = f"{told['version']} ({told['commit']})" if told["commit"] else told["version"]
    assert says("-V") == f"elbowroom {build}\n"
    assert says("--version") == f"elbowroom {build}, features: {' '.join(told['features']) or 'none'}\n"


def test_run_says_why_its_command_died(agent, binary, run_dir):
    need.no_swap()
    eater = "x = bytearray(200 << 20); x[::4096] = b'x' * len(x[::4096])"
    words = [binary, "--run-dir", run_dir, "run", "--name", f"elbowroom-test-live-eats-{os.getpid()}"]
    done = lambda script: subprocess.run(
        [*words, "--memory", "40Mi", "--", "/usr/bin/python3", "-c", script], capture_output=True, text=True, timeout=60 * PATIENCE
    )
    killed, failed = done(eater), done("raise SystemExit(7)")
    assert killed.returncode == 137 and "at its memory limit of 40MiB" in killed.stderr, killed.stderr
    assert failed.returncode == 7 and "memory limit" not in failed.stderr, failed.stderr


def test_top_is_a_screen_with_keys(two, binary, run_dir):
    _, first, _ = two
    terminal = Terminal([str(binary), "--run-dir", str(run_dir), "top"], 80, 24)
    terminal.shows(b"CONTAINER")
    terminal.press(b"?")
    terminal.shows(b"Keys")
    terminal.press(b"x")
    terminal.shows(b"VERDICT")
    terminal.press(b"j\r")
    terminal.shows(b"scroll")
    terminal.press(b"\x1b")
    terminal.shows(b"VERDICT")
    terminal.press(b"q")
    assert terminal.end() == 0
