"""What `elbowroom audit` says of real programs, against what strace sees them ask and what they then count.

`make live` has the small roots; `make audit` has all, and writes down what it saw."""

import ctypes
import gzip
import json
import os
import re
import shutil
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest

from kit import roots
from kit.asks import asks
from kit.audited import AUDITED
from kit.cgroup import V2
from kit.wait import PATIENCE, eventually

# A directory for the results: then every root is checked, not the quick ones alone.
RESULTS = os.environ.get("ELBOWROOM_AUDIT_RESULTS")
CHOSEN = [name for name, audited in AUDITED.items() if RESULTS or audited.quick]
# What glibc itself asks in any program: malloc for its arenas, qsort for its memory.
OF_LIBC = {"/sys/devices/system/cpu/online", "sysinfo"}


@pytest.fixture(scope="module")
def results(binary):
    """Rows of what was seen; written to RESULTS at the end, where that is set."""
    rows = []
    yield rows
    if RESULTS and rows:
        write(Path(RESULTS), rows, binary)


@pytest.fixture
def one_cpu(hand_made):
    """A container's limits: one CPU of this machine's, and less memory."""
    group = hand_made(f"elbowroom-test-audit-{os.getpid()}")
    group.limit_cpu(1)
    group.limit_memory(512 << 20)
    return group


@pytest.fixture
def audit(binary):
    def audit(*words, code=None, **environment):
        done = subprocess.run(
            [binary, "audit", "--format", "json", *map(str, words)],
            capture_output=True, text=True, timeout=600, env={**os.environ, **environment},
        )
        assert code is None or done.returncode == code, (done.returncode, done.stderr)
        images = json.loads(done.stdout)["images"] if done.stdout else []
        return images or done.stderr

    return audit


def root_of(name):
    if PATIENCE > 1:
        # The VM's file server keeps a descriptor for every file that the guest remembers.
        Path("/proc/sys/vm/drop_caches").write_text("2")
    try:
        return AUDITED[name].root(name)
    except (roots.Missing, OSError, StopIteration, subprocess.SubprocessError) as missing:
        pytest.skip(f"needs the root {name}: {missing}")


@pytest.mark.parametrize("name", CHOSEN)
def test_the_audit_says_what_strace_sees(name, audit, one_cpu, results, tmp_path):
    if not shutil.which("strace"):
        pytest.skip("needs strace, which is not installed")
    root = root_of(name)
    report = audit(root, "--cgroup", "v2" if V2 else "v1")[0]
    for run in AUDITED[name].runs:
        findings = [f for f in report["findings"] if f["id"] in run.id.split() and (f["id"] != "program" or "asks" in f["path"])]
        assert {f["id"] for f in findings} == set(run.id.split()), f"not found: {report['findings']}"
        answers = [f[resource] for f in findings for resource in ("cpu", "memory")]
        reads = {source for answer in answers for source in answer["reads"]}
        also = {source for answer in answers for source in answer["also"]}
        seen, output = asks(root, run.words, tmp_path / "trace", one_cpu, run.user, stop_after=run.stop_after or None)
        counted = re.search(run.counts, output) if run.counts else None
        row = {
            "root": name, "program": run.id, "version": findings[0]["version"], "seen": sorted(seen), "reads": sorted(reads),
            "also": sorted(also), "cpu": findings[0]["cpu"]["limits"], "memory": findings[0]["memory"]["limits"],
            "cpu_views": findings[0]["cpu"]["views"], "memory_views": findings[0]["memory"]["views"],
            "counted": int(counted.group(1)) if counted else None, "cpus": os.cpu_count(),
        }  # fmt: skip
        results.append(row)
        assert reads <= seen, f"said to decide, and never asked: {reads - seen}; output: {output[-400:]}"
        assert seen <= reads | also | OF_LIBC, f"asked, and not in the table: {seen - reads - also - OF_LIBC}"
        if run.counts:
            assert counted, f"no count in: {output[-400:]}"
            expect = os.cpu_count() if row["cpu"] == "host" else 1
            assert int(counted.group(1)) == expect, f"{row['cpu']}, and it counted {counted.group(1)}"


