"""How many sandboxes that serve a request now and then fit into a machine at an equal 95th percentile of latency: stock, swap, senpai, Elbowroom?

A cgroup with a hard limit stands for the machine. Sandboxes of Python, Node or a JVM start in it, some at a time; each holds what it once
loaded, and for a request goes over a part of it. Requests come at random. Sandboxes are added until the 95th percentile of the last look is
above the limit, one dies, or one does not start; what fits is the number before. `--set memory.saving=true` adds to the agent's configuration."""

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

LASTS = "15 min an arm and language, in 2 GiB"
# Programs of a sandbox, by language; JDK 16 is the first with unix sockets.
LANGUAGES = {"python": "python3", "node": "node", "jvm": "java"}
ARMS = {"stock": "stock", "stock-swap": "stock with swap", "senpai": "senpai", "elbowroom": "Elbowroom"}
# Senpai's own least is 100 MiB, more than a sandbox has.
SENPAI_LEAST = 4 << 20
# A request that has no answer by then is lost; a sandbox that has not started by then does not fit. In seconds.
LOST, STARTS = 30, 120


def options(parser):
    parser.add_argument("--languages", default="python", help="python, node, jvm, with commas between")
    parser.add_argument("--arms", default="stock,stock-swap,elbowroom", help="of stock, stock-swap, senpai (cgroup v2), elbowroom")
    parser.add_argument("--senpai", type=Path, metavar="FILE", help="senpai.py of github.com/facebookincubator/senpai, which is not ours")
    parser.add_argument("--machine", type=int, default=2048, metavar="MIB", help="memory of what stands for the machine")
    parser.add_argument("--swap", type=int, metavar="MIB", help="size of the swap file; twice the memory without it")
    parser.add_argument("--holds", type=int, default=48, metavar="MIB", help="what a sandbox once loaded")
    parser.add_argument("--hot", type=int, default=4, metavar="MIB", help="the part that a request goes over")
    parser.add_argument("--gap", type=float, default=20, metavar="S", help="mean time between two requests to a sandbox")
    parser.add_argument("--limit", type=float, default=100, metavar="MS", help="95th percentile that is not to be exceeded")
    parser.add_argument("--step", type=int, default=4, help="how many sandboxes are added at a time")
    parser.add_argument("--look", type=float, default=60, metavar="S", help="how long each number of sandboxes is looked at")
    parser.add_argument("--runs", type=int, default=1)


def record(lab, options):
    settings = {key: getattr(options, key) for key in ("machine", "holds", "hot", "gap", "limit", "step", "look")}
    raw = lab.resumed or {**settings, "runs": []}
    arms, languages = options.arms.split(","), options.languages.split(",")
    refuse(arms, languages, options)
    done = [(run["run"], run["language"], run["arm"]) for run in raw["runs"]]
    for run in range(options.runs):
        for language in languages:
            for arm in arms[run % len(arms):] + arms[: run % len(arms)]:
                if (run, language, arm) not in done:
                    print(f"run {run + 1} of {options.runs}, {language}: {ARMS[arm]}", file=sys.stderr)
                    raw["runs"].append({"run": run, "language": language, "arm": arm, **fill(lab, options, arm, language)})
                    lab.keep(raw)
    return raw


def refuse(arms, languages, options):
    from kit import cgroup
    from lab.job import Refused

    for word, known in [(arm, ARMS) for arm in arms] + [(language, LANGUAGES) for language in languages]:
        if word not in known:
            raise Refused(f"there is no {word}: {', '.join(known)}")
    if missing := [LANGUAGES[language] for language in languages if not shutil.which(LANGUAGES[language])]:
        raise Refused(f"there is no {', '.join(missing)} here")
    if "senpai" in arms and not (cgroup.V2 and options.senpai and options.senpai.exists()):
        raise Refused("senpai writes memory.high: run it on cgroup v2, in a guest of tools/vm, and say --senpai FILE")


# ---- one arm ----

