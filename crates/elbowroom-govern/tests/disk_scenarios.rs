//! The paper's workloads under no policy, under `aridac` and under `lifeline`, at three scales and with several seeds: the
//! shapes of the paper's figures, and the goals that `lifeline` is held to.
//!
//! `cargo run --release -p elbowroom-govern --example disk_scenarios` prints the numbers.

use elbowroom_govern::disk::DiskPolicy::{Aridac, Lifeline};
use elbowroom_govern::disk::{Cap, DiskOrder, DiskPolicy};
use elbowroom_sim::disk::library::{DiskScale, FLASH, LAB, LARGE, PAPER};
use elbowroom_sim::disk::{DiskScenario, DiskScore, IoCgroupVersion, judge, library, play};
use elbowroom_types::alert::AlertKind;
use elbowroom_types::io::IoMax;
use elbowroom_types::unit::Micros;

const SEEDS: std::ops::Range<u64> = 0..12;
/// One of the paper's workloads at any scale.
type Figure = fn(DiskScale) -> DiskScenario;

const SCALES: [DiskScale; 4] = [PAPER, LARGE, FLASH, LAB];

fn scores(scenario: &DiskScenario, policy: Option<DiskPolicy>) -> Vec<DiskScore> {
    SEEDS.map(|seed| judge(scenario, policy, seed)).collect()
}

/// Checks every seed of every scale, and names the first that fails.
fn every(figure: Figure, policy: Option<DiskPolicy>, holds: impl Fn(&DiskScore) -> bool) {
    for scale in SCALES {
        all(&figure(scale), policy, &holds);
    }
}

fn all(scenario: &DiskScenario, policy: Option<DiskPolicy>, holds: impl Fn(&DiskScore) -> bool) {
    for (seed, score) in scores(scenario, policy).iter().enumerate() {
        assert!(holds(score), "{}, {policy:?}, seed {seed}: {score:#?}", scenario.name);
    }
}

/// Conservation of `lifeline`, the mean of all seeds, is at least this.
fn wastes_little(scenario: &DiskScenario, least: f64) {
    let scores = scores(scenario, Some(Lifeline));
    let mean = scores.iter().map(|score| score.conservation).sum::<f64>() / scores.len() as f64;
    assert!(mean >= least, "{}: {mean}", scenario.name);
}

/// What one container got of what it wanted, of 1, between two instants.
fn got(scenario: &DiskScenario, policy: Option<DiskPolicy>, tenant: usize, from: u64, to: u64) -> f64 {
    let (mut got, mut wanted) = (0.0, 0.0);
    play(scenario, policy, 0, |moment| {
        if (Micros::secs(from)..Micros::secs(to)).contains(&moment.truth.now) {
            for share in moment.truth.shares.iter().filter(|share| share.tenant == tenant) {
                got += share.got;
                wanted += share.wanted;
            }
        }
    });
    got / wanted
}

#[test]
fn without_a_policy_a_burst_starves_its_neighbour_and_nothing_is_wasted() {
    for figure in [library::w1, library::w4] {
        every(figure, None, |score| score.isolation < 0.7 && score.conservation > 0.99);
    }
}

#[test]
fn aridac_isolates_and_grows_slowly() {
    every(library::w1, Some(Aridac), |score| {
        score.isolation > 0.9
            && score.slowest_burst().is_none_or(|burst| burst > Micros::secs(10))
            && score.conservation < 0.9
    });
}

#[test]
fn aridac_learns_from_a_slow_disk_that_its_victims_need_little() {
    for scale in SCALES {
        let scenario = library::w4(scale);
        let before = got(&scenario, Some(Aridac), 0, 85, 105);
        let slow = got(&scenario, Some(Aridac), 0, 150, 170);
        let after = got(&scenario, Some(Aridac), 0, 180, 205);
        assert!(before > 0.8 && slow < 0.5 && after < 0.8, "{}: {before} {slow} {after}", scenario.name);
    }
}

#[test]
fn lifeline_keeps_the_victim_whole() {
    for figure in [library::w1, library::w2, library::w4] {
        every(figure, Some(Lifeline), |score| score.isolation >= 0.95);
    }
}

/// While no container is short, a cap grows by a percent a second near where harm was seen: that is what is not used.
#[test]
fn lifeline_wastes_little() {
    for (figure, conservation) in [(library::w1 as Figure, 0.88), (library::w2, 0.9), (library::w3, 0.97)] {
        SCALES.into_iter().for_each(|scale| wastes_little(&figure(scale), conservation));
    }
}

/// In W3 both want more than a slow disk can do, and neither takes more than it needs.
#[test]
fn lifeline_is_no_worse_than_nothing_where_no_container_can_be_helped() {
    for scale in SCALES {
        let scenario = library::w3(scale);
        let mean = |policy| scores(&scenario, policy).iter().map(|score| score.isolation).sum::<f64>() / 12.0;
        assert!(mean(Some(Lifeline)) > mean(None) - 0.02, "{}", scenario.name);
    }
}

