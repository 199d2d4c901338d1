"""A figure as the paper's: which container got how much over time, one panel per policy."""

from lab.jobs.disk import arms
from lab.jobs.disk.study import rates, truth
from lab.stats import spread
from lab.tables import plain

TRUTH = "#969696"
MOST = 4  # containers that a panel shows: of a crowd the first and the last
CAPTION = "Median and range; first run's limit (dashed), lifeline and disk as known (dotted)"


def draw_throughput(out, name, title, told, recorded):
    """Throughput as the median over runs with a band from smallest to largest; limits and lifelines as in the first run."""
    from lab import plot

    by_arm = {arm: [one for one in recorded if one["policy"] == arm] for arm in arms.NAMES[1:]}
    by_arm = {arm: runs for arm, runs in by_arm.items() if runs}
    height = 130 + 170 * len(by_arm)
    with out.figure(name, title, height, rows=len(by_arm), head=72, right=30) as panels:
        panels = panels if len(by_arm) > 1 else [panels]
        for axes, (arm, runs) in zip(panels, by_arm.items()):
            panel(plot, axes, arm, runs, told)
        shown = shown_of(told)
        colors = {told["actors"][number]["name"]: plot.PALETTE[n] for n, number in enumerate(shown)}
        plot.axis(panels[-1], "x", "time (s)", plain, limits=(0, told["seconds"]))
        plot.legend(panels[0], {**colors, "the disk": TRUTH}, CAPTION)


def shown_of(told):
    count = len(told["actors"])
    return range(count) if count <= MOST else [0, count - 1]


def panel(plot, axes, arm, runs, told):
    first, top = runs[0], told["capacity"] * 1.15 / 1e6
    axes.plot(*zip(*[(second, truth(first["speeds"], second * 1000, second * 1000 + 1000) / 1e6) for second in range(told["seconds"])]),
              color=TRUTH, linewidth=1)  # fmt: skip
    known = [(ms / 1e3, kb and kb / 1e3) for ms, _, kb in first["told"]["disk"]]
    pieces(axes, known, top, color=TRUTH, linestyle=":", linewidth=1.5)
    for n, number in enumerate(shown_of(told)):
        color, points = plot.PALETTE[n], over_runs(runs, number)
        seconds = [at for at, _ in points]
        axes.fill_between(seconds, [one.min for _, one in points], [one.max for _, one in points], color=color, alpha=0.25, linewidth=0)
        axes.plot(seconds, [one.median for _, one in points], color=color)
        series = first["series"][number]
        caps = [(ms / 1e3, kb and kb / 1e3) for ms, kb in zip(series.get("ms", ()), series.get("cap_kb", ()))]
        pieces(axes, caps, top, color=color, linestyle="--", linewidth=1.5)
        pieces(axes, lifelines(first, number), top, color=color, linestyle=":", linewidth=1.5)
    plot.axis(axes, "y", "MB/s", plain, limits=(0, top))
    plot.title(axes, arm)


def lifelines(arm, number):
    """(second, MB/s): parts of what the agent took for the disk's capacity then."""
    points = []
    for ms, part in arm["told"]["lifelines"][number]:
        capacity = [kb for at, _, kb in arm["told"]["disk"] if at <= ms][-1:]
        points.append((ms / 1e3, part * capacity[0] / 1e6 if part is not None and capacity and capacity[0] else None))
    return points


def over_runs(runs, number):
    """(seconds, MB/s) of a container over runs, at the middle of each interval."""
    times = lambda arm: next(series["ms"] for series in arm["series"] if "ms" in series)
    of = [rates(arm["series"][number], times(arm)) for arm in runs]
    return [(second + 0.5, spread(one[second] / 1e6 for one in of)) for second in range(min(map(len, of)))]


def stretches(points, top):
    """Points without those that are None, in stretches without a gap; nothing beyond the top."""
    found, open_ = [], False
    for x, y in points:
        if y is not None:
            if not open_:
                found.append([])
            found[-1].append((x, min(y, top)))
        open_ = y is not None
    return found


def pieces(axes, points, top, **style):
    for stretch in stretches(points, top):
        axes.step(*zip(*stretch), where="post", **style)
