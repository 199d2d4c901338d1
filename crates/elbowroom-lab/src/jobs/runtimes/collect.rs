//! Figures 2 and 6 to 9: how many threads collect, and what that costs.

use super::gclog::Pause;
use super::java::{self, Collector, Java, Launch};
use super::stage::{Outcome, Stage, soon};
use super::{Figure, Runtimes, by_key, spread};
use crate::cgroup::Limits;
use crate::job::{Folder, Lab, now_ns, table};
use crate::plot::{self, Axis, Layer, PALETTE, Panel, Pen};
use crate::stats::Spread;
use anyhow::{Context, Result};
use plotters::style::RGBColor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Time for machines to start before any begins to work, in milliseconds.
const START_MS: u64 = 3000;
/// Longest that a run is waited for.
const PATIENCE: Duration = Duration::from_secs(90);
/// Threads of the program.
const THREADS: u32 = 2;
/// When each neighbour of figures 7 and 8 ends, in milliseconds after the program's start.
const NEIGHBOURS_MS: [u64; 4] = [2000, 3000, 4000, 5000];
const GREY: RGBColor = RGBColor(190, 190, 190);

/// How the number of GC threads is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Variant {
    /// From the machine's CPUs.
    Vanilla,
    /// The same, and fewer where HotSpot thinks the heap too small for them.
    Dynamic,
    /// From the container's part of the CPUs when it starts.
    Static,
    /// By hand.
    Hand(u32),
    /// From the view, at each collection.
    Adaptive,
}

/// A program and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Program {
    Trees,
    Graph,
    Xslt,
    H2,
}

/// A campaign.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    figure: Figure,
    collector: Collector,
    java: String,
    cpus: u32,
    pretended: u32,
    containers: usize,
    size_percent: u32,
    runs: Vec<Vec<Arm>>,
}

/// One program under one variant, once.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Arm {
    program: Program,
    variant: Variant,
    machines: Vec<Machine>,
}

/// One virtual machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Machine {
    outcome: Outcome,
    /// From the common start until its program was done, in milliseconds.
    total_ms: Option<u64>,
    /// All pauses together, in milliseconds.
    gc_ms: f64,
    pauses: usize,
    cpu_ms: u64,
    /// (milliseconds after the program's start, GC threads): when they were others than before.
    threads: Vec<(i64, u32)>,
}

impl Variant {
    fn name(self) -> String {
        match self {
            Self::Vanilla => "vanilla".to_owned(),
            Self::Dynamic => "dynamic".to_owned(),
            Self::Static => "static limit".to_owned(),
            Self::Hand(threads) => format!("by hand, {threads}"),
            Self::Adaptive => "adaptive".to_owned(),
        }
    }

    /// What HotSpot is told; `most` is how many GC threads it makes where it sees all CPUs.
    fn options(self, collector: Collector, most: u32) -> Vec<String> {
        let concurrent = || format!("-XX:ConcGCThreads={}", (most + 2) / 4);
        let mut options = match self {
            Self::Vanilla => {
                vec!["-XX:-UseContainerSupport".into(), "-XX:-UseDynamicNumberOfGCThreads".into()]
            }
            Self::Dynamic => {
                vec!["-XX:-UseContainerSupport".into(), "-XX:+UseDynamicNumberOfGCThreads".into()]
            }
            Self::Static => vec!["-XX:ActiveProcessorCount=1".into()],
            Self::Hand(threads) => {
                vec!["-XX:-UseContainerSupport".into(), format!("-XX:ParallelGCThreads={threads}")]
            }
            Self::Adaptive => vec![format!("-XX:ParallelGCThreads={most}")],
        };
        if self == Self::Adaptive && collector == Collector::G1 {
            options.push(concurrent());
        }
        options
    }
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Trees => "trees",
            Self::Graph => "graph",
            Self::Xslt => "xslt",
            Self::H2 => "h2",
        }
    }

    /// Heap in MiB, and the program's two numbers.
    fn sizes(self, percent: u32) -> [u32; 3] {
        let scaled = |n: u32| (n * percent / 100).max(4);
        match self {
            Self::Trees => [160, 60, scaled(1500)],
            Self::Graph => [512, 240, scaled(600)],
            Self::Xslt => [64, scaled(120), 0],
            Self::H2 => [96, scaled(8000), 20_000],
        }
    }

    fn words(self, percent: u32) -> Vec<String> {
        let [_, first, second] = self.sizes(percent);
        vec![self.name().to_owned(), THREADS.to_string(), first.to_string(), second.to_string()]
    }
}