/// A disk that is fast again is found out by caps that grow. On flash, which answers later the more it does, that takes longer.
#[test]
fn lifeline_finds_out_that_a_disk_is_fast_again() {
    for (scale, conservation) in [(PAPER, 0.90), (LARGE, 0.89), (FLASH, 0.78), (LAB, 0.87)] {
        wastes_little(&library::w4(scale), conservation);
    }
}

/// The same where a hog goes and comes back while the disk becomes slow and recovers.
#[test]
fn lifeline_wastes_little_where_a_hog_returns() {
    for (scale, conservation) in [(PAPER, 0.86), (LARGE, 0.86), (FLASH, 0.80), (LAB, 0.845)] {
        wastes_little(&library::hog_returns(scale), conservation);
        all(&library::hog_returns(scale), Some(Lifeline), |score| score.isolation >= 0.95);
    }
}

/// On flash, whose requests take longer the more it does, caps grow more slowly: there a few bursts are not given it in their time.
#[test]
fn lifeline_gives_a_burst_what_is_idle_at_once() {
    for (scale, least) in [(PAPER, 12), (LARGE, 12), (FLASH, 8), (LAB, 12)] {
        for figure in [library::w1, library::w2, library::w4] {
            let scenario = figure(scale);
            let scores = scores(&scenario, Some(Lifeline));
            let soon =
                |score: &&DiskScore| score.slowest_burst().is_some_and(|burst| burst <= Micros::secs(10));
            let served = scores.iter().filter(soon).count();
            assert!(served >= least, "{}: {served} of {}", scenario.name, scores.len());
        }
    }
}

/// Flash has no one capacity: the more requests wait, the more it does. Beyond its knee that buys little. On a throttled disk whose victim
/// has one request under way, limits keep the slow disk from ever being at its end, so that it has become slow is learned late.
#[test]
fn lifeline_learns_what_a_disk_can_do_and_learns_again() {
    for (scale, first, again) in
        [(PAPER, 0.15, 0.6), (LARGE, 0.15, 0.15), (FLASH, 0.7, 0.7), (LAB, 0.15, 0.15)]
    {
        for (figure, times, error) in [(library::w1 as Figure, 1, first), (library::w4, 3, again)] {
            all(&figure(scale), Some(Lifeline), |score| {
                score.capacity.len() == times && score.capacity_error().is_some_and(|worst| worst <= error)
            });
        }
    }
}

#[test]
fn lifeline_holds_where_the_paper_did_not_look() {
    let table = [
        (library::async_hog(), 0.95, 0.9),
        (library::latency_victim(), 0.95, 0.83),
        (library::reservation(), 0.95, 0.9),
        (library::tiers(), 0.95, 0.9),
        (library::many(), 0.95, 0.9),
        (library::two_disks(), 0.95, 0.9),
        (library::overcommit(), 0.95, 0.88),
        (library::weights(), 0.95, 0.9),
        (library::user_limit(), 0.95, 0.9),
        (library::buffered(IoCgroupVersion::V2), 0.95, 0.9),
    ];
    for (scenario, isolation, conservation) in table {
        all(&scenario, Some(Lifeline), |score| score.isolation >= isolation);
        wastes_little(&scenario, conservation);
    }
}

#[test]
fn what_cannot_be_done_is_reported() {
    let table = [
        (library::overcommit(), AlertKind::Overcommit),
        (library::w4(LARGE), AlertKind::Degraded),
        (library::buffered(IoCgroupVersion::V1), AlertKind::Uncappable),
        (library::journal(), AlertKind::Inversion),
    ];
    for (scenario, kind) in table {
        all(&scenario, Some(Lifeline), |score| score.alerts.contains(&kind));
    }
    for figure in [library::w1, library::w2] {
        every(figure, Some(Lifeline), |score| score.alerts.is_empty());
    }
}

#[test]
fn limits_on_one_disk_do_not_touch_another() {
    let orders = limits(&library::two_disks());
    assert!(orders.iter().any(|cap| cap.disk == DiskScenario::number(1)), "the hog is limited");
    assert!(orders.iter().all(|cap| cap.disk != DiskScenario::number(0)), "{orders:#?}");
}

#[test]
fn a_victim_that_cares_for_time_is_not_throttled() {
    let held = |tenant: usize| {
        let mut held = 0.0;
        play(&library::latency_victim(), Some(Lifeline), 0, |moment| {
            held += moment.truth.shares[tenant].limited
        });
        held
    };
    assert_eq!(held(0), 0.0);
    assert!(held(1) > 60.0, "the hog is");
}

/// The limits that are ordered.
fn limits(scenario: &DiskScenario) -> Vec<Cap> {
    let mut caps = Vec::new();
    play(scenario, Some(Lifeline), 0, |moment| {
        caps.extend(moment.orders.iter().filter_map(|order| match order {
            DiskOrder::Cap(cap) if cap.max != IoMax::MAX => Some(cap.clone()),
            _ => None,
        }));
    });
    caps
}
