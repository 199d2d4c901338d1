//! Counting, for a while or until told to stop.

use super::{FaultsArgs, TierArg, text};
use crate::faults::measure::{CountedContainer, FaultProfiler, FaultSample};
use crate::faults::model::{ExecutedWork, FaultClass, FaultCounts, FaultRate, FaultTier};
use crate::overhead::OverheadMeter;
use crate::report::kernel_fact;
use anyhow::Result;
use elbowroom_client::control::LoadSources;
use elbowroom_client::output::{say, write_stdout};
use elbowroom_linux::containers::ProfiledContainer;
use elbowroom_linux::signal::SignalFd;
use elbowroom_linux::timer;
use elbowroom_types::unit::Micros;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use serde::Serialize;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

/// Without --for and --live.
const DEFAULT_DURATION: Micros = Micros::secs(10);

/// Between two looks for cgroups that have begun.
const REFRESH_INTERVAL: Micros = Micros::secs(1);

/// How long the kernel times the programs, once in every [`REFRESH_INTERVAL`]: timing makes every fault somewhat slower.
const COST_SAMPLE_TIME: Duration = Duration::from_millis(50);

/// Everything that was counted.
#[derive(Serialize)]
pub(super) struct FaultReport {
    pub(super) kernel: String,
    pub(super) tier: FaultTier,
    /// Why not the better tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) no_functions: Option<String>,
    /// Why there are no latencies, though they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) no_latency: Option<&'static str>,
    /// Why instructions are not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) no_instructions: Option<String>,
    pub(super) elapsed_usec: Micros,
    pub(super) containers: Vec<ContainerFaults>,
    /// Faults of all others.
    pub(super) others: FaultTotals,
    pub(super) cost: ProgramCost,
}

/// What the programs in the kernel cost: an average of samples, times all calls.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct ProgramCost {
    /// Nanoseconds of one call, with being timed; 0 where none was timed.
    pub(super) ns_per_call: u64,
    /// CPU time of all of them, estimated.
    pub(super) cpu_usec: Micros,
}

#[derive(Serialize)]
pub(super) struct ContainerFaults {
    #[serde(flatten)]
    pub(super) subject: ProfiledContainer,
    #[serde(flatten)]
    pub(super) faults: FaultTotals,
    pub(super) work: ExecutedWork,
    /// Faults of all classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rate: Option<FaultRate>,
}

/// [`FaultCounts`] as programs get them.
#[derive(Serialize)]
pub(super) struct FaultTotals {
    pub(super) total: u64,
    pub(super) classes: BTreeMap<&'static str, u64>,
    pub(super) major: u64,
    pub(super) duplicates: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) latency: Option<FaultLatency>,
}

/// Nanoseconds in the fault handler.
#[derive(Serialize)]
pub(super) struct FaultLatency {
    /// How many faults were timed.
    pub(super) timed: u64,
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) mean_ns: BTreeMap<&'static str, u64>,
}

impl From<&FaultCounts> for FaultTotals {
    fn from(counts: &FaultCounts) -> Self {
        let mean = |class: &FaultClass| Some((class.name(), counts.mean_ns(*class)?));
        let latency =
            counts.quantile_ns(0.5).zip(counts.quantile_ns(0.99)).map(|(p50_ns, p99_ns)| FaultLatency {
                timed: counts.timed.iter().sum(),
                p50_ns,
                p99_ns,
                mean_ns: FaultClass::ALL.iter().filter_map(mean).collect(),
            });
        Self {
            total: counts.total(),
            classes: FaultClass::ALL.iter().map(|class| (class.name(), counts.of(*class))).collect(),
            major: counts.major,
            duplicates: counts.duplicates,
            latency,
        }
    }
}

