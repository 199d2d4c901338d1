//! Every policy on every scenario of the library: the table in the documentation.
//!
//! `cargo run --release -p elbowroom-govern --example disk_scenarios [NAME | SEED]` prints means over six seeds. With a part of a
//! scenario's name, or the seed of a random one, it also prints what happened in each second of it, for seed 0.

use elbowroom_govern::disk::{Cap, DiskOrder, DiskPolicy};
use elbowroom_sim::disk::{DiskScenario, DiskScore, DiskSimStep, judge, library, play};
use elbowroom_types::unit::Limit;
use std::collections::BTreeSet;

const POLICIES: [Option<DiskPolicy>; 3] = [None, Some(DiskPolicy::Aridac), Some(DiskPolicy::Lifeline)];
const SEEDS: u64 = 6;

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    println!(
        "| scenario | policy | isolation | p05 | conservation | burst | capacity error | caps/min | alerts |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let scenarios: Vec<DiskScenario> = match wanted.parse() {
        Ok(seed) => vec![DiskScenario::random(seed)],
        Err(_) => library::all().into_iter().filter(|scenario| scenario.name.contains(&wanted)).collect(),
    };
    for scenario in &scenarios {
        for policy in POLICIES {
            let scores: Vec<DiskScore> = (0..SEEDS).map(|seed| judge(scenario, policy, seed)).collect();
            println!("{}", row(scenario, policy, &scores));
        }
    }
    if !wanted.is_empty() {
        for scenario in &scenarios {
            for policy in POLICIES {
                println!("\n{}, {}", scenario.name, name(policy));
                play(scenario, policy, 0, |moment| trace(scenario, moment));
            }
        }
    }
}

fn name(policy: Option<DiskPolicy>) -> String {
    policy.map_or("none".to_owned(), |policy| format!("{policy:?}").to_lowercase())
}

fn row(scenario: &DiskScenario, policy: Option<DiskPolicy>, scores: &[DiskScore]) -> String {
    let mean = |of: &dyn Fn(&DiskScore) -> f64| scores.iter().map(of).sum::<f64>() / scores.len() as f64;
    let percent = |of: &dyn Fn(&DiskScore) -> f64| format!("{:.1} %", 100.0 * mean(of));
    let bursts: Vec<f64> =
        scores.iter().filter_map(|score| Some(score.slowest_burst()?.get() as f64 / 1e6)).collect();
    let burst = match (scenario.bursts.is_empty(), bursts.len()) {
        (true, _) => "-".to_owned(),
        (false, n) if n < scores.len() => "never".to_owned(),
        (false, _) => format!("{:.1} s", bursts.iter().sum::<f64>() / bursts.len() as f64),
    };
    let errors: Vec<f64> = scores.iter().filter_map(DiskScore::capacity_error).collect();
    let error = match errors.iter().copied().max_by(f64::total_cmp) {
        Some(worst) => format!("{:.0} %", 100.0 * worst),
        None => "-".to_owned(),
    };
    let alerts: BTreeSet<String> =
        scores.iter().flat_map(|score| &score.alerts).map(ToString::to_string).collect();
    let alerts: Vec<String> = alerts.into_iter().collect();
    format!(
        "| {} | {} | {} | {} | {} | {burst} | {error} | {:.1} | {} |",
        scenario.name,
        name(policy),
        percent(&|score| score.isolation),
        percent(&|score| score.isolation_p05),
        percent(&|score| score.conservation),
        mean(&|score| score.caps as f64) * 6e7 / scenario.duration.get() as f64,
        alerts.join(" "),
    )
}

/// One line per second: each disk and each container in parts of the real disk, and what was ordered.
fn trace(scenario: &DiskScenario, moment: &DiskSimStep<'_>) {
    let truth = moment.truth;
    print!("{:5.1}", truth.now.get() as f64 / 1e6);
    for (i, disk) in truth.drives.iter().enumerate() {
        let view =
            moment.governor.and_then(|all| all.disks().into_iter().find(|view| view.number == disk.number));
        print!(" | {:.2}/{:.2} q{:<5.1}", disk.used, disk.possible, disk.queue);
        if let Some(view) = view {
            let speed = scenario.drives[i].speed;
            let part = |limit: Limit<u64>, whole: f64| {
                limit.value().map_or("  - ".to_owned(), |n| format!("{:4.2}", n as f64 / whole))
            };
            let capacity = view.capacity;
            print!(
                " {:?} C {} {}",
                view.state,
                part(capacity.rbps, speed.rbps),
                part(capacity.riops, speed.riops)
            );
        }
    }
    for share in &truth.shares {
        let name = &scenario.tenants[share.tenant].name;
        let disk = DiskScenario::number(share.drive);
        let status = moment
            .governor
            .and_then(|all| all.disk_statuses(share.group).into_iter().find(|status| status.disk == disk));
        print!(" | {name} {:.2}/{:.2}", share.got * share.cost, share.wanted * share.cost);
        if let Some(status) = status {
            let number = |n: Option<f64>| n.map_or(" -  ".to_owned(), |n| format!("{n:4.2}"));
            print!(" L{} cap{} {:?}", number(status.lifeline), number(status.cap), status.held_by);
        }
    }
    println!();
    for order in moment.orders {
        match order {
            DiskOrder::Cap(Cap { group, max, because, .. }) => {
                let limits = [max.rbps, max.wbps, max.riops, max.wiops].map(|limit| limit.to_string());
                println!("        {} <= {}: {because}", group.0, limits.join(" "));
            }
            DiskOrder::Alert(alert) => println!("        {}: {}", alert.kind, alert.text),
        }
    }
}
