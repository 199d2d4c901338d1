"""Runtimes, how each is started, and what it says of its room: the rows of the table in docs/guide/runtimes.md."""

import os
import re
import shutil
import sys
from dataclasses import dataclass, field
from itertools import groupby, product
from operator import itemgetter
from pathlib import Path

from kit import jvm, programs
from kit.programs import BUILT, SOURCES, Missing, build

REPOSITORY = Path(__file__).resolve().parents[3]
GUIDE = REPOSITORY / "docs/guide/runtimes.md"
# Where `tools/setup runtimes` unpacks servers that are not to be installed.
CACHE = REPOSITORY / ".cache/runtimes"
UNPACKED = CACHE / "root"
SURFACES = {"files": [], "openmp": ["--openmp"], "libc": ["--libc"], "java": []}
COLUMNS = [*SURFACES, "words"]
PYTHON = "/usr/bin/python3"
# For a library that is loaded late and was made to be there from the start.
STATIC_TLS = ["env", "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=16384"]


@dataclass
class Runtime:
    """`words()` gives the command of a program that answers each line with numbers, of which `says` names those that count."""

    name: str
    words: object
    says: dict  # quantity: its place in the answer
    columns: tuple = ("files", "libc", "words")
    least: int = 1  # it never says fewer CPUs
    environment: dict = field(default_factory=dict)  # by column

    def command(self, column):
        settings = [f"{key}={value}" for key, value in self.environment.get(column, {}).items()]
        return ["env", *settings, *map(str, self.words())]


def all_runtimes():
    c = lambda compiler: lambda: [programs.c("asks", compiler)]
    asks = {"processors online": 0, "affinity": 2, "memory": 5}
    regions = lambda compiler: lambda: [programs.c("regions", compiler, "-fopenmp")]
    openmp = ("files", "openmp", "libc", "words")
    rows = [
        Runtime("glibc", c("gcc"), asks),
        Runtime("musl", c("musl-gcc"), asks),
        Runtime("Go", lambda: [programs.go()], {"`GOMAXPROCS`": 0}, least=2),
        Runtime("Rust", rust, {"`available_parallelism`": 0}),
        Runtime("Node", node, {"`os.cpus()`": 0, "`availableParallelism`": 2, "`totalmem`": 1, "V8's heap": 3}),
        Runtime("CPython", lambda: [PYTHON, SOURCES / "sees.py"], {"`os.cpu_count()`": 0, "affinity": 1, "memory": 2}),
        Runtime("Ruby", lambda: [found("ruby"), SOURCES / "sees.rb"], {"`Etc.nprocessors`": 0}),
        Runtime(".NET Core 3.1", dotnet, {"`ProcessorCount`": 0, "memory of the collector": 1}),
        Runtime("libgomp", regions("gcc"), {"width of a region": 0, "`omp_get_num_procs`": 11}, openmp),
        Runtime("libomp", regions("clang"), {"width of a region": 0, "`omp_get_num_procs`": 11}, openmp),
        Runtime("OpenBLAS", lambda: [PYTHON, SOURCES / "blas.py", library("openblas-pthread/libopenblas.so.0", "libopenblas0-pthread")], {"threads": 0}),
        Runtime("jemalloc", lambda: [*STATIC_TLS, PYTHON, SOURCES / "jemalloc.py", library("libjemalloc.so.2", "libjemalloc2")], {"CPUs of its arenas": 0}),
        Runtime("oneTBB", lambda: [PYTHON, SOURCES / "tbb.py", library("libtbb.so.12", "libtbb12")], {"`max_concurrency`": 0}),
        Runtime("nginx", lambda: server("nginx"), {"`worker_processes auto`": 0}),
        Runtime("MariaDB", lambda: server("mariadbd"), {"`thread_pool_size`": 0}),
    ]
    says = {"processors": 0, "memory": 1, "largest heap": 2, "GC threads (G1)": 3}
    agent = {"JAVA_TOOL_OPTIONS": f"-javaagent:{jvm.AGENT}=jmx=0,period-ms=100"}
    for version in ("17", "21", "25"):
        rows.append(Runtime(f"JDK {version}", java(version), says, ("files", "libc", "java", "words"), environment={"java": agent}))
    return rows


def found(name, *more):
    path = shutil.which(name) or next((path for path in more if os.access(path, os.X_OK)), None)
    if not path:
        raise Missing(f"{name}: tools/setup runtimes")
    return path


