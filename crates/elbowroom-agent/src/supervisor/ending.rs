//! The supervisor's end: the policy process detaches the views, then the mount goes, then the processes, then the files.

use super::supervision::{API, SERVER, SupervisionEnd, Supervisor};
use super::watched_process::WatchedState;
use crate::view_server::handover::{Connection, Handover};
use crate::view_server::roles::{AgentRole, wait_readable};
use crate::view_server::service_manager::ServiceManager;
use crate::view_server::session::MountLine;
use crate::view_server::slots::ShutdownMode;
use crate::view_server::{image, pages, run_dir, session};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::time::{Duration, Instant};

impl Supervisor<'_> {
    /// A signal: the policy process detaches all containers, unless another agent takes over in a moment, and ends; a second
    /// signal does not wait for that. Its time counts from here on: what the service manager takes to answer is part of it.
    pub(super) fn handle_stop_signal(&mut self) {
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
    pub(super) fn policy_stopped(&mut self) -> Option<SupervisionEnd> {
        let until = self.stop?;
        if self.policy().pidfd().is_none() {
            // Also a supervisor that only takes over the stopping finds the process first.
            let Some((pid, pidfd)) = self.handover.role_lock.watch(AgentRole::Policy) else {
                return Some(SupervisionEnd::Stopped);
            };
            self.policy().state = WatchedState::up(pid, pidfd, None);
            self.policy().signal(Signal::TERM);
        }
        if Instant::now() >= until {
            tracing::warn!(because = "the deadline has passed", "killing the policy process");
            self.policy().signal(Signal::KILL);
            self.stop = Some(Instant::now() + Duration::from_millis(100));
        }
        None
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
    pub(super) fn finish(&mut self) {
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
        // Where views are in a container, these were too.
        let triggers = self.handover.options.mount_point(Connection::Triggers);
        if session::mounts_on(&triggers).is_ok_and(|lines| lines.last().is_some_and(MountLine::is_ours)) {
            session::unmount(&triggers);
        }
        self.terminate_peers();
        // After the writer: nothing is published on a page that says that it is not kept.
        if let Err(error) = pages::remove(&self.handover.options.pages()) {
            tracing::warn!(%error, "view pages are left");
        }
    }

    /// Ends all processes: first as they are used to, then for certain.
    pub(super) fn terminate_peers(&mut self) {
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

/// Removes the files of an agent that has ended.
pub(super) fn remove_files(handover: &Handover, ending: ShutdownMode, service: &mut ServiceManager) {
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
    // Last, and while it is still locked: a process that opened it before and locks it now sees that it is not at its path.
    let _ = std::fs::remove_file(start.run_dir.join(crate::view_server::roles::LOCK_FILE));
}
