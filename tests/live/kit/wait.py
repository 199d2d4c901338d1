"""Waiting for something to become true, with a deadline."""

import os
import time

# An emulated CPU is about ten times slower than the real one: tests/vm stretches every deadline.
PATIENCE = float(os.environ.get("ELBOWROOM_TEST_PATIENCE", "1"))


def eventually(condition, within=10.0, every=0.02):
    """Calls `condition` until it is truthy, and returns what it gave. An assertion that fails inside counts as not yet, and so does a
    missing file or process. It may still come, and a listed one may have gone between two looks.

    `within` is in seconds, before PATIENCE stretches it. The message of the failure is that of the last call."""
    deadline = time.monotonic() + within * PATIENCE
    while True:
        last = None
        try:
            value = condition()
        except (AssertionError, FileNotFoundError, ProcessLookupError) as error:
            value, last = None, error
        if value:
            return value
        if time.monotonic() > deadline:
            seconds = f"{within * PATIENCE:.0f} s"
            raise AssertionError(f"not within {seconds}: {last or condition_text(condition, value)}") from last
        time.sleep(every)


def always(condition, during=1.0, every=0.02):
    """The opposite bound: `condition` holds at every look for `during` seconds. PATIENCE stretches these by a quarter as much as a
    deadline: each of them is waited for, and what was going to happen takes only part of a deadline."""
    deadline = time.monotonic() + during * max(1, PATIENCE / 4)
    while time.monotonic() < deadline:
        value = condition()
        assert value, f"held no longer: {condition_text(condition, value)}"
        time.sleep(every)


def condition_text(condition, value):
    code = getattr(condition, "__code__", None)
    where = f" at {os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code else ""
    return f"the condition{where} gave {value!r}"
