//! One tick: readings in, steps out. The hot path.

use super::calm::{self, CalmShare};
use super::explain::{CpuUtilization, ViewChange, ViewChangeReason};
use super::slots::{TickPeriod, ViewSlot};
use super::views::{OvercommitState, ViewTable};
use super::waterfill::{self, CpuDemand};
use super::{CpuRule, cpu, memory};
use elbowroom_types::cpuset::MAX_CPUS;
use elbowroom_types::sample::{NodeProperties, ReclaimCounters, Tick};
use elbowroom_types::unit::{Bytes, Micros, Millicpu};

/// How many different cpusets the waterfill rule looks at one by one; containers with yet others are filled as if they
/// could use all CPUs, and still bound by their own.
const MAX_FILLS: usize = 16;

/// What a tick says about the machine, kept to measure the next one from.
#[derive(Clone, Debug, Default)]
pub(super) struct MachineReadings {
    pub(super) now: Micros,
    pub(super) busy: Micros,
    mem_free: Bytes,
    mem_available: Option<Bytes>,
    per_cpu: Vec<Micros>,
    /// When `per_cpu` was taken, which need not be in every tick.
    per_cpu_at: Micros,
}

impl MachineReadings {
    /// Of a tick; without times per CPU.
    fn update(&mut self, tick: &Tick) {
        self.now = tick.now;
        self.busy = tick.busy;
        self.mem_free = tick.mem_free;
        self.mem_available = tick.mem_available;
    }

    /// Of the tick with which a CPU period begins.
    fn begin(&mut self, tick: &Tick) {
        self.update(tick);
        if !tick.busy_per_cpu.is_empty() {
            self.per_cpu.clone_from(&tick.busy_per_cpu);
            self.per_cpu_at = tick.now;
        }
    }
}

impl ViewTable {
    /// Moves containers inside their bounds; true where bounds may follow, as groups fell asleep or woke up.
    ///
    /// The first tick, and one whose clock ran backwards, is a place to measure from and decides nothing; one at the same
    /// instant as the last is left out. Where the machine's own counter ran backwards there is no telling what was unused,
    /// and effective CPU holds.
    pub(super) fn tick(&mut self, tick: &Tick, changes: &mut Vec<ViewChange>) -> bool {
        let mut last = self.last_readings.take().unwrap_or_default();
        let length = match tick.now.get().checked_sub(last.now.get()) {
            Some(0) if self.tick_count > 0 => {
                self.last_readings = Some(last);
                return false;
            }
            Some(length) if self.tick_count > 0 => Some(Micros(length)),
            _ => None,
        };
        self.tick_count += 1;
        self.mem_free = self.free_memory(tick, &last);
        let period = TickPeriod { tick: self.tick_count, cpu: self.cpu_period, now: tick.now, length };
        let elapsed = length.map(|_| tick.now.saturating_sub(self.cpu_began.now));
        let is_broken = length.is_none() || tick.busy < last.busy;
        let ends = is_broken || elapsed >= Some(self.cpu_period_length());
        let measured = elapsed.filter(|_| ends && !is_broken);
        if ends {
            self.period = elapsed;
            self.measure_slack(tick, measured);
        }
        last.update(tick);
        self.last_readings = Some(last);
        for i in self.unsampled.drain(..) {
            if let Some(slot) = self.slots[i as usize].as_mut() {
                // Who was taken over is not fresh any more, and not new.
                let is_new = std::mem::take(&mut slot.fresh);
                slot.new_until =
                    if is_new { tick.now.saturating_add(calm::RISE_AFTER) } else { Micros::ZERO };
            }
        }

        let mut woke = false;
        let climbs = measured.filter(|_| self.policy.policy != CpuRule::Waterfill);
        for (id, usage) in &tick.usage {
            let Some(&i) = self.index.get(id) else { continue };
            let Some(slot) = self.slots[i as usize].as_mut() else { continue };
            let pool = self.pools.get(slot.cpu_pool as usize);
            let cpus = pool.map_or(MAX_CPUS as u32, |pool| pool.count);
            let first = !slot.meter.was_read_in(period.cpu);
            if !slot.meter.read(usage, period, cpus) {
                continue;
            }
            if first {
                self.sampled_groups.push(i);
            }
            if self.policy.idle_siblings && slot.meter.last_active == tick.now && !self.active.contains(i) {
                self.active.set(i, true);
                woke = true;
            }
            if let (Some(length), Some(pool)) = (climbs, pool)
                && pool.has_slack
            {
                self.step_cpu(i, length, changes);
            }
            self.update_slot_sets(i);
        }
        if let Some(length) = climbs {
            self.shrink_without_slack(length, changes);
        } else if let Some(length) = measured {
            self.step_waterfill(length, changes);
        }
        if ends {
            self.sampled_groups.clear();
            self.cpu_period += 1;
            self.cpu_began.begin(tick);
        }
        if length.is_some() {
            self.step_memory(tick.reclaim.as_ref(), changes);
        }
        let dozed = self.policy.idle_siblings && self.retire_idle_groups(tick.now);
        woke || dozed
    }

