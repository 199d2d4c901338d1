"""The container image below target/image: one archive for amd64 and arm64, of which an engine takes the image of its machine. No arm64
machine is needed: QEMU's user mode runs those programs."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
ARCHIVE = ROOT / f"target/image/elbowroom-{VERSION}-image.tar"
NAME = f"docker.io/library/elbowroom:{VERSION}"
# Architectures, each with ELF's number of its machine and what runs its programs here.
MACHINES = {"amd64": (62, []), "arm64": (183, ["qemu-aarch64"])}
PROGRAMS = {"elbowroom", "elbowroom-runtime", "elbowroom-kube"}
BOTH = pytest.mark.parametrize("architecture", MACHINES)


@pytest.fixture(scope="module", autouse=True)
def needs():
    if not ARCHIVE.exists():
        pytest.skip("needs the image: 'make image'")


@pytest.fixture(scope="module")
def files():
    with tarfile.open(ARCHIVE) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar if entry.isfile()}


def blob(files, descriptor):
    content = files[f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"]
    assert (hashlib.sha256(content).hexdigest(), len(content)) == (descriptor["digest"].removeprefix("sha256:"), descriptor["size"])
    return content


@pytest.fixture(scope="module")
def images(files):
    """By architecture: the manifest, the configuration and the layer, each of its checksum."""
    [listed] = json.loads(files["index.json"])["manifests"]
    found = {}
    for one in json.loads(blob(files, listed))["manifests"]:
        manifest = json.loads(blob(files, one))
        assert one["platform"]["os"] == "linux"
        found[one["platform"]["architecture"]] = (manifest, json.loads(blob(files, manifest["config"])), blob(files, manifest["layers"][0]))
    return found


@pytest.fixture(scope="module")
def trees(images, tmp_path_factory):
    """What is in each image, unpacked."""
    at = tmp_path_factory.mktemp("trees")
    for architecture, (_, _, layer) in images.items():
        (at / f"{architecture}.tar").write_bytes(layer)
        with tarfile.open(at / f"{architecture}.tar") as tar:
            assert all((entry.uid, entry.gid) == (0, 0) for entry in tar)
            tar.extractall(at / architecture)
    return at


def says_its_version(program, architecture):
    """The program runs where there is nothing else."""
    emulator = MACHINES[architecture][1]
    if emulator and not shutil.which(emulator[0]):
        pytest.skip(f"needs {emulator[0]}, which is not installed: tools/setup arm64")
    done = subprocess.run([*emulator, program, "--version"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith(f"{program.name} {VERSION}"), done


def test_the_archive_has_an_image_of_each_architecture_and_nothing_else(files, images):
    assert list(images) == list(MACHINES)
    named = sum(1 for name in files if name.startswith("blobs/"))
    assert named == 1 + 3 * len(MACHINES), "the index, and a manifest, a configuration and a layer for each"


@BOTH
def test_an_image_has_static_programs_of_its_machine_and_nothing_else(trees, architecture):
    tree = trees / architecture
    assert {str(path.relative_to(tree)) for path in tree.glob("**/*")} == {
        "elbowroom", "elbowroom/elbowroom-agent.jar", *(f"elbowroom/{name}" for name in PROGRAMS)}  # fmt: skip
    for name in PROGRAMS:
        program = tree / "elbowroom" / name
        assert int.from_bytes(program.read_bytes()[18:20], "little") == MACHINES[architecture][0], name
        assert program.stat().st_mode & 0o777 == 0o755
        told = subprocess.run(["readelf", "--program-headers", "--dynamic", program], capture_output=True, text=True).stdout
        assert "INTERP" not in told and "(NEEDED)" not in told, name


@BOTH
@pytest.mark.parametrize("name", ["elbowroom", "elbowroom-kube"])
def test_a_program_runs(trees, architecture, name):
    says_its_version(trees / architecture / "elbowroom" / name, architecture)


@BOTH
def test_an_image_says_what_is_started_and_how_its_health_is_asked(images, architecture):
    manifest, config, layer = images[architecture]
    assert (config["os"], config["architecture"]) == ("linux", architecture)
    assert config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]
    settings = config["config"]
    assert (settings["Entrypoint"], settings["Cmd"]) == (["/elbowroom/elbowroom", "host"], ["agent"])
    assert settings["Healthcheck"]["Test"] == ["CMD", "elbowroom", "list"]
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in settings["Labels"].items()}
    assert (labels["title"], labels["version"], labels["licenses"]) == ("elbowroom", VERSION, "Apache-2.0 OR MIT")
    assert re.fullmatch("[0-9a-f]{40}", labels["revision"])


def test_docker_save_names_the_first_machine_and_each_other_by_itself(files, images):
    # `docker load` without containerd's image store reads nothing else.
    told = {one["RepoTags"][0]: one for one in json.loads(files["manifest.json"])}
    for tag, architecture in ((f"elbowroom:{VERSION}", "amd64"), (f"elbowroom:{VERSION}-arm64", "arm64")):
        one = told.pop(tag)
        assert json.loads(files[one["Config"]]) == images[architecture][1]
        assert [files[path] for path in one["Layers"]] == [images[architecture][2]]
    assert not told


def test_the_same_programs_make_the_same_bytes(trees, tmp_path):
    made = []
    for turn in range(2):
        programs = []
        for architecture in MACHINES:
            # Copies that are not as old.
            shutil.copytree(trees / architecture / "elbowroom", tmp_path / f"{turn}/{architecture}", copy_function=shutil.copy)
            programs += [path for path in (tmp_path / f"{turn}/{architecture}").iterdir() if path.suffix != ".jar"]
        archive = tmp_path / f"{turn}.tar"
        words = sorted(programs, reverse=bool(turn))
        subprocess.run([ROOT / "packaging/image", "-o", archive, *words], check=True, capture_output=True)
        made.append(hashlib.sha256(archive.read_bytes()).hexdigest())
    assert made[0] == made[1]


def test_a_program_that_needs_libraries_is_refused(tmp_path):
    done = subprocess.run([ROOT / "packaging/image", "-o", tmp_path / "image.tar", shutil.which("ls")], capture_output=True, text=True)
    assert done.returncode == 1 and "link it statically" in done.stderr and not (tmp_path / "image.tar").exists()


def test_a_releases_sbom_names_what_each_program_is_linked_with():
    done = subprocess.run([ROOT / "packaging/sbom", "0" * 40], capture_output=True, text=True)
    if "dpkg-query" in done.stderr:
        pytest.skip("needs the libraries of a release: tools/setup release")
    bom = json.loads(done.stdout)
    linked = {one["ref"]: one["dependsOn"] for one in bom["dependencies"]}
    waiting, found = [bom["metadata"]["component"]["bom-ref"]], set()
    while waiting:
        found.add(waiting.pop())
        waiting += {name for ref in found for name in linked.get(ref, [])} - found
    # In the agent, and in elbowroom-kube alone.
    assert {"elbowroom-agent", "elbowroom-kube", "kube-client"} <= {re.match("pkg:[^/]*/(.*)@", ref)[1] for ref in found}
    assert {one["bom-ref"] for one in bom["components"]} <= found


@pytest.fixture(scope="module")
def ctr(tmp_path_factory):
    """A containerd of our own, asked by `ctr`, with the image of every architecture."""
    if os.geteuid() != 0 or not shutil.which("containerd"):
        pytest.skip("needs root and containerd: tools/setup test")
    home = tmp_path_factory.mktemp("containerd")
    (home / "config.toml").write_text('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n')
    words = ["containerd", "--config", home / "config.toml", "--root", home / "root", "--state", home / "state", "--address", home / "sock"]
    with open(home / "log", "wb") as log:
        daemon = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def ask(*words):
        done = subprocess.run(["ctr", "--address", home / "sock", *words], capture_output=True, text=True, timeout=120)
        return done.stdout if done.returncode == 0 else f"{done.stderr}\n{(home / 'log').read_text()[-2000:]}"

    deadline = time.monotonic() + 60
    while "Server:" not in ask("version") and daemon.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    yield ask
    daemon.terminate()
    daemon.wait(60)


@BOTH
def test_containerd_takes_the_image_of_each_platform(ctr, architecture, tmp_path):
    ctr("images", "import", "--all-platforms", "--snapshotter", "native", ARCHIVE)
    assert re.search(rf"^{re.escape(NAME)} .*\.index\..* linux/amd64,linux/arm64 ", ctr("images", "list"), re.M), ctr("images", "list")
    mounted = ctr("images", "mount", "--snapshotter", "native", "--platform", f"linux/{architecture}", NAME, tmp_path)
    try:
        assert (tmp_path / "elbowroom/elbowroom").exists(), mounted
        says_its_version(tmp_path / "elbowroom/elbowroom", architecture)
    finally:
        ctr("images", "unmount", "--rm", "--snapshotter", "native", tmp_path)


@BOTH
def test_skopeo_takes_the_image_of_each_platform(architecture, images, tmp_path):
    if not shutil.which("skopeo"):
        pytest.skip("needs skopeo, which is not installed: apt install skopeo")
    words = ["skopeo", "copy", "--insecure-policy", "--override-arch", architecture, f"oci-archive:{ARCHIVE}:{VERSION}", f"dir:{tmp_path}"]
    subprocess.run(words, check=True, capture_output=True, text=True, timeout=120)
    assert json.loads((tmp_path / "manifest.json").read_text()) == images[architecture][0]
