//! The supervisor: makes the mount and the shared memory, starts the view server and the policy process, and starts
//! whichever of them dies again, at once the first time and never giving up.
//!
//! It holds the descriptors and decides nothing. When it is killed itself, the policy process or the standby starts a new one and
//! hands it the descriptors. The new one finds the others through the roles they have ([`crate::view_server::roles`]) and watches them
//! through pidfds, which also work for processes that are not its children. A policy process that does nothing or bloats is killed. A
//! killed process of any role that does not end is replaced all the same ([`crate::view_server::roles::RoleLock::abandon`]). The connection
//! is lost only when all of them die at the same moment: the next `elbowroom agent` removes the dead mount and starts afresh.
//!
//! `takeover.rs` takes the role, and adopts or makes the mount; `watched_process.rs` is one process that is watched; `supervision.rs` is
//! the loop, with the guard of limits; `ending.rs` is the end.

mod ending;
mod supervision;
mod takeover;
mod watched_process;

use crate::view_server::handover::{AgentOptions, Handover};
use crate::view_server::roles::AgentRole;
use crate::view_server::service_manager::{ServiceManager, StoredFds};
use crate::view_server::slots::{DEFAULT_CAPACITY, ShutdownMode};
use crate::view_server::{FuseError, image, run_dir, stop_signals};
use anyhow::Context;
use elbowroom_client::api::AgentMode;
use elbowroom_linux::host_namespaces::leave_cgroups;
use elbowroom_linux::lease::LeaseGuard;
use elbowroom_linux::new_file;
use elbowroom_linux::privilege::{keep_agent_capabilities, keep_private};
use elbowroom_linux::process;
use elbowroom_linux::signal::SignalFd;
use elbowroom_linux::timer::prefer_realtime;
use ending::remove_files;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use supervision::{SupervisionEnd, Supervisor};
use takeover::{acquire_supervisor_role, adopt, connect, open_slots, stop_stale_api_server};

/// How an agent is started.
#[derive(Clone, Debug)]
pub struct SupervisorArgs {
    /// Where the views, the lock and the policy process's socket are; made where it is missing.
    pub run_dir: PathBuf,
    /// The program that has the hidden verbs of [`AgentRole::verb`]. It is opened now, and that file is what runs however
    /// long the agent lives.
    pub exe: PathBuf,
    /// Arguments of the policy process after its verb.
    pub policy_args: Vec<OsString>,
    /// Whether there is an API server, with the same arguments.
    pub api: bool,
    /// How much it is to do: what it does not need for that it gives up.
    pub mode: AgentMode,
    /// Most containers at a time.
    pub capacity: u32,
    /// How long the policy process may take to detach all containers on SIGTERM, before it is killed.
    pub stop_deadline: Duration,
}

impl SupervisorArgs {
    /// The defaults for a run directory: this program, no arguments.
    pub fn new(run_dir: impl Into<PathBuf>) -> Self {
        Self {
            run_dir: run_dir.into(),
            exe: "/proc/self/exe".into(),
            policy_args: Vec::new(),
            api: false,
            mode: AgentMode::Full,
            capacity: DEFAULT_CAPACITY,
            stop_deadline: Duration::from_secs(20),
        }
    }
}

/// Whether the service manager hands views of an agent before to this process.
pub fn has_stored_views() -> bool {
    crate::view_server::service_manager::has_stored_fds()
}

/// Runs an agent until it is told to stop (SIGTERM, SIGINT or SIGHUP): `elbowroom agent`. `check` says whether it could ever do its work;
/// one that adopts views goes on answering them and is not asked.
///
/// # Errors
/// When another agent has the run directory (the message names its pid), when the mount cannot be made, and what `check` says.
pub fn main(args: SupervisorArgs, check: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let kept = StoredFds::take();
    let signals = stop_signals()?;
    let run_path = new_file::run_directory(&args.run_dir).map_err(FuseError::io("making", &args.run_dir))?;
    keep_private().context("setting umask and RLIMIT_CORE")?;
    keep_agent_capabilities(args.mode == AgentMode::Views).context("giving up capabilities")?;
    let program = rustix::fs::open(&args.exe, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| FuseError::io("opening", &args.exe)(e.into()))?;
    let mut start = AgentOptions::new(run_path, &args.policy_args, args.api, args.stop_deadline);
    start.contained = image::has_program(&start.run_dir, &args.exe);
    let (run_dir, contained) = (start.run_dir.clone(), start.contained);
    let own = program.try_clone().map_err(FuseError::io("duplicating", &args.exe))?;
    let ended = supervise_from(start, program, kept, args.capacity, &signals, check);
    if ended.is_err() && contained {
        image::remove(&run_dir, own);
    }
    ended
}

