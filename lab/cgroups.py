"""The cgroups of a run, on v1, v2 and anything between: kit's, and the counters and limits that figures need."""

from pathlib import Path

from kit.cgroup import ROOT, V2, Cgroup

# The hierarchies that containers are put under. On v1 "unified" has no controllers, but pressure files.
CONTROLLERS = [""] if V2 else [
    name for name in ("cpu", "cpuacct", "cpuset", "memory", "blkio", "pids", "unified") if (ROOT / name).is_dir()
]  # fmt: skip
V1_IO_LIMITS = [f"blkio.throttle.{name}_device" for name in ("read_bps", "write_bps", "read_iops", "write_iops")]
V2_IO_LIMITS = ["rbps", "wbps", "riops", "wiops"]


class Group(Cgroup):
    """A cgroup that there is, by its path below the root: in each of CONTROLLERS, or on v2 in the only hierarchy."""

    def __init__(self, path):
        self.path = path
        self.directories = sorted({self.directory(name).resolve() for name in CONTROLLERS})

    def directory(self, controller):
        return ROOT / self.path if V2 else ROOT / controller / self.path

    def read(self, v1, v2):
        """The text of a file: (controller, file) of v1, or the file of v2."""
        controller, file = ("", v2) if V2 else v1
        return (self.directory(controller) / file).read_text()

    # ---- counters ----

    def cpu_us(self):
        """CPU time used so far."""
        if V2:
            return pairs(self.read(None, "cpu.stat"))["usage_usec"]
        return int(self.read(("cpuacct", "cpuacct.usage"), None)) // 1000

    def memory_bytes(self):
        return int(self.read(("memory", "memory.usage_in_bytes"), "memory.current"))

    def memory_stat(self):
        """`memory.stat`, and how often its limit was hit as `limit_hit`. v1's `cache` and `rss` are called `file` and `anon`, as on v2,
        and v2's `memory.swap.current` is called `swap`, as on v1."""
        stat = pairs(self.read(("memory", "memory.stat"), "memory.stat"))
        if not V2:
            hit = int(self.read(("memory", "memory.failcnt"), None))
            return {**stat, "file": stat["cache"], "anon": stat["rss"], "limit_hit": hit}
        stat["limit_hit"] = pairs(self.read(None, "memory.events")).get("max", 0)
        swap = self.directory("") / "memory.swap.current"  # not there without swap in the kernel
        return {**stat, "swap": int(swap.read_text())} if swap.exists() else stat

    def oom_kills(self):
        """Processes of it that the kernel killed for memory."""
        return pairs(self.read(("memory", "memory.oom_control"), "memory.events")).get("oom_kill", 0)

    def io_bytes(self, disk):
        """Bytes read from and written to a disk (MAJOR:MINOR) so far."""
        text = self.read(("blkio", "blkio.throttle.io_service_bytes_recursive"), "io.stat")
        return [io_value(text, disk, key) or 0 for key in (("rbytes=", "wbytes=") if V2 else ("Read ", "Write "))]

    # ---- limits ----

    def limit(self, cpus=None, memory_mib=None, soft_mib=None):
        """A quota in CPUs, a hard memory limit, and a soft one (v1) or `memory.low` (v2); None leaves the kernel's default."""
        if cpus is not None:
            self.limit_cpu(cpus)
        if memory_mib is not None:
            self.limit_memory(memory_mib << 20)
        if soft_mib is not None:
            self.set_memory("memory.low" if V2 else "memory.soft_limit_in_bytes", soft_mib << 20)

    def set_memory(self, file, value):
        self.write("memory", file, value)

    def protect(self, size):
        """v2: `memory.low` in bytes, here and in every group around: a group is protected only as far as the groups around it."""
        for directory in (self.directory(""), *self.directory("").parents):
            if (directory / "memory.low").exists():
                (directory / "memory.low").write_text(str(size))

    def io_limits(self, disk):
        """The limits in force on a disk: bytes read, bytes written, reads and writes, each per second or None."""
        if V2:
            text = self.read(None, "io.max")
            return [io_value(text, disk, f"{key}=") for key in V2_IO_LIMITS]
        return [io_value(self.read(("blkio", file), None), disk, "") for file in V1_IO_LIMITS]

    def limit_io(self, disk, bytes_per_s):
        """Bytes read and bytes written on a disk, each to as much per second."""
        if V2:
            return self.write("", "io.max", f"{disk} rbps={bytes_per_s} wbps={bytes_per_s}")
        for file in V1_IO_LIMITS[:2]:
            self.write("blkio", file, f"{disk} {bytes_per_s}")

    def count_io(self, disk):
        """Makes the kernel count this disk's I/O by cgroup. On v1 it does so from the first rule for the disk
        (block/blk-throttle.c, `blk_throtl_init`, since Linux 6.10); this is a rule that says nothing."""
        if not V2:
            self.write("blkio", V1_IO_LIMITS[0], f"{disk} 0")


def make(scope, path, **limits):
    """Makes a cgroup, whose parent there must be; it goes with the scope."""
    if V2:
        for above in list(Path(path).parents)[::-1]:
            delegate(scope, ROOT / above)
    scope.add("cgroup", path)
    Cgroup(path, [ROOT / name for name in CONTROLLERS])
    group = Group(path)
    group.limit(**limits)
    return group


def of(pid):
    """The cgroup of a process that an engine started: of one path in all hierarchies."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") or V2 and not controllers:
            return Group(path.lstrip("/"))
    raise AssertionError(f"process {pid} is in no memory cgroup")


def delegate(scope, directory):
    """v2: hands the controllers that limits need down to a directory's children."""
    file = directory / "cgroup.subtree_control"
    offered, given = (directory / "cgroup.controllers").read_text().split(), file.read_text().split()
    for controller in ("cpu", "memory", "cpuset", "io"):
        if controller in offered and controller not in given:
            scope.add("delegation", file, controller)
            file.write_text(f"+{controller}")


def pairs(text):
    """Lines of a key and a number."""
    words = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}


def io_value(text, disk, key):
    """The number behind `key` in a line of `disk`: "7:0 rbps=max wbps=5", "7:0 Read 4096", "7:0 5"; None where it is none."""
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name == disk and key in rest:
            word = rest[rest.index(key) + len(key):].split(" ")[0]
            return int(word) if word.isdigit() else None
    return None
