//! The CPU part of a tick: what was used and what was not in a CPU period, and the steps that follow from it.

use super::calm::{self, CalmShare};
use super::explain::{CpuUtilization, ViewChange, ViewChangeReason};
use super::views::ViewTable;
use super::waterfill::{self, CpuDemand};
use super::{CpuRule, cpu};
use elbowroom_types::cpuset::MAX_CPUS;
use elbowroom_types::sample::Tick;
use elbowroom_types::unit::{Micros, Millicpu};

/// How many different cpusets the waterfill rule looks at one by one; containers with yet others are filled as if they
/// could use all CPUs, and still bound by their own.
const MAX_FILLS: usize = 16;

impl ViewTable {
    /// How long a CPU period is at least. The paper decides in every tick.
    pub const fn cpu_period_length(&self) -> Micros {
        match self.policy.cpu {
            CpuRule::Paper => Micros::ZERO,
            CpuRule::Waterfill => calm::PERIOD,
        }
    }

    /// `p_slack` of the CPU period that ends, for the machine and for each different set of CPUs where times per CPU are there.
    pub(super) fn measure_slack(&mut self, tick: &Tick, measured: Option<Micros>) {
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
    pub(super) fn step_cpu(&mut self, i: u32, length: Micros, changes: &mut Vec<ViewChange>) {
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

    /// The downward half of Algorithm 1, which concerns named and unnamed containers alike: without slack, each one above
    /// LOWER gives one up. Those at LOWER already are not looked at.
    pub(super) fn shrink_without_slack(&mut self, length: Micros, changes: &mut Vec<ViewChange>) {
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
    pub(super) fn step_waterfill(&mut self, length: Micros, changes: &mut Vec<ViewChange>) {
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
}

/// Whether a container used all it has, or was held back by its quota while it did.
fn is_busy(load: &CpuUtilization, throttled: Option<Micros>, policy: &super::ViewRules) -> bool {
    let wanted = load.used.saturating_add(throttled.unwrap_or(Micros::ZERO));
    cpu::is_busy(wanted, load.cpus, load.period, policy)
}
