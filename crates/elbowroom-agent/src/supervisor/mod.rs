//! The supervisor: makes the mount and the shared memory, starts the view server and the policy process, and starts
//! whichever of them dies again, at once the first time and never giving up.
//!
//! It holds the descriptors and decides nothing. When it is killed itself, the policy process or the standby starts a new one, to
//! which it hands what it holds; it finds the others through the roles they have ([`crate::view_server::roles`]) and watches
//! them through pidfds, which need no kinship. A policy process that does nothing is killed, and one of any role that was killed and
//! does not end is replaced all the same: its lock is not its life ([`RoleLock::abandon`]). Only when all of them die at the same moment is the connection lost: the next
//! `elbowroom agent` removes the dead mount and starts afresh.

use crate::view_server::policy_silence::PolicySilence;
use crate::view_server::roles::{AgentOptions, AgentRole, Backoff, Handover, RoleLock, wait_readable};
use crate::view_server::service_manager::{AgentProgress, ServiceManager, StoredFds};
use crate::view_server::slots::{DEFAULT_CAPACITY, ShutdownMode, Slots};
use crate::view_server::{FuseError, image, pages, run_dir, session, stop_signals};
use anyhow::Context;
use elbowroom_linux::bounded;
use elbowroom_linux::host_namespaces::leave_cgroups;
use elbowroom_linux::lease::{HEARTBEAT_INTERVAL, LeaseGuard};
use elbowroom_linux::privilege::keep_private;
use elbowroom_linux::process;
use elbowroom_linux::signal::SignalFd;
use elbowroom_linux::timer::prefer_realtime;
use elbowroom_types::cpuset::CpuSet;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_send_signal};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

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
    std::fs::create_dir_all(&args.run_dir).map_err(FuseError::io("making", &args.run_dir))?;
    keep_private().context("setting umask and RLIMIT_CORE")?;
    let run_path = args.run_dir.canonicalize().map_err(FuseError::io("resolving", &args.run_dir))?;
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
    if handover.options.contained
        && let Err(error) = leave_cgroups()
    {
        let because = "the standby cannot leave the container's cgroups";
        tracing::warn!(%error, because, "a container of the agent that is killed leaves views that fail");
    }
    handover.watch_supervisor()
}

