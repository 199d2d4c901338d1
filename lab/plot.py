"""Figures: white paper, dark text, a palette that colour-blind readers can tell apart (Okabe and Ito), names written at the lines rather
than in a legend, units on every axis. `out.figure` makes the axes; these functions draw on them. Sizes are in pixels of the SVG."""

import functools
import io
import math
import re

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator  # noqa: E402

from lab.tables import nanoseconds, plain, whole  # noqa: E402, F401

PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]
# The colour that a variant has in every figure.
VARIANTS = {"native": "#6e6e6e", "lxcfs": PALETTE[1], "lxcfs-7": PALETTE[4], "elbowroom": PALETTE[0]}
INK, RULE = "#222222", "#dedede"
WIDTH = 920
HEAD, FOOT = 44, 56
matplotlib.rcParams.update({
    "figure.dpi": 72, "svg.fonttype": "none", "svg.hashsalt": "elbowroom",  # text stays text, and the same figure the same file
    "font.family": "DejaVu Sans", "font.size": 13, "text.color": INK, "axes.labelcolor": INK, "axes.labelsize": 14,
    "xtick.color": INK, "ytick.color": INK, "axes.edgecolor": INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": RULE, "grid.linewidth": 1, "lines.linewidth": 2,
    "lines.solid_joinstyle": "round", "legend.frameon": False, "legend.fontsize": 14, "axes.prop_cycle": matplotlib.cycler(color=PALETTE),
})  # fmt: skip


def new(title, height, rows=1, head=HEAD, left=84, right=150, foot=FOOT, gap=26):
    """A figure, `height` pixels in all, of `rows` plots above one another over the same x axis; its axes, an array of several.
    Margins are in pixels; `right` is where the names of lines are."""
    figure, axes = plt.subplots(rows, 1, sharex=True, figsize=(WIDTH / 72, height / 72))
    one = (height - head - foot - gap * (rows - 1)) / rows
    figure.subplots_adjust(left / WIDTH, foot / height, 1 - right / WIDTH, 1 - head / height, hspace=gap / one)
    figure.text(16 / WIDTH, 1 - 20 / height, title, size=18, va="center")
    return figure, axes


def save(figure, path):
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    # Width and height are in pixels, and a hundredth of one is enough. A path is one line.
    svg = re.sub(r"(\.\d\d)\d+", r"\1", text.getvalue().replace('pt"', '"', 2))
    path.write_text(re.sub(r" \n(?=[A-Zz\"])", "", svg))


def axis(axes, name, label, write=plain, log=False, limits=None, ticks=8):
    """Labels an axis ("x" or "y"): quantity and unit, how a value is written at a tick, whether it is logarithmic, its ends, and about how
    many ticks it has."""
    one = getattr(axes, f"{name}axis")
    one.set_label_text(label)
    if log:
        getattr(axes, f"set_{name}scale")("log")
        one.set_major_locator(LogLocator(base=10, numticks=12))
        one.set_minor_locator(NullLocator())
    else:
        one.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10]))
    one.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
    if limits:
        getattr(axes, f"set_{name}lim")(*limits)


def decades(values):
    """The decades around values, as the ends of a logarithmic axis."""
    values = [value for value in values if value > 0]
    if not values:
        return 1, 10
    return 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)) + 1e-9)


def lines(axes, named, marks=False, colors=PALETTE):
    """Draws {name: points}, with the names at the right ends, apart from each other; call it after the axes have their limits."""
    ends = []
    for (name, points), color in zip(named.items(), cycle(colors)):
        if points:
            axes.plot(*zip(*points), color=color, marker="o" if marks else None, markersize=6)
            ends.append((axes.transAxes.inverted().transform(axes.transData.transform(points[-1]))[1], name, color))
    step, free = 18 / (axes.get_window_extent().height or 1), math.inf
    for y, name, color in sorted(ends, reverse=True):
        free = min(y, free - step)
        axes.plot([1.005, 1.02], [free, free], color=color, linewidth=3, transform=axes.transAxes, clip_on=False)
        axes.text(1.03, free, name, size=14, va="center", transform=axes.transAxes)


def cycle(colors):
    while True:
        yield from colors