/// HotSpot's own count of GC threads on a machine of so many CPUs (`WorkerPolicy::parallel_worker_threads`): all up to eight, then
/// five of eight.
fn gc_threads(cpus: u32) -> u32 {
    if cpus <= 8 { cpus } else { 8 + (cpus - 8) * 5 / 8 }
}

fn programs(figure: Figure) -> &'static [Program] {
    match figure {
        Figure::SharedEqually => &[Program::Trees, Program::Xslt, Program::H2],
        Figure::LargeHeap => &[Program::Graph],
        _ => &[Program::Trees],
    }
}

fn variants(figure: Figure) -> &'static [Variant] {
    match figure {
        Figure::OverThreading => {
            &[Variant::Vanilla, Variant::Hand(1), Variant::Hand(2), Variant::Hand(4), Variant::Hand(8)]
        }
        Figure::Neighbours => &[Variant::Vanilla, Variant::Dynamic, Variant::Static, Variant::Adaptive],
        _ => &[Variant::Vanilla, Variant::Dynamic, Variant::Adaptive],
    }
}

/// Runs all variants of a figure, in an order that rotates.
pub(super) fn record(args: &Runtimes, lab: &Lab) -> Result<Raw> {
    let java = Java::new(args, args.cpus)?;
    let stage = Stage::open(lab, "jvm")?;
    let plan: Vec<(Program, Variant)> = programs(args.figure)
        .iter()
        .flat_map(|program| variants(args.figure).iter().map(move |variant| (*program, *variant)))
        .collect();
    let mut runs = Vec::new();
    for run in 0..args.runs {
        let mut plan = plan.clone();
        let count = plan.len();
        plan.rotate_left(run % count);
        let mut arms = Vec::new();
        for (i, (program, variant)) in plan.iter().enumerate() {
            let name = format!("{}, {}", program.name(), variant.name());
            eprintln!("run {} of {}, {} of {}: {name}", run + 1, args.runs, i + 1, count);
            let arm = tell(args, &stage, &java, *program, *variant);
            arms.push(arm.with_context(|| format!("while measuring \"{name}\""))?);
        }
        runs.push(arms);
    }
    Ok(Raw {
        figure: args.figure,
        collector: args.collector,
        java: java::version()?,
        cpus: crate::sysinfo::online_cpus(),
        pretended: args.cpus,
        containers: args.containers,
        size_percent: args.size,
        runs,
    })
}

