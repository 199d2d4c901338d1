//! The sockets where the agent is asked: connections with one request a line, and one response a line.
//!
//! There are two: one for root, and one for the API server, which is nobody. That it is who it says it is, is the kernel's
//! word: it holds the lock of its role (`docs/decisions/0017-api-process.md`).

use super::{Mailbox, Message};
use crate::view_server::roles::{Role, Roles};
use anyhow::{Context, Result};
use elbowroom_client::api::{Request, Response};
use elbowroom_client::kept::Profiles;
use elbowroom_linux::privilege;
use rustix::net::UCred;
use rustix::net::sockopt::socket_peercred;
use std::io::{BufRead, BufReader, Read, Write};
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
const NO_DESCRIPTORS: Duration = Duration::from_millis(20);
/// How long the owner may take; it answers in microseconds unless it waits for a mount.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// The same for the API server: one for its snapshots, and those for single containers.
const MAX_FEEDS: usize = 4;
/// How long a silent connection is kept.
const IDLE: Duration = Duration::from_secs(60);

/// The listening socket's file, removed on drop.
pub(super) struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Who may come in, and for what.
#[derive(Clone)]
pub(super) enum Door {
    /// Root, for everything.
    Control,
    /// The API server, for what [`Request::is_for_api`].
    Feed {
        /// Where its lock is.
        run_dir: PathBuf,
    },
}

impl Door {
    fn seats(&self) -> usize {
        match self {
            Self::Control => MAX_CONNECTIONS,
            Self::Feed { .. } => MAX_FEEDS,
        }
    }

    /// Whether this process may come in.
    fn admits(&self, peer: &UCred) -> bool {
        match self {
            // The file's mode has decided.
            Self::Control => true,
            Self::Feed { run_dir } => {
                Roles::of_api(run_dir).is_ok_and(|roles| roles.holder(Role::Api) == Some(peer.pid))
            }
        }
    }

    fn allows(&self, request: &Request) -> bool {
        matches!(self, Self::Control) || request.is_for_api()
    }

    /// Restricts the socket's file.
    fn close(&self, path: &Path) -> std::io::Result<()> {
        let mode = match self {
            Self::Control => 0o600,
            Self::Feed { .. } => {
                chown(path, Some(0), Some(privilege::unprivileged().gid))?;
                0o660
            }
        };
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode))
    }
}

/// Listens on `path`.
pub(super) fn listen(path: &Path, door: Door, mailbox: Mailbox, profiles: Profiles) -> Result<Socket> {
    // The supervisor's lock says that no other agent uses this directory, so a file here is a dead agent's.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).with_context(|| format!("listening on {}", path.display()))?;
    door.close(path).with_context(|| format!("restricting {}", path.display()))?;
    let seats = Arc::new(Seats { most: door.seats(), ..Seats::default() });
    std::thread::Builder::new().name("control".into()).spawn(move || {
        loop {
            let seat = Seats::take(&seats);
            let Ok((stream, _)) = listener.accept() else {
                // Without a descriptor left, it would be the same at once.
                std::thread::sleep(NO_DESCRIPTORS);
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
    Ok(Socket(path.to_owned()))
}

/// Counts connections that are being served.
#[derive(Default)]
struct Seats {
    most: usize,
    taken: Mutex<usize>,
    freed: Condvar,
}

/// One of them, given back on drop.
struct Seat(Arc<Seats>);

impl Seats {
    /// Waits until there is one.
    fn take(this: &Arc<Self>) -> Seat {
        let taken = this.taken.lock().expect("no holder of this lock panics");
        let full = |taken: &mut usize| *taken >= this.most;
        *this.freed.wait_while(taken, full).expect("no holder of this lock panics") += 1;
        Seat(this.clone())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        *self.0.taken.lock().expect("no holder of this lock panics") -= 1;
        self.0.freed.notify_one();
    }
}

/// Answers one peer. What is only read from disk is read here, on a thread that may wait.
fn serve(stream: UnixStream, door: &Door, mailbox: &Mailbox, profiles: &Profiles) -> std::io::Result<()> {
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    let peer = socket_peercred(&stream)?;
    if !door.admits(&peer) {
        return answer(&stream, &Response::Error("only the agent's own API server may ask here".into()));
    }
    let peer = peer.pid.as_raw_nonzero().get();
    let mut lines = BufReader::new(&stream);
    loop {
        let mut line = Vec::new();
        if (&mut lines).take(MAX_REQUEST).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            return answer(&stream, &Response::Error(format!("request longer than {MAX_REQUEST} bytes")));
        }
        let response = match serde_json::from_slice::<Request>(&line) {
            Ok(request) if !door.allows(&request) => {
                Response::Error("the API server may not ask this".into())
            }
            Ok(Request::Profiles) => profiles.list().map_or_else(unreadable, Response::Profiles),
            Ok(Request::Profile(name)) => match profiles.read(&name) {
                Ok(Some(text)) => Response::Profile(text),
                Ok(None) => Response::Error("no profile of that name: see `elbowroom profile list`".into()),
                Err(error) => unreadable(error),
            },
            Ok(request) => ask(mailbox, request, peer),
            Err(e) => Response::Error(format!("not a request: {e}")),
        };
        answer(&stream, &response)?;
    }
}

fn unreadable(error: std::io::Error) -> Response {
    Response::Error(format!("the profiles that are kept cannot be read: {error}"))
}

fn ask(mailbox: &Mailbox, request: Request, peer: i32) -> Response {
    let (answer, response) = mpsc::sync_channel(1);
    mailbox.send(Message::Ask { request, peer, answer });
    response
        .recv_timeout(ANSWER_WITHIN)
        .unwrap_or_else(|_| Response::Error("the agent is busy or stopping: try again".into()))
}

fn answer(mut stream: &UnixStream, response: &Response) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    stream.write_all(&line)
}
