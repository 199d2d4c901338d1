//! Where groups live between events: numbered slots, so that a tick finds and updates them without allocating.

use super::calm::ShareHistory;
use super::explain::{MAX_VIEW_CHANGES, ViewChange, ViewChangeReason, ViewDelta};
use super::{View, cpu, memory};
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::{CgroupProperties, Usage};
use elbowroom_types::unit::{Bytes, Limit, Micros, Millicpu};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// One known group.
#[derive(Clone, Debug)]
pub(super) struct ViewSlot {
    /// Its last reading.
    pub(super) meter: UsageMeter,
    /// Its view, if it is a container and the machine is known.
    pub(super) view: Option<View>,
    /// The quota that binds it.
    pub(super) quota: Limit<Millicpu>,
    /// Which [`super::views::CpuPool`] its CPUs are.
    pub(super) cpu_pool: u32,
    /// The innermost [`super::views::OvercommitState`] it is in.
    pub(super) overcommitted: Option<u32>,
    /// Its soft limit where it has one, also while it lends memory.
    pub(super) soft: Option<Bytes>,
    /// No tick yet since it appeared: it still follows its bounds.
    pub(super) fresh: bool,
    /// Until when it is new, and rises at once; never for one that was shown a view before.
    pub(super) new_until: Micros,
    /// What fairness gave it.
    pub(super) shares: ShareHistory,
    /// The most that effective memory may be while the container lends memory.
    pub(super) ceiling: Limit<Bytes>,
    /// As the host described it.
    pub(super) group: CgroupProperties,
    /// Its last changes, oldest first.
    pub(super) history: VecDeque<ViewChange>,
}

impl ViewSlot {
    pub(super) fn new(group: CgroupProperties) -> Self {
        Self {
            meter: UsageMeter::default(),
            view: None,
            quota: Limit::Max,
            cpu_pool: 0,
            overcommitted: None,
            soft: None,
            fresh: true,
            new_until: Micros::ZERO,
            shares: ShareHistory::default(),
            ceiling: Limit::Max,
            group,
            history: VecDeque::new(),
        }
    }

    /// Moves effective CPU to `e`, which is inside the bounds.
    pub(super) fn set_cpus(&mut self, e: u32, at: Micros, because: ViewChangeReason) -> Option<ViewChange> {
        let view = self.view.as_mut()?;
        let from = view.millicpu;
        view.cpus = e;
        view.millicpu = self.quota.or(Millicpu::cpus(e.into()));
        view.online = view.present.lowest(e);
        let what = ViewDelta::Cpu { from, to: view.millicpu };
        Some(self.record(what, at, because))
    }

    /// Moves effective memory to `e`, which is inside the bounds.
    pub(super) fn set_memory(
        &mut self,
        e: Bytes,
        at: Micros,
        because: ViewChangeReason,
    ) -> Option<ViewChange> {
        let view = self.view.as_mut()?;
        let what = ViewDelta::Memory { from: view.memory, to: e };
        view.memory = e;
        Some(self.record(what, at, because))
    }

    /// Keeps a change for [`super::ViewExplanation`].
    pub(super) fn record(&mut self, what: ViewDelta, at: Micros, because: ViewChangeReason) -> ViewChange {
        let change = ViewChange { id: self.group.id, at, what, because };
        if self.history.len() == MAX_VIEW_CHANGES {
            self.history.pop_front();
        }
        self.history.push_back(change);
        change
    }
}

impl View {
    pub(super) fn cpu_bounds(&self) -> cpu::CpuBounds {
        cpu::CpuBounds { lower: self.cpus_lower, upper: self.cpus_upper }
    }

    pub(super) fn memory_bounds(&self) -> memory::MemoryBounds {
        memory::MemoryBounds { soft: self.memory_soft, hard: self.memory_hard }
    }
}

/// A group's counters as last read, and what they grew by.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsageMeter {
    /// Number of the tick that read it; 0: never read.
    last_tick: u64,
    /// When that was.
    at: Micros,
    /// When it last used CPU time, or was first read.
    pub(super) last_active: Micros,
    counters: Usage,
    memory_before: Bytes,
    /// In the CPU period that runs, and in the last one that it was read in before.
    cpu: [CpuPeriodUse; 2],
}

/// What a group did in one CPU period.
#[derive(Clone, Copy, Debug, Default)]
struct CpuPeriodUse {
    number: u64,
    used: Micros,
    throttled: Option<Micros>,
}

/// The time that a tick closes.
#[derive(Clone, Copy, Debug)]
pub(super) struct TickPeriod {
    /// Number of the tick, from 1.
    pub(super) tick: u64,
    /// Number of the CPU period that it belongs to.
    pub(super) cpu: u64,
    /// When it ended.
    pub(super) now: Micros,
    /// How long it was; `None`: there is no tick to measure from.
    pub(super) length: Option<Micros>,
}

