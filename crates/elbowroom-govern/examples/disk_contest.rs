//! Every policy on random victims beside random hogs, and what each constant of `lifeline` is worth on them.
//!
//! `cargo run -p elbowroom-govern --example disk_contest FIRST COUNT` sums up the scenarios of `COUNT` seeds from `FIRST` on. A third
//! argument shows the policy `lifeline` alone: with `constants`, as it is and with each constant halved and doubled; with `relief`, the
//! time from the begin of a burst to the first limit on it.

use elbowroom_govern::disk::{DiskOrder, DiskPolicy, DiskSettings, LifelineSettings};
use elbowroom_sim::disk::library::{FLASH, LAB, LARGE, PAPER, w1};
use elbowroom_sim::disk::{DiskScenario, DiskScore, Pattern, judge_with, play};
use elbowroom_types::io::IoMax;
use elbowroom_types::unit::{Limit, Micros, Percent};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise| args.get(at).and_then(|n| n.parse().ok()).unwrap_or(otherwise);
    let (first, count) = (number(0, 1), number(1, 80));
    if args.iter().any(|arg| arg == "relief") {
        return show_relief(first, count);
    }
    let scenarios: Vec<(u64, DiskScenario)> =
        (first..first + count).map(|seed| (seed, DiskScenario::contest(seed))).collect();
    println!(
        "| | isolation: mean | 10th percentile | least | >= 97 % | p05: mean | p05 >= 90 % | conservation: mean | 10th percentile | \
         worse than none by a point | at most by |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let play = |settings: &dyn Fn(&DiskScenario) -> Option<DiskSettings>| -> Vec<DiskScore> {
        scenarios.iter().map(|(seed, scenario)| judge_with(scenario, settings(scenario), *seed)).collect()
    };
    let none = play(&|_| None);
    if args.iter().any(|arg| arg == "constants") {
        for (name, change) in changes() {
            let scores = play(&|scenario| {
                let mut settings = scenario.settings(DiskPolicy::Lifeline);
                change(&mut settings.lifeline);
                Some(settings)
            });
            println!("{}", row(&name, &scores, &none));
        }
        return;
    }
    println!("{}", row("none", &none, &none));
    for policy in [DiskPolicy::Aridac, DiskPolicy::Lifeline] {
        let scores = play(&|scenario| Some(scenario.settings(policy)));
        println!("{}", row(&format!("{policy:?}").to_lowercase(), &scores, &none));
        if args.iter().any(|arg| arg == "each") {
            for ((seed, _), (score, none)) in scenarios.iter().zip(scores.iter().zip(&none)) {
                let [isolation, p05, conservation, without] =
                    [score.isolation, score.isolation_p05, score.conservation, none.isolation]
                        .map(|x| 100.0 * x);
                println!("{seed:5} {isolation:5.1} {p05:5.1} {conservation:5.1}   none {without:5.1}");
            }
        }
    }
}

/// Time to the first limit, for bursts that begin at any instant between two measurements.
fn show_relief(first: u64, count: u64) {
    println!("| scenario | bursts | answered within 10 s | median | 95th percentile | most |");
    println!("|---|---|---|---|---|---|");
    let seeds = first..first + count;
    let contests = seeds.clone().map(|seed| (DiskScenario::contest(seed), seed)).collect();
    let mut rows: Vec<(&str, Vec<(DiskScenario, u64)>)> = vec![("contest", contests)];
    for (name, scale) in [("W1 paper", PAPER), ("W1 large", LARGE), ("W1 flash", FLASH), ("W1 lab", LAB)] {
        rows.push((name, seeds.clone().map(|seed| (w1(scale), seed)).collect()));
    }
    for (name, scenarios) in rows {
        let bursts: Vec<Option<Micros>> =
            scenarios.into_iter().filter_map(|(scenario, seed)| relief(scenario, seed)).collect();
        let mut times: Vec<u64> = bursts.iter().flatten().map(|time| time.get() / 1000).collect();
        times.sort_unstable();
        let at = |part: usize| times.get(times.len() * part / 100).or(times.last()).copied().unwrap_or(0);
        let (all, answered, [median, p95, most]) = (bursts.len(), times.len(), [50, 95, 100].map(at));
        println!("| {name} | {all} | {answered} | {median} ms | {p95} ms | {most} ms |");
    }
}