/// Takes the supervisor's role in a run directory, and sees to it that nobody else has any; who is to adopt what they hold needs
/// not wait for that.
fn acquire_supervisor_role(start: &AgentOptions, adopting: bool) -> Result<RoleLock, FuseError> {
    const SETTLE: Duration = Duration::from_secs(2);
    let began = Instant::now();
    let mut aborted = false;
    loop {
        let roles = RoleLock::open(&start.run_dir)?;
        if !roles.acquire(AgentRole::Supervisor) {
            // The container before this one was killed: its views are just being taken away.
            if start.contained && began.elapsed() < start.stop_deadline {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            return Err(start.already_running(AgentRole::Supervisor, roles.holder(AgentRole::Supervisor)));
        }
        if !roles.is_same_file(&start.run_dir) {
            // An agent that stopped removed the file between our opening and locking it.
            continue;
        }
        if adopting {
            return Ok(roles);
        }
        let peer = [AgentRole::Policy, AgentRole::Server, AgentRole::Standby];
        let peer = peer.into_iter().find_map(|r| Some((r, roles.watch(r)?)));
        let Some((role, (pid, pidfd))) = peer else { return Ok(roles) };
        let waited = began.elapsed();
        if waited > REAP_TIMEOUT && process::is_dying(pid.as_raw_nonzero().get()) {
            warn_undead(role, pid);
            roles.abandon(role);
            continue;
        }
        // Processes of an agent whose supervisor was just killed: they start a new one if they are let.
        roles.release(AgentRole::Supervisor);
        if waited > 2 * SETTLE {
            return Err(start.already_running(role, Some(pid)));
        }
        if waited > SETTLE {
            // They do not: killed, and asleep in the kernel for an answer that nobody is left to give.
            if !aborted {
                tracing::warn!(
                    pid = pid.as_raw_nonzero(),
                    because = "no supervisor, and starts none",
                    "ending the agent before"
                );
                for line in session::mounts_on(&start.views())?.iter().filter(|line| line.is_ours()) {
                    session::abort(line.minor)?;
                }
                aborted = true;
            }
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
        wait_readable(&pidfd, Some(Duration::from_millis(50)));
    }
}

/// Ends the API server of an agent that was killed whole: it has that one's settings.
fn stop_stale_api_server(start: &AgentOptions) {
    let Ok(roles) = RoleLock::open_api(&start.run_dir) else { return };
    if let Some((pid, pidfd)) = roles.watch(AgentRole::Api)
        && pidfd_send_signal(&pidfd, Signal::KILL).is_ok()
        && !wait_readable(&pidfd, Some(Duration::from_secs(1)))
    {
        warn_undead(AgentRole::Api, pid);
        roles.abandon(AgentRole::Api);
    }
}

/// Says that a process is given up.
fn warn_undead(role: AgentRole, pid: Pid) {
    let because = "one of its threads waits in the kernel for what does not come";
    tracing::warn!(%role, pid = pid.as_raw_nonzero(), because, "dead, and does not end: replaced");
}

/// Takes over the mount and the memory that an agent before left with the service manager; makes them anew where they are no
/// more what they were, or where this program lays out that memory in another way.
fn adopt(
    start: AgentOptions,
    roles: RoleLock,
    program: OwnedFd,
    kept: StoredFds,
    capacity: u32,
) -> anyhow::Result<Handover> {
    let is_there = |path: &Path, ours: fn(&session::MountLine) -> bool| -> Result<bool, FuseError> {
        Ok(session::mounts_on(path)?.last().is_some_and(ours))
    };
    let mounted = is_there(&start.views(), session::MountLine::is_ours)?
        && is_there(&start.pages(), pages::is_page_mount)?;
    let handover = Handover { options: start, fuse: kept.fuse, slots: kept.slots, role_lock: roles, program };
    let because = match open_slots(&handover) {
        Ok(slots) if mounted && handover.is_connected() => {
            slots.set_shutdown_mode(ShutdownMode::None);
            tracing::info!(containers = slots.iter_from(0).count(), "views of the agent before adopted");
            return Ok(handover);
        }
        Ok(_) => "they were unmounted".to_owned(),
        Err(error) => error.to_string(),
    };
    tracing::warn!(because, "the views of the agent before cannot be adopted: making new ones");
    let Handover { options: start, role_lock: roles, program, .. } = handover;
    connect(start, roles, program, capacity)
}

/// Makes the mount and the memory.
fn connect(
    start: AgentOptions,
    roles: RoleLock,
    program: OwnedFd,
    capacity: u32,
) -> anyhow::Result<Handover> {
    let views = start.views();
    session::remove_stale(&views)?;
    let memory = Slots::create(capacity, possible_cpus()?)?;
    pages::remove(&start.pages())?;
    run_dir::make(&start)?;
    pages::mount(&start.pages(), capacity)?;
    let connected = match session::mount(&views) {
        Ok(connected) => connected,
        Err(error) => {
            let _ = pages::remove(&start.pages());
            return Err(error.into());
        }
    };
    memory.set_can_resend(connected.can_resend);
    if !connected.can_resend {
        tracing::warn!(
            because = "this kernel has no FUSE_NOTIFY_RESEND (Linux 6.9)",
            "a view server that is killed with a read under way costs all views: they are made anew"
        );
    }
    let slots = memory.memory().try_clone_to_owned().map_err(FuseError::io("duplicating", "slots"))?;
    Ok(Handover { options: start, fuse: connected.fuse, slots, role_lock: roles, program })
}

/// Highest possible CPU number and one.
fn possible_cpus() -> anyhow::Result<u32> {
    const PATH: &str = "/sys/devices/system/cpu/possible";
    let text = bounded::file_text(PATH, bounded::KERNEL_FILE).map_err(FuseError::io("reading", PATH))?;
    let set: CpuSet = text.parse().with_context(|| format!("while reading {PATH}"))?;
    Ok(set.iter().last().map_or(1, |cpu| cpu + 1))
}

fn open_slots(handover: &Handover) -> anyhow::Result<Slots> {
    let memory = handover.slots.try_clone().map_err(FuseError::io("duplicating", "slots"))?;
    Ok(Slots::open(memory)?)
}

/// When memory runs out, the agent is to be killed after those it serves: a guard that dies first guards nothing. The processes
/// it starts inherit that; a program that is a user's own is given the ordinary score by who starts it.
fn lower_oom_score() {
    // As kubelet and containerd: -1000 would leave the kernel nobody to kill if the agent itself took all memory.
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
        let mut supervisor = Supervisor {
            stop: (slots.shutdown_mode() != ShutdownMode::None)
                .then(|| Instant::now() + handover.options.stop_deadline),
            progress: AgentProgress::new(&slots),
            service_manager: &mut service,
            peers: [AgentRole::Server, AgentRole::Policy, AgentRole::Api, AgentRole::Standby]
                .map(WatchedProcess::new),
            lingering: Vec::new(),
            silence: PolicySilence::new(slots.heartbeats(), Instant::now()),
            look_at: Instant::now(),
            handover: &handover,
            slots: &slots,
            signals,
            guard: &mut guard,
            guard_at: Instant::now(),
            mounts: File::open(session::MOUNTINFO).map_err(FuseError::io("opening", session::MOUNTINFO))?,
            mounts_at: Instant::now(),
        };
        match supervisor.supervise()? {
            SupervisionEnd::Stopped => {
                supervisor.finish();
                break slots.shutdown_mode();
            }
            SupervisionEnd::Disconnected => {
                tracing::error!(
                    because = "unmounted or aborted by somebody",
                    "the views' connection is gone: making a new one"
                );
                supervisor.terminate_peers();
                let Handover { options: start, role_lock: roles, program, .. } = handover;
                handover = connect(start, roles, program, capacity)?;
            }
        }
    };
    guard.restore_and_remove();
    let start = &handover.options;
    if ending != ShutdownMode::KeepViews {
        image::remove(&start.run_dir, &handover.program);
        run_dir::remove(start);
        service.remove_fds();
    }
    // The API server may not do that itself, and a policy process that was down could not.
    for file in [
        crate::http::server::API_SOCKET,
        crate::view_server::roles::API_LOCK_FILE,
        elbowroom_client::control::CONTROL_SOCKET,
        elbowroom_client::control::FEED_SOCKET,
    ] {
        let _ = std::fs::remove_file(start.run_dir.join(file));
    }
    let _ = std::fs::remove_file(crate::probes::socket_path(&start.run_dir));
    // Last, and while it is still locked: whoever opened it before and locks it now sees that it is not at its path.
    let _ = std::fs::remove_file(start.run_dir.join(crate::view_server::roles::LOCK_FILE));
    tracing::info!(
        views = if ending == ShutdownMode::KeepViews { "left for the next agent" } else { "removed" },
        "stopped"
    );
    Ok(())
}

/// Whether somebody took away what is mounted. What others mounted over it hides it until they take that away.
fn is_unmounted(start: &AgentOptions) -> bool {
    [start.views(), start.pages()]
        .iter()
        .any(|path| session::mounts_on(path).is_ok_and(|mounts| mounts.is_empty()))
}

/// Whether the first thread of a process computes, or waits for a CPU.
fn is_running(pid: Pid) -> bool {
    let pid = pid.as_raw_nonzero();
    let stat = process::stat_line(format!("/proc/{pid}/task/{pid}"));
    stat.is_some_and(|stat| process::state(&stat) == Some('R'))
}

struct Supervisor<'a> {
    handover: &'a Handover,
    slots: &'a Slots,
    signals: &'a SignalFd,
    /// Takes limits off that the policy process left or forgot.
    guard: &'a mut LeaseGuard,
    /// When it looks next.
    guard_at: Instant,
    /// The table of mounts: poll(2) tells of each change.
    mounts: File,
    /// From when on it may.
    mounts_at: Instant,
    peers: [WatchedProcess; PEER_COUNT],
    /// Processes that were killed and have not ended yet.
    lingering: Vec<Child>,
    /// How long the policy process has done nothing.
    silence: PolicySilence,
    /// When processes are looked at next.
    look_at: Instant,
    service_manager: &'a mut ServiceManager,
    progress: AgentProgress,
    /// Set when told to stop: how long the policy process has.
    stop: Option<Instant>,
}

