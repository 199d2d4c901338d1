//! The bounds of all containers, computed anew when a setting changes: a pass over all groups.

use super::explain::{ViewChange, ViewChangeReason, ViewDelta};
use super::hierarchy::{self, CpuEntitlement, SchedGroup};
use super::slots::ViewSlot;
use super::views::{CpuPool, OvercommitState, ViewTable};
use super::{View, calm, cpu, memory, waterfill};
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::{CgroupProperties, CgroupSettings};
use elbowroom_types::unit::{Bytes, Limit, Micros, Millicpu};
use std::collections::HashMap;

impl ViewTable {
    /// Computes all bounds anew and brings every container inside its own.
    pub(super) fn recompute_bounds(&mut self, changes: &mut Vec<ViewChange>) {
        let Some(node) = self.node.take() else { return };
        self.build_sched_tree();
        self.entitlements = hierarchy::entitlements(&node.online, &self.sched_groups);
        self.find_pools();
        for i in 0..self.slots.len() as u32 {
            if self.slot(i).is_some_and(|slot| slot.group.container.is_none() && slot.view.is_some()) {
                self.drop_view(i, changes);
            }
        }
        let at = self.now();
        for place in 1..self.sched_groups.len() {
            let (i, entitlement) = (self.slot_of[place], self.entitlements[place]);
            let Some(slot) = self.slot(i) else { continue };
            if slot.group.container.is_none() {
                continue;
            }
            let own =
                memory::bounds(&self.memory_limits(&slot.group), node.numa_memory(self.mems(&slot.group)));
            let memory = own.capped_at(slot.ceiling);
            let swap_max = self.swap_max(&slot.group);
            if let Some(slot) = self.slots[i as usize].as_mut() {
                slot.soft = (own.soft < own.hard).then_some(own.soft);
                slot.cpu_pool = self.pool_of[place];
                slot.quota = entitlement.quota;
                changes.extend(slot.apply_bounds(&entitlement, memory, swap_max, at).into_iter().flatten());
            }
            self.update_slot_sets(i);
        }
        self.find_overcommitted(node.mem_total);
        self.fill_nodes.clear();
        for place in 0..self.sched_groups.len() {
            let view = self.slot(self.slot_of[place]).and_then(|slot| slot.view.as_ref());
            let spot = waterfill::FillNode::new(
                &self.sched_groups[place],
                &self.entitlements[place],
                self.pool_of[place],
                view,
            );
            self.fill_nodes.push(spot);
        }
        self.node = Some(node);
    }

    /// Finds the groups whose memory is sold twice, and which of them each container is in.
    fn find_overcommitted(&mut self, mem_total: Bytes) {
        self.overcommitted.clear();
        let mut below = vec![Bytes::ZERO; self.sched_groups.len()];
        for place in (1..self.sched_groups.len()).rev() {
            let own = self.slot(self.slot_of[place]).and_then(|slot| slot.view);
            let all = below[place].saturating_add(own.map_or(Bytes::ZERO, |view| view.memory_hard));
            let parent = &mut below[self.sched_groups[place].parent as usize];
            *parent = parent.saturating_add(all);
        }
        let mut innermost: Vec<Option<u32>> = vec![None; self.sched_groups.len()];
        for place in 1..self.sched_groups.len() {
            let (i, above) = (self.slot_of[place], innermost[self.sched_groups[place].parent as usize]);
            let Some(slot) = self.slots[i as usize].as_mut() else { continue };
            slot.overcommitted = above;
            innermost[place] = above;
            if let Some(Limit::At(limit)) = slot.group.limits.memory_max
                && limit < mem_total.min(below[place])
                && self.policy.hierarchy
            {
                innermost[place] = Some(self.overcommitted.len() as u32);
                self.overcommitted.push(OvercommitState {
                    outer: above,
                    slot: i,
                    limit,
                    committed: Bytes::ZERO,
                    requested: Bytes::ZERO,
                });
            }
        }
    }

