"""What saving saves, by scene."""

import unittest

from lab.jobs import saving


def run(number, arm, mib, rate, p99):
    memory = [(0, 900, 0), (180, mib, 0), (200, mib + 2, 0)]
    return {"run": number, "scene": "jvm", "arm": arm, "memory": memory, "killed": 0, "lost": 0, "rate": rate, "p50": 1, "p95": 2, "p99": p99}


class Study(unittest.TestCase):
    def test_ratios_are_of_the_arms_of_one_run(self):
        runs = [run(0, "off", 399, 100, 10), run(0, "on", 299, 99, 11), run(1, "on", 199, 50, 10), run(1, "off", 399, 50, 10)]
        studied = saving.study({"runs": runs, "look": 240, "sandboxes": 40, "heap": 256})
        [row] = studied["rows"]
        self.assertEqual((row["mib"]["off"].median, row["mib"]["on"].median), (400, 250))
        self.assertEqual((row["ratio"]["mib"].min, row["ratio"]["mib"].max), (0.5, 0.75))
        self.assertEqual((row["ratio"]["rate"].min, row["ratio"]["rate"].max), (0.99, 1))
        self.assertEqual(studied["curves"]["jvm"]["with saving"][0], (0, 900))

    def test_latencies_of_none_are_none(self):
        self.assertEqual(saving.latencies([], 60), {"rate": 0, "p50": None, "p95": None, "p99": None})
        self.assertEqual(saving.latencies([1.0, 2.0, 3.0, 4.0], 2)["p99"], 4.0)


if __name__ == "__main__":
    unittest.main()
