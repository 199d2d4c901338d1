"""The paper's figures, of ours: bars side by side for each program, GC threads and heaps over time."""

from lab.jobs.runtimes.rounds import unique
from lab.stats import spread

GREY, PINK, ORANGE, RED, SKY, BLUE, GREEN = "#6e6e6e", "#cc79a7", "#e69f00", "#d55e00", "#56b4e9", "#0072b2", "#009e73"
COLORS = {
    "vanilla": GREY, "static": GREY, "limits": PINK, "static limit": PINK, "dynamic": ORANGE, "stock": RED, "mask": RED,
    "shares": "#8c510a", "hand": GREEN, "adaptive": BLUE,
    "elastic": BLUE, "shipped": SKY, "passive": PINK, "spins": "#222222", "adaptive, 1000 spins": "#965a32", "adaptive, own spins": RED,
}  # fmt: skip
MORE = [GREEN, "#66c2a5", SKY, "#b2df8a", PINK]
HEAP = {"used": GREEN, "committed": BLUE, "VirtualMax": RED}


def palette(names):
    """A colour for each arm; settings by hand have those that are left."""
    others = iter(MORE)
    return {name: COLORS.get(name) or next(others) for name in names}


def grouped(axes, groups, colors, found, label, log=False, line=None):
    """Bars side by side in each group, of {(group, name): Spread}, with an error bar from the smallest to the largest. `log`: a logarithmic
    axis, where some are far from others. `line`: a dotted line at a value that others are compared with."""
    from lab import plot

    width, values = 0.84 / len(colors), [value for value in found.values() if value]
    for i, (name, color) in enumerate(colors.items()):
        for k, group in enumerate(groups):
            if value := found.get((group, name)):
                at = k + (i - (len(colors) - 1) / 2) * width
                errors = [[value.median - value.min], [value.max - value.median]]
                axes.bar(at, value.median, width * 0.92, yerr=errors, color=color, error_kw={"lw": 1, "ecolor": plot.INK})
    ends = [end for value in values for end in (value.min, value.max)] or [1]
    plot.axis(axes, "y", label, log=log, limits=plot.decades(ends) if log else (0, max(ends) * 1.06 or 1))
    axes.grid(False, axis="x")
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.set_xticks(range(len(groups)), groups)
    if line:
        axes.axhline(line, color=plot.INK, linewidth=1, linestyle=":")


def legend(figure, height, colors, caption):
    """A caption, and below it whose colour is which, in rows of six; the pixels that it takes from the top."""
    from matplotlib.patches import Patch

    from lab import plot

    top = 44 if caption else 24
    figure.text(16 / plot.WIDTH, 1 - 42 / height, caption, size=14, va="center")
    handles = [Patch(color=color, label=name) for name, color in colors.items()]
    place = {"loc": "upper left", "bbox_to_anchor": (8 / plot.WIDTH, 1 - (top + 8) / height), "borderpad": 0.3, "borderaxespad": 0}
    figure.legend(handles=handles, ncols=6, handlelength=0.9, handleheight=0.8, columnspacing=1.2, **place)


