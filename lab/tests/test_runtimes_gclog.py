"""The parser of HotSpot's GC log."""

import tempfile
import unittest
from pathlib import Path

from lab.jobs.runtimes import gclog

G1 = """\
[12ms][gc] Using G1
[15ms][gc,init] Parallel Workers: 13
[812ms][gc,start    ] GC(0) Pause Young (Normal) (G1 Evacuation Pause)
[812ms][gc,task     ] GC(0) GC Thread: using 2 out of 13 workers
[812ms][gc,task     ] GC(0) Using 3 workers of 13 for evacuation
[815ms][gc,phases   ] GC(0)   Evacuate Collection Set: 2.4ms
[816ms][gc          ] GC(0) Pause Young (Normal) (G1 Evacuation Pause) 23M->4M(60M) 3.512ms
[816ms][gc,cpu      ] GC(0) User=0.01s Sys=0.00s Real=0.00s
[900ms][gc          ] GC(1) Concurrent Mark Cycle
[910ms][gc          ] GC(1) Pause Remark 30M->30M(60M) 0.750ms
[930ms][gc          ] GC(1) Concurrent Mark Cycle 30.123ms
"""


class Pauses(unittest.TestCase):
    def test_pauses_have_their_threads_and_concurrent_work_is_none(self):
        self.assertEqual(gclog.pauses(G1), [(816, 3.512, 2, 13), (910, 0.75, None, None)])

    def test_only_pauses_that_ended_after_the_start_count(self):
        self.assertEqual(gclog.pauses(G1, 817), [(910, 0.75, None, None)])

    def test_parallel_says_it_in_other_words(self):
        text = "[5ms][gc,task] GC(7) ParGC Thread: using 13 out of 13 workers\n"
        text += "[9ms][gc     ] GC(7) Pause Full (Ergonomics) 23M->4M(60M) 1.5ms\n"
        self.assertEqual(gclog.pauses(text), [(9, 1.5, 13, 13)])
        with self.assertRaises(ValueError):
            gclog.pauses(text.replace("1.5ms", "1,5ms"))

    def test_a_killed_machines_last_line_is_left_out_and_any_other_broken_line_is_an_error(self):
        cut = f"{G1}[950ms][gc          ] GC(2) Pause Yo"
        self.assertEqual(len(gclog.pauses(cut)), 2)
        for broken in (f"{cut}\n", "[12ms][gc] Using G1\n[13ms gc] GC(0) Pause\n", "OpenJDK 64-Bit Server VM warning: no\n"):
            with self.assertRaises(ValueError):
                gclog.pauses(broken)

    def test_a_message_of_several_lines_is_one(self):
        text = (
            "[5ms][gc,task] GC(0) calc_default_active_workers() : active_workers(): 3\n active_workers_by_JT: 6  using 9 out of 9 workers\n"
        )
        text += "[9ms][gc] GC(0) Pause Young (Normal) 2M->1M(8M) 1.5ms\n"
        self.assertEqual(gclog.pauses(text), [(9, 1.5, None, None)])

    def test_a_log_that_is_cut_or_not_there_is_read(self):
        with tempfile.TemporaryDirectory() as directory:
            log = Path(directory, "gc.log")
            self.assertEqual(gclog.of_file(log), [])
            log.write_text(f"{G1}[950ms][gc          ] GC(2) Pause Yo")
            self.assertEqual(gclog.of_file(log, 817), [(910, 0.75, None, None)])

    def test_only_other_threads_than_before_are_a_change(self):
        found = [(10, 1.0, 2, 4), (20, 1.0, 2, 4), (25, 1.0, None, None), (30, 1.0, 1, 4), (40, 1.0, 2, 4)]
        self.assertEqual(gclog.changes(found, 15), [[-5, 2, 4], [15, 1, 4], [25, 2, 4]])


if __name__ == "__main__":
    unittest.main()