def panels(count):
    """Options of `out.figure` for `count` plots above one another, with a caption by `legend`."""
    one = min(max(620 // max(count, 1), 128), 210)
    return {"rows": count, "height": 62 + one * count + 48, "head": 84, "right": 24, "gap": 24, "foot": 48}


def title(axes, text):
    """Of one of several plots: written above it."""
    axes.set_title(text, size=14, loc="left", pad=5)


def thin(points):
    """Less those that say what the points before and after them say."""
    return [here for before, here, after in zip([None, *points], points, [*points[1:], None])
            if not before or not after or not before[1] == here[1] == after[1]]  # fmt: skip


def steps(axes, points, **style):
    """A value that holds until the next point."""
    axes.step(*zip(*thin(points)), where="post", **style) if points else None


def area(axes, points, **style):
    """Fills the area under a line."""
    points = thin(points) or [(0, 0)]
    axes.fill([points[0][0], *(x for x, _ in points), points[-1][0]], [0, *(y for _, y in points), 0], alpha=0.45, linewidth=0, **style)


def legend(axes, named, caption="", height=None):
    """Says above the plots what is drawn how, and whose colour is which: {name: colour}. `height` is the figure's, where it is at hand."""
    figure = axes.figure
    y = 1 - 42 / (height or figure.get_figheight() * 72)
    figure.text(16 / WIDTH, y, caption, size=14, va="center")
    handles = [Line2D([], [], color=color, linewidth=3, label=name) for name, color in named.items()]
    if handles:
        at = {"loc": "center right", "bbox_to_anchor": (1 - 10 / WIDTH, y)}
        figure.legend(handles=handles, ncols=len(handles), borderpad=0, handlelength=1.3, **at)


def spreads_height(rows, series):
    """How high the figure of `spreads` is, and the margins it needs: options of `out.figure`."""
    most = max((len(dots) for _, dots in rows), default=0)
    head = 54 + 20 * math.ceil(max(len(series), 1) / 4)
    return {"height": head + (14 * most if most > 3 else 46) * len(rows) + FOOT, "head": head, "left": 240, "right": 30}


def spreads(axes, rows, series):
    """A row per thing, (name, {series: Spread}); a dot for each median, with a bar from the smallest to the largest. `series`:
    {name: colour}."""
    most = max((len(dots) for _, dots in rows), default=1)
    apart = 0.9 / most if most > 3 else 0.26
    for i, (_, dots) in enumerate(rows):
        for k, (name, spread) in enumerate(dots.items()):
            y = i + 0.5 + (k - (len(dots) - 1) / 2) * apart
            axes.plot([spread.min, spread.max], [y, y], color=series[name])
            axes.plot([spread.median], [y], "o", color=series[name], markersize=10)
    rows_of(axes, [name for name, _ in rows])
    handles = [Line2D([], [], color=color, marker="o", linestyle="", markersize=10, label=name) for name, color in series.items()]
    key(axes, handles, 240, handletextpad=0.2)


def rows_of(axes, names):
    """A row for each name, from the top."""
    axes.set_ylim(len(names), 0)
    axes.set_yticks([i + 0.5 for i in range(len(names))], names, size=14)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")


def bars_height(bars, parts):
    """The same as `spreads_height` for `bars`."""
    head = 50 + 20 * math.ceil(len(parts) / 4)
    left = max(8 * max((len(name) for name, _ in bars), default=0) + 10, 140)
    return {"height": head + 38 * len(bars) + FOOT, "head": head, "left": left, "right": 40}


def bars(axes, bars, parts, label):
    """A horizontal bar per thing, (name, values), made of parts that add up; `parts` names them."""
    for i, (_, values) in enumerate(bars):
        at = 0
        for k, value in enumerate(values):
            axes.barh(i + 0.5, value, 0.7, at, color=part_color(k))
            at += value
    rows_of(axes, [name for name, _ in bars])
    axis(axes, "x", label, limits=(0, max((sum(values) for _, values in bars), default=1) * 1.05 or 1))
    handles = [plt.Rectangle((0, 0), 1, 1, color=part_color(k), label=name) for k, name in enumerate(parts)]
    key(axes, handles, 10, handlelength=0.9)


def key(axes, handles, left, **style):
    """A legend below the title, `left` pixels from the left."""
    at = {"loc": "upper left", "bbox_to_anchor": (left / WIDTH, 1 - 36 / (axes.figure.get_figheight() * 72))}
    axes.figure.legend(handles=handles, ncols=4, borderpad=0, **at, **style)


@functools.cache
def part_color(k):
    """The palette, and paler again from its end on."""
    return (*matplotlib.colors.to_rgb(PALETTE[k % len(PALETTE)]), 1 if k < len(PALETTE) else 0.45)
