"""Programs in languages that must be compiled, kept in .cache/test-programs: `python3 -m kit.programs` builds them before a
VM does so at a tenth of the speed."""

import contextlib
import fcntl
import os
import shutil
import subprocess
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "programs"
SHIM = Path(__file__).resolve().parents[3] / "shim"
BUILT = Path(__file__).resolve().parents[3] / ".cache/test-programs"


class Missing(Exception):
    """This machine lacks what a program needs."""


def java():
    """The directory of Sees.class."""
    compilers = sorted(Path("/usr/lib/jvm").glob("*-17-*/bin/javac")) or sorted(Path("/usr/lib/jvm").glob("*/bin/javac"))
    if not compilers:
        raise Missing("a Java compiler in /usr/lib/jvm, where there is none: tools/setup test")
    build("Sees.class", SOURCES / "Sees.java", [compilers[0], "--release", "17", "-d", BUILT, SOURCES / "Sees.java"])
    return BUILT


def go():
    """A Go program that follows GOMAXPROCS; the first Go to change it while a program runs is 1.25."""
    compiler = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if not compiler:
        raise Missing("Go 1.25, which is not installed")
    words = [compiler, "-C", SOURCES / "sees", "build", "-o", BUILT / "sees", "."]
    build("sees", SOURCES / "sees/main.go", words, CGO_ENABLED="0", GOTOOLCHAIN="local", GOFLAGS="-buildvcs=false")
    return BUILT / "sees"


def c(name, compiler="gcc", *options):
    """A program of shim/tests."""
    if not shutil.which(compiler):
        raise Missing(f"{compiler}, which is not installed: tools/setup test")
    source, target = SHIM / f"tests/{name}.c", BUILT / f"{name}-{compiler}{''.join(options)}"
    build(target.name, source, [compiler, "-O2", "-Wall", source, *options, "-o", target])
    return target


def static(name):
    """A program of C that depends on nothing, by musl."""
    if not shutil.which("musl-gcc"):
        raise Missing("musl-gcc, which is not installed: tools/setup test")
    source = next(path for path in (SHIM / f"tests/{name}.c", SOURCES / f"{name}.c") if path.exists())
    build(f"{name}-static", source, ["musl-gcc", "-O2", "-Wall", "-static", source, "-o", BUILT / f"{name}-static"])
    return BUILT / f"{name}-static"


def shim():
    """The directory of the libraries that are preloaded."""
    if not shutil.which("make") or not shutil.which("cc"):
        raise Missing("make and a C compiler, which are not installed: tools/setup build")
    with one_build():
        done = subprocess.run(["make", "-C", SHIM, f"BUILD={BUILT}/shim"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return BUILT / "shim"


def as_user(user, home):
    """A directory that a server's own user may write to."""
    home.mkdir()
    shutil.chown(home, user, user)
    for above in home.parents:
        if above.stat().st_mode & 0o055 == 0:
            above.chmod(0o755)
    return home


def virtual_machines():
    """The Java virtual machines of this host, by the names of their directories."""
    homes = {path.resolve().parents[1] for path in Path("/usr/lib/jvm").glob("*/bin/java")}
    return {home.name: home / "bin/java" for home in sorted(homes)}


@contextlib.contextmanager
def one_build():
    """One builds at a time: guests are prepared while the live tests run."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with open(BUILT / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(name, source, words, **environment):
    """Builds `name` where it is older than its source."""
    target = BUILT / name
    with one_build():
        if target.exists() and target.stat().st_mtime >= source.stat().st_mtime:
            return
        done = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode != 0:
        raise Missing(f"a compiler that takes {source.name}; {words[0]} says: {done.stderr.strip()}")


if __name__ == "__main__":
    modules = [("module", compiler, "-fopenmp", "-shared", "-fPIC") for compiler in ("gcc", "clang")]
    openmp = [("regions", "gcc", "-fopenmp"), ("regions", "clang", "-fopenmp"), ("flips", "gcc", "-fopenmp")]
    of_c = [*modules, *openmp, ("asks", "gcc"), ("asks", "musl-gcc"), ("chosen", "gcc", "-shared", "-fPIC")]
    for program, *words in [(java,), (go,), (shim,), *((c, *words) for words in of_c)]:
        try:
            program(*words)
        except Missing as missing:
            print(f"not built: needs {missing}")
