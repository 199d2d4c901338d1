"""Ten programs that read views as fast as they can, for as long as input lasts; at the end what all of them counted, as JSON."""

import json
import subprocess
import sys
from pathlib import Path

READER = Path(__file__).parents[1] / "live/kit/reader.py"
READERS = 10


def main():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    readers = [subprocess.Popen([sys.executable, READER], **pipes) for _ in range(READERS)]
    for reader in readers:
        reader.stdin.write("\n")
        reader.stdin.flush()
        reader.stdout.readline()
    print("reading", flush=True)
    sys.stdin.read()
    counts = [json.loads(reader.communicate()[0]) for reader in readers]
    total = {key: sum(count[key] for count in counts) for key in ("reads", "failed")}
    total["failures"] = [failure for count in counts for failure in count["failures"]][:20]
    total["slowest"] = max(count["slowest"] for count in counts)
    print(json.dumps(total))


main()
