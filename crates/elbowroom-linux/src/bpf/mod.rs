//! Which containers ran, told by the scheduler (feature `bpf`).
//!
//! **Problem.** Asking every container every period what it used costs a system call each, though on a node with a
//! thousand containers nearly all of them slept since the last time.
//!
//! **Approach.** A program on the scheduler's `sched_switch` tracepoint (`bpf/active.bpf.c`) adds each finished run to
//! the slot of its cgroup and marks the slot, in memory this process maps. [`ActiveSet::drain`] reads the marks: no
//! system call, and no work for a container that slept. Only the owner of the set knows what a slot means; every
//! cgroup of a container, nested ones too, is tracked into the container's slot.
//!
//! **Terminology.** A *run* is an uninterrupted stay of one cgroup on one CPU.
//!
//! **Properties.** Totals of one slot never decrease. A total is the scheduler's own count (`sum_exec_runtime`), hence
//! equal to the growth of `cpuacct.usage` or `cpu.stat`, plus runs in progress measured by the clock: these include
//! time stolen by the hypervisor until they end. A slot that did not run is not reported. Dropping the set removes
//! the program; if the process dies, the kernel does it.
//!
//! Needs Linux 5.12 with BTF, and CAP_BPF with CAP_PERFMON or CAP_SYS_ADMIN. Whether a kernel lets it is found out by
//! trying; a caller whose kernel refuses reads files instead.

mod load;
pub mod object;
pub mod shared;
mod tier;

use elbowroom_types::unit::Micros;
use libbpf_rs::{MapCore, MapFlags};
use load::LoadedProgram;
use rustix::time::{ClockId, clock_gettime};
use shared::{CpuRecord, RunInProgress};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
pub(crate) use tier::detect_activity_source;

/// Whose cgroup a task is charged to: the hierarchy that the tracked inodes are directories of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum TrackedHierarchy {
    /// Version 2.
    Unified = 0,
    /// Version 1, the hierarchy of the `cpu` controller.
    Cpu = 1,
    /// Version 1, the hierarchy of the `cpuacct` controller, where it is not the one of `cpu`.
    Cpuacct = 2,
    /// Version 1, the hierarchy of the `memory` controller.
    Memory = 3,
}

/// What was being done when the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetupStep {
    /// Reading the object and the number of CPUs.
    Open,
    /// Creating the maps, fitting the program to the kernel's BTF, verifying it.
    Load,
    /// Mapping a map into memory.
    Map,
    /// Attaching the program to the tracepoint.
    Attach,
}

/// Why scheduling cannot be followed, or a cgroup not tracked.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The set cannot be opened here.
    #[error("BPF step {step:?} was refused: {source}: {said}")]
    Refused {
        /// The step.
        step: SetupStep,
        /// libbpf's explanation.
        said: String,
        /// The system call's error.
        source: libbpf_rs::Error,
    },
    /// The kernel's table of cgroups cannot be changed.
    #[error("{operation} cgroup {cgroup} in the BPF map: {source}")]
    Group {
        /// `track` or `untrack`.
        operation: &'static str,
        /// Inode of the cgroup's directory.
        cgroup: u64,
        /// The system call's error; E2BIG when the table is full.
        source: libbpf_rs::Error,
    },
    /// More slots than the program has counters for.
    #[error("slot {slot} is beyond the last one, {last}")]
    Slot {
        /// The slot asked for.
        slot: u32,
        /// The largest there is.
        last: u32,
    },
    /// Processes whose page tables are wanted cannot be followed.
    #[error("cannot {operation} processes by BPF: {source}")]
    Process {
        /// `follow`, `look at` or `visit`.
        operation: &'static str,
        /// The system call's error.
        source: libbpf_rs::Error,
    },
    /// A program knows one architecture's page tables and faults.
    #[error("only x86-64 is supported")]
    Architecture,
    /// The direct map was not found.
    #[error("the kernel's direct map of memory was not found: is memory encrypted?")]
    DirectMap,
    /// The root belongs to no container and is not charged.
    #[error("the root of a hierarchy (inode {cgroup}) cannot be tracked")]
    Root {
        /// Inode of the cgroup's directory.
        cgroup: u64,
    },
}

/// A look at the set's own state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActiveSetStats {
    /// Context switches seen on all CPUs since it was opened.
    pub switches: u64,
    /// Switches the kernel did not show, though a later one proves them; zero on most kernels. The run that began in such a
    /// one is counted where it ends, unless it ends its task; the one that ended in it is in no total.
    pub missed: u64,
    /// Cgroups tracked.
    pub groups: usize,
    /// Slots they are tracked into.
    pub slots: usize,
}

