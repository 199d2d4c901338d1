"""What the jobs read, tick, api, density, kills and views make of their raw numbers."""

import unittest

from lab.jobs import api, density, kills, read, tick, views
from lab.jobs.swarm import percent


class Costs(unittest.TestCase):
    def test_a_read_is_compared_within_its_round(self):
        # The machine was ten times slower in round 1; the ratio was 5 in both.
        numbers = [(0, "native", 100), (0, "lxcfs", 500), (1, "native", 1000), (1, "lxcfs", 5000)]
        fields = {"file": read.FILES[0], "op": "open", "threads": 1, "clock_ns": 18}
        measurements = [{"round": number, "variant": variant, "p50": ns, "p99": ns, **fields} for number, variant, ns in numbers]
        studied = read.study({"iterations": 1, "pin": None, "measurements": measurements})
        self.assertEqual(studied["parts"][1, "open"][read.FILES[0]]["lxcfs / native"], (5, 5, 5))

    def test_a_read_has_columns_of_what_was_compared(self):
        fields = {"round": 0, "file": read.FILES[0], "op": "open", "threads": 1, "clock_ns": 18, "p99": 1}
        measurements = [{**fields, "variant": variant, "p50": p50} for variant, p50 in {"lxcfs-7": 600, "elbowroom": 6}.items()]
        columns = read.study({"iterations": 1, "pin": None, "measurements": measurements})["parts"][1, "open"][read.FILES[0]]
        self.assertEqual(list(columns), ["lxcfs-7 p50", "elbowroom p50", "lxcfs-7 p99", "elbowroom p99", "lxcfs-7 / elbowroom"])

    def test_percentiles_are_written_as_people_say_them(self):
        self.assertEqual([percent(nines) for nines in (0, 0.5, 1, 3, 4)], ["0 %", "68.38 %", "90 %", "99.9 %", "99.99 %"])

    def test_a_tick_before_deciding_was_measured_has_no_such_column(self):
        row = {"round": 0, "tier": "files", "groups": 10, "active_percent": 100, "tick_us": {"median": 12.5, "p95": 20, "mean": 13},
               "per_tick": {"syscalls": 21.5, "groups_read": 10}, "missed_ticks": 0}  # fmt: skip
        studied = tick.study({"rows": [row]})
        self.assertEqual(studied["settings"]["files", 100, 10]["µs per tick"].median, 12.5)
        self.assertNotIn("µs to decide", studied["figures"])

    def test_what_is_without_api_is_left_out_and_what_is_counted_adds_up(self):
        window = {"way": "off", "policy_cpu": 0.03, "view_server_cpu": 0, "api_cpu": None, "api_rss_kib": None, "snapshot_bytes": None,
                  "reads_ns": {"p50": 1000, "p99": 2000}, "failed": 0}  # fmt: skip
        studied = api.study({"containers": 1, "seconds": 1, "windows": [{**window, "round": i, "connections": 3} for i in range(2)]})
        row = dict(zip(studied["figures"], studied["rows"]["off"]))
        self.assertEqual((row["policy, %"].median, row["API, %"], row["connections"]), (3, None, 6))
        self.assertEqual(row["view server, %"].median, 0, "nothing used is a number")


class Density(unittest.TestCase):
    def verdict(self, fds):
        usage = lambda count: {"fds": count, "anon_kib": 0, "mounts": 0, "threads": 0}
        cycles = [{"empty": usage(fds(i)), "full": usage(0)} for i in range(20)]
        return density.study({"empty_before": usage(0), "cycles": cycles})["trends"]["Open descriptors"][-1]

    def test_one_descriptor_kept_per_cycle_is_growth_and_noise_is_not(self):
        self.assertEqual(self.verdict(lambda i: 30 + i), "grows")
        self.assertEqual(self.verdict(lambda i: 30 + i % 2), "does not grow")
        self.assertEqual(self.verdict(lambda i: 100 if i == 19 else 30), "does not grow", "one outlier is within twice the error")

    def test_warming_up_is_no_growth(self):
        self.assertEqual(self.verdict(lambda i: min(i, 10) * 4), "does not grow")


class Kills(unittest.TestCase):
    def test_tallies_add_up_and_means_are_weighted(self):
        tally = {"method": "read", "failed": 0, "foreign": 0, "last_errno": 0}
        few, many = {"reads": 1, "mean_ns": 10, "max_ns": 10, "torn": 0}, {"reads": 3, "mean_ns": 20, "max_ns": 30, "torn": 1}
        total = kills.add([{**tally, **few}, {**tally, **many}])
        self.assertEqual((total["reads"], total["max_ns"], total["torn"], total["mean_ns"]), (4, 30, 1, 17.5))


class Views(unittest.TestCase):
    def test_usage_is_a_rate_in_cpus(self):
        used = [(i * 100, i * 150_000, 0) for i in range(10)]
        self.assertEqual({cpus for _, cpus in views.cpus_used(used)}, {1.5})

    def test_neighbours_leave_in_the_opposite_order_they_came_in(self):
        busy = [share for share in views.BUSY if share]
        self.assertEqual(busy, sorted(busy))
        self.assertEqual([end for _, end in busy], sorted((end for _, end in busy), reverse=True))

    def test_an_answer_is_judged_by_what_files_said_while_the_program_looked(self):
        seen = [(ms, 1 if ms < 5000 else 2, 1024) for ms in range(0, 10_000, 100)]
        answer = lambda at, cpus: {"asked": at, "answered": at, "cpus": cpus, "kib": 0}
        row = views.program_row({"name": "x", "told": [answer(4500, 2), answer(3000, 2), answer(3000, 1), answer(7000, 2)]}, seen)
        self.assertEqual((row[5], row[7]), ("75.0 %", "-"))
