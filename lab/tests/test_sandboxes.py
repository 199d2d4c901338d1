"""How many sandboxes fit: what a look amounts to, and when no more are added."""

import asyncio
import random
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from types import SimpleNamespace

from lab import ROOT
from lab.jobs import density_of_sandboxes as job


class Sandboxes(unittest.TestCase):
    def test_what_was_asked_while_the_new_ones_settled_does_not_count_and_what_is_lost_always_does(self):
        taken = [(10.0, 0.5), (21.0, None)] + [(30.0 + i, 0.001 * (i + 1)) for i in range(20)] + [(12.0, None)]
        self.assertEqual(job.study_look(taken, 20.0), {"asked": 20, "p50": 10.0, "p95": 19.0, "lost": 2})
        self.assertEqual(job.study_look([], 0), {"asked": 0, "p50": None, "p95": None, "lost": 0})

    def test_no_more_are_added_when_one_is_slow_or_lost_or_dead(self):
        options, alive, dead = SimpleNamespace(limit=100), [SimpleNamespace(alive=lambda: True)], [SimpleNamespace(alive=lambda: False)]
        step = lambda p95, lost=0: {"p95": p95, "lost": lost}
        ended = [job.why(*case) for case in ((step(100), options, alive), (step(101), options, alive), (step(1, 1), options, alive),
                                             (step(1), options, dead), (step(None), options, alive))]  # fmt: skip
        self.assertEqual([bool(reason) for reason in ended], [False, True, True, True, True])
        job.why(last := step(100), options, alive)
        self.assertTrue(last["fits"])

    def test_arms_are_compared_with_swap_alone(self):
        run = lambda arm, fits: {"run": 0, "language": "python", "arm": arm, "fits": fits, "ended": "one died", "steps": [{"sandboxes": fits, "p95": 12.5}]}
        found = job.study({"machine": 2048, "runs": [run("stock", 30), run("stock-swap", 40), run("elbowroom", 50)]})
        self.assertEqual([row["ratio"] for row in found["rows"]], [0.75, 1, 1.25])
        self.assertEqual(found["curves"]["python"]["Elbowroom"], [(50, 12.5)])

    def test_a_sandbox_answers_what_it_is_asked_and_one_that_is_gone_does_not(self):
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch, "socket")
            words = [sys.executable, ROOT / "lab/programs/sandbox.py", path, "1", "1"]
            with subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, text=True) as sandbox:
                self.assertEqual(sandbox.stdout.readline(), "ready\n")
                taken = asyncio.run(job.ask_all(random.Random(1), [path], 0.01, time.monotonic() + 0.2))
                sandbox.kill()
            self.assertTrue(taken and all(seconds is not None for _, seconds in taken), taken)
            self.assertIsNone(asyncio.run(job.ask(path)))
