//! One period: readings in, steps out. The hot path.

use super::explain::{Because, Change, Load};
use super::slots::Period;
use super::views::{Oversold, Views};
use super::waterfill::{self, Demand};
use super::{Rule, cpu, memory};
use elbowroom_types::cpuset::MAX_CPUS;
use elbowroom_types::sample::{Node, Tick};
use elbowroom_types::unit::{Bytes, Micros, Millicpu};

/// How many different cpusets the waterfill rule looks at one by one; containers with yet others are filled as if they
/// could use all CPUs, and still bound by their own.
const MAX_FILLS: usize = 16;

/// What a tick says about the machine, kept to measure the next one from.
#[derive(Clone, Debug, Default)]
pub(super) struct Readings {
    pub(super) now: Micros,
    pub(super) busy: Micros,
    pub(super) mem_free: Bytes,
    per_cpu: Vec<Micros>,
    /// When `per_cpu` was taken, which need not be in every tick.
    per_cpu_at: Micros,
}

impl Readings {
    fn take(&mut self, tick: &Tick) {
        self.now = tick.now;
        self.busy = tick.busy;
        self.mem_free = tick.mem_free;
        if !tick.busy_per_cpu.is_empty() {
            self.per_cpu.clone_from(&tick.busy_per_cpu);
            self.per_cpu_at = tick.now;
        }
    }
}

impl Views {
    /// Moves containers inside their bounds; true where bounds may follow, as groups fell asleep or woke up.
    ///
    /// The first tick, and one whose clock ran backwards, is a place to measure from and decides nothing; one at the same
    /// instant as the last is left out. Where the machine's own counter ran backwards there is no telling what was unused,
    /// and effective CPU holds.
    pub(super) fn tick(&mut self, tick: &Tick, changes: &mut Vec<Change>) -> bool {
        let mut last = self.last.take().unwrap_or_default();
        let length = match tick.now.get().checked_sub(last.now.get()) {
            Some(0) if self.stamp > 0 => {
                self.last = Some(last);
                return false;
            }
            Some(length) if self.stamp > 0 => Some(Micros(length)),
            _ => None,
        };
        self.stamp += 1;
        self.period = length;
        self.mem_free_before = if self.stamp > 1 { last.mem_free } else { tick.mem_free };
        let period = Period { stamp: self.stamp, now: tick.now, length };
        let measured = length.filter(|_| tick.busy >= last.busy);
        self.measure_slack(tick, &last, measured);
        last.take(tick);
        self.last = Some(last);
        for i in self.fresh.drain(..) {
            if let Some(slot) = self.slots[i as usize].as_mut() {
                slot.fresh = false;
            }
        }

        let mut woke = false;
        self.named.clear();
        let climbs = measured.filter(|_| self.policy.policy != Rule::Waterfill);
        for (id, usage) in &tick.usage {
            let Some(&i) = self.index.get(id) else { continue };
            let Some(slot) = self.slots[i as usize].as_mut() else { continue };
            let pool = self.pools.get(slot.pool as usize);
            let cpus = pool.map_or(MAX_CPUS as u32, |pool| pool.count);
            if !slot.meter.read(usage, period, cpus) {
                continue;
            }
            self.named.push(i);
            if self.policy.idle_siblings && slot.meter.ran == tick.now && !self.awake.contains(i) {
                self.awake.set(i, true);
                woke = true;
            }
            if let (Some(length), Some(pool)) = (climbs, pool)
                && pool.has_slack
            {
                self.step_cpu(i, length, changes);
            }
            self.file(i);
        }
        if let Some(length) = climbs {
            self.descend(length, changes);
        } else if let Some(length) = measured {
            self.fill(length, changes);
        }
        if length.is_some() {
            self.step_memory(tick.mem_free, changes);
        }
        let dozed = self.policy.idle_siblings && self.let_doze(tick.now);
        woke || dozed
    }

