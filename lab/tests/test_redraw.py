"""Every committed result is what its job draws of its raw numbers."""

import contextlib
import io
import json
import shutil
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from lab import ROOT, job

try:
    import matplotlib.pyplot
    import pandas  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"needs {error.name}: tools/setup lab") from None


def unwritten(figure, path):
    """Drawn on, and not written, which takes longest."""
    matplotlib.pyplot.close(figure)
    path.touch()


def results():
    """Directories of results of jobs that there are."""
    for file in sorted((ROOT / "lab/results").glob("*/sysinfo.json")):
        if json.loads(file.read_text()).get("job") in job.names() and (file.parent / "raw.json").exists():
            yield file.parent


class Redraw(unittest.TestCase):
    def test_each_result_is_drawn_again_as_it_is(self):
        for directory in results():
            with self.subTest(directory.name), tempfile.TemporaryDirectory() as scratch:
                copy = Path(scratch, directory.name)
                copy.mkdir()
                for name in ("raw.json", "sysinfo.json"):
                    shutil.copy(directory / name, copy)
                with contextlib.redirect_stderr(io.StringIO()), unittest.mock.patch("lab.plot.save", unwritten):
                    job.redraw(copy)
                self.assertEqual((copy / "summary.md").read_text(), (directory / "summary.md").read_text())
                drawn = {file.name for file in copy.glob("*.svg")}
                self.assertEqual(drawn, {file.name for file in directory.glob("*.svg")})
