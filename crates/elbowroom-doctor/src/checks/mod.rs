//! What hurts containers on a host, why we think so, and what removes it.
//!
//! Problem: few people read the files that tell what slows containers down, and each file alone lies. A container at
//! its limit may be full of cache it does not need; one far below its limit may lose the cache it does.
//!
//! Approach: [`HostFacts`] are a host at two instants. Each [`DoctorCheck`] in [`CHECKS`] is a function from facts to [`DoctorFinding`]s: a
//! sentence, the files that say so with their values, the commands that remove it, and where to read about it. A check that
//! compares rates asks for two signs at least, such as "at its limit" and "reads back what it had": one alone is what busy,
//! healthy containers look like.
//!
//! Terminology: the four pitfalls are those of *Taming Memory Related Performance Pitfalls in Linux Cgroups* (ICNC'17); a
//! *note* ([`elbowroom_types::finding::Severity::Info`]) is true and harms no container now.
//!
//! Properties:
//! - Idle containers, however many and however they are limited, give no warning.
//! - A fix never lowers a limit, switches swap off or kills.
//! - What a fix of a pitfall writes removes the finding that suggested it.

pub mod cache;
mod conflicts;
mod cpu;
mod disk;
pub mod facts;
pub mod fixes;
mod kernel;
mod limits;
pub(crate) mod measures;
mod pids;
mod plan;
mod pressure;
mod reserve;
pub mod sizing;
mod snapshot;
mod swap;

pub(crate) use facts::ZFS_CACHE;
pub use facts::{
    AppliedWrite, CgroupCounters, CgroupFacts, ControllerVersion, DiskCounters, DiskFacts, FixedHeap,
    HierarchyController, HostFacts, MachineCounters, MachineFacts, MountFacts, NumaNodeFacts,
};
pub use plan::{is_fixable, is_harmful, plan_fixes};
pub use snapshot::CounterSnapshot;

use elbowroom_types::finding::DoctorFinding;

/// One question about a host.
#[derive(Clone, Copy, Debug)]
pub struct DoctorCheck {
    /// Its name, for `--fix` and for programs: words with dashes, never renamed.
    pub id: &'static str,
    /// Which of the four pitfalls, or which row of the catalogue.
    pub pitfall: &'static str,
    /// What it reads on cgroup v1; empty where the question does not exist there.
    pub reads_v1: &'static str,
    /// What it reads on cgroup v2.
    pub reads_v2: &'static str,
    /// From when on it speaks.
    pub threshold: &'static str,
    /// Where to read about it.
    pub reference: &'static str,
    /// The question. Fills in everything but check and reference.
    pub run: fn(&HostFacts) -> Vec<DoctorFinding>,
}

/// Every check, the four pitfalls first.
pub const CHECKS: &[DoctorCheck] = &[
    reserve::NOT_RESERVED,
    reserve::RESERVATION_VOID,
    reserve::OLD_KERNEL,
    cache::ANON_EVICTS,
    cache::CACHE_TOO_SMALL,
    cache::CACHE_TAKEN_BY_HOST,
    cache::HOST_JOBS,
    swap::SWAPPED,
    swap::NO_SWAP,
    swap::SWAP_UNLIMITED,
    swap::ZSWAP,
    limits::HIGH,
    limits::AT_LIMIT,
    limits::OOM_KILLED,
    limits::HOST_OOM,
    limits::OOM_GROUP,
    limits::OOM_DISABLED,
    limits::SHMEM,
    limits::KERNEL_MEMORY,
    limits::JVM_MISSES_CONTAINER,
    limits::HEAP,
    pids::PIDS,
    cache::WORKING_SET,
    conflicts::HOST_SHORT_OF_MEMORY,
    kernel::THP_ALWAYS,
    kernel::DIRTY,
    kernel::DYING,
    kernel::WATERMARKS,
    kernel::PSI_OFF,
    kernel::NODE_FULL,
    kernel::ZONE_RECLAIM,
    kernel::OVERCOMMIT,
    kernel::TABLE_FULL,
    cpu::THROTTLED,
    cpu::STOLEN,
    cpu::CPUSET_NARROWED,
    cpu::CPUSET_CONTENDED,
    cpu::MINIMUM_WEIGHT,
    disk::BUFFERED_WRITES_ESCAPE,
    disk::LIMIT_ON_PARTITION,
    disk::LIMIT_STALLS_HOST,
    disk::LIMIT_BINDS,
    disk::WEIGHT_NOOP,
    disk::NOT_DIVIDED,
    disk::DEGRADED,
    disk::FULL_WITHOUT_PRESSURE,
    disk::ROTATIONAL,
    disk::WBT,
    conflicts::FOREIGN_WRITER,
    conflicts::OVERWRITTEN,
];

/// Everything that is found, worst first; among equals in the order of [`CHECKS`].
pub fn examine(facts: &HostFacts) -> Vec<DoctorFinding> {
    let mut found: Vec<DoctorFinding> = CHECKS.iter().flat_map(|check| run(check, facts)).collect();
    found.sort_by_key(|f| std::cmp::Reverse(f.severity));
    found
}

/// What one check finds.
pub fn run(check: &DoctorCheck, facts: &HostFacts) -> Vec<DoctorFinding> {
    let mut found = (check.run)(facts);
    for finding in &mut found {
        finding.check = check.id.to_owned();
        finding.reference = check.reference.to_owned();
    }
    found
}
