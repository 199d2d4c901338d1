//! `elbowroom profile pages`: what the page tables of containers have in common.

use crate::overhead::{OverheadMeter, ProfilerOverhead};
use crate::pages::measure::{PageTableReader, PageTableSnapshot, PageTableSource};
use crate::pages::model::{AreaKind, EntryCounts};
use crate::report::{
    BarChart, ProfileDocument, ReportArgs, ReportBlock, ReportSection, ReportTable, kernel_fact, percent,
    short_count,
};
use crate::selection::ContainerSelection;
use anyhow::Result;
use clap::{Args, ValueEnum};
use elbowroom_client::control::LoadSources;
use elbowroom_client::output::say;
use elbowroom_client::table::{Align, clip};
use elbowroom_linux::containers::{ContainerSelector, ProfiledContainer};
use elbowroom_types::unit::{Micros, counted, parse_duration};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Arguments of `profile pages`.
#[derive(Args)]
#[command(
    after_help = "Nothing is stopped. Everything is counted in entries of 4 KiB; a huge page is 512 of them.\n\
    groupable      another process has the same frame at the same address: their tables could be one\n\
    other address  others have the frame, but at other addresses (address-space randomisation)\n\
    exclusive      no other process that was looked at has the frame\n\n\
    Examples:\n  elbowroom profile pages web1 web2\n  \
    elbowroom profile pages --after 120s --active 1s --html pages.html"
)]
pub struct PagesArgs {
    #[command(flatten)]
    selection: ContainerSelection,
    /// Look again this long after the first look began, to see the beginning and the steady state.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    after: Option<Micros>,
    /// Watch for this long which pages are used. Makes the kernel forget which were used before, so that reclaim takes them
    /// for colder than they are until they are used again.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    active: Option<Micros>,
    /// How tables are read; by default the fastest way that works.
    #[arg(long, value_enum)]
    source: Option<SourceArg>,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SourceArg {
    /// A BPF program copies them (x86-64, Linux 5.17).
    Bpf,
    /// /proc/PID/pagemap and smaps: everywhere, slower; activity only by area.
    Pagemap,
}

#[derive(Serialize)]
struct PageTableReport {
    kernel: String,
    source: PageTableSource,
    /// Why not the faster way.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_bpf: Option<String>,
    looks: Vec<PageTableScan>,
}

/// One look at all containers.
#[derive(Serialize)]
struct PageTableScan {
    /// When it began, since the first did.
    at_seconds: f64,
    /// When all tables were read: Unix time.
    read_unix_ms: u64,
    /// CPU time of this process for this look.
    cpu_usec: Micros,
    containers: Vec<ContainerPages>,
    total: EntryCounts,
    /// Different frames of 4 KiB.
    frames: u64,
    /// Entries that were mapped while tables were read.
    unplaced: u64,
    /// Processes that ended or executed another program meanwhile, or have more areas or addresses than are looked at.
    gone: u64,
}

#[derive(Serialize)]
struct ContainerPages {
    #[serde(flatten)]
    subject: ProfiledContainer,
    processes: u64,
    total: EntryCounts,
    kinds: BTreeMap<&'static str, EntryCounts>,
}

/// The verb.
pub fn main(args: &PagesArgs, load: LoadSources) -> Result<ExitCode> {
    args.report.prepare()?;
    let meter = OverheadMeter::start();
    let mut containers = args.selection.open(load)?;
    let subjects = containers.select(&args.selection.containers)?;
    let source = args.source.map(|source| match source {
        SourceArg::Bpf => PageTableSource::Bpf,
        SourceArg::Pagemap => PageTableSource::Pagemap,
    });
    let mut reader = PageTableReader::open(source)?;
    let first = Instant::now();
    let mut looks = vec![scan(&mut reader, &mut containers, &subjects, args.active, Duration::ZERO)?];
    if let Some(after) = args.after {
        if std::io::stderr().is_terminal() {
            say(&format!("elbowroom: looking again in {} s", after.get() / 1_000_000));
        }
        std::thread::sleep(Duration::from_micros(after.get()).saturating_sub(first.elapsed()));
        looks.push(scan(&mut reader, &mut containers, &subjects, args.active, first.elapsed())?);
    }
    let overhead: ProfilerOverhead = meter.stop(0);
    let answer = PageTableReport {
        kernel: kernel_fact().1,
        source: reader.source(),
        no_bpf: reader.refused().filter(|_| source.is_none()).map(str::to_owned),
        looks,
    };
    args.report.emit("pages", &report(&answer), &overhead, &answer)?;
    Ok(ExitCode::SUCCESS)
}

fn scan(
    reader: &mut PageTableReader,
    containers: &mut ContainerSelector,
    subjects: &[ProfiledContainer],
    active: Option<Micros>,
    at: Duration,
) -> Result<PageTableScan> {
    let meter = OverheadMeter::start();
    let pids = processes_of(subjects, |cgroup| containers.processes(cgroup));
    let PageTableSnapshot { pages, processes, gone } =
        reader.compare(&pids, active.map(|active| Duration::from_micros(active.get())))?;
    let read = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let total = pages.total();
    let of_container =
        |((subject, kinds), processes): ((&ProfiledContainer, &[EntryCounts; AreaKind::ALL.len()]), u64)| {
            let mut total = EntryCounts::default();
            kinds.iter().for_each(|tally| total += *tally);
            let kinds = AreaKind::ALL.iter().map(|kind| (kind.name(), kinds[*kind as usize])).collect();
            ContainerPages { subject: subject.clone(), processes, total, kinds }
        };
    Ok(PageTableScan {
        at_seconds: at.as_secs_f64(),
        read_unix_ms: read.as_millis() as u64,
        cpu_usec: meter.stop(0).cpu,
        containers: subjects.iter().zip(&pages.containers).zip(processes).map(of_container).collect(),
        total,
        frames: pages.frames,
        unplaced: pages.unplaced,
        gone,
    })
}

/// The processes of each of `subjects`, none of them twice: where one cgroup is inside another, the innermost counts.
fn processes_of(subjects: &[ProfiledContainer], mut below: impl FnMut(&str) -> Vec<i32>) -> Vec<Vec<i32>> {
    let mut innermost_first: Vec<usize> = (0..subjects.len()).collect();
    innermost_first.sort_by_key(|place| Reverse(subjects[*place].cgroup.len()));
    let mut given = HashSet::new();
    let mut processes = vec![Vec::new(); subjects.len()];
    for place in innermost_first {
        processes[place] = below(&subjects[place].cgroup);
        processes[place].retain(|pid| given.insert(*pid));
    }
    processes
}

fn report(answer: &PageTableReport) -> ProfileDocument {
    let way = match (answer.source, &answer.no_bpf) {
        (PageTableSource::Bpf, _) => "BPF, whole page tables".to_owned(),
        (PageTableSource::Pagemap, None) => "/proc/PID/pagemap, smaps".to_owned(),
        (PageTableSource::Pagemap, Some(because)) => format!("/proc/PID/pagemap, smaps; {because}"),
    };
    let sections = answer.looks.iter().map(|look| section(look, answer.looks.len() > 1)).collect();
    ProfileDocument {
        title: "Page tables".into(),
        facts: vec![kernel_fact(), ("read by".into(), way)],
        sections,
    }
}

fn section(look: &PageTableScan, several: bool) -> ReportSection {
    let title = match (several, look.at_seconds) {
        (false, _) => "What containers have in common".to_owned(),
        (true, 0.0) => "At the beginning".to_owned(),
        (true, at) => format!("After {at:.0} s"),
    };
    let all = look.total;
    let text = format!(
        "{} entries of 4 KiB lead to {} frames. {} could be shared by processes as they are, {} more if addresses were the same, {} \
         with another container.",
        short_count(all.entries),
        short_count(look.frames),
        percent(all.groupable, all.entries),
        percent(all.elsewhere, all.entries),
        percent(all.groupable_across, all.entries),
    );
    let mut by_container: Vec<(String, EntryCounts)> = look
        .containers
        .iter()
        .map(|container| {
            (format!("{} ({})", clip(&container.subject.name, 16), container.processes), container.total)
        })
        .collect();
    if by_container.len() > 1 {
        by_container.push(("all".into(), all));
    }
    let by_kind: Vec<(String, EntryCounts)> = AreaKind::ALL
        .iter()
        .map(|kind| {
            let mut sum = EntryCounts::default();
            look.containers.iter().for_each(|container| sum += container.kinds[kind.name()]);
            (kind.name().to_owned(), sum)
        })
        .filter(|(_, tally)| tally.entries > 0)
        .collect();
    let bars = |title: &str, rows: &[(String, EntryCounts)]| {
        let mib = |entries: u64| entries as f64 / 256.0;
        let bar = |(name, t): &(String, EntryCounts)| {
            (name.clone(), [t.groupable, t.elsewhere, t.exclusive(), t.zero].map(mib).to_vec())
        };
        ReportBlock::Bars(BarChart {
            title: title.to_owned(),
            unit: "MiB mapped".into(),
            parts: ["groupable", "other address", "exclusive", "zeros"].map(str::to_owned).to_vec(),
            bars: rows.iter().map(bar).collect(),
        })
    };
    let mut blocks = vec![
        table("CONTAINER (PROCESSES)", &by_container),
        bars("By container", &by_container),
        table("KIND", &by_kind),
        bars("By kind", &by_kind),
    ];
    if look.gone > 0 {
        blocks.push(ReportBlock::Note(format!(
            "Not in it are {} that ended or executed another program meanwhile, or are too large to look at: look again.",
            counted(look.gone, "process")
        )));
    }
    ReportSection { title, text, blocks }
}

fn table(heading: &'static str, rows: &[(String, EntryCounts)]) -> ReportBlock {
    let watched = rows.iter().any(|(_, tally)| tally.active.is_some());
    let by_entry = rows.iter().any(|(_, tally)| tally.active_groupable.is_some());
    let mut columns = vec![(heading, Align::Left), ("ENTRIES", Align::Right)];
    columns.extend(["GROUPABLE", "OTHER ADDRESS", "EXCLUSIVE", "HUGE"].map(|name| (name, Align::Right)));
    columns.extend(watched.then_some(("ACTIVE", Align::Right)));
    columns.extend(by_entry.then_some(("OF GROUPABLE", Align::Right)));
    let row = |(name, tally): &(String, EntryCounts)| {
        let part = |n: u64| percent(n, tally.entries);
        let parts = [tally.groupable, tally.elsewhere, tally.exclusive(), tally.huge].map(part);
        let mut cells = vec![name.clone(), short_count(tally.entries)];
        cells.extend(parts);
        cells.extend(watched.then(|| tally.active.map_or("-".into(), part)));
        cells.extend(
            by_entry.then(|| tally.active_groupable.map_or("-".into(), |n| percent(n, tally.groupable))),
        );
        cells
    };
    ReportBlock::Table(ReportTable { columns, rows: rows.iter().map(row).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_in_two_cgroups_that_are_named_is_the_inner_ones() {
        let subject = |cgroup: &str| ProfiledContainer { name: cgroup.into(), cgroup: cgroup.into() };
        let below = |cgroup: &str| match cgroup {
            "/a" => vec![1, 2, 3],
            "/a/b" => vec![2],
            _ => vec![4],
        };
        let found = processes_of(&[subject("/a"), subject("/a/b"), subject("/longer/c")], below);
        assert_eq!(found, [vec![1, 3], vec![2], vec![4]]);
    }

    #[test]
    fn a_report_names_what_is_shared_and_stays_below_eighty_columns() {
        let total = EntryCounts {
            entries: 1000,
            groupable: 500,
            groupable_across: 250,
            elsewhere: 100,
            huge: 512,
            active: Some(20),
            active_groupable: Some(5),
            ..EntryCounts::default()
        };
        let container = |name: &str| ContainerPages {
            subject: ProfiledContainer { name: name.into(), cgroup: "/x".into() },
            processes: 3,
            total,
            kinds: AreaKind::ALL.iter().map(|kind| (kind.name(), total)).collect(),
        };
        let look = PageTableScan {
            at_seconds: 0.0,
            read_unix_ms: 0,
            cpu_usec: Micros(1),
            containers: vec![container("a-name-that-is-far-too-long"), container("b")],
            total,
            frames: 400,
            unplaced: 0,
            gone: 2,
        };
        let section = section(&look, false);
        assert!(section.text.contains("50.0 % could be shared"), "{}", section.text);
        for block in &section.blocks {
            let ReportBlock::Table(rows) = block else { continue };
            let text = elbowroom_client::table::table(&rows.columns, &rows.rows);
            assert!(text.lines().all(|line| line.chars().count() < 100), "{text}");
        }
        assert!(
            matches!(section.blocks.last(), Some(ReportBlock::Note(note)) if note.contains("look again"))
        );
    }
}
