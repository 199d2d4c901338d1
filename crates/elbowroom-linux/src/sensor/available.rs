//! What the machine's memory could yield, and what taking it has cost: for views of memory, which move only where some group has a
//! soft limit. Elsewhere this is read only now and then, to show the machine.

use super::Sensor;
use super::meter::is_small_change;
use super::tree::{GroupEntry, GroupSlot, GroupTree};
use crate::{cgroup, proc};
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::{CgroupSettings, ReclaimCounters};
use elbowroom_types::unit::{Bytes, Limit, Micros};
use std::collections::BTreeMap;

/// How often reclaim is looked at: `/proc/vmstat` costs 50 us.
const RECLAIM_PERIOD: Micros = Micros::millis(250);
/// How often `MemAvailable` is read where no view of memory can move.
const IDLE_PERIOD: Micros = Micros::secs(1);
/// How many protected groups' `memory.stat` is read each time that reclaim is looked at, in turn.
const PROTECTED_READS: usize = 4;
/// Of how many groups at their own limit it is read then, at 30 to 100 us each, and only while files' pages come back.
const AT_LIMIT_READS: usize = 40;

/// What is kept for [`Sensor::read_available`].
#[derive(Debug, Default)]
pub(super) struct AvailableMemory {
    /// Whether some group has a soft limit; `None` when that is to be found out again.
    soft_limits: Option<bool>,
    /// File cache of groups that is kept from being reclaimed, by their slots; those not read yet have none.
    protected: BTreeMap<GroupSlot, Bytes>,
    /// The protected group that is read next.
    turn: GroupSlot,
    /// Files' pages that had come back when reclaim was last looked at, and the part of groups at their own limit.
    refaulted_files: u64,
    refaulted_at_limits: u64,
    /// What had come back to each of these groups then.
    at_limits: BTreeMap<CgroupId, u64>,
    reclaim_at: Micros,
    idle_at: Micros,
}

impl AvailableMemory {
    pub(super) fn settings_changed(&mut self) {
        self.soft_limits = None;
    }
}

impl Sensor {
    /// [`elbowroom_types::sample::Tick::mem_available`] and [`elbowroom_types::sample::Tick::reclaim`].
    pub(super) fn read_available(&mut self, now: Micros) -> (Option<Bytes>, Option<ReclaimCounters>) {
        let soft_limits = match self.machine.available.soft_limits {
            Some(known) => known,
            None => self.find_soft_limits(),
        };
        let kept = &mut self.machine.available;
        let reclaim_is_due = soft_limits && now >= kept.reclaim_at;
        if !soft_limits && now < kept.idle_at {
            return (None, None);
        }
        kept.idle_at = now.saturating_add(IDLE_PERIOD);
        let reclaim = reclaim_is_due.then(|| {
            self.machine.available.reclaim_at = now.saturating_add(RECLAIM_PERIOD);
            self.read_protected();
            self.read_reclaim()
        });
        let info = self.proc_file("/proc/meminfo", proc::meminfo);
        let available = self.warnings.ok_or_warn(info).and_then(|info| info.mem_available);
        let protected: Bytes = self.machine.available.protected.values().copied().sum();
        (available.map(|available| available.saturating_sub(protected)), reclaim.flatten())
    }

    fn find_soft_limits(&mut self) -> bool {
        let limits = |slot| self.tree.get(slot).map(|entry| &entry.group.limits);
        let found = (0..self.tree.slots()).filter_map(limits).any(has_soft_limit);
        let protected = |slot: &GroupSlot| limits(*slot).and_then(protection).is_some();
        let mut kept = std::mem::take(&mut self.machine.available.protected);
        kept.retain(|slot, _| protected(slot));
        self.machine.available.protected = kept;
        self.machine.available.soft_limits = Some(found);
        found
    }

    /// Reads the file cache of the next few groups that `memory.low` or `memory.min` protects. Of groups inside each other the
    /// outermost counts for all.
    fn read_protected(&mut self) {
        let slots = self.tree.slots();
        let mut read = 0;
        for step in 0..slots {
            let slot = (self.machine.available.turn + step) % slots;
            let Some(entry) = self.tree.get(slot) else { continue };
            let Some(at_most) = protection(&entry.group.limits) else { continue };
            if self.is_below(slot, |above| protection(&self.tree[above].group.limits).is_some()) {
                self.machine.available.protected.remove(&slot);
                continue;
            }
            let stat = cgroup::memory_stat(&self.layout, &entry.path);
            let stat = self.warnings.ok_or_warn(stat).flatten().unwrap_or_default();
            self.last_tick_cost.syscalls += 4;
            let cache = stat.active_file.saturating_add(stat.inactive_file);
            self.machine.available.protected.insert(slot, cache.min(at_most));
            read += 1;
            if read == PROTECTED_READS {
                self.machine.available.turn = slot + 1;
                return;
            }
        }
        self.machine.available.turn = 0;
    }

    /// Whether a group is below one of which something is so.
    fn is_below(&self, slot: GroupSlot, is_so: impl Fn(GroupSlot) -> bool) -> bool {
        let parent = |slot: &GroupSlot| self.tree.get(*slot)?.parent.filter(|at| *at != GroupTree::ROOT);
        std::iter::successors(parent(&slot), parent).any(is_so)
    }

