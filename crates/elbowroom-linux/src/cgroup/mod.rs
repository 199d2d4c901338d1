//! Control groups of both versions: where each controller is ([`layout`]), how its files are read ([`read`]) and what they
//! mean ([`v1`], [`v2`]). Versions meet here: above this module no code asks which one it is.

pub mod layout;
pub mod read;
mod subgroup;
pub mod v1;
pub mod v2;

use crate::parse::keyed_number;
use crate::proc;
use crate::root::{ReadError, Root};
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::io::{IoMax, IoStat};
use elbowroom_types::psi::Pressure;
use elbowroom_types::sample::{CgroupSettings, CpuMax, MemoryStat};
use elbowroom_types::unit::{Bytes, CpuShare, Limit, Micros};
pub use layout::{CgroupController, CgroupLayout, CgroupVersion, HierarchyMode, MountedHierarchy};
pub use read::{CgroupDir, CgroupRef};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;
pub(crate) use subgroup::is_subgroup;
pub use subgroup::subgroup;

/// A value that may be absent, from a file that may be unreadable.
pub(crate) type ReadResult<T> = Result<Option<T>, ReadError>;

/// A cgroup's own settings. Each value that cannot be read is `None`; `fault` is told why where the reason is other than
/// that there is none.
pub fn limits(layout: &CgroupLayout, group: &Path, mut fault: impl FnMut(&ReadError)) -> CgroupSettings {
    let mut take = ErrorSink { fault: &mut fault };
    let mut limits = CgroupSettings::default();
    if let Some((version, dir)) = layout.dir(CgroupController::Cpu, group) {
        let (max, share): (ReadResult<CpuMax>, ReadResult<CpuShare>) = match version {
            CgroupVersion::V1 => (v1::cpu_max(&dir), v1::cpu_shares(&dir)),
            CgroupVersion::V2 => (v2::cpu_max(&dir), v2::cpu_weight(&dir)),
        };
        limits.cpu_max = take.or_none(max);
        limits.cpu_share = take.or_none(share);
    }
    if let Some((version, dir)) = layout.dir(CgroupController::Cpuset, group) {
        let (cpus, mems) = match version {
            CgroupVersion::V1 => (v1::cpuset(&dir), v1::mems(&dir)),
            CgroupVersion::V2 => (v2::cpuset(&dir), v2::mems(&dir)),
        };
        limits.cpuset = take.or_none(cpus);
        limits.mems = take.or_none(mems);
    }
    if let Some((version, dir)) = layout.dir(CgroupController::Memory, group) {
        match version {
            CgroupVersion::V1 => {
                limits.memory_max = take.or_none(v1::memory_limit(&dir));
                limits.memory_soft = take.or_none(v1::memory_soft_limit(&dir));
                limits.memsw_max = take.or_none(v1::memsw_limit(&dir));
            }
            CgroupVersion::V2 => {
                limits.memory_max = take.or_none(v2::memory_limit(&dir, "memory.max"));
                limits.memory_high = take.or_none(v2::memory_limit(&dir, "memory.high"));
                limits.memory_low = take.or_none(v2::memory_limit(&dir, "memory.low"));
                limits.memory_min = take.or_none(v2::memory_limit(&dir, "memory.min"));
                limits.swap_max = take.or_none(v2::memory_limit(&dir, "memory.swap.max"));
            }
        }
    }
    limits
}

struct ErrorSink<'a> {
    fault: &'a mut dyn FnMut(&ReadError),
}

impl ErrorSink<'_> {
    fn or_none<T>(&mut self, answer: ReadResult<T>) -> Option<T> {
        answer.unwrap_or_else(|error| {
            (self.fault)(&error);
            None
        })
    }
}

/// `memory.stat`, hierarchical, with swap.
pub fn memory_stat<'a>(layout: &'a CgroupLayout, group: impl Into<CgroupRef<'a>>) -> ReadResult<MemoryStat> {
    match layout.dir(CgroupController::Memory, group) {
        Some((CgroupVersion::V1, dir)) => v1::memory_stat(&dir),
        Some((CgroupVersion::V2, dir)) => v2::memory_stat(&dir),
        None => Ok(None),
    }
}

/// Processes of a group that the kernel killed for memory since it was made; on v1 not of those below it.
pub(crate) fn oom_kills<'a>(layout: &'a CgroupLayout, group: impl Into<CgroupRef<'a>>) -> ReadResult<u64> {
    let Some((version, dir)) = layout.dir(CgroupController::Memory, group) else { return Ok(None) };
    let file = match version {
        CgroupVersion::V1 => "memory.oom_control",
        CgroupVersion::V2 => "memory.events",
    };
    Ok(dir.read(file)?.map(|text| keyed_number(text.as_bytes(), "oom_kill").unwrap_or(0)))
}