    /// The oversold groups around a container, upwards.
    pub(super) fn overcommitted_ancestors(&self, i: u32) -> impl Iterator<Item = u32> {
        let group = |n: u32| self.overcommitted.get(n as usize);
        std::iter::successors(self.slot(i).and_then(|slot| slot.overcommitted), move |n| group(*n)?.outer)
    }

    /// Orders groups by depth and parent, so that siblings are neighbours and parents come first.
    ///
    /// A group whose parent is not known stands at the top beside the root. Without [`ViewRules::hierarchy`] only containers
    /// have a place, all at the top, whether they have processes or not: the paper sums over all containers.
    fn build_sched_tree(&mut self) {
        let parent = |slot: &ViewSlot| slot.group.parent.and_then(|id| self.index.get(&id)).copied();
        let live = self.slots.iter().enumerate().filter_map(|(i, slot)| Some((i as u32, slot.as_ref()?)));
        let mut order: Vec<(usize, Option<u32>, CgroupId, u32)> = match self.policy.hierarchy {
            true => live
                .map(|(i, slot)| (self.ancestors(&slot.group).count(), parent(slot), slot.group.id, i))
                .collect(),
            false => live
                .filter(|(_, slot)| slot.group.container.is_some())
                .map(|(i, slot)| (1, None, slot.group.id, i))
                .collect(),
        };
        order.sort_unstable();

        self.sched_group_of.clear();
        self.sched_group_of.resize(self.slots.len(), 0);
        self.slot_of.clear();
        self.slot_of.push(u32::MAX);
        self.sched_groups.clear();
        self.sched_groups.push(SchedGroup { competes: true, ..SchedGroup::default() });
        for (_, parent, _, i) in order {
            let Some(slot) = self.slots[i as usize].as_ref() else { continue };
            self.sched_group_of[i as usize] = self.sched_groups.len() as u32;
            self.slot_of.push(i);
            self.sched_groups.push(SchedGroup {
                parent: parent.map_or(0, |parent| self.sched_group_of[parent as usize]),
                share: slot.group.limits.cpu_share,
                competes: slot.group.populated || !self.policy.hierarchy,
                quota: Some(cpu::quota(slot.group.limits.cpu_max)),
                cpuset: slot.group.limits.cpuset,
            });
        }
        if self.policy.idle_siblings {
            self.exclude_idle_groups();
        }
    }

    /// Gives each different set of CPUs a number.
    fn find_pools(&mut self) {
        let mut known = HashMap::new();
        self.pools.clear();
        self.pool_of.clear();
        for (place, entitlement) in self.sched_groups.iter().zip(&self.entitlements) {
            let above = place.parent as usize;
            let pool = match self.pool_of.get(above) {
                Some(pool) if self.entitlements[above].cpus == entitlement.cpus => *pool,
                _ => *known.entry(entitlement.cpus).or_insert(self.pools.len() as u32),
            };
            if pool as usize == self.pools.len() {
                self.pools.push(CpuPool::new(entitlement.cpus));
            }
            self.pool_of.push(pool);
        }
    }

    /// A group is idle if it was read, used nothing for a while, and everything below it is idle. One that was never read
    /// is not known to be idle.
    fn exclude_idle_groups(&mut self) {
        let mut awake_below = vec![None; self.sched_groups.len()];
        for place in (1..self.sched_groups.len()).rev() {
            let i = self.slot_of[place];
            let is_read = self.slot(i).is_some_and(|slot| slot.meter.was_read());
            let is_awake = match awake_below[place] {
                None => !is_read || self.active.contains(i),
                Some(below) => below || self.active.contains(i),
            };
            self.sched_groups[place].competes &= is_awake;
            let above = &mut awake_below[self.sched_groups[place].parent as usize];
            *above = Some(is_awake || above.unwrap_or(false));
        }
    }