/// How long the first burst goes unlimited: `None` without one that begins later than the rest, `Some(None)` for longer than ten seconds.
fn relief(mut scenario: DiskScenario, seed: u64) -> Option<Option<Micros>> {
    // A prime: no two of many begin at the same distance from a measurement.
    let late = Micros::millis(seed * 379 % 1000);
    let begins = |wants: &Pattern, second: u64| {
        let all = |second| wants.at(Micros::secs(second)) == Limit::Max;
        all(second) && !all(second - 1)
    };
    let hogs = scenario.tenants.iter().enumerate().filter_map(|(at, tenant)| {
        let second = (20..100).find(|second| begins(&tenant.programs[0].wants, *second))?;
        Some((Micros::secs(second), at))
    });
    let known = scenario.bursts.first().map(|burst| (burst.from, burst.tenant));
    let (begins, hog) = known.or(hogs.min())?;
    scenario.tenants[hog].from = late;
    scenario.slice = Micros::millis(50);
    let begins = begins.saturating_add(late);
    let ends = begins.saturating_add(Micros::secs(10));
    scenario.duration = Micros::secs(ends.get() / 1_000_000 + 1);
    let mut first = None;
    play(&scenario, Some(DiskPolicy::Lifeline), seed, |moment| {
        let caps = moment.orders.iter().filter_map(|order| match order {
            DiskOrder::Cap(cap) if cap.max != IoMax::MAX => Some(cap.at),
            _ => None,
        });
        let fresh = caps.filter(|at| *at > begins && *at < ends).min();
        first = first.or(fresh.map(|at| at.saturating_sub(begins)));
    });
    Some(first)
}

type Change = Box<dyn Fn(&mut LifelineSettings)>;

/// The constants as they are, and each halved and doubled.
fn changes() -> Vec<(String, Change)> {
    type Constant = (&'static str, fn(&mut LifelineSettings, f64));
    let constants: [Constant; 16] = [
        ("elasticity", |all, by| {
            all.elasticity = Percent::whole((100.0 * all.elasticity.fraction() * by) as u16);
        }),
        ("slow", |all, by| all.constants.slow *= by),
        ("tolerance", |all, by| all.constants.tolerance *= by),
        ("in_flight", |all, by| all.constants.in_flight *= by),
        ("rise_seconds", |all, by| all.constants.rise_seconds *= by),
        ("blocked", |all, by| all.constants.blocked *= by),
        ("growth", |all, by| all.constants.growth *= by),
        ("settle_seconds", |all, by| all.constants.settle_seconds *= by),
        ("keep_seconds", |all, by| all.constants.keep_seconds *= by),
        ("busy_seconds", |all, by| all.constants.busy_seconds *= by),
        ("normal_seconds", |all, by| all.constants.normal_seconds *= by),
        ("early_period", |all, by| {
            all.constants.early_period = Micros((all.constants.early_period.get() as f64 * by) as u64);
        }),
        ("early_requests", |all, by| all.constants.early_requests *= by),
        ("operation_bytes", |all, by| {
            all.constants.operation_bytes = all.constants.operation_bytes.map(|x| x * by)
        }),
        ("request_us", |all, by| all.constants.request_us = all.constants.request_us.map(|x| x * by)),
        ("bytes_per_us", |all, by| all.constants.bytes_per_us = all.constants.bytes_per_us.map(|x| x * by)),
    ];
    let mut changes: Vec<(String, Change)> = vec![("as they are".to_owned(), Box::new(|_| {}))];
    for (name, change) in constants {
        for (word, by) in [("halved", 0.5), ("doubled", 2.0)] {
            changes.push((format!("{name} {word}"), Box::new(move |all| change(all, by))));
        }
    }
    changes
}

fn row(name: &str, scores: &[DiskScore], none: &[DiskScore]) -> String {
    let of = |part: fn(&DiskScore) -> f64| -> Vec<f64> {
        scores.iter().map(|score| 100.0 * part(score)).collect()
    };
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    let tenth = |all: &[f64]| {
        let mut sorted = all.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 10]
    };
    let (isolation, p05, conservation) =
        (of(|score| score.isolation), of(|score| score.isolation_p05), of(|score| score.conservation));
    let losses: Vec<f64> =
        scores.iter().zip(none).map(|(score, none)| 100.0 * (none.isolation - score.isolation)).collect();
    let above = |all: &[f64], least: f64| all.iter().filter(|x| **x >= least).count();
    format!(
        "| {name} | {:.1} | {:.1} | {:.1} | {} of {} | {:.1} | {} | {:.1} | {:.1} | {} | {:.1} |",
        mean(&isolation),
        tenth(&isolation),
        isolation.iter().copied().fold(f64::INFINITY, f64::min),
        above(&isolation, 97.0),
        scores.len(),
        mean(&p05),
        above(&p05, 90.0),
        mean(&conservation),
        tenth(&conservation),
        losses.iter().filter(|loss| **loss > 1.0).count(),
        losses.iter().copied().fold(0.0, f64::max),
    )
}
