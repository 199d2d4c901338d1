"""The package against pages made by hand; no agent, no root: python3 -m unittest discover -s python/tests."""

import ctypes
import json
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

from elbowroom import _page  # noqa: E402


class Writer:
    """A page as the agent writes it (crates/elbowroom-linux/src/view_page.rs)."""

    def __init__(self, path):
        path.write_bytes(b"elbowrm\0" + struct.pack("=IIII", 1, 256, 0, 0) + bytes(4096 - 24))
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 4096)

    def publish(self, cpus, memory=0, online=()):
        generation, changes = struct.unpack_from("=II", self.map, 16)
        generation += 1
        at = 64 + (generation & 1) * 256
        struct.pack_into("=IIQQQQQQQ4I", self.map, at, cpus, 9, cpus * 1000, memory, 5, 6, 7, 8, 9, 150, 25, 0, 77)
        words = [0] * 16
        for cpu in online:
            words[cpu // 64] |= 1 << cpu % 64
        struct.pack_into("=16Q", self.map, at + 128, *words)
        struct.pack_into("=I", self.map, 16, generation)
        struct.pack_into("=I", self.map, 20, changes + 1)
        word = ctypes.byref(ctypes.c_uint32.from_buffer(self.map, 20))
        _page._libc.syscall(ctypes.c_long(_page._FUTEX), word, ctypes.c_int(1), ctypes.c_int(1 << 30), None, None, 0)


class PageTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = Path(directory.name) / "page"
        os.environ["ELBOWROOM_VIEW"] = str(self.path)
        self.forget()

    def forget(self):
        """As in a new process."""
        _page._page, _page._looked_at = None, float("-inf")

    def test_without_a_page_nothing_is_known(self):
        for content in (None, b"", b"x" * 100, bytes(4096), b"elbowrm\0" + struct.pack("=I", 2) + bytes(4084)):
            if content is not None:
                self.path.write_bytes(content)
            self.forget()
            self.assertEqual((_page.cpus(), _page.memory(), _page.view(), _page.wait()), (None, None, None, None))

    def test_every_publication_is_seen_at_once(self):
        writer = Writer(self.path)
        for cpus, memory in ((3, 1 << 40), (1, 5), (1024, (1 << 63) + 1)):
            writer.publish(cpus, memory)
            self.assertEqual((_page.cpus(), _page.memory()), (cpus, memory))

    def test_a_view_has_every_field(self):
        Writer(self.path).publish(2, 4, online=(0, 63, 64, 1023))
        expect = _page.View(2, 9, 2000, 4, 5, 6, 7, 8, 9, (1.5, 0.25, 0.0), 77, frozenset((0, 63, 64, 1023)))
        self.assertEqual(_page.view(), expect)

    def test_an_abandoned_page_is_none_and_its_successor_is_found(self):
        first = Writer(self.path)
        first.publish(4)
        self.assertEqual(_page.cpus(), 4)
        first.publish(0)
        self.assertIsNone(_page.cpus())
        self.path.unlink()
        Writer(self.path).publish(7)
        _page._looked_at = float("-inf")  # a second later
        self.assertEqual(_page.cpus(), 7)

    def test_an_abandoned_page_is_looked_at_for_ever_at_no_cost(self):
        Writer(self.path).publish(0)
        for _ in range(50):
            self.forget()
            self.assertIsNone(_page.cpus())
        maps = Path("/proc/self/maps").read_text()
        self.assertLess(maps.count(str(self.path)), 5)

    def test_threads_that_ask_together_are_all_told(self):
        Writer(self.path).publish(3)
        inside, go = threading.Event(), threading.Event()
        page, told = _page._Page, []

        def slow(path):
            inside.set()
            go.wait(20)
            return page(path)

        _page._Page = slow
        self.addCleanup(setattr, _page, "_Page", page)
        threads = [threading.Thread(target=lambda: told.append(_page.cpus())) for _ in range(2)]
        threads[0].start()
        inside.wait(20)
        threads[1].start()
        go.set()
        for thread in threads:
            thread.join(20)
        self.assertEqual(told, [3, 3])

    def test_waiting_ends_with_a_change_or_with_the_time(self):
        writer = Writer(self.path)
        writer.publish(1)
        seen = _page.wait()
        self.assertEqual(_page.wait(seen, 0.01), seen)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(_page.wait(seen, 60)))
        thread.start()
        writer.publish(2)
        thread.join(60)
        self.assertEqual(answers, [seen + 1])

    def test_changes_end_when_the_page_is_abandoned(self):
        writer = Writer(self.path)
        writer.publish(1)
        seen = []
        for view in _page.changes(60):
            seen.append(view.cpus)
            writer.publish([5, 3, 0][len(seen) - 1])
        self.assertEqual(seen, [1, 5, 3])

    def test_the_command_prints_the_view(self):
        Writer(self.path).publish(6, 64, online=(1, 0))
        command = [sys.executable, "-m", "elbowroom"]
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        shown = json.loads(done.stdout)
        self.assertEqual((shown["cpus"], shown["memory"], shown["online"]), (6, 64, [0, 1]))
        self.path.unlink()
        self.assertEqual(subprocess.run(command, cwd=HERE, capture_output=True).returncode, 1)


if __name__ == "__main__":
    unittest.main()
