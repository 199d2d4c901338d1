"""What does the HTTP API cost with 500 containers, and do readers of views feel those that look at it or attack it?

Agents take turns, each for the same containers: without the API, with it and nothing that looks, with a dashboard, a scraper and questions
about history, and under attack. Meanwhile a view is read a thousand times a second, from the host, as it would be in its container."""

import contextlib
import multiprocessing
import subprocess
import time
from pathlib import Path

from kit import api
from kit.wait import eventually
from lab import programs
from lab.container import finish
from lab.polling import counted
from lab.stats import quantiles, spread
from lab.tables import of_spread
from lab.usage import usage

LASTS = "4 min"
MIB = 64  # of each container: what a reader finds as MemTotal
WAYS = {
    "off": "no API",
    "idle": "API, nobody looks",
    "watched": "two streams, a scrape and a history a second",
    "attacked": "attacked",
}


def options(parser):
    parser.add_argument("--containers", type=int, default=500, help="how many containers")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way is measured")
    parser.add_argument("--seconds", type=int, default=10, help="for how long")


def record(lab, options):
    for number in range(options.containers):
        lab.container(f"api-{number}", memory_mib=MIB)
    raw = lab.resumed or {"containers": options.containers, "seconds": options.seconds, "windows": []}
    ways = list(WAYS)
    order = [(number, ways[(number + 1 + turn) % len(ways)]) for number in range(options.rounds) for turn in range(len(ways))]
    for number, way in order[len(raw["windows"]):]:
        print(f"round {number + 1} of {options.rounds}: {WAYS[way]}", flush=True)
        with lab.agent(f"agent-{number}-{way}", f"api.enabled = {str(way != 'off').lower()}", prefix="api-") as agent:
            raw["windows"].append({"round": number, "way": way, **window(agent, way, options)})
        lab.keep(raw)
    return raw


