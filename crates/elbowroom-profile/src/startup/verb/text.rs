//! A start-up profile for people.

use super::{StartupCost, StartupReport};
use crate::report::{
    BarChart, FlameGraph, LineChart, ProfileDocument, ReportBlock, ReportSection, ReportTable,
};
use crate::startup::breakdown::SampleSplit;
use crate::startup::family::FunctionFamily;
use crate::startup::timeline::{RequestRate, StartupSummary};
use elbowroom_client::table::{Align, clip};
use elbowroom_types::unit::{Micros, counted};

/// Programs and families that are named; the rest is one line.
const MAX_NAMED: usize = 12;

/// The whole report.
pub(super) fn report(answer: &StartupReport) -> ProfileDocument {
    let fact = |name: &str, value: String| (name.to_owned(), value);
    let mut facts = vec![
        fact("engine", format!("{} {}", answer.engine, answer.version)),
        fact("one start", answer.start.to_owned()),
        fact("network", answer.network.clone()),
    ];
    facts.extend(answer.runtime.iter().map(|runtime| fact("runtime", runtime.clone())));
    facts.extend([
        fact("applications", answer.applications.join(", ")),
        fact("machine", format!("{}, Linux {}", counted(answer.cpus, "CPU"), answer.kernel)),
        fact("requests", format!("for {} at each rate, due or not", Micros(answer.for_usec))),
    ]);
    let mut sections = vec![latency(answer)];
    if answer.applications.len() > 1 {
        sections.push(by_application(answer));
    }
    if let Some(cost) = &answer.breakdown {
        sections.extend([programs(cost), families(cost)]);
    }
    ProfileDocument { title: "Start-up of containers".to_owned(), facts, sections }
}

/// The flame graph of all samples.
pub(super) fn flame_graph(cost: &StartupCost) -> FlameGraph {
    FlameGraph::of(cost.stacks.iter().map(|(stack, count)| (stack.folded(), *count)))
}

const LATENCY: [(&str, Align); 9] = [
    ("RATE/S", Align::Right),
    ("STARTS", Align::Right),
    ("FAILED", Align::Right),
    ("MEAN", Align::Right),
    ("P50", Align::Right),
    ("P95", Align::Right),
    ("P99", Align::Right),
    ("MAX", Align::Right),
    ("DONE/S", Align::Right),
];