    /// `p_slack`, for the machine and for each different set of CPUs where times per CPU are there.
    fn measure_slack(&mut self, tick: &Tick, last: &Readings, measured: Option<Micros>) {
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
            pool.has_slack = pool.slack.is_some(self.policy.slack_tolerance);
        }
    }

    /// One period of Algorithm 1 for one container.
    fn step_cpu(&mut self, i: u32, length: Micros, changes: &mut Vec<Change>) {
        let at = self.now();
        let Some(slot) = self.slots[i as usize].as_mut() else { return };
        let (Some(view), Some(pool)) = (slot.view.as_ref(), self.pools.get(slot.pool as usize)) else {
            return;
        };
        let (used, slack) = (slot.meter.used(self.stamp), pool.slack);
        let e = cpu::step(view.cpus, view.cpu_bounds(), used, length, slack, &self.policy);
        if e == view.cpus {
            return;
        }
        let because = if e > view.cpus {
            Because::Busy { load: Load { used, period: length, cpus: view.cpus }, slack }
        } else {
            Because::NoSlack { slack, tolerance: self.policy.slack_tolerance, lower: view.cpus_lower }
        };
        changes.extend(slot.set_cpus(e, at, because));
    }

    /// The downward half of Algorithm 1, which concerns named and unnamed containers alike: without slack, everybody above
    /// LOWER gives one up. Those at LOWER already are not looked at.
    fn descend(&mut self, length: Micros, changes: &mut Vec<Change>) {
        if self.pools.iter().all(|pool| pool.has_slack) {
            return;
        }
        for k in (0..self.above.len()).rev() {
            let i = self.above.at(k);
            let pool = self.slot(i).and_then(|slot| self.pools.get(slot.pool as usize));
            if pool.is_some_and(|pool| !pool.has_slack) {
                self.step_cpu(i, length, changes);
                self.file(i);
            }
        }
    }

    /// One period of the waterfill rule, for all containers. Of those that the tick did not name only the spot is looked at, unless
    /// their view changes.
    fn fill(&mut self, length: Micros, changes: &mut Vec<Change>) {
        let at = self.now();
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut demands = std::mem::take(&mut self.demands);
        demands.clear();
        demands.resize(self.spots.len(), Demand::default());
        for i in &self.named {
            match self.place_of.get(*i as usize).map_or(0, |place| *place as usize) {
                0 => {}
                place => demands[place] = self.demand(place, length),
            }
        }
        for p in 0..self.pools.len().min(MAX_FILLS) {
            let gets = self.gets(p, &demands, &mut scratch);
            for (place, gets) in gets.iter().enumerate().skip(1) {
                let spot = self.spots[place];
                let Some((cpus, bounds)) = spot.shown else { continue };
                let filled_as = if (spot.pool as usize) < MAX_FILLS { spot.pool as usize } else { 0 };
                if filled_as != p {
                    continue;
                }
                let share = match *gets >= spot.cap {
                    true => Millicpu(spot.cap).cpus_ceil(),
                    false => waterfill::whole_cpus(*gets, cpus),
                };
                let idle = demands[place] == Demand::default();
                if idle && cpus.min(share).clamp(bounds.lower, bounds.upper) == cpus {
                    continue;
                }
                let i = self.slot_of[place];
                let Some(slot) = self.slots[i as usize].as_mut() else { continue };
                let load = Load { used: slot.meter.used(self.stamp), period: length, cpus };
                let busy = is_busy(&load, slot.meter.throttled(self.stamp), &self.policy);
                let e = if busy { share } else { cpus.min(share) }.clamp(bounds.lower, bounds.upper);
                if e != cpus {
                    let because = Because::Fairness { load, gets: Millicpu(*gets), busy };
                    changes.extend(slot.set_cpus(e, at, because));
                    self.spots[place].shown = Some((e, bounds));
                    self.file(i);
                }
            }
        }
        self.scratch = scratch;
        self.demands = demands;
    }

    /// What a place used, and asks for wherever its CPUs are.
    fn demand(&self, place: usize, length: Micros) -> Demand {
        let rate = |time: Micros| {
            let milli = u128::from(time.get()) * 1_000 / u128::from(length.get().max(1));
            u64::try_from(milli).unwrap_or(u64::MAX)
        };
        let Some(slot) = self.slot(self.slot_of[place]) else { return Demand::default() };
        let (used, throttled) = (slot.meter.used(self.stamp), slot.meter.throttled(self.stamp));
        if used == Micros::ZERO && throttled.is_none() {
            return Demand::default();
        }
        let load = Load { used, period: length, cpus: slot.view.map_or(u32::MAX, |view| view.cpus) };
        let asks = match is_busy(&load, throttled, &self.policy) {
            true => self.spots[place].cap,
            false => rate(used.saturating_add(throttled.unwrap_or(Micros::ZERO))),
        };
        Demand { used: rate(used), asks }
    }

    /// What every place gets of the CPUs of pool `p`. Groups are taken to use their CPUs evenly: what one wants here is its
    /// whole demand times the part of its CPUs that lies here.
    fn gets<'a>(&self, p: usize, demands: &[Demand], scratch: &'a mut waterfill::Scratch) -> &'a [u64] {
        let pool = &self.pools[p];
        let common = |place: usize| -> (u32, u32) {
            let of = &self.pools[self.spots[place].pool as usize];
            (if p == 0 { of.count } else { of.cpus.and(&pool.cpus).count() }, of.count)
        };
        let part = |amount: u64, (here, all): (u32, u32)| match here == all {
            true => amount,
            false => (u128::from(amount) * u128::from(here) / u128::from(all.max(1))) as u64,
        };
        let caps = |place: usize| {
            let here = Millicpu::cpus(common(place).0.into());
            self.spots[place].quota.or(here).get()
        };
        let demand = |place: usize| match demands[place] {
            none if none == Demand::default() => none,
            Demand { used, asks } => {
                let common = common(place);
                Demand { used: part(used, common), asks: part(asks, common) }
            }
        };
        let busy = u128::from(pool.slack.capacity.saturating_sub(pool.slack.unused).get());
        let used = busy * u128::from(pool.count) * 1_000 / u128::from(pool.slack.capacity.get().max(1));
        let used = u64::try_from(used).unwrap_or(u64::MAX);
        waterfill::fill(&self.spots, caps, demand, used, scratch)
    }

    /// One period of Algorithm 2 for every container it can move: during reclaim those above their soft limit, else those
    /// that fill what they have.
    fn step_memory(&mut self, free: Bytes, changes: &mut Vec<Change>) {
        let Some(node) = self.node.take() else { return };
        let at = self.now();
        if free <= node.low_mark {
            let because = Because::Reclaim { free, low_mark: node.low_mark };
            for k in (0..self.grown.len()).rev() {
                let i = self.grown.at(k);
                let Some(memory::Step::Reset) = self.memory_step(i, free, &node) else { continue };
                let Some(slot) = self.slots[i as usize].as_mut() else { continue };
                let soft = slot.view.as_ref().map_or(Bytes::ZERO, |view| view.memory_soft);
                changes.extend(slot.set_memory(soft, at, because));
                self.file(i);
            }
        } else if self.pressed.len() > 0 {
            let (asked, left) = self.memory_on_offer(free, &node);
            self.look_at_oversold(free, &node);
            for k in (0..self.pressed.len()).rev() {
                let i = self.pressed.at(k);
                let Some(memory::Step::Grow { by, predict }) = self.memory_step(i, free, &node) else {
                    continue;
                };
                let least = |least: Bytes, n: u32| {
                    let group = &self.oversold[n as usize];
                    Some(least.min(memory::grant(by, group.asked, group.left(), node.page_size)?))
                };
                let Some(by) = memory::grant(by, asked, left, node.page_size)
                    .and_then(|by| self.oversold_above(i).try_fold(by, least))
                else {
                    continue;
                };
                let Some(slot) = self.slots[i as usize].as_mut() else { continue };
                let Some(of) = slot.view.as_ref().map(|view| view.memory) else { continue };
                let usage = slot.meter.memory();
                let because = Because::Pressed { usage, of, free, predict, high_mark: node.high_mark };
                changes.extend(slot.set_memory(of.saturating_add(by), at, because));
                self.file(i);
            }
        }
        self.node = Some(node);
    }

    /// What Algorithm 2 decides for one container.
    fn memory_step(&self, i: u32, free: Bytes, node: &Node) -> Option<memory::Step> {
        let slot = self.slot(i)?;
        let view = slot.view.as_ref()?;
        let sight = memory::Sight {
            usage: slot.meter.memory(),
            usage_before: slot.meter.memory_before(self.stamp),
            free,
            free_before: self.mem_free_before,
        };
        Some(memory::step(view.memory, view.memory_bounds(), &sight, node, &self.policy))
    }

    /// How much all containers together ask for in this period, and how much can be promised to them.
    fn memory_on_offer(&self, free: Bytes, node: &Node) -> (Bytes, Bytes) {
        if !self.policy.memory_promises {
            return (Bytes::ZERO, free);
        }
        let asks = |k| match self.memory_step(self.pressed.at(k), free, node) {
            Some(memory::Step::Grow { by, .. }) => by,
            _ => Bytes::ZERO,
        };
        let promised = |k| {
            let slot = self.slot(self.grown.at(k))?;
            let view = slot.view.as_ref()?;
            Some(memory::promised(view.memory, view.memory_bounds(), slot.meter.memory(), &self.policy))
        };
        let asked: Bytes = (0..self.pressed.len()).map(asks).sum();
        let promised: Bytes = (0..self.grown.len()).filter_map(promised).sum();
        (asked, free.saturating_sub(node.high_mark).saturating_sub(promised))
    }

    /// What the containers of each oversold group have taken and ask for.
    fn look_at_oversold(&mut self, free: Bytes, node: &Node) {
        if self.oversold.is_empty() {
            return;
        }
        let mut groups = std::mem::take(&mut self.oversold);
        groups.iter_mut().for_each(|group| (group.spoken_for, group.asked) = (Bytes::ZERO, Bytes::ZERO));
        let innermost = |i: u32| self.slot(i).and_then(|slot| slot.oversold);
        for i in (0..self.slots.len() as u32).filter(|i| innermost(*i).is_some()) {
            let takes = self.spoken_for(i);
            upwards(&mut groups, innermost(i), |group| {
                group.spoken_for = group.spoken_for.saturating_add(takes)
            });
        }
        for k in 0..self.pressed.len() {
            let i = self.pressed.at(k);
            if let Some(memory::Step::Grow { by, .. }) = self.memory_step(i, free, node) {
                upwards(&mut groups, innermost(i), |group| group.asked = group.asked.saturating_add(by));
            }
        }
        self.oversold = groups;
    }

    /// What a container takes of the oversold groups around it.
    pub(super) fn spoken_for(&self, i: u32) -> Bytes {
        let Some(slot) = self.slot(i) else { return Bytes::ZERO };
        let Some(view) = slot.view.as_ref() else { return Bytes::ZERO };
        memory::spoken_for(view.memory, slot.soft, slot.meter.memory())
    }

    /// Takes groups that used nothing for a while out of those awake; true where there were any.
    fn let_doze(&mut self, now: Micros) -> bool {
        let before = self.awake.len();
        for k in (0..before).rev() {
            let i = self.awake.at(k);
            let ran = self.slot(i).map_or(Micros::ZERO, |slot| slot.meter.ran);
            if now.saturating_sub(ran) >= self.policy.idle_after {
                self.awake.set(i, false);
            }
        }
        self.awake.len() < before
    }
}

/// Calls `each` for an oversold group and those around it.
fn upwards(groups: &mut [Oversold], from: Option<u32>, mut each: impl FnMut(&mut Oversold)) {
    let mut next = from;
    while let Some(group) = next.and_then(|n| groups.get_mut(n as usize)) {
        each(group);
        next = group.above;
    }
}

/// Whether a container used all it has, or was held back by its quota while it did.
fn is_busy(load: &Load, throttled: Option<Micros>, policy: &super::Policy) -> bool {
    let wanted = load.used.saturating_add(throttled.unwrap_or(Micros::ZERO));
    cpu::is_busy(wanted, load.cpus, load.period, policy)
}
