"""The pure parts of the runtimes' figures: threads, arms, rounds, and what study makes of raw numbers."""

import argparse
import contextlib
import io
import json
import subprocess
import tempfile
import unittest
from pathlib import Path

from lab import ROOT
from lab.jobs import large, runtimes
from lab.jobs.runtimes import collect, heap, old, openmp, place, rounds
from lab.jobs.runtimes.stage import Broken, Program

PARSER = argparse.ArgumentParser()
runtimes.options(PARSER)


def options(*words):
    return PARSER.parse_args(["--figure", "6", *words])


def raw(figure, arms, **more):
    common = {
        "figure": figure,
        "cpus": 16,
        "believed": 16,
        "most": 13,
        "part": 3,
        "containers": 5,
        "collector": "parallel",
        "patience_s": 90,
        "broken": [],
    }
    return {**common, "arms": arms, **more}


def jvm(total_ms, gc_ms=500.0, threads=()):
    return {"outcome": "finished", "total_ms": total_ms, "gc_ms": gc_ms, "pauses": 1, "cpu_s": 2, "threads": list(threads), "used": None}


class Threads(unittest.TestCase):
    def test_gc_threads_are_those_of_hotspot(self):
        self.assertEqual([place.gc_threads(cpus) for cpus in (1, 2, 8, 16, 20)], [1, 2, 8, 13, 15])

    def test_the_papers_machine_has_the_papers_threads_without_pretending(self):
        self.assertEqual(place.believed(20, 5, 3.75, place.gc_threads), 20)
        self.assertEqual(place.believed(20, 5, 5), 20)

    def test_a_small_machine_is_made_to_have_as_many_for_each_cpu(self):
        self.assertEqual(place.believed(2, 5, 5), 2)
        # One and two threads in each are as near to 7.5 of five: the machine's own.
        self.assertEqual(place.believed(2, 5, 3.75, place.gc_threads), 2)
        self.assertEqual(place.gc_threads(place.believed(2, 2, 3.75, place.gc_threads)), 4)
        self.assertEqual(place.gc_threads(place.believed(2, 5, 32, place.gc_threads)), 13)


class Rounds(unittest.TestCase):
    def measure(self, raw, runs, tell=lambda **key: {}, seconds=1e6):
        group = [{"program": "h2", "arm": arm} for arm in ("vanilla", "stock", "adaptive")]
        with contextlib.redirect_stdout(io.StringIO()):
            found = rounds.measure(raw, [group], tell, lambda raw: None, runs, rounds.Clock(seconds))
        return [(arm["round"], arm["arm"]) for arm in found["arms"]]

    def test_the_first_arm_rotates(self):
        order = [arm for _, arm in self.measure({"arms": [], "broken": []}, 2)]
        self.assertEqual(order, ["vanilla", "stock", "adaptive", "stock", "adaptive", "vanilla"])

    def test_a_run_that_was_cut_goes_on_where_it_was(self):
        before = {"arms": [{"round": 0, "program": "h2", "arm": "vanilla"}], "broken": []}
        self.assertEqual(self.measure(before, 1), [(0, "vanilla"), (0, "stock"), (0, "adaptive")])

    def test_no_arm_begins_when_the_time_is_over(self):
        self.assertEqual(self.measure({"arms": [], "broken": []}, 5, seconds=-1), [])

    def test_an_arm_that_breaks_is_said_and_the_others_are_measured(self):
        def tell(program, arm):
            if arm == "stock":
                raise Broken("no heap")
            return {}

        found = {"arms": [], "broken": []}
        self.assertEqual(self.measure(found, 1, tell), [(0, "vanilla"), (0, "adaptive")])
        self.assertEqual(found["broken"], ["h2, stock: no heap"])

    def test_a_name_that_there_is_not_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "no arm fast here: vanilla"):
            rounds.chosen(["fast"], ["vanilla"], "arm")