    /// How long a CPU period is at least. The paper decides in every tick.
    const fn cpu_period_length(&self) -> Micros {
        match self.policy.policy {
            CpuRule::Paper => Micros::ZERO,
            CpuRule::Waterfill => calm::PERIOD,
        }
    }

    /// `p_slack` of the CPU period that ends, for the machine and for each different set of CPUs where times per CPU are there.
    fn measure_slack(&mut self, tick: &Tick, measured: Option<Micros>) {
        let last = &self.cpu_began;
        let Some((length, node)) = measured.zip(self.node.as_ref()) else {
            return self.pools.iter_mut().for_each(|pool| {
                (pool.slack, pool.has_slack) = (cpu::Slack::default(), false);
            });
        };
        let capacity = Micros(length.get().saturating_mul(node.online.count().into()));
        let unused = capacity.saturating_sub(tick.busy.saturating_sub(last.busy));
        let on_all = cpu::Slack { unused, capacity };

        let online = node.online.count() as usize;
        let elapsed = tick.now.saturating_sub(last.per_cpu_at);
        let has_per_cpu = self.policy.cpuset_slack
            && self.pools.len() > 1
            && (tick.busy_per_cpu.len(), last.per_cpu.len()) == (online, online)
            && elapsed > Micros::ZERO;
        if has_per_cpu {
            self.unused_per_cpu.clear();
            self.unused_per_cpu.resize(MAX_CPUS, Micros::ZERO);
            for (cpu, (now, before)) in node.online.iter().zip(tick.busy_per_cpu.iter().zip(&last.per_cpu)) {
                self.unused_per_cpu[cpu as usize] = elapsed.saturating_sub(now.saturating_sub(*before));
            }
        }
        for (i, pool) in self.pools.iter_mut().enumerate() {
            pool.slack = match has_per_cpu && i > 0 {
                true => cpu::Slack {
                    unused: pool.cpus.iter().map(|cpu| self.unused_per_cpu[cpu as usize]).sum(),
                    capacity: Micros(elapsed.get().saturating_mul(pool.count.into())),
                },
                false => on_all,
            };
            pool.has_slack = pool.slack.is_some();
        }
    }

    /// One period of Algorithm 1 for one container.
    fn step_cpu(&mut self, i: u32, length: Micros, changes: &mut Vec<ViewChange>) {
        let at = self.now();
        let Some(slot) = self.slots[i as usize].as_mut() else { return };
        let (Some(view), Some(pool)) = (slot.view.as_ref(), self.pools.get(slot.cpu_pool as usize)) else {
            return;
        };
        let (used, slack) = (slot.meter.used(self.cpu_period), pool.slack);
        let e = cpu::step(view.cpus, view.cpu_bounds(), used, length, slack, &self.policy);
        if e == view.cpus {
            return;
        }
        let because = if e > view.cpus {
            ViewChangeReason::Busy { load: CpuUtilization { used, period: length, cpus: view.cpus }, slack }
        } else {
            ViewChangeReason::NoSlack { slack, lower: view.cpus_lower }
        };
        changes.extend(slot.set_cpus(e, at, because));
    }

    /// The downward half of Algorithm 1, which concerns named and unnamed containers alike: without slack, everybody above
    /// LOWER gives one up. Those at LOWER already are not looked at.
    fn shrink_without_slack(&mut self, length: Micros, changes: &mut Vec<ViewChange>) {
        if self.pools.iter().all(|pool| pool.has_slack) {
            return;
        }
        for k in (0..self.above_lower.len()).rev() {
            let i = self.above_lower.at(k);
            let pool = self.slot(i).and_then(|slot| self.pools.get(slot.cpu_pool as usize));
            if pool.is_some_and(|pool| !pool.has_slack) {
                self.step_cpu(i, length, changes);
                self.update_slot_sets(i);
            }
        }
    }

