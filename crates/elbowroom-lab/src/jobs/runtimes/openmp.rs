//! Figure 10: parallel regions that are wider than the room there is.

use super::stage::{Ended, Outcome, Stage, soon};
use super::{Figure, Runtimes, by_key, spread};
use crate::cgroup::Limits;
use crate::job::{Folder, Lab, table};
use crate::plot::{self, Axis, PALETTE};
use crate::procfs;
use crate::program::compile;
use crate::stats::Spread;
use anyhow::{Context, Result, ensure};
use plotters::style::RGBColor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Time for programs to start before any begins to work, in milliseconds.
const START_MS: u64 = 500;
/// As `elbowroom run --openmp` sets it: how often a thread looks before it sleeps.
const SPINS: u32 = 40_000;
/// As libgomp itself has it where it knows that it has more threads than CPUs.
const FEW_SPINS: u32 = 1000;
/// Until when the neighbours of a container work, in milliseconds.
const NEIGHBOURS_MS: u64 = 1000;

/// How many threads a region has, and how they wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(super) enum Variant {
    /// As many as CPUs are seen.
    Static,
    /// `OMP_DYNAMIC`.
    Dynamic,
    /// `OMP_WAIT_POLICY=passive`.
    Passive,
    /// `GOMP_SPINCOUNT=1000`.
    Spins,
    /// `OMP_NUM_THREADS=1`.
    HandOne,
    /// `OMP_NUM_THREADS` of the machine's real CPUs, and passive.
    HandAll,
    /// The library, with `GOMP_SPINCOUNT=1000`.
    AdaptiveFew,
    /// The library alone, with libgomp's own waiting.
    AdaptiveAlone,
    /// What `elbowroom run --openmp` does.
    Adaptive,
}

const VARIANTS: [Variant; 9] = [
    Variant::Static,
    Variant::Dynamic,
    Variant::Passive,
    Variant::Spins,
    Variant::HandOne,
    Variant::HandAll,
    Variant::AdaptiveFew,
    Variant::AdaptiveAlone,
    Variant::Adaptive,
];

/// Who else is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(super) enum Scene {
    /// Containers with equal shares run the same kernel at the same time.
    Shares,
    /// One container with a quota, and nobody else.
    Quota,
    /// One container, and others with equal shares that are busy for a while.
    Neighbours,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kernel {
    Ep,
    Cg,
    Mg,
}

const KERNELS: [Kernel; 3] = [Kernel::Ep, Kernel::Cg, Kernel::Mg];

/// A campaign.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    cpus: u32,
    pretended: u32,
    containers: usize,
    size_percent: u32,
    patience_s: u64,
    quota_percent: u32,
    runs: Vec<Vec<Arm>>,
}

/// One kernel under one variant, once.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Arm {
    scene: Scene,
    kernel: Kernel,
    variant: Variant,
    /// Of each container, in seconds; `None` where it was not waited for any longer.
    seconds: Vec<Option<f64>>,
    /// Narrowest and widest region of all that finished.
    widths: Option<(u32, u32)>,
    /// CPU time of all containers together, in milliseconds.
    cpu_ms: u64,
    /// The load average of 15 minutes, which is what `OMP_DYNAMIC` goes by.
    load15: f64,
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Dynamic => "dynamic",
            Self::Passive => "static, passive",
            Self::Spins => "static, 1000 spins",
            Self::HandOne => "by hand, 1",
            Self::HandAll => "by hand, all, passive",
            Self::AdaptiveFew => "adaptive, 1000 spins",
            Self::AdaptiveAlone => "adaptive, own spins",
            Self::Adaptive => "adaptive",
        }
    }

    fn color(self) -> RGBColor {
        match self {
            Self::Static => RGBColor(110, 110, 110),
            Self::Dynamic => PALETTE[4],
            Self::Passive => PALETTE[3],
            Self::Spins => RGBColor(0, 0, 0),
            Self::HandOne => PALETTE[5],
            Self::HandAll => PALETTE[2],
            Self::AdaptiveFew => RGBColor(150, 90, 50),
            Self::AdaptiveAlone => PALETTE[1],
            Self::Adaptive => PALETTE[0],
        }
    }

    fn is_adaptive(self) -> bool {
        matches!(self, Self::Adaptive | Self::AdaptiveFew | Self::AdaptiveAlone)
    }

    fn variables(self, cpus: u32) -> Vec<(&'static str, String)> {
        let passive = ("OMP_WAIT_POLICY", "passive".to_owned());
        let spins = |n: u32| ("GOMP_SPINCOUNT", n.to_string());
        let threads = |n: u32| ("OMP_NUM_THREADS", n.to_string());
        match self {
            Self::Static | Self::AdaptiveAlone => Vec::new(),
            Self::Dynamic => vec![("OMP_DYNAMIC", "true".to_owned())],
            Self::Passive => vec![passive],
            Self::Spins | Self::AdaptiveFew => vec![spins(FEW_SPINS)],
            Self::Adaptive => vec![spins(SPINS)],
            Self::HandOne => vec![threads(1)],
            Self::HandAll => vec![threads(cpus), passive],
        }
    }
}

