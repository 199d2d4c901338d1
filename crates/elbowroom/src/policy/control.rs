//! The control socket: accepts connections, reads one request a line, answers one response a line.

use super::{Mailbox, Message};
use crate::api::{Request, Response};
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

/// The longest request line: names are at most a few kilobytes.
const MAX_REQUEST: u64 = 64 << 10;
/// Connections served at once; one more waits in the kernel's queue, as when a hundred containers start together.
const MAX_CONNECTIONS: usize = 256;
/// How long the owner may take; it answers in microseconds unless it waits for a mount.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// How long a silent connection is kept.
const IDLE: Duration = Duration::from_secs(60);

/// The listening socket's file, removed on drop.
pub(super) struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens on `path`, for root only.
pub(super) fn listen(path: &Path, mailbox: Mailbox) -> Result<Socket> {
    // The supervisor's lock says that no other agent uses this directory, so a file here is a dead agent's.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).with_context(|| format!("listening on {}", path.display()))?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .with_context(|| format!("restricting {}", path.display()))?;
    let seats = Arc::new(Seats::default());
    std::thread::Builder::new().name("control".into()).spawn(move || {
        loop {
            let seat = Seats::take(&seats);
            let Ok((stream, _)) = listener.accept() else { continue };
            let mailbox = mailbox.clone();
            // A thread that cannot be had drops the connection, and its seat with it.
            let _ = std::thread::Builder::new().name("control-peer".into()).spawn(move || {
                let _seat = seat;
                let _ = serve(stream, &mailbox);
            });
        }
    })?;
    Ok(Socket(path.to_owned()))
}

/// Counts connections that are being served.
#[derive(Default)]
struct Seats {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// One of them, given back on drop.
struct Seat(Arc<Seats>);

impl Seats {
    /// Waits until fewer than [`MAX_CONNECTIONS`] are being served.
    fn take(this: &Arc<Self>) -> Seat {
        let taken = this.taken.lock().expect("no holder of this lock panics");
        let full = |taken: &mut usize| *taken >= MAX_CONNECTIONS;
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

fn serve(stream: UnixStream, mailbox: &Mailbox) -> std::io::Result<()> {
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?.pid.as_raw_nonzero().get();
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
            Ok(request) => ask(mailbox, request, peer),
            Err(e) => Response::Error(format!("not a request: {e}")),
        };
        answer(&stream, &response)?;
    }
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