    /// One period of the waterfill rule, for all containers. Of those that the tick did not name only the spot is looked at, unless
    /// their view changes.
    fn step_waterfill(&mut self, length: Micros, changes: &mut Vec<ViewChange>) {
        let (at, began) = (self.now(), self.cpu_began.now);
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut demands = std::mem::take(&mut self.demands);
        demands.clear();
        demands.resize(self.fill_nodes.len(), CpuDemand::default());
        for i in &self.sampled_groups {
            match self.sched_group_of.get(*i as usize).map_or(0, |place| *place as usize) {
                0 => {}
                place => demands[place] = self.cpu_demand(place, length),
            }
        }
        for p in 0..self.pools.len().min(MAX_FILLS) {
            let gets = self.allocations(p, &demands, &mut scratch);
            for (place, gets) in gets.iter().enumerate().skip(1) {
                let spot = self.fill_nodes[place];
                let Some((cpus, bounds)) = spot.shown else { continue };
                let filled_as = if (spot.pool as usize) < MAX_FILLS { spot.pool as usize } else { 0 };
                if filled_as != p {
                    continue;
                }
                let share = match *gets >= spot.cap {
                    true => Millicpu::cpus(Millicpu(spot.cap).cpus_ceil().into()).get(),
                    false => *gets,
                };
                let whole = |share| waterfill::whole_cpus(share, cpus).clamp(bounds.lower, bounds.upper);
                let idle = demands[place] == CpuDemand::default();
                if idle && whole(share) >= cpus {
                    continue;
                }
                let i = self.slot_of[place];
                let Some(slot) = self.slots[i as usize].as_mut() else { continue };
                let load = CpuUtilization { used: slot.meter.used(self.cpu_period), period: length, cpus };
                let busy = is_busy(&load, slot.meter.throttled(self.cpu_period), &self.policy);
                let CalmShare { most, least } = slot.shares.record(self.cpu_period, began, at, share);
                let (least, rises_after) = match at <= slot.new_until {
                    true => (share, length),
                    false => (least, calm::RISE_AFTER),
                };
                let (e, gets, over) = match whole(most) < cpus {
                    true => {
                        (whole(most), most, Micros(length.get().saturating_mul(calm::FALL_PERIODS as u64)))
                    }
                    false if busy => (whole(least).max(cpus), least, rises_after),
                    false => continue,
                };
                if e != cpus {
                    let because = ViewChangeReason::Fairness { load, gets: Millicpu(gets), over, busy };
                    changes.extend(slot.set_cpus(e, at, because));
                    self.fill_nodes[place].shown = Some((e, bounds));
                    self.update_slot_sets(i);
                }
            }
        }
        self.scratch = scratch;
        self.demands = demands;
    }

    /// What a place used, and asks for wherever its CPUs are.
    fn cpu_demand(&self, place: usize, length: Micros) -> CpuDemand {
        let rate = |time: Micros| {
            let milli = u128::from(time.get()) * 1_000 / u128::from(length.get().max(1));
            u64::try_from(milli).unwrap_or(u64::MAX)
        };
        let Some(slot) = self.slot(self.slot_of[place]) else { return CpuDemand::default() };
        let (used, throttled) = (slot.meter.used(self.cpu_period), slot.meter.throttled(self.cpu_period));
        if used == Micros::ZERO && throttled.is_none() {
            return CpuDemand::default();
        }
        let load =
            CpuUtilization { used, period: length, cpus: slot.view.map_or(u32::MAX, |view| view.cpus) };
        let asks = match is_busy(&load, throttled, &self.policy) {
            true => self.fill_nodes[place].cap,
            false => rate(used.saturating_add(throttled.unwrap_or(Micros::ZERO))),
        };
        CpuDemand { used: rate(used), requested: asks }
    }

