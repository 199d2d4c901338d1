"""File systems that answer everything but what a test holds back: the contents of a file, or the way to it."""

import contextlib
import ctypes
import errno
import os
import stat
import struct
import subprocess
import threading

SIZE = 4096
HEAD = struct.Struct("=IIQQIII4x")

libc = ctypes.CDLL(None, use_errno=True)


class SlowFile:
    """Mounted on the file `path`; `asked` is set when the first read has come. `release()` answers what was asked and what follows."""

    MODE = stat.S_IFREG | 0o644  # of the root

    def __init__(self, path):
        self.path, self.asked, self.released, self.waiting = path, threading.Event(), False, []
        self._make(path)
        self.lock = threading.Lock()
        self.device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.device},rootmode={self.MODE:o},user_id=0,group_id=0,allow_other"
        if libc.mount(b"slow", bytes(path), b"fuse", 0, options.encode()) != 0:
            raise OSError(ctypes.get_errno(), f"mounting {path}")
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _make(self, path):
        path.touch()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                request = os.read(self.device, 1 << 17)
                _, opcode, unique, node, *_ = HEAD.unpack_from(request)
                self._answer(opcode, unique, node)

    def _attributes(self, node):
        mode = self.MODE if node == 1 else stat.S_IFREG | 0o644
        return struct.pack("=QQQQQQIIIIIIIIII", node, SIZE, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def _answer(self, opcode, unique, node):
        match opcode:
            case 26:  # INIT: version, read-ahead, flags, requests in the background, largest write, granularity of time, pages
                self._send(unique, struct.pack("=IIIIHHIIHH28x", 7, 31, 0, 0, 16, 16, 1 << 16, 1, 1, 0))
            case 3:  # GETATTR
                self._send(unique, struct.pack("=QII", 3600, 0, 0) + self._attributes(node))
            case 14:  # OPEN
                # FOPEN_KEEP_CACHE: another one does not wait here for the first one's read.
                self._send(unique, struct.pack("=QII", 0, 1 << 1, 0))
            case 15:  # READ
                self._hold(unique, bytes(SIZE))
            case 18 | 25:  # RELEASE, FLUSH
                self._send(unique, b"")
            case 2 | 36 | 42:  # FORGET, INTERRUPT, BATCH_FORGET: no process waits
                pass
            case _:
                self._send(unique, b"", errno.ENOSYS)

    def _send(self, unique, body, error=0):
        with contextlib.suppress(OSError):
            os.write(self.device, struct.pack("=IiQ", 16 + len(body), -error, unique) + body)

    def _hold(self, unique, body):
        with self.lock:
            self.waiting.append((unique, body))
        self.asked.set()
        if self.released:
            self._send_all()

    def _send_all(self):
        with self.lock:
            waiting, self.waiting = self.waiting, []
        for unique, body in waiting:
            self._send(unique, body)

    def release(self):
        self.released = True
        self._send_all()

    def close(self):
        self.release()
        # Its thread's read ends with the file system.
        subprocess.run(["umount", "--lazy", "--force", self.path], check=True, capture_output=True)
        self.thread.join(10)
        os.close(self.device)


class SlowWay(SlowFile):
    """Mounted on the directory `path`, in which every name is a file. After `hang()` no walk there comes to an end until `release()`."""

    MODE = stat.S_IFDIR | 0o755
    hanging = False

    def _make(self, path):
        path.mkdir()

    def _answer(self, opcode, unique, node):
        if opcode != 1:  # LOOKUP
            return super()._answer(opcode, unique, node)
        # Good for no time at all: each walk asks.
        entry = struct.pack("=QQQQII", 2, 0, 0, 3600, 0, 0) + self._attributes(2)
        if self.hanging:
            self._hold(unique, entry)
        else:
            self._send(unique, entry)

    def hang(self):
        self.hanging = True

    def holds(self, walks):
        """Whether it has taken this many walks without an answer. Before it takes one, a signal still ends the walking process."""
        return len(self.waiting) >= walks
