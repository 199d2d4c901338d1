"""The page of the score: the place of each contender, and which is said to be best."""

import unittest

from lab import job
from lab.jobs import score
from lab.stats import Spread

SCENE = {"job": "swarm", "date": "2026-01-01", "commit": "c", "kernel": "k", "cgroups": "v2", "result": "r"}


def studied(*rows):
    return score.study({"scenes": [{**SCENE, "rows": list(rows)}]})


class Score(unittest.TestCase):
    def test_arms_stand_for_contenders(self):
        arms = [arm for some in score.CONTENDERS.values() for arm in some]
        self.assertEqual(len(arms), len(set(arms)))
        found = studied(score.row("x", score.LESS, {"native": Spread(1, 1, 1), "lifeline": Spread(2, 2, 2), "oomd": Spread(3, 3, 3)}))
        self.assertEqual(list(found["rows"][0]["cells"]), ["nothing", "Elbowroom", "oomd"])

    def test_the_best_are_the_best_median_and_those_whose_spread_reaches_it(self):
        cells = {"native": Spread(5, 4, 6), "lxcfs": Spread(7, 5, 8), "elbowroom": Spread(9, 8, 10)}
        self.assertEqual(studied(score.row("x", score.LESS, cells))["rows"][0]["won"], ["nothing", "lxcfs"])
        self.assertEqual(studied(score.row("x", score.MORE, cells))["rows"][0]["won"], ["Elbowroom"])

    def test_who_is_alone_wins_nothing(self):
        found = studied(score.row("x", score.LESS, {"elbowroom": Spread(1, 1, 1)}))
        self.assertEqual(found["rows"][0]["won"], [])

    def test_a_line_without_figures_is_not_on_the_page(self):
        self.assertEqual(studied(score.row("x", score.LESS, {"elbowroom": None}))["rows"], [])

    def test_each_scene_is_a_job(self):
        self.assertLessEqual(set(score.SCENES), set(job.names()))


if __name__ == "__main__":
    unittest.main()
