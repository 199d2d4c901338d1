//! A GPU profile for people.

use super::GpuReport;
use crate::gpu::{GpuCallKind, GpuComparison, GpuQuantity, GpuRun, TraceTotals};
use crate::report::{BarChart, ProfileDocument, ReportBlock, ReportSection, ReportTable};
use elbowroom_client::table::{Align, clip};
use std::collections::BTreeMap;

/// Kernels that are named; the rest is left to JSON.
const MAX_NAMED: usize = 8;

/// The whole report.
pub(super) fn report(answer: &GpuReport) -> ProfileDocument {
    let fact = |name: &str, value: String| (name.to_owned(), value);
    let traced = answer.runs.iter().filter(|run| run.sums.is_some()).count();
    let mut facts = vec![fact("kernel", answer.kernel.clone())];
    if !answer.command.is_empty() {
        facts.push(fact("program", clip(&answer.command.join(" "), 60)));
    }
    facts.extend(answer.runtime.iter().map(|runtime| fact("container", runtime.clone())));
    facts.push(fact("runs", format!("{} traced, {} not", traced, answer.runs.len() - traced)));
    let mut sections = vec![compared(answer), kernels(answer)];
    sections.extend(caveats(answer));
    ProfileDocument { title: "GPU program".to_owned(), facts, sections }
}

/// By how much tracing lengthens the program on the host.
pub(super) fn tracing_overhead(compared: &[GpuComparison]) -> Option<f64> {
    let of = |quantity| compared.iter().find(|c| c.quantity == quantity)?.native;
    Some(of(GpuQuantity::WallTraced)? / of(GpuQuantity::Wall)? - 1.0)
}

fn name(quantity: GpuQuantity) -> String {
    match quantity {
        GpuQuantity::Wall => "end to end".into(),
        GpuQuantity::WallTraced => "end to end, traced".into(),
        GpuQuantity::Traced => "  from cuInit() on".into(),
        GpuQuantity::Before => "cuInit()".into(),
        GpuQuantity::Kernel => "GPU in kernels".into(),
        GpuQuantity::Copy => "GPU copying".into(),
        GpuQuantity::Calls => "CUDA calls".into(),
        GpuQuantity::Call(call) => format!("  {}", call.name()),
    }
}

fn ms(ns: f64) -> String {
    format!("{:.3}", ns / 1e6)
}

fn compared(answer: &GpuReport) -> ReportSection {
    let both = answer.runs.iter().any(|run| run.container);
    let cell = |value: Option<f64>| value.map_or("-".to_owned(), ms);
    let mut columns = vec![("MS (MEDIAN)", Align::Left), ("NATIVE", Align::Right)];
    if both {
        let more = ["CONTAINER", "ADDED", "RATIO"].map(|name| (name, Align::Right));
        columns.extend(more);
    }
    let row = |c: &GpuComparison| {
        let mut cells = vec![name(c.quantity), cell(c.native)];
        if both {
            let ratio = c.ratio().map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
            cells.extend([cell(c.container), cell(c.added()), ratio]);
        }
        cells
    };
    // A trace that was made elsewhere says nothing of what came before it.
    let whole = answer.runs.iter().any(|run| run.sums.is_none());
    let known =
        |c: &&GpuComparison| whole || !matches!(c.quantity, GpuQuantity::Wall | GpuQuantity::WallTraced);
    let rows = answer.compared.iter().filter(known).map(row).collect();
    let parts: Vec<GpuQuantity> = [GpuQuantity::Kernel, GpuQuantity::Copy, GpuQuantity::Before]
        .into_iter()
        .chain(GpuCallKind::ALL.map(GpuQuantity::Call))
        .collect();
    let of = |quantity, container: bool| {
        let found = answer.compared.iter().find(|c| c.quantity == quantity);
        found.and_then(|c| if container { c.container } else { c.native }).unwrap_or(0.0) / 1e6
    };
    let bar = |name: &str, container| (name.to_owned(), parts.iter().map(|q| of(*q, container)).collect());
    let mut bars = vec![bar("native", false)];
    if both {
        bars.push(bar("container", true));
    }
    let title = if both { "What the container adds" } else { "Where time goes" };
    ReportSection {
        title: title.to_owned(),
        text: "Time in calls is that of the innermost call; time on the GPU is when anything ran there. The GPU works while the program \
               waits, so parts overlap and do not add up to the end-to-end time. Of cuInit() there is what comes after the driver has \
               begun tracing."
            .into(),
        blocks: vec![
            ReportBlock::Table(ReportTable { columns, rows }),
            ReportBlock::Bars(BarChart {
                title: "GPU and CUDA calls".into(),
                unit: "ms".into(),
                parts: parts.iter().map(|q| name(*q).trim().to_owned()).collect(),
                bars,
            }),
        ],
    }
}

