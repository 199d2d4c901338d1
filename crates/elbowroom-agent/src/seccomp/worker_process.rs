//! The process that answers, as the one that holds the descriptors sees it: started, and killed.

use super::{HandoverState, WORKER_VERB, wire};
use anyhow::{Context, Result};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a process that was killed may take to be gone.
pub(super) const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the process that answers may leave a message lying.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The process that answers.
pub(super) struct SeccompWorker {
    pub(super) child: Child,
    pub(super) channel: OwnedFd,
    pub(super) started_at: Instant,
    /// When it was killed.
    pub(super) killed_at: Option<Instant>,
}

impl SeccompWorker {
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        self.killed_at.get_or_insert_with(Instant::now);
    }
}

/// Starts a process that answers and gives it everything.
pub(super) fn start_worker(kept: &HandoverState) -> Result<SeccompWorker> {
    let (to, from) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&to, Timeout::Send, Some(SEND_TIMEOUT))?;
    let child = Command::new("/proc/self/exe")
        .arg(WORKER_VERB)
        .current_dir("/")
        .stdin(Stdio::from(from))
        // Ctrl-C at a terminal is for the supervisor.
        .process_group(0)
        .spawn()
        .context("starting the process that answers")?;
    let mut worker = SeccompWorker { child, channel: to, started_at: Instant::now(), killed_at: None };
    if let Err(error) = wire::send_all(worker.channel.as_fd(), kept) {
        kill_and_wait(&mut worker.child);
        return Err(error);
    }
    Ok(worker)
}

/// Kills it, and waits until it is gone, or could be.
pub(super) fn kill_and_wait(child: &mut Child) {
    let _ = child.kill();
    let until = Instant::now() + KILL_TIMEOUT;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}
