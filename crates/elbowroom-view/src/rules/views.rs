//! The views of all containers of one machine: what [`HostEvent`]s do to them.

use super::explain::{self, ViewChange, ViewChangeReason, ViewDelta, ViewExplanation, ViewInputs};
use super::hierarchy::{self, CpuEntitlement, SchedGroup};
use super::slots::{SlotIndex, SlotSet, ViewSlot};
use super::tick::MachineReadings;
use super::{View, ViewPolicy, calm, cpu, memory, waterfill};
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::id::CgroupId;
use elbowroom_types::memory::ViewCeiling;
use elbowroom_types::sample::{CgroupProperties, CgroupSettings, HostEvent, NodeProperties, ReclaimCounters};
use elbowroom_types::unit::{Bytes, Limit, Micros, Millicpu};
use std::collections::HashMap;

/// The views of all containers of one machine.
///
/// A function of the events it was given: the same events give the same views and the same changes, in the same order.
/// Settings ([`HostEvent::Node`], [`HostEvent::Group`], [`HostEvent::Gone`]) move the bounds and cost a pass over all groups; a
/// [`HostEvent::Tick`] moves containers inside them. By [`super::CpuRule::Waterfill`] it costs a pass over all groups too; by the other rules,
/// and for memory, a few comparisons for each group it names and for each container
/// that is above LOWER without slack, pressed for memory, or above its soft limit during reclaim, and while one is pressed
/// an addition for each that is inside a group whose memory is sold twice. The containers left out by that are those for
/// which the algorithms say: stay.
#[derive(Clone, Debug)]
pub struct ViewTable {
    pub(super) policy: ViewPolicy,
    /// `None` until the machine is known; then there are views.
    pub(super) node: Option<NodeProperties>,
    pub(super) slots: Vec<Option<ViewSlot>>,
    free_slots: Vec<u32>,
    pub(super) index: SlotIndex,

    /// The tree of competition, with the slot of each place; place 0 is the machine and has none.
    pub(super) sched_groups: Vec<SchedGroup>,
    pub(super) slot_of: Vec<u32>,
    /// The place of each slot; 0 for a slot without one.
    pub(super) sched_group_of: Vec<u32>,
    pub(super) entitlements: Vec<CpuEntitlement>,
    /// The different sets of CPUs that groups may use, and which of them is each place's. Pool 0 is all online CPUs.
    pub(super) pools: Vec<CpuPool>,
    pub(super) pool_of: Vec<u32>,
    /// What [`super::CpuRule::Waterfill`] needs of each place in every period.
    pub(super) fill_nodes: Vec<waterfill::FillNode>,
    /// Groups whose memory is sold twice.
    pub(super) overcommitted: Vec<OvercommitState>,

    /// Containers whose effective CPU is above LOWER.
    pub(super) above_lower: SlotSet,
    /// Containers whose effective memory is above the soft limit.
    pub(super) above_soft: SlotSet,
    /// Containers that fill their effective memory and are below the hard limit.
    pub(super) pressed: SlotSet,
    /// Groups that used CPU time lately; kept for [`ViewPolicy::idle_siblings`] only.
    pub(super) active: SlotSet,
    /// Containers that no tick has seen.
    pub(super) unsampled: Vec<u32>,

    pub(super) last_readings: Option<MachineReadings>,
    /// How many ticks there were.
    pub(super) tick_count: u64,
    /// Number of the CPU period that runs: of one tick by the paper, of several by [`super::CpuRule::Waterfill`].
    pub(super) cpu_period: u64,
    /// What the machine said when that began.
    pub(super) cpu_began: MachineReadings,
    /// How long the one before was; `None` where there was nothing to measure from.
    pub(super) period: Option<Micros>,
    /// `c_free` and `p_free`.
    pub(super) mem_free: [Bytes; 2],
    /// Reclaim as last read, and when.
    pub(super) reclaim: Option<(Micros, ReclaimCounters)>,
    /// When reclaim last hurt.
    pub(super) reclaim_hurt_at: Option<Micros>,
    /// Groups that ticks of the running CPU period named.
    pub(super) sampled_groups: Vec<u32>,
    pub(super) scratch: waterfill::FillScratch,
    pub(super) demands: Vec<waterfill::CpuDemand>,
    /// Per CPU number, the time it went unused in the last period.
    pub(super) unused_per_cpu: Vec<Micros>,
}

