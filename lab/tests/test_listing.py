"""The list of experiments, and how one was called."""

import subprocess
import sys
import unittest

from lab import ROOT, sysinfo

# What a machine that only records, or only runs `make check`, may lack.
ABSENT = ["pytest", "numpy", "pandas", "matplotlib"]


class Listing(unittest.TestCase):
    def test_every_job_is_known_without_what_draws_and_what_runs_live_tests(self):
        code = f"import sys; sys.modules.update(dict.fromkeys({ABSENT})); from lab import job; print(job.listing())"
        listed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
        self.assertIn("read ", listed.stdout, listed.stderr)

    def test_a_result_says_how_it_was_made_without_paths_of_the_machine(self):
        words = ["read", "--resume", f"{ROOT}/lab/results/some", "--elbowroom", "/home/user/elbowroom"]
        self.assertEqual(sysinfo.command(words), "lab read --resume lab/results/some --elbowroom elbowroom")
