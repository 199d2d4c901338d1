//! What the memory governor is told, and what it orders.
//!
//! Everything in is a measurement or the answer to an order, with its time on the monotonic clock; everything out is free of
//! mechanism: how much of a container's memory should go, not which file is written for it. The host finds the gentlest way
//! that the kernel has.

use crate::alert::Alert;
use crate::id::CgroupId;
use crate::probe::ProbeReport;
use crate::unit::{Bytes, Limit, Micros};
use serde::{Deserialize, Serialize};

/// One period's measurements of memory, once a second. Counters only grow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryTick {
    /// When, on the monotonic clock.
    pub now: Micros,
    /// The machine.
    pub node: NodeMemory,
    /// Every container, and every ancestor of several that has a hard limit, which bounds those below it together. Not named is
    /// not known.
    pub groups: Vec<(CgroupId, GroupMemory)>,
}

/// The machine's memory, `/proc/meminfo`, `/proc/pressure/memory`. `MemTotal` and watermarks are in
/// [`crate::sample::NodeProperties`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMemory {
    /// `MemFree`.
    pub mem_free: Bytes,
    /// `MemAvailable`.
    pub mem_available: Bytes,
    /// `SwapFree`; zero without swap.
    pub swap_free: Bytes,
    /// `SwapTotal`; zero without swap.
    #[serde(default)]
    pub swap_total: Bytes,
    /// Time that at least one task waited for memory, `some total`, where the kernel counts it.
    pub stalled: Option<Micros>,
}

/// One cgroup's memory, with everything below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMemory {
    /// Memory charged now: v1 `memory.usage_in_bytes`, v2 `memory.current`.
    pub usage: Bytes,
    /// v1 `total_rss`, v2 `anon`.
    pub anon: Bytes,
    /// Page cache, tmpfs included: v1 `total_cache`, v2 `file`.
    pub file: Bytes,
    /// The part of [`Self::file`] that is tmpfs or shared memory: it goes only to swap.
    pub shmem: Bytes,
    /// `inactive_file`.
    pub inactive_file: Bytes,
    /// `active_file`.
    pub active_file: Bytes,
    /// Page cache that is mapped: programs run from it.
    pub mapped: Bytes,
    /// `file_dirty` and `file_writeback`: it goes only after it was written.
    pub dirty: Bytes,
    /// `unevictable`: locked.
    pub unevictable: Bytes,
    /// v2 `slab_reclaimable`; zero on v1, which does not count it apart.
    pub slab_reclaimable: Bytes,
    /// v1 `total_swap`, v2 `memory.swap.current`.
    pub swap: Bytes,
    /// What of the machine's free swap it may still use: zero without swap, or where it is kept out of it.
    pub swap_room: Bytes,
    /// Page cache that was reclaimed and came back, since the cgroup was made: pages `workingset_refault_file` (before 5.9
    /// `workingset_refault`) as bytes.
    pub refault_file: Bytes,
    /// The same of anonymous memory, `workingset_refault_anon`.
    pub refault_anon: Bytes,
    /// Bytes read from disks, since the cgroup was made.
    pub rbytes: Bytes,
    /// CPU time used, since the cgroup was made; `None` where it is not known.
    #[serde(default)]
    pub cpu: Option<Micros>,
    /// Stalls, from `memory.pressure`, `io.pressure` and `cpu.pressure`; `None` where the kernel does not count them.
    pub stalls: Option<StallTotals>,
    /// Times that nothing could be reclaimed for it: v2 `memory.events` `oom`; 0 on v1.
    pub oom: u64,
    /// Processes of it that the kernel killed for memory: `oom_kill`.
    pub oom_kill: u64,
    /// Whether it, or a cgroup below it, has a process.
    pub populated: bool,
}

/// Time that tasks of a cgroup waited, since it was made: `total` of pressure files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StallTotals {
    /// At least one, for memory.
    pub memory_some: Micros,
    /// All of them, for memory.
    pub memory_full: Micros,
    /// At least one, for I/O.
    pub io_some: Micros,
    /// At least one, for a CPU.
    #[serde(default)]
    pub cpu_some: Micros,
}

/// A record of a container's probe.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeUpdate {
    /// When it was made, on the monotonic clock.
    pub at: Micros,
    /// Until when it counts, where no later one comes.
    pub until: Micros,
    /// The speaker: the receiver has made sure that it speaks of itself.
    pub group: CgroupId,
    /// What it said.
    pub report: ProbeReport,
}

/// What became of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderCompletion {
    /// When the attempt ended, on the monotonic clock.
    pub now: Micros,
    /// The cgroup.
    pub group: CgroupId,
    /// What was tried.
    pub what: OrderKind,
    /// What came of it.
    pub outcome: OrderOutcome,
    /// How much its usage fell by it; zero except for [`OrderKind::Reclaim`].
    pub reclaimed: Bytes,
}

/// A kind of order that the host carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OrderKind {
    /// [`MemoryOrder::Protect`].
    Protect,
    /// [`MemoryOrder::Reclaim`].
    Reclaim,
}

/// What came of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderOutcome {
    /// All of it.
    Done,
    /// A part: the rest cannot be reclaimed now (`EAGAIN`, `EBUSY`).
    Partly,
    /// Another program wrote the file that we would have: it is that program's.
    Foreign,
    /// This kernel has no way to do it, or refused; why.
    Refused(String),
    /// The cgroup is gone.
    Gone,
    /// It waited for so long that what it was for is over, or is there already: nothing was tried.
    Late,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryOrder {
    /// Keep others from taking this container's memory, in place of the last such order for it. Can only ever help it.
    Protect(ReclaimProtection),
    /// Take some memory back, once; leaves nothing behind.
    Reclaim(ReclaimRequest),
    /// What the container's view shows as effective memory is at most this, from now on.
    ViewCeiling(ViewCeiling),
    /// An alert began or ended.
    Alert(Alert),
}

/// Protection of a container from reclaim that others cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimProtection {
    /// When it was decided, on the monotonic clock.
    pub at: Micros,
    /// Whose.
    pub group: CgroupId,
    /// v2 `memory.low`; zero for none of ours. Ancestors need the sum of what is below them.
    pub low: Bytes,
    /// v2 `memory.min`; zero for none of ours. Only where its user asked for it.
    pub min: Bytes,
    /// v1 `memory.soft_limit_in_bytes`: global reclaim takes what is above it first. [`Limit::Max`] for none of ours.
    pub soft: Limit<Bytes>,
}

/// Memory to take back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimRequest {
    /// When it was decided, on the monotonic clock.
    pub at: Micros,
    /// The cgroup that gives it.
    pub group: CgroupId,
    /// How much.
    pub amount: Bytes,
    /// What it keeps: less is taken where it gave some back itself meanwhile.
    pub keep: Bytes,
    /// Whether anonymous memory may go to swap; else page cache only, as far as the kernel lets us say so.
    pub swap: bool,
    /// No process is in it: everything may go at once.
    pub dead: bool,
    /// No container waits for it: only by a way that sets nothing, and that leaves anonymous memory alone where it is told to.
    #[serde(default)]
    pub saving: bool,
}

/// The most that a view shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewCeiling {
    /// When it was decided, on the monotonic clock.
    pub at: Micros,
    /// Whose.
    pub group: CgroupId,
    /// Effective memory is at most this; [`Limit::Max`] leaves it to the view.
    pub ceiling: Limit<Bytes>,
}