/// A set of CPUs that some group may use.
#[derive(Clone, Debug)]
pub(super) struct CpuPool {
    pub(super) cpus: CpuSet,
    /// CPU time of the last period, on these CPUs or, where that is not known, on all; nothing of nothing before it.
    pub(super) slack: cpu::Slack,
    /// Whether it counts as some.
    pub(super) has_slack: bool,
    /// How many CPUs there are in it.
    pub(super) count: u32,
}

/// A group with a limit that is less than what the containers below it may take together.
#[derive(Clone, Copy, Debug)]
pub(super) struct OvercommitState {
    /// The next one around it.
    pub(super) outer: Option<u32>,
    /// Its slot.
    pub(super) slot: u32,
    pub(super) limit: Bytes,
    /// What of it the containers have taken or been promised; current where some container asks for more.
    pub(super) committed: Bytes,
    /// What they ask for together in this period.
    pub(super) requested: Bytes,
}

impl OvercommitState {
    /// What can be promised.
    pub(super) fn available(&self) -> Bytes {
        self.limit.saturating_sub(self.committed)
    }
}

impl CpuPool {
    fn new(cpus: CpuSet) -> Self {
        Self { cpus, slack: cpu::Slack::default(), has_slack: false, count: cpus.count() }
    }
}

impl ViewTable {
    /// No machine and no groups yet.
    pub fn new(policy: ViewPolicy) -> Self {
        Self {
            policy: policy.in_force(),
            node: None,
            slots: Vec::new(),
            free_slots: Vec::new(),
            index: SlotIndex::default(),
            sched_groups: Vec::new(),
            slot_of: Vec::new(),
            sched_group_of: Vec::new(),
            entitlements: Vec::new(),
            pools: Vec::new(),
            pool_of: Vec::new(),
            fill_nodes: Vec::new(),
            sampled_groups: Vec::new(),
            overcommitted: Vec::new(),
            above_lower: SlotSet::default(),
            above_soft: SlotSet::default(),
            pressed: SlotSet::default(),
            active: SlotSet::default(),
            unsampled: Vec::new(),
            last_readings: None,
            tick_count: 0,
            cpu_period: 1,
            cpu_began: MachineReadings::default(),
            period: None,
            mem_free: [Bytes::ZERO; 2],
            reclaim: None,
            reclaim_hurt_at: None,
            scratch: waterfill::FillScratch::default(),
            demands: Vec::new(),
            unused_per_cpu: Vec::new(),
        }
    }

    /// Takes in one event; returns what changed in the views of containers, one entry for CPU and one for memory.
    ///
    /// LOWER alone may move without an entry: nothing shows it. A container that appears or goes has entries too, see
    /// [`ViewDelta`]. Nothing can fail: events that name unknown groups, or a machine without a CPU, are left out, and numbers
    /// that cannot be true saturate.
    pub fn apply(&mut self, event: &HostEvent) -> Vec<ViewChange> {
        self.apply_all([event])
    }