/// Counts, and says what was found.
pub(super) fn count(args: &FaultsArgs, load: LoadSources) -> Result<ExitCode> {
    let meter = OverheadMeter::start();
    let signals = SignalFd::block(&[Signal::INT, Signal::TERM])?;
    let tier = args.tier.map(|tier| match tier {
        TierArg::Functions => FaultTier::Functions,
        TierArg::Tracepoints => FaultTier::Tracepoints,
    });
    let mut profiler =
        FaultProfiler::start(args.selection.open(load)?, &args.selection.containers, tier, args.latency)?;
    // A program that starts something to be counted waits for this.
    say(&format!("elbowroom: counting page faults by {}", profiler.tier().name()));
    let begin = timer::now();
    let until = args
        .duration
        .or((!args.live).then_some(DEFAULT_DURATION))
        .map(|duration| begin.saturating_add(duration));
    let (mut next_table, mut next_refresh) = (begin.saturating_add(args.interval), begin);
    let mut earlier: Option<(Micros, FaultSample)> = None;
    let mut cost = (0u64, 0u64);
    loop {
        let now = timer::now();
        if until.is_some_and(|until| now >= until) {
            break;
        }
        if now >= next_refresh {
            next_refresh = now.saturating_add(REFRESH_INTERVAL);
            profiler.refresh()?;
            // A kernel that does not time programs has no cost to tell.
            if let Ok(measured) =
                profiler.measure(COST_SAMPLE_TIME.min(time_left(until, Micros::secs(1)) / 4))
            {
                cost = (cost.0 + measured.runs, cost.1 + measured.ns);
            }
        }
        if args.live && now >= next_table {
            next_table = now.saturating_add(args.interval);
            let sample = profiler.sample()?;
            let since = earlier.as_ref().map_or(begin, |(at, _)| *at);
            let table = text::live_table(
                &difference(&sample, earlier.as_ref().map(|(_, sample)| sample)),
                now.saturating_sub(since),
            );
            write_stdout(&table)?;
            earlier = Some((now, sample));
        }
        let wake = if args.live { next_refresh.min(next_table) } else { next_refresh };
        let wake = until.map_or(wake, |until| wake.min(until)).saturating_sub(timer::now());
        if wait_for_stop(&signals, Duration::from_micros(wake.get()))? {
            break;
        }
    }
    let sample = profiler.sample()?;
    let elapsed = timer::now().saturating_sub(begin);
    let overhead = meter.stop(sample.lost);
    let answer = fault_report(&profiler, args.latency, &sample, elapsed, cost);
    args.report.emit("faults", &text::report(&answer), &overhead, &answer)?;
    Ok(ExitCode::SUCCESS)
}

fn time_left(until: Option<Micros>, otherwise: Micros) -> Duration {
    let left = until.map_or(otherwise, |until| until.saturating_sub(timer::now()));
    Duration::from_micros(left.get())
}

/// Waits; whether a signal asks for the end.
fn wait_for_stop(signals: &SignalFd, wait: Duration) -> Result<bool> {
    let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
    match poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&wait)) {
        Ok(_) | Err(Errno::INTR) => Ok(signals.next()?.is_some()),
        Err(error) => Err(error.into()),
    }
}

/// What was counted after `earlier`.
fn difference(
    sample: &FaultSample,
    earlier: Option<&FaultSample>,
) -> Vec<(String, FaultCounts, ExecutedWork)> {
    let before = |place: usize| earlier.and_then(|sample| sample.containers.get(place));
    let mut rows: Vec<(String, FaultCounts, ExecutedWork)> = sample
        .containers
        .iter()
        .enumerate()
        .map(|(place, now)| {
            let (counts, cpu) =
                before(place).map_or((FaultCounts::default(), Micros::ZERO), |b| (b.counts, b.work.cpu));
            let work = ExecutedWork { cpu: now.work.cpu.saturating_sub(cpu), instructions: None };
            (now.subject.name.clone(), now.counts.since(&counts), work)
        })
        .collect();
    let others = earlier.map_or(FaultCounts::default(), |sample| sample.others);
    rows.push(("others".to_owned(), sample.others.since(&others), ExecutedWork::default()));
    rows
}

fn fault_report(
    profiler: &FaultProfiler,
    latency: bool,
    sample: &FaultSample,
    elapsed: Micros,
    (runs, ns): (u64, u64),
) -> FaultReport {
    let timed = latency && profiler.tier() == FaultTier::Functions;
    let container = |counted: &CountedContainer| ContainerFaults {
        subject: counted.subject.clone(),
        faults: FaultTotals::from(&counted.counts),
        work: counted.work,
        rate: counted.work.rate(counted.counts.total()),
    };
    let all: u64 = sample.containers.iter().map(|c| c.counts.total()).sum::<u64>() + sample.others.total();
    let ns_per_call = ns.checked_div(runs).unwrap_or(0);
    // Two programs see one fault where its beginning and its end are followed.
    let calls_per_fault = 1 + u64::from(timed);
    FaultReport {
        kernel: kernel_fact().1,
        tier: profiler.tier(),
        no_functions: profiler.refused().map(ToString::to_string),
        no_latency: (latency && !timed).then_some("tracepoints see no end of a fault"),
        no_instructions: profiler.no_instructions().map(|error| error.to_string()),
        elapsed_usec: elapsed,
        containers: sample.containers.iter().map(container).collect(),
        others: FaultTotals::from(&sample.others),
        cost: ProgramCost { ns_per_call, cpu_usec: Micros::nanos(ns_per_call * all * calls_per_fault) },
    }
}
