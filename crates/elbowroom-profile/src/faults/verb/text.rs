//! What was counted, for people.

use super::count::{ContainerFaults, FaultReport, FaultTotals};
use crate::faults::model::{ExecutedWork, FaultClass, FaultCounts, FaultRate, FaultTier, TIMED_ONE_IN};
use crate::report::{
    BarChart, ProfileDocument, ReportBlock, ReportSection, ReportTable, percent, short_count,
};
use elbowroom_client::table::{Align, clip, table};
use elbowroom_types::unit::Micros;

/// Classes with a column each; the unknown ones are told in words where there are any.
const COLUMNS: [(FaultClass, &str); 6] = [
    (FaultClass::Read, "READ"),
    (FaultClass::Cow, "COW"),
    (FaultClass::Shared, "SHARED"),
    (FaultClass::Anonymous, "ANON"),
    (FaultClass::Swap, "SWAP"),
    (FaultClass::WriteProtect, "WP"),
];

/// One table of what happened in `elapsed`, per second.
pub(super) fn live_table(rows: &[(String, FaultCounts, ExecutedWork)], elapsed: Micros) -> String {
    let mut heading = vec![("FAULTS PER SECOND", Align::Left), ("ALL", Align::Right)];
    heading.extend(COLUMNS.map(|(_, name)| (name, Align::Right)));
    heading.extend([("DUP", Align::Right), ("CPUS", Align::Right)]);
    let seconds = (elapsed.get() as f64 / 1e6).max(1e-6);
    let rate = |n: u64| short_count((n as f64 / seconds).round() as u64);
    let row = |(name, counts, work): &(String, FaultCounts, ExecutedWork)| {
        let mut cells = vec![clip(name, 20), rate(counts.total())];
        cells.extend(COLUMNS.map(|(class, _)| rate(counts.of(class))));
        let cpus = work.cpu.get() as f64 / 1e6 / seconds;
        let cpus = if work.cpu == Micros::ZERO { "-".to_owned() } else { format!("{cpus:.2}") };
        cells.extend([rate(counts.duplicates), cpus]);
        cells
    };
    table(&heading, &rows.iter().map(row).collect::<Vec<_>>()) + "\n"
}

/// Everything, at the end.
pub(super) fn report(answer: &FaultReport) -> ProfileDocument {
    let tier = match (answer.tier, &answer.no_functions) {
        (FaultTier::Functions, _) => "the functions of the fault handler".to_owned(),
        (FaultTier::Tracepoints, None) => "tracepoints".to_owned(),
        (FaultTier::Tracepoints, Some(because)) => format!("tracepoints; not functions: {because}"),
    };
    let work = match &answer.no_instructions {
        Some(because) => format!("CPU time; no counter of instructions: {because}"),
        None => match (counts_instructions(answer), counts_cpu_time(answer)) {
            (true, false) => "instructions of the processor's counters".to_owned(),
            (true, true) => {
                "instructions of the processor's counters; CPU time (/s) where a container has none"
                    .to_owned()
            }
            (false, _) => "CPU time; no container is in the hierarchy that events are counted by".to_owned(),
        },
    };
    let mut facts = vec![
        ("kernel".to_owned(), answer.kernel.clone()),
        ("followed by".to_owned(), tier),
        ("relative to".to_owned(), work),
    ];
    facts.extend(answer.no_latency.map(|because| ("latency".to_owned(), format!("none: {because}"))));
    let mut sections = vec![classes(answer), pages(answer)];
    sections.extend(latencies(answer));
    sections.push(cost(answer));
    ProfileDocument { title: "Page faults".into(), facts, sections }
}

fn counts_instructions(answer: &FaultReport) -> bool {
    answer
        .containers
        .iter()
        .any(|container| matches!(container.rate, Some(FaultRate::PerMillionInstructions(_))))
}

fn counts_cpu_time(answer: &FaultReport) -> bool {
    answer.containers.iter().any(|container| matches!(container.rate, Some(FaultRate::PerCpuSecond(_))))
}

