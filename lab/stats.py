"""Numbers about numbers: what a figure over rounds is, quantiles of samples, ratios within a round."""

import math
from collections import namedtuple

# A figure over rounds: the middle one, and how far it ranged.
Spread = namedtuple("Spread", "median min max")
# A figure over runs as a mean, and the standard deviation of a sample; 0 for a single one.
Mean = namedtuple("Mean", "mean deviation")


def median(values):
    """The middle one, or the mean of the middle two; None of none."""
    ordered = sorted(values)
    if not ordered:
        return None
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def spread(values):
    """Median, smallest and largest; None of none."""
    values = list(values)
    return Spread(median(values), min(values), max(values)) if values else None


def mean(values):
    values = list(values)
    if not values:
        return None
    middle = sum(values) / len(values)
    squares = sum((value - middle) ** 2 for value in values)
    return Mean(middle, math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0)


def quantile(ordered, per_mille):
    """The least sample that `per_mille` of a thousand do not exceed: no interpolation. None of none."""
    return ordered[max(math.ceil(len(ordered) * per_mille / 1000), 1) - 1] if ordered else None


def quantiles(samples):
    """Of latencies in nanoseconds."""
    ordered = sorted(samples)
    at = {"p50": 500, "p90": 900, "p99": 990, "p999": 999, "max": 1000}
    return {"samples": len(ordered), **{name: quantile(ordered, part) or 0 for name, part in at.items()}}


def ratios(above, below):
    """The ratio of two figures in each round that has both, where the neighbours' noise is the same: both are {round: value}."""
    return [above[key] / below[key] for key in above if below.get(key, 0) > 0]


def bucket(ns):
    """The upper bound of a latency's bucket, which is 1/8 of a power of two wide."""
    width = 1 << (ns.bit_length() - 4) if ns >= 16 else 0
    return (ns // width + 1) * width if width else ns


def histogram(samples):
    """How many samples are in each bucket, by its upper bound as text, which JSON keeps; ascending."""
    counts = {}
    for upper in sorted(map(bucket, samples)):
        counts[str(upper)] = counts.get(str(upper), 0) + 1
    return counts


def cumulative(counts):
    """Points (share of samples, nanoseconds) of a histogram."""
    points, seen, total = [], 0, sum(counts.values())
    for upper, count in sorted((int(upper), count) for upper, count in counts.items()):
        seen += count
        points.append((seen / total, upper))
    return points


def slope(points):
    """Slope of the least-squares line, and its standard error; None below three points."""
    n = len(points)
    if n < 3:
        return None
    mx, my = (sum(point[i] for point in points) / n for i in (0, 1))
    sxx = sum((x - mx) ** 2 for x, _ in points)
    if sxx == 0:
        return None
    b = sum((x - mx) * (y - my) for x, y in points) / sxx
    residual = sum((y - my - b * (x - mx)) ** 2 for x, y in points)
    return b, math.sqrt(residual / (n - 2) / sxx)
