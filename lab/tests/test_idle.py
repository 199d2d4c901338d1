"""What an idle agent costs."""

import unittest

from lab.jobs import idle


def run(number, mode, containers, policy, api):
    cpu, pss = {"policy": policy, "api": api}, {"policy": 4096, "api": 2048}
    return {"round": number, "mode": mode, "containers": containers, "cpu_percent": cpu, "pss_kib": pss}


class Study(unittest.TestCase):
    def test_processes_add_up_within_a_run(self):
        runs = [run(0, "default", 10, 0.1, 0.3), run(1, "default", 10, 0.2, 0.1), run(0, "views", 10, 0.1, 0.0), run(0, "enforce", 0, 0.1, 0)]
        studied = idle.study({"runs": runs, "seconds": 30})
        self.assertEqual([(one["containers"], one["mode"]) for one in studied["figures"]], [(0, "enforce"), (10, "views"), (10, "default")])
        both = studied["figures"][2]
        self.assertAlmostEqual(both["cpu"].min, 0.3)
        self.assertAlmostEqual(both["cpu"].max, 0.4)
        self.assertEqual(both["pss_mib"].median, 6)
        self.assertEqual(both["by_name"]["policy"][0].max, 0.2)


if __name__ == "__main__":
    unittest.main()
