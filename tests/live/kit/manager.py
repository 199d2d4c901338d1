"""Stands in for systemd, as far as the agent uses it: a socket for its messages, and a store for its descriptors.

Run as a program it starts one with what is in the store: `manager.py PID NAME=FD... -- COMMAND`."""

import ctypes
import os
import queue
import socket
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from kit.wait import eventually  # noqa: E402

PIDFD_GETFD = 438


class Manager:
    """Listens on NOTIFY_SOCKET; `store` has descriptors by name, as FDSTORE=1 gave them, `said` all messages.

    A thread takes messages from the socket at once, as systemd does: the kernel keeps ten there (net.unix.max_dgram_qlen), and the sender
    of one more waits. They count when the test listens."""

    def __init__(self, directory):
        self.path = directory / "notify.sock"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.settimeout(0.1)
        self.said, self.store = [], {}
        self.come, self.ended = queue.SimpleQueue(), threading.Event()
        self.taking = threading.Thread(target=self._take)
        self.taking.start()

    def _take(self):
        while not self.ended.is_set():
            try:
                self.come.put(socket.recv_fds(self.socket, 4096, 4)[:2])
            except TimeoutError:
                pass

    def listen(self):
        """Heeds what has come."""
        while True:
            try:
                data, fds = self.come.get_nowait()
            except queue.Empty:
                return self.said
            words = dict(line.split("=", 1) for line in data.decode().splitlines())
            self.said.append(words)
            if "FDSTOREREMOVE" in words and words["FDNAME"] in self.store:
                os.close(self.store.pop(words["FDNAME"]))
            if "FDSTORE" in words:
                (self.store[words["FDNAME"]],) = fds

    def heard(self, key, value="1", within=10):
        """Waits for a message, and forgets what came before it."""

        def come():
            self.listen()
            return any(words.get(key) == value for words in self.said)

        eventually(come, within)
        self.said.clear()

    def prefix(self):
        """The words before a command that start it with the store, for the fixture `new_agent`."""
        pairs = [f"{name}={fd}" for name, fd in self.store.items()]
        return [sys.executable, __file__, str(os.getpid()), str(self.path), *pairs, "--"]

    def close(self):
        self.ended.set()
        self.taking.join()
        self.socket.close()
        self.listen()
        for fd in self.store.values():
            os.close(fd)


def main(pid, path, *words):
    pairs, command = words[: words.index("--")], words[words.index("--") + 1 :]
    libc, owner = ctypes.CDLL(None, use_errno=True), os.pidfd_open(int(pid))
    # Out of the way of their later numbers.
    fds = [os.dup2(libc.syscall(PIDFD_GETFD, owner, int(pair.split("=")[1]), 0), 100 + n) for n, pair in enumerate(pairs)]
    for n, fd in enumerate(fds):
        os.dup2(fd, 3 + n, inheritable=True)
    names = ":".join(pair.split("=")[0] for pair in pairs)
    given = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(fds)), "LISTEN_FDNAMES": names} if fds else {}
    os.closerange(3 + len(fds), 256)
    os.execvpe(command[0], command, {**os.environ, "NOTIFY_SOCKET": path, "WATCHDOG_USEC": "3000000", **given})


if __name__ == "__main__":
    main(*sys.argv[1:])