impl Scene {
    fn name(self) -> &'static str {
        match self {
            Self::Shares => "shares",
            Self::Quota => "quota",
            Self::Neighbours => "neighbours",
        }
    }
}

impl Kernel {
    fn name(self) -> &'static str {
        match self {
            Self::Ep => "EP",
            Self::Cg => "CG",
            Self::Mg => "MG",
        }
    }

    /// As the program knows it, and how many rounds: about half a second of a CPU each.
    fn words(self, percent: u32) -> [String; 2] {
        let (word, rounds) = match self {
            Self::Ep => ("ep", 150),
            Self::Cg => ("cg", 1500),
            Self::Mg => ("mg", 200),
        };
        [word.to_owned(), (rounds * percent / 100).max(1).to_string()]
    }
}

/// Runs all scenes, kernels and variants, in an order that rotates.
pub(super) fn record(args: &Runtimes, lab: &Lab) -> Result<Raw> {
    let program = compile("kernels", &["-O2", "-fopenmp"], "")?;
    ensure!(args.shim.exists(), "{} is not there: make -C shim", args.shim.display());
    let shim = std::path::absolute(&args.shim).context("while finding the library for OpenMP")?;
    let stage = Stage::open(lab, "omp")?;
    let variants = if args.variants.is_empty() { &VARIANTS[..] } else { &args.variants };
    let plan: Vec<(Scene, Kernel, Variant)> = args
        .scenes
        .iter()
        .flat_map(|scene| KERNELS.map(|kernel| (*scene, kernel)))
        .flat_map(|(scene, kernel)| variants.iter().map(move |variant| (scene, kernel, *variant)))
        .collect();
    let mut runs = Vec::new();
    for run in 0..args.runs {
        eprintln!("run {} of {}", run + 1, args.runs);
        let mut arms = Vec::new();
        // Variants of one kernel stay side by side; who is first among them rotates.
        for group in plan.chunks(variants.len()) {
            let mut group = group.to_vec();
            group.rotate_left(run % variants.len());
            for (scene, kernel, variant) in group {
                let arm = tell(args, &stage, [&program, &shim], scene, kernel, variant);
                let name = || format!("{}, {}, {}", scene.name(), kernel.name(), variant.name());
                arms.push(arm.with_context(|| format!("while measuring \"{}\"", name()))?);
            }
        }
        runs.push(arms);
    }
    Ok(Raw {
        cpus: crate::sysinfo::online_cpus(),
        pretended: args.cpus,
        containers: args.containers,
        size_percent: args.size,
        patience_s: args.patience,
        quota_percent: args.quota,
        runs,
    })
}

fn tell(
    args: &Runtimes,
    stage: &Stage,
    [program, shim]: [&Path; 2],
    scene: Scene,
    kernel: Kernel,
    variant: Variant,
) -> Result<Arm> {
    let cpus = crate::sysinfo::online_cpus();
    let count = if scene == Scene::Shares { args.containers } else { 1 };
    let quota = (scene == Scene::Quota).then_some(f64::from(args.quota) / 100.0);
    let limits = Limits { cpus: quota, ..Limits::default() };
    let containers = stage.containers(count, &limits, variant.is_adaptive())?;
    let others = if scene == Scene::Neighbours { args.containers.saturating_sub(1) } else { 0 };
    let others = stage.containers(others, &Limits::default(), false)?;
    let start = soon(START_MS);
    let mut started = Vec::new();
    for container in containers {
        let preload = variant.is_adaptive().then_some(shim);
        let mut command = stage.command(&container, args.cpus, preload, &variant.variables(cpus));
        command.arg(program).arg(start.to_string()).args(kernel.words(args.size));
        let child = command.spawn().context("while starting a kernel")?;
        started.push((container, child));
    }
    let mut neighbours = Vec::new();
    for container in others {
        let plan =
            [start.to_string(), "busy".into(), "0".into(), NEIGHBOURS_MS.to_string(), cpus.to_string()];
        let child = container.reader("load", &plan).spawn().context("while starting a neighbour")?;
        neighbours.push((container, child));
    }
    let load15 = procfs::loadavg()[2];
    let ended = stage.wait(started, Duration::from_millis(args.patience * 1000 + START_MS))?;
    stage.wait(neighbours, Duration::from_secs(args.patience))?;
    let reports = ended.iter().map(report).collect::<Result<Vec<_>>>()?;
    let widths = reports.iter().flatten().map(|(_, narrowest, widest)| (*narrowest, *widest));
    Ok(Arm {
        scene,
        kernel,
        variant,
        seconds: reports.iter().map(|report| report.map(|(seconds, ..)| seconds)).collect(),
        widths: widths.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))),
        cpu_ms: ended.iter().map(|ended| ended.cpu_ms).sum(),
        load15,
    })
}