fn classes(answer: &FaultReport) -> ReportSection {
    let instructions = counts_instructions(answer);
    let per = if instructions { "PER M INSTR" } else { "PER CPU S" };
    let mut columns = vec![("CONTAINER", Align::Left), ("FAULTS", Align::Right), (per, Align::Right)];
    columns.extend(COLUMNS.map(|(_, name)| (name, Align::Right)));
    let row = |name: &str, faults: &FaultTotals, rate: Option<FaultRate>| {
        let rate = match rate {
            None => "-".to_owned(),
            Some(FaultRate::PerMillionInstructions(n)) => format!("{n:.1}"),
            // One that began late or anew has no counters, whatever the heading says.
            Some(FaultRate::PerCpuSecond(n)) if instructions => {
                format!("{}/s", short_count(n.round() as u64))
            }
            Some(FaultRate::PerCpuSecond(n)) => short_count(n.round() as u64),
        };
        let mut cells = vec![clip(name, 20), short_count(faults.total), rate];
        cells.extend(COLUMNS.map(|(class, _)| short_count(faults.classes[class.name()])));
        cells
    };
    let mut rows: Vec<Vec<String>> =
        answer.containers.iter().map(|c| row(&c.subject.name, &c.faults, c.rate)).collect();
    rows.push(row("others", &answer.others, None));
    let bars = answer.containers.iter().map(|container| {
        let of = |class: &FaultClass| container.faults.classes[class.name()] as f64;
        (container.subject.name.clone(), FaultClass::ALL.iter().map(of).collect())
    });
    let bars = BarChart {
        title: "Faults by class".into(),
        unit: "faults".into(),
        parts: FaultClass::ALL.map(|class| class.name().to_owned()).to_vec(),
        bars: bars.collect(),
    };
    let mut blocks = vec![ReportBlock::Table(ReportTable { columns, rows }), ReportBlock::Bars(bars)];
    let unknown: u64 = answer.containers.iter().map(|c| c.faults.classes[FaultClass::Unknown.name()]).sum();
    if unknown > 0 {
        blocks.push(ReportBlock::Note(format!(
            "{unknown} faults are of no known class: nothing was mapped there, or just then something else."
        )));
    }
    let text = format!("In {:.1} s.", answer.elapsed_usec.get() as f64 / 1e6);
    ReportSection { title: "Classes".into(), text, blocks }
}

fn pages(answer: &FaultReport) -> ReportSection {
    let columns = ["MAJOR", "OF ALL", "DUPLICATES", "OF FILES'"].map(|name| (name, Align::Right));
    let row = |container: &ContainerFaults| {
        let faults = &container.faults;
        let files =
            [FaultClass::Read, FaultClass::Cow, FaultClass::Shared].map(|class| faults.classes[class.name()]);
        vec![
            clip(&container.subject.name, 20),
            short_count(faults.major),
            percent(faults.major, faults.total),
            short_count(faults.duplicates),
            percent(faults.duplicates, files.iter().sum()),
        ]
    };
    let columns = std::iter::once(("CONTAINER", Align::Left)).chain(columns).collect();
    let table = ReportTable { columns, rows: answer.containers.iter().map(row).collect() };
    ReportSection {
        title: "Disk and duplicates".into(),
        text: "A major fault waited for a disk. A duplicate is on a page of a file that another container has faulted on before."
            .into(),
        blocks: vec![ReportBlock::Table(table)],
    }
}

fn latencies(answer: &FaultReport) -> Option<ReportSection> {
    let columns = ["TIMED", "P50", "P99"]
        .into_iter()
        .chain(COLUMNS.map(|(_, name)| name))
        .map(|name| (name, Align::Right));
    let columns: Vec<_> = std::iter::once(("NANOSECONDS", Align::Left)).chain(columns).collect();
    let row = |container: &ContainerFaults| {
        let latency = container.faults.latency.as_ref()?;
        let sizes = [latency.timed, latency.p50_ns, latency.p99_ns].map(short_count);
        let mut cells: Vec<String> =
            std::iter::once(clip(&container.subject.name, 20)).chain(sizes).collect();
        let mean = |class: FaultClass| {
            latency.mean_ns.get(class.name()).map_or("-".to_owned(), |ns| short_count(*ns))
        };
        cells.extend(COLUMNS.map(|(class, _)| mean(class)));
        Some(cells)
    };
    let rows: Vec<Vec<String>> = answer.containers.iter().filter_map(row).collect();
    let text = format!(
        "In the fault handler, with being counted, of one fault in {TIMED_ONE_IN}: half and 99 % of them (within a factor of 2), means by class."
    );
    (!rows.is_empty()).then(|| ReportSection {
        title: "Latency".into(),
        text,
        blocks: vec![ReportBlock::Table(ReportTable { columns, rows })],
    })
}

