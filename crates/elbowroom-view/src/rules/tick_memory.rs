//! The memory part of a tick: what reclaim costs, and which containers may grow.

use super::explain::{GrowthHold, ViewChange, ViewChangeReason};
use super::harm_mark::HarmMark;
use super::memory;
use super::slots::ViewSlot;
use super::tick::MachineReadings;
use super::views::{OvercommitState, ViewTable};
use elbowroom_types::sample::{NodeProperties, ReclaimCounters, Tick};
use elbowroom_types::unit::{Bytes, Micros};

/// What containers that fill their memory ask for in one period.
struct GrowthRequests {
    /// How much all together, beyond what they use already.
    asked: Bytes,
    /// How much can be promised to them.
    left: Bytes,
    /// How much could, if growth had never hurt.
    left_without_mark: Bytes,
}

impl GrowthRequests {
    /// Whether more would be granted but for the mark.
    fn is_marked(&self, page_size: Bytes) -> bool {
        let granted = |left| memory::grant((self.asked, Bytes::ZERO), (self.asked, left), page_size);
        granted(self.left_without_mark) > granted(self.left)
    }
}

impl ViewTable {
    /// `c_free` and `p_free`: what could be had where the rule counts that and the tick knows it, else what is free. In the first tick that
    /// knows it nothing is known to have changed.
    pub(super) fn free_memory(&self, tick: &Tick, last: &MachineReadings) -> [Bytes; 2] {
        let available = tick.mem_available.filter(|_| self.policy.reclaimable_memory);
        match available {
            _ if self.tick_count == 1 => [available.unwrap_or(tick.mem_free); 2],
            Some(available) => [available, last.mem_available.unwrap_or(available)],
            None => [tick.mem_free, last.mem_free],
        }
    }

    /// What reclaim cost since it was last looked at, where it hurts, and over what time.
    pub(super) fn reclaim_cost(&mut self, now: &ReclaimCounters) -> Option<(memory::ReclaimCost, Micros)> {
        let at = self.now();
        let (since, before) = self.reclaim.replace((at, *now))?;
        let period = at.saturating_sub(since);
        let gives = self.above_soft.len() > 0;
        let by_refaults = self.file_refaults.look((&before, now), (at, period), gives);
        let hurt = memory::reclaim_cost(&before, now, period).map(|cost| (cost, period)).or(by_refaults);
        if hurt.is_some() && gives {
            let views =
                (0..self.above_soft.len()).filter_map(|k| self.slot(self.above_soft.at(k))?.view.as_ref());
            let given = views.map(|view| view.memory.saturating_sub(view.memory_soft)).sum();
            self.harm_mark = HarmMark::new(self.left_unharmed, given);
        } else if !self.file_refaults.are_many(now) {
            self.left_unharmed = self.mem_free[0];
        }
        hurt
    }

    /// Why nothing may grow: reclaim hurt, or more files' pages come back than usual.
    fn rest(&self) -> Option<GrowthHold> {
        let ago = |then: Micros| self.now().saturating_sub(then);
        let hurt = self.reclaim_hurt_at.map(ago).filter(|ago| *ago < memory::REST);
        let many = self.reclaim.is_some_and(|(_, now)| self.file_refaults.are_many(&now));
        let since = self
            .file_refaults
            .since()
            .filter(|_| many)
            .map(|since| GrowthHold::FilesComeBack { over: ago(since) });
        since.or(hurt.map(|ago| GrowthHold::Hurt { ago }))
    }

    /// What keeps the memory of a container that fills it from growing, where it is what growth costs others.
    pub(super) fn growth_hold(&self, i: u32, node: &NodeProperties) -> Option<GrowthHold> {
        if !self.pressed.contains(i) {
            return None;
        }
        let asks = || matches!(self.memory_step(i, node), Some(memory::MemoryStep::Grow { by, held, .. }) if by > held);
        let is_marked = || asks() && self.growth_requests(node).is_marked(node.page_size);
        let marked = || GrowthHold::HurtBefore { free: self.mem_free[0], mark: self.harm_mark.left() };
        self.rest().or_else(|| is_marked().then(marked))
    }

    /// One period of Algorithm 2 for every container it can move: where memory is gone or reclaim hurts those above their soft limit,
    /// else those that fill what they have.
    pub(super) fn step_memory(
        &mut self,
        reclaim: Option<&ReclaimCounters>,
        length: Micros,
        changes: &mut Vec<ViewChange>,
    ) {
        let Some(node) = self.node.take() else { return };
        let (at, free) = (self.now(), self.mem_free[0]);
        let hurt = reclaim.filter(|_| self.policy.reclaimable_memory).and_then(|now| self.reclaim_cost(now));
        if free <= node.low_mark {
            self.reset_memory(ViewChangeReason::Reclaim { free, low_mark: node.low_mark }, changes);
        } else if let Some((memory::ReclaimCost { lost, stalled }, period)) = hurt {
            self.reclaim_hurt_at = Some(at);
            self.reset_memory(ViewChangeReason::ReclaimHurts { lost, stalled, period }, changes);
        } else if self.pressed.len() > 0 && self.rest().is_none() {
            self.grow_memory(&node, length, changes);
        }
        self.node = Some(node);
    }

    /// Every container that is above its soft limit goes back to it.
    fn reset_memory(&mut self, because: ViewChangeReason, changes: &mut Vec<ViewChange>) {
        let at = self.now();
        for k in (0..self.above_soft.len()).rev() {
            let i = self.above_soft.at(k);
            let Some(slot) = self.slots[i as usize].as_mut() else { continue };
            let soft = slot.view.as_ref().map_or(Bytes::ZERO, |view| view.memory_soft);
            changes.extend(slot.set_memory(soft, at, because));
            self.update_slot_sets(i);
        }
    }

