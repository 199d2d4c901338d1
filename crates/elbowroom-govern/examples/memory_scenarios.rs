//! Every rule on the paper's six phases: the table in the documentation.
//!
//! `cargo run --release -p elbowroom-govern --example memory_scenarios [v1 | v2 | SEED [silent]]` prints means over eight seeds. With a
//! kernel, or the seed of a random scenario, it also prints what the governor did in each second, for seed 0.

use elbowroom_sim::memory::{
    MemcgVersion, MemoryPolicy, MemoryScenario, MemoryScore, MemorySimStep, judge, library, play,
};
use elbowroom_types::memory::MemoryOrder;
use elbowroom_types::unit::{Bytes, Micros};

const RULES: [MemoryPolicy; 6] = [
    MemoryPolicy::None,
    MemoryPolicy::Max,
    MemoryPolicy::Low,
    MemoryPolicy::MemOpLight,
    MemoryPolicy::Governor,
    MemoryPolicy::Silent,
];
const SEEDS: u64 = 8;

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let rule = std::env::args().nth(2).map_or(MemoryPolicy::Governor, |_| MemoryPolicy::Silent);
    if let Ok(seed) = wanted.parse() {
        let scenario = MemoryScenario::random(seed);
        println!("{scenario:#?}");
        return play(&scenario, rule, seed, |moment| trace(&scenario, moment));
    }
    println!(
        "| kernel | rule | satisfied 1, 3 | A satisfied 1, 3 | served 2 | served 5 | served 6 | recovery 3 | failures |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for kernel in [MemcgVersion::V1, MemcgVersion::V2] {
        let scenario = library::six_phases(kernel, Micros::secs(180));
        for rule in RULES {
            let scores: Vec<MemoryScore> = (0..SEEDS).map(|seed| judge(&scenario, rule, seed)).collect();
            let mean = |of: &dyn Fn(&MemoryScore) -> f64| scores.iter().map(of).sum::<f64>() / SEEDS as f64;
            println!(
                "| {kernel:?} | {rule:?} | {:.1} % | {:.1} % | {:.0} | {:.0} | {:.0} | {:.1} s | {:.1} |",
                100.0 * mean(&|score| score.satisfaction(&[0, 2])),
                50.0 * mean(&|score| score.satisfied[0][0] + score.satisfied[2][0]),
                mean(&|score| score.throughput(&[1])),
                mean(&|score| score.throughput(&[4])),
                mean(&|score| score.throughput(&[5])),
                mean(&|score| score.recovery[2].iter().copied().fold(0.0, f64::max)),
                mean(&|score| f64::from(score.failures.iter().copied().max().unwrap_or(0))),
            );
        }
    }
    for (name, kernel) in [("v1", MemcgVersion::V1), ("v2", MemcgVersion::V2)] {
        if wanted == name {
            let scenario = library::six_phases(kernel, Micros::secs(180));
            play(&scenario, rule, 0, |moment| trace(&scenario, moment));
        }
    }
}

/// One line per second: each container, and what was ordered.
fn trace(scenario: &MemoryScenario, moment: &MemorySimStep<'_>) {
    let truth = moment.truth;
    print!("{:4} free {:>8}", truth.now.get() / 1_000_000, Bytes(truth.free.max(0.0) as u64).to_string());
    for (share, tenant) in truth.shares.iter().zip(&scenario.tenants) {
        let usage = Bytes(share.usage as u64);
        print!(" | {} {:>9} {:5.0}/{:5.0}", tenant.name, usage.to_string(), share.served, share.due);
        if let Some(status) = moment.governor.and_then(|governor| governor.status(share.group)) {
            print!(" {:?} {:?} E{} F{}", status.colour, status.state, status.entitlement, status.minimum);
        }
    }
    println!();
    for share in &truth.shares {
        let status = moment.governor.and_then(|governor| governor.status(share.group));
        let decisions = status.map(|status| status.decisions).unwrap_or_default();
        for decision in decisions.iter().filter(|decision| decision.at == truth.now) {
            println!("        {} {:?}: {}", share.group.0, decision.what, decision.because);
        }
    }
    for order in moment.orders {
        match order {
            MemoryOrder::Reclaim(reclaim) => {
                println!("        {} reclaim {}", reclaim.group.0, reclaim.amount)
            }
            MemoryOrder::ViewCeiling(view_ceiling) => {
                println!("        {} view_ceiling {}", view_ceiling.group.0, view_ceiling.ceiling)
            }
            MemoryOrder::Alert(alert) => println!("        {}: {}", alert.kind, alert.text),
            MemoryOrder::Protect(protect) => println!("        {} low {}", protect.group.0, protect.low),
        }
    }
}
