//! Figures 11 and 12: heaps that may grow beyond what there is.

use super::java::{self, Collector, Java, Launch};
use super::stage::{Ended, Outcome, Stage, soon};
use super::{Figure, Runtimes, by_key, spread};
use crate::cgroup::Limits;
use crate::job::{Folder, Lab, table};
use crate::plot::{self, Axis, Layer, PALETTE, Panel, Pen};
use crate::procfs;
use anyhow::{Context, Result};
use plotters::style::RGBColor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

const START_MS: u64 = 3000;
const PATIENCE: Duration = Duration::from_secs(90);
/// What the cgroup has that stands for a machine, in MiB.
const MACHINE_MIB: u64 = 1750;
/// Iterations of the paper's micro-benchmark a second, and how long it goes on when nothing grows any more.
const PER_S: u64 = 100;
const HOLD_MS: u64 = 4000;
const PENS: [(&str, RGBColor); 3] =
    [("used", PALETTE[2]), ("committed", PALETTE[0]), ("VirtualMax", PALETTE[1])];

/// How large the heap may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Variant {
    /// As large as was asked for, without a look at the limit.
    Vanilla,
    /// HotSpot's own part of the limit.
    Aware,
    /// Three quarters of the limit, by hand.
    Hand,
    /// As large as was asked for, and never beyond VirtualMax.
    Elastic,
}

/// Containers, each with a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Crowd {
    One,
    Five,
}

/// Sizes, in MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Sizes {
    /// What stands for the machine.
    machine: Option<u64>,
    /// Of each container.
    hard: u64,
    soft: Option<u64>,
    /// `-Xmx`.
    heap: u64,
    /// What lives at the end, in a container.
    live: [u64; 2],
    /// What is made, in figure 11.
    made: u64,
}

/// A campaign.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    figure: Figure,
    collector: Collector,
    java: String,
    sizes: Sizes,
    /// Of the machine, in MiB.
    #[serde(default)]
    swap_mib: u64,
    runs: Vec<Vec<Arm>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Arm {
    crowd: Crowd,
    variant: Variant,
    machines: Vec<Machine>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Machine {
    outcome: Outcome,
    total_ms: Option<u64>,
    /// All pauses together, in milliseconds.
    gc_ms: f64,
    /// Most memory of its container, in MiB.
    peak_mib: u64,
    /// (milliseconds after the start, MiB used, MiB committed, MiB of VirtualMax).
    heap: Vec<(u64, u64, u64, u64)>,
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Self::Vanilla => "vanilla",
            Self::Aware => "HotSpot's part of the limit",
            Self::Hand => "by hand, 75 % of the limit",
            Self::Elastic => "elastic",
        }
    }

    fn options(self, sizes: &Sizes) -> Vec<String> {
        let heap = |mib: u64| format!("-Xmx{mib}m");
        let mut options = match self {
            Self::Vanilla => vec!["-XX:-UseContainerSupport".to_owned(), heap(sizes.heap)],
            Self::Aware => Vec::new(),
            Self::Hand => vec![heap(sizes.hard * 3 / 4)],
            Self::Elastic => vec![heap(sizes.heap)],
        };
        // The same under every variant: GC threads are another figure's.
        options.extend(["-Xms16m".to_owned(), "-XX:ParallelGCThreads=2".to_owned()]);
        options
    }
}

impl Crowd {
    fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Five => "five",
        }
    }

    fn machines(self) -> usize {
        match self {
            Self::One => 1,
            Self::Five => 5,
        }
    }
}

impl Sizes {
    fn of(figure: Figure, percent: u32) -> Self {
        let percent = u64::from(percent);
        match figure {
            Figure::BeyondTheLimit => {
                Self { machine: None, hard: 256, soft: None, heap: 1024, live: [90; 2], made: 15 * percent }
            }
            _ => Self {
                machine: Some(MACHINE_MIB),
                hard: MACHINE_MIB * 35 / 100,
                soft: Some(MACHINE_MIB * 18 / 100),
                heap: MACHINE_MIB * 28 / 100,
                live: [MACHINE_MIB * percent / 500, MACHINE_MIB * percent / 1000],
                made: 0,
            },
        }
    }

    fn live(&self, crowd: Crowd) -> u64 {
        self.live[usize::from(crowd == Crowd::Five)]
    }
}

fn plan(figure: Figure) -> Vec<(Crowd, Variant)> {
    match figure {
        Figure::BeyondTheLimit => [Variant::Vanilla, Variant::Aware, Variant::Hand, Variant::Elastic]
            .map(|variant| (Crowd::One, variant))
            .to_vec(),
        _ => [Crowd::One, Crowd::Five]
            .into_iter()
            .flat_map(|crowd| [(crowd, Variant::Vanilla), (crowd, Variant::Elastic)])
            .collect(),
    }
}

