"""Names that mean no good in everything that the agent prints and serves: metrics, tables, JSON. A container names the cgroups in itself,
and one called `docker/ID` is a container, whose identifier is its whole path."""

import json
import os
import unicodedata

import pytest
from prometheus_client.openmetrics import parser

from kit import api, cgroup
from kit.wait import eventually

# Quotes, backslashes, escape sequences of 7 and 8 bits, directions, what has no width, tags, and bytes that are no UTF-8.
NAMES = [
    b'quote"} 1 x{y="\\',
    b"\\n\\",
    b"esc\x1b[2J\x1b]0;x\x07\r\x7f",
    "c1\x9b31m\x85".encode(),
    "direction\u202e\u2066\u061cgnp".encode(),
    "width\u200b\u3164\xad\U000e0041".encode(),
    b"bytes\xff\xc3(\xed\xa0\x80",
    b"long" + b"x" * 230,
]


@pytest.fixture
def inside():
    """Makes cgroups in that of a container, and takes them away."""
    made = []

    def inside(container, name):
        hierarchy = cgroup.HIERARCHIES[0].resolve()
        (own,) = {path for path in (hierarchy / path.lstrip("/") for path in container.cgroups) if path.is_dir()}
        path = os.path.join(os.fsencode(own), name)
        os.mkdir(path)
        made.append(path)
        return path

    yield inside
    for path in reversed(made):
        os.rmdir(path)


def hides(text):
    """Characters that a terminal obeys, or that show nowhere or elsewhere."""
    return [c for c in text if c != "\n" and (unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") or c == "\u3164")]


def test_hostile_names_break_no_metric_table_or_document(agent, start, inside):
    attacker = start("--memory", "512MiB")
    agent.attached(attacker)
    for name in NAMES:
        for below in (b"", b"/docker", b"/docker/" + b"e" * 64):
            inside(attacker, name + below)
    own = f"/{next(iter(attacker.cgroups)).lstrip('/')}/"
    rows = lambda: [row for row in agent.list() if row["path"].startswith(own)]
    eventually(lambda: len(rows()) == len(NAMES))
    sock = agent.run_dir / "api.sock"
    eventually(lambda: sum(c["path"].startswith(own) for c in api.get(sock, "/api/v1/containers")) == len(NAMES), within=20)
    pages = {"cli": agent.cli("metrics").stdout, "api": api.ask(sock, "/metrics")[2]}
    for way, page in pages.items():
        page = page.decode() if isinstance(page, bytes) else page
        families = {family.name: family for family in parser.text_string_to_metric_families(page)}
        seen = {sample.labels["id"] for sample in families["elbowroom_container_cpu_effective"].samples}
        assert len([name for name in seen if name.startswith(own)]) == len(NAMES), (way, seen)
        assert not hides(page), (way, hides(page))
    for words in (("list",), ("list", "-o", "wide"), ("list", "-o", "json"), ("list", "-o", "yaml"), ("memory",), ("disks",), ("alerts",), ("status",)):
        text = agent.cli(*words).stdout
        assert not hides(text), (words, hides(text))
    # Others on this machine may come and go between the two.
    eventually(lambda: len(json.loads(agent.cli("list", "-o", "json").stdout)) == len(agent.list()))
    eventually(lambda: len(agent.cli("list").stdout.splitlines()) == 1 + len(agent.list()))
    for row in rows():
        assert agent.cli("explain", row["id"]).returncode == 0, row["id"]
    assert not hides(agent.log.read_text())


def test_a_path_that_fills_every_table_is_no_container(agent, start, inside):
    attacker = start("--memory", "512MiB")
    agent.attached(attacker)
    path = ""
    for level in range(6):
        path = os.path.join(path, "x" * 250)
        inside(attacker, path.encode())
    ids = [f"{n:064x}" for n in range(20)]
    inside(attacker, os.path.join(path, "docker").encode())
    inside(attacker, b"docker")
    for name in ids:
        inside(attacker, os.path.join(path, "docker", name).encode())
        inside(attacker, os.path.join("docker", name).encode())
    nested = lambda: [row["path"] for row in agent.list() if row["path"].endswith(tuple(ids))]
    assert len(eventually(lambda: len(nested()) >= len(ids) and nested())) == len(ids)
    assert all(len(path) < 1_024 for path in nested())
