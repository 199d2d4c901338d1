"""Is any read lost, torn or another container's while the agent's processes are killed, a thousand times?

`kill -9` of the agent's processes, in turn, under a hundred readers that judge every text they get. Each reader sits in a container with a
memory limit that no other has, so a text of another container is told from its own. It reads by read, pread, mmap, sendfile and splice,
and drops the page cache before some reads, so that they must reach the view server. The next process is killed when the previous one has
been replaced, so the figure also says how long that takes. lxcfs is only read: nothing replaces it."""

import contextlib
import json
import os
import signal
import subprocess
import time

from kit.process import Process
from kit.wait import eventually
from lab.backends import LXCFS
from lab.container import finish
from lab.scope import reap
from lab.stats import quantiles
from lab.tables import nanoseconds

LASTS = "3 min"
# The agent's processes, and how tables call them.
ROLES = {"view-server": "ViewServer", "policy": "Policy", "supervisor": "Supervisor", "api-server": "ApiServer"}
WITHIN = 20  # seconds, for a process to be replaced


def options(parser):
    parser.add_argument("--kills", type=int, default=1000, help="how many kills")
    parser.add_argument("--containers", type=int, default=100, help="containers, one reader each")
    parser.add_argument("--interval-us", type=int, default=20_000, help="time between two passes of a reader over its five methods")
    parser.add_argument("--drop-every", type=int, default=8, help="every how many passes the page cache is dropped first; 0 for never")
    parser.add_argument("--pause-ms", type=int, default=50, help="time between two kills")
    parser.add_argument("--variant", choices=[*LXCFS, "elbowroom"], default="elbowroom", help="whose files are read; lxcfs is not killed")
    parser.add_argument("--seconds", type=int, default=20, help="how long lxcfs is read")
    parser.add_argument("--roles", nargs="+", choices=ROLES, default=list(ROLES), help="whose processes are killed, in turn")


def record(lab, options):
    backend, readers = lab.backend(options.variant), []
    for mib in range(64, 64 + options.containers):
        container = backend.container(f"kills-{mib}", memory_mib=mib)
        words = ["verify", mib * 1024, options.interval_us, options.drop_every, "/proc/meminfo"]
        readers.append(container.reader(*words, stdin=subprocess.PIPE))
    time.sleep(1)
    began = time.monotonic()
    kills = {}
    if backend.agent:
        kills = kill_all(backend.agent, options)
    else:
        time.sleep(options.seconds)
    seconds = time.monotonic() - began
    time.sleep(1)
    tallies = [json.loads(finish(reader, "a reader")) for reader in readers]
    return {
        **{key: getattr(options, key) for key in ("variant", "containers", "interval_us", "drop_every")},
        "seconds": seconds, "kills": kills, "tallies": [add(of_method) for of_method in zip(*tallies)],
    }  # fmt: skip


def kill_all(agent, options):
    """For each role how often it was killed, how long until the agent answered with another process in it, and how often it did not."""
    replaced = {role: [] for role in options.roles}
    for number in range(options.kills):
        if number % 100 == 0:
            print(f"{number} of {options.kills} kills", flush=True)
        role = options.roles[number % len(options.roles)]
        victim = Process(eventually(lambda: agent.role(role), WITHIN))
        began = time.monotonic_ns()
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGKILL)
        try:
            eventually(lambda: another(agent, role, victim), WITHIN, every=0.01)
            replaced[role].append(time.monotonic_ns() - began)
        except AssertionError as error:
            replaced[role].append(None)
            print(f"warning: after kill {number} of the {role}: {error}", flush=True)
            assert agent.status(), f"the agent did not survive:\n{agent.tail()}"
        time.sleep(options.pause_ms / 1000)
    killed = {}
    for role, all_ns in replaced.items():
        within = [ns for ns in all_ns if ns is not None]
        killed[role] = {"count": len(all_ns), "replaced_ns": quantiles(within), "unanswered": len(all_ns) - len(within)}
    return killed


def another(agent, role, victim):
    """Whether the agent answers, all its processes live, and the role is another process's."""
    reap(victim.pid)
    status = agent.status()
    living = status and all(pid > 0 and Process(pid).alive() for pid in status["pids"].values())
    return living and agent.role(role) not in (None, victim.pid)


def add(tallies):
    """The counts of all readers for one method; means are weighted by reads."""
    reads = sum(tally["reads"] for tally in tallies)
    return {
        "method": tallies[0]["method"], "reads": reads,
        **{key: sum(tally[key] for tally in tallies) for key in ("failed", "torn", "foreign")},
        "mean_ns": sum(tally["mean_ns"] * tally["reads"] for tally in tallies) / max(reads, 1),
        "max_ns": max(tally["max_ns"] for tally in tallies),
        "last_errno": next((tally["last_errno"] for tally in tallies[::-1] if tally["failed"]), 0),
    }  # fmt: skip


def study(raw):
    sums = {key: sum(tally[key] for tally in raw["tallies"]) for key in ("reads", "failed", "torn", "foreign")}
    return {**raw, **sums, "times": sum(killed["count"] for killed in raw["kills"].values())}


def draw(studied, out):
    lxcfs = studied.get("variant") in LXCFS
    what = f"`{studied['variant']}`, not killed," if lxcfs else f"{studied['times']} times `kill -9`"
    out.say(
        f"{what} in {studied['seconds']:.0f} s under {studied['containers']} readers: "
        f"{studied['reads']} reads, {studied['failed']} failed, {studied['torn']} torn, {studied['foreign']} of another container."
    )
    every = studied["drop_every"]
    server = "lxcfs" if lxcfs else "the view server"
    drops = f" and drops the page cache before every {every}th pass, so that those reads reach {server}" if every else ""
    interval = f"{studied['interval_us'] / 1e3:g}"
    out.say(f"Each reader passes over five ways of reading its container's /proc/meminfo every {interval} ms{drops}.")
    errno = lambda tally: f" (errno {tally['last_errno']})" if tally["failed"] and tally["last_errno"] else ""
    out.table(
        ["method", "reads", "failed", "torn", "foreign", "mean", "longest"],
        [[tally["method"], tally["reads"], f"{tally['failed']}{errno(tally)}", tally["torn"], tally["foreign"],
          nanoseconds(tally["mean_ns"]), nanoseconds(tally["max_ns"])] for tally in studied["tallies"]],
    )  # fmt: skip
    if lxcfs:
        return
    out.table(
        ["killed", "times", "replaced within, p50", "p99", "max", f"not within {WITHIN} s"],
        [[ROLES[role], killed["count"], *(nanoseconds(killed["replaced_ns"][key]) for key in ("p50", "p99", "max")), killed["unanswered"]]
         for role, killed in studied["kills"].items()],
    )  # fmt: skip
