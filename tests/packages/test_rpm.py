"""The RPM packages below target/rpm, in a root of their own that has a shell and nothing else."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RPMS = Path(__file__).parents[2] / "target/rpm"
SETTINGS = Path(__file__).parents[2] / "packaging/rpm/rpmlint.toml"
CONFIG = "etc/elbowroom/elbowroom.toml"


@pytest.fixture(scope="module", autouse=True)
def needs():
    if not shutil.which("rpm") or not list(RPMS.glob("*.rpm")):
        pytest.skip("needs rpm and packages: 'make rpm'")
    if os.geteuid() != 0:
        pytest.skip("needs root: rpm enters the other root")


@pytest.fixture
def root(tmp_path):
    (tmp_path / "bin").mkdir()
    shutil.copy(shutil.which("busybox"), tmp_path / "bin/busybox")
    for name in ("sh", "grep", "rmdir"):
        (tmp_path / "bin" / name).symlink_to("busybox")
    return tmp_path


def rpm(root, *words):
    return subprocess.run(["rpm", "--root", root, "--define", "_pkgverify_level none", *words], capture_output=True, text=True, timeout=120)


def package(name):
    return next(RPMS.glob(f"{name}-[0-9]*.rpm"))


def installed(root):
    words = [package(name) for name in ("elbowroom", "libelbowroom", "libelbowroom-devel")]
    # The root's shell is no package.
    done = rpm(root, "--install", "--nodeps", *words)
    assert done.returncode == 0, done.stderr


def test_what_is_installed_is_whole_and_goes_again(root):
    before = {path for path in root.glob("**/*")}
    installed(root)
    for path in ("usr/bin/elbowroom-runtime", "usr/lib/systemd/system/elbowroom.service", "usr/lib64/libelbowroom.so.1", "usr/include/elbowroom/view.h",
                 "usr/share/man/man1/elbowroom.1.gz", "usr/share/bash-completion/completions/elbowroom", "usr/share/fish/vendor_completions.d/elbowroom.fish",
                 "usr/share/zsh/site-functions/_elbowroom", "usr/share/elbowroom/elbowroom-agent.jar", "usr/lib/sysusers.d/elbowroom.conf"):  # fmt: skip
        assert (root / path).is_file(), path
    assert (root / CONFIG).stat().st_mode & 0o777 == 0o640
    assert rpm(root, "--verify", "--nodeps", "elbowroom", "libelbowroom", "libelbowroom-devel").stdout == ""

    (root / CONFIG).write_text("# changed\n")
    again = rpm(root, "--upgrade", "--nodeps", "--replacepkgs", package("elbowroom"))
    assert again.returncode == 0 and (root / CONFIG).read_text() == "# changed\n", again.stderr
    gone = rpm(root, "--erase", "elbowroom", "libelbowroom", "libelbowroom-devel")
    assert gone.returncode == 0, gone.stderr
    left = {path for path in root.glob("**/*") if path not in before and not path.is_dir() and "rpmdb" not in str(path)}
    assert {path.name for path in left} <= {"elbowroom.toml.rpmsave"}, left


def test_a_removal_that_would_leave_docker_without_its_runtime_is_refused(root):
    installed(root)
    (root / "etc/docker").mkdir()
    (root / "etc/docker/daemon.json").write_text('{"runtimes": {"elbowroom": {"path": "/usr/bin/elbowroom-runtime"}}}')
    refused = rpm(root, "--erase", "elbowroom")
    assert refused.returncode != 0 and "daemon.json" in refused.stderr and (root / "usr/bin/elbowroom").exists(), refused
    (root / "etc/docker/daemon.json").unlink()
    assert rpm(root, "--erase", "elbowroom").returncode == 0


def test_rpmlint_finds_no_error():
    if not shutil.which("rpmlint"):
        pytest.skip("needs rpmlint, which is not installed")
    done = subprocess.run(["rpmlint", "--config", SETTINGS, *RPMS.glob("*.rpm")], capture_output=True, text=True, timeout=120)
    assert not [line for line in done.stdout.splitlines() if ": E: " in line], done.stdout
