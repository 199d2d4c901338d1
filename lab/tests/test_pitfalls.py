"""The pitfalls' stories and what is made of them."""

import unittest

from lab.jobs.pitfalls import scenes, throughput


def machine(cgroup_v2=False, stand_in=False):
    return {"mib": 1000, "stand_in": stand_in, "cgroup_v2": cgroup_v2, "guest": not stand_in, "thp": ""}


MACHINES = [machine(v2, stand_in) for v2 in (False, True) for stand_in in (False, True)]


class Scenes(unittest.TestCase):
    def test_every_scene_shows_the_pitfall_and_what_helps_on_every_kernel(self):
        for scene in scenes.TITLES:
            for here in MACHINES:
                if scene in scenes.NEEDS_SWAP | {"V.A"} and here["stand_in"]:
                    continue
                strategies = [arm["strategy"] for arm in scenes.arms(scene, here)]
                if scene != "V.A":
                    self.assertIn("none", strategies, scene)
                    self.assertTrue(any(strategy not in ("none", "baseline") for strategy in strategies), scene)

    def test_what_works_on_the_whole_machine_is_left_out_where_a_cgroup_stands_for_it(self):
        for scene in scenes.TITLES:
            arms = scenes.arms(scene, machine(stand_in=True))
            self.assertFalse([arm for arm in arms if arm["strategy"] in scenes.WHOLE_MACHINE or arm["others"] == "anon"])

    def test_arms_of_a_scene_have_names_of_their_own(self):
        for scene in scenes.TITLES:
            names = [scenes.name(scene, arm) for arm in scenes.arms(scene, machine(cgroup_v2=True))]
            self.assertEqual(len(set(names)), len(names), names)

    def test_the_application_fits_alone_and_not_beside_what_happens(self):
        for mib in (600, 1000, 2000):
            own = scenes.story("III.B", mib)
            heap = scenes.largest_heap_mib(own)
            self.assertLessEqual(heap + scenes.JVM_MIB, own["limit_mib"])
            self.assertGreater(own["grow_mib"] + own["file_mib"] + scenes.JVM_MIB, own["limit_mib"])
            two = scenes.story("III.D", mib)
            self.assertGreater(2 * (two["held_mib"] + scenes.JVM_MIB) + two["host"]["grow"], mib)
            stolen = scenes.story("III.C", mib)
            self.assertGreater(2 * (stolen["file_mib"] + scenes.JVM_MIB) + stolen["others_mib"], mib)
            tight = scenes.story("V.D", mib)
            self.assertGreater(tight["heap_mib"], tight["tight_mib"])
            self.assertLess(tight["held_mib"], tight["tight_mib"], "what lives fits in the limit")

    def test_the_papers_own_limit_is_for_the_strategy_alone(self):
        story = scenes.story("V.C", 1000)
        limits = {arm["strategy"]: scenes.limit_mib(arm, story) for arm in scenes.arms("V.C", machine())}
        self.assertEqual(limits["none"], limits["baseline"])
        self.assertEqual(limits["room_for_cache"], limits["none"] + story["file_mib"])
        story = scenes.story("V.D", 1000)
        self.assertEqual(scenes.limit_mib({"strategy": "none"}, story) * 2, story["heap_mib"])
        self.assertGreater(scenes.limit_mib({"strategy": "baseline"}, story), story["heap_mib"])


class Rates(unittest.TestCase):
    def test_a_late_sample_counts_by_its_own_time(self):
        done = [(0, 0), (150, 150), (200, 200), (300, 500)]
        self.assertAlmostEqual(throughput.rate(done, 0, 100), 1000)
        self.assertAlmostEqual(throughput.rate(done, 200, 300), 3000)
        self.assertEqual((throughput.when(done, 175), throughput.when(done, 501)), (175, None))
        self.assertEqual((throughput.when([(200, 400), (300, 500)], 100), throughput.done_at([(200, 400)], 50)), (50, 100))

    def test_the_first_pass_is_compared_with_what_comes_after(self):
        story = scenes.story("III.A", 1000, emulated=True)
        whole = scenes.first_pass(story)
        # The first pass in a second, then ten times as fast.
        done = [(i * 100, whole * (i if i <= 10 else 10 + (i - 10) * 10) // 10) for i in range(61)]
        first, after = throughput.rates("III.A", story, done)
        self.assertAlmostEqual(after / first, 10, places=1)
        self.assertEqual(throughput.rates("III.A", story, [(0, 0), (6000, whole // 2)]), ((whole // 2) / 6, None))

    def test_what_happens_later_is_compared_with_what_was_before(self):
        story = scenes.story("III.D", 1000)
        start, end = story["disturbed"]
        done = [(ms, min(ms, start) + min(max(ms, start), end) / 2) for ms in range(0, story["end"] + 1, 100)]
        disturbed, quiet = throughput.rates("III.D", story, done)
        self.assertAlmostEqual(disturbed / quiet, 0.5, places=2)

    def test_the_evaluation_is_compared_with_the_baseline_of_its_own_run(self):
        story = scenes.story("V.D", 1000, seconds=10)
        arm = lambda strategy, count: {"variant": {"others": "nothing", "strategy": strategy}, "done": [[0, 0], [10_000, count]]}
        runs = [[arm("baseline", 1000), arm("none", 40)], [arm("none", 10), arm("baseline", 500)]]
        parts = throughput.parts_of({"scene": "V.D", "story": story, "runs": runs}, "V.D")
        self.assertEqual(parts["nothing is done"], [4, 2])

    def test_what_a_kernel_does_not_count_is_absent_and_not_zero(self):
        arm = {"app": {"limit_hit": 3}, "whole": {}, "memory": [[0, [1, 2, 0]]]}
        found = throughput.counters(machine(), [arm])
        self.assertEqual((found["limit"], found["out"]), (3, None))
