//! `elbowroom profile`: where time and memory of containers go. One room per profiler, one form of report for all.

use crate::{faults, gpu, pages, startup, stored};
use anyhow::Result;
use clap::{Args, Subcommand};
use elbowroom_client::control::LoadSources;
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
