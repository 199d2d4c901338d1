//! The child's way from a copy of the runner to the command: join the cgroups, take a mount namespace of its own, mount the
//! view, become the command.

use anyhow::Context;
use clap::Args;
use elbowroom_client::control as client;
use elbowroom_client::output::say;
use elbowroom_linux::mount::{MountError, NamespaceRoot};
use elbowroom_linux::{mount, signal};
use elbowroom_types::launch;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use super::{FORWARDED_SIGNALS, InjectionArgs, NOT_STARTED};
use elbowroom_agent::preload;

/// The hidden verb.
pub(crate) const VERB: &str = "run-child";

/// How long the agent may take to prepare a view: long enough for one that is just starting.
const VIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// What the runner tells its child.
#[derive(Args, Debug)]
pub(crate) struct ChildArgs {
    #[arg(long)]
    cgroup: Vec<PathBuf>,
    #[arg(long)]
    no_views: bool,
    #[command(flatten)]
    injections: InjectionArgs,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Returns only where the command could not be started.
pub(crate) fn main(args: &ChildArgs, run_dir: &Path) -> ExitCode {
    let pressure_file = match prepare(args, run_dir) {
        Ok(pressure_file) => pressure_file,
        Err(error) => {
            say(&elbowroom_client::output::error_line(&error));
            return ExitCode::from(NOT_STARTED);
        }
    };
    let command = &args.command[0];
    let mut program = Command::new(command);
    let libraries = launch::preload_libraries(args.injections.preloads());
    if !libraries.is_empty() {
        let mut list = std::env::var_os(launch::PRELOAD_VARIABLE).unwrap_or_default();
        launch::append_preload(&mut list, &libraries);
        program.env(launch::PRELOAD_VARIABLE, list);
    }
    if let Some(file) = pressure_file.as_deref().and_then(Path::to_str) {
        program.envs(launch::pressure_env(file, |name| std::env::var_os(name).is_some()));
    }
    let error = program.args(&args.command[1..]).exec();
    say(&format!("elbowroom: {}: {error}", command.to_string_lossy()));
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Everything before the command. The answer is the file by which it is asked for memory, if the agent does that.
fn prepare(args: &ChildArgs, run_dir: &Path) -> anyhow::Result<Option<PathBuf>> {
    // The runner blocks them to read them, and masks are inherited.
    signal::unblock(&FORWARDED_SIGNALS)?;
    for dir in &args.cgroup {
        let procs = dir.join("cgroup.procs");
        // 0 is the process that writes.
        std::fs::write(&procs, "0").with_context(|| format!("{}: joining", procs.display()))?;
    }
    // Without a namespace of its own the agent lets it alone too.
    if args.no_views || args.injections.env_only {
        return Ok(None);
    }
    mount::own_namespace()?;
    let view = client::request_view(run_dir, 0, VIEW_TIMEOUT)
        .context("no view for the command (--no-views runs it without)")?;
    let root = Path::new("/");
    let place = NamespaceRoot::of_this_process(root)?.made();
    let attached = place.attach_view(&view.parts())?;
    if let Some(page) = attached.page {
        check_page(page, args.injections)?;
    }
    preload::mount_preloads(root, args.injections.preloads())?;
    attached.pressure_file.or_else(|error| {
        say(&format!("elbowroom: the command cannot be asked for memory: {error}"));
        Ok(None)
    })
}

/// The files show the view without the page too (a kernel before Linux 5.12, no sysfs); what is preloaded needs it.
fn check_page(page: Result<bool, MountError>, injections: InjectionArgs) -> anyhow::Result<()> {
    let page = page.context("no view page for the libraries to preload");
    match (page, injections.openmp || injections.libc) {
        (Ok(true), _) | (_, false) => Ok(()),
        (Ok(false), true) => anyhow::bail!(
            "{}: no place for the view page: run without --openmp and --libc",
            mount::PAGE_TARGET
        ),
        (Err(error), true) => Err(error),
    }
}
