//! Memory made free before it is asked for: pages that are touched and given back, and reclaim that is asked for by name.

use super::write::WriteError;
use crate::checks::{HierarchyController, HostFacts};
use crate::host_text;
use crate::strategies::pretouch::StallSample;
use elbowroom_linux::proc;
use elbowroom_linux::root::{ReadError, Root, if_present};
use elbowroom_linux::timer::now_boot;
use elbowroom_types::unit::{Bytes, Micros};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;

/// Memory is taken and given back in pieces of this size. Neighbouring pieces are one mapping to the kernel (mm/vma.c,
/// `vma_merge_new_range`), so that even many of them stay below `vm.max_map_count`.
pub(crate) const CHUNK: Bytes = Bytes::mib(1);

/// Locked pages of this process: neither reclaim nor swap takes them. Given back when dropped.
#[derive(Debug, Default)]
pub(crate) struct LockedMemory(Vec<*mut c_void>);

impl LockedMemory {
    /// How much it is.
    pub fn size(&self) -> Bytes {
        Bytes((self.0.len() as u64).saturating_mul(CHUNK.get()))
    }

    /// Takes one more piece, every page of it touched.
    ///
    /// # Errors
    /// Where the kernel refuses to map or to lock it; what is held already stays.
    pub fn grow(&mut self) -> Result<(), Errno> {
        let length = CHUNK.get() as usize;
        // SAFETY: a null hint without MAP_FIXED lets the kernel choose an address range that nothing uses, and the mapping is
        // private and anonymous: no memory of Rust's is touched. The length is not zero.
        let piece = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        self.0.push(piece);
        // SAFETY: the range was mapped above with this length, and only `LockedMemory` unmaps it. Locking writes no byte that anything
        // reads: it faults every page in (mm/mlock.c, `__mm_populate`).
        let locked = unsafe { rustix::mm::mlock(piece, length) };
        locked.inspect_err(|_| self.shrink())
    }

    /// Gives one piece back, if there is any.
    pub fn shrink(&mut self) {
        if let Some(piece) = self.0.pop() {
            // SAFETY: `grow` mapped exactly this range, nothing else knows its address, and it was just forgotten here.
            let _ = unsafe { rustix::mm::munmap(piece, CHUNK.get() as usize) };
        }
    }
}

impl Drop for LockedMemory {
    fn drop(&mut self) {
        while !self.0.is_empty() {
            self.shrink();
        }
    }
}

/// What of the host's free memory is kswapd's: the zones' high watermarks together.
///
/// # Errors
/// Where `/proc/zoneinfo` cannot be read: without watermarks it is not known what is free.
pub(crate) fn high_watermarks(root: &Root) -> Result<Bytes, ReadError> {
    let path = "/proc/zoneinfo";
    let marks = proc::zoneinfo(&root.read(path)?).map_err(|e| ReadError::malformed(path, e))?;
    Ok(Bytes(marks.high_pages.saturating_mul(rustix::param::page_size() as u64)))
}

/// How the host and its containers are, now.
///
/// # Errors
/// Where `/proc/meminfo` cannot be read. A container without a pressure file is left out.
pub(crate) fn distress_signals(root: &Root, facts: &HostFacts) -> Result<StallSample, ReadError> {
    let meminfo = meminfo(root)?;
    let of = |key: &str| meminfo.get(key).copied().unwrap_or_default();
    let vmstat = root.read("/proc/vmstat").ok().and_then(|t| host_text::keyed(&t).ok()).unwrap_or_default();
    let mut signs = StallSample {
        at: now_boot(),
        total: of("MemTotal"),
        available: of("MemAvailable"),
        pswpout: vmstat.get("pswpout").copied().unwrap_or(0),
        ..StallSample::default()
    };
    let containers = facts.containers().filter_map(|g| {
        let dir = g.dirs.get(&HierarchyController::Unified)?;
        Some((g.name(), format!("{dir}/memory.pressure")))
    });
    for (name, file) in containers.chain([(String::new(), "/proc/pressure/memory".to_owned())]) {
        // A container that ends in between does not suffer any more.
        if let Some(waited) = root.read(&file).ok().and_then(|t| proc::pressure(&t).ok()) {
            signs.stalled.insert(name, waited.full.total);
        }
    }
    Ok(signs)
}

/// `MemFree`.
///
/// # Errors
/// Where `/proc/meminfo` cannot be read.
pub(crate) fn free_memory(root: &Root) -> Result<Bytes, ReadError> {
    Ok(meminfo(root)?.get("MemFree").copied().unwrap_or_default())
}