    /// Containers that fill what they have grow.
    fn grow_memory(&mut self, node: &NodeProperties, length: Micros, changes: &mut Vec<ViewChange>) {
        let (at, free) = (self.now(), self.mem_free[0]);
        let requests = self.growth_requests(node);
        if requests.is_marked(node.page_size) {
            self.harm_mark.decay(length);
        }
        self.update_overcommitted(node);
        for k in (0..self.pressed.len()).rev() {
            let i = self.pressed.at(k);
            let Some(memory::MemoryStep::Grow { by, held, predict }) = self.memory_step(i, node) else {
                continue;
            };
            let least = |least: Bytes, n: u32| {
                let group = &self.overcommitted[n as usize];
                let left = (group.requested, group.available());
                Some(least.min(memory::grant((by, Bytes::ZERO), left, node.page_size)?))
            };
            let Some(by) = memory::grant((by, held), (requests.asked, requests.left), node.page_size)
                .and_then(|by| self.overcommitted_ancestors(i).try_fold(by, least))
            else {
                continue;
            };
            let Some(slot) = self.slots[i as usize].as_mut() else { continue };
            let Some(of) = slot.view.as_ref().map(|view| view.memory) else { continue };
            let usage = slot.meter.memory();
            let because = ViewChangeReason::Pressed { usage, of, free, predict, high_mark: node.high_mark };
            changes.extend(slot.set_memory(of.saturating_add(by), at, because));
            self.update_slot_sets(i);
        }
    }

    /// What Algorithm 2 decides for one container.
    fn memory_step(&self, i: u32, node: &NodeProperties) -> Option<memory::MemoryStep> {
        let slot = self.slot(i)?;
        let view = slot.view.as_ref()?;
        let samples = memory::MemorySamplePair {
            usage: slot.meter.memory(),
            usage_before: slot.meter.memory_before(self.tick_count),
            free: self.mem_free[0],
            free_before: self.mem_free[1],
        };
        Some(memory::step(view.memory, view.memory_bounds(), &samples, node, &self.policy))
    }

    /// What is asked for in this period, and what of it can be promised.
    fn growth_requests(&self, node: &NodeProperties) -> GrowthRequests {
        let free = self.mem_free[0];
        if !self.policy.memory_promises {
            return GrowthRequests { asked: Bytes::ZERO, left: free, left_without_mark: free };
        }
        let asks = |k| match self.memory_step(self.pressed.at(k), node) {
            Some(memory::MemoryStep::Grow { by, held, .. }) => by.saturating_sub(held),
            _ => Bytes::ZERO,
        };
        let promised = |k| {
            let slot = self.slot(self.above_soft.at(k))?;
            let view = slot.view.as_ref()?;
            Some(memory::promised(view.memory, view.memory_bounds(), slot.meter.memory(), &self.policy))
        };
        let reserved = |slot: &ViewSlot| memory::reserved(slot.soft, slot.meter.memory());
        let asked: Bytes = (0..self.pressed.len()).map(asks).sum();
        let promised: Bytes = (0..self.above_soft.len()).filter_map(promised).sum();
        let reserved: Bytes = match self.policy.reclaimable_memory {
            true => self.slots.iter().flatten().map(reserved).sum(),
            false => Bytes::ZERO,
        };
        let unreserved = free.saturating_sub(promised.saturating_add(reserved));
        GrowthRequests {
            asked,
            left: unreserved.saturating_sub(node.high_mark.max(self.harm_mark.left())),
            left_without_mark: unreserved.saturating_sub(node.high_mark),
        }
    }

    /// What the containers of each oversold group have taken and ask for.
    fn update_overcommitted(&mut self, node: &NodeProperties) {
        if self.overcommitted.is_empty() {
            return;
        }
        let mut groups = std::mem::take(&mut self.overcommitted);
        groups.iter_mut().for_each(|group| (group.committed, group.requested) = (Bytes::ZERO, Bytes::ZERO));
        let innermost = |i: u32| self.slot(i).and_then(|slot| slot.overcommitted);
        for i in (0..self.slots.len() as u32).filter(|i| innermost(*i).is_some()) {
            let takes = self.committed_memory(i);
            for_each_overcommitted(&mut groups, innermost(i), |group| {
                group.committed = group.committed.saturating_add(takes)
            });
        }
        for k in 0..self.pressed.len() {
            let i = self.pressed.at(k);
            if let Some(memory::MemoryStep::Grow { by, .. }) = self.memory_step(i, node) {
                for_each_overcommitted(&mut groups, innermost(i), |group| {
                    group.requested = group.requested.saturating_add(by)
                });
            }
        }
        self.overcommitted = groups;
    }

    /// What a container takes of the oversold groups around it.
    pub(super) fn committed_memory(&self, i: u32) -> Bytes {
        let Some(slot) = self.slot(i) else { return Bytes::ZERO };
        let Some(view) = slot.view.as_ref() else { return Bytes::ZERO };
        memory::committed(view.memory, slot.soft, slot.meter.memory())
    }
}

/// Calls `each` for an oversold group and those around it.
fn for_each_overcommitted(
    groups: &mut [OvercommitState],
    from: Option<u32>,
    mut each: impl FnMut(&mut OvercommitState),
) {
    let mut next = from;
    while let Some(group) = next.and_then(|n| groups.get_mut(n as usize)) {
        each(group);
        next = group.outer;
    }
}