fn tell(args: &Runtimes, stage: &Stage, java: &Java, program: Program, variant: Variant) -> Result<Arm> {
    let alone = args.figure == Figure::Neighbours;
    let machines = if alone { 1 } else { args.containers };
    let [heap, ..] = program.sizes(args.size);
    let mut options = variant.options(args.collector, gc_threads(args.cpus));
    options.extend([format!("-Xms{heap}m"), format!("-Xmx{heap}m")]);
    let containers = stage.containers(machines, &Limits::default(), variant == Variant::Adaptive)?;
    let others = if alone { NEIGHBOURS_MS.len() } else { 0 };
    let others = stage.containers(others, &Limits::default(), false)?;
    let start = soon(START_MS);
    let mut launch = Launch { options, agent: None, program: vec![start.to_string()] };
    launch.agent = (variant == Variant::Adaptive).then_some("heap=off,pools=off,jmx=off");
    launch.program.extend(program.words(args.size));
    let (mut started, mut leads) = (Vec::new(), Vec::new());
    for (i, container) in containers.into_iter().enumerate() {
        let child = java.start(stage, i, &container, &launch)?;
        started.push((container, child));
        leads.push((start as i64 - now_ns() as i64) / 1_000_000);
    }
    let (mut neighbours, cpus) = (Vec::new(), crate::sysinfo::online_cpus());
    for (container, until) in others.into_iter().zip(NEIGHBOURS_MS) {
        let plan = [start.to_string(), "busy".into(), "0".into(), until.to_string(), cpus.to_string()];
        let child = container.reader("load", &plan).spawn().context("while starting a neighbour")?;
        neighbours.push((container, child));
    }
    let ended = stage.wait(started, PATIENCE)?;
    stage.wait(neighbours, PATIENCE)?;
    let machine = |(i, ended): (usize, &super::stage::Ended)| {
        let pauses = java.pauses(stage, i)?;
        Ok(Machine {
            outcome: ended.outcome,
            total_ms: java::total_ms(ended),
            gc_ms: (pauses.iter().map(|pause| pause.ms).sum::<f64>() * 10.0).round() / 10.0,
            pauses: pauses.len(),
            cpu_ms: ended.cpu_ms,
            threads: changes(&pauses, leads[i]),
        })
    };
    Ok(Arm { program, variant, machines: ended.iter().enumerate().map(machine).collect::<Result<_>>()? })
}

/// Each pause whose threads are others than those of the one before it; `lead` is how long the machine was there before its program
/// began, in milliseconds.
fn changes(pauses: &[Pause], lead: i64) -> Vec<(i64, u32)> {
    let mut changes: Vec<(i64, u32)> = Vec::new();
    for pause in pauses {
        let Some(threads) = pause.threads else { continue };
        if changes.last().is_none_or(|(_, before)| *before != threads) {
            changes.push((pause.at_ms as i64 - lead, threads));
        }
    }
    changes
}

type Key = (Program, Variant);

/// Writes tables and figures.
pub(super) fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
    out.say(explain(raw));
    let arms = by_key(&raw.runs, |arm| (arm.program, arm.variant));
    out.say(table(&HEAD, &rows(raw, &arms)));
    out.say(format!(
        "Medians of {} runs (smallest to largest) of the mean over the containers of a run; variants took turns. Time of the \
         program is from the common start of all containers to its end. Collecting: all pauses of the GC log. GC threads: over \
         all pauses that say how many. CPU time is the container's, the machine's start included. Part: total time of the \
         variant by that of vanilla in the same run.",
        raw.runs.len()
    ));
    let bars: Vec<(String, Vec<f64>)> = arms
        .iter()
        .map(|((program, variant), arms)| {
            let median =
                |of: &dyn Fn(&Arm) -> f64| Spread::of(arms.iter().map(|a| of(a))).map_or(0.0, |s| s.median);
            let (total, gc) = (median(&total_s), median(&gc_s));
            (format!("{}, {}", program.name(), variant.name()), vec![gc, (total - gc).max(0.0)])
        })
        .collect();
    let title = "Time of the program: collecting, and the rest";
    out.figure("time.svg", title, &plot::bars(title, "seconds", &["collecting", "the rest"], &bars)?)?;
    let title = "GC threads over time";
    out.figure("threads.svg", title, &threads(raw, &arms, title)?)
}

const HEAD: [&str; 7] = [
    "program, variant",
    "time, s",
    "part of vanilla",
    "collecting, s",
    "pauses",
    "GC threads",
    "CPU time, s",
];