/// Runs all variants of a figure, in an order that rotates.
pub(super) fn record(args: &Runtimes, lab: &Lab) -> Result<Raw> {
    let java = Java::new(args, crate::sysinfo::online_cpus())?;
    let sizes = Sizes::of(args.figure, args.size);
    let swap_mib = procfs::swap_mib()?;
    let above = Limits { memory_mib: sizes.machine, ..Limits::default() };
    let above = lab.maker.group("machine", &above)?;
    let stage = Stage::open(lab, "machine/jvm")?;
    let mut runs = Vec::new();
    for run in 0..args.runs {
        let mut plan = plan(args.figure);
        let count = plan.len();
        plan.rotate_left(run % count);
        let mut arms = Vec::new();
        for (i, (crowd, variant)) in plan.into_iter().enumerate() {
            let name = format!("{}, {}", crowd.name(), variant.name());
            eprintln!("run {} of {}, {} of {count}: {name}", run + 1, args.runs, i + 1);
            let arm = tell(args.figure, &sizes, &stage, &java, crowd, variant);
            arms.push(arm.with_context(|| format!("while measuring \"{name}\""))?);
        }
        runs.push(arms);
    }
    drop(stage);
    drop(above);
    Ok(Raw { figure: args.figure, collector: args.collector, java: java::version()?, sizes, swap_mib, runs })
}

fn tell(
    figure: Figure,
    sizes: &Sizes,
    stage: &Stage,
    java: &Java,
    crowd: Crowd,
    variant: Variant,
) -> Result<Arm> {
    let limits = Limits { memory_mib: Some(sizes.hard), soft_mib: sizes.soft, ..Limits::default() };
    let containers = stage.containers(crowd.machines(), &limits, variant == Variant::Elastic)?;
    let start = soon(START_MS);
    let live = sizes.live(crowd);
    let mut program = vec![start.to_string()];
    program.extend(match figure {
        Figure::BeyondTheLimit => ["trees".to_owned(), "2".into(), live.to_string(), sizes.made.to_string()],
        _ => ["grow".to_owned(), live.to_string(), PER_S.to_string(), HOLD_MS.to_string()],
    });
    let agent = (variant == Variant::Elastic).then_some("threads=off,pools=off,jmx=0");
    let launch = Launch { options: variant.options(sizes), agent, program };
    let mut started = Vec::new();
    for (i, container) in containers.into_iter().enumerate() {
        let child = java.start(stage, i, &container, &launch)?;
        started.push((container, child));
    }
    let ended = stage.wait(started, PATIENCE)?;
    let machine = |(i, ended): (usize, &Ended)| {
        let pauses = java.pauses(stage, i)?;
        Ok(Machine {
            outcome: ended.outcome,
            total_ms: java::total_ms(ended),
            gc_ms: (pauses.iter().map(|pause| pause.ms).sum::<f64>() * 10.0).round() / 10.0,
            peak_mib: ended.peak_mib,
            heap: ended.said.lines().filter_map(sample).collect(),
        })
    };
    Ok(Arm { crowd, variant, machines: ended.iter().enumerate().map(machine).collect::<Result<_>>()? })
}

/// `at 1200 34 60 128`.
fn sample(line: &str) -> Option<(u64, u64, u64, u64)> {
    let mut numbers = line.strip_prefix("at ")?.split(' ').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some((next()?, next()?, next()?, next()?))
}

type Key = (Crowd, Variant);

/// Writes tables and figures.
pub(super) fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
    out.say(explain(raw));
    let arms = by_key(&raw.runs, |arm| (arm.crowd, arm.variant));
    let row = |((crowd, variant), arms): (&Key, &Vec<&Arm>)| {
        let machines = || arms.iter().flat_map(|arm| &arm.machines);
        let finished = || machines().filter(|m| m.outcome == Outcome::Done);
        let mut ends: BTreeMap<Outcome, usize> = BTreeMap::new();
        machines().for_each(|m| *ends.entry(m.outcome).or_default() += 1);
        let ends: Vec<String> = ends.iter().map(|(end, n)| format!("{n} {}", end.name())).collect();
        let over = |of: fn(&Machine) -> f64| spread(finished().map(of));
        vec![
            format!("{}, {}", crowd.name(), variant.name()),
            ends.join(", "),
            over(|m| m.total_ms.map_or(0.0, |ms| ms as f64 / 1e3)),
            over(|m| m.gc_ms / 1e3),
            spread(machines().map(|m| m.peak_mib as f64)),
        ]
    };
    let rows: Vec<Vec<String>> = arms.iter().map(row).collect();
    let head =
        ["containers, variant", "programs", "time, s", "collecting, s", "most memory of a container, MiB"];
    out.say(table(&head, &rows));
    out.say(format!(
        "All programs of {} runs; medians (smallest to largest) of the time and of all pauses are over those that finished. \
         Variants took turns. Memory is that of the container's cgroup, looked at 25 times a second.",
        raw.runs.len()
    ));
    if raw.figure == Figure::HeapOverTime {
        let title = "The heap over time: used, committed and VirtualMax";
        out.figure("heap.svg", title, &figure(&arms, title)?)?;
    }
    Ok(())
}