def fill(lab, options, arm, language):
    """Adds sandboxes until no more fit."""
    with contextlib.ExitStack() as ends:
        if arm != "stock":
            ends.enter_context(swap(lab, options.swap or 2 * options.machine))
        machine = lab.group(f"machine-{arm}-{language}", memory_mib=options.machine)
        agent = None
        if arm == "elbowroom":
            settings = ('memory.mode = "enforce"', 'disk.mode = "off"')
            agent = ends.enter_context(lab.agent(f"{arm}-{language}", *settings, prefix=f"machine-{arm}-{language}/"))
        sandboxes, steps, ended = [], [], None
        while ended is None:
            for _ in range(options.step):
                sandbox = Sandbox(lab, options, arm, language, len(sandboxes), machine, agent)
                ends.callback(sandbox.close)
                sandboxes.append(sandbox)
                if not sandbox.start():
                    ended = "one did not start"
                    break
            if ended is None:
                steps.append(look(lab, options, sandboxes, machine))
                ended = why(steps[-1], options, sandboxes)
        fits = max((step["sandboxes"] for step in steps if step["fits"]), default=0)
    return {"steps": steps, "fits": fits, "ended": ended}


def why(step, options, sandboxes):
    """Why no more fit, or None."""
    reasons = [("one died", any(not sandbox.alive() for sandbox in sandboxes)), ("a request had no answer", step["lost"]),
               ("the 95th percentile is above the limit", step["p95"] is None or step["p95"] > options.limit)]  # fmt: skip
    ended = next((reason for reason, holds in reasons if holds), None)
    step["fits"] = ended is None
    return ended


class Sandbox:
    def __init__(self, lab, options, arm, language, number, machine, agent):
        from kit import cgroup
        from lab import ROOT, programs

        self.container = lab.container(f"machine-{arm}-{language}/{number}", agent=agent)
        self.socket = lab.scope.directory / f"{arm}-{language}-{number}.sock"
        words = {"python": ["/usr/bin/python3", ROOT / "lab/programs/sandbox.py"], "node": ["/usr/bin/env", "node", ROOT / "lab/programs/sandbox.js"]}
        if language == "jvm":
            source = ROOT / "lab/java/Sandbox.java"
            programs.build("Sandbox.class", [source], ["javac", "--release", "17", "-d", programs.BUILT, source])
        words["jvm"] = ["/usr/bin/env", "java", "-cp", programs.BUILT, "Sandbox"]
        self.words = [*words[language], self.socket, options.holds, options.hot]
        group, self.senpai = self.container.group, None
        if arm == "stock":
            group.set_memory(*(("memory.swap.max", 0) if cgroup.V2 else ("memory.swappiness", 0)))
        if arm == "senpai":
            words = [sys.executable, options.senpai, group.directory(""), "--min-size", SENPAI_LEAST]
            self.senpai = lab.start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def start(self):
        """Whether it serves in time."""
        import select

        self.program = self.container.start(*self.words, stderr=subprocess.DEVNULL)
        return bool(select.select([self.program.stdout], [], [], STARTS)[0] and self.program.stdout.readline())

    def alive(self):
        return self.program.poll() is None

    def close(self):
        if self.senpai:
            self.senpai.kill()
            self.senpai.wait()
        self.container.close()
        self.program.wait()


def look(lab, options, sandboxes, machine):
    """Latencies over one look, without its first third, in which what the new ones moved settles."""
    begin = time.monotonic()
    taken = asyncio.run(ask_all(lab.random, [sandbox.socket for sandbox in sandboxes], options.gap, begin + options.look))
    return {"sandboxes": len(sandboxes), **study_look(taken, begin + options.look / 3), "mib": machine.memory_bytes() >> 20}


def study_look(taken, first):
    """Percentiles in milliseconds of (when it was asked, seconds or None)."""
    from lab.stats import quantile

    times = sorted(1000 * seconds for at, seconds in taken if at >= first and seconds is not None)
    at = lambda per_mille: round(quantile(times, per_mille), 2) if times else None
    return {"asked": len(times), "p50": at(500), "p95": at(950), "lost": sum(seconds is None for _, seconds in taken)}


async def ask_all(random, sockets, gap, end):
    taken = []

    async def one(socket, seed):
        dice = type(random)(seed)
        await asyncio.sleep(dice.uniform(0, gap))
        while (now := time.monotonic()) < end:
            taken.append((now, await ask(socket)))
            await asyncio.sleep(dice.expovariate(1 / gap) if gap else 0)

    waits = [asyncio.create_task(one(socket, random.random())) for socket in sockets]
    await asyncio.sleep(max(end - time.monotonic(), 0))
    for task in waits:
        task.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    return taken


