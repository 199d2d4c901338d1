"""A plugin of pytest: what became of each test, a line of JSON each as soon as it has ended, in the file that ELBOWROOM_TEST_OUTCOMES names."""

import json
import os

import pytest


@pytest.hookimpl
def pytest_runtest_logreport(report):
    if report.when != "call" and report.passed:
        return
    why = ""
    if report.skipped:
        why = report.longrepr[2].removeprefix("Skipped: ")
    elif report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        why = crash.message.splitlines()[0] if crash else str(report.longrepr)
    line = {"test": report.nodeid, "outcome": report.outcome, "why": why, "seconds": round(report.duration, 1), **dict(report.user_properties)}
    with open(os.environ["ELBOWROOM_TEST_OUTCOMES"], "a") as file:
        file.write(json.dumps(line) + "\n")
