"""Exit statuses are those of the table in docs/guide/overview.md."""

import os
import re
import shutil
import subprocess
import tempfile

import pytest

from conftest import REPOSITORY
from kit.wait import PATIENCE

PAGE = REPOSITORY / "docs/guide/overview.md"
# Arguments of verbs. A verb that is not here needs none, or is not run without an agent.
WORDS = {"show": ["x"], "explain": ["x"], "attach": ["x"], "detach": ["x"], "follow": ["x", "--", "/bin/true"], "top": ["--once"]}
# Verbs that look and change nothing.
HARMLESS = ["check", "doctor", "undo", "size", "restore", "housekeeping", "version", "help"]
NOBODY = 65534


def table():
    """For each verb, whether 1 has a meaning, and what the page says of it without an agent."""
    section = PAGE.read_text().split("\n## Exit status\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.+`) \| (.*?) ?\| (2|works) \|$", section, re.M)
    assert len(rows) > 5
    return {verb: (bool(one), alone) for verbs, one, alone in rows for verb in re.findall(r"`([a-z-]+)`", verbs)}


@pytest.fixture
def done(binary, tmp_path):
    """Types a verb where no agent is."""

    def type(*words, **options):
        environment = {**os.environ, "ELBOWROOM_RUN_DIR": f"{tmp_path}/none", "ELBOWROOM_STATE_DIR": f"{tmp_path}/state"}
        return subprocess.run(
            [binary, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, timeout=60 * PATIENCE, **options
        )

    return type


def test_every_verb_is_in_the_table(done):
    groups = done("help").stdout.split("\nOptions:")[0]
    verbs = re.findall(r"^  ([a-z-]+) +\S", groups, re.M)
    assert sorted(verbs) == sorted(table())


def test_a_wrong_command_line_is_2_for_every_verb(done):
    for verb in table():
        wrong = done(verb, "--no-such-option")
        assert wrong.returncode == 2 and len(wrong.stderr.splitlines()) == 1 and not wrong.stdout, (verb, wrong)


def test_without_a_verb_it_is_2_and_the_help(done):
    alone, helped = done(), done("--help")
    assert alone.returncode == 2 and not alone.stdout and alone.stderr == helped.stdout, alone
    assert "run-reaper" not in alone.stderr


def test_without_an_agent_each_verb_does_what_the_table_says(done):
    for verb, (has_no, alone) in table().items():
        if alone == "2":
            alone = done(verb, *WORDS.get(verb, []))
            assert alone.returncode == 2 and "elbowroom agent" in alone.stderr and not alone.stdout, (verb, alone)
    for verb in HARMLESS:
        looked = done(verb)
        assert looked.returncode in ((0, 1) if table()[verb][0] else (0,)) and looked.stdout, (verb, looked)
        assert table()[verb][1] == "works", verb


def test_an_unknown_container_is_2(agent):
    for verb in ("show", "explain", "attach", "detach", "doctor", "size", "protect"):
        unknown = agent.cli(verb, "no-such-container")
        assert unknown.returncode == 2 and "no container" in unknown.stderr and not unknown.stdout, (verb, unknown)


@pytest.fixture
def open_program(binary):
    """The program where every user can start it."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        program = shutil.copy(binary, directory)
        os.chmod(program, 0o755)
        yield program


def test_another_user_is_told_that_root_is_needed(agent, open_program):
    as_nobody = lambda *words: subprocess.run(
        [open_program, "--run-dir", agent.run_dir, *words], capture_output=True, text=True, user=NOBODY, group=NOBODY, extra_groups=[]
    )
    for words in (["list"], ["show", "x"], ["alerts"], ["run", "--memory", "40Mi", "--", "true"]):
        refused = as_nobody(*words)
        assert refused.returncode == 2 and "needs root" in refused.stderr, (words, refused)
    # It does not say that no agent runs.
    checked = as_nobody("check")
    assert checked.returncode == 1 and "needs root" in checked.stdout and "start one" not in checked.stdout, checked
    # What only root can see is not called missing.
    fuse = next(line for line in checked.stdout.splitlines() if "/dev/fuse" in line)
    assert fuse.split()[0] in ("?", "ok") and "load the fuse module" not in checked.stdout, checked
    told = as_nobody("version")
    assert told.returncode == 0 and "only root may ask" in told.stdout, told
