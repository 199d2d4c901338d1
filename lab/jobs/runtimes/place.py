"""Where the programs of the runtimes' figures are, and what they are made to believe of the machine. They are in a checkout, or in a kit of
`lab/large/pack`, which is a small one."""

import os
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path
from types import SimpleNamespace

from lab import ROOT, programs
from lab.job import Refused
from lab.jobs.runtimes.stage import gated
from lab.sysinfo import online_cpus

# What lab/large/fetch and lab/large/pack make.
CACHE = ROOT / ".cache/large"
AGENT = ROOT / "target/java/elbowroom-agent.jar"
REAL = ["h2", "jython", "lusearch", "sunflow", "xalan"]
# Tests of sysbench that end when they are told; the paper does not name its.
SYSBENCH = [["cpu"], ["memory", "--memory-total-size=100T"], ["threads"]]
# The paper: 15 GC threads in each of five containers on 20 CPUs, and 20 threads of OpenMP.
PER_CPU = {"gc": 3.75, "openmp": 5}


# Programs in C: name, flags, and how the name of what is built ends.
BUSY, KERNELS = ("busy", ["-O2", "-static", "-pthread"], ""), ("kernels", ["-O2", "-fopenmp"], "")
PRETEND = ("pretend", ["-O2", "-shared", "-fPIC"], ".so")


def c(program):
    name, flags, extension = program
    return programs.c(name, *flags, extension=extension)


def gc_threads(cpus):
    """HotSpot's own count of GC threads (`WorkerPolicy::parallel_worker_threads`): all up to eight, then five of eight."""
    return cpus if cpus <= 8 else 8 + (cpus - 8) * 5 // 8


def believed(cpus, containers, per_cpu, threads_of=lambda cpus: cpus):
    """The CPUs of a machine on which as many containers have `per_cpu` threads for each CPU that there really is; the machine's own where
    these come as near to it."""
    wanted = per_cpu * cpus / containers
    off = lambda n: abs(threads_of(n) - wanted)
    return min([cpus, *range(1, 65)], key=lambda n: (off(n), n != cpus))


def find(options, openmp=False):
    """All of it, as attributes; what is missing is said before anything is started."""
    cpus = online_cpus()
    per_cpu = options.per_cpu or PER_CPU["openmp" if openmp else "gc"]
    belief = options.cpus or believed(cpus, options.containers, per_cpu, (lambda n: n) if openmp else gc_threads)
    place = SimpleNamespace(cpus=cpus, believed=belief, npb=options.npb, neighbour=neighbour, pretend=None)
    if belief != cpus:
        place.pretend = c(PRETEND)
    if openmp:
        place.kernels = None if place.npb else c(KERNELS)
        return place
    place.java = java(options.jdk)
    if not AGENT.exists():
        raise Refused(f"{AGENT} is not there: make java")
    place.jars = sorted(options.lib.glob("*.jar"))
    place.classes, place.real = compiled(place.java, place.jars)
    return place


def java(home):
    kit = CACHE / "jdk/bin/java"
    found = home / "bin/java" if home else kit if kit.exists() else shutil.which("java")
    if not found or not os.access(found, os.X_OK):
        raise Refused(f"{found} is not there: apt install openjdk-17-jdk-headless, or say --jdk HOME")
    return Path(found)


def version(java):
    """As a JDK says it of itself."""
    found = re.search(r'"([^"]+)"', subprocess.run([java, "-version"], capture_output=True, text=True).stderr)
    return found[1] if found else "?"


def compiled(java, jars):
    """The class path, and whether it has the real programs: those need all their libraries."""
    directory, ours = programs.BUILT / "runtimes", sorted((ROOT / "lab/java/real").glob("*.java"))
    sources, last = [ROOT / "lab/java/Runtimes.java", *(ours if jars else [])], "Programs" if jars else "Runtimes"
    javac = java.resolve().with_name("javac")  # not asked for in a kit, where all is compiled
    path = ":".join(map(str, [directory, *jars]))
    programs.build(f"runtimes/{last}.class", sources, [javac, "--release", "17", "-nowarn", "-cp", path, "-d", directory, *sources])
    # Sunflow's benchmark asks for a picture to compare with; nothing is compared.
    picture = directory / "resources/golden_0040.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    if not picture.exists():
        picture.write_bytes(black(64))
    return path, bool(jars)


def black(size):
    """A picture without colours, as PNG."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = zlib.compress((b"\0" + b"\0\0\0" * size) * size)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", rows)
        + chunk(b"IEND", b"")
    )


def neighbour(number, threads, seconds):
    """The command that keeps CPUs busy for a while once it is told to: one of sysbench's tests, as in the paper, where that is here."""
    if shutil.which("sysbench"):
        return gated(["sysbench", *SYSBENCH[number % len(SYSBENCH)], f"--threads={threads}", f"--time={seconds}", "run"])
    return [c(BUSY), threads, seconds * 1000]


def compile_all(jdk):
    """Compiles everything in advance, for a machine that cannot."""
    compiled(Path(jdk, "bin/java"), sorted((CACHE / "lib").glob("*.jar")))
    for program in (BUSY, KERNELS, PRETEND):
        c(program)
