//! What groups use, every period.
//!
//! A group that used no CPU time and whose memory hardly moved is read half as often as before, down to every 1.5 s. A group
//! that did something is read every period again. A group whose parent was read in the same tick and used nothing has its
//! memory read only. What a parent used, and its children that were read do not explain, was used by a child that is backing
//! off. So some of those are read early: a container that wakes up is seen within a few periods, not after 1.5 s. Where the
//! explanation is a process directly in the parent (v1 allows it), looking is in vain and soon costs one read a period.
//!
//! With [`ActivitySource::Tracked`], the scheduler says through BPF which groups ran and for how long. Each period, the memory of those is
//! read from files. Once in 64 periods, the memory of each group is read in any case, and the CPU time of groups that ran since.
//!
//! A group inside a container is no view's: it is read every 1.5 s, whatever it does, and never early.
//!
//! Memory that hardly moves is read after 1, 2, 4 and then every 8 periods, also of a group that is busy; what moves is read every
//! period again. That is half of a busy group's system calls, and nearly all of them in an active tier.

use super::Sensor;
use super::meter::{GroupMeter, ReadContext, is_small_change};
use super::tree::{GroupEntry, GroupSlot, GroupTree};
use crate::activity::ActivitySource;
use crate::cgroup::CgroupLayout;
use elbowroom_types::sample::Tick;
use elbowroom_types::unit::Micros;

/// In an active tier, a group's files are still read once in this many periods.
const TRACKED_READ_PERIODS: u64 = 64;
/// Groups at the top that a peek reads at most.
const MAX_PEEKS: usize = 16;
/// How many children that back off are read early for one parent in one tick; halved with every look in vain.
const MAX_PROBES: usize = 64;

/// The best source that this build has and this kernel takes.
#[cfg(feature = "bpf")]
pub(super) fn choose_activity_source(layout: &CgroupLayout) -> ActivitySource {
    crate::bpf::detect_activity_source(layout)
}

/// Files: this build has nothing else.
#[cfg(not(feature = "bpf"))]
pub(super) fn choose_activity_source(_: &CgroupLayout) -> ActivitySource {
    ActivitySource::Files
}

/// What one tick cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TickCost {
    /// System calls.
    pub syscalls: u64,
    /// Groups of which a file was read.
    pub groups: u64,
    /// Of those, groups that were backing off and were read early.
    pub probes: u64,
}

impl Sensor {
    /// One period's measurements. `now` is the monotonic clock's. Counters never go back.
    pub fn tick(&mut self, now: Micros) -> Tick {
        self.last_tick_cost = TickCost::default();
        self.ticks += 1;
        let mut tick = self.read_machine(now);
        if self.tree.is_empty() {
            return tick;
        }
        let root = &mut self.tree.meters[GroupTree::ROOT];
        root.used = tick.busy.saturating_sub(root.usage.cpu);
        root.explained = Micros::ZERO;
        root.usage.cpu = tick.busy;
        root.tick = self.ticks;
        if let ActivitySource::Tracked(_) = self.source {
            self.read_active(&mut tick);
            self.read_due(&mut tick);
        } else {
            let busy = self.read_due(&mut tick);
            self.probe_sleepers(busy, &mut tick);
        }
        tick
    }

    /// The CPU time that all groups have used by `now`, and the tick that it is if none used any since: a few reads where a tick has many.
    /// `None` where it would take more than a few.
    pub fn peek(&mut self, now: Micros) -> Option<(Micros, Tick)> {
        let top = self.tree.get(GroupTree::ROOT)?.children.clone();
        if top.len() > MAX_PEEKS {
            return None;
        }
        let mut used = Micros::ZERO;
        for slot in top {
            let now = self.with_meter(slot, |entry, meter, on| meter.peek_cpu(&entry.path, on));
            used = used.saturating_add(now);
        }
        Some((used, self.read_busy_and_free(now)))
    }

    /// Reads the groups whose turn it is; returns those of them that have children and used time.
    fn read_due(&mut self, tick: &mut Tick) -> Vec<GroupSlot> {
        // Ticks come a little early or late: what is due within half a period is due now.
        let horizon = tick.now.saturating_add(Micros(self.config.period.get() / 2));
        let mut busy = Vec::new();
        for position in 0..self.tree.order().len() {
            let slot = self.tree.order()[position];
            if self.tree.due[slot] > horizon {
                continue;
            }
            let meter = &self.tree.meters[slot];
            if meter.tracked.is_some() {
                self.read_tracked(slot, tick);
                continue;
            }
            let parent = &self.tree.meters[meter.parent];
            // The root's number may be too coarse to say that no group ran.
            let idle = meter.was_read
                && meter.parent != GroupTree::ROOT
                && parent.tick == self.ticks
                && parent.used == Micros::ZERO;
            self.read_group(slot, !idle, tick);
            let meter = &self.tree.meters[slot];
            if meter.has_children && meter.used > Micros::ZERO {
                busy.push(slot);
            }
        }
        busy
    }