    fn memory_limits(&self, group: &CgroupProperties) -> memory::ViewMemoryLimits {
        let own = memory::ViewMemoryLimits {
            low: group.limits.memory_low,
            soft: group.limits.memory_soft,
            ..memory::ViewMemoryLimits::default()
        };
        let tighter =
            |a: Option<Limit<Bytes>>, b: Option<Limit<Bytes>>| a.into_iter().chain(b).reduce(Limit::min);
        self.ancestors(group).fold(own, |settings, group| memory::ViewMemoryLimits {
            max: tighter(settings.max, group.limits.memory_max),
            high: tighter(settings.high, group.limits.memory_high),
            ..settings
        })
    }

    /// Swap that a group may use. v1 limits it together with memory: what is left beside all the memory that the group may have.
    fn swap_max(&self, group: &CgroupProperties) -> Option<Limit<Bytes>> {
        let least = |limit: fn(&CgroupSettings) -> Option<Limit<Bytes>>| {
            self.ancestors(group).filter_map(|group| limit(&group.limits)).reduce(Limit::min)
        };
        let memory = least(|limits| limits.memory_max).unwrap_or(Limit::Max);
        let beside_memory = least(|limits| limits.memsw_max).map(|both| match both {
            Limit::At(both) => Limit::At(both.saturating_sub(memory.or(both))),
            Limit::Max => Limit::Max,
        });
        least(|limits| limits.swap_max).into_iter().chain(beside_memory).reduce(Limit::min)
    }
}

impl CpuPool {
    fn new(cpus: CpuSet) -> Self {
        Self { cpus, slack: cpu::Slack::default(), has_slack: false, count: cpus.count() }
    }
}

impl ViewSlot {
    /// The view inside new bounds; what changed about CPU and about memory.
    ///
    /// Until the first tick a container follows LOWER and its soft limit. Later, effective CPU moves only as far as the
    /// bounds push it; effective memory that never grew follows the soft limit, which is the container's own setting.
    fn apply_bounds(
        &mut self,
        entitlement: &CpuEntitlement,
        memory: memory::MemoryBounds,
        swap_max: Option<Limit<Bytes>>,
        at: Micros,
    ) -> [Option<ViewChange>; 2] {
        let cpu = cpu::bounds(entitlement.quota, entitlement.cpus.count(), entitlement.fair);
        let old = self.view;
        let kept = old.filter(|_| !self.fresh);
        let cpus = kept.map_or(cpu.lower, |view| view.cpus.clamp(cpu.lower, cpu.upper));
        let present = entitlement.cpus.lowest(cpu.upper);
        let view = View {
            cpus,
            millicpu: entitlement.quota.or(Millicpu::cpus(cpus.into())),
            cpus_lower: cpu.lower,
            cpus_upper: cpu.upper,
            online: present.lowest(cpus),
            present,
            possible: CpuSet::first_n(entitlement.cpus.iter().last().map_or(1, |last| last + 1)),
            memory: kept
                .filter(|view| view.memory > view.memory_soft)
                .map_or(memory.soft, |view| view.memory.clamp(memory.soft, memory.hard)),
            memory_soft: memory.soft,
            memory_hard: memory.hard,
            swap_max,
        };
        self.view = Some(view);
        let Some(old) = old else {
            self.new_until = at.saturating_add(calm::RISE_AFTER);
            let cpu = ViewDelta::Cpu { from: Millicpu::ZERO, to: view.millicpu };
            let memory = ViewDelta::Memory { from: Bytes::ZERO, to: view.memory };
            return [cpu, memory].map(|what| Some(self.record(what, at, ViewChangeReason::Appeared)));
        };
        let shows = |view: &View| (view.millicpu, view.online, view.present, view.possible);
        let amounts = |view: &View| (view.memory, view.memory_soft, view.memory_hard, view.swap_max);
        let cpu_change = (shows(&old) != shows(&view)).then(|| {
            let what = ViewDelta::Cpu { from: old.millicpu, to: view.millicpu };
            self.record(what, at, ViewChangeReason::CpuBounds(cpu))
        });
        let memory_change = (amounts(&old) != amounts(&view)).then(|| {
            let what = ViewDelta::Memory { from: old.memory, to: view.memory };
            self.record(what, at, ViewChangeReason::MemoryBounds(memory))
        });
        [cpu_change, memory_change]
    }
}
