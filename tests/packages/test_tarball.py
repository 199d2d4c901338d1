"""The static tarball runs where there is nothing else: no C library, no shell, no /etc."""

import re
import subprocess
import tarfile
from pathlib import Path

import pytest

TARBALLS = Path(__file__).parents[2] / "target/tarball"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A directory with nothing in it but the tarball."""
    newest = max(TARBALLS.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)
    where = tmp_path_factory.mktemp("tarball")
    with tarfile.open(newest) as tar:
        tar.extractall(where)
    return next(where.iterdir())


def in_root(root, *words):
    return subprocess.run(["chroot", root, *words], capture_output=True, text=True, timeout=60)


def test_the_program_runs_in_an_empty_root(root):
    done = in_root(root, "/bin/elbowroom", "--version")
    assert done.returncode == 0 and done.stdout.startswith("elbowroom "), done
    for verb in ["--help", "doctor", "restore"]:
        assert "not found" not in in_root(root, "/bin/elbowroom", verb).stderr


def test_nothing_is_linked_dynamically(root):
    program = subprocess.run(["readelf", "--program-headers", "--dynamic", root / "bin/elbowroom"], capture_output=True, text=True)
    assert "INTERP" not in program.stdout and "(NEEDED)" not in program.stdout


def test_errors_name_what_is_missing(root):
    done = in_root(root, "/bin/elbowroom", "list")
    assert done.returncode == 2 and "/run/elbowroom" in done.stderr and done.stderr.count("\n") == 1, done


def test_examples_name_what_is_there(root):
    for example in ("enforce.conf", "probes.toml"):
        named = re.findall(r'[="](/[^ "\n]+)', (root / "share/doc/elbowroom/examples" / example).read_text())
        # Where docs/guide/install.md has it unpacked.
        assert named and all((root / Path(path).relative_to("/usr/local")).is_file() for path in named), (example, named)


def test_it_brings_what_goes_with_it(root):
    for path in ["share/man/man1/elbowroom.1", "lib/systemd/system/elbowroom.service", "etc/elbowroom/elbowroom.toml",
                 "share/doc/elbowroom/LICENSE-MIT", "share/elbowroom/elbowroom-agent.jar"]:
        assert (root / path).is_file(), path
