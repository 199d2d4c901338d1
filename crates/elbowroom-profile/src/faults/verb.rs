//! `elbowroom profile faults`: what page faults containers take. Needs BPF.

use crate::report::ReportArgs;
use crate::selection::ContainerSelection;
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use elbowroom_client::control::LoadSources;
use elbowroom_types::unit::{Micros, parse_duration};
use std::process::ExitCode;

#[cfg(feature = "bpf")]
mod count;
#[cfg(feature = "bpf")]
mod text;

/// Arguments of `profile faults`.
#[derive(Args)]
#[command(after_help = "read           a page of a file or of shared memory, to be read\n\
    cow            a page of a private file mapping, copied at its first write\n\
    shared         a page of a shared mapping, to be written\n\
    anonymous      memory of its own\n\
    swap           a page that was in swap\n\
    write-protect  a write to a page that could only be read: after fork, zeros, write-back\n\
    duplicates     faults on pages of files that another container has faulted on before\n\n\
    Examples:\n  elbowroom profile faults --for 30s web\n  elbowroom profile faults --live")]
#[cfg_attr(not(feature = "bpf"), allow(dead_code, reason = "without BPF they are only checked"))]
pub struct FaultsArgs {
    #[command(flatten)]
    selection: ContainerSelection,
    /// How long; with --live until Ctrl-C by default.
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    duration: Option<Micros>,
    /// Show what happens while it happens, and everything at the end.
    #[arg(long)]
    live: bool,
    /// With --live: time between two tables.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration, requires = "live")]
    interval: Micros,
    /// How faults are followed; by default the best way that works.
    #[arg(long, value_enum)]
    tier: Option<TierArg>,
    /// Time one fault in 16 too, which makes every fault a few per cent dearer. Not by tracepoints, which see no end of a fault.
    #[arg(long)]
    latency: bool,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TierArg {
    /// The functions of the kernel's handler: every class, and latencies when asked (Linux 5.12).
    Functions,
    /// The processor's reports: no latencies (x86-64, Linux 6.1).
    Tracepoints,
}

/// The verb.
pub fn main(args: &FaultsArgs, load: LoadSources) -> Result<ExitCode> {
    if args.interval < Micros(100_000) {
        bail!("--interval below 100ms shows nothing that a person can read: write for example \"1s\"");
    }
    if args.latency && matches!(args.tier, Some(TierArg::Tracepoints)) {
        bail!("--latency needs --tier functions: tracepoints see no end of a fault");
    }
    follow(args, load)
}

#[cfg(feature = "bpf")]
fn follow(args: &FaultsArgs, load: LoadSources) -> Result<ExitCode> {
    args.report.prepare()?;
    count::count(args, load)
}

#[cfg(not(feature = "bpf"))]
fn follow(_: &FaultsArgs, _: LoadSources) -> Result<ExitCode> {
    bail!(
        "page faults can be followed only by BPF, which this build does not have: `make build` with clang and libelf makes one"
    )
}