def window(agent, way, options):
    """One agent for a while. CPU time is in CPUs."""

    def known():
        rows = agent.json("list")
        assert len(rows) >= options.containers, f"{len(rows)} containers are known"
        return rows[0]["view_dir"]

    view = Path(eventually(known, within=20), "proc/meminfo")
    roles = {"policy": agent.role("policy"), "view_server": agent.role("view-server")}
    if way != "off":
        roles["api"] = eventually(lambda: agent.role("api-server"))
    # Views are measured once, and history has its first block: what comes after that is the same every second.
    time.sleep(3)
    connections = multiprocessing.Value("Q")
    where = (agent.run_dir / "api.sock", connections)
    visitors = [multiprocessing.Process(target=visit, args=where, daemon=True) for visit in VISITORS[way]]
    for visitor in visitors:
        visitor.start()
    cpu = lambda: {name: usage(pid)["cpu_s"] for name, pid in roles.items()}
    before, began = cpu(), time.monotonic()
    words = ["poll", time.monotonic_ns(), 1, options.seconds * 1000, MIB * 1024, view]
    reader = subprocess.Popen(list(map(str, [programs.reader(), *words])), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    latencies, failed, wrong = counted(finish(reader, "the reader of a view"))
    after, elapsed = cpu(), time.monotonic() - began
    rss = usage(roles["api"])["rss_kib"] if "api" in roles else None
    for visitor in visitors:
        visitor.kill()
        visitor.join()
    body = lambda path: len(api.ask(agent.run_dir / "api.sock", path)[2]) if way == "idle" else None
    cpus = {f"{name}_cpu": (after[name] - before[name]) / elapsed for name in roles}
    return {
        "api_cpu": None, **cpus, "api_rss_kib": rss, "snapshot_bytes": body("/api/v1/snapshot"), "metrics_bytes": body("/metrics"),
        "connections": connections.value, "reads_ns": quantiles(latencies), "failed": failed + wrong,
    }  # fmt: skip


# ---- what goes on at the socket, each in a process of its own until it is killed ----


def connect(socket, connections, path=None):
    """A connection, on which `path` is asked for; None where it is refused."""
    with contextlib.suppress(OSError):
        peer = api.raw(socket, timeout=0.2)
        with connections.get_lock():
            connections.value += 1
        if path:
            peer.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return peer


def watch(socket, connections):
    """Reads the stream."""
    peer = connect(socket, connections, "/api/v1/stream")
    while True:
        with contextlib.suppress(TimeoutError):
            if not peer.recv(1 << 16):
                return


def scrape(socket, connections):
    """Asks for metrics and for the node's history, once a second."""
    while True:
        for path in ("/metrics", "/api/v1/history"):
            connections.value += 1
            with contextlib.suppress(OSError):
                api.ask(socket, path)
        time.sleep(1)


def garble(socket, connections):
    """Sends what is no request."""
    while True:
        with contextlib.suppress(OSError, AttributeError):
            connect(socket, connections).sendall(b"\x16" * 20_000)


def dawdle(socket, connections):
    """Begins requests and does not end them."""
    held = []
    while True:
        with contextlib.suppress(OSError, AttributeError):
            peer = connect(socket, connections)
            peer.sendall(b"GET /api/v1/snap")
            held = held[-399:] + [peer]


def ignore(socket, connections):
    """Asks for much and reads none of it."""
    held = []
    while True:
        for path in ("/api/v1/stream", "/api/v1/snapshot", "/metrics"):
            held = held[-399:] + [connect(socket, connections, path)]


def crowd(socket, connections):
    """Comes and goes."""
    while True:
        connect(socket, connections)


def hammer(socket, connections):
    """Asks for everything, reads it, and asks again."""
    while True:
        peer = connect(socket, connections, "/api/v1/snapshot")
        with contextlib.suppress(OSError, AttributeError):
            while peer.recv(1 << 20):
                peer.sendall(b"GET /api/v1/snapshot HTTP/1.1\r\nHost: localhost\r\n\r\n")


VISITORS = {"off": [], "idle": [], "watched": [watch, watch, scrape], "attacked": [garble, dawdle, ignore, crowd, hammer]}


def study(raw):
    """The spread of each figure over rounds, by way."""
    percent = lambda key: lambda w: None if w[key] is None else w[key] * 100
    figures = {
        "policy, %": percent("policy_cpu"),
        "API, %": percent("api_cpu"),
        "view server, %": percent("view_server_cpu"),
        "API resident, MiB": lambda w: w["api_rss_kib"] and w["api_rss_kib"] / 1024,
        "connections": None,
        "read p50, us": lambda w: w["reads_ns"]["p50"] / 1e3,
        "read p99, us": lambda w: w["reads_ns"]["p99"] / 1e3,
        "reads failed": None,
    }
    sums = {"connections": "connections", "reads failed": "failed"}
    rows = {}
    for way in WAYS:
        windows = [w for w in raw["windows"] if w["way"] == way]
        values = {name: [value for value in map(of, windows) if value is not None] for name, of in figures.items() if of}
        rows[way] = [sum(w[sums[name]] for w in windows) if name in sums else spread(values[name]) for name in figures]
    sizes = next(([w[key] for key in ("snapshot_bytes", "metrics_bytes")] for w in raw["windows"] if w["snapshot_bytes"]), None)
    rounds = max(w["round"] for w in raw["windows"]) + 1
    of_raw = {key: raw[key] for key in ("containers", "seconds")}
    return {**of_raw, "rounds": rounds, "figures": list(figures), "rows": rows, "sizes": sizes}


def draw(studied, out):
    out.say(
        f"{studied['containers']} containers with one sleeping process each, agents in turn for {studied['seconds']} s, "
        f"{studied['rounds']} rounds; medians (smallest to largest). CPU is in percent of one. "
        '"Attacked": five clients that connect as fast as they can over '
        "the unix socket, send garbage, or half a request, or ask for the stream and for everything and read nothing, or ask for "
        "everything over and over. A view's `meminfo` is opened, read and closed a thousand times a second meanwhile."
    )
    cell = lambda value: str(value) if isinstance(value, int) else of_spread(value)
    out.table(["", *studied["figures"]], [[WAYS[way], *map(cell, row)] for way, row in studied["rows"].items()])
    if studied["sizes"]:
        snapshot, metrics = (size // 1024 for size in studied["sizes"])
        out.say(f"A snapshot is {snapshot} KiB of JSON, the metrics are {metrics} KiB of text.")
