"""The ledger of what a run made."""

import contextlib
import io
import json
import os
import unittest

from kit.process import start_time
from lab import scope


class Ledger(unittest.TestCase):
    def test_a_line_names_a_thing_that_can_be_taken_down(self):
        with scope.Scope() as claim:
            claim.add("mount", claim.directory / "there")
            first, second = map(json.loads, (claim.directory / "made").read_text().splitlines())
        self.assertEqual(first, ["process", os.getpid(), start_time(os.getpid())])
        self.assertIn(second[0], scope.KINDS)
        self.assertFalse(claim.directory.exists())

    def test_what_is_started_again_has_a_directory_of_its_own(self):
        with scope.Scope() as claim:
            for expected in ("run", "run-2", "run-3"):
                self.assertEqual(claim.path("run").name, expected)
                claim.path("run").mkdir()

    def test_a_process_number_that_now_is_another_process_is_left_alone(self):
        scope.end_process(os.getpid(), "1")

    def test_what_is_gone_already_is_fine(self):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            for thing in (("cgroup", "elbowroom-lab-none"), ("mount", "/nonexistent"), ("swap", "/nonexistent"), ("loop", "/nonexistent")):
                scope.undo(thing)
        self.assertEqual(said.getvalue(), "")

    def test_newer_things_go_first(self):
        gone = []
        scope.KINDS["test"] = gone.append
        self.addCleanup(scope.KINDS.pop, "test")
        with scope.Scope() as claim:
            claim.add("test", "group")
            claim.add("test", "group/below")
        self.assertEqual(gone, ["group/below", "group"])
