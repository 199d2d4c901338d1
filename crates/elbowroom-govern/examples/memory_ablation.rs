//! What each mechanism of the memory governor buys: the table of decision 46.
//!
//! `cargo run -p elbowroom-govern --example memory_ablation [FIRST_SEED]` prints it, with the random schedules of eighty seeds
//! from `FIRST_SEED` (0) on.

use elbowroom_govern::memory::MemoryMechanisms;
use elbowroom_sim::memory::{
    MemcgVersion, MemoryPolicy, MemoryScenario, MemoryScore, ProbeBehaviour, judge_with, library,
};
use elbowroom_types::unit::Micros;

const RANDOM_SEEDS: u64 = 80;
/// Runs of scenarios with a name.
const RUNS: u64 = 2;

/// What is switched off.
struct Row {
    name: &'static str,
    rule: MemoryPolicy,
    mechanisms: MemoryMechanisms,
    reclaims: bool,
}

/// Scenarios that make one cell together.
struct Column {
    name: &'static str,
    scenarios: Vec<(MemoryScenario, u64)>,
}

/// What came of them.
#[derive(Default)]
struct Cell {
    satisfied: f64,
    served: f64,
    recovery: f64,
    failures: f64,
}

fn main() {
    let first = std::env::args().nth(1).and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let columns = columns(first);
    let rows = rows();
    print!("| off |");
    columns.iter().for_each(|column| print!(" {} |", column.name));
    println!("\n|---|{}", "---|".repeat(columns.len()));
    let all: Vec<Vec<Cell>> = std::thread::scope(|scope| {
        let columns = &columns;
        let started: Vec<_> = rows
            .iter()
            .map(|row| scope.spawn(move || columns.iter().map(|column| cell(row, column)).collect()))
            .collect();
        started.into_iter().map(|row| row.join().expect("a scenario panicked")).collect()
    });
    for (row, cells) in rows.iter().zip(&all) {
        print!("| {} |", row.name);
        for (cell, everything) in cells.iter().zip(&all[0]) {
            print!(
                " {:.1}/{:.0}/{:.1}/{:.1} |",
                100.0 * cell.satisfied,
                100.0 * cell.served / everything.served.max(1.0),
                cell.recovery,
                cell.failures
            );
        }
        println!();
    }
}

fn cell(row: &Row, column: &Column) -> Cell {
    let mut sum = Cell::default();
    let n = column.scenarios.len() as f64;
    for (scenario, seed) in &column.scenarios {
        let mut scenario = scenario.clone();
        scenario.reclaims = row.reclaims || scenario.kernel == MemcgVersion::V2;
        let score = judge_with(&scenario, row.rule, row.mechanisms, *seed);
        let phases: Vec<usize> = (0..score.satisfied.len()).collect();
        sum.satisfied += score.satisfaction(&phases) / n;
        sum.served += score.throughput(&phases) / n;
        sum.recovery += recovery(&score) / n;
        sum.failures += f64::from(score.failures.iter().sum::<u32>()) / n;
    }
    sum
}

/// Seconds until all are served what they should be, as the mean over phases.
fn recovery(score: &MemoryScore) -> f64 {
    let worst = score.recovery.iter().map(|phase| phase.iter().copied().fold(0.0, f64::max));
    worst.sum::<f64>() / score.recovery.len().max(1) as f64
}

fn rows() -> Vec<Row> {
    let row = |name, change: fn(&mut MemoryMechanisms)| {
        let mut mechanisms = MemoryMechanisms::default();
        change(&mut mechanisms);
        Row { name, rule: MemoryPolicy::Governor, mechanisms, reclaims: true }
    };
    let everything = || row("nothing", |_| ());
    vec![
        everything(),
        row("protection", |m| m.protection = false),
        row("protection by colour: the reservation, always", |m| m.protection_by_colour = false),
        row("lending", |m| m.lending = false),
        row("recall", |m| m.recall = false),
        row("lending and recall", |m| (m.lending, m.recall) = (false, false)),
        row("protection and recall", |m| (m.protection, m.recall) = (false, false)),
        row("protection, lending and recall", |m| {
            (m.protection, m.recall, m.lending) = (false, false, false);
        }),
        row("holds", |m| m.holds = false),
        row("mapped cache is not reclaimable", |m| m.mapped = false),
        Row { name: "probes", rule: MemoryPolicy::Silent, ..everything() },
        Row { name: "reclaim on v1 (transient limit)", reclaims: false, ..everything() },
        Row { name: "all: the kernel alone", rule: MemoryPolicy::None, ..everything() },
        Row { name: "all: hard limits", rule: MemoryPolicy::Max, ..everything() },
    ]
}

fn columns(first: u64) -> Vec<Column> {
    let both = [MemcgVersion::V1, MemcgVersion::V2];
    let runs = |scenario: MemoryScenario| (0..RUNS).map(move |seed| (scenario.clone(), seed));
    let six = |kernel| runs(library::six_phases(kernel, Micros::secs(180))).collect();
    let random = |seed: u64| {
        let mut scenario = MemoryScenario::random(seed);
        for (i, tenant) in (0..).zip(&mut scenario.tenants) {
            tenant.program.mapped = [0.0, 0.3, 0.6][(seed + i) as usize % 3];
        }
        (MemoryScenario { enforced: true, ..scenario }, seed)
    };
    // The liar would use four times the machine and has no objective: the column is about its neighbour.
    let liar = |kernel| {
        let mut scenario = library::liar(kernel, ProbeBehaviour::Flapping(5));
        scenario.tenants[1].program.objective = 0.0;
        scenario
    };
    let silent = |mut scenario: MemoryScenario| {
        scenario.tenants.iter_mut().for_each(|tenant| tenant.probe = ProbeBehaviour::Silent);
        scenario
    };
    let of_both = |scenario: fn(MemcgVersion) -> MemoryScenario| {
        both.into_iter().flat_map(|kernel| runs(silent(scenario(kernel)))).collect()
    };
    vec![
        Column { name: "six phases, v1", scenarios: six(MemcgVersion::V1) },
        Column { name: "six phases, v2", scenarios: six(MemcgVersion::V2) },
        Column { name: "twenty cycles, v1", scenarios: runs(library::cycles(MemcgVersion::V1)).collect() },
        Column { name: "twenty cycles, v2", scenarios: runs(library::cycles(MemcgVersion::V2)).collect() },
        Column {
            name: "six phases, silent",
            scenarios: of_both(|kernel| library::six_phases(kernel, Micros::secs(180))),
        },
        Column { name: "twenty cycles, silent", scenarios: of_both(library::cycles) },
        Column { name: "random", scenarios: (first..first + RANDOM_SEEDS).map(random).collect() },
        Column { name: "flapping liar", scenarios: both.into_iter().flat_map(|k| runs(liar(k))).collect() },
        Column {
            name: "ambush",
            scenarios: both.into_iter().flat_map(|k| runs(library::ambush(k))).collect(),
        },
        Column { name: "ambush, silent", scenarios: of_both(library::ambush) },
    ]
}
