//! What was counted, for people.

use super::count::{Answer, ContainerFaults, Faults};
use crate::faults::model::{Class, Counts, Rate, TIMED_ONE_IN, Tier, Work};
use crate::report::{Bars, Block, Report, Section, Table};
use crate::verb::{percent, short};
use elbowroom_client::table::{Align, clip, table};
use elbowroom_types::unit::Micros;

/// Classes with a column each; the unknown ones are told in words where there are any.
const COLUMNS: [(Class, &str); 6] = [
    (Class::Read, "READ"),
    (Class::Cow, "COW"),
    (Class::Shared, "SHARED"),
    (Class::Anonymous, "ANON"),
    (Class::Swap, "SWAP"),
    (Class::WriteProtect, "WP"),
];

/// The name of a tier, as `--tier` takes it.
pub(super) fn tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Functions => "functions",
        Tier::Tracepoints => "tracepoints",
    }
}

/// One table of what happened in `elapsed`, per second.
pub(super) fn live(rows: &[(String, Counts, Work)], elapsed: Micros) -> String {
    let mut heading = vec![("FAULTS PER SECOND", Align::Left), ("ALL", Align::Right)];
    heading.extend(COLUMNS.map(|(_, name)| (name, Align::Right)));
    heading.extend([("DUP", Align::Right), ("CPUS", Align::Right)]);
    let seconds = (elapsed.get() as f64 / 1e6).max(1e-6);
    let rate = |n: u64| short((n as f64 / seconds).round() as u64);
    let row = |(name, counts, work): &(String, Counts, Work)| {
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
pub(super) fn report(answer: &Answer) -> Report {
    let tier = match (answer.tier, &answer.no_functions) {
        (Tier::Functions, _) => "the functions of the fault handler".to_owned(),
        (Tier::Tracepoints, None) => "tracepoints".to_owned(),
        (Tier::Tracepoints, Some(because)) => format!("tracepoints; not functions: {because}"),
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
    Report { title: "Page faults".into(), facts, sections }
}

fn counts_instructions(answer: &Answer) -> bool {
    answer.containers.iter().any(|container| matches!(container.rate, Some(Rate::PerMillionInstructions(_))))
}

fn counts_cpu_time(answer: &Answer) -> bool {
    answer.containers.iter().any(|container| matches!(container.rate, Some(Rate::PerCpuSecond(_))))
}

fn classes(answer: &Answer) -> Section {
    let instructions = counts_instructions(answer);
    let per = if instructions { "PER M INSTR" } else { "PER CPU S" };
    let mut columns = vec![("CONTAINER", Align::Left), ("FAULTS", Align::Right), (per, Align::Right)];
    columns.extend(COLUMNS.map(|(_, name)| (name, Align::Right)));
    let row = |name: &str, faults: &Faults, rate: Option<Rate>| {
        let rate = match rate {
            None => "-".to_owned(),
            Some(Rate::PerMillionInstructions(n)) => format!("{n:.1}"),
            // One that began late or anew has no counters, whatever the heading says.
            Some(Rate::PerCpuSecond(n)) if instructions => format!("{}/s", short(n.round() as u64)),
            Some(Rate::PerCpuSecond(n)) => short(n.round() as u64),
        };
        let mut cells = vec![clip(name, 20), short(faults.total), rate];
        cells.extend(COLUMNS.map(|(class, _)| short(faults.classes[class.name()])));
        cells
    };
    let mut rows: Vec<Vec<String>> =
        answer.containers.iter().map(|c| row(&c.subject.name, &c.faults, c.rate)).collect();
    rows.push(row("others", &answer.others, None));
    let bars = answer.containers.iter().map(|container| {
        let of = |class: &Class| container.faults.classes[class.name()] as f64;
        (container.subject.name.clone(), Class::ALL.iter().map(of).collect())
    });
    let bars = Bars {
        title: "Faults by class".into(),
        unit: "faults".into(),
        parts: Class::ALL.map(|class| class.name().to_owned()).to_vec(),
        bars: bars.collect(),
    };
    let mut blocks = vec![Block::Table(Table { columns, rows }), Block::Bars(bars)];
    let unknown: u64 = answer.containers.iter().map(|c| c.faults.classes[Class::Unknown.name()]).sum();
    if unknown > 0 {
        blocks.push(Block::Note(format!(
            "{unknown} faults are of no known class: nothing was mapped there, or just then something else."
        )));
    }
    let text = format!("In {:.1} s.", answer.elapsed_usec.get() as f64 / 1e6);
    Section { title: "Classes".into(), text, blocks }
}

fn pages(answer: &Answer) -> Section {
    let columns = ["MAJOR", "OF ALL", "DUPLICATES", "OF FILES'"].map(|name| (name, Align::Right));
    let row = |container: &ContainerFaults| {
        let faults = &container.faults;
        let files = [Class::Read, Class::Cow, Class::Shared].map(|class| faults.classes[class.name()]);
        vec![
            clip(&container.subject.name, 20),
            short(faults.major),
            percent(faults.major, faults.total),
            short(faults.duplicates),
            percent(faults.duplicates, files.iter().sum()),
        ]
    };
    let columns = std::iter::once(("CONTAINER", Align::Left)).chain(columns).collect();
    let table = Table { columns, rows: answer.containers.iter().map(row).collect() };
    Section {
        title: "Disk and duplicates".into(),
        text: "A major fault waited for a disk. A duplicate is on a page of a file that another container has faulted on before."
            .into(),
        blocks: vec![Block::Table(table)],
    }
}

fn latencies(answer: &Answer) -> Option<Section> {
    let columns = ["TIMED", "P50", "P99"]
        .into_iter()
        .chain(COLUMNS.map(|(_, name)| name))
        .map(|name| (name, Align::Right));
    let columns: Vec<_> = std::iter::once(("NANOSECONDS", Align::Left)).chain(columns).collect();
    let row = |container: &ContainerFaults| {
        let latency = container.faults.latency.as_ref()?;
        let sizes = [latency.timed, latency.p50_ns, latency.p99_ns].map(short);
        let mut cells: Vec<String> =
            std::iter::once(clip(&container.subject.name, 20)).chain(sizes).collect();
        let mean = |class: Class| latency.mean_ns.get(class.name()).map_or("-".to_owned(), |ns| short(*ns));
        cells.extend(COLUMNS.map(|(class, _)| mean(class)));
        Some(cells)
    };
    let rows: Vec<Vec<String>> = answer.containers.iter().filter_map(row).collect();
    let text = format!(
        "In the fault handler, with being counted, of one fault in {TIMED_ONE_IN}: half and 99 % of them (within a factor of 2), means by class."
    );
    (!rows.is_empty()).then(|| Section {
        title: "Latency".into(),
        text,
        blocks: vec![Block::Table(Table { columns, rows })],
    })
}

fn cost(answer: &Answer) -> Section {
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
    Section { title: "Cost of counting".into(), text, blocks: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::verb::count::ProgramCost;
    use elbowroom_linux::containers::Subject;

    /// An answer about containers that did such work and took a million faults each.
    fn answer(work: &[Work]) -> Answer {
        let mut counts = Counts::default();
        counts.faults[Class::Anonymous as usize] = 1_000_000;
        let container = |(at, work): (usize, &Work)| ContainerFaults {
            subject: Subject { name: format!("c{at}"), cgroup: format!("/c{at}") },
            faults: Faults::from(&counts),
            work: *work,
            rate: work.rate(counts.total()),
        };
        Answer {
            kernel: "6.1".into(),
            tier: Tier::Functions,
            no_functions: None,
            no_instructions: None,
            no_latency: None,
            elapsed_usec: Micros::secs(10),
            containers: work.iter().enumerate().map(container).collect(),
            others: Faults::from(&Counts::default()),
            cost: ProgramCost::default(),
        }
    }

    #[test]
    fn a_rate_in_another_unit_than_the_headings_says_so() {
        let instructions = Work { cpu: Micros::secs(20), instructions: Some(4_000_000_000) };
        let cpu_time = Work { cpu: Micros::secs(20), instructions: None };
        let told = |work: &[Work]| {
            let report = report(&answer(work));
            let Block::Table(table) = &report.sections[0].blocks[0] else { panic!("a table comes first") };
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
        let mut counts = Counts::default();
        counts.faults[Class::Anonymous as usize] = 3_000_000;
        let work = Work { cpu: Micros::secs(1), instructions: None };
        let rows = [("a-container-with-a-long-name".to_owned(), counts, work)];
        let text = live(&rows, Micros::secs(2));
        assert!(text.contains("1500k") && text.contains("0.50"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
    }
}
