//! `elbowroom profile`: where time and memory of containers go. One room per profiler, one form of report for all.

use crate::{faults, gpu, pages, startup, stored};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use elbowroom_client::control::LoadSources;
use elbowroom_linux::containers::ContainerSelector;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `profile`.
#[derive(Args)]
pub struct ProfileArgs {
    #[command(subcommand)]
    command: ProfileCommand,
}

/// What is profiled.
#[derive(Subcommand)]
enum ProfileCommand {
    /// What the page tables of containers have in common, which pages they use, and how many are huge.
    Pages(pages::verb::PagesArgs),
    /// What page faults containers take, and what they are spent on.
    Faults(faults::verb::FaultsArgs),
    /// How long containers take to start at a given rate, and what the CPU time of a start is spent on.
    Startup(startup::verb::StartupArgs),
    /// What a container adds to a GPU program: start-up, code loading, allocation, copies, kernels.
    Gpu(gpu::verb::GpuArgs),
    /// Profiles that were kept.
    List(stored::ProfileListArgs),
    /// A profile that was kept, once more.
    Show(stored::ProfileShowArgs),
}

/// The verb.
pub fn main(args: &ProfileArgs, load: LoadSources) -> Result<ExitCode> {
    match &args.command {
        ProfileCommand::Pages(args) => pages::verb::main(args, load),
        ProfileCommand::Faults(args) => faults::verb::main(args, load),
        ProfileCommand::Startup(args) => startup::verb::main(args),
        ProfileCommand::Gpu(args) => gpu::verb::main(args),
        ProfileCommand::List(args) => stored::list(args),
        ProfileCommand::Show(args) => stored::show(args),
    }
}

/// Which containers are meant.
#[derive(Args)]
pub(crate) struct ContainerSelection {
    /// Names, ids, beginnings of ids, or paths of any cgroups (`/system.slice/web.service`); all containers by default.
    #[arg(value_name = "CONTAINER")]
    pub containers: Vec<String>,
    /// Configuration file, for what counts as a container.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ContainerSelection {
    pub(crate) fn open(&self, load: LoadSources) -> Result<ContainerSelector> {
        ContainerSelector::open(&load(self.config.as_deref())?).context("looking for containers")
    }
}

/// The running kernel's release, a fact that every profile depends on.
pub(crate) fn kernel_fact() -> (String, String) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    ("kernel".to_owned(), release)
}

/// A number that fits a narrow column: exact below a hundred thousand.
pub(crate) fn short_count(n: u64) -> String {
    match n {
        0..100_000 => n.to_string(),
        100_000..10_000_000 => format!("{:.0}k", n as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.0}M", n as f64 / 1e6),
        _ => format!("{:.0}G", n as f64 / 1e9),
    }
}

/// A part of a whole, in percent.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1} %", 100.0 * part as f64 / whole as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_their_column() {
        let numbers = [0, 99_999, 123_456, 12_345_678, 12_345_678_901];
        assert_eq!(numbers.map(short_count), ["0", "99999", "123k", "12M", "12G"]);
        assert_eq!((percent(1, 3), percent(0, 0)), ("33.3 %".to_owned(), "-".to_owned()));
    }
}