/// The cgroups whose scheduling is followed.
#[derive(Debug)]
pub struct ActiveSet {
    kernel: LoadedProgram,
    /// What the kernel's map holds, to know a CPU's cgroup without asking.
    groups: HashMap<u64, u32>,
    slots: Vec<TrackedSlot>,
    /// Reused by every drain.
    runs: Vec<RunInProgress>,
    words: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct TrackedSlot {
    /// How many cgroups are tracked into it.
    groups: u32,
    /// The largest total reported, in nanoseconds.
    reported: u64,
}

impl ActiveSet {
    /// Loads the program and attaches it to the scheduler.
    ///
    /// # Errors
    /// [`BpfError::Refused`] with the step this kernel, or this process's privileges, do not allow.
    pub fn open(hierarchy: TrackedHierarchy) -> Result<Self, BpfError> {
        let kernel = load::load(hierarchy)?;
        Ok(Self { kernel, groups: HashMap::new(), slots: Vec::new(), runs: Vec::new(), words: Vec::new() })
    }

    /// Charges the cgroup whose directory has inode `cgroup` to `slot` from now on; a run in progress counts whole.
    /// The first cgroup of a slot starts it at zero. A cgroup already tracked moves to the new slot.
    ///
    /// # Errors
    /// A slot out of range, the hierarchy's root, or a full table.
    pub fn track(&mut self, cgroup: u64, slot: u32) -> Result<(), BpfError> {
        let last = self.kernel.totals.len() as u32 - 1;
        if slot > last {
            return Err(BpfError::Slot { slot, last });
        }
        if cgroup <= 1 {
            return Err(BpfError::Root { cgroup });
        }
        let index = slot as usize;
        if self.slots.len() <= index {
            self.slots.resize(index + 1, TrackedSlot::default());
            self.words.resize(self.slots.len().div_ceil(64), 0);
        }
        if self.slots[index].groups == 0 {
            self.slots[index].reported = 0;
            self.kernel.totals[index].store(0, Ordering::Relaxed);
            self.kernel.ran[index / 64].fetch_and(!(1 << (index % 64)), Ordering::Relaxed);
        }
        self.kernel
            .groups
            .update(&cgroup.to_ne_bytes(), &slot.to_ne_bytes(), MapFlags::ANY)
            .map_err(|source| BpfError::Group { operation: "track", cgroup, source })?;
        self.slots[index].groups += 1;
        if let Some(old) = self.groups.insert(cgroup, slot) {
            self.slots[old as usize].groups -= 1;
        }
        Ok(())
    }

    /// Stops charging a cgroup; one that is not tracked is no error. A slot whose last cgroup this was is not reported
    /// any more and can be used for another container.
    ///
    /// # Errors
    /// The kernel refused to delete the entry.
    pub fn untrack(&mut self, cgroup: u64) -> Result<(), BpfError> {
        let Some(slot) = self.groups.remove(&cgroup) else { return Ok(()) };
        self.slots[slot as usize].groups -= 1;
        self.kernel.groups.delete(&cgroup.to_ne_bytes()).map_err(|source| BpfError::Group {
            operation: "untrack",
            cgroup,
            source,
        })
    }

    /// Calls `each` for every slot of which something ran since the last call, in ascending order, with its CPU time
    /// since its first cgroup was tracked. No system call.
    pub fn drain(&mut self, mut each: impl FnMut(u32, Micros)) {
        let now = monotonic_ns();
        for (word, ran) in self.words.iter_mut().zip(self.kernel.ran.iter()) {
            // Most words of a quiet machine are zero: do not take their cache lines away from the CPUs that write them.
            *word = if ran.load(Ordering::Relaxed) == 0 { 0 } else { ran.swap(0, Ordering::AcqRel) };
        }
        let Self { kernel, groups, slots, runs, words } = self;
        shared::runs_in_progress(&kernel.cpus, |cgroup| groups.get(&cgroup).copied(), runs);
        for run in runs.iter() {
            words[run.slot as usize / 64] |= 1 << (run.slot % 64);
        }
        let mut rest = runs.as_slice();
        for (word, index) in words.iter().zip((0..).step_by(64)) {
            let mut bits = *word;
            while bits != 0 {
                let slot: u32 = index + bits.trailing_zeros();
                bits &= bits - 1;
                let own = rest.partition_point(|run| run.slot <= slot);
                let (own, after) = rest.split_at(own);
                rest = after;
                let state = &mut slots[slot as usize];
                if state.groups == 0 {
                    continue;
                }
                let total = shared::total(&kernel.totals[slot as usize], &kernel.cpus, own, now);
                state.reported = state.reported.max(total);
                each(slot, Micros::nanos(state.reported));
            }
        }
    }

    /// The set's own state.
    pub fn stats(&self) -> ActiveSetStats {
        let sum = |count: fn(&CpuRecord) -> &AtomicU64| {
            self.kernel.cpus.iter().map(|cpu| count(cpu).load(Ordering::Relaxed)).sum()
        };
        ActiveSetStats {
            switches: sum(|cpu| &cpu.switches),
            missed: sum(|cpu| &cpu.missed),
            groups: self.groups.len(),
            slots: self.slots.iter().filter(|slot| slot.groups > 0).count(),
        }
    }
}

/// The clock of `bpf_ktime_get_ns()`.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
