"""Programs in C and Java, which keep the timing: built into target/lab where they are older than their sources."""

import functools
import subprocess
from pathlib import Path

from lab import ROOT

BUILT = ROOT / "target/lab"


@functools.cache
def reader():
    """`lab/reader`: makes containers, enters them, and reads and loads in them."""
    sources = sorted((ROOT / "lab/reader").glob("*.[ch]"))
    words = ["cc", "-O2", "-Wall", "-Wextra", "-D_GNU_SOURCE", "-static", "-pthread"]
    return build("reader", sources, [*words, *(file for file in sources if file.suffix == ".c"), "-o", BUILT / "reader"])


def c(name, *flags, extension=""):
    """`lab/programs/NAME.c`; with no flags, one that needs no libraries where it runs."""
    source, target = ROOT / f"lab/programs/{name}.c", name + extension
    return build(target, [source], ["cc", "-Wall", "-Wextra", *(flags or ("-O1", "-static")), "-o", BUILT / target, source, "-lm"])


def java(name, *class_path):
    """`lab/java/NAME.java`; the class path that has it."""
    source = ROOT / f"lab/java/{name}.java"
    path = ["--class-path", ":".join(map(str, class_path))] if class_path else []
    build(f"{name}.class", [source], ["javac", "--release", "11", *path, "-d", BUILT, source])
    return ":".join(map(str, [BUILT, *class_path]))


def build(name, sources, words):
    target = BUILT / name
    if target.exists() and target.stat().st_mtime >= max(Path(file).stat().st_mtime for file in sources):
        return target
    BUILT.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    except FileNotFoundError:
        raise AssertionError(f"{words[0]} is not here to build {name}: tools/setup lab") from None
    assert done.returncode == 0, f"{words[0]} cannot build {name} (status {done.returncode}): {done.stdout.strip()} {done.stderr.strip()}"
    return target