class Collect(unittest.TestCase):
    def test_a_machine_that_did_not_finish_counts_as_long_as_it_was_waited_for(self):
        arm = {"machines": [jvm(10_000), jvm(None)]}
        self.assertEqual((collect.total_s(raw(6, []))(arm), collect.gc_s(arm)), (50.0, 0.5))

    def test_ratios_are_within_a_round(self):
        seen = [(0, "vanilla", 1000), (0, "adaptive", 800), (1, "adaptive", 700), (2, "vanilla", 2000), (2, "adaptive", 1000)]
        arms = [{"round": n, "program": "h2", "containers": 1, "arm": arm, "machines": [jvm(ms)]} for n, arm, ms in seen]
        rows = {row["arm"]: row for row in collect.study(raw(6, arms))}
        self.assertEqual(rows["adaptive"]["part"], [0.8, 0.5])
        self.assertEqual((rows["adaptive"]["runs"], rows["vanilla"]["part"]), (3, [1, 1]))

    def test_adaptive_machines_choose_among_all_threads_and_no_other_arm_has_a_view(self):
        known = collect.settings(raw(6, []))
        self.assertEqual({name for name in known if known[name][1]}, {"adaptive", "shipped"})
        self.assertIn("-XX:ParallelGCThreads=13", known["adaptive"][0])
        self.assertEqual(known["stock"][0], [])
        for wanted in collect.ARMS.values():
            self.assertLessEqual(set(wanted), set(known))

    def test_masks_need_a_machine_that_has_two_for_two(self):
        with self.assertRaises(runtimes.collect.Refused):
            collect.groups(raw(7, [], cpus=2), options(), real=True)
        counts = {key["containers"] for group in collect.groups(raw(7, [], cpus=20), options(), real=True) for key in group}
        self.assertEqual(counts, {2, 5, 10})

    def test_without_their_libraries_only_our_programs_are_there(self):
        programs = {key["program"] for group in collect.groups(raw(6, []), options(), real=False) for key in group}
        self.assertEqual(programs, {"trees", "xslt"})


class OpenMp(unittest.TestCase):
    def test_a_report_is_ours_or_npbs(self):
        self.assertEqual(openmp.parse("1.2500 1 16 3.5\n"), (1.25, [1, 16], True))
        self.assertEqual(
            openmp.parse(" Verification    =               SUCCESSFUL\n Time in seconds =                     0.33\n"), (0.33, None, True)
        )
        self.assertEqual(
            openmp.parse(" Verification    =             UNSUCCESSFUL\n Time in seconds =                     0.33\n"), (0.33, None, False)
        )
        for said in ("", "1.25 1\n", "x 1 2 3\n", "1.25 -1 2 3\n"):
            self.assertIsNone(openmp.parse(said)[0], said)

    def test_a_kernel_that_was_cut_off_counts_as_long_as_it_was_waited_for(self):
        arm = {
            "round": 0,
            "scene": "shares",
            "kernel": "cg",
            "arm": "static",
            "machines": [{"seconds": 2.0, "cpu_s": 1}, {"seconds": None, "cpu_s": 1}],
        }
        row = openmp.study({"cpus": 2, "containers": 2, "quota": 1, "patience_s": 10, "arms": [arm]})[0]
        self.assertEqual((row["time"], row["cut"], row["all"], row["cpu"]), ([6.0], 1, 2, [2]))

    def test_adaptive_is_compared_with_the_best_hand_setting(self):
        arm = lambda name, seconds: {
            "round": 0,
            "scene": "quota",
            "kernel": "ep",
            "arm": name,
            "machines": [{"seconds": seconds, "cpu_s": 1}],
        }
        arms = [arm("static", 4), arm("hand 1", 2), arm("hand 2", 1), arm("adaptive", 1.1)]
        rows = openmp.study({"cpus": 2, "containers": 5, "quota": 1.5, "patience_s": 10, "arms": arms})
        self.assertEqual(openmp.best_hand(rows), [("quota", "ep", "hand 2", [1.1])])

    def test_hands_are_the_part_rounded_down_and_up(self):
        shares, quota = (list(openmp.arms(scene, {"cpus": 16, "containers": 5, "quota": 1.5})) for scene in ("shares", "quota"))
        self.assertEqual([name for name in shares if name.startswith("hand") and "passive" not in name], ["hand 3", "hand 4"])
        self.assertEqual([name for name in quota if name.startswith("hand")], ["hand 1", "hand 2", "hand 2, passive"])


