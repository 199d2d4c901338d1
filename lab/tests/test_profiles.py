"""What the jobs about profiles make of the product's answers."""

import unittest

from lab import profiling
from lab.jobs import profile_applications as applications
from lab.jobs import profile_startup as startup

try:
    import numpy
except ImportError:
    numpy = None


def run(number, name, latency_ms, kernel):
    starts = [{"application": i % 2, "latency_usec": (latency_ms + i) * 1000} for i in range(8)]
    at = {"rate": 2.0, "failures": 0, "achieved_per_second": 2.0, "saturated": False, "requests": starts}
    cost = {
        "frequency_hz": 1000, "starts": 8, "kernel": kernel, "user": 80, "told": 80, "resolved": {"named": 1, "frames": 1},
        "samples": {"kernel_threads": 0, "others": 0, "lost": 0}, "programs": [{"name": "runc", "kernel": kernel, "user": 80}],
        "families": [{"family": "page_faults", "kernel": kernel, "user": 0}],
    }  # fmt: skip
    answer = {"engine": name, "version": "1", "start": "x", "rates": [at], "breakdown": cost}
    return {"round": number, "name": name, "profiler_percent": 1.0, **answer}


class Startup(unittest.TestCase):
    def test_rounds_come_to_medians_and_ranges(self):
        runs = [run(0, "runc", 10, 80), run(1, "runc", 30, 240), run(2, "runc", 20, 160)]
        studied = startup.study({"compare": "engines", "runs": runs, "skipped": {}})
        [row] = studied["latency"]
        self.assertEqual(row["p50"], (23, 13, 33))
        self.assertEqual((row["mean"].median, row["p95"].median), (23.5, 27))
        self.assertEqual((studied["families"], studied["spent"]), (["page_faults"], {"runc": [20, 10]}))
        share = studied["collectives"]["runc"]["memory and process start in the kernel"]
        self.assertAlmostEqual(share.median, 100 * 160 / 240)

    def test_the_difference_of_pairs_is_taken_within_a_round(self):
        studied = startup.study({"compare": "views", "runs": [run(0, "a", 10, 1), run(1, "a", 500, 1)], "skipped": {}})
        self.assertEqual(studied["pairs"][0]["difference"], (1, 1, 1))


class Applications(unittest.TestCase):
    def test_a_copy_is_no_duplicate_for_the_thesis(self):
        classes = dict.fromkeys(applications.CLASSES, 0) | {"read": 30, "cow": 50, "shared": 5}
        faults = {"duplicates": 60, "classes": list(classes.values())}
        self.assertEqual(applications.duplicated(faults), 35)
        self.assertEqual(applications.duplicated(faults | {"duplicates": 20}), 20)

    def test_a_look_that_missed_a_container_stands_for_nothing(self):
        look = lambda *processes: {"containers": [{"processes": count} for count in processes], "total": {"entries": 9}}
        self.assertEqual(applications.tally(look(1, 2, 1, 1))["entries"], 9)
        with self.assertRaisesRegex(RuntimeError, "of 3 containers"):
            applications.tally(look(1, 0, 1, 1))

    def test_a_function_has_no_steady_state_and_is_in_no_mean_of_it(self):
        def app(name, groupable, looks):
            tally = dict.fromkeys(applications.TALLY, 0) | {"entries": 100, "groupable": groupable}
            faults = {"total": 10, "duplicates": 2, "cpu_usec": 5, "classes": [10, 0, 0, 0, 0, 0], "tier": "functions"}
            return {"run": 0, "name": name, "addresses": "fixed", "faults": faults, **dict.fromkeys(looks, tally)}

        both = ["initial", "steady"]  # of a function, in results of before
        apps = [app("fio", 40, both), app("uri-dense", 80, ["initial"]), app("dense", 90, both)]
        rows = applications.study({"steady_s": 1, "faults_s": 1, "applications": apps})["means"]["rows"]
        self.assertEqual((rows["groupable, initial"], rows["groupable, steady"]), ((70, None), (40, None)))

    @unittest.skipUnless(numpy, "needs numpy: tools/setup lab")
    def test_an_entry_is_groupable_where_page_and_frame_are_the_same(self):
        from lab import page_tables

        table = lambda *pairs: tuple(numpy.array(column, dtype=numpy.uint64) for column in zip(*pairs))
        tables = [table((1, 10), (2, 20), (3, 30)), table((1, 10), (2, 21), (4, 30))]
        active = 1 << page_tables.ACTIVE
        flags = lambda frames: numpy.where(frames >= 20, active, 0).astype(numpy.uint64)
        found = page_tables.tally(tables, flags)
        self.assertEqual(found, {"entries": 6, "groupable": 2, "active": 4, "active_groupable": 0, "huge": 0})
        every = page_tables.tally(tables, lambda frames: numpy.full(len(frames), active, dtype=numpy.uint64))
        self.assertEqual((every["active"], every["active_groupable"]), (6, 2))


class Turns(unittest.TestCase):
    def test_each_is_first_in_turn(self):
        self.assertEqual([profiling.rotated("abc", by)[0] for by in range(4)], ["a", "b", "c", "a"])
        self.assertEqual(profiling.rotated([], 3), [])
