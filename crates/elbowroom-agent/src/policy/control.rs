//! The sockets where the agent is asked: connections with one request a line, and one response a line.
//!
//! There are two: one for root, and one for the API server, which has no rights. The kernel tells that a
//! client is the API server: it holds the lock of that role (`docs/decisions/0017-api-process.md`).

use super::{Mailbox, PolicyMessage};
use crate::view_server::roles::{AgentRole, RoleLock};
use anyhow::{Context, Result};
use elbowroom_client::api::{ControlRequest, ControlResponse, NetworkReport};
use elbowroom_client::profile_store::ProfileStore;
use elbowroom_linux::bounded::LineReader;
use elbowroom_linux::{privilege, process, timer, unix_socket};
use rustix::net::UCred;
use rustix::net::sockopt::socket_peercred;
use std::io::{ErrorKind, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

/// The longest request line: names are at most a few kilobytes.
const MAX_REQUEST: u64 = 64 << 10;
/// Connections served at once; one more waits in the kernel's queue, as when a hundred containers start together.
const MAX_CONNECTIONS: usize = 256;
/// How long no connection is accepted after there was no descriptor or no thread for it.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(20);
/// How long a connection that is refused keeps its place, of which there are a few.
const REFUSAL_PAUSE: Duration = Duration::from_millis(10);
/// How long the policy loop may take; it answers in microseconds unless it waits for a mount.
const POLICY_TIMEOUT: Duration = Duration::from_secs(15);
/// The same for the API server: one for its snapshots, and those for single containers.
const MAX_API_CONNECTIONS: usize = 4;
/// Connections that were refused and take their time to close; one more keeps its place.
const MAX_REFUSED: usize = 64;
/// The answer to a client that has waited for [`POLICY_TIMEOUT`].
const BUSY: &str = "the agent is busy or stopping: try again";
/// How long a silent connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The listening socket's file, removed on drop.
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Which peer may come in, and for what.
#[derive(Clone)]
pub(super) enum Endpoint {
    /// Root, for everything.
    Control,
    /// The API server, for what [`ControlRequest::is_allowed_over_http`].
    ApiFeed {
        /// Where its lock is.
        run_dir: PathBuf,
    },
}

impl Endpoint {
    fn max_connections(&self) -> usize {
        match self {
            Self::Control => MAX_CONNECTIONS,
            Self::ApiFeed { .. } => MAX_API_CONNECTIONS,
        }
    }

    /// Whether this process may come in.
    fn accepts_peer(&self, peer: &UCred) -> bool {
        match self {
            // The file's mode has decided.
            Self::Control => true,
            Self::ApiFeed { run_dir } => {
                RoleLock::open_api(run_dir).is_ok_and(|roles| roles.holder(AgentRole::Api) == Some(peer.pid))
            }
        }
    }

    fn allows_request(&self, request: &ControlRequest) -> bool {
        matches!(self, Self::Control) || request.is_allowed_over_http()
    }

    /// Mode and group of the socket's file.
    fn access(&self) -> (u32, Option<u32>) {
        match self {
            Self::Control => (0o600, None),
            Self::ApiFeed { .. } => (0o660, Some(privilege::unprivileged_user().gid)),
        }
    }
}

/// Listens on `path`.
pub(super) fn listen(
    path: &Path,
    endpoint: Endpoint,
    mailbox: Mailbox,
    profiles: ProfileStore,
) -> Result<SocketFile> {
    let (own_path, (mode, group)) = (path.to_owned(), endpoint.access());
    let (bound, wait) = mpsc::sync_channel(1);
    let accept = move || {
        // So the socket is gone with the thread, whatever keeps the process from ending: one that is never answered would keep clients.
        // SAFETY: the mailbox's descriptor is there as long as the mailbox; beside it the thread uses what it opens.
        unsafe { process::unshare_open_files_except(&mut [mailbox.raw_fd()]) };
        // The supervisor's lock says that no other agent uses this directory, so a file here is a dead agent's.
        match unix_socket::listen(&own_path, mode, group) {
            Ok(listener) => {
                drop(bound.send(Ok(())));
                accept_each(&listener, &endpoint, &mailbox, &profiles)
            }
            Err(error) => drop(bound.send(Err(error))),
        }
    };
    std::thread::Builder::new().name("control".into()).spawn(accept)?;
    let bound = wait.recv().unwrap_or_else(|_| Err(std::io::Error::other("the thread ended")));
    bound.with_context(|| format!("listening on {}", path.display()))?;
    Ok(SocketFile(path.to_owned()))
}

/// Serves each connection on a thread of its own, for ever.
fn accept_each(
    listener: &UnixListener,
    endpoint: &Endpoint,
    mailbox: &Mailbox,
    profiles: &ProfileStore,
) -> ! {
    let limit = Arc::new(ConnectionLimit { max: endpoint.max_connections(), ..ConnectionLimit::default() });
    let exits = Arc::new(ConnectionLimit { max: MAX_REFUSED, ..ConnectionLimit::default() });
    loop {
        let permit = ConnectionLimit::acquire(&limit);
        let (own_mailbox, endpoint, profiles) = (mailbox.clone(), endpoint.clone(), profiles.clone());
        let exits = exits.clone();
        accept_on_own_thread(listener, mailbox.raw_fd(), move |stream| {
            match is_accepted(&stream, &endpoint) {
                Ok(peer) => {
                    let _ = serve(&stream, peer, &endpoint, &own_mailbox, &profiles);
                    drop((stream, permit));
                }
                Err(_) => {
                    // The socket's mode lets in the API server's group. Without a pause, each call of such a process would cost a thread.
                    std::thread::sleep(REFUSAL_PAUSE);
                    // It may take its time to close, and takes no place meanwhile of those that may come in.
                    let exit = ConnectionLimit::acquire(&exits);
                    drop(permit);
                    drop((stream, exit));
                }
            }
        });
    }
}

/// Accepts one connection on a thread that has no other open files but `listener` and `kept`, and runs `work` with it there; returns when
/// there is one. The thread exists before a client connects, so no client waits for a thread to start. The thread also releases whatever
/// its client sent: where that hangs, it keeps none of the process's files open.
fn accept_on_own_thread(
    listener: &UnixListener,
    kept: RawFd,
    work: impl FnOnce(UnixStream) + Send + 'static,
) {
    let fd = listener.as_raw_fd();
    let (accepted, wait) = mpsc::channel();
    let serve = move || {
        // SAFETY: both are open until the thread says that it has a connection; what it uses beside them it opens itself.
        let has_own = unsafe { process::unshare_open_files_except(&mut [fd, kept]) };
        // SAFETY: the number is the listener's in this thread's table too, and closed only where that is a copy.
        let listener = ManuallyDrop::new(unsafe { UnixListener::from_raw_fd(fd) });
        let connection = listener.accept();
        if has_own {
            drop(ManuallyDrop::into_inner(listener));
        }
        match connection {
            Ok((stream, _)) => {
                let _ = accepted.send(());
                work(stream);
            }
            // Without a descriptor left, it would be the same at once.
            Err(_) => std::thread::sleep(ACCEPT_BACKOFF),
        }
    };
    match std::thread::Builder::new().name("control-peer".into()).spawn(serve) {
        Ok(_) => drop(wait.recv()),
        Err(_) => std::thread::sleep(ACCEPT_BACKOFF),
    }
}

/// Counts connections that are being served.
#[derive(Default)]
struct ConnectionLimit {
    max: usize,
    in_use: Mutex<usize>,
    freed: Condvar,
}

/// One of them, given back on drop.
struct ConnectionPermit(Arc<ConnectionLimit>);

impl ConnectionLimit {
    /// Waits until there is one.
    fn acquire(this: &Arc<Self>) -> ConnectionPermit {
        let taken = this.in_use.lock().expect("no holder of this lock panics");
        let full = |taken: &mut usize| *taken >= this.max;
        *this.freed.wait_while(taken, full).expect("no holder of this lock panics") += 1;
        ConnectionPermit(this.clone())
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        *self.0.in_use.lock().expect("no holder of this lock panics") -= 1;
        self.0.freed.notify_one();
    }
}

/// The peer's pid, where it may come in; else it is told.
fn is_accepted(stream: &UnixStream, endpoint: &Endpoint) -> std::io::Result<i32> {
    stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
    stream.set_write_timeout(Some(IDLE_TIMEOUT))?;
    let peer = socket_peercred(stream)?;
    if endpoint.accepts_peer(&peer) {
        return Ok(peer.pid.as_raw_nonzero().get());
    }
    let refusal = ControlResponse::Error("only the agent's own API server may ask here".into());
    write_response(stream, &refusal)?;
    Err(std::io::ErrorKind::PermissionDenied.into())
}

/// Answers one peer. Requests that only read from disk are answered here, on a thread that may wait.
fn serve(
    stream: &UnixStream,
    peer: i32,
    endpoint: &Endpoint,
    mailbox: &Mailbox,
    profiles: &ProfileStore,
) -> std::io::Result<()> {
    let (mut lines, mut line) = (LineReader::new(stream, MAX_REQUEST), Vec::new());
    loop {
        match lines.next_line(&mut line) {
            Ok(true) if line.last() == Some(&b'\n') => {}
            // A connection that ends in the middle of a request asks for nothing.
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::FileTooLarge => {
                let refused = format!("request longer than {MAX_REQUEST} bytes");
                return write_response(stream, &ControlResponse::Error(refused));
            }
            Err(error) => return Err(error),
        }
        let response = match serde_json::from_slice::<ControlRequest>(&line) {
            Ok(request) if !endpoint.allows_request(&request) => {
                ControlResponse::Error("the API server may not ask this".into())
            }
            Ok(ControlRequest::Profiles) => {
                profiles.list().map_or_else(malformed_request, ControlResponse::Profiles)
            }
            Ok(ControlRequest::Profile(name)) => match profiles.read(&name) {
                Ok(Some(text)) => ControlResponse::Profile(text),
                Ok(None) => {
                    ControlResponse::Error("no profile of that name: see `elbowroom profile list`".into())
                }
                Err(error) => malformed_request(error),
            },
            Ok(ControlRequest::Network(name)) => network(mailbox, name),
            Ok(request) => ask_policy(mailbox, request, peer),
            Err(e) => ControlResponse::Error(format!("not a request: {e}")),
        };
        write_response(stream, &response)?;
    }
}

fn malformed_request(error: std::io::Error) -> ControlResponse {
    ControlResponse::Error(format!("the profiles that are kept cannot be read: {error}"))
}

/// What a container's network has carried. The container chooses how many interfaces it has, so this thread lists them.
fn network(mailbox: &Mailbox, container: String) -> ControlResponse {
    let (answer, response) = mpsc::sync_channel(1);
    mailbox.send(PolicyMessage::FindProcess { container, answer });
    let found = response.recv_timeout(POLICY_TIMEOUT).unwrap_or_else(|_| Err(BUSY.into()));
    let counted = found.and_then(|pid| {
        elbowroom_linux::network::counters(pid).map_err(|error| match error.is_absent() {
            true => "the container's first process has just ended: try again".into(),
            false => error.to_string(),
        })
    });
    counted.map_or_else(ControlResponse::Error, |counters| {
        ControlResponse::Network(NetworkReport { time_unix_ms: timer::unix_ms(), counters })
    })
}

fn ask_policy(mailbox: &Mailbox, request: ControlRequest, peer: i32) -> ControlResponse {
    let (answer, response) = mpsc::sync_channel(1);
    mailbox.send(PolicyMessage::ControlRequest { request, peer, answer });
    response.recv_timeout(POLICY_TIMEOUT).unwrap_or_else(|_| ControlResponse::Error(BUSY.into()))
}

fn write_response(mut stream: &UnixStream, response: &ControlResponse) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    stream.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::io::Read;
    use std::time::Instant;

    #[test]
    fn a_process_that_is_refused_at_the_feed_makes_no_thread_at_each_call() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: needs root to give a socket to a group");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("feed.sock");
        let (queue, _inbox) = mpsc::channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let endpoint = Endpoint::ApiFeed { run_dir: dir.path().to_owned() };
        let _socket = listen(&path, endpoint, Mailbox { queue, wake }, ProfileStore::at(dir.path())).unwrap();
        let (begin, refused) = (Instant::now(), 50 * MAX_API_CONNECTIONS);
        for _ in 0..refused {
            let mut said = String::new();
            UnixStream::connect(&path).unwrap().read_to_string(&mut said).unwrap();
            assert!(said.contains("only the agent's own API server"), "{said}");
        }
        let least = REFUSAL_PAUSE * (refused / MAX_API_CONNECTIONS - 1) as u32;
        assert!(begin.elapsed() >= least, "{refused} in {:?}", begin.elapsed());
    }
}
