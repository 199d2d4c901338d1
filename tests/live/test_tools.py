"""Programs of tools/ that start an agent and containers, and are killed."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from conftest import REPOSITORY
from kit.process import pids, state
from kit.wait import eventually


def started_below(directory):
    """Processes that were started with this directory for temporary files, or find programs in it: their arguments, by pid."""
    found = {}
    for pid in pids():
        with contextlib.suppress(OSError):
            here = Path(f"/proc/{pid}")
            if str(directory).encode() in (here / "environ").read_bytes() and state(pid) not in "ZX":
                found[pid] = (here / "cmdline").read_bytes().decode(errors="replace")
    return found


@pytest.mark.parametrize(("tool", "works"), [(("tools/demo",), "block = "), (("tools/recording", "picture.svg"), "yes")])
def test_a_tool_that_is_killed_leaves_no_process(scratch, binary, tool, works):
    directory = scratch / Path(tool[0]).name
    directory.mkdir()
    environment = {**os.environ, "ELBOWROOM": str(binary), "TMPDIR": str(directory)}
    running = subprocess.Popen(
        [REPOSITORY / tool[0], *tool[1:]], cwd=directory, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        # Its containers are at work.
        eventually(lambda: any(works in words for words in started_below(directory).values()), within=60)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    eventually(lambda: not started_below(directory), within=30)
