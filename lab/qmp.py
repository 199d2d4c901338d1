"""QEMU's machine protocol (docs/interop/qmp-spec in QEMU), as far as slowing a disk down needs it. One command at a time, over a socket or
over the port that `tools/vm` gives its guest."""

import itertools
import json
import os
import select
import threading
import time

# A storage daemon that serves a slow disk answers between two requests: at 4 kB/s that is after a second.
PATIENCE_S = 20


class Qmp:
    """A conversation over an open descriptor; several threads may use it. A conversation that an earlier user of the same port began goes
    on: QEMU then refuses to negotiate again, and nothing else is wrong."""

    def __init__(self, stream):
        self.stream, self.unread, self.lock = stream, b"", threading.Lock()
        self.ids = itertools.count(os.getpid() << 32)
        self.ask("qmp_capabilities", {})

    def execute(self, command, **arguments):
        """Runs a command to its end; an error is QEMU's own words."""
        error = self.ask(command, arguments)
        if error:
            raise OSError(f"QEMU refuses {command} {arguments}: {error}")

    def ask(self, command, arguments):
        """The error that a command ended with, or None."""
        with self.lock:
            number, until = next(self.ids), time.monotonic() + PATIENCE_S
            question = {"execute": command, "arguments": arguments, "id": number}
            os.write(self.stream.fileno(), json.dumps(question).encode() + b"\n")
            while True:
                try:
                    answer = json.loads(self.line(until))
                except ValueError:
                    continue  # the rest of an answer to an earlier user of the port
                if answer.get("id") == number:
                    return answer.get("error", {}).get("desc")

    def line(self, until):
        while b"\n" not in self.unread:
            if not select.select([self.stream], [], [], max(until - time.monotonic(), 0))[0]:
                raise OSError(f"QEMU does not answer within {PATIENCE_S} s")
            more = os.read(self.stream.fileno(), 4096)
            if not more:
                raise OSError("QEMU closed the connection")
            self.unread += more
        line, _, self.unread = self.unread.partition(b"\n")
        return line
