"""A view page as the agent writes it, for libraries that are to follow what a test says."""

import mmap
import struct


class Page:
    """The layout is shim/view.h."""

    def __init__(self, path):
        self.path = path
        path.write_bytes(b"elbowrm\0" + struct.pack("=IIII", 1, 256, 0, 0) + bytes(4096 - 24))
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 4096)

    def show(self, cpus, *, most=64, memory=1 << 30, most_memory=1 << 31, used=0, load=(0, 0, 0), threads=1, online=None):
        """Publishes a view; load in hundredths."""
        generation, changes = struct.unpack_from("=II", self.map, 16)
        at = 64 + (generation + 1 & 1) * 256
        numbers = (cpus, most, cpus * 1000, memory, most_memory, used, 0, 0, 0)
        struct.pack_into("=IIQQQQQQQ4I", self.map, at, *numbers, *load, threads)
        words = [0] * 16
        for cpu in range(cpus) if online is None else online:
            words[cpu // 64] |= 1 << cpu % 64
        struct.pack_into("=16Q", self.map, at + 128, *words)
        struct.pack_into("=II", self.map, 16, generation + 1, changes + 1)
