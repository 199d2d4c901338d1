//! One process that the supervisor watches: adopted or started, signalled, waited for, and given up when it does not end.

use crate::view_server::backoff::Backoff;
use crate::view_server::handover::Handover;
use crate::view_server::roles::AgentRole;
use elbowroom_linux::process::ProcessStat;
use elbowroom_types::unit::Bytes;
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_send_signal};
use std::process::Child;
use std::time::{Duration, Instant};

/// A policy process with more resident memory than this, shared memory included, is ended and another one takes its place. Far more than
/// it needs: with 500 containers all processes of the agent together have less than 100 MiB (`docs/numbers.md`), and no attack adds more
/// than 16 MiB (`tests/live/test_hostile_bounds.py`).
pub(super) const MOST_RESIDENT: Bytes = Bytes::mib(512);

/// How long a process that was killed may take to end.
pub(super) const REAP_TIMEOUT: Duration = Duration::from_millis(250);

/// One of the processes that are watched.
pub(super) struct WatchedProcess {
    pub(super) role: AgentRole,
    pub(super) state: WatchedState,
    backoff: Backoff,
    /// Whether the last one that ended did so with success; it is not known of one that was adopted.
    pub(super) exited_ok: bool,
    /// Since when it has been dying.
    dying_since: Option<Instant>,
}

/// Whether it runs.
pub(super) enum WatchedState {
    Down { start_at: Instant },
    Up { pid: Pid, pidfd: OwnedFd, life: ProcessStat, child: Option<Child> },
}

/// What a look at a process finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchedLook {
    /// Nothing is wrong. Its resident memory; zero where it does not run.
    Lives(Bytes),
    /// It was killed, or ends.
    Dies,
    /// It was killed and does not end, because a thread of it waits in the kernel. None of its code runs any more, so it writes nothing.
    Lingers,
}

impl WatchedState {
    pub(super) fn up(pid: Pid, pidfd: OwnedFd, child: Option<Child>) -> Self {
        Self::Up { pid, pidfd, life: ProcessStat::of(pid.as_raw_nonzero().get()), child }
    }
}

impl WatchedProcess {
    pub(super) fn new(role: AgentRole) -> Self {
        let state = WatchedState::Down { start_at: Instant::now() };
        Self { role, state, backoff: Backoff::default(), exited_ok: false, dying_since: None }
    }

    pub(super) fn pidfd(&self) -> Option<&OwnedFd> {
        match &self.state {
            WatchedState::Up { pidfd, .. } => Some(pidfd),
            WatchedState::Down { .. } => None,
        }
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Some(pidfd) = self.pidfd() {
            let _ = pidfd_send_signal(pidfd, signal);
        }
    }

    fn schedule_restart(&mut self) {
        self.state = WatchedState::Down { start_at: Instant::now() + self.backoff.next_delay() };
    }

    /// Adopts the process that has the role, or starts one.
    pub(super) fn start(&mut self, handover: &Handover) {
        self.backoff.started();
        self.dying_since = None;
        if let Some((pid, pidfd)) = handover.watch(self.role) {
            tracing::info!(role = %self.role, pid = pid.as_raw_nonzero(), "adopted");
            self.state = WatchedState::up(pid, pidfd, None);
            return;
        }
        match handover.spawn(self.role) {
            Ok(mut child) => {
                let pid = Pid::from_child(&child);
                // A child that is not waited for keeps its pid, dead or alive.
                match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
                    Ok(pidfd) => {
                        tracing::info!(role = %self.role, pid = pid.as_raw_nonzero(), "started");
                        self.state = WatchedState::up(pid, pidfd, Some(child));
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
    pub(super) fn reap(&mut self) {
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

    /// Looks at it.
    pub(super) fn look(&mut self) -> WatchedLook {
        let resident = match &self.state {
            WatchedState::Up { life, .. } => life.resident(),
            WatchedState::Down { .. } => Some(Bytes::ZERO),
        };
        match resident {
            Some(resident) => {
                self.dying_since = None;
                WatchedLook::Lives(resident)
            }
            None if self.dying_since.get_or_insert_with(Instant::now).elapsed() < REAP_TIMEOUT => {
                WatchedLook::Dies
            }
            None => WatchedLook::Lingers,
        }
    }

    /// As if it had ended. Its starter waits for it later.
    pub(super) fn abandon(&mut self) -> Option<Child> {
        let WatchedState::Up { pid, child, .. } = &mut self.state else { return None };
        let (pid, child) = (*pid, child.take());
        warn_undead(self.role, pid);
        (self.exited_ok, self.dying_since) = (false, None);
        self.schedule_restart();
        child
    }
}

/// Says that a process is given up.
pub(super) fn warn_undead(role: AgentRole, pid: Pid) {
    let because = "one of its threads waits in the kernel and does not return";
    tracing::warn!(%role, pid = pid.as_raw_nonzero(), because, "dead, and does not end: replaced");
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
        peer.state = WatchedState::up(pid, pidfd, Some(child));
        // How much memory it has the kernel may count a little later.
        assert!(matches!(peer.look(), WatchedLook::Lives(_)), "it lives");

        // It is not waited for: a look finds it as one whose last thread does not end.
        peer.signal(Signal::KILL);
        let life = ProcessStat::of(pid.as_raw_nonzero().get());
        while life.resident().is_some() {
            std::thread::yield_now();
        }
        assert_eq!(peer.look(), WatchedLook::Dies, "most end at once");
        peer.dying_since = peer.dying_since.map(|since| since - REAP_TIMEOUT);
        assert_eq!(peer.look(), WatchedLook::Lingers);
        let mut child = peer.abandon().unwrap();
        assert!(peer.pidfd().is_none());
        assert_eq!(peer.look(), WatchedLook::Lives(Bytes::ZERO));
        child.wait().unwrap();
    }
}
