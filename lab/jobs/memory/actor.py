"""A container with a database server, its client, and what is written down of both."""

import os
import subprocess
import threading
import time

from lab.jobs.memory import database, story
from lab.jobs.memory.samples import Sample
from lab.jobs.memory.story import WHO


class Actor:
    """For as long as a `with` lasts. The server ends before its container."""

    def __init__(self, stage, name, arm, who, client):
        self.stage, self.who, self.client = stage, who, client
        self.name, self.role, self.data = f"{name}-{WHO[who]}", stage.story["roles"][who], stage.files / str(who)
        self.limits = {"max": "memory_mib", "soft": "soft_mib"}.get(arm.get("limits"))
        base = stage.lab.scope.directory / self.name
        self.base, self.pace, self.record = base, base.with_suffix(".pace"), base.with_suffix(".probe")
        self.seconds, self.rate, self.scans, self.load, self.error = [], None, None, None, None

    def __enter__(self):
        limits = {self.limits: self.role["right_mib"]} if self.limits else {}
        self.container = self.stage.lab.container(f"machine/{self.name}", **limits)
        self.container.group.count_io(self.stage.disk)
        self.server = database.Server(self.start, self.data, self.base, self.stage.story.get("pool_mib", 8))
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self, words, **streams):
        return self.container.start("/usr/bin/env", *words, **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **streams})

    def described(self):
        """What an agent's configuration says of it."""
        at_once = self.stage.story["at_once"]
        return {"id": self.container.id, "right_mib": self.role["right_mib"], "record": self.record, "socket": self.server.socket,
                "questions": self.role["objective"] * (1 if at_once else story.ROWS_PER_TRANSACTION + 2)}  # fmt: skip

    # ---- what is asked ----

    def play(self):
        self.write(self.pace, "0")
        ask = lambda words, **streams: self.client.start("/usr/bin/env", *words, **streams)
        self.load = database.Load(ask, self.server, self.stage.story, self.pace, 1 << 20)
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()

    def ask(self, rate, scans):
        """Asks for `rate` transactions a second from now on; None stops the server too."""
        if rate != self.rate:
            self.rate = rate
            if rate is None:
                return self.stop()
            self.write(self.pace, str(rate))
        if scans and not self.scans:
            begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            self.scans = self.container.reader("load", begin, "scan", 0, 1 << 40, story.SCAN_MIB_PER_S, self.stage.holes, stdout=subprocess.DEVNULL)
        elif self.scans and not scans:
            self.scans = database.end(self.scans)

    def stop(self):
        """Ends all of it; the container is gone."""
        if self.load:
            self.load.end()
            self.thread.join(30)
            self.load = None
        if self.scans:
            self.scans = database.end(self.scans)
        if self.server:
            self.server.end()
            self.server = None
            self.container.close()

    def check(self):
        if self.error:
            raise RuntimeError(f"{WHO[self.who]}: {self.error}")

    # ---- what is written down ----

    def listen(self):
        try:
            for done in self.load.seconds():
                asked = self.rate or 0
                self.seconds.append((time.monotonic(), round(done), self.container.group.memory_bytes() >> 20))
                self.write(self.record, f"served={done:.1f} offered={max(asked, done):.1f} objective={self.role['objective']} kind=throughput\n")
        except (OSError, RuntimeError) as error:
            if self.rate is not None:
                self.error = error

    def write(self, path, text):
        """In one step: a reader sees this or what was there before, whole."""
        new = path.with_suffix(".new" + path.suffix)
        new.write_text(text)
        os.replace(new, path)

    def moved(self, seconds):
        """How far memory ranged over the last `seconds`, in MiB; more than any machine has where too few of these have samples."""
        last = [mib for at, _, mib in self.seconds if at >= time.monotonic() - seconds]
        return max(last) - min(last) if len(last) >= 0.8 * seconds else 1 << 30

    def samples(self, begin, seconds):
        """The samples of a story that began at `begin` and lasted `seconds`."""
        found = [Sample(round((at - begin) * 1000), tps, 0, mib) for at, tps, mib in list(self.seconds)]
        return [sample for sample in found if 500 <= sample.ms <= 1000 * seconds + 500]
