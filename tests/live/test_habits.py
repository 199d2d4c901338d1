"""Habits (docs/guide/habits.md): what the page says of other tools' commands and keys is typed and pressed as it stands there."""

import re
import subprocess
from typing import NamedTuple

import pytest

from conftest import REPOSITORY
from kit.terminal import Terminal
from kit.wait import PATIENCE

PAGE = REPOSITORY / "docs/guide/habits.md"
KEYS = "top, htop, btop"
# Text on the screen after a key, with the first container chosen. A key that does nothing leaves the text that was there.
DRAWS = {
    "j": "explain", "k": "explain", "Enter": "scroll", "/": "filter: ", "f": "filter: ", "P": "by CPU", "M": "by memory", ">": "by name",
    "<": "by disk", "r": "by verdict reversed", "d": "by disk", "?": "Keys",
    "Right": "by name", "F4": "filter: ", "G": "by verdict\n",
    "t": "by verdict\n", "1": "by verdict\n", "F9": "by verdict\n", "+": "by verdict\n",
}  # fmt: skip
QUIT = {"q", "F10"}
BYTES = {"Enter": b"\r", "Right": b"\x1b[C", "F4": b"\x1bOS", "F9": b"\x1b[20~", "F10": b"\x1b[21~"}
# They last until a key is pressed.
LASTING = ("stats", "list -w")


class Habit(NamedTuple):
    tool: str
    typed: str
    here: str
    holds: str

    def command(self):
        """The `elbowroom` command of the row, as it is typed here; None where it has none."""
        found = re.search(r"`elbowroom ([^`]+)`", self.here)
        return found and found[1]


def habits():
    """The rows of the page."""
    found = []
    for section in PAGE.read_text().split("\n## ")[1:]:
        tool = section.split("\n")[0]
        rows = re.findall(r"^\| (.+?) \| (.+) \| (yes|differs|no) \|$", section, re.M)
        # A heading and the line below it are no rows, and nothing else is left out.
        assert len(rows) == len(re.findall(r"^\|", section, re.M)) - 2, tool
        found += [Habit(tool, *row) for row in rows]
    return found


@pytest.fixture
def web(agent, start):
    """A container that the page calls `web`."""
    container = start("--cpus", "1")
    agent.attached(container)
    return container


@pytest.fixture
def terminal(binary, run_dir):
    """Starts `elbowroom` on a terminal, which ends with the test."""
    opened = []

    def open(*words):
        opened.append(Terminal([str(binary), "--run-dir", str(run_dir), *words], 80, 24))
        return opened[-1]

    yield open
    for one in opened:
        one.close()


def test_the_page_has_each_tool_and_says_where_a_habit_does_not_hold():
    rows = habits()
    assert [*dict.fromkeys(row.tool for row in rows)] == ["docker", "kubectl", KEYS, "systemd", "Prometheus"]
    assert {row.holds for row in rows} == {"yes", "differs", "no"}
    keys = {row.typed.strip("`") for row in rows if row.tool == KEYS}
    assert keys - QUIT == set(DRAWS)


def test_commands_are_typed_as_they_stand(agent, web, terminal):
    typed, wrong = 0, []
    for row in habits():
        command = row.command()
        if row.tool == KEYS or command is None:
            continue
        typed += 1
        if command in LASTING:
            screen = terminal(*command.split())
            screen.shows(b"CONTAINER")
            screen.press(b"\x03")
            screen.end()
            continue
        words = re.sub(r"\bweb\b", web.name, command)
        line = f'exec "$ELBOWROOM" {words}'
        done = subprocess.run(
            ["sh", "-c", line], env={"PATH": "/usr/bin:/bin", "ELBOWROOM": str(agent.binary), "ELBOWROOM_RUN_DIR": str(agent.run_dir)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60 * PATIENCE,
        )  # fmt: skip
        # Something may be wrong on the machine that runs the tests.
        expect = (2,) if row.holds == "no" else (0, 1) if command == "alerts" else (0,)
        if done.returncode not in expect or not (done.stdout or done.stderr or command.startswith("run ")):
            wrong.append((row.typed, command, done.returncode, done.stderr))
    assert not wrong, "\n".join(map(str, wrong))
    assert typed > 30


def test_keys_are_pressed_as_they_stand(web, terminal):
    for row in (row for row in habits() if row.tool == KEYS):
        key = row.typed.strip("`")
        screen = terminal("top")
        screen.draws(web.name[:16])
        screen.press(b"j")
        screen.draws("by verdict\n")
        screen.press(BYTES.get(key, key.encode()))
        if key not in QUIT:
            screen.draws(DRAWS[key])
            # Nothing that it did is in the way of the end.
            screen.press(b"\x03")
        assert screen.end() == 0, key


def test_metrics_have_the_names_of_the_page(agent, web):
    page = agent.cli("metrics").stdout
    said = PAGE.read_text().split("\n## Prometheus\n")[1]
    names = set(re.findall(r"\belbowroom_[a-z_]+\b", said))
    assert len(names) >= 4
    missing = [name for name in names if f"\n{name}{{" not in page]
    assert not missing, missing
    assert re.search(rf'^elbowroom_container_memory_used_bytes\{{id="[^"]*",name="{web.name}"\}} ', page, re.M), page
