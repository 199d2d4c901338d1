"""What is preloaded into programs, against a page that the test writes: OpenMP's regions and the C library's answers."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from kit import programs
from kit.page import Page
from kit.wait import PATIENCE, eventually

SHAPE = "parallel static dynamic guided runtime sections clause serial outer inner max procs right both after".split()
FREE = SHAPE[:6]
ASKS = "online configured affinity first thread memory total free procs load ticks".split()
HOST = len(os.sched_getaffinity(0))


class Program:
    """A program that answers each line with a line of numbers, by name."""

    def __init__(self, words, names, **environment):
        environment = {**{k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}, **environment}
        pipe = subprocess.PIPE
        self.names = names
        self.main = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)

    def __call__(self, line=""):
        self.main.stdin.write(f"{line}\n")
        self.main.stdin.flush()
        answer = self.main.stdout.readline()
        assert answer, f"it ended: {self.main.communicate(timeout=20 * PATIENCE)[1]}"
        return dict(zip(self.names, map(int, answer.split()), strict=True))

    def close(self):
        """Ends it; there must have been nothing to complain about."""
        _, complaints = self.main.communicate(timeout=20 * PATIENCE)
        assert (self.main.returncode, complaints) == (0, "")


@pytest.fixture
def page(tmp_path):
    return Page(tmp_path / "page")


@pytest.fixture(scope="session")
def shim():
    return built(programs.shim)


def built(program, *words):
    try:
        return program(*words)
    except programs.Missing as missing:
        pytest.skip(f"needs {missing}")


@pytest.fixture(params=["gcc", "clang"])
def regions(request, shim, page):
    """Starts the program of all regions, compiled for libgomp or for libomp, with 16 threads unless a test says otherwise."""
    program = built(programs.c, "regions", request.param, "-fopenmp")
    started = []

    def start(**environment):
        environment = {"OMP_NUM_THREADS": "16", "LD_PRELOAD": f"{shim}/libelbowroom-openmp.so", **environment}
        started.append(Program([program], SHAPE, ELBOWROOM_VIEW=str(page.path), **environment))
        return started[-1]

    yield start
    for one in started:
        one.close()


# ---- OpenMP ----


def test_every_open_region_follows_the_view_and_no_other_does(regions, page):
    page.show(6)
    program = regions()
    for cpus in (6, 2, 9, 1, 16):
        page.show(cpus)
        seen = eventually(lambda: (now := program())["parallel"] == cpus and now)
        assert {name: seen[name] for name in FREE} == dict.fromkeys(FREE, cpus)
        expect = {"clause": 3, "serial": 1, "both": 1, "outer": 2}
        assert {name: seen[name] for name in expect} == expect
        # As wide as it may be anyway nothing is said, and libomp 14 takes the number of the region before.
        assert seen["after"] == cpus or cpus == 16
        assert seen["inner"] == 16, "a nested region is the program's own affair"
        assert seen["right"] == 1


def test_a_program_never_gets_more_than_it_would_have(regions, page):
    page.show(40)
    seen = regions(OMP_NUM_THREADS="5")()
    assert {seen[name] for name in FREE} == {5}


def test_what_sizes_arrays_is_never_changed(regions, page):
    page.show(2)
    seen = regions()()
    assert (seen["max"], seen["procs"], seen["parallel"]) == (16, HOST, 2)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_region_asks_the_loader_once_however_many_others_there_are(shim, page, compiler):
    page.show(1)
    # Far from each other, as those of large programs are.
    words = [built(programs.c, "many", compiler, "-fopenmp", "-rdynamic", "-falign-functions=256")]
    preload = {"OMP_NUM_THREADS": "2", "LD_PRELOAD": f"{shim}/libelbowroom-openmp.so"}
    program = Program(words, ["ran", "looked"], ELBOWROOM_VIEW=str(page.path), **preload)
    first = program()
    assert first["ran"] == 3000 <= first["looked"] <= 3010
    assert program() == {"ran": 3000, "looked": 0}
    program.close()


@pytest.mark.parametrize("value", ["false", "FALSE"])
def test_a_user_who_refused_dynamic_teams_has_none(regions, page, value):
    page.show(2)
    assert regions(OMP_DYNAMIC=value)()["parallel"] == 16


# Not there; there without a page, where no agent has mounted one; a page of another version, or of another program.
NO_PAGE = [None, b"", b"elbowrm\0", bytes(4096), b"elbowrm\0" + b"\2\0\0\0" + b"\1\0\0\0" * 1021]


def without_a_page(page, left):
    page.path.unlink()
    if left is not None:
        page.path.write_bytes(left)


@pytest.mark.parametrize("left", NO_PAGE)
def test_without_a_view_nothing_is_changed(regions, page, left):
    without_a_page(page, left)
    seen = regions()()
    assert {seen[name] for name in FREE} == {16}


def test_an_abandoned_view_changes_nothing(regions, page):
    page.show(3)
    program = regions()
    assert program()["parallel"] == 3
    page.show(0)
    assert program()["parallel"] == 16
    # The page of the next agent is found without a restart.
    page.path.unlink()
    successor = Page(page.path)
    successor.show(4)
    eventually(lambda: program()["parallel"] == 4)


def test_a_team_changes_its_size_seldom_however_fast_the_view_does(shim, page):
    page.show(1)
    program = built(programs.c, "flips", "gcc", "-fopenmp")
    environment = {
        **os.environ, "OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "0", "ELBOWROOM_VIEW": str(page.path),
        "LD_PRELOAD": f"{shim}/libelbowroom-openmp.so",
    }  # fmt: skip
    out = subprocess.run([program, page.path], env=environment, capture_output=True, text=True, timeout=60 * PATIENCE).stdout
    changes, elapsed = map(int, out.split())
    # 50 ms by a clock whose tick may be 10 ms, so at least 40 between two.
    assert 1 <= changes <= elapsed / 40 + 1


def test_each_module_of_a_process_keeps_the_runtime_it_brought(shim, page, tmp_path):
    """Two runtimes in one process, neither in the global scope, and libomp, loaded first, also answers to libgomp's names."""
    modules = [built(programs.c, "module", compiler, "-fopenmp", "-shared", "-fPIC") for compiler in ("clang", "gcc")]
    script = (
        "import ctypes, sys\n"
        "modules = [ctypes.CDLL(name) for name in sys.argv[1:]]\n"
        "for line in sys.stdin: print(*(module.team() for module in modules), flush=True)\n"
    )
    page.show(3)
    words = ["/usr/bin/python3", "-c", script, *map(str, modules)]
    preload = f"{shim}/libelbowroom-openmp.so"
    program = Program(words, ["clang", "gcc"], LD_PRELOAD=preload, ELBOWROOM_VIEW=str(page.path), OMP_NUM_THREADS="8")
    assert program() == {"clang": 3, "gcc": 3}
    page.show(5)
    eventually(lambda: program() == {"clang": 5, "gcc": 5})
    program.close()


