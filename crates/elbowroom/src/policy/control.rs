//! The control socket: accepts connections, reads one request a line, answers one response a line.

use super::{Mailbox, Message};
use crate::api::{Request, Response};
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// The longest request line: names are at most a few kilobytes.
const MAX_REQUEST: u64 = 64 << 10;
/// Connections served at once; one more is told to come back.
const MAX_CONNECTIONS: usize = 64;
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
    let open = Arc::new(AtomicUsize::new(0));
    std::thread::Builder::new().name("control".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let (mailbox, open) = (mailbox.clone(), open.clone());
            if open.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
                open.fetch_sub(1, Ordering::Relaxed);
                let _ = answer(&stream, &Response::Error("too many connections: try again".into()));
                continue;
            }
            let counted = open.clone();
            let spawned = std::thread::Builder::new().name("control-peer".into()).spawn(move || {
                let _ = serve(stream, &mailbox);
                counted.fetch_sub(1, Ordering::Relaxed);
            });
            if spawned.is_err() {
                open.fetch_sub(1, Ordering::Relaxed);
            }
        }
    })?;
    Ok(Socket(path.to_owned()))
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