/// Seconds, narrowest and widest region; `None` for a program that was not waited for.
fn report(ended: &Ended) -> Result<Option<(f64, u32, u32)>> {
    if ended.outcome == Outcome::CutOff {
        return Ok(None);
    }
    parse(&ended.said).with_context(|| format!("a kernel said \"{}\"", ended.said.trim())).map(Some)
}

fn parse(said: &str) -> Option<(f64, u32, u32)> {
    let mut words = said.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

type Key = (Scene, Kernel, Variant);

/// Writes tables and a figure.
pub(super) fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
    out.say(explain(raw));
    let arms = by_key(&raw.runs, |arm| (arm.scene, arm.kernel, arm.variant));
    let mut scenes: Vec<Scene> = arms.keys().map(|(scene, ..)| *scene).collect();
    scenes.dedup();
    for scene in scenes {
        out.say(format!("## {}: {}", scene.name(), describe(raw, scene)));
        let of_scene: Vec<(&Key, &Vec<&Arm>)> = arms.iter().filter(|((s, ..), _)| *s == scene).collect();
        out.say(table(&HEAD, &of_scene.iter().map(|(key, arms)| row(raw, key, arms)).collect::<Vec<_>>()));
        let title = format!("Time of each kernel, {}", describe(raw, scene));
        out.figure(&format!("{}.svg", scene.name()), &title, &figure(raw, &of_scene, &title)?)?;
    }
    out.say(format!(
        "Medians of {} runs (smallest to largest) of the mean over the containers of a run; variants took turns within each \
         kernel. A container that was not done after {} s was ended, and counts with {} s: the numbers marked so are too small. \
         Adaptive by others: the time of adaptive by that of the variant, within a run.",
        raw.runs.len(),
        raw.patience_s,
        raw.patience_s
    ));
    Ok(())
}

const HEAD: [&str; 6] =
    ["kernel, variant", "time, s", "not done", "threads of a region", "CPU time, s", "adaptive by this"];

fn row(raw: &Raw, (scene, kernel, variant): &Key, arms: &[&Arm]) -> Vec<String> {
    let cut = arms.iter().flat_map(|arm| &arm.seconds).filter(|s| s.is_none()).count();
    let all = arms.iter().map(|arm| arm.seconds.len()).sum::<usize>();
    let widths = arms.iter().filter_map(|arm| arm.widths).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    let ratios = raw.runs.iter().filter_map(|run| {
        let of = |wanted: Variant| {
            run.iter()
                .find(|a| (a.scene, a.kernel, a.variant) == (*scene, *kernel, wanted))
                .map(|a| mean(raw, a))
        };
        Some(of(Variant::Adaptive)? / of(*variant)?)
    });
    vec![
        format!("{}, {}", kernel.name(), variant.name()),
        spread(arms.iter().map(|arm| mean(raw, arm))),
        if cut > 0 { format!("{cut} of {all}") } else { "-".to_owned() },
        widths.map_or("-".to_owned(), |(from, to)| match from == to {
            true => from.to_string(),
            false => format!("{from} to {to}"),
        }),
        spread(arms.iter().map(|arm| arm.cpu_ms as f64 / 1e3)),
        Spread::of(ratios).map_or("-".to_owned(), |s| s.text()),
    ]
}

/// Seconds, over the containers of an arm.
fn mean(raw: &Raw, arm: &Arm) -> f64 {
    let all = arm.seconds.iter().map(|s| s.unwrap_or(raw.patience_s as f64));
    all.sum::<f64>() / arm.seconds.len().max(1) as f64
}