/// How many peers there are.
const PEER_COUNT: usize = 4;
/// Where the view server is among them.
const SERVER: usize = 0;
/// Where the policy process is.
const POLICY: usize = 1;
/// Where the API server is.
const API: usize = 2;
/// How often it is looked whether the agent is ready, while somebody waits for that.
const READY_POLL: Duration = Duration::from_millis(20);
/// The table of mounts is read this often at most: engines mount all the time.
const MOUNTS_POLL: Duration = Duration::from_millis(100);
/// How often it is looked whether processes get on.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// How long a process that was killed may take to end.
const REAP_TIMEOUT: Duration = Duration::from_millis(250);

/// Why supervising ended.
enum SupervisionEnd {
    Stopped,
    Disconnected,
}

/// One of the processes that are watched.
struct WatchedProcess {
    role: AgentRole,
    state: WatchedState,
    backoff: Backoff,
    /// Whether the last one that ended did so with success; nobody knows of one that was adopted.
    exited_ok: bool,
    /// Since when it has been dying.
    dying_since: Option<Instant>,
}

enum WatchedState {
    Down { start_at: Instant },
    Up { pid: Pid, pidfd: OwnedFd, child: Option<Child> },
}

impl WatchedProcess {
    fn new(role: AgentRole) -> Self {
        let state = WatchedState::Down { start_at: Instant::now() };
        Self { role, state, backoff: Backoff::default(), exited_ok: false, dying_since: None }
    }

