"""The four pitfalls of "Taming Memory Related Performance Pitfalls in Linux Cgroups", made for real: seen by the doctor with
the right evidence, removed by the very command it prints, and gone. A healthy host shows none of them.

Two of them need a host that is short of memory, which only a small one can be made: they run in tests/vm."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit import cgroup
from kit.container import meminfo
from kit.wait import PATIENCE, eventually

MIB = 1 << 20
APPETITE = Path(__file__).with_name("kit") / "appetite.py"
# Above this, filling a host takes too long, and hurts others on it.
LARGEST_HOST = 4 << 30
PITFALLS = {"memory-not-reserved", "anon-evicts-cache", "cache-stolen", "swapped-by-host"}


def host_memory():
    return meminfo(Path("/proc/meminfo").read_text())


class Hungry:
    """A process of kit/appetite.py in a cgroup of its own, or in none."""

    def __init__(self, group=None):
        self.group = group
        self.process = subprocess.Popen(
            [sys.executable, APPETITE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if group:
            group.enter(self.process.pid)

    def __call__(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ok\n", f"the program ended at {order!r}"

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def hungry(hand_made):
    made = []

    def start(group=None):
        made.append(Hungry(group))
        return made[-1]

    yield start
    for process in made:
        process.end()


@pytest.fixture
def made(hand_made):
    """Makes a cgroup that the doctor takes for a container; a plain one with `container=False`."""

    def make(name, limit=None, container=True):
        group = hand_made(f"elbowroom-test-live-{'doctor' if container else 'plain'}-{os.getpid()}-{name}")
        if limit:
            group.limit_memory(limit)
        return group

    return make


@pytest.fixture
def doctor(binary, tmp_path):
    """Asks the doctor."""
    config = tmp_path / "doctor.toml"
    config.write_text(f'[containers]\ncgroups = ["/elbowroom-test-live-doctor-{os.getpid()}-*"]\n')

    def call(*words, seconds=1):
        words = [binary, "doctor", "--config", config, "--state-dir", tmp_path / "state", "--for", f"{seconds}s", *words]
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60 * PATIENCE)

    def find(group, check=None, seconds=1):
        """The findings of one check about a container, or all of them."""
        done = call(f"/{group.path}", "--format", "json", seconds=seconds)
        assert done.returncode in (0, 1), done.stderr
        report = json.loads(done.stdout)
        assert done.returncode == int(not report["healthy"])
        return [finding for finding in report["findings"] if check in (None, finding["check"])]

    find.call = call
    find.undo = lambda *words: subprocess.run(
        [binary, "undo", "--state-dir", tmp_path / "state", *words], capture_output=True, text=True, timeout=60
    )
    return find


def evidence(finding):
    """Values by the last part of the file's name."""
    return {entry["file"].rsplit("/", 1)[-1]: entry["value"] for entry in finding["evidence"]}


