"""Figure 12: heaps that may grow beyond what there is, at the paper's size."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import gclog
from collect import classes
from stage import Broken, load, said, table, text

TITLE = "Figure 12: five heaps that together are more than the machine"
GIB = 1 << 30
# Parts of the machine: what lives in five containers (20 of 128 GB each), each one's hard and soft limit (30 and 15 GB), its largest heap.
LIVE, HARD, SOFT, MOST = 0.78, 30 / 128, 15 / 128, 28 / 128
ARMS = ["elastic", "vanilla", "hand", "stock"]
COLORS = [("used", "#009E73"), ("committed", "#0072B2"), ("VirtualMax", "#D55E00")]


def sizes(memory_kib, size):
    """In MiB; `size` is a part of the machine's memory."""
    machine = int((memory_kib >> 10) * size)
    part = lambda of: int(machine * of)
    return {"machine": machine, "live": part(LIVE / 5), "hard": part(HARD), "soft": part(SOFT), "most": part(MOST), "start": part(4 / 128)}


def options(arm, mib):
    """HotSpot's, without the agent."""
    first = [f"-Xms{mib['start']}m"]
    if arm == "hand":
        # What fits five times: 23 of 128 GB, of which an eighth is young.
        return [*first, f"-Xmx{int(mib['machine'] * 23 / 128)}m", "-XX:NewRatio=8"]
    if arm == "stock":
        return []
    return [*([] if arm == "elastic" else ["-XX:-UseContainerSupport"]), *first, f"-Xmx{mib['most']}m"]


def explain(mib):
    gib = lambda name: f"{mib[name] / 1024:.1f} GiB"
    return (
        f"Five containers, each with a hard limit of {gib('hard')} and a soft limit (`memory.low`) of {gib('soft')}, on a machine that counts as "
        f"{gib('machine')} and has no swap. "
        f"The paper's micro-benchmark makes 1 MiB and lets go of half of it until {gib('live')} live in each, "
        f"{5 * mib['live'] / mib['machine'] * 100:.0f} % of the machine together, as "
        f"fast as it can, and goes on for two seconds. HotSpot 17, ParallelGC, a thread of the program each. *vanilla*: `-Xmx` of {gib('most')}, "
        f"no look at limits; *stock*: the JDK as it "
        f"ships, whose heap is at most a quarter of the hard limit; *hand*: `-Xmx` of {mib['machine'] * 23 / 128 / 1024:.1f} GiB and "
        f"`-XX:NewRatio=8`; *elastic*: vanilla's `-Xmx`, a view and the "
        "agent for HotSpot (`-javaagent:elbowroom-agent.jar=jmx=0`, which is what `elbowroom run --java` gives, with the bean from the start)."
    )


def tell(stage, kit, arm, mib, count, patience):
    programs = []
    view = arm == "elastic"
    for i in range(count):
        log = stage.dir / f"gc-{i}.log"
        log.unlink(missing_ok=True)
        agent = [f"-javaagent:{kit / 'bin/elbowroom-agent.jar'}=jmx=0"] if view else []
        command = [
            kit / "jdk/bin/java",
            "-XX:+UseParallelGC",
            "-XX:-UsePerfData",
            *options(arm, mib),
            *agent,
            gclog.OPTION.format(log),
            "-cp",
            classes(kit),
        ]
        # No more than it can, which is what a million a second is; held for two seconds.
        command += ["Runtimes", "0", "grow", str(mib["live"]), "1000000", "2000"]
        flags = ["--memory", f"{mib['hard']}MiB", "--memory-reservation", f"{mib['soft']}MiB"]
        programs.append(stage.start(["sh", "-c", 'echo ready; read -r _; exec "$0" "$@"', *command], flags, view, oom="1000"))
    stage.ready(programs, 20)
    free = []
    began = time.monotonic()
    stage.go(programs, 0)
    watcher = Watch(free)
    try:
        stage.wait(programs, patience, look=True)
    finally:
        watcher.end()
    return {
        "arm": arm,
        "containers": count,
        "seconds": round(time.monotonic() - began, 1),
        "free_mib": free,
        "load": load(),
        "machines": [report(stage, i, p) for i, p in enumerate(programs)],
    }


class Watch:
    """MemFree and MemAvailable, twice a second."""

    def __init__(self, samples):
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look, args=(samples,), daemon=True)
        self.thread.start()

    def _look(self, samples):
        began = time.monotonic()
        while not self.over.wait(0.5):
            found = dict(re.findall(r"^(MemFree|MemAvailable):\s+(\d+)", text("/proc/meminfo"), re.MULTILINE))
            samples.append([round(time.monotonic() - began, 1), *(int(found[name]) >> 10 for name in ("MemFree", "MemAvailable"))])

    def end(self):
        self.over.set()
        self.thread.join()


