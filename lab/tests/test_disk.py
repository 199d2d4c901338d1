"""Loads on disks, what fio is told and says, and what a run amounts to."""

import os
import socket
import tempfile
import threading
import unittest
from pathlib import Path

from lab import fio, qmp
from lab.jobs import disk_buffered, disk_table, disk_two
from lab.jobs.disk import arms, loads
from lab.jobs.disk.figure import stretches
from lab.jobs.disk.study import answer, figures, relief, study, truth


def spans(told):
    """Of seconds with not enough for all."""
    found = []
    for second in (second for second in range(told["seconds"]) if loads.contested(told, second)):
        if found and found[-1][1] == second:
            found[-1] = (found[-1][0], second + 1)
        else:
            found.append((second, second + 1))
    return found


def w1(a, b, policy="lifeline", **more):
    """A run of W1 in which A gets `a` and B gets `b` percent of the disk once the burst has begun."""
    def series(quiet, later):
        kb = [min(second, 25) * quiet * 10 + max(second - 25, 0) * later * 10 for second in range(106)]
        caps = [700 if second > 50 else None for second in range(106)]
        return {"ms": [second * 1000 for second in range(106)], "kb": kb, "cap_kb": caps, **more}
    known = {"disk": [[30_000, "share", 900]], "lifelines": [[], []], "alerts": []}
    both = [series(20, a), series(10, b)]
    return {"policy": policy, "disk": "loop0", "skew_ms": 0, "speeds": [[0, 1_000_000]], "series": both, "told": known}  # fmt: skip


