"""Seconds of a container, and how they are kept. A column of integers is written as the differences between neighbours, compressed: a
campaign at the paper's size has a hundred thousand of them."""

import base64
import struct
import zlib
from collections import namedtuple

# When it ended (milliseconds after the first step began), transactions done, what was asked for and not done, memory of its cgroup at its end.
Sample = namedtuple("Sample", "ms tps queue mib")


def pack(numbers):
    changes = [b - a for a, b in zip((0, *numbers), numbers)]
    return base64.b64encode(zlib.compress(struct.pack(f"<{len(changes)}i", *changes), 9)).decode()


def unpack(text):
    data, numbers, last = zlib.decompress(base64.b64decode(text)), [], 0
    for (change,) in struct.iter_unpack("<i", data):
        numbers.append(last := last + change)
    return numbers


def write(samples):
    """Columns. The unmet demand follows from the demand and is left out. Times are rounded to a tenth of a second."""
    columns = zip(*((round(sample.ms, -2), sample.tps, sample.mib) for sample in samples))
    return dict(zip(("ms", "tps", "mib"), map(pack, columns)))


def read(recorded, asked):
    """Samples as they were written now, or by campaigns before: one list of five numbers for each. `asked(ms)` is what was asked then."""
    if isinstance(recorded, dict):
        columns = zip(*(unpack(recorded[name]) for name in ("ms", "tps", "mib")))
        return [Sample(ms, tps, max(asked(ms) - tps, 0), mib) for ms, tps, mib in columns]
    return [Sample(ms, tps, queue, mib) for ms, tps, queue, mib, _ in recorded]


def second(sample):
    """The second of the story that it is of: it was taken at its end. None of one before the story."""
    at = int((sample.ms + 500) / 1000 - 1)
    return at if at >= 0 else None