async def ask(socket):
    """Seconds until a sandbox has answered; None where it does not."""
    begin = time.monotonic()
    try:
        async with asyncio.timeout(LOST):
            reader, writer = await asyncio.open_unix_connection(socket)
            writer.write(json.dumps({"id": 1}).encode())
            answer = json.loads(await reader.read())
            writer.close()
            return time.monotonic() - begin if answer["id"] == 1 else None
    except (OSError, TimeoutError, ValueError):
        return None


@contextlib.contextmanager
def swap(lab, mib, folder=None):
    """A swap file, for as long as a `with` lasts; in the run's directory, or another whose file system can have one."""
    file = (folder or lab.scope.directory) / "swap"
    for words in (["fallocate", "-l", f"{mib}M", file], ["chmod", "600", file], ["mkswap", file]):
        subprocess.run(list(map(str, words)), check=True, capture_output=True)
    thing = lab.scope.add("swap", file)
    subprocess.run(["swapon", str(file)], check=True, capture_output=True)
    try:
        yield
    finally:
        lab.scope.take_down(thing)
        file.unlink()


# ---- what it amounts to ----

def study(raw):
    """By language and arm: what fits over runs, and the curves."""
    from lab.stats import spread

    rows, curves = [], {}
    for language in dict.fromkeys(run["language"] for run in raw["runs"]):
        of = lambda arm: spread(run["fits"] for run in raw["runs"] if (run["language"], run["arm"]) == (language, arm))
        base = of("stock-swap")
        for arm in (arm for arm in ARMS if of(arm)):
            runs = [run for run in raw["runs"] if (run["language"], run["arm"]) == (language, arm)]
            last = [step["p95"] for run in runs for step in run["steps"] if step["sandboxes"] == run["fits"]]
            ratio = of(arm).median / base.median if base and base.median else None
            ended = "; ".join(sorted({run["ended"] for run in runs}))
            rows.append({"language": language, "arm": arm, "fits": of(arm), "ratio": ratio, "p95": spread(last), "ended": ended})
            curve = [(step["sandboxes"], step["p95"]) for step in runs[0]["steps"] if step["p95"]]
            curves.setdefault(language, {})[ARMS[arm]] = curve
    return {"rows": rows, "curves": curves, **{key: raw[key] for key in raw if key != "runs"}}


def draw(studied, out):
    from lab.tables import of_spread, plain

    out.say(f"Sandboxes in {studied['machine']} MiB. Each holds {studied['holds']} MiB and goes over {studied['hot']} MiB of it for a request, of "
            f"which one comes every {plain(studied['gap'])} s in the mean, at random. {studied['step']} are added at a time and looked at for "
            f"{plain(studied['look'])} s. What fits is the last number whose 95th percentile is at most {plain(studied['limit'])} ms and at which "
            "none dies, is lost or does not start.")  # fmt: skip
    head = ["sandbox", "arm", "fit", "of stock with swap", "95th percentile then, ms", "why no more"]
    ratio = lambda row: f"{row['ratio']:.2f}" if row["ratio"] else "-"
    out.table(head, [[row["language"], ARMS[row["arm"]], of_spread(row["fits"]), ratio(row), of_spread(row["p95"]), row["ended"]]
                     for row in studied["rows"]])  # fmt: skip
    for language, curves in studied["curves"].items():
        figure(studied, out, language, curves)


def figure(studied, out, language, curves):
    from lab import plot

    points = [point for curve in curves.values() for point in curve]
    if not points:
        return
    with out.figure(f"{language}", f"95th percentile of latency by number of sandboxes, {language}") as axes:
        plot.axis(axes, "x", "sandboxes", limits=(0, 1.05 * max(n for n, _ in points)))
        plot.axis(axes, "y", "milliseconds", log=True, limits=plot.decades([ms for _, ms in points] + [studied["limit"]]))
        axes.axhline(studied["limit"], color=plot.INK, linewidth=1.5, linestyle="--")
        plot.lines(axes, curves, marks=True)
