//! What a scenario came to.

use super::scenario::{MemoryPolicy, MemoryScenario};
use super::world::{MemorySimulator, MemoryTruth};
use elbowroom_govern::memory::{MemoryGovernor, MemoryMechanisms, MemorySettings};
use elbowroom_types::memory::MemoryOrder;
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::Micros;

/// A second of a scenario.
#[derive(Debug)]
pub struct MemorySimStep<'a> {
    /// What really happened.
    pub truth: &'a MemoryTruth,
    /// What was seen of it.
    pub events: &'a [HostEvent],
    /// What was ordered then; empty without the governor.
    pub orders: &'a [MemoryOrder],
    /// The governor, where there is one.
    pub governor: Option<&'a MemoryGovernor>,
}

/// Plays a scenario and shows every second of it.
pub fn play(scenario: &MemoryScenario, rule: MemoryPolicy, seed: u64, show: impl FnMut(&MemorySimStep<'_>)) {
    play_with(scenario, rule, MemoryMechanisms::default(), seed, show);
}

/// The same with some of the governor's mechanisms only.
pub fn play_with(
    scenario: &MemoryScenario,
    rule: MemoryPolicy,
    mechanisms: MemoryMechanisms,
    seed: u64,
    mut show: impl FnMut(&MemorySimStep<'_>),
) {
    let claims = scenario.tenants.iter().filter_map(|tenant| tenant.claim.clone()).collect();
    let mut governor = matches!(rule, MemoryPolicy::Governor | MemoryPolicy::Silent)
        .then(|| MemoryGovernor::new(MemorySettings::default(), claims).with_mechanisms(mechanisms));
    let mut world = MemorySimulator::new(scenario, rule, seed);
    for event in world.start() {
        governor.iter_mut().for_each(|governor| drop(governor.apply(&event)));
    }
    for _ in 0..scenario.duration.get() / 1_000_000 {
        let (events, truth) = world.step();
        let orders: Vec<MemoryOrder> = match &mut governor {
            Some(governor) => events.iter().flat_map(|event| governor.apply(event)).collect(),
            None => Vec::new(),
        };
        show(&MemorySimStep { truth: &truth, events: &events, orders: &orders, governor: governor.as_ref() });
        world.execute(orders);
    }
}

/// What a scenario came to, per phase and container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryScore {
    /// Per phase, per container: the part of its seconds in which it served what it should.
    pub satisfied: Vec<Vec<f64>>,
    /// Per phase, per container: requests served per second.
    pub served: Vec<Vec<f64>>,
    /// Per phase: loans that hurt.
    pub failures: Vec<u32>,
    /// Per phase, per container: seconds from its beginning until what should be served is.
    pub recovery: Vec<Vec<f64>>,
    /// Containers that were killed for memory.
    pub killed: usize,
}

impl MemoryScore {
    /// The part of the seconds of these phases in which all were satisfied that run, as the mean over containers.
    pub fn satisfaction(&self, phases: &[usize]) -> f64 {
        let all: Vec<f64> = phases.iter().flat_map(|phase| self.satisfied[*phase].clone()).collect();
        all.iter().sum::<f64>() / all.len().max(1) as f64
    }

    /// Requests per second of all containers in these phases.
    pub fn throughput(&self, phases: &[usize]) -> f64 {
        phases.iter().map(|phase| self.served[*phase].iter().sum::<f64>()).sum::<f64>()
            / phases.len().max(1) as f64
    }
}

/// Plays a scenario and adds it up.
pub fn judge(scenario: &MemoryScenario, rule: MemoryPolicy, seed: u64) -> MemoryScore {
    judge_with(scenario, rule, MemoryMechanisms::default(), seed)
}

/// The same with some of the governor's mechanisms only.
pub fn judge_with(
    scenario: &MemoryScenario,
    rule: MemoryPolicy,
    mechanisms: MemoryMechanisms,
    seed: u64,
) -> MemoryScore {
    let tenants = scenario.tenants.len();
    let phases = scenario.phases.len().max(1);
    let mut score = MemoryScore {
        satisfied: vec![vec![0.0; tenants]; phases],
        served: vec![vec![0.0; tenants]; phases],
        failures: vec![0; phases],
        recovery: vec![vec![0.0; tenants]; phases],
        killed: 0,
    };
    let mut seconds = vec![0.0; phases];
    let mut failed = 0;
    play_with(scenario, rule, mechanisms, seed, |moment| {
        let statuses = |governor: &MemoryGovernor| -> u32 {
            let statuses = moment.truth.shares.iter().filter_map(|share| governor.status(share.group));
            statuses.map(|status| status.failures).sum()
        };
        let failures = moment.governor.map_or(0, statuses);
        let new = failures.saturating_sub(std::mem::replace(&mut failed, failures));
        let begun = scenario.phases.iter().filter(|from| **from < moment.truth.now).count();
        let Some(phase) = begun.checked_sub(1).or(scenario.phases.is_empty().then_some(0)) else { return };
        seconds[phase] += 1.0;
        score.failures[phase] += new;
        let from = scenario.phases.get(phase).copied().unwrap_or(Micros::ZERO);
        let since = moment.truth.now.saturating_sub(from).get() as f64 / 1e6;
        for (i, share) in moment.truth.shares.iter().enumerate() {
            let fine = share.is_satisfied() || !share.running;
            score.satisfied[phase][i] += f64::from(u8::from(fine));
            score.served[phase][i] += share.served;
            if !fine {
                score.recovery[phase][i] = since;
            }
        }
        score.killed = moment.truth.shares.iter().filter(|share| share.killed).count();
    });
    for (phase, seconds) in seconds.iter().enumerate() {
        for i in 0..tenants {
            score.satisfied[phase][i] /= f64::max(*seconds, 1.0);
            score.served[phase][i] /= f64::max(*seconds, 1.0);
        }
    }
    score
}