    /// Looks for the groups that used what `parents` used and no child's read explains.
    fn probe_sleepers(&mut self, mut parents: Vec<GroupSlot>, tick: &mut Tick) {
        if self.machine.is_precise() {
            parents.push(GroupTree::ROOT);
        }
        // Less is noise: the kernel adds a running task's time to a group and to those above it one after the other.
        let noise = Micros(self.config.period.get() / 48);
        while let Some(parent) = parents.pop() {
            let meter = &self.tree.meters[parent];
            let children = self.tree[parent].children.len();
            if children == 0 || meter.used.saturating_sub(meter.explained) <= noise {
                continue;
            }
            let (from, most) = (meter.probe_at, (MAX_PROBES >> meter.failed_probes).max(1));
            let (mut looked, mut found, mut passed) = (0, false, 0);
            while passed < children && looked < most {
                let child = self.tree[parent].children[(from + passed) % children];
                passed += 1;
                let skipped = self.tree.meters[child].tick == self.ticks || !self.tree[child].visible;
                if skipped || self.tree.is_inside_container(child) {
                    continue;
                }
                looked += 1;
                self.last_tick_cost.probes += 1;
                self.read_group(child, true, tick);
                if self.tree.meters[child].used > Micros::ZERO {
                    found = true;
                    parents.push(child);
                }
                let meter = &self.tree.meters[parent];
                if meter.used.saturating_sub(meter.explained) <= noise {
                    break;
                }
            }
            let meter = &mut self.tree.meters[parent];
            meter.probe_at = (from + passed) % children;
            meter.failed_probes =
                if found { 0 } else { (meter.failed_probes + 1).min(MAX_PROBES.ilog2() as u8) };
        }
    }

    /// Adds what the tier saw, to each group and to those above it, and reads the memory of groups that ran.
    fn read_active(&mut self, tick: &mut Tick) {
        let ActivitySource::Tracked(source) = &mut self.source else { return };
        let meters = &mut self.tree.meters;
        let ticks = self.ticks;
        let (mut ran, mut touched) = (Vec::new(), Vec::new());
        source.drain_active(&mut |slot, total| {
            let Some(meter) = meters.get_mut(slot as GroupSlot) else { return };
            let Some(last) = meter.tracked.replace(total) else {
                meter.tracked = None;
                return;
            };
            let used = total.saturating_sub(last);
            ran.push(slot as GroupSlot);
            let mut up = slot as GroupSlot;
            while up != GroupTree::ROOT {
                let meter = &mut meters[up];
                if meter.tick != ticks {
                    meter.tick = ticks;
                    meter.used = Micros::ZERO;
                    touched.push(up);
                }
                meter.ran = true;
                meter.used = meter.used.saturating_add(used);
                meter.usage.cpu = meter.usage.cpu.saturating_add(used);
                up = meter.parent;
            }
        });
        for slot in ran {
            self.mark_populated(slot);
        }
        for slot in touched {
            // Only its files tell how long a quota held a group back.
            self.read_files(slot, self.tree.meters[slot].has_quota);
            self.record_usage(slot, tick);
        }
    }

    /// Reads the files of a group that the tier follows: memory changes while no task runs, and the kernel's own CPU time has what
    /// the tier missed.
    fn read_tracked(&mut self, slot: GroupSlot, tick: &mut Tick) {
        let meter = &self.tree.meters[slot];
        let (before, first, ran) = (meter.usage, !meter.was_read, meter.ran);
        self.read_files(slot, ran || first);
        let round = Micros(self.config.period.get().saturating_mul(TRACKED_READ_PERIODS));
        self.tree.due[slot] = tick.now.saturating_add(stagger(round, self.config.period, slot));
        let meter = &mut self.tree.meters[slot];
        let changed = first || meter.usage != before;
        let ran_before = meter.tick != self.ticks && std::mem::take(&mut meter.ran);
        if changed {
            self.record_usage(slot, tick);
        }
        // A process runs once more when it ends, so the group may be empty by now.
        if ran_before && self.tree.meters[slot].populated {
            self.idle.insert(self.tree[slot].group.id);
        }
    }

