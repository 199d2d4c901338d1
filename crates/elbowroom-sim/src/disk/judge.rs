//! How good a policy was to the containers of a scenario. The definitions are those of resctl-bench (`isol`, `work-csv`) as
//! far as it has them.
//!
//! - *Isolation*: per second, `min(1, got / owed)`, where owed is what a container is judged by on a disk, or what it wants if
//!   that is less. The mean and the 5th percentile of the one that fared worst.
//! - *Conservation*: what was done, over what would have been done without limits of ours, in parts of the disk.
//! - *Burst*: how long until a burst has four fifths of what the others leave: of the disk less what they want, as far as
//!   their lifelines go.
//! - *Capacity error*: how far the learned capacity is from the real one 60 s after the disk was saturated for the first
//!   time, and 60 s after each change of speed, if it was saturated for at least half of that time. No rule can learn a limit
//!   that is never reached.

use super::scenario::{Burst, DiskScenario};
use super::world::{ContainerIoTruth, DiskSimulator, DiskTruth};
use elbowroom_govern::disk::{DiskGovernor, DiskOrder, DiskPolicy, DiskSettings};
use elbowroom_types::alert::AlertKind;
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::Micros;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// From here on a disk counts as saturated: this part of it would be used without limits of ours.
const SATURATED: f64 = 0.92;
/// When the learned capacity is compared with the real one.
const LEARNED_AFTER: Micros = Micros::secs(60);
/// What is compared is a mean over this many periods.
const COMPARED: usize = 5;

/// How it went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiskScore {
    /// Isolation of the container that fared worst: mean, of 1.
    pub isolation: f64,
    /// Its 5th percentile, of the container with the worst.
    pub isolation_p05: f64,
    /// Conservation, of 1.
    pub conservation: f64,
    /// Time until each burst had what is left; `None` where it never had.
    pub bursts: Vec<Option<Micros>>,
    /// Learned over real capacity, at each instant it was compared.
    pub capacity: Vec<(Micros, f64)>,
    /// Caps ordered.
    pub caps: usize,
    /// What was reported.
    pub alerts: BTreeSet<AlertKind>,
}

impl DiskScore {
    /// The time of the burst that waited longest; `None` where one never had what was left.
    pub fn slowest_burst(&self) -> Option<Micros> {
        self.bursts.iter().copied().max_by_key(|burst| burst.unwrap_or(Micros(u64::MAX))).flatten()
    }

    /// The largest distance of learned from real capacity, in parts of the real one; `None` where it was never compared.
    pub fn capacity_error(&self) -> Option<f64> {
        self.capacity.iter().map(|(_, ratio)| (ratio - 1.0).abs()).max_by(f64::total_cmp)
    }
}

/// What happened in one period of the scenario, to look at. It may have had more than one measurement, or none.
#[derive(Debug)]
pub struct DiskSimStep<'a> {
    /// What the governor was told.
    pub events: &'a [HostEvent],
    /// What it ordered.
    pub orders: &'a [DiskOrder],
    /// What really happened.
    pub truth: &'a DiskTruth,
    /// The governor after it; `None` where there is none.
    pub governor: Option<&'a DiskGovernor>,
}