fn rows(raw: &Raw, arms: &BTreeMap<Key, Vec<&Arm>>) -> Vec<Vec<String>> {
    let row = |((program, variant), arms): (&Key, &Vec<&Arm>)| {
        let over = |of: &dyn Fn(&Arm) -> f64| spread(arms.iter().map(|arm| of(arm)));
        let parts = raw.runs.iter().filter_map(|run| {
            let of = |wanted: Variant| run.iter().find(|a| a.program == *program && a.variant == wanted);
            Some(total_s(of(*variant)?) / total_s(of(Variant::Vanilla)?) * 100.0)
        });
        let unfinished = arms.iter().flat_map(|arm| &arm.machines).filter(|m| m.total_ms.is_none()).count();
        let unfinished = if unfinished > 0 { format!("; {unfinished} not finished") } else { String::new() };
        let counts = arms.iter().flat_map(|arm| &arm.machines).flat_map(|m| &m.threads);
        let counts = Spread::of(counts.map(|(_, threads)| f64::from(*threads)));
        vec![
            format!("{}, {}", program.name(), variant.name()),
            over(&total_s) + &unfinished,
            Spread::of(parts).map_or("-".to_owned(), |s| s.text() + " %"),
            over(&gc_s),
            over(&|arm| mean(arm, |m| m.pauses as f64)),
            counts.map_or("-".to_owned(), |s| match s.min == s.max {
                true => plot::plain(s.min),
                false => format!("{} to {}", s.min, s.max),
            }),
            over(&|arm| mean(arm, |m| m.cpu_ms as f64 / 1e3)),
        ]
    };
    arms.iter().map(row).collect()
}

fn mean(arm: &Arm, of: impl Fn(&Machine) -> f64) -> f64 {
    arm.machines.iter().map(of).sum::<f64>() / arm.machines.len().max(1) as f64
}

/// A machine that did not finish counts with the patience that was had with it.
fn total_s(arm: &Arm) -> f64 {
    mean(arm, |m| m.total_ms.map_or(PATIENCE.as_secs_f64(), |ms| ms as f64 / 1e3))
}

fn gc_s(arm: &Arm) -> f64 {
    mean(arm, |m| m.gc_ms / 1e3)
}

/// A panel per program and variant: every machine of the first run.
fn threads(raw: &Raw, arms: &BTreeMap<Key, Vec<&Arm>>, title: &str) -> Result<String> {
    let seconds = |ms: i64| ms as f64 / 1e3;
    let firsts: Vec<(&Key, &Arm)> =
        arms.iter().filter_map(|(key, arms)| Some((key, *arms.first()?))).collect();
    let machines = || firsts.iter().flat_map(|(_, arm)| &arm.machines);
    let end = |m: &Machine| m.total_ms.map_or(PATIENCE.as_secs_f64(), |ms| ms as f64 / 1e3);
    let longest = machines().map(end).fold(1.0, f64::max);
    let panel = |(key, arm): &(&Key, &Arm)| {
        let top = arm.machines.iter().flat_map(|m| &m.threads).map(|(_, n)| *n).max().unwrap_or(1);
        let top = f64::from(top.max(2)) * 1.2;
        let mut layers = Vec::new();
        if raw.figure == Figure::Neighbours {
            let last = seconds(NEIGHBOURS_MS[NEIGHBOURS_MS.len() - 1] as i64);
            let points = vec![(0.0, 0.0), (0.0, top), (last, top), (last, 0.0)];
            layers.push(Layer { pen: Pen::Band, color: GREY, points });
        }
        for (i, machine) in arm.machines.iter().enumerate() {
            let mut points: Vec<(f64, f64)> =
                machine.threads.iter().map(|(ms, n)| (seconds(*ms).max(0.0), f64::from(*n))).collect();
            points.extend(points.last().map(|(_, n)| (end(machine), *n)));
            layers.push(Layer { pen: Pen::Steps, color: PALETTE[i % PALETTE.len()], points });
        }
        Panel { title: format!("{}, {}", key.0.name(), key.1.name()), top, layers }
    };
    let panels: Vec<Panel> = firsts.iter().map(panel).collect();
    let x = Axis { label: "time (s)", log: false, from: 0.0, to: longest, tick: plot::plain };
    let grey = if raw.figure == Figure::Neighbours { " Grey: until the last neighbour ends." } else { "" };
    let caption = format!("First run; a line per container, from pause to pause.{grey}");
    plot::panels(title, &caption, &[], (&x, "threads"), &panels)
}