def report(stage, index, program):
    done, complaint = program.line("done"), program.complaint()
    pauses = gclog.pauses(text(stage.dir / f"gc-{index}.log"))
    samples = [[int(word) for word in line.split()[1:]] for line in program.said.splitlines() if re.fullmatch(r"at \d+ \d+ \d+ \d+", line)]
    if done:
        outcome = "finished"
    elif program.cut_off:
        outcome = "not finished"
    elif "OutOfMemoryError" in complaint:
        outcome = "OutOfMemoryError"
    elif program.status in (137, -9):
        outcome = "killed for memory"
    else:
        outcome = f"failed ({program.status})"
    # Two samples a second are enough for a figure.
    step = max(1, len(samples) // 60)
    return {
        "outcome": outcome,
        "total_ms": int(done) if done else None,
        "gc_ms": round(sum(pause[1] for pause in pauses), 1),
        "pauses": len(pauses),
        "peak_mib": program.peak_mib,
        "kills": program.kills,
        "cpu_s": program.cpu_s,
        "heap": samples[::step] + samples[-1:],
        **({} if done else {"complaint": complaint[-300:]}),
    }


def touch(mib, processes, patience):
    """Touches memory once, by so many processes: what a virtual machine never had is given by its host now and not under the first arm. GiB/s."""
    share = mib // processes
    script = "import mmap,sys\nm=mmap.mmap(-1,%d<<20)\nfor i in range(0,%d<<20,4096): m[i]=1\n" % (share, share)
    began = time.monotonic()
    first = lambda: Path("/proc/self/oom_score_adj").write_text("1000")
    running = [subprocess.Popen([sys.executable, "-c", script], preexec_fn=first) for _ in range(processes)]
    for process in running:
        try:
            process.wait(max(0.1, began + patience - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return round(mib / 1024 / (time.monotonic() - began), 2)


def record(stage, kit, memory_kib, clock, keep, size=1.0, arms=ARMS, count=5, pretouch=True):
    mib = sizes(memory_kib, size)
    raw = {"figure": 12, "mib": mib, "arms": [], "broken": [], "touch_gib_s": None}
    if pretouch:
        raw["touch_gib_s"] = touch(int(mib["machine"] * 0.9), os.cpu_count(), max(5, clock.left() * 0.3))
        keep(raw)
    for number, arm in enumerate(arms):
        # The last may have what is left.
        patience = clock.left() - 5 if number == len(arms) - 1 else min(clock.left() - 5, max(20, clock.left() * 0.6))
        if patience < 10:
            raw["broken"].append(f"{arm}: no time left")
            break
        try:
            raw["arms"].append({"patience_s": round(patience), **tell(stage, kit, arm, mib, count, patience)})
        except Broken as error:
            raw["broken"].append(f"{arm}: {error}")
        keep(raw)
    return raw


def summary(raw):
    mib = raw["mib"]
    out = [f"## {TITLE}", explain(mib)]
    rows = []
    for arm in raw["arms"]:
        machines = arm["machines"]
        ends = {}
        for machine in machines:
            ends[machine["outcome"]] = ends.get(machine["outcome"], 0) + 1
        finished = [machine for machine in machines if machine["outcome"] == "finished"]
        rows.append(
            [
                arm["arm"],
                ", ".join(f"{n} {end}" for end, n in ends.items()),
                said([machine["total_ms"] / 1e3 for machine in finished]),
                said([machine["gc_ms"] / 1e3 for machine in finished]),
                said([max((sample[2] for sample in machine["heap"]), default=0) / 1024 for machine in machines]),
                said([machine["peak_mib"] / 1024 for machine in machines]),
                f"{min((sample[1] for sample in arm['free_mib']), default=0) / 1024:.1f}",
                arm["patience_s"],
            ]
        )
    out.append(
        table(
            [
                "arm",
                "programs",
                "time, s",
                "collecting, s",
                "most committed, GiB",
                "most of a container, GiB",
                "least free of the machine, GiB",
                "waited for, s",
            ],
            rows,
        )
    )
    out.append(
        "One run of each arm. Times are over those that finished: median (smallest to largest) over containers. Each program asks to be killed "
        "first when memory is short."
    )
    if raw["touch_gib_s"]:
        out.append(
            f"Before the first arm 90 % of memory was touched once, at {raw['touch_gib_s']} GiB/s, so that the first arm does not pay for what "
            f"the virtual machine had never used."
        )
    if raw["broken"]:
        out.append("Not measured: " + "; ".join(raw["broken"]) + ".")
    return out


def draw(raw, plot, path):
    arms = raw["arms"]
    figure, axes = plot.subplots(len(arms), 1, figsize=(9.5, 2.3 * len(arms) + 0.6), sharex=True, squeeze=False)
    for axis, arm in zip(axes[:, 0], arms):
        for machine in arm["machines"]:
            for column, (name, color) in enumerate(COLORS, 1):
                points = [(sample[0] / 1e3, sample[column] / 1024) for sample in machine["heap"] if sample[column]]
                axis.plot([p[0] for p in points], [p[1] for p in points], color=color, lw=1, ls="--" if name == "VirtualMax" else "-", alpha=0.8)
        finished = sum(machine["outcome"] == "finished" for machine in arm["machines"])
        axis.set_title(f"{arm['arm']}: {finished} of {len(arm['machines'])} finished", fontsize=10)
        axis.axhline(raw["mib"]["machine"] / 1024 / 5, color="0.6", lw=0.8, ls=":")
        axis.set_ylabel("GiB")
        axis.set_ylim(bottom=0)
    for name, color in COLORS:
        axes[0, 0].plot([], [], color=color, label=name, ls="--" if name == "VirtualMax" else "-")
    axes[0, 0].legend(ncols=3, fontsize=8, frameon=False, loc="lower right")
    axes[-1, 0].set_xlabel("time (s)")
    figure.suptitle(f"{TITLE} (dotted: a fifth of the machine)", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plot.close(figure)