class Loads(unittest.TestCase):
    def test_a_burst_leaves_not_enough_for_all_and_a_turn_only_while_the_disk_is_slow(self):
        told = {name: loads.paper(name, "paper") for name in loads.PAPER}
        expected = {"w1": [(25, 105)], "w2": [(25, 50), (75, 100)], "w3": [(50, 85)], "w4": [(15, 90)], "speed": [(15, 210)]}
        self.assertEqual({name: spans(one) for name, one in told.items()}, expected)
        self.assertEqual(loads.bursts(told["w4"]["actors"][1], told["w4"]), [(15, 90)])
        self.assertEqual([loads.speed(told["w3"], second) for second in (84, 85)], [550_000, 1_000_000])

    def test_victims_of_every_yardstick_want_no_more_than_there_is_without_the_hogs(self):
        for name in loads.YARDSTICKS:
            for scale in loads.scales(name):
                told = loads.yardstick(name, scale, lambda way, block, depth: block * 10_000)
                steady = sum(loads.demand(one, told, 0) for one in told["actors"] if one["steady"])
                self.assertLessEqual(steady, told["capacity"] * 0.6, name)
                quiet, burst, rest = loads.TIMES[scale]
                self.assertEqual(spans(told), [(quiet, quiet + burst)], f"{name} at {scale}")
                self.assertEqual(told["seconds"], quiet + burst + rest)

    def test_on_a_disk_of_memory_each_has_its_part_of_what_it_could_have_alone(self):
        told = loads.yardstick("sizes-4k-1m", "nvme", lambda way, block, depth: {4096: 10_000_000, 1 << 20: 1_000_000_000}[block])
        victim = told["actors"][0]
        self.assertEqual((loads.want(victim, 0), loads.demand(victim, told, 0), told["capacity"]), (2_000_000, 200_000_000, 1_000_000_000))

    def test_a_third_is_kept_for_the_final_run_and_the_seed_says_which(self):
        self.assertEqual(len(loads.unseen(1)), len(loads.YARDSTICKS) // 3)
        self.assertEqual(loads.unseen(1), loads.unseen(1))
        self.assertGreater(len({frozenset(loads.unseen(seed)) for seed in range(9)}), 1)
        self.assertFalse(loads.unseen(1) & set(loads.PAPER))

    def test_alone_has_the_victims_without_the_hogs(self):
        told = loads.yardstick("eight", "paper", None)
        self.assertEqual([one["name"] for one in arms.part("alone", told)["actors"]], [f"A{n}" for n in range(1, 7)])
        self.assertEqual(len(arms.part("none", told)["actors"]), 8)
        turns = arms.part("alone", loads.paper("w3", "paper"))
        self.assertEqual([one["name"] for one in turns["actors"]], ["A"])

    def test_on_the_second_of_two_disks_there_is_always_enough(self):
        first, second = disk_two.timelines()
        self.assertEqual((spans(first), spans(second)), ([(15, 90)], []))
        self.assertEqual(first["seconds"], second["seconds"])


class Fio(unittest.TestCase):
    def test_a_demand_is_forgotten_every_few_seconds_and_a_flood_runs_through(self):
        phases = [{"at": 0, "want": 100}, {"at": 7, "want": 2000}, {"at": 30, "want": 0}]
        text = fio.job_file("/dev/x", "read", {"block": 4096, "depth": 4}, phases, 60, 1000)
        self.assertEqual(text.split("[at")[1:], ["0]\nstartdelay=1\nruntime=5\nrate=100\n", "5]\nstartdelay=6\nruntime=2\nrate=100\n",
                                                 "7]\nstartdelay=8\nruntime=23\nrate=2000\n"])  # fmt: skip
        self.assertTrue(text.startswith("[global]\nfilename=/dev/x\nrw=randread\ndirect=1\nioengine=libaio\nbs=4096\niodepth=4\n"), text)

    def test_what_is_read_and_written_has_its_part_of_the_rate_each(self):
        phases = [{"at": 0, "want": 100}]
        rate = lambda way: fio.job_file("/dev/x", way, {"block": 1, "depth": 1}, phases, 1, 1000).rpartition("rate=")[2].strip()
        self.assertEqual([rate(way) for way in ("read", "write", "mixed", "log")], ["100", ",100", "70,30", ",100"])

    def test_histograms_of_jobs_are_added_by_the_second_they_were_taken_in(self):
        with tempfile.TemporaryDirectory() as scratch:
            logs = [Path(scratch, name) for name in ("1", "2")]
            logs[0].write_text("5250, 0, 4096, 0, 3, 0\n6200, 1, 4096, 1, 0, 0\n")
            logs[1].write_text("5300, 0, 4096, 0, 2, 1\n")
            self.assertEqual(fio.histograms(logs, 4000), {1: {16: 5, 24: 1}, 2: {8: 1}})

    def test_buckets_are_those_of_fio(self):
        # By fio's plat_idx_to_val: 127 ns is the last that has a bucket of its own; then 64 buckets to a power of two.
        uppers = [fio.bucket_ns(number) for number in range(232)]
        self.assertEqual(uppers[:3] + uppers[15:18], [8, 16, 24, 128, 144, 160])
        self.assertEqual(uppers[23:25], [256, 288])
        self.assertEqual(uppers, sorted(set(uppers)))

    def test_quantiles_are_upper_bounds_of_buckets(self):
        self.assertEqual(fio.quantiles_us({1000: 500, 2000: 490, 9000: 10}), [1, 2, 9])
        self.assertIsNone(fio.quantiles_us({}))


class Qemu(unittest.TestCase):
    def test_an_answer_is_told_from_greetings_events_and_an_earlier_negotiation(self):
        ours, theirs = socket.socketpair()
        error = '{"error": {"desc": "%s"}, "id": %%d}'
        answers = [error % "already complete", '{"return": {}, "id": %d}', error % "Device 'x' not found"]

        def qemu():
            os.write(theirs.fileno(), b'{"QMP": {}}\r\n')
            questions = theirs.makefile()
            for text in answers:
                number = int(questions.readline().rpartition('"id": ')[2].rstrip("}\n"))
                os.write(theirs.fileno(), f'{{"event": "X"}}\r\n{text % number}\r\n'.encode())
            questions.close()
            theirs.close()

        thread = threading.Thread(target=qemu)
        thread.start()
        talk = qmp.Qmp(ours)
        talk.execute("stop")
        with self.assertRaisesRegex(OSError, "Device 'x' not found"):
            talk.execute("stop")
        thread.join()
        with self.assertRaises(OSError):
            talk.execute("stop")
        ours.close()


class Study(unittest.TestCase):
    def test_a_victim_that_gets_half_of_what_it_wants_is_half_isolated(self):
        found = figures(w1(10, 90), loads.paper("w1", "paper"))
        self.assertAlmostEqual(found["isolation_contested"], 0.5)
        self.assertAlmostEqual(found["isolation"], (25 + 80 * 0.5) / 105)
        self.assertAlmostEqual(found["isolation_first"], 0.5)
        self.assertAlmostEqual(found["conservation"], 1)
        self.assertEqual((found["burst_s"], found["burst_kept_s"]), ([1.0], [1.0]))

    def test_a_burst_that_is_held_back_wastes_the_disk_and_is_never_served(self):
        found = figures(w1(20, 40), loads.paper("w1", "paper"))
        self.assertEqual(found["isolation"], 1)
        self.assertAlmostEqual(found["conservation_contested"], 0.6)
        self.assertEqual((found["burst_s"], found["burst_kept_s"]), ([None], [None]))
        self.assertAlmostEqual(found["burst_part"][0], 0.5)
        self.assertEqual(found["learned"], [(85, 0.9)])
        self.assertAlmostEqual(found["changes_per_min"], 60 / 105, msg="both changed once")

    def test_a_change_of_speed_within_an_interval_counts_by_its_time(self):
        speeds = [[0, 1000], [1500, 500]]
        self.assertEqual([truth(speeds, at, at + 1000) for at in (0, 1000, 2000)], [1000, 750, 500])

    def test_p99_is_compared_with_what_the_victim_has_alone_in_the_same_run(self):
        arm = lambda policy, us: w1(20, 80, policy, latency_us=[[us, 100]])
        runs = [[arm("alone", 100), arm("none", 900)], [arm("none", 400), arm("alone", 200)]]
        raw = {"workload": "w1", "timeline": loads.paper("w1", "paper"), "runs": runs}
        self.assertEqual([one["p99_ratio"] for one in study(raw)["figures"]["none"]], [9, 2])
        self.assertEqual(list(study(raw)["figures"]), ["alone", "none"])

    def test_what_the_disk_wrote_in_no_containers_name_is_work_too(self):
        arm = w1(20, 0, disk_kb=None)
        told = loads.paper("w1", "paper")
        without = figures(arm, told)["conservation_contested"]
        arm["disk_kb"] = [min(second, 25) * 300 + max(second - 25, 0) * 1000 for second in range(106)]
        self.assertAlmostEqual(without, 0.2)
        self.assertAlmostEqual(figures(arm, told)["conservation_contested"], 1)

    def look(self, victim, caps):
        """A burst at 0 that the kernel sees; `victim(ms)`: thousands of bytes of it so far."""
        ms = list(range(-1000, 5000, 50))
        changed = [[at, caps(at)] for n, at in enumerate(ms) if not n or caps(at) != caps(ms[n - 1])]
        hog = [(at + 1000) // 10 if at < 0 else 100 + at for at in ms]
        return {"at": 25, "ms": ms, "victim_kb": [victim(at) for at in ms], "hog_kb": hog, "caps_kb": changed}

    def test_a_limit_answers_when_it_first_is_there(self):
        flowing = lambda ms: (ms + 1000) // 5
        later = self.look(flowing, lambda ms: 700 if ms >= 800 else None)
        self.assertEqual(answer(later), 700, "within 100 ms the kernel counts as much as in a second")
        self.assertEqual(answer(self.look(flowing, lambda ms: 120)), 0, "it was held to its habit")
        self.assertIsNone(answer(self.look(flowing, lambda ms: None)))

    def test_relief_is_when_a_victim_has_again_what_it_wants(self):
        told, free = loads.paper("w1", "paper"), lambda ms: None
        self.assertEqual(relief(self.look(lambda ms: (ms + 1000) / 5, free), told), 0)
        starved = lambda ms: (min(ms, 0) + 1000) / 5 + max(ms - 2000, 0) / 5
        self.assertAlmostEqual(relief(self.look(starved, free), told), 1900, delta=100)
        self.assertIsNone(relief(self.look(lambda ms: (min(ms, 0) + 1000) / 5, free), told))

    def test_a_limit_that_is_taken_off_leaves_a_gap(self):
        self.assertEqual(stretches(enumerate([1.0, 9.0, None, 2.0]), 5.0), [[(0, 1.0), (1, 5.0)], [(3, 2.0)]])

    def test_the_rate_of_a_way_is_that_of_its_middle_however_long_it_took_to_begin(self):
        steady = [[0, 0, 0], *([5000 + n * 10, 3, n * 40] for n in range(1, 101))]
        self.assertAlmostEqual(disk_buffered.rate(steady), 4e6, delta=1e4)
        self.assertGreater(disk_buffered.rate([[0, 0, 0], [20, 1, 1], [40, 1, 32_000]]), 1e9)


class Table(unittest.TestCase):
    def test_a_policy_that_serves_a_victim_worse_than_none_misses_a_goal(self):
        arm = lambda isolation, **more: {**dict.fromkeys(disk_table.KEPT), "isolation": isolation, "isolation_p05": 0.95, **more}
        row = {"load": "w3", "scale": "paper", "cgroups": "v1", "absent": {}}
        of_runs = lambda values: {key: [value] for key, value in values.items()}
        row["arms"] = {"none": of_runs(arm(0.99, answer_ms=[])), "lifeline": of_runs(arm(0.972, p99_ratio=2.0, answer_ms=[100, None]))}
        studied = disk_table.study({"rows": [row], "unseen": False, "left_out": 0})
        self.assertEqual(studied["rows"][0]["misses"], {"none": [], "lifeline": ["p99 ratio 2.0", "none serves the victim better"]})
        self.assertEqual(disk_table.wait_rows(studied["waits"]), [["lifeline", 2, "100 ms", "100 ms", 1]])


if __name__ == "__main__":
    unittest.main()
