"""Markdown tables, and numbers as they are written in them and at axes."""

import math


def table(head, rows):
    """First column to the left, others to the right."""
    line = lambda cells: f"| {' | '.join(map(str, cells))} |"
    rule = line([":--"] + ["--:"] * (len(head) - 1))
    return "\n".join([line(head), rule, *map(line, rows)])


def short(value):
    """Three significant digits, without an exponent: 0.0123, 1.23, 123, 12346."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else {"nan": "NaN"}.get(str(value), str(value))
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{min(max(digits, 0), 9)}f}"


def plain(value):
    """A number without an exponent, a whole one without a fraction."""
    return f"{value:.0f}" if math.isfinite(value) and value == round(value) else short(value)


def whole(value):
    """A count; nothing between counts, as ticks of an axis may lie."""
    return f"{value:.0f}" if value == round(value) else ""


def of_spread(spread):
    """`12.3 (11.8 to 14)`; "-" of None."""
    return f"{short(spread.median)} ({short(spread.min)} to {short(spread.max)})" if spread else "-"


def of_mean(mean):
    """`12.3 ± 0.4`; "-" of None."""
    return f"{short(mean.mean)} ± {short(mean.deviation)}" if mean else "-"


def nanoseconds(value):
    """A time in its own unit."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if value >= size:
            return f"{plain(value / size)} {unit}"
    return f"{plain(value)} ns"