class Heap(unittest.TestCase):
    def test_a_sample_has_four_numbers_and_other_lines_are_none(self):
        self.assertEqual(heap.heap_sample("at 1200 34 60 128"), [1200, 34, 60, 128])
        for line in ("at 1200 34 60", "done 12", "at x 1 2 3", ""):
            self.assertIsNone(heap.heap_sample(line), line)

    def test_five_live_heaps_are_the_papers_part_of_the_machine_and_five_largest_are_more_than_it(self):
        mib = heap.sizes(12, 128 << 10, None)
        self.assertEqual((mib["hard"], mib["soft"]), (30 << 10, 15 << 10))
        self.assertAlmostEqual(5 * mib["live"] / mib["machine"], 0.78, 3)
        self.assertGreater(5 * mib["most"], mib["machine"])
        self.assertLess(5 * mib["hand"], mib["machine"])

    def test_a_heap_of_figure_11_may_grow_beyond_the_limit_and_what_lives_may_not(self):
        mib = heap.sizes(11, 128 << 10, 1024)
        self.assertEqual((mib["start"], mib["most"]), (512, 32 << 10))
        self.assertLess(mib["live"], mib["hand"])

    def test_a_row_says_how_programs_ended_and_times_those_that_finished(self):
        machine = lambda outcome, ms: {"outcome": outcome, "total_ms": ms, "gc_ms": 10, "peak_mib": 5, "heap": [[0, 1, 2, 3], [9, 4, 6, 0]]}
        arm = {
            "program": "grow",
            "containers": 2,
            "arm": "elastic",
            "round": 0,
            "machines": [machine("killed for memory", None), machine("finished", 1500)],
        }
        row = heap.study({"mib": {"machine": 1000}, "patience_s": 60, "arms": [{**arm, "free_mib": [[0.5, 700], [1.0, 300]]}]})[0]
        self.assertEqual(row["ends"], {"finished": 1, "killed for memory": 1})
        self.assertEqual((row["time"], row["committed"], row["free"]), ([1.5], [6, 6], 300))


class Results(unittest.TestCase):
    def test_every_result_that_is_kept_is_studied(self):
        found = sorted([*ROOT.glob("lab/results/*-runtimes-*/raw.json"), *ROOT.glob("lab/results/*-large-*/raw.json")])
        self.assertTrue(found)
        for path in found:
            job = large if "-large-" in path.parent.name else runtimes
            self.assertTrue(job.study(json.loads(path.read_text())), path)

    def test_a_hand_setting_of_an_old_result_keeps_its_number(self):
        arm = {
            "program": "trees",
            "variant": {"hand": 4},
            "machines": [{"outcome": "done", "total_ms": 5, "gc_ms": 1.0, "pauses": 1, "cpu_ms": 1500, "threads": [[7, 4]]}],
        }
        before = {
            "collect": {
                "figure": "over_threading",
                "collector": "parallel",
                "java": "17",
                "cpus": 2,
                "pretended": 16,
                "containers": 1,
                "size_percent": 100,
                "runs": [[arm]],
            }
        }
        now = old.of_today(before)
        self.assertEqual((now["figure"], now["most"], now["arms"][0]["arm"]), (2, 13, "hand 4"))
        self.assertEqual((now["arms"][0]["machines"][0]["cpu_s"], now["arms"][0]["machines"][0]["threads"]), (1.5, [[7, 4, None]]))


class Large(unittest.TestCase):
    def test_a_figure_has_its_part_of_the_time_that_is_left(self):
        self.assertEqual(large.share("12", ["12"], 100), 100)
        self.assertAlmostEqual(large.share("6", ["6", "2"], 170), 170 * 180 / 250)


class Outcomes(unittest.TestCase):
    def outcome(self, status, complaint="", cut_off=False):
        with tempfile.NamedTemporaryFile("w") as complaints, subprocess.Popen(["true"], stdout=subprocess.PIPE) as process:
            complaints.write(complaint)
            complaints.flush()
            program = Program("p", process, Path(complaints.name))
            program.status, program.cut_off = status, cut_off
            program.said = "ready\nstart 17\ndone 1234\n" if status == 0 else "ready\n"
            return program.report()

    def test_a_program_that_finished_says_how_long_it_took(self):
        self.assertEqual(self.outcome(0), {"outcome": "finished", "total_ms": 1234, "cpu_s": None})

    def test_a_program_that_did_not_finish_has_a_reason(self):
        heap_space = "Exception in thread main java.lang.OutOfMemoryError: Java heap space"
        self.assertEqual(self.outcome(1, heap_space)["outcome"], "OutOfMemoryError")
        self.assertEqual(
            [self.outcome(status)["outcome"] for status in (137, -9, 3)], ["killed for memory", "killed for memory", "failed (3)"]
        )
        self.assertEqual(self.outcome(-9, cut_off=True), {"outcome": "not finished", "total_ms": None, "cpu_s": None})


class Kit(unittest.TestCase):
    def test_the_picture_is_a_png_of_its_size(self):
        picture = place.black(64)
        self.assertEqual((picture[:8], picture[12:16], picture[16:24]), (b"\x89PNG\r\n\x1a\n", b"IHDR", bytes([0, 0, 0, 64] * 2)))


if __name__ == "__main__":
    unittest.main()