    fn pidfd(&self) -> Option<&OwnedFd> {
        match &self.state {
            WatchedState::Up { pidfd, .. } => Some(pidfd),
            WatchedState::Down { .. } => None,
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(pidfd) = self.pidfd() {
            let _ = pidfd_send_signal(pidfd, signal);
        }
    }

    fn schedule_restart(&mut self) {
        self.state = WatchedState::Down { start_at: Instant::now() + self.backoff.next_delay() };
    }

    /// Adopts the process that has the role, or starts one.
    fn start(&mut self, handover: &Handover) {
        self.backoff.started();
        self.dying_since = None;
        if let Some((pid, pidfd)) = handover.watch(self.role) {
            tracing::info!(role = %self.role, pid = pid.as_raw_nonzero(), "adopted");
            self.state = WatchedState::Up { pid, pidfd, child: None };
            return;
        }
        match handover.spawn(self.role) {
            Ok(mut child) => {
                let pid = Pid::from_child(&child);
                // A child that is not waited for keeps its pid, dead or alive.
                match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
                    Ok(pidfd) => {
                        tracing::info!(role = %self.role, pid = pid.as_raw_nonzero(), "started");
                        self.state = WatchedState::Up { pid, pidfd, child: Some(child) };
                    }
                    Err(error) => {
                        tracing::error!(role = %self.role, %error, "pidfd_open: a process that cannot be watched is not kept");
                        let _ = child.kill();
                        let _ = child.wait();
                        self.schedule_restart();
                    }
                }
            }
            Err(error) => {
                tracing::error!(role = %self.role, %error, "cannot be started; trying again");
                self.schedule_restart();
            }
        }
    }

