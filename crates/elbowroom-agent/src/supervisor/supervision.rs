//! The supervisor's loop: starts what is to run, waits, looks after what runs, and guards the limits of a policy process that is gone.

use super::watched_process::{MOST_RESIDENT, WatchedLook, WatchedProcess, WatchedState};
use crate::view_server::handover::{AgentOptions, Connection, Handover};
use crate::view_server::policy_silence::PolicySilence;
use crate::view_server::roles::AgentRole;
use crate::view_server::service_manager::{AgentProgress, ServiceManager};
use crate::view_server::slots::{ShutdownMode, Slots};
use crate::view_server::{FuseError, session};
use anyhow::Context;
use elbowroom_linux::lease::{HEARTBEAT_INTERVAL, LeaseGuard};
use elbowroom_linux::signal::SignalFd;
use elbowroom_linux::{process, timer};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::AsFd;
use rustix::process::{Pid, Signal};
use std::fs::File;
use std::process::Child;
use std::time::{Duration, Instant};

/// How many peers there are.
const PEER_COUNT: usize = 4;
/// Where the view server is among them.
pub(super) const SERVER: usize = 0;
/// Where the policy process is.
const POLICY: usize = 1;
/// Where the API server is.
pub(super) const API: usize = 2;
/// How often it is checked whether the agent is ready, while a service manager waits for that.
const READY_POLL: Duration = Duration::from_millis(20);
/// The table of mounts is read this often at most: engines mount all the time.
const MOUNTS_POLL: Duration = Duration::from_millis(100);
/// How often the policy process is checked for progress, and the others where one is ending.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// The same while it says that it has nothing to do.
const MAX_LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// The same while it makes none, or the agent stops.
const CLOSE_LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// How often the kernel's state of the processes is read, and limits are checked for a live process that answers for them.
const SLOW_LOOK_INTERVAL: Duration = Duration::from_micros(HEARTBEAT_INTERVAL.get());

/// What the supervisor's loop works on: what it hands to others, the processes it watches, and when it does what next.
pub(super) struct Supervisor<'a> {
    pub(super) handover: &'a Handover,
    pub(super) slots: &'a Slots,
    pub(super) signals: &'a SignalFd,
    /// Takes limits off that the policy process left or forgot.
    guard: &'a mut LeaseGuard,
    /// The table of mounts: poll(2) tells of each change.
    mounts: File,
    /// From when on it may.
    mounts_at: Instant,
    pub(super) peers: [WatchedProcess; PEER_COUNT],
    /// Processes that were killed and have not ended yet.
    lingering: Vec<Child>,
    /// How long the policy process has done nothing.
    silence: PolicySilence,
    /// When it is looked next whether the policy process gets on.
    look_at: Instant,
    /// From when on such a look is one at all processes and limits: the processor wakes once for both.
    slow_look_at: Instant,
    pub(super) service_manager: &'a mut ServiceManager,
    progress: AgentProgress,
    /// Set when told to stop: how long the policy process has.
    pub(super) stop: Option<Instant>,
}

/// Why supervising ended.
pub(super) enum SupervisionEnd {
    Stopped,
    Disconnected,
}

impl<'a> Supervisor<'a> {
    /// Over the processes of `handover`, none of which is looked for yet.
    pub(super) fn new(
        handover: &'a Handover,
        slots: &'a Slots,
        service_manager: &'a mut ServiceManager,
        signals: &'a SignalFd,
        guard: &'a mut LeaseGuard,
    ) -> Result<Self, FuseError> {
        Ok(Self {
            stop: (slots.shutdown_mode() != ShutdownMode::None)
                .then(|| Instant::now() + handover.options.stop_deadline),
            progress: AgentProgress::new(slots),
            service_manager,
            peers: [AgentRole::Server, AgentRole::Policy, AgentRole::Api, AgentRole::Standby]
                .map(WatchedProcess::new),
            lingering: Vec::new(),
            silence: PolicySilence::new(slots.heartbeats(), Instant::now()),
            look_at: Instant::now(),
            slow_look_at: Instant::now(),
            handover,
            slots,
            signals,
            guard,
            mounts: File::open(session::MOUNTINFO).map_err(FuseError::io("opening", session::MOUNTINFO))?,
            mounts_at: Instant::now(),
        })
    }
}

