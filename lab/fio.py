"""Load on a disk: fio inside a container, by a plan of what it wants when, and what fio says of its latency."""

from pathlib import Path

from lab.container import finish

# fio carries over a demand that it could not meet: after a starved minute it reads at full speed until all is made up. It forgets that at
# the end of a job, so jobs are no longer than this, in seconds. A load that wants more than the disk can do never catches up and needs no
# such care.
MEMORY_S = 5
# Everything begins this much after fio does, in seconds: its first job would be late by what it takes to set up all, and overlap with
# its second.
SET_UP_S = 1
# fio writes a histogram of completion latencies per job and direction this often, and loses a job's last: a twentieth of a short job.
WINDOW_MS = 250
COARSENESS = 3  # 8 of fio's buckets together: an eighth of a power of two wide, as the lab's own

# How a container asks: fio's words, and which parts of its bytes are read and written.
DIRECT = "direct=1\nioengine=libaio"
WAYS = {
    "read": (f"rw=randread\n{DIRECT}", (1, 0)),
    "write": (f"rw=randwrite\n{DIRECT}", (0, 1)),
    "mixed": (f"rw=randrw\nrwmixread=70\n{DIRECT}", (0.7, 0.3)),
    "buffered": ("rw=randwrite\nioengine=psync", (0, 1)),  # reaches the disk by write-back
    "log": ("rw=write\nioengine=psync\nsync=dsync", (0, 1)),  # as a database's log: each write is durable when it is over
}


def job_file(disk, way, style, phases, seconds, most, log=None):
    """The job file for fio. Jobs follow each other by the clock, not by the end of the one before. So requests that are still under way
    when a job's time is over overlap with the next job's first. `most`: a phase that wants as much, in bytes per second, is a flood. `log`:
    where histograms go."""
    words, parts = WAYS[way]
    text = f"[global]\nfilename={disk}\n{words}\nbs={style['block']}\niodepth={style['depth']}\nnorandommap\nthread\ntime_based\n"
    if log:
        text += f"write_hist_log={log}\nlog_hist_msec={WINDOW_MS}\nlog_hist_coarseness={COARSENESS}\nlog_unix_epoch=1\n"
    ends = [phase["at"] for phase in phases[1:]] + [seconds]
    for phase, end in zip(phases, ends):
        at, step = phase["at"], end - phase["at"] if phase["want"] >= most else MEMORY_S
        rate = ",".join(str(int(phase["want"] * part)) if part else "" for part in parts).rstrip(",")
        while at < end and phase["want"] > 0:
            runtime = min(step, end - at)
            text += f"[at{at}]\nstartdelay={at + SET_UP_S}\nruntime={runtime}\nrate={rate}\n"
            at += runtime
    return text


class Fio:
    """A plan, and from `begin` on a running one."""

    def __init__(self, container, file, text, log=None):
        file.write_text(text)
        self.container, self.file, self.log = container, file, log

    def begin(self):
        self.child = self.container.start("/usr/bin/env", "fio", "--output=/dev/null", self.file)

    def check(self):
        if self.child.poll() is not None:
            raise OSError(f"the load in {self.container.name} ended early: {self.child.communicate()[1].strip()}")

    def finish(self):
        """Waits for its end."""
        finish(self.child, f"fio in {self.container.name}")

    def latencies(self, start_ms):
        """Of each second after `start_ms` (Unix time): {second: {upper bound in ns: count}}."""
        return histograms(self.log.parent.glob(f"{self.log.name}_clat_hist.*.log"), start_ms)


def histograms(logs, start_ms):
    """fio's lines are `ms, direction, block size, count of each bucket...` at the end of a window."""
    seconds = {}
    for log in logs:
        for line in Path(log).read_text().splitlines():
            time_ms, _, _, *counts = map(int, line.split(","))
            second = int((time_ms - WINDOW_MS / 2 - start_ms) // 1000)
            merged = seconds.setdefault(second, {})
            for number, count in enumerate(counts):
                if count:
                    upper = bucket_ns(number)
                    merged[upper] = merged.get(upper, 0) + count
    return seconds


def bucket_ns(number):
    """The upper bound of a bucket, as fio's `plat_idx_to_val` (stat.c) has it: below 128 ns each has its own, then 64 per power of two."""
    last = ((number + 1) << COARSENESS) - 1
    if last < 128:
        return last + 1
    shift = (last >> 6) - 1
    return (1 << (shift + 6)) + ((last % 64 + 1) << shift)


def merge(histograms):
    total = {}
    for counts in histograms:
        for upper, count in counts.items():
            total[upper] = total.get(upper, 0) + count
    return total


def quantiles_us(counts):
    """p50, p99 and p99.9 of a histogram in microseconds; None of none."""
    return [round(value / 1000) for value in (quantile_of(counts, part) for part in (500, 990, 999))] if counts else None


def quantile_of(counts, per_mille):
    """The upper bound of the bucket in which the quantile lies: `per_mille` of a thousand are below it."""
    left = sum(counts.values()) * per_mille / 1000
    for upper in sorted(counts):
        left -= counts[upper]
        if left <= 0:
            return upper