fn latency(answer: &StartupReport) -> ReportSection {
    let rows = answer.rates.iter().map(|at| latency_row(at.rate, &at.all)).collect();
    let line = |name: &str, of: fn(&StartupSummary) -> Micros| {
        let points = answer.rates.iter().map(|at| (at.rate.per_second(), ms(of(&at.all)))).collect();
        (name.to_owned(), points)
    };
    let mut lines = vec![
        line("p99", |s| s.p99),
        line("p95", |s| s.p95),
        line("mean", |s| s.mean),
        line("p50", |s| s.p50),
    ];
    lines
        .iter_mut()
        .for_each(|(_, points): &mut (String, Vec<(f64, f64)>)| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    let mut blocks = vec![
        ReportBlock::Table(ReportTable { columns: LATENCY.to_vec(), rows }),
        ReportBlock::Lines(LineChart {
            title: "Latency of a start by rate".into(),
            x: "starts per second".into(),
            y: "milliseconds".into(),
            lines,
        }),
    ];
    for at in &answer.rates {
        if at.saturated {
            blocks.push(ReportBlock::Note(format!(
                "At {} per second the engine fell behind: it answered {:.1} per second, and latency is mostly queueing.",
                at.rate.per_second(),
                at.all.achieved_per_second
            )));
        }
        if let Some(error) = at.requests.iter().find_map(|start| start.error.as_deref()) {
            let (failed, rate) = (at.all.failures, at.rate.per_second());
            blocks.push(ReportBlock::Note(format!(
                "At {rate} per second {failed} did not start, first: {}",
                clip(error, 300)
            )));
        }
    }
    ReportSection {
        title: "Latency".into(),
        text: "Milliseconds from when a start was due until the engine answered; percentiles are starts that were seen.".into(),
        blocks,
    }
}

fn latency_row(rate: RequestRate, summary: &StartupSummary) -> Vec<String> {
    let times = [summary.mean, summary.p50, summary.p95, summary.p99, summary.max]
        .map(|time| format!("{:.0}", ms(time)));
    let mut row =
        vec![rate.per_second().to_string(), summary.starts.to_string(), summary.failures.to_string()];
    row.extend(times);
    row.push(format!("{:.1}", summary.achieved_per_second));
    row
}

fn by_application(answer: &StartupReport) -> ReportSection {
    let mut columns = vec![("APPLICATION", Align::Left)];
    columns.extend(&LATENCY[..8]);
    let mut rows = Vec::new();
    for (i, name) in answer.applications.iter().enumerate() {
        for at in &answer.rates {
            let mut row = vec![clip(name, 20)];
            row.extend(latency_row(at.rate, &at.applications[i]).into_iter().take(8));
            rows.push(row);
        }
    }
    let lines = answer.applications.iter().enumerate().map(|(i, name)| {
        let mut points: Vec<(f64, f64)> =
            answer.rates.iter().map(|at| (at.rate.per_second(), ms(at.applications[i].p50))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (name.clone(), points)
    });
    let figure = LineChart {
        title: "Median latency of a start by application".into(),
        x: "starts per second, of all applications together".into(),
        y: "milliseconds".into(),
        lines: lines.collect(),
    };
    ReportSection {
        title: "Applications".into(),
        text: "The same, by application; the rate is that of all together, and they take turns.".into(),
        blocks: vec![ReportBlock::Table(ReportTable { columns, rows }), ReportBlock::Lines(figure)],
    }
}

fn programs(cost: &StartupCost) -> ReportSection {
    let columns = vec![
        ("PROGRAM", Align::Left),
        ("MS/START", Align::Right),
        ("SHARE", Align::Right),
        ("KERNEL", Align::Right),
        ("MOST OF IT", Align::Left),
    ];
    let all = cost.breakdown.split.sum();
    let row = |name: &str, split: SampleSplit, most: String| {
        vec![
            name.to_owned(),
            cost.per_start(split.sum()),
            percent(split.sum(), all),
            percent(split.kernel, split.sum()),
            most,
        ]
    };
    let named = cost.breakdown.programs.iter().take(MAX_NAMED);
    let mut rows: Vec<Vec<String>> = named
        .map(|program| {
            let most: Vec<&str> = program.families.iter().take(2).map(|share| share.family.label()).collect();
            row(&clip(&program.name, 16), program.split, most.join(", "))
        })
        .collect();
    if let Some(rest) = cost.breakdown.programs.get(MAX_NAMED..).filter(|rest| !rest.is_empty()) {
        let sum = |of: fn(&SampleSplit) -> u64| rest.iter().map(|program| of(&program.split)).sum();
        let split = SampleSplit { kernel: sum(|split| split.kernel), user: sum(|split| split.user) };
        rows.push(row(&format!("{} others", rest.len()), split, String::new()));
    }
    rows.push(row("all", cost.breakdown.split, String::new()));
    let bars = cost.breakdown.programs.iter().take(MAX_NAMED);
    let bars = BarChart {
        title: "CPU time per start by program, in the kernel and in the program".into(),
        unit: "ms".into(),
        parts: vec!["kernel".into(), "program".into()],
        bars: bars
            .map(|p| {
                (p.name.clone(), vec![cost.ms_per_start(p.split.kernel), cost.ms_per_start(p.split.user)])
            })
            .collect(),
    };
    let tally = cost.samples;
    let note = format!(
        "Not in it: {} ms per start of kernel threads, and {} ms of CPU of the rest of the machine during all starts.",
        cost.per_start(tally.kernel_threads),
        tally.others * 1000 / cost.frequency_hz
    );
    let mut blocks = vec![
        ReportBlock::Table(ReportTable { columns, rows }),
        ReportBlock::Bars(bars),
        ReportBlock::Note(note),
    ];
    if all < 500 {
        blocks.push(ReportBlock::Note(format!(
            "Only {all} samples: a share is then uncertain by several percent; more starts or a higher --frequency give more."
        )));
    }
    ReportSection {
        title: "CPU time by program".into(),
        text: format!(
            "The engine and everything that it started, {} samples during {} starts, from the first request of a rate to its last \
             answer. KERNEL is the part of a program's own time that it is in the kernel.",
            all, cost.starts
        ),
        blocks,
    }
}

fn families(cost: &StartupCost) -> ReportSection {
    let columns = vec![
        ("WHAT", Align::Left),
        ("MS/START", Align::Right),
        ("SHARE", Align::Right),
        ("KERNEL", Align::Right),
        ("PROGRAM", Align::Right),
    ];
    let all = cost.breakdown.split.sum();
    let rows = cost.breakdown.families.iter().map(|share| {
        let SampleSplit { kernel, user } = share.split;
        vec![
            share.family.label().to_owned(),
            cost.per_start(share.split.sum()),
            percent(share.split.sum(), all),
            percent(kernel, all),
            percent(user, all),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let top: Vec<FunctionFamily> =
        cost.breakdown.families.iter().take(MAX_NAMED).map(|share| share.family).collect();
    let bars = cost.breakdown.programs.iter().take(6).map(|program| {
        let of = |family: &FunctionFamily| {
            let share = program.families.iter().find(|share| share.family == *family);
            cost.ms_per_start(share.map_or(0, |share| share.split.sum()))
        };
        let mut parts: Vec<f64> = top.iter().map(of).collect();
        parts.push((cost.ms_per_start(program.split.sum()) - parts.iter().sum::<f64>()).max(0.0));
        (program.name.clone(), parts)
    });
    let figure = BarChart {
        title: "CPU time per start by program and by what it is spent on".into(),
        unit: "ms".into(),
        bars: bars.collect(),
        parts: top.iter().map(|family| family.label().to_owned()).chain(["the rest".to_owned()]).collect(),
    };
    let mut blocks = vec![ReportBlock::Table(ReportTable { columns, rows }), ReportBlock::Bars(figure)];
    let flame = flame_graph(cost);
    if !flame.is_empty() {
        blocks.push(ReportBlock::Flame(flame));
    }
    let resolved = cost.breakdown.resolved;
    blocks.push(ReportBlock::Note(format!(
        "{} of the time is in a family that says what was done; {} of the programs' frames have a name.",
        percent(cost.breakdown.told, all),
        percent(resolved.named, resolved.frames)
    )));
    if !cost.kernel_symbols {
        blocks.push(ReportBlock::Note(
            "The kernel hides its functions' addresses: set kernel.kptr_restrict to 0 or 1 to have its time broken down.".into(),
        ));
    }
    ReportSection {
        title: "What CPU time is spent on".into(),
        text: "By family of functions; shares are of all samples. A page fault is one wherever it happens, copying page tables \
               and taking mappings down are not counted as fork, exec or exit."
            .into(),
        blocks,
    }
}

impl StartupCost {
    fn ms_per_start(&self, samples: u64) -> f64 {
        samples as f64 * 1e3 / self.frequency_hz as f64 / self.starts.max(1) as f64
    }

    fn per_start(&self, samples: u64) -> String {
        format!("{:.1}", self.ms_per_start(samples))
    }
}

fn percent(part: u64, all: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / all.max(1) as f64)
}

fn ms(time: Micros) -> f64 {
    time.get() as f64 / 1e3
}
