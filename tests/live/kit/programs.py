"""Programs in languages that must be compiled, kept in .cache/test-programs: `python3 -m kit.programs` builds them before a
VM does so at a tenth of the speed."""

import os
import shutil
import subprocess
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "programs"
BUILT = Path(__file__).resolve().parents[3] / ".cache/test-programs"


class Missing(Exception):
    """What a program needs and this machine lacks."""


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


def virtual_machines():
    """The Java virtual machines of this host, by the names of their directories."""
    homes = {path.resolve().parents[1] for path in Path("/usr/lib/jvm").glob("*/bin/java")}
    return {home.name: home / "bin/java" for home in sorted(homes)}


def build(name, source, words, **environment):
    """Builds `name` where it is older than its source."""
    target = BUILT / name
    if target.exists() and target.stat().st_mtime >= source.stat().st_mtime:
        return
    BUILT.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode != 0:
        raise Missing(f"a compiler that takes {source.name}; {words[0]} says: {done.stderr.strip()}")


if __name__ == "__main__":
    for program in (java, go):
        try:
            program()
        except Missing as missing:
            print(f"not built: needs {missing}")
