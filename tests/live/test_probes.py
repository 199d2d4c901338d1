"""What applications say about themselves: over sockets, from files, pages of metrics and programs; each for itself alone."""

import json
from pathlib import Path

from kit.wait import eventually

PYTHON = "/usr/bin/python3"
SEND = "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect({address!r}); s.send({record!r})"


def probe(agent, container):
    row = agent.find(container)
    return row and row["probe"]


def arrived(agent, container, **expect):
    """Whether a container's fresh report has these numbers."""
    seen = probe(agent, container)
    return seen and seen["freshness"] == "fresh" and expect.items() <= (seen["report"] or {}).items()


def said(agent, container, **expect):
    """Waits for it."""
    eventually(lambda: arrived(agent, container, **expect))


def test_a_program_in_elbowroom_run_speaks_for_its_container_and_no_other(agent, start):
    one, two = start("--memory", "256MiB"), start("--memory", "256MiB")
    one.run(agent.binary, "--run-dir", agent.run_dir, "probe", "send", "served=812", "objective=800")
    said(agent, one, served=812.0, objective=800.0)
    assert probe(agent, two) is None
    # No process in a container may report for another: that takes the control socket, which is root's on the host.
    outside = agent.cli("probe", "send", "served=1")
    assert outside.returncode == 2 and "no container" in outside.stderr
    for_two = agent.cli("probe", "send", "--container", two.name, "red")
    assert for_two.returncode == 0, for_two.stderr
    said(agent, two, colour="red")
    listed = json.loads(agent.cli("probe", "list", "--format", "json").stdout)
    assert {row["name"] for row in listed} == {one.name, two.name}


def test_a_record_that_is_none_is_refused_and_said_why(agent, start):
    container = start("--memory", "256MiB")
    refused = agent.cli("probe", "send", "--container", container.name, "served=fast")
    assert refused.returncode == 2 and "served=fast" in refused.stderr
    assert probe(agent, container) is None


def test_a_container_of_docker_speaks_through_a_socket_in_its_own_network(agent, docker):
    one, two = docker.run(name="elbowroom-test-one"), docker.run(name="elbowroom-test-two")
    agent.attached(one), agent.attached(two)

    def speaks():
        # A process that ends at once is known by the network that it spoke in.
        one.run(PYTHON, "-c", SEND.format(address="\0elbowroom", record=b"served=5"))
        seen = probe(agent, one)
        return seen and seen["report"] and seen["report"]["served"] == 5.0

    eventually(speaks)
    assert probe(agent, two) is None


def test_a_label_says_which_file_to_read(agent, docker):
    container = docker.run("--label", "elbowroom.dev/probe=file:/tmp/probe objective=7", name="elbowroom-test-file")
    agent.attached(container)
    assert probe(agent, container)["freshness"] == "absent"
    container.run("sh", "-c", "echo served=3 > /tmp/probe")
    said(agent, container, served=3.0, objective=7.0)
    # A file that is not written any more says nothing.
    eventually(lambda: probe(agent, container)["freshness"] == "stale", within=30)
    # Nor does a FIFO in its place, and the agent goes on.
    container.run("sh", "-c", "rm /tmp/probe; mkfifo /tmp/probe")
    eventually(lambda: "plain file" in (probe(agent, container)["problem"] or ""))


def test_a_page_of_metrics_is_asked_for_in_the_containers_own_network(new_agent, docker):
    config = """
    [[probes]]
    container = "elbowroom-test-page"
    scrape = "http://127.0.0.1:9104/metrics"
    metrics.served_total = 'requests_total{code="200"}'
    """
    agent = new_agent(config).start()
    container = docker.run(name="elbowroom-test-page")
    agent.attached(container)
    server = (
        "import http.server, time\n"
        "class Page(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers()\n"
        "        self.wfile.write(b'requests_total{code=\"200\"} %d\\n' % (100 * time.monotonic()))\n"
        "    def log_message(self, *words): pass\n"
        "print(1, flush=True)\n"
        "http.server.HTTPServer(('127.0.0.1', 9104), Page).serve_forever()\n"
    )
    container.run("sh", "-c", f"exec setsid {PYTHON} -c '{server.replace(chr(39), chr(39) + chr(92) + chr(39) + chr(39))}' >/dev/null 2>&1 &")

    def served():
        seen = probe(agent, container)
        return seen and seen["freshness"] == "fresh" and 80 < seen["report"]["served"] < 120

    eventually(served, within=30)


def test_run_asks_a_program_beside_the_command(agent, start, tmp_path):
    script = tmp_path / "probe"
    script.write_text("#!/bin/sh\necho kind=latency served=0.25 objective=0.5\n")
    script.chmod(0o755)
    container = start("--probe", f"exec:{script}")
    said(agent, container, kind="latency", served=0.25)


def test_what_run_says_of_a_probe_counts_for_its_records(agent, start, tmp_path):
    file = tmp_path / "probe"
    file.write_text("served=0.25\n")
    container = start("--probe", f"file:{file} kind=latency objective=0.5 ttl=60s")
    said(agent, container, kind="latency", served=0.25, objective=0.5)


def test_a_probe_that_hangs_is_visible_and_holds_no_other_up(new_agent, start, tmp_path):
    script = tmp_path / "hangs"
    script.write_text("#!/bin/sh\nsleep 1000\n")
    script.chmod(0o755)
    config = f'[[probes]]\ncontainer = "elbowroom-test-live-*"\nexec = ["{script}"]\ntimeout = "300ms"\n'
    agent = new_agent(config).start()
    container = start("--memory", "256MiB")
    eventually(lambda: "killed after 300ms" in (probe(agent, container)["problem"] or ""))
    assert probe(agent, container)["freshness"] == "absent"
    before = agent.status()["ticks"]
    eventually(lambda: agent.status()["ticks"] > before + 20)


def test_pythons_module_finds_the_agent(agent, start):
    container = start("--memory", "256MiB")
    package = Path(__file__).resolve().parents[2] / "python"
    words = f"import sys; sys.path.insert(0, {str(package)!r}); import elbowroom, time\n"
    # It stays for a moment after it spoke: its datagram has no address for an answer, so it cannot wait for one.
    words += "assert elbowroom.probe(served=9, offered=10); time.sleep(0.5)"

    def heard():
        # On a busy machine that moment may have been too short.
        container.run(PYTHON, "-c", words)
        return arrived(agent, container, served=9.0, offered=10.0)

    eventually(heard, within=20)