/// Files' pages that came back to a group and to those below it since it was made; zero where the kernel does not count them.
pub(crate) fn refaulted_files(layout: &CgroupLayout, group: &Path) -> ReadResult<u64> {
    let Some((version, dir)) = layout.dir(CgroupController::Memory, group) else { return Ok(None) };
    let key = match version {
        CgroupVersion::V1 => "total_workingset_refault_file",
        CgroupVersion::V2 => "workingset_refault_file",
    };
    Ok(dir.read("memory.stat")?.map(|text| keyed_number(text.as_bytes(), key).unwrap_or(0)))
}

/// Whether a directory is in a cgroup file system: no limit is written to anything else.
pub fn is_cgroup(dir: &OwnedFd) -> Result<bool, Errno> {
    const CGROUP: i64 = 0x0027_e0eb;
    const CGROUP2: i64 = 0x6367_7270;
    let magic = rustix::fs::fstatfs(dir)?.f_type;
    // Tests let plain directories stand for cgroups; those on real ones are in tests/live_lease.
    Ok(cfg!(test) || crate::fixture::in_use() || [CGROUP, CGROUP2].contains(&magic))
}

/// The cgroup at a path, which is a directory there: its inode tells it from a later one of the same path.
pub fn open_cgroup(root: &Root, path: &str) -> Result<(OwnedFd, u64), ReadError> {
    let dir = root.open(path, OFlags::PATH | OFlags::DIRECTORY)?;
    let failed = |source| ReadError::Io { operation: "looking at", path: path.into(), source };
    let inode = rustix::fs::fstat(&dir).map_err(failed)?.st_ino;
    Ok((dir, inode))
}

/// User and system CPU time.
pub fn cpu_times<'a>(
    layout: &'a CgroupLayout,
    group: impl Into<CgroupRef<'a>>,
) -> ReadResult<(Micros, Micros)> {
    match layout.dir(CgroupController::Cpuacct, group) {
        Some((CgroupVersion::V1, dir)) => v1::cpu_times(&dir),
        Some((CgroupVersion::V2, dir)) => v2::cpu_times(&dir),
        None => Ok(None),
    }
}

/// Disk transfer per device, ascending by device number; empty where the controller is not there.
pub fn io_stat<'a>(
    layout: &'a CgroupLayout,
    group: impl Into<CgroupRef<'a>>,
) -> Result<Vec<IoStat>, ReadError> {
    match layout.dir(CgroupController::Io, group) {
        Some((CgroupVersion::V1, dir)) => v1::io_stat(&dir),
        Some((CgroupVersion::V2, dir)) => v2::io_stat(&dir),
        None => Ok(Vec::new()),
    }
}

/// A cgroup's own limits on disks, of every device that has one, ascending; empty where the controller is not there. Not those
/// of the cgroups above it.
pub fn io_max(layout: &CgroupLayout, group: &Path) -> Result<Vec<(DeviceNumber, IoMax)>, ReadError> {
    let mut limits = match layout.dir(CgroupController::Io, group) {
        Some((CgroupVersion::V1, dir)) => v1::io_max(&dir)?,
        Some((CgroupVersion::V2, dir)) => dir.parse("io.max", v2::io_max)?.unwrap_or_default(),
        None => Vec::new(),
    };
    limits.sort_by_key(|(device, _)| *device);
    Ok(limits)
}

/// Memory charged: v1 `memory.usage_in_bytes`, v2 `memory.current`.
pub fn memory_usage<'a>(layout: &'a CgroupLayout, group: impl Into<CgroupRef<'a>>) -> ReadResult<Bytes> {
    let file = |version| match version {
        CgroupVersion::V1 => "memory.usage_in_bytes",
        CgroupVersion::V2 => "memory.current",
    };
    match layout.dir(CgroupController::Memory, group) {
        Some((version, dir)) => Ok(dir.number(file(version))?.map(Bytes)),
        None => Ok(None),
    }
}

/// Threads: `pids.current`, which v1 and v2 share.
pub(crate) fn pids_current<'a>(layout: &'a CgroupLayout, group: impl Into<CgroupRef<'a>>) -> ReadResult<u64> {
    match layout.dir(CgroupController::Pids, group) {
        Some((_, dir)) => dir.number("pids.current"),
        None => Ok(None),
    }
}

/// `cpu.pressure`, `io.pressure`, `memory.pressure`. v1 has none of its own; on a hybrid host the same path below the
/// unified hierarchy has, if the engine made it there too.
pub fn pressure<'a>(layout: &'a CgroupLayout, group: impl Into<CgroupRef<'a>>) -> ReadResult<[Pressure; 3]> {
    let Some(dir) = layout.unified_dir(group) else { return Ok(None) };
    let mut all = [Pressure::default(); 3];
    for (slot, file) in all.iter_mut().zip(["cpu.pressure", "io.pressure", "memory.pressure"]) {
        match dir.parse(file, proc::pressure)? {
            Some(pressure) => *slot = pressure,
            None => return Ok(None),
        }
    }
    Ok(Some(all))
}

/// A limit as bytes where the kernel's number already is one.
pub(crate) fn bytes_limit(limit: Limit<u64>) -> Limit<Bytes> {
    match limit {
        Limit::Max => Limit::Max,
        Limit::At(n) => Limit::At(Bytes(n)),
    }
}