def test_an_image_is_the_same_in_every_form(audit, docker, tmp_path):
    root = root_of("go-1.19")
    packed = tmp_path / "root.tar"
    subprocess.run(["tar", "-C", root, "-cf", packed, "."], check=True)
    with open(packed, "rb") as tar:
        docker.call("import", "--change", 'CMD ["/usr/sbin/runc"]', "-", "elbowroom-audit:x", stdin=tar)

    def findings(report):
        return [(f["id"], f["version"], f["path"], f["cpu"], f["memory"]) for f in report["findings"]]

    expect = findings(audit(root, code=1)[0])
    assert expect
    by_name = audit("elbowroom-audit:x", code=1, DOCKER_HOST=f"unix://{docker.socket}")[0]
    assert findings(by_name) == expect
    saved = tmp_path / "image.tar"
    docker.call("save", "--output", saved, "elbowroom-audit:x")
    assert findings(audit(saved, code=1)[0]) == expect
    (tmp_path / "image.tar.gz").write_bytes(gzip.compress(saved.read_bytes(), 1))
    assert findings(audit(tmp_path / "image.tar.gz", code=1)[0]) == expect
    # GOMAXPROCS is settled where the image sets it.
    with open(packed, "rb") as tar:
        docker.call("import", "--change", "ENV GOMAXPROCS=2", "--change", 'CMD ["runc"]', "-", "elbowroom-audit:y", stdin=tar)
    settled = audit("elbowroom-audit:y", code=0, DOCKER_HOST=f"unix://{docker.socket}")[0]
    assert settled["limits"] == "settled", settled
    docker.call("rmi", "--force", "elbowroom-audit:x", "elbowroom-audit:y")


@pytest.mark.parametrize(
    "target, says",
    [
        ("/no/such/root", "No such file"),
        ("./nothing", "No such file"),
        ("-x", "see `elbowroom help audit`"),
        ("a b", "no image's name"),
        ("/etc/passwd", "passwd"),
    ],
)
def test_a_bad_target_is_one_line_and_status_two(audit, target, says):
    said = audit(target, code=2)
    assert said.count("\n") == 1 and says in said, said


def write(directory, rows, binary):
    """The raw result, and a table of it for people."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "reads.json").write_text(json.dumps(rows, indent=1) + "\n")
    # The audit's own words on all of them, and the paper's Fig. 1 for these images.
    words = [binary, "audit", "--cgroup", "v2" if V2 else "v1", *(row["root"] for row in rows)]
    (directory / "audit.txt").write_text(subprocess.run(words, cwd=roots.CACHE / "roots", capture_output=True, text=True).stdout)
    lines = [
        "# What programs ask, and what the audit says",
        "",
        f"`make audit`, {os.uname().release}, cgroup {'v2' if V2 else 'v1'}, {rows[0]['cpus']} CPUs; each program under strace in a"
        " root of its own, limited to 1 CPU and 512 MiB. `counted` is how many CPUs it then reported; *live*, *start* and *host*"
        " are the audit's words, under limits alone, then with views.",
        "",
        "| root | program | CPUs: limits, views | counted | memory: limits, views | decides, and was seen | seen besides |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        besides = ", ".join(sorted(set(row["seen"]) - set(row["reads"])))
        counted = row["counted"] or ""
        lines.append(
            f"| {row['root']} | {row['program']} {row['version'] or ''} | {row['cpu']}, {row['cpu_views']} | {counted} "
            f"| {row['memory']}, {row['memory_views']} | {', '.join(row['reads'])} | {besides} |"
        )
    (directory / "summary.md").write_text("\n".join(lines) + "\n")


@pytest.fixture
def silent_file_systems(tmp_path):
    """Two file systems in user space, and what ends them: one that answers nothing, and one that answers nothing but its first request."""
    libc = ctypes.CDLL(None, use_errno=True)
    mounted = []
    for name in ("silent", "holding"):
        point, device = tmp_path / name, open("/dev/fuse", "r+b", buffering=0)
        point.mkdir()
        options = f"fd={device.fileno()},rootmode=40000,user_id=0,group_id=0"
        if libc.mount(b"silent", bytes(point), b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), "mount")
        mounted.append((point, device))
    descriptor = device.fileno()
    # FUSE_INIT, version 7.31 (include/uapi/linux/fuse.h), and of the next request nothing but that it was read.
    (unique,) = struct.unpack_from("<Q", os.read(descriptor, 1 << 17), 8)
    body = struct.pack("<IIII HH II", 7, 31, 0, 0, 12, 9, 1 << 16, 1) + bytes(36)
    os.write(descriptor, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)
    threading.Thread(target=os.read, args=(descriptor, 1 << 17), daemon=True).start()
    yield mounted
    for point, device in mounted:
        device.close()
        libc.umount2(bytes(point), 2)


def test_a_file_system_that_never_answers_is_given_up(binary, silent_file_systems):
    begin = time.monotonic()
    started = [
        subprocess.Popen([binary, "audit", str(point)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for point, _ in silent_file_systems
    ]
    left = []
    # What has taken a request holds who waits for the answer, and says so.
    for audit, (point, _), is_held in zip(started, silent_file_systems, (False, True)):
        status, took, said = audit.wait(timeout=60 * PATIENCE), time.monotonic() - begin, audit.stderr.readline()
        assert (status, 30 <= took < 45 * PATIENCE, "cannot be killed" in said) == (2, True, is_held), (status, took, said)
        assert "given up" in said and str(point) in said, said
        left += [int(pid) for pid in re.findall(r"process (\d+) waits", said)]
    assert left and all(Path(f"/proc/{pid}").exists() for pid in left)
    for _, device in silent_file_systems:
        device.close()  # A file system ends with its last descriptor, and so does every request.
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))
