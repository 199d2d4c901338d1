//! What the host tells the core: a stream of [`HostEvent`]s. The same stream, recorded, is what `elbowroom replay` reads.

use crate::container::ContainerIdentity;
use crate::cpuset::CpuSet;
use crate::id::{CgroupId, DeviceNumber};
use crate::io::{DiskProperties, DiskTick, IoLimits};
use crate::memory::{MemoryTick, OrderCompletion, ProbeUpdate, ViewCeiling};
use crate::unit::{Bytes, CpuShare, Limit, Micros};
use serde::{Deserialize, Serialize};

/// Everything that can happen, in the order it happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "events are handled one by one, not stored by the million")]
pub enum HostEvent {
    /// The machine, at start and whenever one of these facts changed.
    Node(NodeProperties),
    /// A cgroup that is new, or whose settings changed.
    Group(CgroupProperties),
    /// A cgroup that is gone, with everything below it.
    Gone(CgroupId),
    /// One period's measurements.
    Tick(Tick),
    /// A disk that is new, or whose facts changed.
    Disk(DiskProperties),
    /// A disk that is gone, or that no container uses any more.
    DiskGone(DeviceNumber),
    /// One period's measurements of disks; the period is another than that of [`HostEvent::Tick`].
    DiskTick(DiskTick),
    /// What a container's limits on a disk are, from any source: told when it is first seen there, and after every attempt to
    /// change one.
    IoLimits(IoLimits),
    /// One period's measurements of memory; the period is another than that of [`HostEvent::Tick`].
    MemoryTick(MemoryTick),
    /// What became of an order of the memory governor.
    MemoryDone(OrderCompletion),
    /// What an application said about itself.
    Probe(ProbeUpdate),
    /// The most that a container's view shows as effective memory.
    ViewCeiling(ViewCeiling),
}

/// What is fixed about the machine until it changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeProperties {
    /// Online CPUs: `P` of Adaptive Resource Views.
    pub online: CpuSet,
    /// `MemTotal`.
    pub mem_total: Bytes,
    /// Memory of each NUMA node, by its number; empty where there is one, or it is not known.
    #[serde(default)]
    pub numa: Vec<Bytes>,
    /// Sum of the zones' `low` watermarks: below it kswapd runs (`/proc/zoneinfo`, mm/page_alloc.c).
    pub low_mark: Bytes,
    /// Sum of the zones' `high` watermarks: above it kswapd stops.
    pub high_mark: Bytes,
    /// Page size.
    pub page_size: Bytes,
}

impl NodeProperties {
    /// The memory of the NUMA nodes that a cgroup may take memory from: all there is where that is not known.
    pub fn numa_memory(&self, mems: Option<CpuSet>) -> Bytes {
        let of = |node: u32| self.numa.get(node as usize).copied().unwrap_or_default();
        let sum = mems.unwrap_or_default().iter().map(of).fold(Bytes::ZERO, Bytes::saturating_add);
        if sum == Bytes::ZERO { self.mem_total } else { self.mem_total.min(sum) }
    }
}

/// One cgroup: a container, an ancestor of one, or a sibling that competes with one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CgroupProperties {
    /// Its identity.
    pub id: CgroupId,
    /// The cgroup above it; `None` for the root of the hierarchy.
    pub parent: Option<CgroupId>,
    /// Path below the hierarchy's root, as in `/proc/PID/cgroup`.
    pub path: String,
    /// What is known when this cgroup is a container.
    pub container: Option<ContainerIdentity>,
    /// Its own settings.
    pub limits: CgroupSettings,
    /// Whether it has, or a cgroup below it has, any process. Empty groups compete for nothing.
    pub populated: bool,
    /// Whether a user to whom a cgroup above was delegated made it, and writes all of its settings. Its own reservation binds no other
    /// cgroup, as in the kernel, which protects no more than the cgroup above may have.
    #[serde(default)]
    pub made_by_user: bool,
}

