"""What HotSpot's unified log says of pauses, with the decorations `uptimemillis` and `tags`."""

import re

OPTION = "-Xlog:gc*=info,gc+task=trace:file={}:uptimemillis,tags"
LINE = re.compile(r"\[\s*(\d+)ms\]\[([^\]]*)\]\s*GC\((\d+)\) (.*)")
# G1 says `Using 2 workers of 13`, the workers of every collector `using 2 out of 13 workers`.
WORKERS = re.compile(r"[Uu]sing (\d+) (?:workers of|out of) (\d+)")


def pauses(text, since_ms=0):
    """[(end, ms, threads or None, threads there are or None)] of all pauses that ended after a moment of the machine."""
    found, threads = [], {}
    for line in text.splitlines():
        match = LINE.match(line)
        if not match:
            continue
        at, tags, number, rest = int(match[1]), match[2].strip(), match[3], match[4]
        workers = WORKERS.search(rest)
        if workers:
            # Later mentions are of other work of the same pause.
            threads.setdefault(number, (int(workers[1]), int(workers[2])))
        if tags == "gc" and rest.startswith("Pause "):
            length = re.search(r"([\d.]+)ms$", rest)
            if length and at >= since_ms:
                found.append((at, float(length[1]), *threads.get(number, (None, None))))
    return found