/// The same with what [`main`] made or was given.
fn supervise_from(
    start: AgentOptions,
    program: OwnedFd,
    kept: Option<StoredFds>,
    capacity: u32,
    signals: &SignalFd,
    check: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let roles = acquire_supervisor_role(&start, kept.is_some())?;
    run_dir::close_to_others(&start)?;
    stop_stale_api_server(&start);
    // An agent that was killed whole may have left limits: they go before anything here can fail.
    let mut guard = LeaseGuard::new(start.leases());
    guard.check();
    let handover = match kept {
        Some(kept) => adopt(start, roles, program, kept, capacity)?,
        None => {
            check()?;
            connect(start, roles, program, capacity)?
        }
    };
    lower_oom_score();
    run(handover, capacity, signals, guard)
}

/// Goes on as supervisor of processes that live: hidden verb `supervise`, which they start. Not an error, and nothing
/// happens, where another process was faster.
///
/// # Errors
/// [`FuseError::NotInherited`], and as [`main`] when the mount has to be made anew.
pub fn resume() -> anyhow::Result<()> {
    let signals = stop_signals()?;
    let handover = Handover::inherit()?;
    if handover.acquire_role(AgentRole::Supervisor).is_err() {
        return Ok(());
    }
    // The policy process may have started this one, and it ends the standby before it removes the last files.
    outlast_container(&handover);
    let mut guard = LeaseGuard::new(handover.options.leases());
    guard.check();
    let capacity = open_slots(&handover)?.capacity() as u32;
    run(handover, capacity, &signals, guard)
}

/// Waits for the supervisor's end, and starts another: hidden verb `standby`.
///
/// # Errors
/// [`FuseError::NotInherited`], [`FuseError::AlreadyRunning`].
pub fn stand_by() -> anyhow::Result<()> {
    // As the view server: it outlasts a request to end that the whole group gets, and ends by SIGKILL.
    let _signals = stop_signals()?;
    let _ = rustix::thread::set_name(c"elbowroom-stand");
    let handover = Handover::inherit()?;
    handover.acquire_role(AgentRole::Standby)?;
    outlast_container(&handover);
    process::forget_start();
    handover.watch_supervisor()
}

/// Leaves the cgroups of the agent's own container, if it has one: an engine ends all that is in them.
fn outlast_container(handover: &Handover) {
    if handover.options.contained
        && let Err(error) = leave_cgroups()
    {
        let because = "the container's cgroups cannot be left";
        tracing::warn!(%error, because, "a container of the agent that is killed leaves views that fail");
    }
}

/// When memory runs out, the agent is to be killed after those it serves: a guard that dies first guards nothing. The processes
/// it starts inherit that; the code that starts a user's own program gives it the ordinary score.
fn lower_oom_score() {
    // As kubelet and containerd: -1000 would leave the kernel nothing to kill if the agent itself took all memory.
    const SPARED: i32 = -999;
    if process::oom_score_adj() > SPARED
        && let Err(error) = process::set_oom_score_adj(SPARED)
    {
        tracing::warn!(%error, because = "oom_score_adj cannot be lowered", "the agent may be killed when memory runs out");
    }
}

/// Supervises; makes everything anew when the connection is lost.
fn run(
    mut handover: Handover,
    capacity: u32,
    signals: &SignalFd,
    mut guard: LeaseGuard,
) -> anyhow::Result<()> {
    let _ = rustix::thread::set_name(c"elbowroom-super");
    // A guard that waits for its turn on a starved machine is late where it matters most.
    prefer_realtime();
    let mut service = ServiceManager::new();
    let ending = loop {
        let slots = open_slots(&handover)?;
        service.store_fds(&handover.fuse, &handover.slots);
        let mut supervisor = Supervisor::new(&handover, &slots, &mut service, signals, &mut guard)?;
        match supervisor.supervise()? {
            SupervisionEnd::Stopped => {
                supervisor.finish();
                break slots.shutdown_mode();
            }
            SupervisionEnd::Disconnected => {
                tracing::error!(
                    because = "unmounted or aborted by another program",
                    "the views' connection is gone: making a new one"
                );
                supervisor.terminate_peers();
                let Handover { options: start, role_lock: roles, program, .. } = handover;
                handover = connect(start, roles, program, capacity)?;
            }
        }
    };
    guard.restore_and_remove();
    remove_files(&handover, ending, &mut service);
    tracing::info!(
        views = if ending == ShutdownMode::KeepViews { "left for the next agent" } else { "removed" },
        "stopped"
    );
    Ok(())
}
