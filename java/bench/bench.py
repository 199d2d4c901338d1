"""What the agent for HotSpot costs while nothing changes: the same work with it and without, in turns, beside one agent of the host.

Rows of tab-separated values. All are in percent. `time` and `cpu` are those of the run with the agent by those of the run without in the
same round. `agent` is the CPU time of the agent's own thread by the wall time of the run. ELBOWROOM is the binary to run containers with.
"""

import ctypes
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = int(os.environ.get("ROUNDS", "31"))
OBJECTS = "30000000"
COLLECTORS = {"parallel": "-XX:+UseParallelGC", "g1": "-XX:+UseG1GC"}
JAVA = "java"
PR_SET_PDEATHSIG = 1


def main(classes, binary):
    with tempfile.TemporaryDirectory() as run_dir:
        agent = subprocess.Popen([binary, "--run-dir", run_dir, "agent"], stderr=subprocess.DEVNULL, preexec_fn=end_with_parent)
        try:
            wait_for(Path(run_dir, "agent.sock"), agent)
            report(lambda collector, extra: work(binary, run_dir, classes, collector, extra))
        finally:
            agent.terminate()
            agent.wait()


def end_with_parent():
    """Has this process told to end when the one that started it does, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def wait_for(socket, agent):
    deadline = time.monotonic() + 30
    while not socket.exists():
        if agent.poll() is not None or time.monotonic() > deadline:
            sys.exit("the agent did not start: run it by hand to see why")
        time.sleep(0.05)


def work(binary, run_dir, classes, collector, extra):
    words = [binary, "--run-dir", run_dir, "run", *extra, "--", JAVA, COLLECTORS[collector]]
    words += ["-Xms128m", "-Xmx128m", "-cp", classes, "Work", OBJECTS]
    said = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    wall, cpu, thread, collections, _ = map(int, said.split())
    return wall, cpu, thread, collections


def report(work):
    version = subprocess.run([JAVA, "-version"], capture_output=True, text=True).stderr.split("\n")[0]
    load = os.getloadavg()[0]
    print(f"# {os.uname().machine}, Linux {os.uname().release}, {os.cpu_count()} CPUs, load {load:.1f}; {version}; {ROUNDS} rounds")
    print("# collector\twhat\tmedian_percent\tleast\tmost")
    for collector in COLLECTORS:
        rows = {"time": [], "cpu": [], "agent": []}
        collections = []
        for turn in range(ROUNDS):
            variants = [[], ["--java"]]
            took = [work(collector, extra) for extra in (variants if turn % 2 else variants[::-1])]
            without, with_it = took if turn % 2 else took[::-1]
            rows["time"].append(with_it[0] / without[0])
            rows["cpu"].append(with_it[1] / without[1])
            rows["agent"].append(with_it[2] / with_it[0])
            collections.append(with_it[3])
        for what, values in rows.items():
            percent = [100 * value for value in (statistics.median(values), min(values), max(values))]
            print(collector, what, *(f"{value:.3f}" for value in percent), sep="\t")
        print(f"# {collector}: {statistics.median(collections):.0f} collections a run")


if __name__ == "__main__":
    main(*sys.argv[1:])
