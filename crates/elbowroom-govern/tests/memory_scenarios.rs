//! The paper's six phases under every rule, and programs that lie: the goals that the governor is held to.
//!
//! `cargo run --release -p elbowroom-govern --example memory_scenarios` prints the numbers.

use elbowroom_govern::memory::MemoryAction;
use elbowroom_sim::memory::{
    MemcgVersion, MemoryPolicy, MemoryScenario, MemoryScore, ProbeBehaviour, judge, library, play,
};
use elbowroom_types::id::CgroupId;
use elbowroom_types::memory::MemoryOrder;
use elbowroom_types::unit::{Bytes, Micros, Percent};
use std::collections::BTreeMap;

const KERNELS: [MemcgVersion; 2] = [MemcgVersion::V1, MemcgVersion::V2];
const SEEDS: std::ops::Range<u64> = 0..3;
const PHASE: Micros = Micros::secs(180);
/// The tenants of the six phases as the machine numbers them.
const A: CgroupId = CgroupId(2);
const B: CgroupId = CgroupId(3);

fn scores(kernel: MemcgVersion, rule: MemoryPolicy) -> Vec<MemoryScore> {
    let scenario = library::six_phases(kernel, PHASE);
    SEEDS.map(|seed| judge(&scenario, rule, seed)).collect()
}

/// Checks a rule against another on both kernels and every seed, and names the first that fails.
fn against(rule: MemoryPolicy, other: MemoryPolicy, holds: impl Fn(&MemoryScore, &MemoryScore) -> bool) {
    for kernel in KERNELS {
        for (seed, (score, than)) in scores(kernel, rule).iter().zip(&scores(kernel, other)).enumerate() {
            assert!(holds(score, than), "{kernel:?}, seed {seed}: {rule:?} {score:#?}\n{other:?} {than:#?}");
        }
    }
}

#[test]
fn without_limits_the_container_that_touches_most_pages_has_them() {
    against(MemoryPolicy::None, MemoryPolicy::Max, |none, max| {
        none.satisfied[0][0] < 0.5 && none.satisfied[2][0] < 0.5 && max.satisfaction(&[0, 2]) > 0.99
    });
}

#[test]
fn limits_waste_what_an_idle_container_keeps() {
    for rule in [MemoryPolicy::Max, MemoryPolicy::Low] {
        against(rule, MemoryPolicy::None, |limits, none| {
            limits.throughput(&[4]) < 0.75 * none.throughput(&[4])
                && limits.throughput(&[5]) < 0.75 * none.throughput(&[5])
        });
    }
}

#[test]
fn with_the_governor_both_are_served_as_with_limits() {
    against(MemoryPolicy::Governor, MemoryPolicy::Max, |governor, max| {
        governor.satisfaction(&[0, 2]) >= max.satisfaction(&[0, 2]) - 0.01
            && governor.satisfaction(&[3]) == 1.0
    });
}

#[test]
fn with_the_governor_nothing_is_wasted() {
    against(MemoryPolicy::Governor, MemoryPolicy::None, |governor, none| {
        [1, 4].into_iter().all(|phase| governor.throughput(&[phase]) >= 0.9 * none.throughput(&[phase]))
            && governor.throughput(&[5]) >= 0.95 * none.throughput(&[5])
    });
}

#[test]
fn a_container_that_wants_its_memory_back_has_it_within_ten_seconds() {
    against(MemoryPolicy::Governor, MemoryPolicy::None, |governor, none| {
        governor.recovery[2].iter().all(|seconds| *seconds < 10.0) && none.recovery[2][0] > 100.0
    });
}

#[test]
fn few_loans_hurt() {
    for (rule, most) in [(MemoryPolicy::Governor, 1), (MemoryPolicy::Silent, 3)] {
        against(rule, rule, |score, _| score.failures.iter().all(|failures| *failures <= most));
    }
}

#[test]
fn without_probes_it_is_nearly_as_good() {
    against(MemoryPolicy::Silent, MemoryPolicy::Governor, |silent, governor| {
        silent.satisfaction(&[0, 2]) >= governor.satisfaction(&[0, 2]) - 0.05
            && silent.satisfaction(&[3]) == 1.0
    });
    against(MemoryPolicy::Silent, MemoryPolicy::None, |silent, none| {
        [1, 4, 5].into_iter().all(|phase| silent.throughput(&[phase]) >= 0.85 * none.throughput(&[phase]))
    });
}

#[test]
fn reservations_satisfy_more_than_fixed_steps() {
    against(MemoryPolicy::Governor, MemoryPolicy::MemOpLight, |governor, peer| {
        governor.satisfaction(&[0, 2]) > peer.satisfaction(&[0, 2]) + 0.05
    });
}

/// Plays a scenario; per container the least it had from `from` on, and the seconds in which it did not serve what it should.
fn least(scenario: &MemoryScenario, rule: MemoryPolicy, from: Micros) -> BTreeMap<CgroupId, (f64, u32)> {
    let mut least = BTreeMap::new();
    play(scenario, rule, 0, |moment| {
        for share in moment.truth.shares.iter().filter(|_| moment.truth.now >= from) {
            let (had, missed) = least.entry(share.group).or_insert((f64::INFINITY, 0));
            *had = f64::min(*had, share.usage);
            *missed += u32::from(!share.is_satisfied());
        }
    });
    least
}

