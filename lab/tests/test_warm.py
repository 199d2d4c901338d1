"""Effective memory beside a working set: what samples amount to."""

import unittest

from lab.jobs import warm


def raw(samples, blocks, **run):
    fixed = {"alone": 10, "beside": 10, "working_set_mib": 300, "blocks": 100, "disk_mib": 8, "soft_mib": 256, "fill": 48}
    one = {"round": 0, "hard_mib": 1000, "machine": "warm", "rule": "paper", "oom_kills": 0, "samples": samples, "blocks": blocks}
    return {**fixed, "runs": [{**one, **run}]}


#         at, host free, available, inside total, available, used, cached, refaults, lost, activated, stalled
BEFORE = [9, 70, 1500, 256, 250, 10, 300, 5, 1, 2, 0.5]
GROWN = [16, 60, 700, 1000, 100, 850, 280, 25, 4, 6, 1]
FALLEN = [19, 60, 1000, 256, 0, 400, 270, 30, 9, 12, 1.5]


class Study(unittest.TestCase):
    def figures(self, *arguments, **run):
        (row,) = warm.study(raw(*arguments, **run))["rows"].values()
        return {key: figure.median for key, figure in row.items()}

    def test_what_it_could_have_leaves_the_working_set_and_is_at_most_its_hard_limit(self):
        could = lambda hard: [one["could"] for one in warm.series(raw([BEFORE, GROWN, FALLEN], [], hard_mib=hard)["runs"][0], raw([], []))]
        self.assertEqual(could(5000), [10 + 1500 - 300, 850 + 700 - 300, 400 + 1000 - 300])
        self.assertEqual(could(1000), [1000, 1000, 1000])

    def test_figures_are_of_the_time_beside_the_container(self):
        figures = self.figures([BEFORE, GROWN, FALLEN], [[5, 100], [9, 100], [10.5, 10], [12, 90], [18, 50]], hard_mib=900)
        self.assertEqual((figures["free"], figures["refaults"], figures["falls"], figures["above"]), (70, 25, 1, 100))
        self.assertEqual((figures["lost"], figures["activated"]), (8, 10))
        self.assertEqual((figures["total"], figures["used"], figures["stalled"]), (628, 625, 10))  # of the last five seconds
        self.assertEqual((figures["throughput"], figures["worst"]), (70, 50))  # the second in which it began is of neither

    def test_growth_is_no_fall(self):
        self.assertEqual(self.figures([BEFORE, [16, *BEFORE[1:]], [18, *GROWN[1:]]], [[5, 100], [15, 100]])["falls"], 0)

    def test_cells_are_in_the_order_of_the_table(self):
        samples, blocks = [BEFORE, GROWN, FALLEN], [[5, 100], [15, 100]]
        both = [(machine, rule) for rule in ("waterfill", "paper") for machine in ("warm", "fresh")]
        runs = [raw(samples, blocks, machine=machine, rule=rule)["runs"][0] for machine, rule in both]
        cells = [cell[1:] for cell in warm.study({**raw(samples, blocks), "runs": runs})["rows"]]
        self.assertEqual(cells, [("fresh", "paper"), ("fresh", "waterfill"), ("warm", "paper"), ("warm", "waterfill")])


if __name__ == "__main__":
    unittest.main()
