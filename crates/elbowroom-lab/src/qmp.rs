//! QEMU's machine protocol (docs/interop/qmp-spec in QEMU), as far as slowing a disk down needs it: one command at a time,
//! over a socket or over the port that `tools/vm` gives its guest.

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// A storage daemon that serves a slow disk answers between two requests: at 4 kB/s that is after a second.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection.
#[derive(Debug)]
pub(crate) struct Qmp<S> {
    stream: S,
    unread: Vec<u8>,
    next_id: u64,
}

impl<S: Read + Write + AsFd> Qmp<S> {
    /// Begins a conversation. One that an earlier user of the same port began goes on: QEMU then refuses to negotiate again,
    /// and nothing else is wrong.
    pub(crate) fn new(stream: S) -> Result<Self> {
        let mut qmp = Self { stream, unread: Vec::new(), next_id: u64::from(std::process::id()) << 32 };
        let _ = qmp.ask("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Runs a command to its end; an error is QEMU's own words.
    pub(crate) fn execute(&mut self, command: &str, arguments: &Value) -> Result<()> {
        match self.ask(command, arguments)? {
            None => Ok(()),
            Some(error) => bail!("QEMU refuses {command} {arguments}: {error}"),
        }
    }

    fn ask(&mut self, command: &str, arguments: &Value) -> Result<Option<String>> {
        self.next_id += 1;
        let question = json!({ "execute": command, "arguments": arguments, "id": self.next_id });
        self.stream.write_all(format!("{question}\n").as_bytes()).context("while writing to QEMU")?;
        let until = Instant::now() + PATIENCE;
        loop {
            let line = self.line(until)?;
            let Ok(answer) = serde_json::from_slice::<Value>(&line) else { continue };
            if answer["id"] == self.next_id {
                return Ok(answer["error"]["desc"].as_str().map(str::to_owned));
            }
        }
    }

    fn line(&mut self, until: Instant) -> Result<Vec<u8>> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                return Ok(self.unread.drain(..=end).collect());
            }
            let left = until.saturating_duration_since(Instant::now());
            let limit = Timespec::try_from(left).context("a time too long to wait")?;
            let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
            if poll(&mut fds, Some(&limit)).context("while waiting for QEMU")? == 0 {
                bail!("QEMU does not answer within {} s", PATIENCE.as_secs());
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer).context("while reading from QEMU")? {
                0 => bail!("QEMU closed the connection"),
                n => self.unread.extend_from_slice(&buffer[..n]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::thread;

    /// A QEMU that greets, reports an event before each answer, and has negotiated already.
    fn qemu(mut end: UnixStream, answers: &'static [&'static str]) -> thread::JoinHandle<()> {
        thread::spawn(move || {
            end.write_all(b"{\"QMP\": {}}\r\n").unwrap();
            let mut text = String::new();
            for answer in answers {
                while !text.contains('\n') {
                    let mut buffer = [0; 512];
                    let n = end.read(&mut buffer).unwrap();
                    text.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
                }
                let (line, rest) = text.split_once('\n').unwrap();
                let id = serde_json::from_str::<Value>(line).unwrap()["id"].clone();
                text = rest.to_owned();
                let event = "{\"event\": \"NIC_RX_FILTER_CHANGED\"}";
                write!(end, "{event}\r\n{}\r\n", answer.replace("ID", &id.to_string())).unwrap();
            }
        })
    }

    #[test]
    fn an_answer_is_told_from_greetings_events_and_an_earlier_negotiation() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let qemu = qemu(
            theirs,
            &[
                "{\"error\": {\"desc\": \"Capabilities negotiation is already complete\"}, \"id\": ID}",
                "{\"return\": {}, \"id\": ID}",
                "{\"error\": {\"desc\": \"Device 'x' not found\"}, \"id\": ID}",
            ],
        );
        let mut qmp = Qmp::new(ours).unwrap();
        qmp.execute("stop", &json!({})).unwrap();
        let error = qmp.execute("stop", &json!({})).unwrap_err().to_string();
        assert!(error.contains("Device 'x' not found"), "{error}");
        qemu.join().unwrap();
        assert!(qmp.execute("stop", &json!({})).is_err(), "nobody is there any more");
    }
}
