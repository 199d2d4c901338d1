//! The sockets where the agent is asked: connections with one request a line, and one response a line.
//!
//! There are two: one for root, and one for the API server, which is nobody. That it is who it says it is, is the kernel's
//! word: it holds the lock of its role (`docs/decisions/0017-api-process.md`).

use super::{Mailbox, PolicyMessage};
use crate::view_server::roles::{AgentRole, RoleLock};
use anyhow::{Context, Result};
use elbowroom_client::api::{ControlRequest, ControlResponse};
use elbowroom_client::profile_store::ProfileStore;
use elbowroom_linux::bounded::LineReader;
use elbowroom_linux::privilege;
use rustix::net::UCred;
use rustix::net::sockopt::socket_peercred;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

/// The longest request line: names are at most a few kilobytes.
const MAX_REQUEST: u64 = 64 << 10;
/// Connections served at once; one more waits in the kernel's queue, as when a hundred containers start together.
const MAX_CONNECTIONS: usize = 256;
/// How long nobody is accepted after the kernel had no descriptor for it.
const EMFILE_BACKOFF: Duration = Duration::from_millis(20);
/// How long the owner may take; it answers in microseconds unless it waits for a mount.
const POLICY_TIMEOUT: Duration = Duration::from_secs(15);
/// The same for the API server: one for its snapshots, and those for single containers.
const MAX_API_CONNECTIONS: usize = 4;
/// How long a silent connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The listening socket's file, removed on drop.
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Who may come in, and for what.
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

    /// Restricts the socket's file.
    fn restrict_access(&self, path: &Path) -> std::io::Result<()> {
        let mode = match self {
            Self::Control => 0o600,
            Self::ApiFeed { .. } => {
                chown(path, Some(0), Some(privilege::unprivileged_user().gid))?;
                0o660
            }
        };
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode))
    }
}

/// Listens on `path`.
pub(super) fn listen(
    path: &Path,
    door: Endpoint,
    mailbox: Mailbox,
    profiles: ProfileStore,
) -> Result<SocketFile> {
    // The supervisor's lock says that no other agent uses this directory, so a file here is a dead agent's.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).with_context(|| format!("listening on {}", path.display()))?;
    door.restrict_access(path).with_context(|| format!("restricting {}", path.display()))?;
    let seats = Arc::new(ConnectionLimit { max: door.max_connections(), ..ConnectionLimit::default() });
    std::thread::Builder::new().name("control".into()).spawn(move || {
        loop {
            let seat = ConnectionLimit::acquire(&seats);
            let Ok((stream, _)) = listener.accept() else {
                // Without a descriptor left, it would be the same at once.
                std::thread::sleep(EMFILE_BACKOFF);
                continue;
            };
            let (mailbox, door, profiles) = (mailbox.clone(), door.clone(), profiles.clone());
            // A thread that cannot be had drops the connection, and its seat with it.
            let _ = std::thread::Builder::new().name("control-peer".into()).spawn(move || {
                let _seat = seat;
                let _ = serve(stream, &door, &mailbox, &profiles);
            });
        }
    })?;
    Ok(SocketFile(path.to_owned()))
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

/// Answers one peer. What is only read from disk is read here, on a thread that may wait.
fn serve(
    stream: UnixStream,
    door: &Endpoint,
    mailbox: &Mailbox,
    profiles: &ProfileStore,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
    stream.set_write_timeout(Some(IDLE_TIMEOUT))?;
    let peer = socket_peercred(&stream)?;
    if !door.accepts_peer(&peer) {
        return write_response(
            &stream,
            &ControlResponse::Error("only the agent's own API server may ask here".into()),
        );
    }
    let peer = peer.pid.as_raw_nonzero().get();
    let (mut lines, mut line) = (LineReader::new(&stream, MAX_REQUEST), Vec::new());
    loop {
        match lines.next_line(&mut line) {
            Ok(true) if line.last() == Some(&b'\n') => {}
            // What ends in the middle of a request asks nothing.
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::FileTooLarge => {
                let refused = format!("request longer than {MAX_REQUEST} bytes");
                return write_response(&stream, &ControlResponse::Error(refused));
            }
            Err(error) => return Err(error),
        }
        let response = match serde_json::from_slice::<ControlRequest>(&line) {
            Ok(request) if !door.allows_request(&request) => {
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
            Ok(request) => ask_policy(mailbox, request, peer),
            Err(e) => ControlResponse::Error(format!("not a request: {e}")),
        };
        write_response(&stream, &response)?;
    }
}

fn malformed_request(error: std::io::Error) -> ControlResponse {
    ControlResponse::Error(format!("the profiles that are kept cannot be read: {error}"))
}

fn ask_policy(mailbox: &Mailbox, request: ControlRequest, peer: i32) -> ControlResponse {
    let (answer, response) = mpsc::sync_channel(1);
    mailbox.send(PolicyMessage::ControlRequest { request, peer, answer });
    response
        .recv_timeout(POLICY_TIMEOUT)
        .unwrap_or_else(|_| ControlResponse::Error("the agent is busy or stopping: try again".into()))
}

fn write_response(mut stream: &UnixStream, response: &ControlResponse) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    stream.write_all(&line)
}
