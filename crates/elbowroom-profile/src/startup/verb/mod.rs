//! `elbowroom profile startup`: how long containers take to start at a given rate, and what the time goes to.

mod applications;
mod load_generator;
mod text;

use crate::engine;
use crate::engine::{ContainerOptions, EngineKind, EngineSession, StartTarget};
use crate::overhead::ProfilerOverhead;
use crate::perf::{FREQUENCY, Sampler};
use crate::processes::{SampleTally, SampledProcesses};
use crate::report::ReportArgs;
use crate::stack::{CallStack, folded_text};
use crate::startup::breakdown::SampleBreakdown;
use crate::startup::timeline::{RequestRate, StartSample, StartupSummary};
use crate::symbols::KernelSymbols;
use anyhow::{Context, Result, bail};
use applications::{StartupApplication, parse_application};
use clap::{Args, ValueEnum};
use elbowroom_client::output::{say, write_stdout};
use elbowroom_linux::signal::SignalFd;
use elbowroom_types::unit::{Micros, counted, parse_duration};
use load_generator::{MeasurementWindow, RateMeasurement, measure_rate};
use rustix::process::Signal;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

/// Arguments of `profile startup`.
#[derive(Args)]
#[command(after_help = "Examples:\n  elbowroom profile startup --breakdown --html startup.html\n  \
    elbowroom profile startup --engine runc --rate 4 --for 5s\n  \
    elbowroom profile startup --image web=nginx:1 --image db='mariadb:10 mariadbd'\n\n\
    Everything that is made is called elbowroom-profile-PID-STARTED-N, labelled elbowroom.profile, and removed at the end, \
    also after an error, SIGINT or SIGTERM. What a killed profiler left is removed by the next one, or by --cleanup.\n\n\
    Exit status: 0 every container started, 1 some did not, 2 error.")]
pub(crate) struct StartupArgs {
    /// The engine that starts the containers.
    #[arg(long, value_enum, default_value_t = EngineArg::Docker)]
    engine: EngineArg,
    /// Starts per second, one run after the other. Requests come when they are due, whether or not earlier ones are done.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8", value_name = "RATE")]
    rate: Vec<RequestRate>,
    /// How long requests come at each rate. All containers of a rate run until it ends.
    #[arg(long = "for", value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    duration: Micros,
    /// Start a command of this host in an empty root over which the host's /usr is mounted; `sleep 1000` by default.
    /// With several applications, starts take turns.
    #[arg(long, value_name = "[NAME=]WORDS", value_parser = parse_application)]
    command: Vec<StartupApplication>,
    /// Start an image that the engine has, with a command instead of its own where there is one.
    #[arg(long, value_name = "[NAME=]IMAGE [WORDS]", value_parser = parse_application)]
    image: Vec<StartupApplication>,
    /// Start an OCI bundle (runc, crun).
    #[arg(long, value_name = "[NAME=]DIR", value_parser = parse_application)]
    bundle: Vec<StartupApplication>,
    /// The engine's network (docker, podman); none by default.
    #[arg(long)]
    network: Option<String>,
    /// The OCI runtime below the engine (docker, podman); the engine's own choice by default.
    #[arg(long)]
    runtime: Option<String>,
    /// Sample all CPUs during the starts: CPU time per start, by program and by what it is spent on.
    #[arg(long)]
    breakdown: bool,
    /// Samples per second and CPU.
    #[arg(long, value_name = "HZ", default_value_t = FREQUENCY, value_parser = clap::value_parser!(u64).range(10..=10_000))]
    frequency: u64,
    /// Also write folded.txt and flame.svg there; implies --breakdown.
    #[arg(long, value_name = "DIR")]
    stacks: Option<PathBuf>,
    /// Only remove what killed profilers left.
    #[arg(long)]
    cleanup: bool,
    #[command(flatten)]
    report: ReportArgs,
}

/// An engine, on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EngineArg {
    Docker,
    Containerd,
    Podman,
    Runc,
    Crun,
}

/// Every number of a profile.
#[derive(Debug, Serialize)]
struct StartupReport {
    engine: EngineKind,
    version: String,
    /// What one start is.
    start: &'static str,
    network: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<String>,
    kernel: String,
    cpus: usize,
    applications: Vec<String>,
    /// How long requests came at each rate.
    for_usec: u64,
    rates: Vec<RateResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    breakdown: Option<StartupCost>,
}

