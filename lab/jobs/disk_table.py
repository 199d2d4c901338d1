"""Which policy serves which containers best on which disk: results of `disk` side by side, each judged by the goals.

Touches nothing. Results of the loads that the seed keeps for the final run are left out, unless --unseen asks for them alone."""

import json
from pathlib import Path

from lab.job import Refused
from lab.jobs.disk import arms
from lab.jobs.disk.study import study as study_disk
from lab.stats import median

LASTS = "1 s"
KEPT = ["isolation", "isolation_p05", "isolation_first", "conservation_contested", "p99_ratio", "answer_ms", "relief_ms"]
# What is asked of a policy: of the worst victim's mean and 5th percentile of seconds, p99 as a multiple of alone, and of work conservation.
LEAST = {"isolation": 0.97, "isolation_p05": 0.90, "conservation_contested": 0.95}
MOST = {"p99_ratio": 1.5}
POINT = 0.01


def options(parser):
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="results of `disk`")
    parser.add_argument("--unseen", action="store_true", help="the loads that were kept for the final run, and no others")


def record(lab, options):
    rows, left_out = [], 0
    for directory in options.directories:
        raw, info = (json.loads((directory / name).read_text()) for name in ("raw.json", "sysinfo.json"))
        if info["job"] != "disk":
            raise Refused(f"{directory} holds a result of {info['job']}, not of disk")
        if bool(raw.get("unseen")) != options.unseen:
            left_out += 1
            continue
        figures = study_disk(raw)["figures"]
        shared = {name: {key: [one[key] for one in runs] for key in KEPT} for name, runs in figures.items() if name != "alone"}
        rows.append({"load": raw["workload"], "scale": raw["scale"], "cgroups": info["cgroups"].split()[0], "kernel": info["kernel"],
                     "absent": raw.get("absent") or {}, "arms": shared})  # fmt: skip
    return {"rows": rows, "unseen": options.unseen, "left_out": left_out}


def flat(values):
    """Of each run one value or, by the burst, several; None where there is none."""
    found = []
    for value in values:
        found += value if isinstance(value, list) else [value]
    return [value for value in found if value is not None]


def study(raw):
    """By row the median of each figure, and which goals an arm misses."""
    rows = []
    for row in sorted(raw["rows"], key=lambda row: (row["scale"], row["cgroups"], row["load"])):
        medians = {arm: {key: median(flat(values)) for key, values in figures.items()} for arm, figures in row["arms"].items()}
        misses = {arm: missed(arm, medians) for arm in medians}
        rows.append({**row, "medians": {arm: medians[arm] for arm in arms.NAMES if arm in medians}, "misses": misses})
    waits = {}
    for row in raw["rows"]:
        for arm, figures in row["arms"].items():
            waits.setdefault(arm, []).extend(value for run in figures["answer_ms"] for value in run)
    return {"rows": rows, "waits": waits, "unseen": raw["unseen"], "left_out": raw["left_out"]}


def missed(arm, medians):
    """Goals that an arm misses on a load, in words. None of them asks anything of doing nothing."""
    ours, found = medians[arm], []
    for key in (*LEAST, *MOST):
        value = ours[key]
        if value is not None and (value < LEAST.get(key, 0) or value > MOST.get(key, value)):
            found.append(f"{LABELS[key]} {written(key, value)}")
    for other in ("none", "aridac"):
        if other in medians and other != arm and medians[other]["isolation"] - ours["isolation"] > POINT:
            found.append(f"{other} serves the victim better")
    return found


LABELS = {"isolation": "mean", "isolation_p05": "p5", "isolation_first": "first 2 s", "p99_ratio": "p99 ratio",
          "conservation_contested": "conservation", "answer_ms": "answer, ms", "relief_ms": "relief, ms"}  # fmt: skip


def written(key, value):
    if value is None:
        return "-"
    return f"{value:.1f}" if key == "p99_ratio" else f"{value:.0f}" if key.endswith("_ms") else f"{value * 100:.1f} %"


def draw(studied, out):
    kept = " These loads were kept for the final run." if studied["unseen"] else ""
    out.say(
        "The worst victim's part of what it wanted: mean and 5th percentile of seconds, and the mean of a burst's first two seconds; its "
        "p99 latency as a multiple of what it has alone; work conservation while contested; when the first limit answers a burst, and when "
        f"the first victim has what it wants. Medians over runs.{kept}"
    )
    head = ["load", "disk", "cgroups", "policy", *(LABELS[key] for key in KEPT)]
    rows = [
        [row["load"], row["scale"], row["cgroups"], arm, *(written(key, ours[key]) for key in KEPT)]
        for row in studied["rows"] for arm, ours in row["medians"].items()
    ]  # fmt: skip
    out.table(head, rows)
    out.say("## Goals that a policy misses")
    for arm in arms.ASKED[1:]:
        tried = [row for row in studied["rows"] if arm in row["medians"]]
        bad = [f"{row['load']} at {row['scale']} ({', '.join(row['misses'][arm])})" for row in tried if row["misses"][arm]]
        if tried:
            out.say(f"**{arm}**: {len(tried) - len(bad)} of {len(tried)} loads meet all." + (f" Not: {'; '.join(bad)}." if bad else ""))
    out.table(["policy", "bursts", "a limit answers within, median", "95th percentile", "never"], wait_rows(studied["waits"]))
    absent = {f"{arm} ({row['scale']}, {row['cgroups']}): {reason}" for row in studied["rows"] for arm, reason in row["absent"].items()}
    if absent:
        out.say("Not run: " + "; ".join(sorted(absent)) + ".")
    if studied["left_out"]:
        why = "of other loads" if studied["unseen"] else "kept for the final run"
        out.say(f"{studied['left_out']} results are not here, for they are {why}.")


def wait_rows(waits):
    rows = []
    for arm in arms.ASKED:
        came = sorted(value for value in waits.get(arm, ()) if value is not None)
        if came:
            late = came[min(len(came) * 95 // 100, len(came) - 1)]
            rows.append([arm, len(waits[arm]), f"{median(came):.0f} ms", f"{late} ms", len(waits[arm]) - len(came)])
    return rows
