"""What `/metrics` shows, read back."""

import re


def scraped(text):
    """The samples of an OpenMetrics page by name and labels, and the kind of each name."""
    kinds, values = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            family, kind = line.split()[2:]
            name = family + {"counter": "_total", "info": "_info"}.get(kind, "")
            kinds[name] = "counter" if kind == "counter" else "gauge"
        elif not line.startswith("#"):
            name, labels, value = re.fullmatch(r"([a-z_]+)(?:\{(.*)\})? (\S+)", line).groups()
            pairs = re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', labels or "")
            values[name, tuple(sorted(pairs))] = float(value)
    return kinds, values