/// One rate.
#[derive(Debug, Serialize)]
struct RateResult {
    rate: RequestRate,
    #[serde(flatten)]
    all: StartupSummary,
    saturated: bool,
    /// In the order of `applications`, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    applications: Vec<StartupSummary>,
    requests: Vec<StartSample>,
}

/// Where CPU time went during the starts at all rates.
#[derive(Debug, Serialize)]
struct StartupCost {
    frequency_hz: u64,
    /// Containers that were started meanwhile.
    starts: u64,
    /// CPU time of the engine and of what it started, for one start.
    cpu_per_start_usec: u64,
    samples: SampleTally,
    /// Whether the kernel told the names of its functions.
    kernel_symbols: bool,
    #[serde(flatten)]
    breakdown: SampleBreakdown,
    #[serde(skip)]
    stacks: Vec<(CallStack, u64)>,
}

/// Removes what was made, whatever happens.
struct EngineCleanup(EngineSession);

impl Drop for EngineCleanup {
    fn drop(&mut self) {
        for left in self.0.close() {
            say(&format!("elbowroom: left behind: {left}; run `elbowroom profile startup --cleanup` later"));
        }
    }
}

/// The verb.
pub(crate) fn main(args: &StartupArgs) -> Result<ExitCode> {
    if args.cleanup {
        return cleanup();
    }
    let applications = applications(args)?;
    args.report.prepare()?;
    if let Some(dir) = &args.stacks {
        fs::create_dir_all(dir).with_context(|| format!("while making {}", dir.display()))?;
    }
    if !rustix::process::geteuid().is_root() {
        bail!("starting containers and sampling the machine need root");
    }
    let signals = SignalFd::block(&[Signal::INT, Signal::TERM, Signal::HUP]).context("blocking signals")?;
    let kind = args.engine.kind();
    let options = ContainerOptions { network: args.network.clone(), runtime: args.runtime.clone() };
    let made = EngineCleanup(EngineSession::open(kind, &options)?);
    let (_, left) = engine::clean();
    left.iter().for_each(|left| say(&format!("elbowroom: of a killed profiler: {left}")));
    for (_, subject) in &applications {
        made.0.prepare(subject)?;
    }
    let (rates, cost, overhead) = profile_rates(args, &made.0, &applications, &signals)?;
    let answer = StartupReport {
        engine: kind,
        version: made.0.version().to_owned(),
        start: kind.start(),
        network: match kind {
            EngineKind::Docker | EngineKind::Podman => {
                args.network.clone().unwrap_or_else(|| "none".to_owned())
            }
            EngineKind::Containerd => "none".to_owned(),
            EngineKind::Runc | EngineKind::Crun => "the bundle's".to_owned(),
        },
        runtime: args.runtime.clone(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        applications: applications.into_iter().map(|(name, _)| name).collect(),
        for_usec: args.duration.get(),
        rates,
        breakdown: cost,
    };
    drop(made);
    if let (Some(dir), Some(cost)) = (&args.stacks, &answer.breakdown) {
        write_stacks(dir, cost)?;
    }
    args.report.emit("startup", &text::report(&answer), &overhead, &answer)?;
    Ok(ExitCode::from(u8::from(answer.rates.iter().any(|rate| rate.all.failures > 0))))
}

fn cleanup() -> Result<ExitCode> {
    let (profilers, left) = engine::clean();
    if let Some(first) = left.first() {
        bail!("{} of what killed profilers left could not be removed, first: {first}", left.len());
    }
    write_stdout(&format!("removed what {} left\n", counted(profilers, "killed profiler")))?;
    Ok(ExitCode::SUCCESS)
}

/// Names and subjects, in the order: commands, images, bundles. No name stands for two.
fn applications(args: &StartupArgs) -> Result<Vec<(String, StartTarget)>> {
    let mut all: Vec<(String, StartTarget)> = Vec::new();
    for app in &args.command {
        all.push((app.name.clone(), StartTarget::Host(app.words.clone())));
    }
    for app in &args.image {
        all.push((app.name.clone(), StartTarget::Image(app.words[0].clone(), app.words[1..].to_vec())));
    }
    for app in &args.bundle {
        all.push((app.name.clone(), StartTarget::Bundle(PathBuf::from(&app.words[0]))));
    }
    if all.is_empty() {
        all.push(("sleep".to_owned(), StartTarget::Host(vec!["sleep".into(), "1000".into()])));
    }
    for (i, (name, _)) in all.iter().enumerate() {
        if all[..i].iter().any(|(other, _)| other == name) {
            bail!("two applications are called {name}: name one of them, as in --command other={name}");
        }
    }
    Ok(all)
}

/// Starts containers at every rate, sampling meanwhile where a breakdown is wanted.
fn profile_rates(
    args: &StartupArgs,
    engine: &EngineSession,
    applications: &[(String, StartTarget)],
    signals: &SignalFd,
) -> Result<(Vec<RateResult>, Option<StartupCost>, ProfilerOverhead)> {
    let windows: Arc<Mutex<Vec<MeasurementWindow>>> = Arc::default();
    let sampler = match args.breakdown || args.stacks.is_some() {
        false => None,
        true => {
            let (daemons, within) = (engine.daemons(), Arc::clone(&windows));
            let watched = move || {
                let mut processes = SampledProcesses::now();
                daemons.into_iter().for_each(|pid| processes.watch(pid));
                processes
            };
            Some(Sampler::start(
                args.frequency,
                watched,
                move |processes: &mut SampledProcesses, time, record| {
                    let windows = within.lock().expect("no holder of this lock panics");
                    processes.add_record(record, windows.iter().any(|window| window.contains(time)));
                },
            )?)
        }
    };
    let (mut rates, mut overhead) = (Vec::new(), ProfilerOverhead::default());
    let mut numbers = 0..;
    let subjects: Vec<&StartTarget> = applications.iter().map(|(_, subject)| subject).collect();
    let measured = args.rate.iter().try_for_each(|rate| {
        let RateMeasurement { starts, cost } =
            measure_rate(engine, &subjects, *rate, args.duration, &mut numbers, &windows, signals)?;
        overhead = overhead.plus(cost);
        rates.push(rate_result(*rate, starts, applications.len()));
        anyhow::Ok(())
    });
    let processes = sampler.map(Sampler::stop);
    measured?;
    let started = rates.iter().map(|rate| rate.all.starts - rate.all.failures).sum();
    // Without a start there is no cost of a start.
    let cost = processes.filter(|_| started > 0).map(|processes| {
        overhead.lost = processes.tally.lost;
        startup_cost(processes, args.frequency, started)
    });
    Ok((rates, cost, overhead))
}

fn rate_result(rate: RequestRate, starts: Vec<StartSample>, applications: usize) -> RateResult {
    let all = StartupSummary::of(&starts);
    let of = |application| StartupSummary::of(starts.iter().filter(|start| start.application == application));
    let each = if applications > 1 { (0..applications).map(of).collect() } else { Vec::new() };
    RateResult { rate, saturated: all.is_saturated(rate), all, applications: each, requests: starts }
}

fn startup_cost(processes: SampledProcesses, frequency: u64, starts: u64) -> StartupCost {
    let (samples, kernel) = (processes.tally, KernelSymbols::running());
    let stacks = processes.symbolise(&kernel);
    let breakdown = SampleBreakdown::of(stacks.iter().map(|(stack, count)| (stack, *count)));
    StartupCost {
        frequency_hz: frequency,
        starts,
        cpu_per_start_usec: breakdown.split.sum() * 1_000_000 / frequency / starts.max(1),
        samples,
        kernel_symbols: !kernel.is_empty(),
        breakdown,
        stacks,
    }
}

/// `folded.txt`, which flame graph tools read, and `flame.svg`.
fn write_stacks(dir: &Path, cost: &StartupCost) -> Result<()> {
    let folded = folded_text(cost.stacks.iter().map(|(stack, count)| (stack, *count)));
    let flame = text::flame_graph(cost).file("CPU time of container starts");
    for (name, text) in [("folded.txt", folded), ("flame.svg", flame)] {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("while writing {}", path.display()))?;
    }
    Ok(())
}

impl EngineArg {
    fn kind(self) -> EngineKind {
        match self {
            Self::Docker => EngineKind::Docker,
            Self::Containerd => EngineKind::Containerd,
            Self::Podman => EngineKind::Podman,
            Self::Runc => EngineKind::Runc,
            Self::Crun => EngineKind::Crun,
        }
    }
}