/// A cgroup's own settings. `None`: the controller is not there or the file cannot be read, which is not `max`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupSettings {
    /// v1 `cpu.cfs_quota_us` and `cpu.cfs_period_us`, v2 `cpu.max`.
    pub cpu_max: Option<CpuMax>,
    /// v1 `cpu.shares`, v2 `cpu.weight`.
    pub cpu_share: Option<CpuShare>,
    /// v1 `cpuset.effective_cpus` (or `cpuset.cpus`), v2 `cpuset.cpus.effective`.
    pub cpuset: Option<CpuSet>,
    /// NUMA nodes that it takes memory from: v1 `cpuset.effective_mems` (or `cpuset.mems`), v2 `cpuset.mems.effective`.
    #[serde(default)]
    pub mems: Option<CpuSet>,
    /// v1 `memory.limit_in_bytes`, v2 `memory.max`.
    pub memory_max: Option<Limit<Bytes>>,
    /// v2 `memory.high`.
    pub memory_high: Option<Limit<Bytes>>,
    /// v2 `memory.low`.
    pub memory_low: Option<Limit<Bytes>>,
    /// v2 `memory.min`.
    #[serde(default)]
    pub memory_min: Option<Limit<Bytes>>,
    /// v1 `memory.soft_limit_in_bytes`.
    pub memory_soft: Option<Limit<Bytes>>,
    /// v2 `memory.swap.max`.
    pub swap_max: Option<Limit<Bytes>>,
    /// v1 `memory.memsw.limit_in_bytes`: memory and swap together; absent where the kernel does not account swap.
    #[serde(default)]
    pub memsw_max: Option<Limit<Bytes>>,
}

impl CgroupSettings {
    /// What holds for a group of which everything is in one group below it, with the settings `inner`: of each limit the tighter one. Its
    /// share of CPU time and its claims to memory stay its own: those below divide what it has among its parts.
    #[must_use]
    pub fn within(self, inner: &Self) -> Self {
        let tighter = |own: Option<Limit<Bytes>>, inner| own.into_iter().chain(inner).reduce(Limit::min);
        Self {
            cpu_max: self.cpu_max.into_iter().chain(inner.cpu_max).reduce(CpuMax::min),
            // The kernel has taken what is not allowed above out of these.
            cpuset: inner.cpuset.or(self.cpuset),
            mems: inner.mems.or(self.mems),
            memory_max: tighter(self.memory_max, inner.memory_max),
            memory_high: tighter(self.memory_high, inner.memory_high),
            swap_max: tighter(self.swap_max, inner.swap_max),
            ..self
        }
    }
}

/// A bandwidth limit: `quota` of CPU time in every `period` of wall time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuMax {
    /// CPU time per period.
    pub quota: Limit<Micros>,
    /// Length of the period, 100 ms by default.
    pub period: Micros,
}

impl CpuMax {
    /// The one that allows less CPU time per time; the first where both allow as much.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        let product = |quota: Micros, period: Micros| u128::from(quota.get()) * u128::from(period.get());
        match (self.quota, other.quota) {
            (_, Limit::Max) => self,
            (Limit::Max, _) => other,
            (Limit::At(own), Limit::At(others)) => {
                if product(own, other.period) <= product(others, self.period) { self } else { other }
            }
        }
    }
}

/// One period's measurements. Counters only grow; a cgroup not named has not changed since it was last named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tick {
    /// When, on the monotonic clock.
    pub now: Micros,
    /// CPU time used on the whole machine since boot.
    pub busy: Micros,
    /// The same per online CPU, in ascending order of CPU number; empty when it is not known at this rate.
    pub busy_per_cpu: Vec<Micros>,
    /// `MemFree`.
    pub mem_free: Bytes,
    /// `MemAvailable`, less the file cache that `memory.low` and `memory.min` keep for containers. In every tick where some
    /// cgroup has a soft limit, else now and then; absent in the others, and in recordings before there was this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_available: Option<Bytes>,
    /// What reclaim has cost, a few times a second where some cgroup has a soft limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim: Option<ReclaimCounters>,
    /// The cgroups that were read.
    pub usage: Vec<(CgroupId, Usage)>,
}

/// What reclaim did since boot, and what it cost; counters of the whole machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimCounters {
    /// Time that some task waited for memory: `total` of the line `some` of `/proc/pressure/memory`. The kernel counts kswapd's
    /// own work too (mm/vmscan.c `balance_pgdat`). Absent without PSI.
    pub stalled: Option<Micros>,
    /// Pages looked at for the machine: `pgscan_kswapd` and `pgscan_direct` of `/proc/vmstat`, which count no reclaim for a
    /// cgroup's own limit (mm/vmscan.c `shrink_inactive_list`).
    pub scanned: u64,
    /// Pages looked at for limits of cgroups: `pgscan_anon` and `pgscan_file`, less those above. Zero before Linux 5.8.
    pub scanned_for_limits: u64,
    /// Pages that were in use and were lost: `pswpout`, `workingset_refault_anon`, `workingset_restore_file`.
    pub lost: u64,
    /// Files' pages that came back, `workingset_refault_file`, where the kernel hardly says which of them were in use: under the
    /// multi-generational LRU. Zero elsewhere, and in recordings before there was this field.
    #[serde(default)]
    pub refaulted_files: u64,
    /// The part of them that came back to cgroups at their own limit, which push out their own pages: counted while more than
    /// [`Self::FEW_REFAULTS`] come back.
    #[serde(default)]
    pub refaulted_at_limits: u64,
}

