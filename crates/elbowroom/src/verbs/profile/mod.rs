//! `elbowroom profile`: where time and memory of containers go. One room per profiler, one form of report for all.

mod faults;
mod gpu;
mod kept;
mod pages;
pub(crate) mod report;
mod startup;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use elbowroom_host::profile::containers::Containers;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `profile`.
#[derive(Args)]
pub(crate) struct ProfileArgs {
    #[command(subcommand)]
    what: Profile,
}

/// What is profiled.
#[derive(Subcommand)]
enum Profile {
    /// What the page tables of containers have in common, which pages they use, and how many are huge.
    Pages(pages::PagesArgs),
    /// What page faults containers take, and what they are spent on.
    Faults(faults::FaultsArgs),
    /// How long containers take to start at a given rate, and what the CPU time of a start is spent on.
    Startup(startup::StartupArgs),
    /// What a container adds to a GPU program: start-up, code loading, allocation, copies, kernels.
    Gpu(gpu::GpuArgs),
    /// Profiles that were kept.
    List(kept::ListArgs),
    /// A profile that was kept, once more.
    Show(kept::ShowArgs),
}

/// The verb.
pub(crate) fn main(args: &ProfileArgs) -> Result<ExitCode> {
    match &args.what {
        Profile::Pages(args) => pages::main(args),
        Profile::Faults(args) => faults::main(args),
        Profile::Startup(args) => startup::main(args),
        Profile::Gpu(args) => gpu::main(args),
        Profile::List(args) => kept::list(args),
        Profile::Show(args) => kept::show(args),
    }
}

/// Which containers are meant.
#[derive(Args)]
struct Which {
    /// Names, ids, beginnings of ids, or paths of any cgroups (`/system.slice/web.service`); all containers by default.
    #[arg(value_name = "CONTAINER")]
    containers: Vec<String>,
    /// Configuration file, for what counts as a container.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Which {
    fn open(&self) -> Result<Containers> {
        let config = crate::config::Config::load(self.config.as_deref())?.containers;
        let (docker, containerd) = (config.docker_root.as_deref(), config.containerd_state.as_deref());
        Containers::open(&config.cgroups, docker, containerd).context("looking for containers")
    }
}

/// The running kernel's release, a fact that every profile depends on.
fn kernel() -> (String, String) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    ("kernel".to_owned(), release)
}

/// A number that fits a narrow column: exact below a hundred thousand.
fn short(n: u64) -> String {
    match n {
        0..100_000 => n.to_string(),
        100_000..10_000_000 => format!("{:.0}k", n as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.0}M", n as f64 / 1e6),
        _ => format!("{:.0}G", n as f64 / 1e9),
    }
}

/// A part of a whole, in percent.
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1} %", 100.0 * part as f64 / whole as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_their_column() {
        let numbers = [0, 99_999, 123_456, 12_345_678, 12_345_678_901];
        assert_eq!(numbers.map(short), ["0", "99999", "123k", "12M", "12G"]);
        assert_eq!((percent(1, 3), percent(0, 0)), ("33.3 %".to_owned(), "-".to_owned()));
    }
}