    /// Reads one group and says when it is read again.
    fn read_group(&mut self, slot: GroupSlot, with_cpu: bool, tick: &mut Tick) {
        let before = self.tree.meters[slot].usage;
        let first = !self.tree.meters[slot].was_read;
        self.read_files(slot, with_cpu);
        let is_inside = self.tree.is_inside_container(slot);
        let meter = &mut self.tree.meters[slot];
        let used = meter.usage.cpu.saturating_sub(before.cpu);
        let quiet = used == Micros::ZERO && is_small_change(before.memory, meter.usage.memory);
        let changed = first || meter.usage != before;
        meter.tick = self.ticks;
        meter.used = used;
        meter.explained = Micros::ZERO;
        let parent = meter.parent;
        let was_slow = meter.interval >= self.config.backoff;
        // A top-level group with children says for all of them whether any of them ran.
        meter.interval = match !quiet && !is_inside || meter.parent == GroupTree::ROOT && meter.has_children {
            true => self.config.period,
            false => {
                Micros((meter.interval.get() * 2).max(self.config.period.get())).min(self.config.backoff)
            }
        };
        self.tree.due[slot] = tick.now.saturating_add(stagger(meter.interval, self.config.period, slot));
        let is_slow = meter.interval >= self.config.backoff;
        let above = &mut self.tree.meters[parent];
        above.explained = above.explained.saturating_add(used);
        if changed {
            self.record_usage(slot, tick);
        }
        if used > Micros::ZERO {
            self.mark_populated(slot);
        } else if is_slow && !was_slow && self.tree.meters[slot].populated {
            self.idle.insert(self.tree[slot].group.id);
        }
    }

    fn read_files(&mut self, slot: GroupSlot, with_cpu: bool) {
        if !self.tree.meters[slot].is_due(with_cpu, self.ticks) {
            return;
        }
        self.last_tick_cost.groups += 1;
        let ticks = self.ticks;
        let read = |entry: &GroupEntry, meter: &mut GroupMeter, on: &mut ReadContext<'_>| {
            meter.read(entry, with_cpu, ticks, on).then_some(entry.group.id)
        };
        let gone = self.with_meter(slot, read);
        self.removed.extend(gone);
    }

    /// Reads something of a group.
    fn with_meter<T>(
        &mut self,
        slot: GroupSlot,
        read: impl FnOnce(&GroupEntry, &mut GroupMeter, &mut ReadContext<'_>) -> T,
    ) -> T {
        let (entry, meter) = self.tree.entry_and_meter(slot);
        let mut on = ReadContext {
            layout: &self.layout,
            budget: &mut self.budget,
            warnings: &mut self.warnings,
            syscalls: &mut self.last_tick_cost.syscalls,
        };
        read(entry, meter, &mut on)
    }

    /// Puts the group's usage into the tick, once.
    fn record_usage(&mut self, slot: GroupSlot, tick: &mut Tick) {
        let meter = &mut self.tree.meters[slot];
        if meter.tick_index.0 == self.ticks {
            tick.usage[meter.tick_index.1].1 = meter.usage;
        } else {
            meter.tick_index = (self.ticks, tick.usage.len());
            tick.usage.push((meter.id, meter.usage));
        }
    }

    /// Sets the source that says which groups ran, from now on.
    pub fn set_source(&mut self, source: ActivitySource) {
        self.source = source;
        for slot in 0..self.tree.slots() {
            self.track(slot);
        }
    }

    /// Has the tier follow a group, if there is one that can.
    pub(super) fn track(&mut self, slot: GroupSlot) {
        let Some(inode) = self.tree.get(slot).filter(|e| e.visible).map(|e| e.inodes[0]) else { return };
        let tracked = match &mut self.source {
            ActivitySource::Tracked(source) if slot != GroupTree::ROOT && inode != 0 => {
                source.track(inode, slot as u32)
            }
            _ => false,
        };
        let meter = &mut self.tree.meters[slot];
        meter.tracked = tracked.then_some(Micros::ZERO);
        meter.ran = tracked;
        self.tree.due[slot] = Micros::ZERO;
    }

    /// Has the tier forget a group.
    pub(super) fn untrack(&mut self, slot: GroupSlot) {
        if let (ActivitySource::Tracked(source), Some(_)) =
            (&mut self.source, self.tree.meters[slot].tracked.take())
        {
            source.untrack(self.tree[slot].seen[0]);
        }
    }
}

/// Long intervals end up to a half early, by group: a thousand that fell idle together are not all read in one tick.
fn stagger(interval: Micros, period: Micros, slot: GroupSlot) -> Micros {
    if interval.get() < period.get().saturating_mul(8) {
        return interval;
    }
    Micros(interval.get() - interval.get() / 64 * (slot as u64 % 32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_intervals_are_spread_and_never_by_more_than_half() {
        let period = Micros::millis(24);
        assert_eq!(stagger(Micros::millis(96), period, 31), Micros::millis(96));
        for slot in 0..100 {
            let spread = stagger(Micros::millis(1_500), period, slot);
            assert!(spread > Micros::millis(750) && spread <= Micros::millis(1_500), "{slot} {spread}");
        }
    }
}
