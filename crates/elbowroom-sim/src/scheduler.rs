//! The scheduler of the toy node.

use crate::node::SimulatedGroup;
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::unit::{CpuShare, Limit, Micros};

/// How long a CPU runs what it picked.
const SLICE: Micros = Micros::millis(1);

/// The CPUs and what they remember.
#[derive(Debug, Default)]
pub(super) struct CpuScheduler {
    /// Per CPU, in ascending order, time used since the start.
    pub(super) busy: Vec<Micros>,
    /// [`SchedEntity::min_vruntime`] of the groups at the top.
    min_vruntime: u64,
}

/// What the scheduler knows of a group.
#[derive(Clone, Debug, Default)]
pub(super) struct SchedEntity {
    /// CPU time over weight.
    vruntime: u64,
    /// The `vtime` of the last pick among its children: sleepers wake up there.
    min_vruntime: u64,
    /// What is left of its quota in this period of it, where it has one.
    quota_left: i64,
    children: Vec<usize>,
    /// Threads of its own on some CPU in this slice.
    running: u32,
    /// Whether its quota holds it back.
    is_throttled: bool,
}

impl CpuScheduler {
    /// Runs what `cells` want from `now` for `period`.
    pub(super) fn run(&mut self, cells: &mut [SimulatedGroup], online: &CpuSet, now: Micros, period: Micros) {
        self.busy.resize(online.count() as usize, Micros::ZERO);
        let tops = link_children(cells);
        for slice in 0..period.get() / SLICE.get() {
            cells.iter_mut().for_each(|cell| refill_quota(cell, now.get() + slice * SLICE.get()));
            for (busy, cpu) in self.busy.iter_mut().zip(online.iter()) {
                if run_next(cells, &tops, &mut self.min_vruntime, cpu) {
                    *busy = busy.saturating_add(SLICE);
                }
            }
            for cell in cells
                .iter_mut()
                .filter(|cell| cell.sched.is_throttled && cell.demand.threads > cell.sched.running)
            {
                let throttled = cell.usage.throttled.unwrap_or(Micros::ZERO);
                cell.usage.throttled = Some(throttled.saturating_add(SLICE));
            }
        }
    }
}

/// Tells every group its children; those at the top are returned.
fn link_children(cells: &mut [SimulatedGroup]) -> Vec<usize> {
    let mut tops = Vec::new();
    cells.iter_mut().for_each(|cell| cell.sched.children.clear());
    for i in 0..cells.len() {
        match cells.iter().position(|above| Some(above.group.id) == cells[i].group.parent) {
            Some(above) => cells[above].sched.children.push(i),
            None => tops.push(i),
        }
    }
    tops
}

/// Starts a slice: nothing runs, and a quota whose period begins is full again.
fn refill_quota(cell: &mut SimulatedGroup, now: u64) {
    cell.sched.running = 0;
    let Some(max) = cell.group.limits.cpu_max else { return };
    let Limit::At(quota) = max.quota else { return };
    let quota = i64::try_from(quota.get()).unwrap_or(i64::MAX);
    if cell.usage.throttled.is_none() {
        cell.usage.throttled = Some(Micros::ZERO);
        cell.sched.quota_left = quota;
    } else if now.is_multiple_of(max.period.get().max(1)) {
        cell.sched.quota_left = cell.sched.quota_left.saturating_add(quota).min(quota);
    }
    cell.sched.is_throttled = cell.sched.quota_left <= 0;
}

/// Gives `cpu` for one slice to the one that had least for its weight, level by level; false where none wants it.
fn run_next(cells: &mut [SimulatedGroup], among: &[usize], floor: &mut u64, cpu: u32) -> bool {
    let vtime = |cell: &SimulatedGroup, floor: u64| cell.sched.vruntime.max(floor);
    let candidates = among.iter().copied().filter(|i| can_run(cells, *i, cpu));
    let Some(i) = candidates.min_by_key(|i| (vtime(&cells[*i], *floor), *i)) else { return false };
    let cell = &mut cells[i];
    *floor = vtime(cell, *floor);
    let weight = cell.group.limits.cpu_share.unwrap_or(CpuShare::Weight(100)).raw().max(1);
    cell.sched.vruntime = *floor + (1 << 30) / weight;
    cell.usage.cpu = cell.usage.cpu.saturating_add(SLICE);
    if cell.group.limits.cpu_max.is_some_and(|max| max.quota != Limit::Max) {
        cell.sched.quota_left -= SLICE.get() as i64;
        cell.sched.is_throttled = cell.sched.quota_left <= 0;
    }
    if cell.sched.running < cell.demand.threads {
        cell.sched.running += 1;
        return true;
    }
    let children = std::mem::take(&mut cell.sched.children);
    let mut inner = cell.sched.min_vruntime;
    let ran = run_next(cells, &children, &mut inner, cpu);
    cells[i].sched.min_vruntime = inner;
    cells[i].sched.children = children;
    ran
}

