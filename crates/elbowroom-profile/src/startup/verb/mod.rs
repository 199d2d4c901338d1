//! `elbowroom profile startup`: how long containers take to start at a given rate, and what the time goes to.

mod applications;
mod drive;
mod text;

use crate::engine;
use crate::engine::{Engine, Kind, Options, Subject};
use crate::overhead::Overhead;
use crate::perf::{FREQUENCY, Sampler};
use crate::processes::{Processes, Tally};
use crate::report::Wanted;
use crate::startup::breakdown::Breakdown;
use crate::startup::stack::{Stack, folded_text};
use crate::startup::timeline::{Rate, Start, Summary};
use crate::symbols::Kernel;
use anyhow::{Context, Result, bail};
use applications::{Application, application};
use clap::{Args, ValueEnum};
use drive::{Measured, Window, measure};
use elbowroom_linux::signal::Signals;
use elbowroom_types::unit::{Micros, parse_duration};
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
    /// Who starts the containers.
    #[arg(long, value_enum, default_value_t = EngineName::Docker)]
    engine: EngineName,
    /// Starts per second, one run after the other. Requests come when they are due, whether or not earlier ones are done.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8", value_name = "RATE")]
    rate: Vec<Rate>,
    /// How long requests come at each rate. All containers of a rate run until it ends.
    #[arg(long = "for", value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    duration: Micros,
    /// Start a command of this host in an empty root over which the host's /usr is mounted; `sleep 1000` where nothing is said.
    /// With several applications, starts take turns.
    #[arg(long, value_name = "[NAME=]WORDS", value_parser = application)]
    command: Vec<Application>,
    /// Start an image that the engine has, with a command instead of its own where there is one.
    #[arg(long, value_name = "[NAME=]IMAGE [WORDS]", value_parser = application)]
    image: Vec<Application>,
    /// Start an OCI bundle (runc, crun).
    #[arg(long, value_name = "[NAME=]DIR", value_parser = application)]
    bundle: Vec<Application>,
    /// The engine's network (docker, podman); none where nothing is said.
    #[arg(long)]
    network: Option<String>,
    /// The OCI runtime below the engine (docker, podman); its own choice where nothing is said.
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
    wanted: Wanted,
}

/// An engine, on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EngineName {
    Docker,
    Containerd,
    Podman,
    Runc,
    Crun,
}

/// Every number of a profile.
#[derive(Debug, Serialize)]
struct Answer {
    engine: Kind,
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
    rates: Vec<AtRate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    breakdown: Option<Cost>,
}

/// One rate.
#[derive(Debug, Serialize)]
struct AtRate {
    rate: Rate,
    #[serde(flatten)]
    all: Summary,
    saturated: bool,
    /// In the order of `applications`, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    applications: Vec<Summary>,
    requests: Vec<Start>,
}

/// Where CPU time went during the starts at all rates.
#[derive(Debug, Serialize)]
struct Cost {
    frequency_hz: u64,
    /// Containers that were started meanwhile.
    starts: u64,
    /// CPU time of the engine and of what it started, for one start.
    cpu_per_start_usec: u64,
    samples: Tally,
    /// Whether the kernel told the names of its functions.
    kernel_symbols: bool,
    #[serde(flatten)]
    breakdown: Breakdown,
    #[serde(skip)]
    stacks: Vec<(Stack, u64)>,
}

/// Removes what was made, whatever happens.
struct Made(Engine);

impl Drop for Made {
    fn drop(&mut self) {
        for left in self.0.close() {
            eprintln!("elbowroom: left behind: {left}; run `elbowroom profile startup --cleanup` later");
        }
    }
}