fn kernels(answer: &GpuReport) -> ReportSection {
    let mut sums: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    let traced: Vec<&TraceTotals> = answer.runs.iter().filter_map(|run: &GpuRun| run.sums.as_ref()).collect();
    for (name, calls) in traced.iter().flat_map(|sums| &sums.by_kernel) {
        let sum = sums.entry(name).or_default();
        *sum = [sum[0] + calls.calls, sum[1].saturating_add(calls.ns), sum[2] + 1];
    }
    let mut all: Vec<(&str, [u64; 3])> = sums.into_iter().collect();
    all.sort_by_key(|(name, [_, ns, _])| (std::cmp::Reverse(*ns), *name));
    let row = |(name, [launches, ns, runs]): &(&str, [u64; 3])| {
        vec![
            clip(name, 44),
            (launches / runs).to_string(),
            ms(*ns as f64 / *runs as f64),
            format!("{:.1}", *ns as f64 / *launches as f64 / 1e3),
        ]
    };
    let columns = vec![
        ("KERNEL", Align::Left),
        ("LAUNCHES", Align::Right),
        ("MS A RUN", Align::Right),
        ("US EACH", Align::Right),
    ];
    ReportSection {
        title: "Kernels".to_owned(),
        text: format!("Means of {} traced runs, the longest first.", traced.len()),
        blocks: vec![ReportBlock::Table(ReportTable {
            columns,
            rows: all.iter().take(MAX_NAMED).map(row).collect(),
        })],
    }
}

fn caveats(answer: &GpuReport) -> Option<ReportSection> {
    let sums = || answer.runs.iter().filter_map(|run| run.sums.as_ref());
    let mut blocks = Vec::new();
    let cut = sums().filter(|sums| !sums.complete).count();
    if cut > 0 {
        blocks.push(ReportBlock::Note(format!(
            "{cut} traces have no end: the program was killed or left without exit(), or the disk was full."
        )));
    }
    let lost: u64 = sums().map(|sums| sums.lost).sum();
    if lost > 0 {
        blocks.push(ReportBlock::Note(format!(
            "There was no room for {lost} records, with CUPTI or in the trace: times of the GPU and of calls are too short."
        )));
    }
    if let Some(adds) = answer.tracing_adds {
        let (percent, how) = (100.0 * adds.abs(), if adds < 0.0 { "shorter, by chance," } else { "longer" });
        blocks.push(ReportBlock::Note(format!(
            "Traced, the program takes {percent:.0} % {how} on the host; that is in everything but the first row."
        )));
    }
    (!blocks.is_empty()).then(|| ReportSection {
        title: "How sure this is".into(),
        text: String::new(),
        blocks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::compare;

    #[test]
    fn a_report_says_what_the_container_adds_and_what_is_doubtful() {
        let run = |container, wall_ns, traced: bool| GpuRun {
            container,
            wall_ns,
            sums: traced.then(|| TraceTotals { kernel_ns: 2_000_000, lost: 1, ..TraceTotals::default() }),
        };
        let runs = vec![
            run(false, 10_000_000, false),
            run(true, 30_000_000, false),
            run(false, 11_000_000, true),
            run(true, 31_000_000, true),
        ];
        let compared = compare(&runs);
        let answer = GpuReport {
            kernel: "6.1".into(),
            command: vec!["bench".into()],
            runtime: Some("runc 1.1".into()),
            tracing_adds: tracing_overhead(&compared),
            compared,
            runs,
        };
        let report = report(&answer);
        let ReportBlock::Table(rows) = &report.sections[0].blocks[0] else { panic!("a table comes first") };
        assert_eq!(rows.rows[0], ["end to end", "10.000", "30.000", "20.000", "3.00"]);
        assert_eq!(rows.rows[3], ["GPU in kernels", "2.000", "2.000", "0.000", "1.00"]);
        let notes: Vec<&ReportBlock> = report.sections[2].blocks.iter().collect();
        let text = format!("{notes:?}");
        assert!(
            text.contains("2 traces have no end")
                && text.contains("2 records")
                && text.contains("takes 10 % longer"),
            "{text}"
        );
    }
}