impl UsageMeter {
    /// Takes a reading. `cpus` is how many CPUs the group may use. A second reading in the same tick is left out: false.
    ///
    /// Counters that went backwards grew by nothing. A group that was not named in the ticks before has not run in
    /// them, so all of it happened in this period. But CPU time beyond what its CPUs have in one period shows that the
    /// group ran while it was not read, and is spread over the time since it was last read.
    pub(super) fn read(&mut self, usage: &Usage, period: TickPeriod, cpus: u32) -> bool {
        if self.last_tick == period.tick {
            return false;
        }
        let before = std::mem::replace(&mut self.counters, *usage);
        let known = self.last_tick > 0;
        let grew = if known { usage.cpu.saturating_sub(before.cpu) } else { Micros::ZERO };
        let throttled = match (usage.throttled, before.throttled) {
            (Some(now), Some(before)) if known => Some(now.saturating_sub(before)),
            _ => None,
        };
        let used = match period.length {
            Some(length) if grew.get() > length.get().saturating_mul(cpus.into()) => {
                let unseen = period.now.saturating_sub(self.at).max(length);
                Micros((u128::from(grew.get()) * u128::from(length.get()) / u128::from(unseen.get())) as u64)
            }
            Some(_) => grew,
            None => Micros::ZERO,
        };
        self.add_cpu(period.cpu, used, throttled);
        self.memory_before = if known { before.memory } else { usage.memory };
        self.at = period.now;
        self.last_tick = period.tick;
        if !known || grew > Micros::ZERO {
            self.last_active = period.now;
        }
        true
    }

    fn add_cpu(&mut self, number: u64, used: Micros, throttled: Option<Micros>) {
        let [runs, before] = &mut self.cpu;
        if runs.number != number {
            *before = std::mem::replace(runs, CpuPeriodUse { number, ..CpuPeriodUse::default() });
        }
        runs.used = runs.used.saturating_add(used);
        runs.throttled = runs.throttled.into_iter().chain(throttled).reduce(Micros::saturating_add);
    }

    fn in_period(&self, number: u64) -> CpuPeriodUse {
        self.cpu.into_iter().find(|cpu| cpu.number == number).unwrap_or_default()
    }

    /// Whether it was read in the CPU period that runs.
    pub(super) fn was_read_in(&self, number: u64) -> bool {
        self.cpu[0].number == number
    }

    /// Whether it was ever read.
    pub(super) fn was_read(&self) -> bool {
        self.last_tick > 0
    }

    /// `u`: CPU time used in a CPU period. A group that no tick of it named used none.
    pub(super) fn used(&self, number: u64) -> Micros {
        self.in_period(number).used
    }

    /// Time its quota held it back in that period, where it was read.
    pub(super) fn throttled(&self, number: u64) -> Option<Micros> {
        self.in_period(number).throttled
    }

    /// `c_mem`.
    pub(super) fn memory(&self) -> Bytes {
        self.counters.memory
    }

    /// `p_mem` at the tick `stamp`.
    pub(super) fn memory_before(&self, stamp: u64) -> Bytes {
        if self.last_tick == stamp { self.memory_before } else { self.counters.memory }
    }
}

/// A set of slots: insertion, removal and membership cost the same at any size, and a walk touches members only.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotSet {
    list: Vec<u32>,
    /// Per slot its position in `list` plus one; 0 for those outside.
    position: Vec<u32>,
}

impl SlotSet {
    /// Puts `slot` in or takes it out.
    pub(super) fn set(&mut self, slot: u32, member: bool) {
        let i = slot as usize;
        if self.position.len() <= i {
            if !member {
                return;
            }
            self.position.resize(i + 1, 0);
        }
        match (self.position[i], member) {
            (0, true) => {
                self.list.push(slot);
                self.position[i] = self.list.len() as u32;
            }
            (at, false) if at > 0 => {
                self.list.swap_remove(at as usize - 1);
                if let Some(moved) = self.list.get(at as usize - 1) {
                    self.position[*moved as usize] = at;
                }
                self.position[i] = 0;
            }
            _ => {}
        }
    }

    pub(super) fn contains(&self, slot: u32) -> bool {
        self.position.get(slot as usize).is_some_and(|at| *at > 0)
    }

    /// How many. A walk from the last down to the first meets each member once, also when it takes out the one it is at.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// The member at `position` of the walk.
    pub(super) fn at(&self, position: usize) -> u32 {
        self.list[position]
    }
}