fn explain(raw: &Raw) -> String {
    let neighbours = NEIGHBOURS_MS.map(|ms| plot::plain(ms as f64 / 1e3)).join(", ");
    let who = match raw.figure {
        Figure::Neighbours => format!(
            "One container of five with equal shares has a machine; the others keep all CPUs busy, and end after {neighbours} s"
        ),
        _ => format!("{} containers with equal shares run the same program at the same time", raw.containers),
    };
    let size = |program: &Program| {
        let [heap, first, second] = program.sizes(raw.size_percent);
        let what = match program {
            Program::Trees => format!("trees, {first} MiB that live, {second} MiB made"),
            Program::Graph => format!("a graph of {first} MiB that lives, {second} MiB of trees made"),
            Program::Xslt => format!("{first} documents through a style sheet"),
            Program::H2 => format!("{first} transactions in a database in memory of {second} rows (H2)"),
        };
        format!("`{}`: {what}, heap {heap} MiB", program.name())
    };
    let sizes: Vec<String> = programs(raw.figure).iter().map(size).collect();
    let most = gc_threads(raw.pretended);
    let mut text = format!(
        "{}. {who}, on {} CPUs. Machines (HotSpot {}, {}) are made to believe in {} CPUs by a preloaded library, for which they \
         make {most} GC threads. {}. Vanilla: no look at limits, and always all GC threads; dynamic: \
         `UseDynamicNumberOfGCThreads`",
        raw.figure.title(),
        raw.cpus,
        raw.java,
        raw.collector.name(),
        raw.pretended,
        sizes.join("; "),
    );
    if raw.figure == Figure::OverThreading {
        text += "; by hand: `ParallelGCThreads`";
    }
    if variants(raw.figure).contains(&Variant::Static) {
        text += "; static limit: `ActiveProcessorCount=1`, the share of one of five containers, rounded up";
    }
    if variants(raw.figure).contains(&Variant::Adaptive) {
        text += "; adaptive: a view and the agent for HotSpot, which does nothing but give GC threads";
        if raw.collector == Collector::Parallel {
            text += " (ParallelGC: never fewer than two)";
        }
    }
    text + ". Two threads compile under every variant, and Elbowroom's agent runs under every variant."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gc_threads_are_those_of_hotspot() {
        assert_eq!([1, 2, 8, 16, 20].map(gc_threads), [1, 2, 8, 13, 15]);
    }

    #[test]
    fn only_other_threads_than_before_are_a_change() {
        let pause = |at_ms, threads| Pause { at_ms, ms: 1.0, threads };
        let pauses =
            [pause(10, Some(2)), pause(20, Some(2)), pause(25, None), pause(30, Some(1)), pause(40, Some(2))];
        assert_eq!(changes(&pauses, 15), [(-5, 2), (15, 1), (25, 2)]);
    }

    #[test]
    fn a_machine_that_did_not_finish_counts_as_long_as_it_was_waited_for() {
        let machine = |total_ms| Machine {
            outcome: Outcome::Done,
            total_ms,
            gc_ms: 500.0,
            pauses: 1,
            cpu_ms: 0,
            threads: Vec::new(),
        };
        let arm = Arm {
            program: Program::Trees,
            variant: Variant::Vanilla,
            machines: vec![machine(Some(10_000)), machine(None)],
        };
        assert_eq!((total_s(&arm), gc_s(&arm)), (50.0, 0.5));
    }
}