fn cost(answer: &FaultReport) -> ReportSection {
    let cost = answer.cost;
    let share = 100.0 * cost.cpu_usec.get() as f64 / answer.elapsed_usec.get().max(1) as f64;
    let text = match cost.ns_per_call {
        0 => "This kernel did not time the programs.".to_owned(),
        ns => format!(
            "A call of a program in the kernel took {ns} ns, timed in samples; all of them about {:.1} ms of CPU, {share:.2} % of one \
             CPU, spent by those that fault.",
            cost.cpu_usec.get() as f64 / 1e3
        ),
    };
    ReportSection { title: "Cost of counting".into(), text, blocks: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::verb::count::ProgramCost;
    use elbowroom_linux::containers::ProfiledContainer;

    /// An answer about containers that did such work and took a million faults each.
    fn answer(work: &[ExecutedWork]) -> FaultReport {
        let mut counts = FaultCounts::default();
        counts.faults[FaultClass::Anonymous as usize] = 1_000_000;
        let container = |(at, work): (usize, &ExecutedWork)| ContainerFaults {
            subject: ProfiledContainer { name: format!("c{at}"), cgroup: format!("/c{at}") },
            faults: FaultTotals::from(&counts),
            work: *work,
            rate: work.rate(counts.total()),
        };
        FaultReport {
            kernel: "6.1".into(),
            tier: FaultTier::Functions,
            no_functions: None,
            no_instructions: None,
            no_latency: None,
            elapsed_usec: Micros::secs(10),
            containers: work.iter().enumerate().map(container).collect(),
            others: FaultTotals::from(&FaultCounts::default()),
            cost: ProgramCost::default(),
        }
    }

    #[test]
    fn a_rate_in_another_unit_than_the_headings_says_so() {
        let instructions = ExecutedWork { cpu: Micros::secs(20), instructions: Some(4_000_000_000) };
        let cpu_time = ExecutedWork { cpu: Micros::secs(20), instructions: None };
        let told = |work: &[ExecutedWork]| {
            let report = report(&answer(work));
            let ReportBlock::Table(table) = &report.sections[0].blocks[0] else {
                panic!("a table comes first")
            };
            let rates: Vec<String> = table.rows.iter().map(|row| row[2].clone()).collect();
            (table.columns[2].0, rates, report.facts[2].1.clone())
        };
        let (heading, rates, relative) = told(&[instructions, cpu_time]);
        assert_eq!((heading, &rates[..2]), ("PER M INSTR", &["250.0".to_owned(), "50000/s".to_owned()][..]));
        assert!(relative.contains("instructions") && relative.contains("CPU time (/s)"), "{relative}");
        let (heading, rates, relative) = told(&[cpu_time]);
        assert_eq!((heading, rates[0].as_str()), ("PER CPU S", "50000"));
        assert!(relative.starts_with("CPU time"), "{relative}");
        assert!(!told(&[instructions]).2.contains("CPU time"));
    }

    #[test]
    fn a_live_table_is_per_second_and_fits_a_terminal() {
        let mut counts = FaultCounts::default();
        counts.faults[FaultClass::Anonymous as usize] = 3_000_000;
        let work = ExecutedWork { cpu: Micros::secs(1), instructions: None };
        let rows = [("a-container-with-a-long-name".to_owned(), counts, work)];
        let text = live_table(&rows, Micros::secs(2));
        assert!(text.contains("1500k") && text.contains("0.50"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
    }
}