def head(colors, caption):
    return (76 if caption else 56) + 20 * -(-len(colors) // 6)


def pages(groups, colors, panels, title, name, out, caption=""):
    """A panel of bars above another for each (label, {(group, name): Spread}, line, log)."""
    top = head(colors, caption)
    height = 46 + top + 200 * len(panels)
    with out.figure(name, title, height, rows=len(panels), head=top, right=30) as axes:
        panels_of = axes if len(panels) > 1 else [axes]
        for one, (label, found, line, log) in zip(panels_of, panels):
            grouped(one, groups, colors, found, label, log, line)
        legend(panels_of[0].figure, height, colors, caption)


def collect(raw, rows, title, out):
    """Figures 2, 6, 8 and 9 by the first arm, as the paper has 2 and 6; figure 7 in seconds. In figure 8 threads too."""
    one = len({row["containers"] for row in rows}) == 1
    group = lambda row: row["program"] if one else f"{row['program']}, {row['containers']}"
    names = unique(row["arm"] for row in rows)
    absolute = raw["figure"] == 7 or any(len(row["part"]) == 0 for row in rows)
    panels = []
    for what, short in (("time", "time"), ("gc", "GC time")):
        value, label = (what, f"{short} (s)") if absolute else ({"time": "part", "gc": "gc_part"}[what], f"{short} / {rows[0]['base']}")
        found = {(group(row), row["arm"]): spread(row[value]) for row in rows}
        panels.append((label, found, None if absolute else 1, False))
    pages(unique(map(group, rows)), palette(names), panels, title, f"figure-{raw['figure']}", out)
    if raw["figure"] == 8:
        threads(raw, [row for row in rows if row["program"] == rows[0]["program"]], out)


def threads(raw, rows, out):
    from lab import plot

    end = max(row["each"][0] for row in rows if row["each"])
    most = max((n for row in rows for _, n in row["steps"]), default=1)
    title = f"GC threads of {rows[0]['program']} while neighbours end"
    colors, caption = palette(row["arm"] for row in rows), "First run. Grey: a neighbour ends."
    with out.figure("figure-8-threads", title, 440, head=head(colors, caption), right=30) as axes:
        plot.axis(axes, "x", "time (s)", limits=(0, end))
        plot.axis(axes, "y", "GC threads", plot.whole, limits=(0, most * 1.15))
        for at in raw["ends_s"]:
            axes.axvline(at, color="#bbbbbb", linewidth=1)
        for row in rows:
            points = [(max(at, 0), n) for at, n in row["steps"]]
            points += [(row["each"][0] if row["each"] else end, points[-1][1])] if points else []
            plot.steps(axes, points, color=colors[row["arm"]])
        legend(axes.figure, 440, colors, caption)


def openmp(raw, rows, title, scene, words, out):
    kernels, names = unique(row["kernel"].upper() for row in rows), unique(row["arm"] for row in rows)
    found = {(row["kernel"].upper(), row["arm"]): spread(row["time"]) for row in rows}
    panels = [("time (s)", found, raw["patience_s"] if any(row["cut"] for row in rows) else None, True)]
    pages(kernels, palette(names), panels, f"{title}: {scene}", f"figure-10-{scene}", out, words)


def beyond(rows, title, out):
    """Figure 11: time and collecting of those that finished."""
    programs, names = unique(row["program"] for row in rows), unique(row["arm"] for row in rows)
    panels = [
        (label, {(row["program"], row["arm"]): spread(row[value]) for row in rows}, None, True)
        for label, value in (("time (s)", "time"), ("GC time (s)", "gc"))
    ]
    pages(programs, palette(names), panels, title, "figure-11", out, "Those that finished.")


def heaps(raw, title, unit, out):
    """Figure 12: a panel for each crowd and arm, with all heaps of its first run."""
    from lab import plot

    name, size = unit
    firsts = {}
    for arm in raw["arms"]:
        firsts.setdefault((arm["containers"], arm["arm"]), arm)
    height = 110 + 180 * len(firsts)
    samples = [sample for arm in firsts.values() for machine in arm["machines"] for sample in machine["heap"]]
    most = max((max(sample[1:]) for sample in samples), default=size) / size
    with out.figure("figure-12", title, height, rows=len(firsts), head=84, right=30, gap=40) as axes:
        for one, ((count, arm), first) in zip(axes if len(firsts) > 1 else [axes], firsts.items()):
            for machine in first["machines"]:
                for column, (line, color) in enumerate(HEAP.items(), 1):
                    # A line has no points where nothing bounds the heap.
                    points = [(sample[0] / 1e3, sample[column] / size if sample[column] else float("nan")) for sample in machine["heap"]]
                    if points:
                        one.plot(*zip(*points), color=color, linewidth=1.2, linestyle="--" if line == "VirtualMax" else "-", alpha=0.85)
            finished = sum(machine["outcome"] == "finished" for machine in first["machines"])
            plot.title(one, f"{count}, {arm}: {finished} of {len(first['machines'])} finished")
            plot.axis(one, "y", name, limits=(0, most * 1.08))
            if raw["mib"]["machine"] and count > 1:
                one.axhline(raw["mib"]["machine"] / size / count, color=plot.INK, linewidth=1, linestyle=":")
        last = axes[-1] if len(firsts) > 1 else axes
        plot.axis(last, "x", "time (s)", limits=(0, max((sample[0] for sample in samples), default=1000) / 1e3))
        plot.legend(last, HEAP, "Heaps of the first run. Dotted: an equal part of the machine.", height)
