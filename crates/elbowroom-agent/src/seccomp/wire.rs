//! What is said between runtime, supervisor and worker.

use super::{HandoverState, SeccompContainer};
use anyhow::{Context, Result, bail, ensure};
use elbowroom_linux::process;
use elbowroom_linux::seccomp::{NotificationLog, SeccompListener, receive, send};
use elbowroom_types::unit::Micros;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Longest message of a runtime: its state has the container's annotations.
const MAX_PROCESS_STATE: usize = 1 << 20;
/// Longest identifier of a container: each byte is at most six of a message of ours.
const MAX_ID: usize = 512;
/// How long a runtime may take to say it.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest message between our own processes.
const MAX_MESSAGE: usize = 4096;

/// What a runtime says (runtime-spec, config-linux.md, "The Container Process State").
#[derive(Debug, Deserialize)]
struct ContainerProcessState {
    fds: Vec<String>,
    pid: i32,
    state: OciContainerState,
}

#[derive(Debug, Deserialize)]
struct OciContainerState {
    id: String,
}

/// Reads that: the container's identifier, its pid, and which descriptor is the listener.
///
/// # Errors
/// What is no such message.
pub fn parse_process_state(json: &[u8]) -> Result<(String, i32, usize)> {
    let said: ContainerProcessState = serde_json::from_slice(json).context("the runtime's message")?;
    let at = said.fds.iter().position(|name| name == "seccompFd");
    ensure!(said.pid > 1, "the runtime's message: {} is no pid of a container", said.pid);
    ensure!(
        !said.state.id.is_empty() && said.state.id.len() <= MAX_ID,
        "the runtime's message: an identifier of {} bytes",
        said.state.id.len()
    );
    Ok((said.state.id, said.pid, at.context("the runtime's message: no seccompFd")?))
}

/// Takes a container from a runtime; `None` where it says nothing, as one that only looks whether we are there.
pub(super) fn receive_container(peer: &UnixStream) -> Result<Option<SeccompContainer>> {
    peer.set_read_timeout(Some(RUNTIME_TIMEOUT))?;
    let who = rustix::net::sockopt::socket_peercred(peer)?;
    ensure!(who.uid.is_root(), "a process of user {} brought a listener", who.uid);
    let (mut json, mut fds) = (Vec::new(), Vec::new());
    let mut piece = vec![0; 64 << 10];
    loop {
        let (got, more) = receive(peer.as_fd(), &mut piece).context("reading the runtime's message")?;
        fds.extend(more);
        json.extend_from_slice(&piece[..got]);
        ensure!(json.len() <= MAX_PROCESS_STATE, "the runtime's message is longer than 1 MiB");
        let whole = serde_json::from_slice::<serde::de::IgnoredAny>(&json).is_ok();
        if got == 0 && json.is_empty() {
            return Ok(None);
        }
        if got == 0 || whole {
            break;
        }
    }
    let (id, pid, at) = parse_process_state(&json)?;
    ensure!(at < fds.len(), "{id}: the runtime sent no descriptor");
    let listener =
        SeccompListener::new(fds.swap_remove(at)).with_context(|| format!("{id}: not a seccomp listener"))?;
    let started = process::start_time(pid);
    Ok(Some(SeccompContainer {
        id,
        pid,
        started,
        listener: Arc::new(listener),
        page: None,
        page_checked: false,
    }))
}

/// From supervisor to worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WorkerMessage {
    /// The first one, with the runtimes' socket, where there is one, and the record.
    Begin { run_dir: PathBuf, socket: bool },
    /// A container, with its listener and, where there is one, its page.
    Container { slot: usize, id: String, pid: i32, started: Option<Micros>, looked: bool },
    /// Those were all containers there were at the beginning.
    Whole,
    /// A container's page was looked for: here it is, if there is one.
    Page { slot: usize },
}

/// Says it.
pub(super) fn send_message(
    to: BorrowedFd<'_>,
    message: &WorkerMessage,
    fds: &[BorrowedFd<'_>],
) -> Result<()> {
    let json = serde_json::to_vec(message)?;
    ensure!(json.len() <= MAX_MESSAGE, "a message of {} bytes", json.len());
    Ok(send(to, &json, fds)?)
}

/// Everything there is, to a new worker.
pub(super) fn send_all(to: BorrowedFd<'_>, kept: &HandoverState) -> Result<()> {
    let message = WorkerMessage::Begin { run_dir: kept.run_dir.clone(), socket: kept.socket.is_some() };
    let mut fds = vec![kept.record.as_fd()];
    fds.extend(kept.socket.as_ref().map(AsFd::as_fd));
    send_message(to, &message, &fds)?;
    kept.containers.iter().try_for_each(|(slot, container)| send_container(to, *slot, container))?;
    send_message(to, &WorkerMessage::Whole, &[])
}

/// One container.
pub(super) fn send_container(to: BorrowedFd<'_>, slot: usize, container: &SeccompContainer) -> Result<()> {
    let SeccompContainer { id, pid, started, listener, page, page_checked: looked } = container;
    let mut fds = vec![listener.as_fd()];
    fds.extend(page.as_ref().map(AsFd::as_fd));
    let message =
        WorkerMessage::Container { slot, id: id.clone(), pid: *pid, started: *started, looked: *looked };
    send_message(to, &message, &fds)
}

/// That its page was looked for.
pub(super) fn send_page(to: BorrowedFd<'_>, slot: usize, container: &SeccompContainer) -> Result<()> {
    let fds: Vec<_> = container.page.iter().map(AsFd::as_fd).collect();
    send_message(to, &WorkerMessage::Page { slot }, &fds)
}

/// The first message, as what the worker has then.
pub(super) fn receive_handover(from: BorrowedFd<'_>) -> Result<HandoverState> {
    let Some((WorkerMessage::Begin { run_dir, socket }, fds)) = receive_message(from)? else {
        bail!("the supervisor said nothing")
    };
    let mut fds = fds.into_iter();
    let record = Arc::new(NotificationLog::open(fds.next().context("the supervisor sent no record")?)?);
    let socket = if socket { fds.next().map(Into::into) } else { None };
    Ok(HandoverState { run_dir, socket, record, containers: BTreeMap::new() })
}

/// The next message; `None`: the supervisor is gone.
pub(super) fn receive_message(from: BorrowedFd<'_>) -> Result<Option<(WorkerMessage, Vec<OwnedFd>)>> {
    let mut text = [0; MAX_MESSAGE];
    match receive(from, &mut text) {
        Ok((0, _)) | Err(Errno::CONNRESET) => Ok(None),
        Ok((got, fds)) => Ok(Some((serde_json::from_slice(&text[..got])?, fds))),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtimes_message_is_read_and_others_are_not() {
        // As runc 1.1.5 says it.
        let json = br#"{"ociVersion":"1.0.2-dev","fds":["seccompFd"],"pid":4711,"state":{"ociVersion":"1.0.2-dev","id":"web","status":"creating","pid":4711,"bundle":"/b"}}"#;
        assert_eq!(parse_process_state(json).unwrap(), ("web".to_owned(), 4711, 0));
        for bad in [
            &b""[..],
            b"{}",
            br#"{"fds":[],"pid":7,"state":{"id":"a"}}"#,
            br#"{"fds":["seccompFd"],"pid":0,"state":{"id":"a"}}"#,
            br#"{"fds":["seccompFd"],"pid":7,"state":{"id":""}}"#,
        ] {
            assert!(parse_process_state(bad).is_err());
        }
    }
}
