//! Experiments: what Elbowroom costs, how it adapts and what it survives, next to the kernel's own files and to lxcfs.
//!
//! The product is driven as a black box, over its command line and JSON. Nothing links this crate.

mod backend;
mod cgroup;
mod container;
mod database;
mod fio;
mod job;
mod jobs;
mod lxcfs;
mod plot;
mod procfs;
mod product;
mod program;
mod qmp;
mod rig;
mod scope;
mod stats;
mod sysinfo;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};
use job::{Common, Job};
use jobs::api::Api;
use jobs::density::Density;
use jobs::disk::Disk;
use jobs::disk_buffered::DiskBuffered;
use jobs::disk_two::DiskTwo;
use jobs::kills::Kills;
use jobs::memory::Memory;
use jobs::memory_harm::MemoryHarm;
use jobs::pitfalls::Pitfalls;
use jobs::profile_applications::ProfileApplications;
use jobs::profile_faults::ProfileFaults;
use jobs::profile_gpu::ProfileGpu;
use jobs::profile_pages::ProfilePages;
use jobs::profile_startup::ProfileStartup;
use jobs::read::Read;
use jobs::runtimes::Runtimes;
use jobs::swarm::Swarm;
use jobs::tick::Tick;
use jobs::views::Views;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Measures Elbowroom: costs, adaptation, survival.
///
/// Each experiment writes lab/results/DATE-JOB[-TAG]/ with raw numbers, the machine's description, a summary and figures,
/// and takes everything it made down again, also when it fails or is interrupted. Run as root from the repository's root
/// after `cargo build --release`.
#[derive(Parser)]
#[command(name = "elbowroom-lab", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// What one read costs inside a container: native, lxcfs, Elbowroom. About 3 minutes.
    Read(WithCommon<Read>),
    /// A hundred polling containers: latency and the daemon's CPU time. About 5 minutes.
    Swarm(WithCommon<Swarm>),
    /// How effective CPU and memory follow neighbours that come and go. About 1 minute.
    Views(WithCommon<Views>),
    /// What one tick of the sensor costs, by number of containers. A few minutes.
    Tick(WithCommon<Tick>),
    /// A thousand `kill -9` of the agent's processes under readers. About 3 minutes.
    Kills(WithCommon<Kills>),
    /// Five hundred containers made and removed twenty times: does anything grow? About 10 minutes.
    Density(WithCommon<Density>),
    /// A burst and a neighbour on a slow disk, under no policy, the paper's and ours. About 2 minutes a run.
    Disk(WithCommon<Disk>),
    /// What the HTTP API costs with 500 containers, looked at and attacked. About 4 minutes.
    Api(WithCommon<Api>),
    /// Two disks, one slow: what is limited on one must not be felt on the other. About 2 minutes a run and policy.
    DiskTwo(WithCommon<DiskTwo>),
    /// What a limit catches, by the way in which a program reads or writes. About 2 minutes a run.
    DiskBuffered(WithCommon<DiskBuffered>),
    /// LinkedIn's pitfalls of memory in cgroups, with and without each strategy. 2 to 10 minutes a figure.
    Pitfalls(WithCommon<Pitfalls>),
    /// Six phases of two databases that share too little memory, under no limits, max and soft limits, and Elbowroom. About 2
    /// minutes a run and policy.
    Memory(WithCommon<Memory>),
    /// Whether anybody dies who would have lived without the memory governor. About 11 minutes.
    MemoryHarm(WithCommon<MemoryHarm>),
    /// What comparing the page tables of four processes costs, each way. About 10 seconds.
    ProfilePages(WithCommon<ProfilePages>),
    /// What counting page faults costs those that take them, by each tier. About 1 minute.
    ProfileFaults(WithCommon<ProfileFaults>),
    /// How long containers take to start, and what it costs, by engine and by application. About 8 minutes.
    ProfileStartup(WithCommon<ProfileStartup>),
    /// What a container adds to GPU programs, and where their time goes. Needs an NVIDIA GPU, runc and `make gpu`. About 3 minutes.
    ProfileGpu(WithCommon<ProfileGpu>),
    /// Page tables and page faults of six applications, four containers of each.
    ProfileApplications(WithCommon<ProfileApplications>),
    /// HotSpot's GC threads and heap, and OpenMP's regions: as they come, by hand, and by a view. 2 to 14 minutes a figure.
    Runtimes(WithCommon<Runtimes>),
    /// Studies recorded runs again and writes their summaries and figures anew; touches nothing else.
    Redraw {
        /// Result directories.
        #[arg(required = true)]
        dirs: Vec<PathBuf>,
    },
    /// Takes down what runs that were killed left behind.
    Clean,
}

#[derive(clap::Args)]
struct WithCommon<J: clap::Args> {
    #[command(flatten)]
    job: J,
    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    match dispatch(Cli::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("elbowroom-lab: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn dispatch(verb: Verb) -> Result<()> {
    match verb {
        Verb::Api(job) => run(&job),
        Verb::Read(job) => run(&job),
        Verb::Swarm(job) => run(&job),
        Verb::Views(job) => run(&job),
        Verb::Tick(job) => run(&job),
        Verb::Kills(job) => run(&job),
        Verb::Density(job) => run(&job),
        Verb::Disk(job) => run(&job),
        Verb::DiskTwo(job) => run(&job),
        Verb::DiskBuffered(job) => run(&job),
        Verb::Pitfalls(job) => run(&job),
        Verb::Memory(job) => run(&job),
        Verb::MemoryHarm(job) => run(&job),
        Verb::ProfilePages(job) => run(&job),
        Verb::ProfileFaults(job) => run(&job),
        Verb::ProfileStartup(job) => run(&job),
        Verb::ProfileGpu(job) => run(&job),
        Verb::ProfileApplications(job) => run(&job),
        Verb::Runtimes(job) => run(&job),
        Verb::Redraw { dirs } => dirs.iter().try_for_each(|dir| redraw(dir)),
        Verb::Clean => {
            let runs = scope::clean()?;
            println!("{runs} abandoned run{} cleaned up", if runs == 1 { "" } else { "s" });
            Ok(())
        }
    }
}

fn run<J: Job + clap::Args>(with: &WithCommon<J>) -> Result<()> {
    job::run(&with.job, &with.common)
}

fn redraw(dir: &Path) -> Result<()> {
    for redraw in [
        job::redraw::<Api>,
        job::redraw::<Read>,
        job::redraw::<Swarm>,
        job::redraw::<Views>,
        job::redraw::<Tick>,
        job::redraw::<Kills>,
        job::redraw::<Density>,
        job::redraw::<Disk>,
        job::redraw::<DiskTwo>,
        job::redraw::<DiskBuffered>,
        job::redraw::<Pitfalls>,
        job::redraw::<Memory>,
        job::redraw::<MemoryHarm>,
        job::redraw::<ProfilePages>,
        job::redraw::<ProfileFaults>,
        job::redraw::<ProfileStartup>,
        job::redraw::<ProfileGpu>,
        job::redraw::<ProfileApplications>,
        job::redraw::<Runtimes>,
    ] {
        if redraw(dir)?.is_some() {
            return Ok(());
        }
    }
    bail!("{} holds the result of no job that this version knows", dir.display())
}