/// From identity to slot. Only looked up, never walked, so that nothing depends on its order.
pub(super) type SlotIndex = HashMap<CgroupId, u32, BuildHasherDefault<CgroupIdHasher>>;

/// Identities are given out by the host layer, mostly in sequence: one multiplication spreads them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CgroupIdHasher(u64);

impl Hasher for CgroupIdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, n: u64) {
        let spread = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ (spread >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn usage(cpu: u64) -> Usage {
        Usage { cpu: Micros(cpu), ..Usage::default() }
    }

    fn tick(stamp: u64) -> TickPeriod {
        TickPeriod {
            tick: stamp,
            cpu: stamp,
            now: Micros(stamp * 1_000),
            length: (stamp > 1).then_some(Micros(1_000)),
        }
    }

    #[test]
    fn the_first_reading_is_where_counting_starts() {
        let mut meter = UsageMeter::default();
        assert!(meter.read(&usage(5_000_000), tick(2), 4));
        assert_eq!(meter.used(2), Micros::ZERO);
        assert!(meter.read(&usage(5_000_700), tick(3), 4));
        assert_eq!((meter.used(3), meter.used(4)), (Micros(700), Micros::ZERO));
    }

    #[test]
    fn a_cpu_period_of_several_ticks_is_their_sum() {
        let mut meter = UsageMeter::default();
        let throttled = |cpu, n| Usage { throttled: Some(Micros(n)), ..usage(cpu) };
        for (n, reading) in
            [(1, throttled(0, 0)), (2, throttled(700, 5)), (3, usage(900)), (4, throttled(1_900, 9))]
        {
            meter.read(&reading, TickPeriod { cpu: n / 3, ..tick(n) }, 4);
        }
        assert_eq!((meter.used(0), meter.used(1), meter.used(2)), (Micros(700), Micros(1_200), Micros::ZERO));
        assert_eq!((meter.throttled(0), meter.throttled(1)), (Some(Micros(5)), None));
    }

    #[test]
    fn memory_did_not_grow_before_it_was_first_read() {
        let mut meter = UsageMeter::default();
        let memory = |n| Usage { memory: Bytes(n), ..Usage::default() };
        meter.read(&memory(700), tick(2), 4);
        assert_eq!((meter.memory(), meter.memory_before(2)), (Bytes(700), Bytes(700)));
        meter.read(&memory(900), tick(3), 4);
        assert_eq!((meter.memory(), meter.memory_before(3)), (Bytes(900), Bytes(700)));
        assert_eq!(meter.memory_before(4), Bytes(900), "a tick that does not name it saw no change");
    }

    #[test]
    fn a_counter_that_goes_backwards_grew_by_nothing() {
        let mut meter = UsageMeter::default();
        meter.read(&usage(900), tick(1), 4);
        meter.read(&usage(100), tick(2), 4);
        assert_eq!(meter.used(2), Micros::ZERO);
        meter.read(&usage(150), tick(3), 4);
        assert_eq!(meter.used(3), Micros(50));
    }

    #[test]
    fn a_second_reading_in_one_tick_is_left_out() {
        let mut meter = UsageMeter::default();
        meter.read(&usage(0), tick(1), 4);
        assert!(meter.read(&usage(100), tick(2), 4));
        assert!(!meter.read(&usage(900), tick(2), 4));
        assert_eq!(meter.used(2), Micros(100));
    }

    #[test]
    fn time_that_does_not_fit_one_period_is_spread_over_those_without_a_look() {
        let mut meter = UsageMeter::default();
        meter.read(&usage(0), tick(1), 4);
        meter.read(&usage(4_000), tick(11), 4);
        assert_eq!(meter.used(11), Micros(4_000), "it fits: it slept until now");
        meter.read(&usage(14_000), tick(21), 4);
        assert_eq!(meter.used(21), Micros(1_000), "it does not: 10 ms in 10 periods");
        meter.read(&usage(19_000), tick(22), 4);
        assert_eq!(meter.used(22), Micros(5_000), "read all the time: clocks differ a little");
    }

    proptest! {
        #[test]
        fn members_are_a_set(steps in proptest::collection::vec((0u32..20, any::<bool>()), 0..100)) {
            let (mut members, mut expect) = (SlotSet::default(), std::collections::BTreeSet::new());
            for (slot, member) in steps {
                members.set(slot, member);
                if member { expect.insert(slot); } else { expect.remove(&slot); }
                let mut got: Vec<u32> = (0..members.len()).map(|i| members.at(i)).collect();
                got.sort_unstable();
                prop_assert!(got.iter().eq(&expect));
                prop_assert!((0..20).all(|slot| members.contains(slot) == expect.contains(&slot)));
            }
        }
    }
}
