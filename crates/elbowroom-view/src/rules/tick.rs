//! One tick: readings in, steps out. The hot path. The steps are in `tick_cpu.rs` and `tick_memory.rs`.

use super::explain::ViewChange;
use super::slots::TickPeriod;
use super::views::ViewTable;
use super::{CpuRule, calm};
use elbowroom_types::cpuset::MAX_CPUS;
use elbowroom_types::sample::Tick;
use elbowroom_types::unit::{Bytes, Micros};

/// What a tick says about the machine, kept to measure the next one from.
#[derive(Clone, Debug, Default)]
pub(super) struct MachineReadings {
    pub(super) now: Micros,
    pub(super) busy: Micros,
    pub(super) mem_free: Bytes,
    pub(super) mem_available: Option<Bytes>,
    pub(super) per_cpu: Vec<Micros>,
    /// When `per_cpu` was taken, which need not be in every tick.
    pub(super) per_cpu_at: Micros,
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
                // A container that was taken over is not fresh any more, and not new.
                let is_new = std::mem::take(&mut slot.fresh);
                slot.new_until =
                    if is_new { tick.now.saturating_add(calm::RISE_AFTER) } else { Micros::ZERO };
            }
        }

        let mut woke = false;
        let climbs = measured.filter(|_| self.policy.cpu != CpuRule::Waterfill);
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
        if let Some(length) = length {
            self.step_memory(tick.reclaim.as_ref(), length, changes);
        }
        let dozed = self.policy.idle_siblings && self.retire_idle_groups(tick.now);
        woke || dozed
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
