"""What a question and a parallel region cost with the libraries of shim/, and without. Needs no agent: the page is made here.

    make -C shim && python3 shim/bench/bench.py shim/build > lab/results/DATE-shim/ns.tsv

One line per run: what runs, what is preloaded, call, least and median nanoseconds over 300 batches. Regions have one thread,
so that what is measured is the way into a region and not the machine's threads."""

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests/live"))

from kit.page import Page  # noqa: E402

RUNS = 5


def compiled(compiler, build, directory):
    program = directory / f"bench-{compiler}"
    words = [compiler, "-O2", "-fopenmp", HERE / "bench.c", f"-L{build}", "-lelbowroom", f"-Wl,-rpath,{build}", "-o", program]
    subprocess.run(words, check=True)
    return program


def main(build):
    print(f"# {platform.machine()}, Linux {platform.release()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    print("# program\tpreloaded\tcall\tleast_ns\tmedian_ns")
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        page = Page(directory / "page")
        page.show(1)
        for compiler in ("gcc", "clang"):
            program = compiled(compiler, build, directory)
            for group, library in (("query", None), ("region", "openmp"), ("libc", "libc")):
                if group != "region" and compiler == "clang":
                    continue
                for preload in [None, library] if library else [None]:
                    environment = {**os.environ, "ELBOWROOM_VIEW": str(page.path), "OMP_NUM_THREADS": "1"}
                    if preload:
                        environment["LD_PRELOAD"] = f"{build}/libelbowroom-{preload}.so"
                    for _ in range(RUNS):
                        done = subprocess.run([program, group], env=environment, check=True, capture_output=True, text=True)
                        for line in done.stdout.splitlines():
                            *call, least, median = line.split()
                            print(compiler, preload or "-", " ".join(call), least, median, sep="\t")


main(Path(sys.argv[1]).resolve())
