//! The reaper of a run whose command has ended before other processes of its cgroup. It is a background process in a session of its
//! own, holds the run's lock, and removes the cgroups when the last process has ended.

use super::FORWARDED_SIGNALS;
use super::cgroup::{self, RunCgroup};
use super::hierarchies::RunHierarchies;
use anyhow::Context;
use clap::Args;
use elbowroom_linux::signal;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The hidden verb.
const VERB: &str = "run-reaper";

/// What the runner tells its reaper; the lock is its standard input.
#[derive(Args, Debug)]
pub(crate) struct CgroupReaperArgs {
    #[arg(long)]
    name: String,
}

/// Starts the reaper, which keeps none of the runner's descriptors but the lock. So a process that reads a pipe from the runner waits
/// only for the runner and the processes that it left, and so does one that waits for the lock.
pub(crate) fn spawn(group: RunCgroup) -> io::Result<()> {
    let (name, run_dir, lock) = group.into_parts();
    let mut command = Command::new("/proc/self/exe");
    command.arg0("elbowroom").args([VERB, "--name", &name, "--run-dir"]).arg(std::path::absolute(run_dir)?);
    command.current_dir("/");
    command.stdin(lock).stdout(Stdio::null()).stderr(Stdio::null()).spawn().map(drop)
}

/// Waits, removes, ends.
pub(crate) fn main(args: &CgroupReaperArgs, run_dir: &Path) -> anyhow::Result<()> {
    // SAFETY: nothing in this process has opened a descriptor yet; what is closed was inherited, and no code here uses it.
    // (By number: musl, which the tarball is built with, has no function for it.)
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    // Not the leader of a process group: the runner started it.
    rustix::process::setsid().context("setsid")?;
    signal::unblock(&FORWARDED_SIGNALS)?;
    let lock = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let layout = RunHierarchies::read()?;
    RunCgroup::adopt(&layout, &args.name, run_dir, lock).remove_when_empty();
    // The run may have had an agent of its own, whose attendant was killed.
    cgroup::remove_stale(&layout, run_dir);
    Ok(())
}