/// Plays a scenario to its end under a policy, or none, and shows every period to `watch`.
pub fn play(
    scenario: &DiskScenario,
    policy: Option<DiskPolicy>,
    seed: u64,
    watch: impl FnMut(&DiskSimStep<'_>),
) {
    play_with(scenario, policy.map(|policy| scenario.settings(policy)), seed, watch);
}

/// The same with settings of a governor, such as other constants.
pub fn play_with(
    scenario: &DiskScenario,
    settings: Option<DiskSettings>,
    seed: u64,
    mut watch: impl FnMut(&DiskSimStep<'_>),
) {
    let mut world = DiskSimulator::new(scenario, seed);
    let mut governor = settings.map(|settings| DiskGovernor::new(settings, scenario.claims()));
    let early_period = governor.as_ref().map_or(scenario.period, DiskGovernor::early_period);
    let (mut measure_at, mut glance_at) = (scenario.period, early_period);
    while let Some(begun) = world.begin_period() {
        let mut told = tell(&mut governor, &mut world, begun);
        while let Some(answers) = world.run_slice() {
            told.extend(tell(&mut governor, &mut world, answers));
            let now = world.now();
            if now >= glance_at {
                glance_at = now.saturating_add(early_period);
                let alarm = governor.as_mut().and_then(|disks| disks.glance(now, &world.disk_stats()));
                measure_at = alarm.map_or(measure_at, |at| at.min(measure_at));
            }
            if now >= measure_at {
                let measured = world.measure();
                told.extend(tell(&mut governor, &mut world, measured));
                let early = governor.as_ref().is_some_and(DiskGovernor::needs_early_sample);
                measure_at = now.saturating_add(if early { early_period } else { scenario.period });
            }
        }
        let (events, orders): (Vec<HostEvent>, Vec<Vec<DiskOrder>>) = told.into_iter().unzip();
        let orders = orders.concat();
        let moment = DiskSimStep {
            events: &events,
            orders: &orders,
            truth: world.truth(),
            governor: governor.as_ref(),
        };
        watch(&moment);
    }
}

/// Lets a governor know, and does what it says: each event with the orders that it gave.
fn tell(
    governor: &mut Option<DiskGovernor>,
    world: &mut DiskSimulator,
    events: Vec<HostEvent>,
) -> Vec<(HostEvent, Vec<DiskOrder>)> {
    let told = events.into_iter().map(|event| {
        let orders = governor.as_mut().map(|disks| disks.apply(&event)).unwrap_or_default();
        orders.iter().for_each(|order| world.execute(order));
        (event, orders)
    });
    told.collect()
}

/// Plays a scenario and says how it went.
pub fn judge(scenario: &DiskScenario, policy: Option<DiskPolicy>, seed: u64) -> DiskScore {
    judge_with(scenario, policy.map(|policy| scenario.settings(policy)), seed)
}

/// The same with settings of a governor, such as other constants.
pub fn judge_with(scenario: &DiskScenario, settings: Option<DiskSettings>, seed: u64) -> DiskScore {
    let mut judge = Judge::new(scenario);
    play_with(scenario, settings, seed, |moment| judge.observe(moment));
    judge.score()
}

/// Watches a scenario.
#[derive(Debug)]
pub struct Judge {
    scenario: DiskScenario,
    /// Isolation of each container on each disk, per period.
    isolation: BTreeMap<(usize, usize), Vec<f64>>,
    used: f64,
    possible: f64,
    capacity_learning: Vec<CapacityLearning>,
    score: DiskScore,
}

/// How the capacity of one disk is learned.
#[derive(Clone, Debug, Default)]
struct CapacityLearning {
    /// When its present speed was first needed, or began.
    since: Option<Micros>,
    factor: Option<f64>,
    saturated: Micros,
    /// Used parts of the disk: real, and as the governor sees it.
    used: VecDeque<(f64, Option<f64>)>,
}

impl Judge {
    /// Nothing seen yet.
    pub fn new(scenario: &DiskScenario) -> Self {
        Self {
            scenario: scenario.clone(),
            isolation: BTreeMap::new(),
            used: 0.0,
            possible: 0.0,
            capacity_learning: vec![CapacityLearning::default(); scenario.drives.len()],
            score: DiskScore { bursts: vec![None; scenario.bursts.len()], ..DiskScore::default() },
        }
    }

    /// Takes one period in.
    pub fn observe(&mut self, moment: &DiskSimStep<'_>) {
        let truth = moment.truth;
        for share in &truth.shares {
            let Some(lifeline) = self.lifeline(share) else { continue };
            let owed = share.wanted.min(lifeline);
            if owed >= 1.0 {
                let all = self.isolation.entry((share.tenant, share.drive)).or_default();
                all.push((share.got / owed).min(1.0));
            }
        }
        self.used += truth.drives.iter().map(|drive| drive.used).sum::<f64>();
        self.possible += truth.drives.iter().map(|drive| drive.possible).sum::<f64>();
        for i in 0..self.scenario.bursts.len() {
            if self.score.bursts[i].is_none() {
                self.score.bursts[i] = self.burst(truth, self.scenario.bursts[i]);
            }
        }
        for drive in 0..self.capacity_learning.len() {
            self.learn(drive, moment);
        }
        for order in moment.orders {
            match order {
                DiskOrder::Cap(_) => self.score.caps += 1,
                DiskOrder::Alert(alert) => {
                    self.score.alerts.insert(alert.kind);
                }
            }
        }
    }

    /// How it went so far.
    pub fn score(mut self) -> DiskScore {
        let worst = |of: fn(&mut Vec<f64>) -> f64, all: &mut BTreeMap<(usize, usize), Vec<f64>>| {
            all.values_mut().map(of).min_by(f64::total_cmp).unwrap_or(1.0)
        };
        self.score.isolation = worst(|all| all.iter().sum::<f64>() / all.len() as f64, &mut self.isolation);
        self.score.isolation_p05 = worst(
            |all| {
                all.sort_by(f64::total_cmp);
                all[all.len() / 20]
            },
            &mut self.isolation,
        );
        self.score.conservation = if self.possible > 0.0 { self.used / self.possible } else { 1.0 };
        self.score
    }

    /// What a container is owed on a disk, in bytes per second.
    fn lifeline(&self, share: &ContainerIoTruth) -> Option<f64> {
        let programs = &self.scenario.tenants[share.tenant].programs;
        let lifeline = programs.iter().find(|program| program.disk == share.drive)?.lifeline?;
        Some(lifeline as f64)
    }

    fn burst(&self, truth: &DiskTruth, Burst { tenant, from, until }: Burst) -> Option<Micros> {
        if truth.now <= from || truth.now > until {
            return None;
        }
        let burst = truth.shares.iter().find(|share| share.tenant == tenant)?;
        let owed = |share: &ContainerIoTruth| {
            share.wanted.min(self.lifeline(share).unwrap_or(f64::INFINITY)) * share.cost
        };
        let others = truth.shares.iter().filter(|share| share.drive == burst.drive && share.tenant != tenant);
        let left = truth.drives[burst.drive].possible - others.map(owed).sum::<f64>();
        let idle = left.min(burst.wanted * burst.cost);
        (burst.got * burst.cost >= 0.8 * idle).then(|| truth.now.saturating_sub(from))
    }

    fn learn(&mut self, drive: usize, moment: &DiskSimStep<'_>) {
        let (truth, lesson) = (&moment.truth.drives[drive], &mut self.capacity_learning[drive]);
        let Some(governor) = moment.governor else { return };
        let now = moment.truth.now;
        let factor = truth.speed.rbps / self.scenario.drives[drive].speed.rbps;
        let is_saturated = truth.possible >= SATURATED;
        let changed = lesson.factor.is_some_and(|before| before != factor);
        if is_saturated && lesson.since.is_none() || changed && lesson.factor.is_some() {
            (lesson.since, lesson.saturated, lesson.factor) = (Some(now), Micros::ZERO, Some(factor));
        }
        let views = governor.disks();
        let view = views.iter().find(|view| view.number == truth.number);
        lesson.used.push_back((truth.used, view.and_then(|view| view.used)));
        if lesson.used.len() > COMPARED {
            lesson.used.pop_front();
        }
        if is_saturated {
            lesson.saturated = lesson.saturated.saturating_add(self.scenario.period);
        }
        let due = lesson.since.map(|since| since.saturating_add(LEARNED_AFTER));
        let is_due = due.is_some_and(|due| due <= now && now < due.saturating_add(self.scenario.period));
        if is_due && lesson.saturated.get() * 2 >= LEARNED_AFTER.get() {
            let real: f64 = lesson.used.iter().map(|(real, _)| real).sum();
            let seen: f64 = lesson.used.iter().map(|(_, seen)| seen.unwrap_or(f64::INFINITY)).sum();
            self.score.capacity.push((now, real / seen));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::library::{LARGE, w1, w4};
    use elbowroom_govern::disk::Cap;
    use elbowroom_types::io::IoMax;
    use elbowroom_types::unit::Limit;

    /// Plays W1 under a rule that knows everything and gives the burst this part of the disk from its first second on.
    fn oracle(part: f64) -> DiskScore {
        let scenario = DiskScenario { delay: 0, ..w1(LARGE) };
        let (mut world, mut judge) = (DiskSimulator::new(&scenario, 1), Judge::new(&scenario));
        let (group, disk) = (world.group(1), DiskScenario::number(0));
        let max = IoMax { rbps: Limit::At((part * LARGE.bps) as u64), ..IoMax::MAX };
        world.execute(&DiskOrder::Cap(Cap {
            at: Micros::ZERO,
            group,
            disk,
            max,
            weight: None,
            because: String::new(),
        }));
        while let Some(events) = world.step() {
            judge.observe(&DiskSimStep {
                events: &events,
                orders: &[],
                truth: world.truth(),
                governor: None,
            });
        }
        judge.score()
    }

    #[test]
    fn a_rule_that_knows_everything_isolates_and_wastes_little() {
        let score = oracle(0.7);
        assert!(
            score.isolation > 0.99 && score.isolation_p05 > 0.95 && score.conservation > 0.9,
            "{score:?}"
        );
        assert_eq!(score.slowest_burst(), Some(Micros::secs(1)));
    }

    #[test]
    fn what_is_kept_from_a_burst_and_stays_unused_is_waste() {
        let score = oracle(0.3);
        assert!(score.isolation > 0.99 && score.conservation < 0.65, "{score:?}");
        assert_eq!(score.slowest_burst(), None);
    }

    #[test]
    fn a_victim_is_judged_by_what_it_wants_and_no_more() {
        let score = judge(&w4(LARGE), None, 1);
        let mut got = Vec::new();
        play(&w4(LARGE), None, 1, |moment| got.push(moment.truth.shares[0]));
        let mean =
            got.iter().map(|share| (share.got / share.wanted.min(LARGE.bps * 0.3)).min(1.0)).sum::<f64>();
        assert!((score.isolation - mean / got.len() as f64).abs() < 1e-3, "{score:?}");
        assert!(score.conservation > 0.999, "{score:?}");
    }
}
