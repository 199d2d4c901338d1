"""install.sh installs what its checksum names and nothing else, and takes away what it installed. Run by dash and by busybox's shell."""

import hashlib
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "packaging/install.sh"
SHELLS = {"dash": ["dash"], "busybox": ["busybox", "sh"]}
FILES = {"bin/elbowroom": "program", "bin/elbowroom-runtime": "runtime", "lib/systemd/system/elbowroom.service": "ExecStart=/usr/local/bin/elbowroom agent",
         "etc/elbowroom/elbowroom.toml": "# settings", "share/man/man1/elbowroom.1": ".TH", "share/elbowroom/elbowroom-agent.jar": "PK"}  # fmt: skip


@pytest.fixture(params=SHELLS)
def install(request, tmp_path):
    if not shutil.which(request.param):
        pytest.skip(f"needs {request.param}, which is not installed")
    (tmp_path / "root").mkdir()

    def run(*words):
        return subprocess.run([*SHELLS[request.param], SCRIPT, "--root", tmp_path / "root", *words], capture_output=True, text=True, timeout=60)

    return run


def packed(directory, files):
    """A tarball with these files, and SHA256SUMS beside it."""
    directory.mkdir(exist_ok=True)
    tree = directory / "elbowroom-0-x86_64-linux"
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
        (tree / name).chmod(0o755 if name.startswith("bin/") else 0o644)
    (tree / "share/man/man1/elbowroom-runtime.1").symlink_to("elbowroom.1")
    path = directory / "elbowroom-0-x86_64-linux.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(tree, tree.name)
    shutil.rmtree(tree)
    (directory / "SHA256SUMS").write_text(f"{'0' * 64}  other.deb\n{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
    return path


def files_below(root):
    return {str(path.relative_to(root)) for path in root.glob("**/*") if not path.is_dir() or path.is_symlink()}


def test_what_is_installed_can_be_upgraded_and_removed(install, tmp_path):
    root = tmp_path / "root"
    done = install(packed(tmp_path / "one", {**FILES, "share/old": "x"}))
    assert done.returncode == 0, done.stderr
    placed = {f"usr/local/{name}" for name in FILES if not name.startswith("etc/")} | {"usr/local/share/man/man1/elbowroom-runtime.1"}
    own = {"etc/elbowroom/elbowroom.toml", "usr/local/lib/elbowroom/installed"}
    assert files_below(root) == placed | own | {"usr/local/share/old"}
    assert (root / "etc/elbowroom/elbowroom.toml").stat().st_mode & 0o777 == 0o640

    (root / "etc/elbowroom/elbowroom.toml").write_text("# changed")
    (root / "usr/local/bin/theirs").write_text("theirs")
    assert install(packed(tmp_path / "two", FILES | {"bin/elbowroom": "newer"})).returncode == 0
    assert (root / "usr/local/bin/elbowroom").read_text() == "newer" and (root / "etc/elbowroom/elbowroom.toml").read_text() == "# changed"
    assert files_below(root) == placed | own | {"usr/local/bin/theirs"}

    (root / "etc/docker").mkdir()
    (root / "etc/docker/daemon.json").write_text('{"default-runtime": "elbowroom", "path": "/usr/local/bin/elbowroom-runtime"}')
    refused = install("--uninstall")
    assert refused.returncode == 2 and "daemon.json" in refused.stderr and (root / "usr/local/bin/elbowroom").exists()
    (root / "etc/docker/daemon.json").unlink()
    assert install("--uninstall").returncode == 0
    assert files_below(root) == {"etc/elbowroom/elbowroom.toml", "usr/local/bin/theirs"}
    assert install("--uninstall").returncode == 2


def test_nothing_is_installed_unverified(install, tmp_path):
    tarball = packed(tmp_path / "one", FILES)
    sums = tarball.with_name("SHA256SUMS")
    good = sums.read_text()
    for text, expect in ((good.replace(good[-80:-75], "00000"), "is not the file"), ("0" * 64 + "  other.deb\n", "says nothing of"), (None, "nothing is installed unverified")):
        sums.unlink(missing_ok=True)
        if text is not None:
            sums.write_text(text)
        done = install(tarball)
        assert done.returncode == 2 and expect in done.stderr and done.stderr.count("\n") == 1, done
        assert files_below(tmp_path / "root") == set()
    sums.write_text(good)
    with open(tarball, "ab") as file:
        file.write(b"x")
    assert "is not the file" in install(tarball).stderr and files_below(tmp_path / "root") == set()


def test_another_prefix_is_named_in_units(install, tmp_path):
    assert install("--prefix", "/opt/room", packed(tmp_path / "one", FILES)).returncode == 0
    unit = tmp_path / "root/opt/room/lib/systemd/system/elbowroom.service"
    assert unit.read_text() == "ExecStart=/opt/room/bin/elbowroom agent"
    assert "units cannot name" in install("--prefix", "/opt/a b", tmp_path / "one/elbowroom-0-x86_64-linux.tar.gz").stderr
