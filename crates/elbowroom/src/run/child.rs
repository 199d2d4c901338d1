//! The child's way from a copy of the runner to the command: join the cgroups, take a private mount namespace, mount the
//! view, become the command.

use crate::client;
use anyhow::Context;
use clap::Args;
use elbowroom_host::{mount, signal};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use super::{FORWARDED, NOT_STARTED};

/// The hidden verb.
pub(crate) const VERB: &str = "run-child";

/// How long the agent may take to prepare a view: long enough for one that is just starting.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the runner tells its child.
#[derive(Args, Debug)]
pub(crate) struct ChildArgs {
    #[arg(long)]
    id: String,
    #[arg(long)]
    cgroup: Vec<PathBuf>,
    #[arg(long)]
    no_views: bool,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Returns only where the command could not be started.
pub(crate) fn main(args: &ChildArgs, run_dir: &Path) -> ExitCode {
    if let Err(error) = prepare(args, run_dir) {
        eprintln!("elbowroom: {}", crate::one_line(&error));
        return ExitCode::from(NOT_STARTED);
    }
    let command = &args.command[0];
    let error = Command::new(command).args(&args.command[1..]).exec();
    eprintln!("elbowroom: {}: {error}", command.to_string_lossy());
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

fn prepare(args: &ChildArgs, run_dir: &Path) -> anyhow::Result<()> {
    // The runner blocks them to read them, and masks are inherited.
    signal::unblock(&FORWARDED)?;
    for dir in &args.cgroup {
        let procs = dir.join("cgroup.procs");
        // 0 is the process that writes.
        std::fs::write(&procs, "0").with_context(|| format!("{}: joining", procs.display()))?;
    }
    // Without a namespace of its own the agent lets it alone too.
    if args.no_views {
        return Ok(());
    }
    mount::private_namespace()?;
    let view = client::prepare(run_dir, &args.id, 0, PATIENCE)
        .context("no view for the command (--no-views runs it without)")?;
    let root = Path::new("/");
    let plan = mount::plan_here(root, &view.surfaces, &view.view_dir)?;
    mount::attach_here(root, &plan)?;
    // Without the page (a kernel before Linux 5.12, no sysfs) the files still show the view; the agent notes what is missing.
    if let Some(page) = &view.page {
        let _ = mount::attach_page_here(root, page);
    }
    Ok(())
}