impl ReclaimCounters {
    /// So many files' pages that come back in a second are few, 1 MiB: a slow disk gives back not many more, and they are waited for.
    pub const FEW_REFAULTS: u64 = 256;
}

/// What the interfaces of a network namespace have carried since each was made, without the loopback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetworkCounters {
    /// Bytes that came in.
    pub received_bytes: Bytes,
    /// Bytes that went out.
    pub sent_bytes: Bytes,
}

/// What a cgroup has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Usage {
    /// CPU time since the cgroup was created (v1 `cpuacct.usage`, v2 `cpu.stat` `usage_usec`).
    pub cpu: Micros,
    /// Time its tasks were held back by its quota (v1 `cpu.stat` `throttled_time`, v2 `throttled_usec`), where read.
    pub throttled: Option<Micros>,
    /// Memory charged to it now (v1 `memory.usage_in_bytes`, v2 `memory.current`).
    pub memory: Bytes,
}

impl Usage {
    /// The CPU time, where there is a count: a container with a process has used some.
    pub fn known_cpu(&self) -> Option<Micros> {
        Some(self.cpu).filter(|cpu| *cpu > Micros::ZERO)
    }
}

/// The keys of `memory.stat` that views need, hierarchical (v1 `total_*`). Keys a kernel lacks are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub struct MemoryStat {
    /// v1 `total_rss`, v2 `anon`.
    pub anon: Bytes,
    /// v1 `total_rss_huge`, v2 `anon_thp`.
    pub anon_thp: Bytes,
    /// v1 `total_cache`, v2 `file`.
    pub file: Bytes,
    /// `mapped_file` / `file_mapped`.
    pub file_mapped: Bytes,
    /// `dirty` / `file_dirty`.
    pub file_dirty: Bytes,
    /// `writeback` / `file_writeback`.
    pub file_writeback: Bytes,
    /// `shmem`.
    pub shmem: Bytes,
    /// `inactive_anon`.
    pub inactive_anon: Bytes,
    /// `active_anon`.
    pub active_anon: Bytes,
    /// `inactive_file`.
    pub inactive_file: Bytes,
    /// `active_file`.
    pub active_file: Bytes,
    /// `unevictable`.
    pub unevictable: Bytes,
    /// v2 `slab_reclaimable`.
    pub slab_reclaimable: Bytes,
    /// v2 `slab_unreclaimable`.
    pub slab_unreclaimable: Bytes,
    /// v2 `kernel_stack`.
    pub kernel_stack: Bytes,
    /// v2 `pagetables`.
    pub pagetables: Bytes,
    /// v2 `swapcached`, v1 0.
    pub swapcached: Bytes,
    /// v1 `total_swap`, v2 `memory.swap.current`.
    pub swap: Bytes,
    /// Pages, not bytes: `pgfault`.
    pub pgfault: u64,
    /// `pgmajfault`.
    pub pgmajfault: u64,
    /// `pgpgin` (v1).
    pub pgpgin: u64,
    /// `pgpgout` (v1).
    pub pgpgout: u64,
    /// `workingset_refault_file`.
    pub workingset_refault_file: u64,
    /// `workingset_refault_anon`.
    pub workingset_refault_anon: u64,
    /// Pages that were read from swap: v2 `pswpin`, from Linux 6.13 on.
    #[serde(default)]
    pub pswpin: u64,
    /// Pages that were written to it: `pswpout`.
    #[serde(default)]
    pub pswpout: u64,
}

impl MemoryStat {
    /// Nothing charged.
    pub const EMPTY: Self = Self {
        anon: Bytes::ZERO,
        anon_thp: Bytes::ZERO,
        file: Bytes::ZERO,
        file_mapped: Bytes::ZERO,
        file_dirty: Bytes::ZERO,
        file_writeback: Bytes::ZERO,
        shmem: Bytes::ZERO,
        inactive_anon: Bytes::ZERO,
        active_anon: Bytes::ZERO,
        inactive_file: Bytes::ZERO,
        active_file: Bytes::ZERO,
        unevictable: Bytes::ZERO,
        slab_reclaimable: Bytes::ZERO,
        slab_unreclaimable: Bytes::ZERO,
        kernel_stack: Bytes::ZERO,
        pagetables: Bytes::ZERO,
        swapcached: Bytes::ZERO,
        swap: Bytes::ZERO,
        pgfault: 0,
        pgmajfault: 0,
        pgpgin: 0,
        pgpgout: 0,
        workingset_refault_file: 0,
        workingset_refault_anon: 0,
        pswpin: 0,
        pswpout: 0,
    };
}