def rust():
    compiler = found("rustc", Path.home() / ".cargo/bin/rustc")
    build("sees-rust", SOURCES / "sees.rs", [compiler, "--edition", "2021", "-O", "-o", BUILT / "sees-rust", SOURCES / "sees.rs"])
    return [BUILT / "sees-rust"]


def node():
    return [found("node"), SOURCES / "sees.js"]


def dotnet():
    home = CACHE / "dotnet"
    [framework, *_] = [*home.glob("shared/Microsoft.NETCore.App/*"), None]
    if not framework:
        raise Missing(".NET Core 3.1: tools/setup runtimes")
    references = [f"-r:{framework}/{name}.dll" for name in ("System.Private.CoreLib", "System.Runtime", "System.Runtime.Extensions", "System.Console")]
    source = SOURCES / "Sees.cs"
    build("Sees.dll", source, [found("mcs"), "-nostdlib", "-noconfig", *references, f"-out:{BUILT}/Sees.dll", source])
    (BUILT / "Sees.runtimeconfig.json").write_text('{"runtimeOptions":{"framework":{"name":"Microsoft.NETCore.App","version":"3.1.0"}}}')
    return ["env", "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1", home / "dotnet", "exec", BUILT / "Sees.dll"]


def library(file, package):
    for path in sorted(Path("/usr/lib").glob(f"*/{file}")):
        return path
    raise Missing(f"{package}: tools/setup runtimes")


def server(name):
    return [PYTHON, SOURCES / "server.py", name.removesuffix("d"), found(name, UNPACKED / f"usr/sbin/{name}")]


def java(version):
    def words():
        machines = jvm.virtual_machines()
        if version not in machines:
            raise Missing(f"JDK {version} below /usr/lib/jvm, or its home in ELBOWROOM_TEST_JVMS: tools/setup runtimes")
        compiler = sorted(Path("/usr/lib/jvm").glob("*-17-*/bin/javac")) or sorted(Path("/usr/lib/jvm").glob("*/bin/javac"))
        if not compiler:
            raise Missing("a Java compiler in /usr/lib/jvm: tools/setup test")
        build("Room.class", SOURCES / "Room.java", [compiler[0], "--release", "17", "-d", BUILT, SOURCES / "Room.java"])
        flags = ["-XX:+UseG1GC", "-XX:MaxRAMPercentage=75", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        return [machines[version], *flags, "-cp", BUILT, "Room"]

    return words


# ---- the table ----

HEAD = re.compile(r"^\| runtime \| says \|.*\n\|[-|]+\|\n", re.M)


def table():
    """The table in the guide: {(runtime, quantity): {column: cell}}."""
    text = GUIDE.read_text()
    cells, runtimes = {}, []
    for line in text[HEAD.search(text).end() :].splitlines():
        if not line.startswith("|"):
            break
        names, quantities, *rest = (cell.strip() for cell in line.strip("|").split("|"))
        runtimes = names.split(", ") if names else runtimes
        keys = product(runtimes, quantities.split(", "))
        cells |= {key: dict(zip(COLUMNS, rest, strict=True)) for key in keys}
    return cells


def render(cells):
    """The lines of the table. Neighbours of the same cells, runtimes or quantities, share them."""
    runtimes, lines = {}, []
    for (runtime, quantity), row in cells.items():
        runtimes.setdefault(runtime, []).append((quantity, [row.get(column, "") for column in COLUMNS]))
    for rows, names in groupby(runtimes, runtimes.get):
        first = ", ".join(names)
        for row, quantities in groupby(rows, itemgetter(1)):
            lines.append("| " + " | ".join([first, ", ".join(map(itemgetter(0), quantities)), *row]) + " |")
            first = ""
    return [re.sub(r"\|  (?=\|)", "| ", line) for line in lines]


def rewrite(cells):
    """Puts the table into the guide."""
    text = GUIDE.read_text()
    start = HEAD.search(text).end()
    end = start
    for line in text[start:].splitlines(keepends=True):
        if not line.startswith("|"):
            break
        end += len(line)
    GUIDE.write_text(text[:start] + "".join(f"{line}\n" for line in render(cells)) + text[end:])


if __name__ == "__main__":
    sys.stdout.write("\n".join(render(table())) + "\n")
