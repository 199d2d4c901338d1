//! Events that the kernel counts: `perf_event_open(2)`, as far as page faults and their rates need it.

use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What is counted; numbers of `include/uapi/linux/perf_event.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfCounterEvent {
    /// Instructions, by the processor: `PERF_TYPE_HARDWARE`, `PERF_COUNT_HW_INSTRUCTIONS`.
    Instructions,
    /// Nanoseconds of CPU time, which every machine counts: `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_TASK_CLOCK`.
    TaskClock,
    /// Page faults that waited for a disk: `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_PAGE_FAULTS_MAJ`.
    MajorFaults,
}

impl PerfCounterEvent {
    const fn numbers(self) -> (u32, u64) {
        match self {
            Self::Instructions => (0, 1),
            Self::TaskClock => (1, 1),
            Self::MajorFaults => (1, 6),
        }
    }
}

/// Whose events.
#[derive(Clone, Copy, Debug)]
pub enum CounterScope<'a> {
    /// All events of a CPU; the program attached to it is called at each one.
    AllTasks,
    /// Those of a cgroup and below it, on a CPU: its directory in the hierarchy of `perf_event`.
    Cgroup(BorrowedFd<'a>),
}

/// `struct perf_event_attr`, in its first version (`PERF_ATTR_SIZE_VER0`), which every kernel knows.
#[repr(C)]
#[derive(Default)]
struct PerfAttrV0 {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

const _: () = assert!(size_of::<PerfAttrV0>() == 64);

/// `PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING`.
const READ_FORMAT_TIMES: u64 = 1 | 2;
const PERF_FLAG_PID_CGROUP: libc::c_ulong = 1 << 2;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;

/// Begins to count on one CPU.
///
/// # Errors
/// `ENOENT` and `EOPNOTSUPP` where the processor shows no counters, as in many virtual machines; `EACCES` without
/// `CAP_PERFMON`.
pub fn open(event: PerfCounterEvent, of: CounterScope<'_>, cpu: u32) -> Result<OwnedFd, Errno> {
    let (kind, config) = event.numbers();
    let (pid, flags, sample_period, read_format) = match of {
        CounterScope::AllTasks => (-1, 0, 1, 0),
        CounterScope::Cgroup(dir) => (dir.as_raw_fd(), PERF_FLAG_PID_CGROUP, 0, READ_FORMAT_TIMES),
    };
    let size = size_of::<PerfAttrV0>() as u32;
    let attributes = PerfAttrV0 { kind, size, config, sample_period, read_format, ..PerfAttrV0::default() };
    let group = -1;
    // SAFETY: the structure is of the size it says and lives through the call, which only reads it; the other arguments are
    // numbers. The call returns a new descriptor or -1.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            pid,
            cpu as libc::c_int,
            group,
            flags | PERF_FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    // SAFETY: the kernel has just returned this descriptor; no other code knows or closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// What one counter of [`CounterScope::Cgroup`] has counted: extrapolated over the time in which others had the processor's registers.
///
/// # Errors
/// The kernel gives no value.
pub fn read(counter: &OwnedFd) -> Result<u64, Errno> {
    let mut bytes = [0; 24];
    if rustix::io::read(counter, &mut bytes)? != bytes.len() {
        return Err(Errno::IO);
    }
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("a word has 8 bytes"));
    Ok(scaled(word(0), word(8), word(16)))
}

/// A count that was taken in `running` of `enabled` nanoseconds.
fn scaled(count: u64, enabled: u64, running: u64) -> u64 {
    match running {
        0 => 0,
        running if running >= enabled => count,
        running => (u128::from(count) * u128::from(enabled) / u128::from(running)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_had_to_share_is_extrapolated() {
        assert_eq!(scaled(100, 50, 50), 100);
        assert_eq!(scaled(100, 100, 25), 400);
        assert_eq!(scaled(0, 100, 0), 0);
        assert_eq!(scaled(u64::MAX / 2, 4, 2), u64::MAX - 1);
    }
}