    /// What every place gets of the CPUs of pool `p`. Groups are taken to use their CPUs evenly: what one wants here is its
    /// whole demand times the part of its CPUs that lies here.
    fn allocations<'a>(
        &self,
        p: usize,
        demands: &[CpuDemand],
        scratch: &'a mut waterfill::FillScratch,
    ) -> &'a [u64] {
        let pool = &self.pools[p];
        let common = |place: usize| -> (u32, u32) {
            let of = &self.pools[self.fill_nodes[place].pool as usize];
            (if p == 0 { of.count } else { of.cpus.intersection(&pool.cpus).count() }, of.count)
        };
        let part = |amount: u64, (here, all): (u32, u32)| match here == all {
            true => amount,
            false => (u128::from(amount) * u128::from(here) / u128::from(all.max(1))) as u64,
        };
        let caps = |place: usize| {
            let here = Millicpu::cpus(common(place).0.into());
            self.fill_nodes[place].quota.or(here).get()
        };
        let demand = |place: usize| match demands[place] {
            none if none == CpuDemand::default() => none,
            CpuDemand { used, requested: asks } => {
                let common = common(place);
                CpuDemand { used: part(used, common), requested: part(asks, common) }
            }
        };
        let busy = u128::from(pool.slack.capacity.saturating_sub(pool.slack.unused).get());
        let used = busy * u128::from(pool.count) * 1_000 / u128::from(pool.slack.capacity.get().max(1));
        let used = u64::try_from(used).unwrap_or(u64::MAX);
        waterfill::fill(&self.fill_nodes, caps, demand, used, scratch)
    }

    /// `c_free` and `p_free`: what could be had where the rule counts that and the tick knows it, else what is free. In the first tick that
    /// knows it nothing is known to have changed.
    fn free_memory(&self, tick: &Tick, last: &MachineReadings) -> [Bytes; 2] {
        let available = tick.mem_available.filter(|_| self.policy.reclaimable_memory);
        match available {
            _ if self.tick_count == 1 => [available.unwrap_or(tick.mem_free); 2],
            Some(available) => [available, last.mem_available.unwrap_or(available)],
            None => [tick.mem_free, last.mem_free],
        }
    }

    /// What reclaim cost since it was last looked at, where it hurts, and over what time.
    fn reclaim_cost(&mut self, now: &ReclaimCounters) -> Option<(memory::ReclaimCost, Micros)> {
        let at = self.now();
        let (since, before) = self.reclaim.replace((at, *now))?;
        let period = at.saturating_sub(since);
        memory::reclaim_cost(&before, now, period).map(|cost| (cost, period))
    }

    /// One period of Algorithm 2 for every container it can move: where memory is gone or reclaim hurts those above their soft limit,
    /// else those that fill what they have.
    fn step_memory(&mut self, reclaim: Option<&ReclaimCounters>, changes: &mut Vec<ViewChange>) {
        let Some(node) = self.node.take() else { return };
        let (at, free) = (self.now(), self.mem_free[0]);
        let hurt = reclaim.filter(|_| self.policy.reclaimable_memory).and_then(|now| self.reclaim_cost(now));
        if free <= node.low_mark {
            self.reset_memory(ViewChangeReason::Reclaim { free, low_mark: node.low_mark }, changes);
        } else if let Some((memory::ReclaimCost { lost, stalled }, period)) = hurt {
            self.reclaim_hurt_at = Some(at);
            self.reset_memory(ViewChangeReason::ReclaimHurts { lost, stalled, period }, changes);
        } else if self.reclaim_hurt_at.is_none_or(|hurt| at.saturating_sub(hurt) >= memory::REST) {
            self.grow_memory(&node, changes);
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
    fn grow_memory(&mut self, node: &NodeProperties, changes: &mut Vec<ViewChange>) {
        if self.pressed.len() == 0 {
            return;
        }
        let (at, free) = (self.now(), self.mem_free[0]);
        let (asked, left) = self.memory_requested_and_available(node);
        self.update_overcommitted(node);
        for k in (0..self.pressed.len()).rev() {
            let i = self.pressed.at(k);
            let Some(memory::MemoryStep::Grow { by, predict }) = self.memory_step(i, node) else {
                continue;
            };
            let least = |least: Bytes, n: u32| {
                let group = &self.overcommitted[n as usize];
                Some(least.min(memory::grant(by, group.requested, group.available(), node.page_size)?))
            };
            let Some(by) = memory::grant(by, asked, left, node.page_size)
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
        let sight = memory::MemorySamplePair {
            usage: slot.meter.memory(),
            usage_before: slot.meter.memory_before(self.tick_count),
            free: self.mem_free[0],
            free_before: self.mem_free[1],
        };
        Some(memory::step(view.memory, view.memory_bounds(), &sight, node, &self.policy))
    }

    /// How much all containers together ask for in this period, and how much can be promised to them.
    fn memory_requested_and_available(&self, node: &NodeProperties) -> (Bytes, Bytes) {
        let free = self.mem_free[0];
        if !self.policy.memory_promises {
            return (Bytes::ZERO, free);
        }
        let asks = |k| match self.memory_step(self.pressed.at(k), node) {
            Some(memory::MemoryStep::Grow { by, .. }) => by,
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
        let spoken_for = promised.saturating_add(reserved).saturating_add(node.high_mark);
        (asked, free.saturating_sub(spoken_for))
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

    /// Takes groups that used nothing for a while out of those awake; true where there were any.
    fn retire_idle_groups(&mut self, now: Micros) -> bool {
        let before = self.active.len();
        for k in (0..before).rev() {
            let i = self.active.at(k);
            let ran = self.slot(i).map_or(Micros::ZERO, |slot| slot.meter.last_active);
            if now.saturating_sub(ran) >= self.policy.idle_after {
                self.active.set(i, false);
            }
        }
        self.active.len() < before
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

/// Whether a container used all it has, or was held back by its quota while it did.
fn is_busy(load: &CpuUtilization, throttled: Option<Micros>, policy: &super::ViewPolicy) -> bool {
    let wanted = load.used.saturating_add(throttled.unwrap_or(Micros::ZERO));
    cpu::is_busy(wanted, load.cpus, load.period, policy)
}
