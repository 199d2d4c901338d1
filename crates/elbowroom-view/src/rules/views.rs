//! The views of all containers of one machine: what [`HostEvent`]s do to them. A setting leads to `bounds.rs`, a tick to `tick.rs`.

use super::explain::{ViewChange, ViewChangeReason, ViewDelta};
use super::file_refaults::FileRefaults;
use super::harm_mark::HarmMark;
use super::hierarchy::{CpuEntitlement, SchedGroup};
use super::slots::{SlotIndex, SlotSet, ViewSlot};
use super::tick::MachineReadings;
use super::{View, ViewRules, cpu, memory, waterfill};
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::id::CgroupId;
use elbowroom_types::memory::ViewCeiling;
use elbowroom_types::sample::{CgroupProperties, HostEvent, NodeProperties, ReclaimCounters};
use elbowroom_types::unit::{Bytes, Micros, Millicpu};

/// The views of all containers of one machine.
///
/// A function of the events it was given: the same events give the same views and the same changes, in the same order.
/// Settings ([`HostEvent::Node`], [`HostEvent::Group`], [`HostEvent::Gone`]) move the bounds and cost a pass over all groups; a
/// [`HostEvent::Tick`] moves containers inside them. By [`super::CpuRule::Waterfill`] a tick costs a pass over all groups too. By the
/// other rules, and for memory, it costs a few comparisons for each group it names and for each container that is above LOWER without
/// slack, pressed for memory, or above its soft limit during reclaim. While one is pressed, it also costs an addition for each
/// container inside a group whose memory is sold twice. The containers left out by that are those for which the algorithms say: stay.
#[derive(Clone, Debug)]
pub struct ViewTable {
    pub(super) policy: ViewRules,
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
    /// Groups that used CPU time lately; kept for [`ViewRules::idle_siblings`] only.
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
    pub(super) file_refaults: FileRefaults,
    /// When reclaim last hurt, what must be left since, and what was left when no harm was seen last.
    pub(super) reclaim_hurt_at: Option<Micros>,
    pub(super) harm_mark: HarmMark,
    pub(super) left_unharmed: Bytes,
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

impl ViewTable {
    /// No machine and no groups yet.
    pub fn new(policy: ViewRules) -> Self {
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
            file_refaults: FileRefaults::default(),
            reclaim_hurt_at: None,
            harm_mark: HarmMark::default(),
            left_unharmed: Bytes::ZERO,
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
                HostEvent::MemoryTick(_) | HostEvent::MemoryDone(_) | HostEvent::Probe(_) => false,
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

    /// The CPUs that a group may run on, whatever quotas let it use of them.
    pub fn cpuset(&self, id: CgroupId) -> Option<CpuSet> {
        let place = *self.sched_group_of.get(*self.index.get(&id)? as usize)?;
        Some(self.entitlements.get(place as usize)?.cpus)
    }

    /// A group as it was last described, container or not.
    pub fn group(&self, id: CgroupId) -> Option<&CgroupProperties> {
        Some(&self.slot(*self.index.get(&id)?)?.group)
    }

    /// The NUMA nodes that a group takes memory from, as it or the nearest group above that knows says; `None` where none does.
    pub fn mems(&self, group: &CgroupProperties) -> Option<CpuSet> {
        self.ancestors(group).find_map(|group| group.limits.mems)
    }

    /// All containers that have a view.
    pub fn containers(&self) -> impl Iterator<Item = (CgroupId, &CgroupProperties, &View)> {
        self.slots.iter().flatten().filter_map(|slot| Some((slot.group.id, &slot.group, slot.view.as_ref()?)))
    }

    /// Lets a container that no tick has seen go on from what it was shown by an agent before, as far as its bounds allow. A
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
    pub(super) fn ancestors<'a>(
        &'a self,
        group: &'a CgroupProperties,
    ) -> impl Iterator<Item = &'a CgroupProperties> {
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

    /// Takes in how much of its memory a container should want.
    fn apply_view_ceiling(&mut self, view_ceiling: &ViewCeiling) -> bool {
        let slot =
            self.index.get(&view_ceiling.group).and_then(|i| self.slots.get_mut(*i as usize)?.as_mut());
        slot.is_some_and(|slot| {
            std::mem::replace(&mut slot.ceiling, view_ceiling.ceiling) != view_ceiling.ceiling
        })
    }

    pub(super) fn drop_view(&mut self, i: u32, changes: &mut Vec<ViewChange>) {
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