#[test]
fn a_lying_probe_takes_nothing_that_a_neighbour_has_reserved() {
    for kernel in KERNELS {
        for lie in library::lies() {
            let scenario = library::liar(kernel, lie);
            let reservation =
                scenario.tenants[0].claim.as_ref().and_then(|claim| claim.memory.reservation).unwrap();
            let (had, missed) = least(&scenario, MemoryPolicy::Governor, Micros::secs(120))[&A];
            assert!(
                had >= 0.97 * reservation.get() as f64,
                "{kernel:?} {lie:?}: {} of {reservation}",
                Bytes(had as u64)
            );
            assert_eq!(missed, 0, "{kernel:?} {lie:?}");
            let (_, missed) = least(&scenario, MemoryPolicy::None, Micros::secs(120))[&A];
            assert!(missed > 60, "without the governor it is not served: {missed}");
        }
    }
}

/// A container that lends nothing keeps its reservation even while it is idle, whatever its neighbour says.
#[test]
fn what_is_not_to_be_lent_is_not_taken() {
    for lie in library::lies() {
        let mut scenario = library::liar(MemcgVersion::V2, lie);
        let a = &mut scenario.tenants[0];
        a.program.loads.push(elbowroom_sim::memory::OfferedLoad { from: Micros::secs(120), offered: 1.0 });
        let memory = &mut a.claim.as_mut().unwrap().memory;
        memory.lend = Some(Percent::whole(0));
        let reservation = memory.reservation.unwrap();
        let (had, _) = least(&scenario, MemoryPolicy::Governor, Micros::secs(120))[&A];
        assert!(had >= 0.97 * reservation.get() as f64, "{lie:?}: {}", Bytes(had as u64));
    }
}

/// One that says it is harmed whenever something is taken back from it is not spared for that.
#[test]
fn a_lie_about_harm_does_not_keep_a_loan() {
    let mut scenario = library::six_phases(MemcgVersion::V2, PHASE);
    scenario.tenants[1].probe = ProbeBehaviour::Scaled(0.01);
    assert!(judge(&scenario, MemoryPolicy::Governor, 0).satisfied[2][0] > 0.95, "the other is served");
}

#[test]
fn programs_can_give_memory_back_before_it_is_taken() {
    let (mut asked, mut taken) = (None, None);
    play(&library::six_phases(MemcgVersion::V2, PHASE), MemoryPolicy::Governor, 0, |moment| {
        let status = moment.governor.and_then(|governor| governor.status(B));
        for decision in status.into_iter().flat_map(|status| status.decisions) {
            match decision.what {
                MemoryAction::Ask { ceiling } => {
                    asked.get_or_insert(decision.at);
                    assert!(ceiling < decision.inputs.usage);
                }
                MemoryAction::Lend { .. } => drop(taken.get_or_insert(decision.at)),
                _ => {}
            }
        }
    });
    let (asked, taken) = (asked.expect("asked"), taken.expect("taken"));
    assert!(asked < taken, "{asked} {taken}");
}

/// A heap that follows its view gives back what the kernel could not take: there is no swap.
#[test]
fn an_elastic_program_without_page_cache_lends_by_itself() {
    let mut scenario = library::six_phases(MemcgVersion::V2, PHASE);
    let b = &mut scenario.tenants[1];
    b.program.anon = Bytes::mib(1500);
    b.program.data = Bytes::mib(1);
    b.program.elastic = true;
    let mut least = f64::INFINITY;
    let mut taken = 0.0;
    play(&scenario, MemoryPolicy::Governor, 0, |moment| {
        let phase = moment.truth.now > Micros::secs(300) && moment.truth.now < Micros::secs(480);
        if let Some(share) = moment.truth.shares.iter().find(|share| share.group == B).filter(|_| phase) {
            least = f64::min(least, share.usage);
        }
        taken += moment
            .orders
            .iter()
            .filter(|order| matches!(order, MemoryOrder::Reclaim(r) if r.group == B))
            .count() as f64;
    });
    assert!(least < 1200.0 * f64::from(1 << 20), "{}", Bytes(least as u64));
    assert_eq!(taken, 0.0, "the kernel had nothing to take");
}

#[test]
fn every_decision_says_why_with_its_numbers() {
    let mut seen = BTreeMap::new();
    play(&library::six_phases(MemcgVersion::V2, PHASE), MemoryPolicy::Governor, 0, |moment| {
        for id in [A, B] {
            let Some(status) = moment.governor.and_then(|governor| governor.status(id)) else { continue };
            assert!(status.decisions.len() <= 20);
            for decision in status.decisions {
                assert!(!decision.because.is_empty() && decision.inputs.usage > Bytes::ZERO, "{decision:?}");
                seen.insert(decision.what.name(), decision.because);
            }
        }
    });
    for kind in ["lend", "ask", "recall"] {
        assert!(seen.contains_key(kind), "{seen:#?}");
    }
}

#[test]
fn a_probe_that_falls_silent_is_not_missed() {
    let mut scenario = library::six_phases(MemcgVersion::V2, PHASE);
    scenario.tenants.iter_mut().for_each(|tenant| tenant.probe = ProbeBehaviour::Silent);
    let score = judge(&scenario, MemoryPolicy::Governor, 0);
    assert_eq!(score, judge(&scenario, MemoryPolicy::Silent, 0));
}
