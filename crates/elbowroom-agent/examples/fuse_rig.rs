//! Drives the view file system with a toy policy process, by hand or for `tests/fuse.rs`:
//!
//! - `fuse_rig storm [--kills N] [--readers N] [--containers N] [--hz N] [--pause-us N] [--gap-ms N]`
//! - `fuse_rig bench [--rounds N]`: a view file against the native one.
//! - `fuse_rig agent RUN_DIR CONTAINERS HZ`: the agent alone.

#[path = "../tests/rig/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the tests, which use the rest")]
mod rig;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use elbowroom_agent::supervisor;
use elbowroom_agent::supervisor::SupervisorArgs;
use elbowroom_agent::view_server::server;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Readers and changing versions, while every process is killed in turn.
    Storm {
        #[arg(long, default_value_t = 60)]
        kills: usize,
        #[arg(long, default_value_t = 100)]
        readers: usize,
        #[arg(long, default_value_t = 20)]
        containers: usize,
        #[arg(long, default_value_t = 1000)]
        hz: u64,
        #[arg(long, default_value_t = 2000)]
        pause_us: u64,
        #[arg(long, default_value_t = 20)]
        gap_ms: u64,
    },
    /// Latency of a view file and of the native one.
    Bench {
        #[arg(long, default_value_t = 200_000)]
        rounds: usize,
    },
    #[command(hide = true)]
    SlotsWriter { pid: u32, fd: i32 },
    /// An agent with a toy policy process.
    Agent { run_dir: PathBuf, containers: usize, hz: u64 },
    #[command(hide = true)]
    Policy { containers: usize, hz: u64 },
    #[command(hide = true)]
    ViewServer,
    #[command(hide = true)]
    Supervise,
    #[command(hide = true)]
    Standby,
}

fn main() -> anyhow::Result<()> {
    let level = match std::env::var("RIG_LOG").as_deref() {
        Ok("debug") => tracing::Level::DEBUG,
        Ok("info") => tracing::Level::INFO,
        _ => tracing::Level::ERROR,
    };
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).init();
    match Args::parse().verb {
        Verb::Agent { run_dir, containers, hz } => {
            let mut args = SupervisorArgs::new(run_dir);
            args.policy_args = vec![containers.to_string().into(), hz.to_string().into()];
            args.stop_deadline = Duration::from_secs(5);
            supervisor::main(args, || Ok(()))
        }
        Verb::Policy { containers, hz } => rig::policy::main(containers, hz),
        Verb::SlotsWriter { pid, fd } => rig::slots::write(pid, fd),
        Verb::ViewServer => Ok(server::main()?),
        Verb::Supervise => supervisor::resume(),
        Verb::Standby => supervisor::stand_by(),
        Verb::Storm { kills, readers, containers, hz, pause_us, gap_ms } => {
            if let Some(why) = rig::agent::cannot_run() {
                bail!(why);
            }
            let report = rig::storm::Storm {
                readers,
                containers,
                kills,
                hz,
                pause: Duration::from_micros(pause_us),
                gap: Duration::from_millis(gap_ms),
            }
            .run();
            println!("{report:#?}");
            Ok(())
        }
        Verb::Bench { rounds } => bench(rounds),
    }
}

/// Median and 99th percentile of one read, in nanoseconds, of a page that is cached and of the native file.
fn bench(rounds: usize) -> anyhow::Result<()> {
    if let Some(why) = rig::agent::cannot_run() {
        bail!(why);
    }
    let agent = rig::agent::Agent::start(1, 0);
    let view = agent.view(0).join("proc/meminfo");
    for (name, path) in [("native", PathBuf::from("/proc/meminfo")), ("view", view)] {
        let held = std::fs::File::open(&path).context("while opening")?;
        let mut buffer = [0; 8192];
        let open_read_close = percentiles(rounds, || {
            let file = rustix::fs::open(&path, rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty())?;
            rustix::io::read(&file, &mut buffer)
        })?;
        let mut buffer = [0; 8192];
        let pread = percentiles(rounds, || rustix::io::pread(&held, &mut buffer, 0))?;
        println!(
            "{name:8} open+read+close p50 {} p99 {} ns, pread p50 {} p99 {} ns",
            open_read_close.0, open_read_close.1, pread.0, pread.1
        );
    }
    let held = std::fs::File::open(agent.view(0).join("proc/meminfo"))?;
    let mut buffer = [0; 8192];
    let miss = percentiles(rounds / 20, || {
        rustix::fs::fadvise(&held, 0, None, rustix::fs::Advice::DontNeed)?;
        rustix::io::pread(&held, &mut buffer, 0)
    })?;
    println!("view, not cached: pread p50 {} p99 {} ns", miss.0, miss.1);
    let mut set = (2..502).map(|version| {
        let began = std::time::Instant::now();
        agent.ask(&format!("set 0 {version}"));
        rustix::io::pread(&held, &mut buffer, 0).map(|_| began.elapsed().as_nanos())
    });
    let mut took = set.try_fold(Vec::new(), |mut all, one| {
        one.map(|one| {
            all.push(one);
            all
        })
    })?;
    took.sort_unstable();
    println!("command over a socket, publish, drop, read: p50 {} ns", took[took.len() / 2]);
    println!("publish without readers: {} ns", agent.ask("cost 0 1000000"));
    Ok(())
}

fn percentiles(
    rounds: usize,
    mut read: impl FnMut() -> rustix::io::Result<usize>,
) -> anyhow::Result<(u128, u128)> {
    let mut took = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let began = std::time::Instant::now();
        let got = read()?;
        took.push(began.elapsed().as_nanos());
        if got == 0 {
            bail!("nothing was read");
        }
    }
    took.sort_unstable();
    Ok((took[rounds / 2], took[rounds * 99 / 100]))
}
