//! What the machine's memory could yield, and what taking it has cost: for views of memory, which move only where some group has a
//! soft limit. Elsewhere this is read only now and then, to show the machine.

use super::Sensor;
use super::meter::is_small_change;
use super::tree::{GroupEntry, GroupSlot, GroupTree};
use crate::{cgroup, proc, zfs};
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::{CgroupSettings, ReclaimCounters};
use elbowroom_types::unit::{Bytes, Limit, Micros};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// How often reclaim is looked at: `/proc/vmstat` costs 50 us.
const RECLAIM_PERIOD: Micros = Micros::millis(250);
/// How often `MemAvailable` is read where no view of memory can move.
const IDLE_PERIOD: Micros = Micros::secs(1);
/// How many protected groups' `memory.stat` is read each time that reclaim is looked at, in turn.
const PROTECTED_READS: usize = 4;
/// Of how many groups at their own limit it is read then, at 30 to 100 us each, and only while files' pages come back.
const AT_LIMIT_READS: usize = 40;
/// So many of them are those to which most came back; the others are read in turn.
const AT_LIMIT_BUSIEST: usize = 32;
/// A group with less is not at its limit, however low that is: it has hardly a page to lose.
const LEAST_AT_LIMIT: Bytes = Bytes::mib(4);

/// What is known of a group at its own limit.
#[derive(Clone, Copy, Debug, Default)]
struct GroupAtLimit {
    /// Files' pages that had come back when it was read last.
    came_back: u64,
    /// How many came back from one look to the next; `u64::MAX` until it was read twice, which comes first.
    rate: u64,
    /// The look at which it was read last; 0 for never.
    look: u64,
}

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
    at_limits: BTreeMap<CgroupId, GroupAtLimit>,
    /// How often reclaim was looked at.
    looks: u64,
    reclaim_at: Micros,
    idle_at: Micros,
    /// What ZFS's cache gives back: to say so, ZFS adds up a hundred counters of each CPU.
    zfs_cache: Bytes,
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
        if reclaim_is_due || !soft_limits {
            self.machine.available.zfs_cache = zfs::evictable_cache(&self.root);
        }
        let info = self.proc_file("/proc/meminfo", proc::meminfo);
        let available = self.warnings.ok_or_warn(info).and_then(|info| info.mem_available);
        let available = available.map(|available| available.saturating_add(self.machine.available.zfs_cache));
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
        let (usage, limits) = (self.tree.meters[slot].usage.memory, &self.tree[slot].group.limits);
        let limit = limits.memory_max.into_iter().chain(limits.memory_high).filter_map(Limit::value).min();
        usage >= LEAST_AT_LIMIT && limit.is_some_and(|limit| usage >= limit || is_small_change(limit, usage))
    }

    /// The groups at their own limit; of those inside each other the outermost, which counts for all.
    fn groups_at_limits(&self) -> Vec<GroupSlot> {
        let mut next = self.tree.get(GroupTree::ROOT).map_or(Vec::new(), |root| root.children.clone());
        let mut found = Vec::new();
        while let Some(slot) = next.pop() {
            if self.is_at_limit(slot) {
                found.push(slot);
            } else {
                next.extend(&self.tree[slot].children);
            }
        }
        found
    }

    /// [`ReclaimCounters::refaulted_at_limits`]. What came back to a group counts if it was read at the last look too: never what came
    /// back at another time, or to a group that was not read.
    fn read_at_limits(&mut self, refaulted_files: u64) -> u64 {
        let kept = &mut self.machine.available;
        kept.looks += 1;
        let look = kept.looks;
        let last = std::mem::replace(&mut kept.refaulted_files, refaulted_files);
        let few = ReclaimCounters::FEW_REFAULTS * RECLAIM_PERIOD.get() / 1_000_000;
        if refaulted_files.saturating_sub(last) <= few {
            return kept.refaulted_at_limits;
        }
        let before = std::mem::take(&mut kept.at_limits);
        let known = |slot: GroupSlot| before.get(&self.tree[slot].group.id).copied().unwrap_or_default();
        let mut groups: Vec<_> =
            self.groups_at_limits().into_iter().map(|slot| (slot, known(slot))).collect();
        groups.sort_by_key(|(_, known)| Reverse(known.rate));
        if let Some(others) = groups.get_mut(AT_LIMIT_BUSIEST..) {
            others.sort_by_key(|(_, known)| known.look);
        }
        for (n, (slot, mut known)) in groups.into_iter().enumerate() {
            let GroupEntry { group, path, .. } = &self.tree[slot];
            if n < AT_LIMIT_READS {
                self.last_tick_cost.syscalls += 3;
                let read = self.warnings.ok_or_warn(cgroup::refaulted_files(&self.layout, path)).flatten();
                let Some(came_back) = read else { continue };
                let grew = came_back.saturating_sub(known.came_back);
                if known.look > 0 && known.look + 1 == look {
                    self.machine.available.refaulted_at_limits += grew;
                }
                let rate = if known.look == 0 { u64::MAX } else { grew / (look - known.look) };
                known = GroupAtLimit { came_back, rate, look };
            }
            self.machine.available.at_limits.insert(group.id, known);
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
