"""tests/models/page.py DIRECTORY - programs of shim/tests, compiled with a sanitizer, read a page while it changes. For tools/sanitize."""

import struct
import subprocess
import sys
import time
from pathlib import Path

from kit.page import Page

ROOM = 60


def publish(page, n):
    """A view whose numbers are all the same, as `tear` wants it."""
    (generation,) = struct.unpack_from("=I", page.map, 16)
    struct.pack_into("=II7Q4I", page.map, 64 + (generation + 1 & 1) * 256, *[n] * 13)
    struct.pack_into("=I", page.map, 16, generation + 1)


def main():
    out = Path(sys.argv[1])
    page = Page(out / "page")
    publish(page, 1)
    environment = {"ELBOWROOM_VIEW": str(page.path)}
    assert subprocess.run([out / "layout"], stdout=subprocess.PIPE, check=True).stdout
    tear = subprocess.Popen([out / "tear", "200"], env=environment, stdin=subprocess.PIPE)
    deadline, n = time.monotonic() + ROOM, 1
    while tear.poll() is None and time.monotonic() < deadline:
        n = n % 1000000 + 1
        publish(page, n)
    tear.kill()
    assert tear.wait() == 0, "a reader of a page that changes failed"
    page.show(4)


main()