# ---- the C library ----


@pytest.fixture(params=["gcc", "musl-gcc"])
def asks(request, shim, page):
    """Starts the program of all questions, of glibc or of musl, preloaded with both libraries."""
    program = built(programs.c, "asks", request.param)
    started = []

    def start(**environment):
        preload = f"{shim}/libelbowroom-openmp.so:{shim}/libelbowroom-libc.so"
        environment = {"LD_PRELOAD": preload, "ELBOWROOM_VIEW": str(page.path), **environment}
        started.append(Program([program], ASKS, **environment))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_the_c_library_answers_from_the_view(asks, page):
    most = max(os.sched_getaffinity(0)) + 7
    page.show(1, most=most, memory=3 << 30, used=1 << 30, load=(250, 0, 0), threads=42)
    program = asks()
    seen = program()
    assert (seen["online"], seen["configured"], seen["affinity"], seen["thread"]) == (1, most, 1, 1)
    assert (seen["memory"], seen["total"], seen["procs"]) == (3 << 30, 3 << 30, 42)
    assert 0 < seen["free"] <= 2 << 30
    assert seen["load"] == 250
    page.show(1, memory=1 << 30)
    assert program()["total"] == 1 << 30


def test_as_many_cpus_are_configured_as_the_highest_that_a_program_may_run_on_needs(asks, page):
    """Programs make an array of that length and index it by sched_getcpu()."""
    page.show(1, most=1)
    assert asks()()["configured"] == max(os.sched_getaffinity(0)) + 1