    /// [`Self::apply`] for several events that are there at once, such as those at start: bounds are computed once for
    /// each run of settings, not once for each event.
    pub fn apply_all<'a>(&mut self, events: impl IntoIterator<Item = &'a HostEvent>) -> Vec<ViewChange> {
        let mut changes = Vec::new();
        let mut stale = false;
        for event in events {
            stale |= match event {
                HostEvent::Node(node) => self.apply_node(node),
                HostEvent::Group(group) => self.apply_group(group),
                HostEvent::Gone(id) => self.remove_group(*id, &mut changes),
                HostEvent::Tick(tick) => {
                    if std::mem::take(&mut stale) {
                        self.recompute_bounds(&mut changes);
                    }
                    self.tick(tick, &mut changes)
                }
                HostEvent::Disk(_)
                | HostEvent::DiskGone(_)
                | HostEvent::DiskTick(_)
                | HostEvent::IoLimits(_) => false,
                HostEvent::ViewCeiling(view_ceiling) => self.apply_view_ceiling(view_ceiling),
                HostEvent::MemoryTick(_) | HostEvent::MemoryDone(_) | HostEvent::Heard(_) => false,
            };
        }
        if stale {
            self.recompute_bounds(&mut changes);
        }
        changes
    }

    /// The view of a container; `None` for other groups, and as long as the machine is not known.
    pub fn get(&self, id: CgroupId) -> Option<&View> {
        self.slot(*self.index.get(&id)?)?.view.as_ref()
    }

    /// A group as it was last described, container or not.
    pub fn group(&self, id: CgroupId) -> Option<&CgroupProperties> {
        Some(&self.slot(*self.index.get(&id)?)?.group)
    }

    /// The NUMA nodes that a group takes memory from, as it or the nearest group above that knows says; `None` where nobody does.
    pub fn mems(&self, group: &CgroupProperties) -> Option<CpuSet> {
        self.ancestors(group).find_map(|group| group.limits.mems)
    }

    /// All containers that have a view.
    pub fn containers(&self) -> impl Iterator<Item = (CgroupId, &CgroupProperties, &View)> {
        self.slots.iter().flatten().filter_map(|slot| Some((slot.group.id, &slot.group, slot.view.as_ref()?)))
    }

    /// Lets a container that no tick has seen go on from what it was shown by somebody before, as far as its bounds allow: a
    /// view that fell to LOWER and the soft limit, and grew again, would have programs adapt to nothing.
    pub fn resume(&mut self, id: CgroupId, cpus: u32, memory: Bytes) {
        let (at, Some(&i)) = (self.now(), self.index.get(&id)) else { return };
        let Some(slot) = self.slots[i as usize].as_mut().filter(|slot| slot.fresh) else { return };
        let Some(view) = slot.view else { return };
        let cpus = cpus.clamp(view.cpus_lower, view.cpus_upper);
        let memory = memory.clamp(view.memory_soft, view.memory_hard);
        slot.fresh = false;
        if cpus != view.cpus {
            slot.set_cpus(cpus, at, ViewChangeReason::Resumed);
        }
        if memory != view.memory {
            slot.set_memory(memory, at, ViewChangeReason::Resumed);
        }
        self.update_slot_sets(i);
        self.update_fill_node(i);
    }

    /// What a container's view is made of, and its last changes.
    pub fn explain(&self, id: CgroupId) -> Option<ViewExplanation> {
        let i = *self.index.get(&id)?;
        let (slot, node) = (self.slot(i)?, self.node.as_ref()?);
        let view = slot.view?;
        let place = self.slot_of.iter().skip(1).position(|s| *s == i)? + 1;
        let standing = self.entitlements.get(place)?;
        let path = |group: &CgroupProperties| group.path.clone();
        let inputs = ViewInputs {
            online: node.online.count(),
            cpu_share: slot.group.limits.cpu_share,
            weight: standing.weight,
            weight_sum: standing.weight_sum,
            fair: standing.fair.millicpu(),
            quota: standing.quota,
            quota_of: standing.quota.value().and_then(|_| {
                let sets_it = |group: &&CgroupProperties| cpu::quota(group.limits.cpu_max) == standing.quota;
                self.ancestors(&slot.group).find(sets_it).map(path)
            }),
            cpuset: standing.cpus,
            memory_hard_of: {
                let hard = Some(Limit::At(view.memory_hard));
                let lends = slot.ceiling == Limit::At(view.memory_hard);
                let sets_it =
                    self.ancestors(&slot.group).find(|group| group.limits.memory_max == hard).map(path);
                let mems = self.mems(&slot.group).unwrap_or_default();
                let is_theirs =
                    view.memory_hard < node.mem_total && view.memory_hard == node.numa_memory(Some(mems));
                sets_it
                    .or_else(|| lends.then(|| "the memory governor, while others use it".to_owned()))
                    .or_else(|| is_theirs.then(|| format!("NUMA nodes {mems}")))
            },
            period: self.period,
            used: slot.meter.used(self.cpu_period - 1),
            throttled: slot.meter.throttled(self.cpu_period - 1),
            slack: self
                .pools
                .get(slot.cpu_pool as usize)
                .map(|pool| pool.slack)
                .filter(|s| s.capacity > Micros::ZERO),
            usage: slot.meter.memory(),
            usage_before: slot.meter.memory_before(self.tick_count),
            oversold: self.tightest_overcommitted(i),
            mem_free: self.mem_free[0],
            mem_free_before: self.mem_free[1],
            low_mark: node.low_mark,
            high_mark: node.high_mark,
        };
        let rule = inputs.rule(&view);
        let changes = slot.history.iter().copied().collect();
        Some(ViewExplanation { id, path: slot.group.path.clone(), view, inputs, rule, changes })
    }

    /// The oversold group with the least left of those around a container, and what that is now.
    fn tightest_overcommitted(&self, i: u32) -> Option<explain::OvercommittedCgroup> {
        let left = |n: u32| {
            let group = self.overcommitted[n as usize];
            let inside =
                (0..self.slots.len() as u32).filter(|i| self.overcommitted_ancestors(*i).any(|m| m == n));
            Some(explain::OvercommittedCgroup {
                path: self.slot(group.slot)?.group.path.clone(),
                limit: group.limit,
                left: group.limit.saturating_sub(inside.map(|i| self.committed_memory(i)).sum()),
            })
        };
        self.overcommitted_ancestors(i).filter_map(left).min_by_key(|group| group.left)
    }

    /// When the last tick was, zero before the first.
    pub(super) fn now(&self) -> Micros {
        self.last_readings.as_ref().map_or(Micros::ZERO, |last| last.now)
    }

    pub(super) fn slot(&self, i: u32) -> Option<&ViewSlot> {
        self.slots.get(i as usize)?.as_ref()
    }

    /// Puts a container into the sets that say which ticks concern it.
    pub(super) fn update_slot_sets(&mut self, i: u32) {
        let Some(slot) = self.slot(i) else { return };
        let (above, grown, pressed) = slot.view.as_ref().map_or((false, false, false), |view| {
            let pressed = view.memory < view.memory_hard
                && slot.meter.was_read()
                && memory::is_pressed(slot.meter.memory(), view.memory, &self.policy);
            (view.cpus > view.cpus_lower, view.memory > view.memory_soft, pressed)
        });
        self.above_lower.set(i, above);
        self.above_soft.set(i, grown);
        self.pressed.set(i, pressed);
    }

    /// The group and those above it, upwards. Ends: [`Self::apply_group`] lets no circle in.
    fn ancestors<'a>(&'a self, group: &'a CgroupProperties) -> impl Iterator<Item = &'a CgroupProperties> {
        std::iter::successors(Some(group), |group| Some(&self.slot(*self.index.get(&group.parent?)?)?.group))
    }

    fn apply_node(&mut self, node: &NodeProperties) -> bool {
        if node.online.is_empty() || self.node.as_ref() == Some(node) {
            return false;
        }
        self.node = Some(node.clone());
        true
    }

    /// True where bounds may follow. A parent that would close a circle is not taken over.
    fn apply_group(&mut self, group: &CgroupProperties) -> bool {
        if let Some(known) = self.index.get(&group.id).and_then(|i| self.slots[*i as usize].as_mut())
            && known.group == *group
        {
            return false;
        }
        let mut group = group.clone();
        let in_a_circle = group.parent == Some(group.id)
            || self
                .ancestors(&group)
                .skip(1)
                .any(|above| above.parent == Some(group.id) || above.id == group.id);
        if in_a_circle {
            group.parent = None;
        }
        match self.index.get(&group.id) {
            Some(i) => {
                if let Some(slot) = self.slots[*i as usize].as_mut() {
                    slot.group = group;
                }
            }
            None => {
                let i = self.free_slots.pop().unwrap_or_else(|| {
                    self.slots.push(None);
                    self.slots.len() as u32 - 1
                });
                self.index.insert(group.id, i);
                self.unsampled.push(i);
                self.slots[i as usize] = Some(ViewSlot::new(group));
            }
        }
        true
    }

    /// Takes out a group and everything below it.
    fn remove_group(&mut self, id: CgroupId, changes: &mut Vec<ViewChange>) -> bool {
        if !self.index.contains_key(&id) {
            return false;
        }
        let is_below = |slot: &ViewSlot| self.ancestors(&slot.group).any(|group| group.id == id);
        let gone: Vec<u32> =
            (0..self.slots.len() as u32).filter(|i| self.slot(*i).is_some_and(is_below)).collect();
        for i in gone {
            self.drop_view(i, changes);
            self.active.set(i, false);
            if let Some(slot) = self.slots[i as usize].take() {
                self.index.remove(&slot.group.id);
                self.free_slots.push(i);
            }
        }
        let slots = &self.slots;
        self.unsampled.retain(|i| slots[*i as usize].is_some());
        true
    }

    /// Brings what a period needs of a container's place to what its view is.
    fn update_fill_node(&mut self, i: u32) {
        let view = self.slot(i).and_then(|slot| slot.view);
        let place = self.sched_group_of.get(i as usize).map_or(0, |place| *place as usize);
        if let Some(spot) = self.fill_nodes.get_mut(place).filter(|_| place > 0) {
            spot.shown = view.map(|view| (view.cpus, view.cpu_bounds()));
        }
    }

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
            let (i, standing) = (self.slot_of[place], self.entitlements[place]);
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
                slot.quota = standing.quota;
                changes.extend(slot.apply_bounds(&standing, memory, swap_max, at).into_iter().flatten());
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
    /// A group whose parent is not known stands at the top beside the root. Without [`ViewPolicy::hierarchy`] only containers
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
        for (place, standing) in self.sched_groups.iter().zip(&self.entitlements) {
            let above = place.parent as usize;
            let pool = match self.pool_of.get(above) {
                Some(pool) if self.entitlements[above].cpus == standing.cpus => *pool,
                _ => *known.entry(standing.cpus).or_insert(self.pools.len() as u32),
            };
            if pool as usize == self.pools.len() {
                self.pools.push(CpuPool::new(standing.cpus));
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

    /// Takes in how much of its memory a container should want.
    fn apply_view_ceiling(&mut self, view_ceiling: &ViewCeiling) -> bool {
        let slot =
            self.index.get(&view_ceiling.group).and_then(|i| self.slots.get_mut(*i as usize)?.as_mut());
        slot.is_some_and(|slot| {
            std::mem::replace(&mut slot.ceiling, view_ceiling.ceiling) != view_ceiling.ceiling
        })
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

    fn drop_view(&mut self, i: u32, changes: &mut Vec<ViewChange>) {
        let at = self.now();
        if let Some(slot) = self.slots[i as usize].as_mut()
            && let Some(view) = slot.view.take()
        {
            let cpu = ViewDelta::Cpu { from: view.millicpu, to: Millicpu::ZERO };
            let memory = ViewDelta::Memory { from: view.memory, to: Bytes::ZERO };
            changes.extend([cpu, memory].map(|what| slot.record(what, at, ViewChangeReason::Gone)));
        }
        self.update_slot_sets(i);
    }
}

/// The first `n` of the CPUs that a container may run on, and the highest: programs size arrays by the highest possible number
/// and index them by the CPU that they are on.
fn possible_cpus(may_run_on: &CpuSet, n: u32) -> CpuSet {
    may_run_on.lowest(n).iter().chain(may_run_on.iter().last()).collect()
}

impl ViewSlot {
    /// The view inside new bounds; what changed about CPU and about memory.
    ///
    /// Until the first tick a container follows LOWER and its soft limit. Later, effective CPU moves only as far as the
    /// bounds push it; effective memory that never grew follows the soft limit, which is the container's own setting.
    fn apply_bounds(
        &mut self,
        standing: &CpuEntitlement,
        memory: memory::MemoryBounds,
        swap_max: Option<Limit<Bytes>>,
        at: Micros,
    ) -> [Option<ViewChange>; 2] {
        let cpu = cpu::bounds(standing.quota, standing.cpus.count(), standing.fair);
        let old = self.view;
        let kept = old.filter(|_| !self.fresh);
        let cpus = kept.map_or(cpu.lower, |view| view.cpus.clamp(cpu.lower, cpu.upper));
        let possible = possible_cpus(&standing.cpus, cpu.upper);
        let view = View {
            cpus,
            millicpu: standing.quota.or(Millicpu::cpus(cpus.into())),
            cpus_lower: cpu.lower,
            cpus_upper: cpu.upper,
            online: possible.lowest(cpus),
            possible,
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
        let shows = |view: &View| (view.millicpu, view.online, view.possible);
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
