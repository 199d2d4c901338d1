import ctypes
import mmap
import os
import platform
import struct
import sys
import threading
import time
from typing import Iterator, NamedTuple, Optional

PATH = "/sys/devices/system/cpu/elbowroom"

_MAGIC = b"elbowrm\0"
_VERSION = 1
_SIZE = 4096
_HEAD = struct.Struct("=8sII")  # magic, version, view_size
_GENERATION, _CHANGES, _VIEWS, _VIEW_SIZE = 16, 20, 64, 256
_VIEW = struct.Struct("=IIQQQQQQQ4I")
_ONLINE = struct.Struct("=16Q")
_ONLINE_AT = 128
_MEMORY_AT = 16
_LOOK_EVERY = 1.0


class View(NamedTuple):
    """One version of everything the page says; sizes in bytes."""

    cpus: int
    cpus_most: int
    millicpu: int
    memory: int
    memory_most: int
    memory_used: int
    memory_inactive_file: int
    started_usec: int
    taken_usec: int
    load: tuple
    threads: int
    online: frozenset


class _Page:
    """A mapping. Aligned 32-bit and 64-bit fields are read by one load each, through ctypes: struct copies byte by byte."""

    def __init__(self, path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # An empty file is a view without a page.
            if os.fstat(fd).st_size < _SIZE:
                raise OSError(f"{path}: no view page")
            self.map = mmap.mmap(fd, _SIZE, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(fd)
        magic, version, _ = _HEAD.unpack_from(self.map)
        if magic != _MAGIC or version != _VERSION:
            raise OSError(f"{path}: not a view page of version {_VERSION}")
        # Before anything holds on to the mapping: what is rejected goes, and one that is looked at every second must.
        generation = int.from_bytes(self.map[_GENERATION : _GENERATION + 4], sys.byteorder)
        at = _VIEWS + (generation & 1) * _VIEW_SIZE
        if not any(self.map[at : at + 4]):
            raise OSError(f"{path}: no agent keeps it")
        # ctypes cannot look into a read-only buffer; the address is what it takes to make its own objects there.
        address = _address(self.map)
        self.generation = ctypes.c_uint32.from_address(address + _GENERATION)
        self.changes = ctypes.c_uint32.from_address(address + _CHANGES)
        views = [address + _VIEWS + i * _VIEW_SIZE for i in (0, 1)]
        self.cpus = [ctypes.c_uint32.from_address(at) for at in views]
        self.memory = [ctypes.c_uint64.from_address(at + _MEMORY_AT) for at in views]

    def is_kept(self):
        return self.cpus[self.generation.value & 1].value != 0

    def view(self):
        while True:
            generation = self.generation.value
            at = _VIEWS + (generation & 1) * _VIEW_SIZE
            copy = self.map[at : at + _VIEW_SIZE]
            if self.generation.value == generation:
                break
        *numbers, load1, load5, load15, threads = _VIEW.unpack_from(copy)
        words = _ONLINE.unpack_from(copy, _ONLINE_AT)
        online = frozenset(64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1)
        return View(*numbers, (load1 / 100, load5 / 100, load15 / 100), threads, online)


def _address(mapping):
    """Where a mapping is, though it be read-only."""
    view = _Buffer()
    if ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(mapping), ctypes.byref(view), 0) != 0:
        raise OSError("the view page cannot be read")
    # Never released: the mapping must not be closed or resized while its fields are read.
    return view.buf


class _Buffer(ctypes.Structure):
    """Py_buffer."""

    _fields_ = [
        ("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    ]


_page: Optional[_Page] = None
_looked_at = float("-inf")
_lock = threading.Lock()


def _renew_lock():
    """In a child: the thread that held it is not there."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def _current():
    """The page, if an agent keeps one."""
    global _page, _looked_at
    page = _page
    if page is not None and page.is_kept():
        return page
    with _lock:
        # Another thread may have found it while we waited.
        if _page is not page and _page is not None and _page.is_kept():
            return _page
        now = time.monotonic()
        if now - _looked_at < _LOOK_EVERY:
            return None
        _looked_at = now
        try:
            found = _Page(os.environ.get("ELBOWROOM_VIEW") or PATH)
        except (OSError, ValueError):
            return None
        if not found.is_kept():
            return None
        _page = found
        return found


def cpus() -> Optional[int]:
    """Effective CPU in whole CPUs; None where no agent shows a view."""
    page = _current()
    return page.cpus[page.generation.value & 1].value or None if page else None


def memory() -> Optional[int]:
    """Effective memory in bytes; None where no agent shows a view."""
    page = _current()
    return page.memory[page.generation.value & 1].value or None if page else None


def view() -> Optional[View]:
    """One version of the whole view; None where no agent shows one."""
    page = _current()
    found = page.view() if page else None
    return found if found and found.cpus else None


_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_FUTEX_WAIT = 0
_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]


def wait(seen: int = 0, timeout: Optional[float] = None) -> Optional[int]:
    """Waits until the view is another one than `seen` says, at most `timeout` seconds, and returns what `seen` is to be the
    next time: the same number where nothing changed. None where no agent shows a view. Other threads run meanwhile."""
    page = _current()
    if page is None:
        return None
    deadline = None if timeout is None else time.monotonic() + timeout
    while page.changes.value == seen:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            break
        # In slices, so that signals (Ctrl-C) are handled.
        part = 0.5 if left is None else min(left, 0.5)
        if _FUTEX is None:
            time.sleep(min(part, 0.01))
            continue
        until = _Timespec(int(part), int(part % 1 * 1e9))
        _libc.syscall(
            ctypes.c_long(_FUTEX), ctypes.byref(page.changes), ctypes.c_int(_FUTEX_WAIT), ctypes.c_uint32(seen),
            ctypes.byref(until), None, ctypes.c_int(0),
        )
    return page.changes.value


def changes(timeout: Optional[float] = None) -> Iterator[View]:
    """The view now, and each time that it changes; ends when no agent keeps it, or when nothing changed for `timeout`
    seconds."""
    seen = 0
    while True:
        now = wait(seen, timeout)
        if now is None or now == seen:
            return
        seen = now
        current = view()
        if current is None:
            return
        yield current
