"""Images made here: as `docker save` writes them, of a static busybox and of programs with their libraries."""

import hashlib
import io
import json
import re
import subprocess
import tarfile
from pathlib import Path

from kit.docker import busybox

# For pods, and for the sandbox around each.
IMAGE = "elbowroom.dev/test:1"


def archive(name, program=None):
    """An image with /busybox, or one that is `program`, at /elbowroom/NAME as in the image of a release."""
    layer = tar(files([program] if program else []))
    starts = {"Entrypoint": [f"/elbowroom/{program.name}"]} if program else {"Cmd": ["/busybox", "sleep", "infinity"]}
    config = {
        "architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
        "config": {**starts, "Env": ["PATH=/"]},
    }  # fmt: skip
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    words = {"config.json": json.dumps(config).encode(), "layer.tar": layer, "manifest.json": json.dumps(manifest).encode()}
    return tar(words)


def files(programs):
    found = {"busybox": Path(busybox()).read_bytes()}
    for program in programs:
        found[f"elbowroom/{program.name}"] = stripped(program)
        linked = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        for library in re.findall(r"(/\S+) \(0x", linked):
            found[library.lstrip("/")] = Path(library).read_bytes()
    return found


def stripped(program):
    """A debug build without what a debugger wants."""
    copy = subprocess.run(["strip", "-o", "/dev/stdout", program], capture_output=True)
    return copy.stdout or program.read_bytes()


def tar(files):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as out:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            out.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def digest(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