/// Whether the group, or one below it, could use a slice of `cpu`.
fn can_run(cells: &[SimulatedGroup], i: usize, cpu: u32) -> bool {
    let SimulatedGroup { sched: share, demand: want, group, .. } = &cells[i];
    !share.is_throttled
        && group.limits.cpuset.is_none_or(|cpus| cpus.contains(cpu))
        && (share.running < want.threads || share.children.iter().any(|child| can_run(cells, *child, cpu)))
}

#[cfg(test)]
mod tests {
    use crate::{GroupRole, NodeSimulator, ProgramDemand};
    use elbowroom_types::sample::{CgroupSettings, CpuMax, HostEvent, Tick};
    use elbowroom_types::unit::{Bytes, CpuShare, Limit, Micros};
    use elbowroom_view::rules::{ViewRules, ViewTable};
    use proptest::prelude::*;

    fn wants(threads: u32) -> GroupRole {
        GroupRole::Container(Box::new(move |_, _| ProgramDemand::threads(threads)))
    }

    fn weight(n: u64) -> CgroupSettings {
        CgroupSettings { cpu_share: Some(CpuShare::Weight(n)), ..CgroupSettings::default() }
    }

    fn tick(sim: &mut NodeSimulator, millis: u64) -> Tick {
        match sim.tick(&ViewTable::new(ViewRules::paper()), Micros::millis(millis)) {
            HostEvent::Tick(tick) => tick,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_quota_holds_back_in_every_period_of_it() {
        let mut sim = NodeSimulator::new(4, Bytes::gib(1));
        let half = CpuMax { quota: Limit::At(Micros::millis(50)), period: Micros::millis(100) };
        let limits = CgroupSettings { cpu_max: Some(half), ..weight(100) };
        let (id, _) = sim.add(None, "a", limits, wants(1));
        tick(&mut sim, 1_000);
        let usage = sim.usage(id).unwrap();
        assert_eq!((usage.cpu, usage.throttled), (Micros::millis(500), Some(Micros::millis(500))));
    }

    #[test]
    fn a_pod_divides_its_part_among_its_own() {
        let mut sim = NodeSimulator::new(4, Bytes::gib(1));
        let (pod, _) = sim.add(None, "pod", weight(100), GroupRole::Slice);
        let inside = [1, 2].map(|i| sim.add(Some(pod), &i.to_string(), weight(100), wants(9)).0);
        let (outside, _) = sim.add(None, "3", weight(100), wants(9));
        tick(&mut sim, 1_000);
        let used = |id| sim.usage(id).unwrap().cpu.get() / 1_000;
        assert!(used(outside).abs_diff(2_000) < 20, "{}", used(outside));
        assert!(inside.iter().all(|id| used(*id).abs_diff(1_000) < 20));
    }

    proptest! {
        #[test]
        fn no_container_gets_cpu_time_that_was_not_there(
            cpus in 1u32..8, groups in proptest::collection::vec((1u64..1000, 0u32..8), 0..8)
        ) {
            let mut sim = NodeSimulator::new(cpus, Bytes::gib(1));
            for (weight_n, threads) in &groups {
                sim.add(None, "a", weight(*weight_n), wants(*threads));
            }
            let tick = tick(&mut sim, 50);
            let used: u64 = tick.usage.iter().map(|(_, usage)| usage.cpu.get()).sum();
            prop_assert_eq!(used, tick.busy.get());
            let wanted: u64 = groups.iter().map(|(_, threads)| u64::from((*threads).min(cpus))).sum();
            prop_assert_eq!(tick.busy.get(), 50_000 * wanted.min(cpus.into()), "work-conserving");
        }

        #[test]
        fn busy_groups_divide_a_full_machine_by_weight(weights in proptest::collection::vec(50u64..200, 1..6)) {
            let mut sim = NodeSimulator::new(4, Bytes::gib(1));
            let ids: Vec<_> = weights.iter().map(|w| sim.add(None, "a", weight(*w), wants(4)).0).collect();
            tick(&mut sim, 2_000);
            let sum: u64 = weights.iter().sum();
            for (id, weight) in ids.iter().zip(&weights) {
                let fair = 8_000_000 * weight / sum;
                prop_assert!(sim.usage(*id).unwrap().cpu.get().abs_diff(fair) < 20_000);
            }
        }

        #[test]
        fn a_full_machine_has_no_slack(threads in 4u32..20) {
            let mut sim = NodeSimulator::new(4, Bytes::gib(1));
            sim.add(None, "a", weight(100), wants(threads));
            prop_assert_eq!(tick(&mut sim, 24).busy, Micros::millis(96));
        }
    }
}
