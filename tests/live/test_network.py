"""The traffic of a container's network, read when the API is asked; and many questions about single containers at once."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

from kit import api
from kit.wait import PATIENCE, eventually

MIB = 1 << 20
# Both ends of a cable are in the container, so that what goes out of one comes in at the other.
CABLE = """
ip link set lo up
ip link add east type veth peer name west
ip addr add 198.51.100.1/24 dev east
ip neigh add 198.51.100.2 lladdr 02:00:00:00:00:01 dev east
ip link set east up
ip link set west up
"""
SENDER = """
import socket, sys
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(int(sys.argv[2])):
    out.sendto(bytes(1024), (sys.argv[1], 9))
"""


def answer(agent, container):
    """Status and answer of the API."""
    row = agent.attached(container)
    status, _, body = api.ask(agent.run_dir / "api.sock", f"/api/v1/containers/{quote(row['id'], safe='')}/network")
    return status, json.loads(body)


def inside(container, *words):
    """A command in the container's network, with this machine's programs."""
    subprocess.run(["nsenter", "--target", str(container.pid), "--net", *words], check=True, timeout=60 * PATIENCE)


def test_the_network_of_its_own_is_counted_without_the_loopback(agent, start):
    container = start(prefix=["unshare", "--net"])
    inside(container, "sh", "-ec", CABLE)
    _, before = eventually(lambda: (known := answer(agent, container))[0] == 200 and known, within=20)
    inside(container, "python3", "-c", SENDER, "198.51.100.2", "2048")
    inside(container, "python3", "-c", SENDER, "127.0.0.1", "8192")
    status, after = answer(agent, container)
    assert status == 200 and after["time_unix_ms"] > before["time_unix_ms"]
    for way in ("received_bytes", "sent_bytes"):
        carried = after["counters"][way] - before["counters"][way]
        # 2 MiB, with their headers, and what the kernel says of itself on a new cable; 8 MiB went by the loopback.
        assert 2 * MIB < carried < 3 * MIB, (way, before, after)


def test_a_container_on_the_hosts_network_has_no_counters(agent, start):
    container = start()
    _, known = eventually(lambda: (known := answer(agent, container))[0] == 200 and known, within=20)
    assert known["counters"] is None


def test_a_container_that_ended_has_no_network(agent, start):
    container = start()
    eventually(lambda: answer(agent, container)[0] == 200, within=20)
    name = container.name
    container.close()
    ask = lambda: api.ask(agent.run_dir / "api.sock", f"/api/v1/containers/{name}/network")
    eventually(lambda: ask()[0] == 404, within=20)
    assert name in json.loads(ask()[2])["error"]


def test_questions_that_come_at_once_wait_for_their_turn(agent, start):
    """As those of two open pages do: each asks for an explanation, the findings and the network."""
    container = start()
    row = agent.attached(container)
    about = f"/api/v1/containers/{quote(row['id'], safe='')}/explain"
    ask = lambda path: api.ask(agent.run_dir / "api.sock", path)[0]
    eventually(lambda: ask(about) == 200, within=20)
    with ThreadPoolExecutor(12) as at_once:
        for _ in range(10):
            answers = list(at_once.map(ask, [about, "/api/v1/findings"] * 6))
            assert set(answers) == {200}, answers
