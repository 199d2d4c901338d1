//! The memory the program and this process share, and how to read a consistent number out of it without a lock.
//!
//! The program's side of each rule is in `bpf/active.bpf.c`. A CPU's record is changed in three steps: `since` becomes
//! [`CHANGING`], the finished run is added to its slot's total, `since` becomes the start of the next run. So a reader
//! that finds the same `since` before and after it read a total knows that the run is in progress and not in the total.

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// `since` while the record, or the total its last run is added to, is being changed; and before the first switch.
const CHANGING: u64 = 0;

/// `since` of a CPU that runs nothing which could be tracked: its idle task, kernel threads, root's processes.
const UNTRACKED: u64 = 1;

/// How often to look again at a record that changes under the reader. The change takes tens of nanoseconds, unless the
/// hypervisor takes the CPU away in the middle of it; then the answer is that run short, and right at the next drain.
const ATTEMPTS: usize = 64;

/// `struct cpu` of the program.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct CpuRecord {
    /// `CLOCK_MONOTONIC` nanoseconds at the start of the run.
    pub since: AtomicU64,
    /// The cgroup it is a run of.
    pub cgroup: AtomicU64,
    /// Context switches seen.
    pub switches: AtomicU64,
    /// The program's own note.
    _runtime: u64,
    /// Context switches that were not seen; runs that ended in them are not in any total.
    pub missed: AtomicU64,
    /// The program's own notes.
    _private: [u64; 3],
}

const _: () = assert!(size_of::<CpuRecord>() == 64);

impl CpuRecord {
    /// The cgroup that has the CPU and since when, unless none of interest has it or that changes right now. In the last
    /// case nothing is lost: the run that ends marks its slot, the run that begins is found next time.
    fn current_run(&self) -> Option<(u64, u64)> {
        let since = self.since.load(Ordering::Acquire);
        if since == CHANGING || since == UNTRACKED {
            return None;
        }
        let cgroup = self.cgroup.load(Ordering::Acquire);
        (self.since.load(Ordering::Acquire) == since).then_some((cgroup, since))
    }
}

/// A run in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunInProgress {
    /// Whose it is.
    pub slot: u32,
    /// Index of the CPU.
    cpu: usize,
    /// Nanoseconds of `CLOCK_MONOTONIC` at its start.
    since: u64,
}

/// The runs in progress of every cgroup `slot_of` knows, by slot.
pub(crate) fn runs_in_progress(
    cpus: &[CpuRecord],
    slot_of: impl Fn(u64) -> Option<u32>,
    into: &mut Vec<RunInProgress>,
) {
    into.clear();
    into.extend(cpus.iter().enumerate().filter_map(|(cpu, record)| {
        let (cgroup, since) = record.current_run()?;
        Some(RunInProgress { slot: slot_of(cgroup)?, cpu, since })
    }));
    into.sort_unstable_by_key(|run| run.slot);
}

/// CPU time of one slot at `now` (both in nanoseconds): its finished runs and `runs`, those of it that were in progress
/// a moment ago. A run that has ended since then is in the total; waiting for that is what the loop does.
pub fn total(finished: &AtomicU64, cpus: &[CpuRecord], runs: &[RunInProgress], now: u64) -> u64 {
    let mut sum = 0;
    for _ in 0..ATTEMPTS {
        let (mut settled, mut in_progress) = (true, 0);
        sum = finished.load(Ordering::Acquire);
        for run in runs {
            match cpus[run.cpu].since.load(Ordering::Acquire) {
                since if since == run.since => in_progress += now.saturating_sub(since),
                CHANGING => settled = false,
                _ => {}
            }
        }
        sum += in_progress;
        // A run that ended between the two loads is missing from `sum`; one more load of the total has it.
        if settled && finished.load(Ordering::Acquire) == sum - in_progress {
            break;
        }
        std::hint::spin_loop();
    }
    sum
}

/// A BPF array map as memory of this process.
#[derive(Debug)]
pub struct ArrayMapping<T> {
    start: NonNull<T>,
    len: usize,
}

/// Types any bytes are a value of, and which only change through atomics.
pub trait SharedValue: Sync {}
impl SharedValue for AtomicU64 {}
impl SharedValue for CpuRecord {}

impl<T: SharedValue> ArrayMapping<T> {
    /// Maps the first `len` elements of the `BPF_F_MMAPABLE` array behind `map`.
    pub fn new(map: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint lets the kernel choose unused addresses, so no existing mapping is replaced.
        let start = unsafe {
            mmap(std::ptr::null_mut(), len * size_of::<T>(), protection, MapFlags::SHARED, map, 0)?
        };
        let start = NonNull::new(start.cast())
            .expect("the kernel never chooses address 0 for a mapping without a hint");
        Ok(Self { start, len })
    }
}

impl<T> Deref for ArrayMapping<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `start` is page aligned and `len` elements of it stay mapped until drop; every T is `SharedValue`, so the
        // bytes are valid for it, and what the program changes meanwhile lies inside atomics.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for ArrayMapping<T> {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped, and no reference into it outlives `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len * size_of::<T>()) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
    }
}

// SAFETY: the mapping belongs to the process, not to a thread, and T is Sync.
unsafe impl<T: Sync> Send for ArrayMapping<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(since: u64, cgroup: u64) -> CpuRecord {
        CpuRecord { since: since.into(), cgroup: cgroup.into(), ..CpuRecord::default() }
    }

    fn known(cgroup: u64) -> Option<u32> {
        (cgroup >= 100).then(|| (cgroup - 100) as u32)
    }

    fn runs_of(cpus: &[CpuRecord]) -> Vec<RunInProgress> {
        let mut found = Vec::new();
        runs_in_progress(cpus, known, &mut found);
        found
    }

    #[test]
    fn only_tracked_groups_have_runs_and_they_come_by_slot() {
        let cpus = [cpu(50, 103), cpu(UNTRACKED, 103), cpu(CHANGING, 103), cpu(60, 7), cpu(70, 101)];
        let found: Vec<_> = runs_of(&cpus).iter().map(|run| (run.slot, run.cpu, run.since)).collect();
        assert_eq!(found, [(1, 4, 70), (3, 0, 50)]);
    }

    #[test]
    fn runs_in_progress_on_every_cpu_are_added() {
        let cpus = [cpu(50, 100), cpu(80, 100)];
        assert_eq!(total(&AtomicU64::new(1_000), &cpus, &runs_of(&cpus), 100), 1_000 + 50 + 20);
    }

    #[test]
    fn a_run_that_ended_meanwhile_is_not_counted_twice() {
        let cpus = [cpu(50, 100)];
        let before = runs_of(&cpus);
        cpus[0].since.store(90, Ordering::Release);
        assert_eq!(total(&AtomicU64::new(40), &cpus, &before, 100), 40);
    }

    #[test]
    fn a_record_that_never_settles_does_not_hang_the_reader() {
        let cpus = [cpu(50, 100)];
        let before = runs_of(&cpus);
        cpus[0].since.store(CHANGING, Ordering::Release);
        assert_eq!(total(&AtomicU64::new(40), &cpus, &before, 100), 40);
    }

    #[test]
    fn a_clock_read_before_the_run_began_adds_nothing() {
        let cpus = [cpu(150, 100)];
        assert_eq!(total(&AtomicU64::new(40), &cpus, &runs_of(&cpus), 100), 40);
    }
}