fn meminfo(root: &Root) -> Result<std::collections::BTreeMap<String, Bytes>, ReadError> {
    let path = "/proc/meminfo";
    host_text::meminfo(&root.read(path)?).map_err(|e| ReadError::malformed(path, e))
}

/// A cgroup's usage; `None` when it is gone.
///
/// # Errors
/// Where the file is there and cannot be read.
pub fn usage(root: &Root, file: &str) -> Result<Option<Bytes>, ReadError> {
    Ok(if_present(root.read(file))?.and_then(|t| t.trim().parse().ok()).map(Bytes))
}

/// What came of asking a cgroup for page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimResult {
    /// It gave it.
    Complete,
    /// It has no more of it that is idle (`EAGAIN`), or it ended.
    Exhausted,
    /// This kernel cannot be asked without swapping: before Linux 5.19 there is no such file, and for some time after no
    /// `swappiness=` (mm/memcontrol.c, `memory_reclaim`).
    Unsupported,
}

/// Asks a cgroup's `memory.reclaim` for page cache, and for nothing that would have to be swapped.
///
/// # Errors
/// Where the kernel refuses for another reason.
pub fn reclaim(root: &Root, file: &str, size: Bytes, swap: bool) -> Result<ReclaimResult, WriteError> {
    let fd = match root.open(file, OFlags::WRONLY) {
        Ok(fd) => fd,
        Err(e) if e.is_absent() => return Ok(ReclaimResult::Unsupported),
        Err(e) => return Err(e.into()),
    };
    let bare = size.get().to_string();
    let mut answer = rustix::io::write(&fd, format!("{bare} swappiness=0").as_bytes());
    if answer == Err(Errno::INVAL) && !swap {
        answer = rustix::io::write(&fd, bare.as_bytes());
    }
    match answer {
        Ok(_) => Ok(ReclaimResult::Complete),
        Err(Errno::AGAIN | Errno::INTR | Errno::NODEV) => Ok(ReclaimResult::Exhausted),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(ReclaimResult::Unsupported),
        Err(source) => Err(WriteError::Refused { file: file.to_owned(), data: bare, source }),
    }
}

/// Time that fits `size` at `rate` bytes per second.
pub(crate) fn transfer_time(size: Bytes, rate: Bytes) -> Micros {
    Micros(
        u64::try_from(u128::from(size.get()) * 1_000_000 / u128::from(rate.get().max(1))).unwrap_or(u64::MAX),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_linux::fixture::Fixture;

    #[test]
    fn what_is_held_is_locked_and_given_back() {
        let locked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = status.lines().find_map(|l| l.strip_prefix("VmLck:")).unwrap().trim().to_owned();
            line.split(' ').next().unwrap().parse::<u64>().unwrap()
        };
        let before = locked();
        let mut held = LockedMemory::default();
        match held.grow() {
            // Without the privilege, RLIMIT_MEMLOCK refuses, and nothing is held.
            Err(error) => {
                assert!(matches!(error, Errno::NOMEM | Errno::PERM | Errno::AGAIN), "{error}");
                assert_eq!(held.size(), Bytes::ZERO);
            }
            Ok(()) => {
                assert_eq!(held.size(), CHUNK);
                assert!(locked() >= before + CHUNK.as_kib());
            }
        }
        drop(held);
        assert_eq!(locked(), before);
    }

    #[test]
    fn a_kernel_without_reclaim_is_not_able_and_says_so() {
        let host = Fixture::new("-- cg/memory.reclaim --\n").unwrap();
        let root = Root::at(host.path()).unwrap();
        assert_eq!(
            reclaim(&root, "/other/memory.reclaim", Bytes::mib(1), true).unwrap(),
            ReclaimResult::Unsupported
        );
        assert_eq!(
            reclaim(&root, "/cg/memory.reclaim", Bytes::mib(1), true).unwrap(),
            ReclaimResult::Complete
        );
        assert_eq!(root.read("/cg/memory.reclaim").unwrap(), "1048576 swappiness=0");
    }

    #[test]
    fn a_rate_is_time() {
        assert_eq!(transfer_time(Bytes::mib(16), Bytes::gib(1)), Micros(15_625));
        assert_eq!(transfer_time(Bytes::mib(16), Bytes::ZERO).get(), (16 << 20) * 1_000_000);
    }
}