def test_questions_about_other_things_are_the_c_librarys_own(asks, page):
    page.show(1)
    assert asks()()["ticks"] == os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("left", NO_PAGE)
def test_without_a_view_the_answers_are_the_hosts(asks, page, left):
    without_a_page(page, left)
    seen, plain = asks()(), asks(LD_PRELOAD="")()
    same = [name for name in ASKS if name not in ("free", "procs", "load")]
    assert {name: seen[name] for name in same} == {name: plain[name] for name in same}


def test_behind_a_function_is_the_one_that_the_dynamic_linker_would_call(shim, page, tmp_path):
    without_a_page(page, None)
    program, library = built(programs.c, "asks", "gcc"), built(programs.c, "chosen", "gcc", "-shared", "-fPIC")
    asks = Program([program], ASKS, LD_PRELOAD=f"{shim}/libelbowroom-libc.so:{library}", ELBOWROOM_VIEW=str(page.path))
    assert asks()["load"] == 450
    asks.close()


def test_where_the_page_is_was_said_when_the_program_began(shim, page, tmp_path):
    """A program may change or overwrite its environment later."""
    without_a_page(page, None)
    script = (
        "import ctypes, os, sys\n"
        "os.sysconf('SC_NPROCESSORS_ONLN')\n"
        "getenv = ctypes.CDLL(None).getenv\n"
        "getenv.restype = ctypes.c_void_p\n"
        "ctypes.memset(getenv(b'ELBOWROOM_VIEW'), ord('x'), 3)\n"
        "os.environ['ELBOWROOM_VIEW'] = '/nowhere'\n"
        "for line in sys.stdin: print(os.sysconf('SC_NPROCESSORS_ONLN'), flush=True)\n"
    )
    preload = f"{shim}/libelbowroom-libc.so"
    program = Program(["/usr/bin/python3", "-c", script], ["online"], LD_PRELOAD=preload, ELBOWROOM_VIEW=str(page.path))
    assert program()["online"] == HOST
    Page(page.path).show(HOST + 1)
    eventually(lambda: program()["online"] == HOST + 1)
    program.close()


def test_an_abandoned_page_is_looked_at_every_second_at_no_cost(asks, page):
    page.show(0)
    program = asks()
    mappings = lambda: Path(f"/proc/{program.main.pid}/maps").read_text().count(str(page.path))
    ends = time.monotonic() + 2.5
    while time.monotonic() < ends:
        assert program()["online"] == HOST
        assert mappings() <= 1
    page.show(1)
    eventually(lambda: program()["online"] == 1)
    assert mappings() == 1


def test_affinity_is_a_part_of_the_real_one(asks, page):
    # A view whose CPUs the program may not use: still one of its own.
    page.show(1, online=[1023])
    seen = asks()()
    assert (seen["affinity"], seen["first"]) == (1, min(os.sched_getaffinity(0)))
    page.show(1000, online=range(1000))
    assert asks()()["affinity"] == HOST


def test_the_cpus_shown_online_are_kept_first(asks, page):
    last = max(os.sched_getaffinity(0))
    page.show(1, online=[last])
    assert asks()()["first"] == last


def test_another_processs_affinity_is_its_own(asks, page):
    page.show(1)
    assert asks()(os.getpid())["affinity"] == HOST