def obey(finding):
    """Does what the doctor says, as a person would who copies the line."""
    assert finding["fix"], f"no fix: {finding}"
    for command in finding["fix"]["commands"]:
        done = subprocess.run(["sh", "-euc", command], capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def seen(doctor, group, check, severity="warning", within=40):
    def look():
        found = doctor(group, check)
        assert found, f"not {check}, but {[f['check'] for f in doctor(group)]}"
        assert found[0]["severity"] == severity, found
        return found[0]

    return eventually(look, within=within)


def gone(doctor, group, check, within=40):
    def look():
        found = doctor(group, check)
        assert not found, found
        return True

    eventually(look, within=within)


@pytest.fixture
def small_host():
    """Skips where the host cannot be filled."""
    total = host_memory()["MemTotal"]
    if total > LARGEST_HOST:
        pytest.skip(f"needs a host with less than {LARGEST_HOST >> 30} GiB, to fill it: this one has {total >> 30}; tests/vm")


@pytest.fixture
def disk(tmp_path):
    """A directory on a file system that has page cache of its own: not a tmpfs, whose files are memory."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True).stdout.strip()
    if kind in ("ext2/ext3", "xfs", "btrfs"):
        yield tmp_path
        return
    with zram("4G") as device:
        subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", device], check=True)
        (mount := tmp_path / "disk").mkdir()
        subprocess.run(["mount", device, mount], check=True)
        yield mount
        # Whoever read a file there is on its way out.
        eventually(lambda: subprocess.run(["umount", mount], capture_output=True).returncode == 0)


@contextlib.contextmanager
def zram(size):
    """A compressed disk in memory, of which zeroes take nothing."""
    subprocess.run(["modprobe", "zram", "num_devices=0"], capture_output=True)
    add = Path("/sys/class/zram-control/hot_add")
    if not add.exists():
        pytest.skip("needs the zram module: tests/vm has it")
    number = add.read_text().strip()
    Path(f"/sys/block/zram{number}/disksize").write_text(size)
    try:
        yield f"/dev/zram{number}"
    finally:
        eventually(lambda: not remove(number))


def remove(number):
    try:
        Path("/sys/class/zram-control/hot_remove").write_text(number)
    except OSError as error:
        return error
    return None


def file(directory, name, mib):
    """A file of zeroes that are written, not a hole; out of the cache again, where it would be charged to us."""
    path = directory / name
    with open(path, "wb") as out:
        for _ in range(mib):
            out.write(bytes(MIB))
        os.fsync(out.fileno())
        os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


# ---- III.A: memory is not reserved ----


def test_promises_beyond_what_is_there_are_told_and_kept_by_the_printed_command(doctor, made, hungry):
    limit = host_memory()["MemTotal"] // 100 * 60
    first, second = made("first", limit), made("second", limit)
    hungry(first)("hold 2"), hungry(second)("hold 2")
    finding = seen(doctor, first, "memory-not-reserved", severity="info")
    values = evidence(finding)
    assert "MemAvailable" in " ".join(values)
    assert any("limit_in_bytes" in key or key == "memory.max" for key in values), values
    obey(finding)
    gone(doctor, first, "memory-not-reserved")
    gone(doctor, second, "memory-not-reserved")


def test_a_broken_promise_is_a_warning_when_the_host_is_short(small_host, doctor, made, hungry):
    group = made("promised", 1 << 30)
    hungry(group)("hold 2")
    hog = hungry(made("hog", container=False))
    memory = host_memory()
    hog(f"hold {(memory['MemAvailable'] - memory['MemTotal'] // 100 * 6) >> 20}")
    finding = seen(doctor, group, "memory-not-reserved")
    obey(finding)
    gone(doctor, group, "memory-not-reserved")


# ---- III.B: anonymous memory evicts the group's own cache ----


def test_a_heap_that_pushes_out_the_files_it_reads_is_seen_and_gets_room(doctor, made, disk, hungry):
    group = made("heap", 128 * MIB)
    path = file(disk, "data", 96)
    program = hungry(group)
    program("hold 96")
    program(f"read {path}")
    finding = seen(doctor, group, "anon-evicts-cache")
    values = evidence(finding)
    assert values["memory.stat workingset_refault_file"].startswith("+"), values
    assert not doctor(group, "cache-stolen") and not doctor(group, "swapped-by-host")
    obey(finding)
    gone(doctor, group, "anon-evicts-cache")


def test_a_fix_of_the_doctors_own_can_be_taken_back_but_never_below_what_is_in_use(doctor, made, disk, hungry):
    group = made("heap", 128 * MIB)
    limit = Path(limit_file(group))
    program = hungry(group)
    program("hold 96")
    program(f"read {file(disk, 'data', 96)}")
    seen(doctor, group, "anon-evicts-cache")
    done = doctor.call(f"/{group.path}", "--fix", "anon-evicts-cache")
    assert done.returncode == 1 and "->" in done.stdout and "nothing was written" in done.stderr
    assert int(limit.read_text()) == 128 * MIB
    done = doctor.call(f"/{group.path}", "--fix", "anon-evicts-cache", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    raised = int(limit.read_text())
    assert raised > 128 * MIB
    gone(doctor, group, "anon-evicts-cache")
    # Now more is in use than the old limit allows: to go back would kill.
    program("hold 48")
    assert "anon-evicts-cache" in doctor.undo().stdout
    done = doctor.undo("1")
    assert done.returncode == 1 and "would kill" in done.stdout, done.stdout
    assert int(limit.read_text()) == raised
    program.end()
    eventually(lambda: dropped(group) < 64 * MIB)
    done = doctor.undo("1")
    assert done.returncode == 0 and "reverted" in done.stdout, done.stdout
    assert int(limit.read_text()) == 128 * MIB
    assert "no fixes" in doctor.undo().stdout


def test_a_value_that_somebody_else_set_since_stays(doctor, made, hungry):
    limit = host_memory()["MemTotal"] // 100 * 60
    first, second = made("first", limit), made("second", limit)
    hungry(first)("hold 2"), hungry(second)("hold 2")
    done = doctor.call(f"/{first.path}", "--fix", "memory-not-reserved", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    reservation = Path(limit_file(first)).with_name("memory.low" if cgroup.V2 else "memory.soft_limit_in_bytes")
    reservation.write_text(str(77 * MIB))
    done = doctor.undo("1")
    assert done.returncode == 0 and "foreign" in done.stdout, done.stdout
    assert int(reservation.read_text()) == 77 * MIB


def limit_file(group):
    if cgroup.V2:
        return cgroup.ROOT / group.path / "memory.max"
    return cgroup.ROOT / "memory" / group.path / "memory.limit_in_bytes"


def dropped(group):
    """What a group uses, after its cache was let go."""
    directory = limit_file(group).parent
    with contextlib.suppress(OSError):
        if cgroup.V2:
            (directory / "memory.reclaim").write_text("256M")
        else:
            (directory / "memory.force_empty").write_text("0")
    return int((directory / ("memory.current" if cgroup.V2 else "memory.usage_in_bytes")).read_text())


# ---- III.C: the host takes cache from any group ----


def test_cache_that_the_host_takes_is_seen_and_kept_by_the_printed_command(small_host, doctor, made, disk, hungry):
    group = made("reader", 512 * MIB)
    data, flood = file(disk, "data", 120), file(disk, "flood", 600)
    # Anonymous memory that cannot go, so that 200 MiB are left for 720 of files; and the container reads slowly, or the
    # kernel would see that its pages are the ones in use.
    hog = hungry(made("hog", container=False))
    hog(f"hold {(host_memory()['MemAvailable'] >> 20) - 200}")
    hog(f"read {flood}")
    reader = hungry(group)
    reader(f"read {data} 20")
    finding = seen(doctor, group, "cache-stolen")
    values = evidence(finding)
    assert any(key.startswith(("vmstat pgsteal_kswapd", "vmstat allocstall")) for key in values), values
    assert not doctor(group, "anon-evicts-cache")
    obey(finding)
    gone(doctor, group, "cache-stolen")


# ---- III.D: the host swaps any group ----


def test_memory_that_the_host_swaps_is_seen_and_kept_by_the_printed_command(small_host, doctor, made, hungry):
    group = made("swapped", 512 * MIB)
    victim, hog = hungry(group), hungry(made("hog", container=False))
    with zram("1G") as device:
        subprocess.run(["mkswap", "-q", device], check=True)
        subprocess.run(["swapon", "--priority", "100", device], check=True)
        try:
            victim("hold 200")
            hog(f"hold {(host_memory()['MemAvailable'] >> 20) + 150}")
            # The container is the slower of the two, or the kernel would find the other's pages to be the idle ones.
            hog("use 200")
            victim("use 5")
            finding = seen(doctor, group, "swapped-by-host")
            values = evidence(finding)
            assert any("swap" in key for key in values), values
            assert not doctor(group, "anon-evicts-cache")
            obey(finding)
            gone(doctor, group, "swapped-by-host")
        finally:
            hog.end(), victim.end()
            subprocess.run(["swapoff", device], check=True)


# ---- no false alarm ----


def test_a_healthy_host_shows_none_of_the_pitfalls(doctor, made, disk, hungry):
    """Idle containers with more limits than memory, one that works within its own, one full of cache it read once."""
    share = host_memory()["MemTotal"] // 100 * 30
    idle = [made(f"idle{number}", share) for number in range(5)]
    for group in idle:
        hungry(group)("hold 2")
    works, streams = made("works", 256 * MIB), made("streams", 64 * MIB)
    worker = hungry(works)
    worker("hold 100")
    worker(f"read {file(disk, 'data', 32)}")
    worker("burn")
    streamer = hungry(streams)
    big = file(disk, "big", 300)
    streamer(f"read {big}")
    streamer("rest")
    for _ in range(3):
        for group in [*idle, works, streams]:
            harms = [f for f in doctor(group, seconds=1) if f["severity"] != "info"]
            assert not harms, harms


def test_the_checks_are_listed_and_a_wrong_name_is_an_error(doctor):
    done = doctor.call("--list", "--format", "json")
    checks = json.loads(done.stdout)["checks"]
    assert len(checks) >= 45 and PITFALLS <= {check["id"] for check in checks}
    assert doctor.call("--fix", "no-such-check").returncode == 2
    assert doctor.call("no-such-container").returncode == 2