    /// Whether a group fills its own limit, so that the kernel takes its own pages for what it reads.
    fn is_at_limit(&self, slot: GroupSlot) -> bool {
        let limits = self.tree.get(slot).map(|entry| entry.group.limits).unwrap_or_default();
        let usage = self.tree.meters[slot].usage.memory;
        let limit = limits.memory_max.into_iter().chain(limits.memory_high).filter_map(Limit::value).min();
        limit.is_some_and(|limit| usage >= limit || is_small_change(limit, usage))
    }

    /// [`ReclaimCounters::refaulted_at_limits`]. What came back to a group counts from the second look on at which it is at its limit. Of
    /// groups inside each other the outermost counts for all.
    fn read_at_limits(&mut self, refaulted_files: u64) -> u64 {
        let kept = &mut self.machine.available;
        let before = std::mem::take(&mut kept.at_limits);
        let last = std::mem::replace(&mut kept.refaulted_files, refaulted_files);
        let few = ReclaimCounters::FEW_REFAULTS * RECLAIM_PERIOD.get() / 1_000_000;
        if refaulted_files.saturating_sub(last) > few {
            let outermost = |slot: &GroupSlot| {
                self.is_at_limit(*slot) && !self.is_below(*slot, |above| self.is_at_limit(above))
            };
            let slots: Vec<GroupSlot> =
                (0..self.tree.slots()).filter(outermost).take(AT_LIMIT_READS).collect();
            for GroupEntry { group, path, .. } in slots.iter().map(|slot| &self.tree[*slot]) {
                self.last_tick_cost.syscalls += 3;
                let read = self.warnings.ok_or_warn(cgroup::refaulted_files(&self.layout, path)).flatten();
                let Some(now) = read else { continue };
                let kept = &mut self.machine.available;
                kept.refaulted_at_limits +=
                    before.get(&group.id).map_or(0, |before| now.saturating_sub(*before));
                kept.at_limits.insert(group.id, now);
            }
        }
        self.machine.available.refaulted_at_limits
    }

    fn read_reclaim(&mut self) -> Option<ReclaimCounters> {
        let counters = self.proc_file("/proc/vmstat", proc::reclaim_counters);
        let counters = self.warnings.ok_or_warn(counters)?;
        // Where the kernel has no PSI, or has it switched off, there is no such file.
        let pressure = self.proc_file("/proc/pressure/memory", proc::pressure).ok();
        let stalled = pressure.map(|pressure| pressure.some.total);
        let refaulted_files = if self.has_generations() { counters.refaulted_files } else { 0 };
        let refaulted_at_limits = self.read_at_limits(refaulted_files);
        Some(ReclaimCounters { stalled, refaulted_files, refaulted_at_limits, ..counters })
    }

    /// Whether the multi-generational LRU is on (Documentation/admin-guide/mm/multigen_lru.rst); it can be switched at any time.
    fn has_generations(&mut self) -> bool {
        self.last_tick_cost.syscalls += 4;
        let enabled = self.root.read("sys/kernel/mm/lru_gen/enabled").unwrap_or_default();
        let bits = enabled.trim_end().strip_prefix("0x").and_then(|bits| u32::from_str_radix(bits, 16).ok());
        bits.is_some_and(|bits| bits & 1 != 0)
    }
}

/// Whether views of memory below a group may move: see `elbowroom_view::rules::memory::bounds`.
fn has_soft_limit(limits: &CgroupSettings) -> bool {
    let is_set =
        |limit: Option<Limit<Bytes>>| limit.and_then(Limit::value).is_some_and(|at| at > Bytes::ZERO);
    [limits.memory_low, limits.memory_high, limits.memory_soft].into_iter().any(is_set)
}

/// The most that the kernel keeps from being reclaimed in a group, where it is anything.
fn protection(limits: &CgroupSettings) -> Option<Bytes> {
    let at_most = |limit: Option<Limit<Bytes>>| limit.map(|limit| limit.or(Bytes(u64::MAX)));
    at_most(limits.memory_low).max(at_most(limits.memory_min)).filter(|at| *at > Bytes::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_soft_limit_of_nothing_or_of_everything_is_none() {
        let at = |mib| Some(Limit::At(Bytes::mib(mib)));
        let low = |memory_low| CgroupSettings { memory_low, ..CgroupSettings::default() };
        let soft = |memory_soft| CgroupSettings { memory_soft, ..CgroupSettings::default() };
        assert!(has_soft_limit(&low(at(1))) && has_soft_limit(&soft(at(1))));
        assert!(![low(None), low(at(0)), soft(Some(Limit::Max))].iter().any(has_soft_limit));
    }

    #[test]
    fn what_is_protected_is_the_larger_of_both_promises() {
        let at = |mib| Some(Limit::At(Bytes::mib(mib)));
        let both =
            |memory_low, memory_min| CgroupSettings { memory_low, memory_min, ..CgroupSettings::default() };
        assert_eq!(protection(&both(at(1), at(2))), Some(Bytes::mib(2)));
        assert_eq!(protection(&both(Some(Limit::Max), None)), Some(Bytes(u64::MAX)));
        assert_eq!((protection(&both(at(0), at(0))), protection(&both(None, None))), (None, None));
    }
}