impl Supervisor<'_> {
    /// Supervises until the agent is told to stop, or its views are gone.
    pub(super) fn supervise(&mut self) -> anyhow::Result<SupervisionEnd> {
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
            if ended[POLICY] {
                // Before a new one starts.
                self.guard.check();
            }
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
            if may_be_gone {
                process::forget_start();
            }
            may_be_gone = false;
        }
    }

    /// Kills a policy process that does nothing or bloats, and goes on without killed processes that do not end. Takes off limits that no
    /// process answers for.
    fn look_after_peers(&mut self) {
        self.lingering.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let now = Instant::now();
        if now < self.look_at {
            return;
        }
        let stopping = self.stop.is_some();
        let policy = &self.peers[POLICY];
        if let WatchedState::Up { pid, .. } = policy.state
            && let Some(silent) = self.silence.look(self.slots.heartbeats(), now, || is_running(pid))
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
            self.slow_look_at = now;
        }
        let is_close = stopping || self.silence.is_silent();
        self.look_at =
            now + if is_close { CLOSE_LOOK_INTERVAL } else { self.quiet_time().max(LOOK_INTERVAL) };
        if now + LOOK_INTERVAL / 2 < self.slow_look_at {
            return;
        }
        self.slow_look_at = now + SLOW_LOOK_INTERVAL;
        for peer in &mut self.peers {
            match peer.look() {
                WatchedLook::Lingers => {
                    self.handover.abandon(peer.role);
                    self.lingering.extend(peer.abandon());
                }
                // Most end at once, and the pidfd says so before the next look.
                WatchedLook::Dies => self.slow_look_at = now,
                // The view server and the API process have a limit of the kernel's. This one starts programs, which would inherit it.
                WatchedLook::Lives(resident)
                    if peer.role == AgentRole::Policy && !stopping && resident > MOST_RESIDENT =>
                {
                    let because = "it has more memory than it can need";
                    tracing::warn!(%resident, most = %MOST_RESIDENT, because, "killing the policy process");
                    peer.signal(Signal::KILL);
                    self.slow_look_at = now;
                }
                WatchedLook::Lives(_) => {}
            }
        }
        // Those of one that was given up a moment ago, too.
        self.guard.check();
    }

    /// How long the policy process said that it has nothing to do: there are no containers, and nothing is to be looked after.
    fn quiet_time(&self) -> Duration {
        let quiet = self.slots.quiet_until().saturating_sub(timer::now());
        Duration::from_micros(quiet.get())
            .min(MAX_LOOK_INTERVAL)
            .min(self.service_manager.stall_timeout() / 4)
    }

    /// Tells the service manager how the agent does.
    fn notify_service_manager(&mut self) {
        let now = Instant::now();
        let fuse = Connection::ALL.map(|connection| self.handover.connection(connection).as_fd());
        self.progress.update(self.slots, fuse, now);
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
        let until = due.chain(self.stop).chain(soon).chain(later).fold(self.look_at, Instant::min);
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

    pub(super) fn policy(&mut self) -> &mut WatchedProcess {
        &mut self.peers[POLICY]
    }
}

/// Whether one of the agent's mounts is gone. Where another program has mounted over it, that is noticed only once that mount is gone too.
fn is_unmounted(start: &AgentOptions) -> bool {
    Connection::ALL
        .map(|connection| start.mount_point(connection))
        .iter()
        .chain([&start.pages()])
        .any(|path| session::mounts_on(path).is_ok_and(|mounts| mounts.is_empty()))
}

/// Whether the first thread of a process computes, or waits for a CPU.
fn is_running(pid: Pid) -> bool {
    let pid = pid.as_raw_nonzero();
    let stat = process::stat_line(format!("/proc/{pid}/task/{pid}"));
    stat.is_some_and(|stat| process::state(&stat) == Some('R'))
}
