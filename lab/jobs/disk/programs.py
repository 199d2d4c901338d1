"""The program in a container of a load: fio by a plan, an image that is unpacked, a database under its load generator. Each is prepared
when it is made, begins with the others, can be asked whether it ended early, is waited for, and says the latency of every second."""

import os
import random
import shutil
import subprocess
import tarfile
from pathlib import Path

from kit.wait import eventually
from lab import fio
from lab.container import finish
from lab.job import Refused
from lab.jobs.disk import loads

OVERTIME_S = 3  # longer than is looked at: programs begin a little before time does
ROWS_SCALE = 5  # pgbench's: 75 MB
POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


def make(lab, container, place, actor, direction):
    disk, told = place
    way, seconds = actor.get("way", direction), told["seconds"] + OVERTIME_S
    if way == "unpack":
        return Unpack(lab, container, disk, actor, seconds)
    if way == "pgbench":
        return Pgbench(lab, container, disk, actor, seconds)
    log = lab.scope.directory / f"{container.name}-{disk.name}.log"
    for old in log.parent.glob(f"{log.name}_clat_hist.*.log"):
        old.unlink()
    text = fio.job_file(disk.path, way, actor["style"], actor["phases"], seconds, loads.most(actor, told), log)
    return fio.Fio(container, log.with_suffix(".fio"), text, log)


def missing(actors):
    """Why a load cannot run here."""
    if any(actor.get("way") == "pgbench" for actor in actors) and not (POSTGRES and shutil.which("pgbench")):
        return "the load needs PostgreSQL with pgbench: apt-get install postgresql postgresql-contrib"
    return None


class Unpack:
    """Unpacks an image again and again while its burst lasts, each time followed by a sync as engines do."""

    def __init__(self, lab, container, disk, actor, seconds):
        image, at = lab.scope.directory / "image.tar", disk.folder / container.name
        if not image.exists():
            make_image(image)
        (begin, end) = next(span for span in loads.bursts(actor, {"capacity": 0, "seconds": seconds, **actor}))
        self.container, self.script = container, (
            f"sleep {begin + fio.SET_UP_S}; end=$(($(date +%s) + {end - begin})); "
            f"while [ $(date +%s) -lt $end ]; do mkdir -p {at}; timeout $((end - $(date +%s) + 1)) tar -xf {image} -C {at}; "
            f"sync -f {at}; rm -rf {at}; done"
        )

    def begin(self):
        self.child = self.container.start("/bin/sh", "-c", self.script)

    check = fio.Fio.check

    def finish(self):
        finish(self.child, "tar")

    def latencies(self, _):
        return {}


def make_image(path):
    """400 MB as images are: some large files, and thousands of small ones."""
    choose = random.Random(1)
    noise = choose.randbytes(16 << 20)
    source = path.with_suffix(".part")
    with tarfile.open(path, "w") as image:
        for number in range(4000):
            size = 12 << 20 if number % 200 == 0 else choose.randrange(256, 64 << 10)
            source.write_bytes(noise[:size])
            image.add(source, f"layer/{number % 64}/{number}")
    source.unlink()


class Pgbench:
    """PostgreSQL in the container with its files on the disk, and pgbench, which asks for TPC-B's transactions at a fixed rate."""

    def __init__(self, lab, container, disk, actor, seconds):
        self.container, self.home = container, disk.folder / container.name
        self.logs = lab.scope.directory / f"{container.name}-pgbench"
        for directory in (self.home, self.logs):
            directory.mkdir()
            shutil.chown(directory, "postgres", "postgres")
        os.chmod(disk.folder.parent, 0o755)
        self.run(POSTGRES[-1] / "initdb", "-D", self.home / "data", "--auth=trust")
        settings = ["-c", f"unix_socket_directories={self.logs}", "-c", "listen_addresses=", "-c", "shared_buffers=16MB"]
        serve = self.words(POSTGRES[-1] / "postgres", "-D", self.home / "data", *settings)
        self.server = container.start(*serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ask = ["-h", self.logs, "-U", "postgres"]
        eventually(lambda: subprocess.run(["pg_isready", "-q", "-h", self.logs]).returncode == 0, within=30)
        self.run("pgbench", *ask, "-i", "-q", "-s", ROWS_SCALE, "postgres")
        rate = actor["phases"][0]["want"]
        logs = ["-l", f"--log-prefix={self.logs}/log"]
        self.generate = ["pgbench", *ask, "-n", "-c", 4, "-T", seconds, "-R", rate, *logs, "postgres"]

    def begin(self):
        self.child = self.container.start(*self.words(*self.generate))

    check = fio.Fio.check

    def words(self, *words):
        return ["/usr/bin/setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "/usr/bin/env", *words]

    def run(self, *words):
        return finish(self.container.start(*self.words(*words)), str(words[0]))

    def finish(self):
        finish(self.child, "pgbench")
        self.stop()

    def stop(self):
        self.run(POSTGRES[-1] / "pg_ctl", "-D", self.home / "data", "-m", "immediate", "-W", "stop")
        self.server.communicate()
        shutil.rmtree(self.home)

    def latencies(self, start_ms):
        """From when a transaction was due until its end: pgbench's line is `client number latency script second microsecond lag`."""
        seconds = {}
        for log in self.logs.glob("log*"):
            for line in log.read_text().splitlines():
                _, _, latency_us, _, second, microsecond, *_ = line.split()
                if latency_us.isdigit():
                    at = int((int(second) * 1000 + int(microsecond) / 1000 - start_ms) // 1000)
                    merged = seconds.setdefault(at, {})
                    merged[int(latency_us) * 1000] = merged.get(int(latency_us) * 1000, 0) + 1
        return seconds


def refuse(actors):
    reason = missing(actors)
    if reason:
        raise Refused(reason)
