"""What HotSpot's unified log says of pauses, with the decorations `uptimemillis` and `tags`."""

import re

OPTION = "-Xlog:gc*=info,gc+task=trace:file={}:uptimemillis,tags"
LINE = re.compile(r"\[\s*(\d+)ms\]\[([^\]]*)\]\s*(?:GC\((\d+)\) )?(.*)")
# G1 says `Using 2 workers of 13`, the workers of every collector `using 2 out of 13 workers`.
WORKERS = re.compile(r"[Uu]sing (\d+) (?:workers of|out of) (\d+)")
LENGTH = re.compile(r" ([\d.]+)ms$")


def pauses(text, since_ms=0):
    """[(end, ms, threads or None, threads there are or None)] of all pauses that ended after a moment of the machine. A line without
    an end is that of a machine that was killed, and is left out; one without decorations goes on with what the one before it said."""
    found, threads = [], {}
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines()):
        match = LINE.match(line)
        if not match:
            if line.startswith("[") or number == 0:
                raise ValueError(f'the GC log has a line "{line}"')
            continue
        at, tags, collection, rest = int(match[1]), match[2].strip(), match[3], match[4]
        if workers := WORKERS.search(rest):
            # Later mentions are of other work of the same pause.
            threads.setdefault(collection, (int(workers[1]), int(workers[2])))
        if collection and tags == "gc" and rest.startswith("Pause "):
            length = LENGTH.search(rest)
            if not length:
                raise ValueError(f'the GC log has a pause without its length: "{line}"')
            if at >= since_ms:
                found.append((at, float(length[1]), *threads.get(collection, (None, None))))
    return found


def of_file(path, since_ms=0):
    """The same of a log, which a machine that was killed at once has not."""
    return pauses(path.read_text() if path.exists() else "", since_ms)


def total_ms(found):
    return round(sum(pause[1] for pause in found), 1)


def changes(found, began):
    """[[ms after `began`, threads, threads there are]]: each pause whose threads are others than those of the one before it."""
    changed = []
    for at, _, threads, there in found:
        if threads is not None and (not changed or changed[-1][1] != threads):
            changed.append([at - began, threads, there])
    return changed
