"""What is preloaded into programs, compiled for arm64 and run by QEMU's user mode: the kernel is this machine's."""

import shutil
import subprocess

import pytest

from kit.page import Page
from kit.programs import SHIM

TOOLS = "aarch64-linux-gnu-"
RUN = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The libraries, and the programs that ask."""
    for tool in (f"{TOOLS}gcc", RUN[0]):
        if not shutil.which(tool):
            pytest.skip(f"needs {tool}, which is not installed: tools/setup arm64")
    at = tmp_path_factory.mktemp("arm64")
    words = ["make", "-C", SHIM, f"BUILD={at}", f"CC={TOOLS}gcc", f"AR={TOOLS}ar"]
    subprocess.run(words, check=True, capture_output=True)
    for name in ("regions", "asks"):
        subprocess.run([f"{TOOLS}gcc", "-O2", "-fopenmp", SHIM / f"tests/{name}.c", "-o", at / name], check=True)
    return at


def asked(built, program, page, **environment):
    """The first line that a program answers."""
    settings = [word for name, value in {"ELBOWROOM_VIEW": page.path, **environment}.items() for word in ("-E", f"{name}={value}")]
    done = subprocess.run([*RUN, *settings, built / program], input="0\n", capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return [int(number) for number in done.stdout.split()]


def test_parallel_regions_of_libgomp_are_as_wide_as_the_view(built, tmp_path):
    page = Page(tmp_path / "page")
    page.show(3)
    seen = asked(built, "regions", page, OMP_NUM_THREADS=8, LD_PRELOAD=built / "libelbowroom-openmp.so")
    # In the order of SHAPE in test_shim.py: free regions; num_threads(3), if(0), nested ones; most; the sum is right; both; again.
    assert (seen[:6], seen[6:11], seen[12:]) == ([3] * 6, [3, 1, 2, 8, 8], [1, 1, 3])
    assert asked(built, "regions", page, OMP_NUM_THREADS=8)[:6] == [8] * 6


def test_the_c_librarys_answers_are_the_views(built, tmp_path):
    page = Page(tmp_path / "page")
    page.show(1, most=4)
    seen = asked(built, "asks", page, LD_PRELOAD=built / "libelbowroom-libc.so")
    assert (seen[:3], seen[4], seen[5:7]) == ([1, 4, 1], 1, [1 << 30] * 2)