/// A panel per crowd and variant: all machines of the first run.
fn figure(arms: &BTreeMap<Key, Vec<&Arm>>, title: &str) -> Result<String> {
    let firsts: Vec<(&Key, &Arm)> =
        arms.iter().filter_map(|(key, arms)| Some((key, *arms.first()?))).collect();
    let samples = || firsts.iter().flat_map(|(_, arm)| &arm.machines).flat_map(|machine| &machine.heap);
    let longest = samples().map(|(ms, ..)| *ms).max().unwrap_or(1) as f64 / 1e3;
    let top = samples().map(|(_, used, committed, bound)| *used.max(committed).max(bound)).max().unwrap_or(1);
    let panel = |((crowd, variant), arm): &(&Key, &Arm)| {
        let lines = arm.machines.iter().flat_map(|machine| {
            let line = |pick: fn(&(u64, u64, u64, u64)) -> u64, color| {
                let points = machine.heap.iter().map(|s| (s.0 as f64 / 1e3, pick(s) as f64));
                Layer { pen: Pen::Line, color, points: points.filter(|(_, mib)| *mib > 0.0).collect() }
            };
            [line(|s| s.1, PENS[0].1), line(|s| s.2, PENS[1].1), line(|s| s.3, PENS[2].1)]
        });
        let ended = arm.machines.iter().filter(|m| m.outcome == Outcome::Done).count();
        let title =
            format!("{}, {}: {ended} of {} finished", crowd.name(), variant.name(), arm.machines.len());
        Panel { title, top: top as f64 * 1.08, layers: lines.collect() }
    };
    let panels: Vec<Panel> = firsts.iter().map(panel).collect();
    let x = Axis { label: "time (s)", log: false, from: 0.0, to: longest, tick: plot::plain };
    plot::panels(title, "First run; lines of every container.", &PENS, (&x, "MiB"), &panels)
}

fn explain(raw: &Raw) -> String {
    let sizes = &raw.sizes;
    let head = format!("{}. HotSpot {}, {}, `-Xms16m`.", raw.figure.title(), raw.java, raw.collector.name());
    let swap = match raw.swap_mib {
        0 => "there is no swap".to_owned(),
        mib => format!("there are {mib} MiB of swap, which the limit leaves alone"),
    };
    match raw.figure {
        Figure::BeyondTheLimit => format!(
            "{head} A container has a hard limit of {} MiB and no soft one; {swap}. Its program makes {} MiB of trees, \
             of which {} MiB live. Vanilla: `-Xmx{}m`, without a look at the limit; HotSpot's part: no `-Xmx`, which is half of a \
             limit as small as this; elastic: the `-Xmx` of vanilla, with a view and the agent for HotSpot.",
            sizes.hard, sizes.made, sizes.live[0], sizes.heap
        ),
        _ => format!(
            "{head} Containers with a hard limit of {} and a soft limit of {} MiB, alone and five at once; `-Xmx{}m`. A cgroup with a \
             limit of {} MiB stands for the machine; {swap}. Elbowroom knows it for a group whose memory is sold twice: views \
             inside grow as far as it can give what is granted. The program makes 1 MiB and lets go of half of it, {PER_S} \
             times a second, until {} MiB live (five at once: {} MiB each), and goes on for {} s. Vanilla: without a look at \
             limits; elastic: with a view and the agent for HotSpot.",
            sizes.hard,
            sizes.soft.unwrap_or(0),
            sizes.heap,
            sizes.machine.unwrap_or(0),
            sizes.live[0],
            sizes.live[1],
            HOLD_MS / 1000
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_four_numbers_and_other_lines_are_none() {
        assert_eq!(sample("at 1200 34 60 128"), Some((1200, 34, 60, 128)));
        for line in ["at 1200 34 60", "done 12", "at x 1 2 3", ""] {
            assert_eq!(sample(line), None, "{line}");
        }
    }

    #[test]
    fn all_heaps_together_are_more_than_the_machine_and_what_lives_is_less() {
        let sizes = Sizes::of(Figure::HeapOverTime, 100);
        let machine = sizes.machine.unwrap();
        assert!(5 * sizes.heap > machine && 5 * sizes.live[1] < machine * 3 / 4);
        assert!(sizes.heap < sizes.hard && sizes.live[0] < sizes.hard * 3 / 4);
        let beyond = Sizes::of(Figure::BeyondTheLimit, 100);
        assert!(beyond.heap > beyond.hard && beyond.live[0] > beyond.hard / 4);
    }
}
