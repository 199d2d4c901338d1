"""Pollers (`reader poll`): a monitoring agent, which every interval opens, reads and closes its files, and tells how long that took."""


def counted(text):
    """(latencies in ns, reads that failed, wrong MemTotals) of what a poller printed."""
    latencies, counts = [], {"failed": 0, "wrong": 0}
    for line in text.splitlines():
        word, _, number = line.partition(" ")
        if number:
            counts[word] += int(number)
        else:
            latencies.append(int(word))
    return latencies, counts["failed"], counts["wrong"]
