"""A program on a terminal of its own."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

from kit.wait import PATIENCE


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, words, width, height, **env):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
            os.execvpe(words[0], words, {**os.environ, "TERM": "xterm-256color", **env})
        self.size = width, height
        self.seen, self.before = b"", b""  # since the last keys, and until then

    def shows(self, what, within=15):
        """Waits until it wrote this."""
        self._wait(lambda: what in self.seen, what, within)

    def draws(self, text, within=15):
        """Waits until the screen has this text; cells that stay are not written again."""
        self._wait(lambda: text in screen(self.before + self.seen, *self.size), text, within)

    def _wait(self, enough, what, within):
        end = time.monotonic() + within * PATIENCE
        while not enough():
            self.seen += self._read(end, what)

    def press(self, keys):
        self.before, self.seen = self.before + self.seen, b""
        os.write(self.fd, keys)

    def end(self, within=15):
        """Waits for its end; its exit status."""
        end = time.monotonic() + within * PATIENCE
        # A terminal that no program has any more is an error to read.
        with contextlib.suppress(OSError):
            while self._read(end, "its end"):
                pass
        return self.close()

    def close(self):
        """Hangs up, which ends it where it has not ended; its exit status, the first time."""
        if self.pid is None:
            return None
        os.close(self.fd)
        pid, self.pid = self.pid, None
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _read(self, end, what):
        """The next output of the program. A program that writes nothing until `end` is killed."""
        if not select.select([self.fd], [], [], max(0, end - time.monotonic()))[0]:
            os.kill(self.pid, signal.SIGKILL)
            self.close()
            raise AssertionError((what, self.seen[-2000:]))
        return os.read(self.fd, 1 << 16)


def screen(written, width, height):
    """What a terminal shows after this was written to it, as lines of text: cursor positions count, colours and modes do not."""
    rows, row, column = [[" "] * width for _ in range(height)], 0, 0
    for escape, final, character in re.findall(r"\x1b\[([0-9;?]*)([a-zA-Z])|([^\x1b])", written.decode(errors="replace")):
        if final == "H":
            row, column = (int(number or 1) - 1 for number in (escape or "1;1").split(";"))
        elif character == "\n":
            row += 1
        elif character == "\r":
            column = 0
        elif character and row < height and column < width:
            rows[row][column] = character
            column += 1
    return "".join("".join(line).rstrip() + "\n" for line in rows).rstrip("\n") + "\n"