/// The verb.
pub(crate) fn main(args: &StartupArgs) -> Result<ExitCode> {
    if args.cleanup {
        return cleanup();
    }
    let applications = applications(args)?;
    args.wanted.prepare()?;
    if let Some(dir) = &args.stacks {
        fs::create_dir_all(dir).with_context(|| format!("while making {}", dir.display()))?;
    }
    if !rustix::process::geteuid().is_root() {
        bail!("starting containers and sampling the machine need root");
    }
    let signals = Signals::block(&[Signal::INT, Signal::TERM, Signal::HUP]).context("blocking signals")?;
    let kind = args.engine.kind();
    let options = Options { network: args.network.clone(), runtime: args.runtime.clone() };
    let made = Made(Engine::open(kind, &options)?);
    let (_, left) = engine::clean();
    left.iter().for_each(|left| eprintln!("elbowroom: of a killed profiler: {left}"));
    for (_, subject) in &applications {
        made.0.prepare(subject)?;
    }
    let (rates, cost, overhead) = profile(args, &made.0, &applications, &signals)?;
    let answer = Answer {
        engine: kind,
        version: made.0.version().to_owned(),
        start: kind.start(),
        network: match kind {
            Kind::Docker | Kind::Podman => args.network.clone().unwrap_or_else(|| "none".to_owned()),
            Kind::Containerd => "none".to_owned(),
            Kind::Runc | Kind::Crun => "the bundle's".to_owned(),
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
    args.wanted.give("startup", &text::report(&answer), &overhead, &answer)?;
    Ok(ExitCode::from(u8::from(answer.rates.iter().any(|rate| rate.all.failures > 0))))
}

fn cleanup() -> Result<ExitCode> {
    let (profilers, left) = engine::clean();
    if let Some(first) = left.first() {
        bail!("{} of what killed profilers left could not be removed, first: {first}", left.len());
    }
    println!("removed what {profilers} killed profiler{} left", if profilers == 1 { "" } else { "s" });
    Ok(ExitCode::SUCCESS)
}

/// Names and subjects, in the order: commands, images, bundles. No name stands for two.
fn applications(args: &StartupArgs) -> Result<Vec<(String, Subject)>> {
    let mut all: Vec<(String, Subject)> = Vec::new();
    for app in &args.command {
        all.push((app.name.clone(), Subject::Host(app.words.clone())));
    }
    for app in &args.image {
        all.push((app.name.clone(), Subject::Image(app.words[0].clone(), app.words[1..].to_vec())));
    }
    for app in &args.bundle {
        all.push((app.name.clone(), Subject::Bundle(PathBuf::from(&app.words[0]))));
    }
    if all.is_empty() {
        all.push(("sleep".to_owned(), Subject::Host(vec!["sleep".into(), "1000".into()])));
    }
    for (i, (name, _)) in all.iter().enumerate() {
        if all[..i].iter().any(|(other, _)| other == name) {
            bail!("two applications are called {name}: name one of them, as in --command other={name}");
        }
    }
    Ok(all)
}

/// Starts containers at every rate, sampling meanwhile where a breakdown is wanted.
fn profile(
    args: &StartupArgs,
    engine: &Engine,
    applications: &[(String, Subject)],
    signals: &Signals,
) -> Result<(Vec<AtRate>, Option<Cost>, Overhead)> {
    let windows: Arc<Mutex<Vec<Window>>> = Arc::default();
    let sampler = match args.breakdown || args.stacks.is_some() {
        false => None,
        true => {
            let (daemons, within) = (engine.daemons(), Arc::clone(&windows));
            let watched = move || {
                let mut processes = Processes::now();
                daemons.into_iter().for_each(|pid| processes.watch(pid));
                processes
            };
            Some(Sampler::start(args.frequency, watched, move |processes: &mut Processes, time, record| {
                let windows = within.lock().expect("no holder of this lock panics");
                processes.take(record, windows.iter().any(|window| window.contains(time)));
            })?)
        }
    };
    let (mut rates, mut overhead) = (Vec::new(), Overhead::default());
    let mut numbers = 0..;
    let subjects: Vec<&Subject> = applications.iter().map(|(_, subject)| subject).collect();
    let measured = args.rate.iter().try_for_each(|rate| {
        let Measured { starts, cost } =
            measure(engine, &subjects, *rate, args.duration, &mut numbers, &windows, signals)?;
        overhead = overhead.plus(cost);
        rates.push(at_rate(*rate, starts, applications.len()));
        anyhow::Ok(())
    });
    let processes = sampler.map(Sampler::stop);
    measured?;
    let started = rates.iter().map(|rate| rate.all.starts - rate.all.failures).sum();
    // Where nothing started there is nothing that one start costs.
    let cost = processes.filter(|_| started > 0).map(|processes| {
        overhead.lost = processes.tally.lost;
        cost(processes, args.frequency, started)
    });
    Ok((rates, cost, overhead))
}

fn at_rate(rate: Rate, starts: Vec<Start>, applications: usize) -> AtRate {
    let all = Summary::of(&starts);
    let of = |application| Summary::of(starts.iter().filter(|start| start.application == application));
    let each = if applications > 1 { (0..applications).map(of).collect() } else { Vec::new() };
    AtRate { rate, saturated: all.is_saturated(rate), all, applications: each, requests: starts }
}

fn cost(processes: Processes, frequency: u64, starts: u64) -> Cost {
    let (samples, kernel) = (processes.tally, Kernel::running());
    let stacks = processes.symbolise(&kernel);
    let breakdown = Breakdown::of(stacks.iter().map(|(stack, count)| (stack, *count)));
    Cost {
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
fn write_stacks(dir: &Path, cost: &Cost) -> Result<()> {
    let folded = folded_text(cost.stacks.iter().map(|(stack, count)| (stack, *count)));
    let flame = text::flame(cost).file("CPU time of container starts");
    for (name, text) in [("folded.txt", folded), ("flame.svg", flame)] {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("while writing {}", path.display()))?;
    }
    Ok(())
}

impl EngineName {
    fn kind(self) -> Kind {
        match self {
            Self::Docker => Kind::Docker,
            Self::Containerd => Kind::Containerd,
            Self::Podman => Kind::Podman,
            Self::Runc => Kind::Runc,
            Self::Crun => Kind::Crun,
        }
    }
}
