"""Starts a server that sizes itself, and says once for every line of its input how many workers it has.

    server.py nginx PROGRAM        worker processes, of worker_processes auto
    server.py mariadb PROGRAM      @@thread_pool_size
"""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def with_us():
    """The server ends with this process, however that ends (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def start(words):
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=with_us)


def nginx(program, home):
    config = f"daemon off; worker_processes auto; pid {home}/pid; error_log stderr; events {{}}\n"
    (home / "conf").write_text(config)
    master = start([program, "-e", "stderr", "-p", home, "-c", home / "conf"])

    def workers():
        children = Path(f"/proc/{master.pid}/task/{master.pid}/children").read_text().split()
        return len(children)

    return master, workers


def mariadb(program, home):
    # Without --skip-grant-tables it would want tables that only an installation has.
    words = [program, "--no-defaults", "--user=root", f"--datadir={home}", f"--socket={home}/socket", "--skip-networking"]
    words += [f"--pid-file={home}/pid", "--skip-grant-tables", "--innodb-buffer-pool-size=8M", "--thread-handling=pool-of-threads"]
    server = start(words)

    def size():
        client = ["mariadb", "--no-defaults", f"--socket={home}/socket", "--batch", "--skip-column-names", "-e", "SELECT @@thread_pool_size"]
        done = subprocess.run(client, capture_output=True, text=True)
        return int(done.stdout) if done.returncode == 0 else 0

    return server, size


def main():
    with tempfile.TemporaryDirectory(prefix="elbowroom-test-live-") as home:
        server, count = {"nginx": nginx, "mariadb": mariadb}[sys.argv[1]](sys.argv[2], Path(home))
        os.chmod(home, 0o755)
        deadline = time.monotonic() + 60
        # It starts one worker after the other.
        before = 0
        while not before or before != count():
            before = count()
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{sys.argv[1]} ended with {server.poll()}: {server.stderr.read().decode(errors='replace')}")
            time.sleep(0.2)
        for _ in sys.stdin:
            print(count(), flush=True)
        server.terminate()
        server.wait()


main()