    /// The process has ended.
    fn reap(&mut self) {
        if let WatchedState::Up { pid, child, .. } = &mut self.state {
            // A process that was adopted is waited for by its own parent.
            let status = child.as_mut().and_then(|child| child.wait().ok());
            let pid = pid.as_raw_nonzero();
            self.exited_ok = status.is_some_and(|status| status.success());
            match status {
                // As it was told to.
                Some(status) if status.success() => tracing::info!(role = %self.role, pid, "ended"),
                Some(status) => tracing::warn!(role = %self.role, pid, %status, "ended"),
                None => tracing::warn!(role = %self.role, pid, status = "adopted", "ended"),
            }
        }
        self.schedule_restart();
    }

    /// Whether it was killed and does not end, as a thread that waits in the kernel lets it not. No program of it runs any more, so what it
    /// was to write it does not write.
    fn lingers(&mut self) -> bool {
        let is_dying = match &self.state {
            WatchedState::Up { pid, .. } => process::is_dying(pid.as_raw_nonzero().get()),
            WatchedState::Down { .. } => false,
        };
        if !is_dying {
            self.dying_since = None;
            return false;
        }
        self.dying_since.get_or_insert_with(Instant::now).elapsed() >= REAP_TIMEOUT
    }

    /// As if it had ended. Who started it waits for it later.
    fn abandon(&mut self) -> Option<Child> {
        let WatchedState::Up { pid, child, .. } = &mut self.state else { return None };
        let (pid, child) = (*pid, child.take());
        warn_undead(self.role, pid);
        (self.exited_ok, self.dying_since) = (false, None);
        self.schedule_restart();
        child
    }
}