fn figure(raw: &Raw, arms: &[(&Key, &Vec<&Arm>)], title: &str) -> Result<String> {
    let is_measured = |variant: &&Variant| arms.iter().any(|((_, _, measured), _)| measured == *variant);
    let measured: Vec<Variant> = VARIANTS.iter().filter(is_measured).copied().collect();
    let series: Vec<(&str, RGBColor)> = measured.iter().map(|v| (v.name(), v.color())).collect();
    let mut rows: BTreeMap<Kernel, Vec<(usize, Spread)>> = BTreeMap::new();
    for ((_, kernel, variant), arms) in arms {
        let index = measured.iter().position(|v| v == variant).expect("what has times was measured");
        let spread = Spread::of(arms.iter().map(|arm| mean(raw, arm)));
        rows.entry(*kernel).or_default().extend(spread.map(|s| (index, s)));
    }
    let ends = rows.values().flatten().flat_map(|(_, s)| [s.min, s.max]);
    let (from, to) = plot::decades(ends);
    let x = Axis { label: "time (s)", log: true, from, to, tick: plot::plain };
    let rows: Vec<(String, Vec<(usize, Spread)>)> =
        rows.into_iter().map(|(kernel, dots)| (kernel.name().to_owned(), dots)).collect();
    plot::spreads(title, &x, &series, &rows)
}

fn describe(raw: &Raw, scene: Scene) -> String {
    match scene {
        Scene::Shares => format!("{} containers with equal shares run it at once", raw.containers),
        Scene::Quota => format!(
            "one container with a quota of {} CPU, alone",
            plot::plain(f64::from(raw.quota_percent) / 100.0)
        ),
        Scene::Neighbours => format!(
            "one container of {} with equal shares; the others keep all CPUs busy for {} s",
            raw.containers,
            plot::plain(NEIGHBOURS_MS as f64 / 1e3)
        ),
    }
}

fn explain(raw: &Raw) -> String {
    let loads = raw.runs.iter().flatten().map(|arm| arm.load15);
    let loads = Spread::of(loads).map_or("-".to_owned(), |s| format!("{:.1} to {:.1}", s.min, s.max));
    let pretended = match raw.pretended == raw.cpus {
        true => format!("Programs see the machine's {} CPUs", raw.cpus),
        false => format!(
            "Programs are made to believe in {} CPUs by a preloaded library; there are {}",
            raw.pretended, raw.cpus
        ),
    };
    format!(
        "{}. Kernels in C in the manner of the NAS benchmarks, with gcc's OpenMP: EP has few long \
         parallel regions, CG many short ones, MG both; sizes at {} %. {pretended}. Static: a thread per CPU that is seen; dynamic: \
         `OMP_DYNAMIC=true`, which takes the load average of 15 minutes ({loads} meanwhile) from that; passive: \
         `OMP_WAIT_POLICY=passive`; 1000 spins: `GOMP_SPINCOUNT=1000`; by hand: `OMP_NUM_THREADS`; adaptive: a view, the library for \
         OpenMP and `GOMP_SPINCOUNT={SPINS}`, as `elbowroom run --openmp` has it; own spins: without the last. Elbowroom's agent runs \
         under every variant.",
        Figure::OpenMp.title(),
        raw.size_percent
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_seconds_and_two_widths() {
        assert_eq!(parse("1.2500 1 16 3.5\n"), Some((1.25, 1, 16)));
        for said in ["", "1.25 1", "x 1 2 3", "1.25 -1 2 3"] {
            assert_eq!(parse(said), None, "{said}");
        }
    }

    #[test]
    fn a_kernel_that_was_cut_off_counts_as_long_as_it_was_waited_for() {
        let arm = Arm {
            scene: Scene::Shares,
            kernel: Kernel::Cg,
            variant: Variant::Static,
            seconds: vec![Some(2.0), None],
            widths: None,
            cpu_ms: 0,
            load15: 0.0,
        };
        let raw = Raw {
            cpus: 2,
            pretended: 16,
            containers: 2,
            size_percent: 100,
            patience_s: 10,
            quota_percent: 100,
            runs: vec![vec![arm.clone()]],
        };
        assert!((mean(&raw, &arm) - 6.0).abs() < 1e-9);
        assert_eq!(row(&raw, &(arm.scene, arm.kernel, arm.variant), &[&arm])[2], "1 of 2");
    }
}
