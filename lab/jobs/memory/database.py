"""A database server and its client: MariaDB and sysbench as distributions package them.

The server caches little itself and reads its files through the kernel's page cache (innodb_flush_method=fsync). So a container's memory is
the cached part of its database, and the kernel can take it back."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

from kit.process import descendants
from kit.wait import PATIENCE, eventually

PACED = Path(__file__).with_name("paced.lua")
CLIENTS = 8
PAGE = 16 << 10
# No memory of its own that grows, nothing in the background.
SERVER = """--no-defaults --user=root --skip-networking --innodb-flush-method=fsync --innodb-log-file-size=8M --innodb-log-buffer-size=2M
--innodb-buffer-pool-chunk-size=1M --innodb-buffer-pool-dump-at-shutdown=OFF --innodb-buffer-pool-load-at-startup=OFF
--innodb-stats-persistent=OFF --performance-schema=OFF --key-buffer-size=8 --aria-pagecache-buffer-size=131072 --max-connections=40
--table-open-cache=40""".split()
# How many pages rows are in, by InnoDB's statistics; a file is larger, by what InnoDB keeps ready.
LEAF_PAGES = "SELECT stat_value FROM mysql.innodb_index_stats WHERE table_name = 'sbtest1' AND index_name = 'PRIMARY' AND stat_name = 'n_leaf_pages'"
# sysbench's own table, filled by the server: of the rows that sysbench would send, only the size matters to readers.
TABLE = """CREATE TABLE sbtest.sbtest1 (id INTEGER NOT NULL AUTO_INCREMENT, k INTEGER DEFAULT '0' NOT NULL, c CHAR(120) DEFAULT '' NOT NULL,
pad CHAR(60) DEFAULT '' NOT NULL, PRIMARY KEY (id)) ENGINE = innodb"""
PIECE = 1_000_000
# The ready-made probe asks as the user `nobody`.
ACCOUNT = "CREATE USER IF NOT EXISTS nobody@localhost IDENTIFIED VIA unix_socket"


def versions():
    said = {name: run(name, "--version").strip() for name in ("mariadbd", "sysbench")}
    server = re.search(r"Ver (\S+?)-", said["mariadbd"])
    return f"MariaDB {server.group(1) if server else '?'}, {said['sysbench'].split(' (')[0]}"


def run(*words):
    """A command's output; it must succeed."""
    try:
        done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except FileNotFoundError:
        raise RuntimeError(f"there is no {words[0]}: tools/setup lab brings it") from None
    if done.returncode:
        raise RuntimeError(f"{words[0]}: {(done.stdout + done.stderr).strip()[-600:]}")
    return done.stdout


def table(data):
    """The file that transactions read."""
    return data / "sbtest/sbtest1.ibd"


class Server:
    """A server on `data` that listens at `name`.sock; `start` starts words in its container. It has answered when this returns."""

    def __init__(self, start, data, name, pool_mib=8):
        self.socket, log = name.with_suffix(".sock"), name.with_suffix(".mariadb.log")
        words = ["mariadbd", *SERVER, f"--innodb-buffer-pool-size={pool_mib}M", f"--datadir={data}", f"--socket={self.socket}"]
        with open(log, "w") as out:
            self.process = start([*words, f"--pid-file={name.with_suffix('.pid')}"], stdout=out, stderr=out)

        def answers():
            if self.process.poll() is not None:
                raise RuntimeError(f"mariadbd ended: {'; '.join(log.read_text().splitlines()[-3:])}")
            with contextlib.suppress(RuntimeError):
                return self.say("SELECT 1")

        eventually(answers, within=120, every=0.2)

    def say(self, sql):
        client = ["mariadb", "--no-defaults", "--user=root", f"--socket={self.socket}", "--batch", "--skip-column-names"]
        return run(*client, f"--execute={sql}")

    def end(self):
        """Gently where it still answers."""
        try:
            self.say("SHUTDOWN")
            self.process.wait(60 * PATIENCE)
        except (RuntimeError, subprocess.TimeoutExpired):
            end(self.process)


def arguments(socket, rows):
    return ["--mysql-user=root", f"--mysql-socket={socket}", "--tables=1", f"--table-size={rows}"]


class Load:
    """A sysbench that asks `server`, as the file `pace` says from moment to moment."""

    def __init__(self, start, server, story, pace, seconds):
        words = ["sysbench", PACED, *arguments(server.socket, story["rows"]), f"--pace={pace}", f"--time={seconds}", f"--threads={CLIENTS}"]
        words += ["--range-selects=off", f"--at-once={'on' if story['at_once'] else 'off'}"]
        # Each row with the same probability: no part of the database is enough.
        words += ["--rand-type=uniform", "--report-interval=1", "run"]
        self.process, self.ended = start(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT), False

    def seconds(self):
        """Transactions done, second by second, until it ends; what it says beside that is kept for the error."""
        said = []
        for line in self.process.stdout:
            if (done := transactions(line)) is not None:
                yield done
            else:
                said.append(line.strip())
        if self.process.wait() and not self.ended:
            raise RuntimeError(f"sysbench: {' '.join(word for word in said if 'FATAL' in word) or ' '.join(said[-3:])}")

    def end(self):
        self.ended = True
        end(self.process)


def end(entered):
    """Ends a program in a container. The process that entered the container must wait for it: otherwise the container would not end."""
    for pid in descendants(entered.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    entered.wait()


def transactions(line):
    """What a line of sysbench's report says was done in its second."""
    found = re.search(r"^\[ \d+s \].* tps: ([\d.]+)", line)
    return float(found.group(1)) if found else None


def prepare(start, directory, count, rows, scratch):
    """Makes a database of `rows` rows below `directory`/0, and copies beside it, where they are not there; bytes of the pages that rows are in."""
    done = directory / f"{rows}-rows"
    if not done.exists():
        for old in directory.glob("[0-9]*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        size = make(start, directory / "0", rows, scratch)
        for i in range(1, count):
            if start(["cp", "--archive", directory / "0", directory / str(i)]).wait():
                raise RuntimeError(f"{directory} has no room for {count} databases")
        os.sync()
        done.write_text(str(size))
    return int(done.read_text())


def make(start, data, rows, scratch):
    install = ["mariadb-install-db", "--no-defaults", "--user=root", "--auth-root-authentication-method=normal", "--skip-test-db"]
    run(*install, "--skip-name-resolve", f"--datadir={data}")
    server = Server(start, data, scratch / "prepare", pool_mib=256)
    try:
        server.say(f"{ACCOUNT}; CREATE DATABASE sbtest; {TABLE}")
        for first in range(1, rows + 1, PIECE):
            some = f"seq_{first}_to_{min(first + PIECE - 1, rows)}"
            server.say(f"USE sbtest; INSERT INTO sbtest1 SELECT seq, seq, LPAD(seq, 119, '0'), LPAD(seq, 59, '0') FROM {some}")
        # The server keeps no statistics otherwise.
        server.say("ALTER TABLE sbtest.sbtest1 STATS_PERSISTENT=1; ANALYZE TABLE sbtest.sbtest1")
        pages = int(server.say(LEAF_PAGES))
        server.say("ALTER TABLE sbtest.sbtest1 STATS_PERSISTENT=DEFAULT")
    finally:
        server.end()
    return pages * PAGE


def let_go(directory):
    """Has the kernel forget what it caches of a directory, and with it which cgroup is charged."""
    for path in directory.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