impl Supervisor<'_> {
    fn supervise(&mut self) -> anyhow::Result<SupervisionEnd> {
        // Before the table was opened, too.
        let mut may_be_gone = true;
        loop {
            let now = Instant::now();
            let stopping = self.stop.is_some();
            for peer in &mut self.peers {
                let wanted = match peer.role {
                    AgentRole::Policy => !stopping,
                    AgentRole::Api => !stopping && self.handover.options.api,
                    AgentRole::Supervisor | AgentRole::Server | AgentRole::Standby => true,
                };
                match peer.state {
                    // Also when stopping: what lives must be found, to be told.
                    WatchedState::Down { start_at } if start_at <= now && wanted => {
                        peer.start(self.handover);
                        if peer.role == AgentRole::Policy {
                            self.silence.restart(self.slots.heartbeats(), now);
                        }
                    }
                    _ => {}
                }
            }
            // After the view server was started or found: it answers until the last view is detached.
            if let Some(end) = self.policy_stopped() {
                return Ok(end);
            }
            let (signalled, ended, mounts_changed) = self.wait()?;
            self.guard_limits(ended[POLICY]);
            self.notify_service_manager();
            if signalled {
                self.handle_stop_signal();
            }
            for (peer, ended) in self.peers.iter_mut().zip(ended) {
                if ended {
                    peer.reap();
                }
            }
            self.look_after_peers();
            if ended.contains(&true) && self.stop.is_none() && !self.handover.is_connected() {
                return Ok(SupervisionEnd::Disconnected);
            }
            if may_be_gone || mounts_changed {
                self.mounts_at = Instant::now() + MOUNTS_POLL;
                if self.stop.is_none() && is_unmounted(&self.handover.options) {
                    return Ok(SupervisionEnd::Disconnected);
                }
            }
            may_be_gone = false;
        }
    }

    /// Kills a policy process that does nothing, and goes on without processes that were killed and do not end.
    fn look_after_peers(&mut self) {
        self.lingering.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let now = Instant::now();
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK_INTERVAL;
        let stopping = self.stop.is_some();
        let policy = &self.peers[POLICY];
        if let WatchedState::Up { pid, .. } = policy.state
            && let Some(silent) = self.silence.look(self.slots.heartbeats(), now, is_running(pid))
            && !stopping
        {
            let pid = pid.as_raw_nonzero();
            tracing::warn!(
                pid,
                silent_ms = silent.as_millis() as u64,
                because = "it does nothing",
                "killing the policy process"
            );
            policy.signal(Signal::KILL);
        }
        let mut is_abandoned = false;
        for peer in self.peers.iter_mut().filter_map(|peer| peer.lingers().then_some(peer)) {
            self.handover.abandon(peer.role);
            self.lingering.extend(peer.abandon());
            is_abandoned = true;
        }
        if is_abandoned {
            // Its limits are nobody's now.
            self.guard.check();
        }
    }

    /// Limits go as soon as nobody answers for them: before a new policy process starts, and within seconds of one that hangs.
    fn guard_limits(&mut self, policy_ended: bool) {
        let now = Instant::now();
        if policy_ended || now >= self.guard_at {
            self.guard.check();
            self.guard_at = now + Duration::from_micros(HEARTBEAT_INTERVAL.get());
        }
    }

    /// Tells the service manager how the agent does.
    fn notify_service_manager(&mut self) {
        let now = Instant::now();
        self.progress.update(self.slots, &self.handover.fuse, now);
        let works = self.progress.is_progressing(now, self.service_manager.stall_timeout());
        self.service_manager.notify_status(self.progress.is_ready(), works, self.slots);
    }

    /// Waits for a signal, the end of a peer, a change of the table of mounts, or the time to start one or to look after limits.
    fn wait(&self) -> anyhow::Result<(bool, [bool; PEER_COUNT], bool)> {
        let api = self.handover.options.api && self.stop.is_none();
        let due = self.peers.iter().filter_map(|peer| match peer.state {
            WatchedState::Down { .. } if peer.role == AgentRole::Api && !api => None,
            WatchedState::Down { start_at } => Some(start_at),
            WatchedState::Up { .. } => None,
        });
        let soon = self.service_manager.is_waiting().then(|| Instant::now() + READY_POLL);
        let mounts = Instant::now() >= self.mounts_at;
        let later = (!mounts).then_some(self.mounts_at);
        let until =
            due.chain(self.stop).chain(soon).chain(later).fold(self.guard_at.min(self.look_at), Instant::min);
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut fds = vec![PollFd::new(self.signals, PollFlags::IN)];
        fds.extend(self.peers.iter().filter_map(|peer| Some(PollFd::new(peer.pidfd()?, PollFlags::IN))));
        fds.extend(mounts.then(|| PollFd::new(&self.mounts, PollFlags::PRI)));
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("while waiting for the agent's processes"),
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let signalled = ready.next().unwrap_or(false);
        let mut ended = [false; PEER_COUNT];
        for (ended, peer) in ended.iter_mut().zip(&self.peers) {
            *ended = peer.pidfd().is_some() && ready.next().unwrap_or(false);
        }
        Ok((signalled, ended, mounts && ready.next().unwrap_or(false)))
    }

    /// A signal: the policy process detaches all containers, unless another agent takes over in a moment, and ends; a second
    /// signal does not wait for that. Its time counts from here on: what the service manager takes to answer is part of it.
    fn handle_stop_signal(&mut self) {
        let began = Instant::now();
        while self.signals.next().is_ok_and(|signal| signal.is_some()) {}
        if self.stop.is_none() {
            let leave = self.service_manager.is_restarting();
            self.slots.set_shutdown_mode(if leave { ShutdownMode::KeepViews } else { ShutdownMode::Stop });
        }
        self.service_manager.notify_stopping();
        let limit = if self.stop.is_none() { self.handover.options.stop_deadline } else { Duration::ZERO };
        self.stop = Some(began + limit);
        tracing::info!(limit_ms = limit.as_millis() as u64, "stopping");
        self.policy().signal(Signal::TERM);
        self.peers[API].signal(Signal::TERM);
    }

    /// Whether the policy process has come to its end after we were told to stop.
    fn policy_stopped(&mut self) -> Option<SupervisionEnd> {
        let until = self.stop?;
        if self.policy().pidfd().is_none() {
            // Also a supervisor that only takes over the stopping finds the process first.
            let Some((pid, pidfd)) = self.handover.role_lock.watch(AgentRole::Policy) else {
                return Some(SupervisionEnd::Stopped);
            };
            self.policy().state = WatchedState::Up { pid, pidfd, child: None };
            self.policy().signal(Signal::TERM);
        }
        if Instant::now() >= until {
            tracing::warn!(because = "the deadline has passed", "killing the policy process");
            self.policy().signal(Signal::KILL);
            self.stop = Some(Instant::now() + Duration::from_millis(100));
        }
        None
    }

    fn policy(&mut self) -> &mut WatchedProcess {
        &mut self.peers[POLICY]
    }

    /// Takes views out of containers where the policy process, which knows them, has not.
    fn detach_views(&mut self, minor: u32) {
        // At least; and as long as a policy process would have had, which with hundreds of containers may be needed.
        const WITHIN: Duration = Duration::from_secs(5);
        let left =
            self.stop.map_or(WITHIN, |until| until.saturating_duration_since(Instant::now()).max(WITHIN));
        // In a process of its own: a mount can wait for a container's file systems, for ever.
        let started = self.handover.command("detach-views").arg(minor.to_string()).spawn();
        let mut detaching = match started {
            Ok(child) => child,
            Err(error) => return tracing::error!(%error, "views stay in containers"),
        };
        let ended = rustix::process::pidfd_open(Pid::from_child(&detaching), PidfdFlags::empty())
            .is_ok_and(|pidfd| wait_readable(&pidfd, Some(left)));
        if !ended {
            tracing::error!(because = "file systems of some do not answer", "views stay in containers");
            let _ = detaching.kill();
        }
        let _ = detaching.try_wait();
    }

    /// The mount goes, and with it the server; or only the server, when it has answered what it took.
    fn finish(&mut self) {
        if self.slots.shutdown_mode() == ShutdownMode::KeepViews {
            self.peers[SERVER].signal(Signal::TERM);
            self.terminate_peers();
            return;
        }
        let views = self.handover.options.views();
        let lines = session::mounts_on(&views).unwrap_or_default();
        if let Some(line) = lines.last().filter(|line| line.is_ours()) {
            if !self.policy().exited_ok {
                self.detach_views(line.minor);
            }
            session::unmount(&views);
        }
        self.terminate_peers();
        // After the writer: nobody publishes on a page that says it is kept by nobody.
        if let Err(error) = pages::remove(&self.handover.options.pages()) {
            tracing::warn!(%error, "view pages are left");
        }
    }

    /// Ends all processes: first as they are used to, then for certain.
    fn terminate_peers(&mut self) {
        // The standby is told by its end alone, and last: until then it starts another of us, should we be killed.
        let second = Duration::from_secs(1);
        let patience = [second, self.handover.options.stop_deadline, second, Duration::ZERO];
        self.policy().signal(Signal::TERM);
        self.peers[API].signal(Signal::TERM);
        for (peer, patience) in self.peers.iter_mut().zip(patience) {
            let Some(pidfd) = peer.pidfd() else { continue };
            if !wait_readable(pidfd, Some(patience)) {
                peer.signal(Signal::KILL);
                wait_readable(peer.pidfd().expect("the peer is up"), Some(Duration::from_secs(1)));
            }
            if let WatchedState::Up { child: Some(child), .. } = &mut peer.state {
                let _ = child.try_wait();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_was_killed_and_does_not_end_is_let_go() {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let mut peer = WatchedProcess::new(AgentRole::Policy);
        peer.state = WatchedState::Up { pid, pidfd, child: Some(child) };
        assert!(!peer.lingers() && peer.dying_since.is_none(), "it lives");

        // Nobody waits for it: who looks finds it as one whose last thread does not end.
        peer.signal(Signal::KILL);
        while !process::is_dying(pid.as_raw_nonzero().get()) {
            std::thread::yield_now();
        }
        assert!(!peer.lingers(), "most end at once");
        peer.dying_since = peer.dying_since.map(|since| since - REAP_TIMEOUT);
        assert!(peer.lingers());
        let mut child = peer.abandon().unwrap();
        assert!(peer.pidfd().is_none() && !peer.lingers());
        child.wait().unwrap();
    }
}
