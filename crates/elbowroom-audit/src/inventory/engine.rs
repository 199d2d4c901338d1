//! Images out of Docker or Podman: `GET /images/NAME/get` on the engine's socket, or the engine's own command.

use super::AuditError;
use elbowroom_linux::bounded::{self, LineReader};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// An engine that is silent for this long will not answer.
const READ_TIMEOUT: Duration = Duration::from_secs(300);
/// What an engine says about an image it does not give.
const MAX_ERROR_BODY: u64 = 16 << 10;

/// The archive of an image, as the engine writes it.
pub(super) fn save(name: &str) -> Result<Box<dyn Read>, AuditError> {
    // What a name is made of (github.com/distribution/reference); all of it may stand in a URL.
    let word = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    if !name.bytes().all(word) || !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || name.len() > 512 {
        return Err(AuditError::malformed(
            name.escape_debug().to_string(),
            "no such file, and no image's name",
        ));
    }
    match socket() {
        Some(path) => match UnixStream::connect(&path) {
            Ok(stream) => get(stream, name),
            Err(_) => save_by_command(name),
        },
        None => save_by_command(name),
    }
}

/// The engine's socket: `DOCKER_HOST`, Docker's own, Podman's.
fn socket() -> Option<PathBuf> {
    if let Ok(host) = std::env::var("DOCKER_HOST") {
        // An engine elsewhere: its command knows how to reach it.
        return host.strip_prefix("unix://").map(PathBuf::from);
    }
    ["/var/run/docker.sock", "/run/podman/podman.sock"].map(PathBuf::from).into_iter().find(|p| p.exists())
}

/// Version 1.0 of HTTP, so that the answer is the archive and nothing else, up to the end of the connection.
fn get(mut stream: UnixStream, name: &str) -> Result<Box<dyn Read>, AuditError> {
    let failed = || AuditError::io("asking the engine for", name);
    stream.set_read_timeout(Some(READ_TIMEOUT)).map_err(failed())?;
    write!(stream, "GET /images/{name}/get HTTP/1.0\r\nHost: localhost\r\n\r\n").map_err(failed())?;
    let mut reader = LineReader::new(stream, MAX_ERROR_BODY);
    let status = read_response_head(&mut reader).map_err(failed())?;
    if status == 200 {
        return Ok(Box::new(reader));
    }
    let text = bounded::beginning(reader, MAX_ERROR_BODY).map_err(failed())?;
    let text = String::from_utf8_lossy(&text);
    let message = serde_json::from_str::<serde_json::Value>(&text).ok();
    let message = message.as_ref().and_then(|json| json["message"].as_str()).unwrap_or(text.trim());
    Err(AuditError::malformed(name, format!("the engine says {status}: {}", message.escape_debug())))
}

/// The status of an answer, read up to its body.
///
/// # Errors
/// The answer ends before its body, its head is no text or too long, or says no status.
pub fn read_response_head(reader: &mut LineReader<impl Read>) -> io::Result<u16> {
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let (mut status, mut line, mut length) = (None, Vec::new(), 0);
    while reader.next_line(&mut line)? {
        length += line.len() as u64;
        let text = std::str::from_utf8(&line).map_err(|_| invalid("the head of the answer is no text"))?;
        let text = text.strip_suffix('\n').ok_or(io::ErrorKind::UnexpectedEof)?.trim_end_matches('\r');
        if text.is_empty() {
            return status.ok_or_else(|| invalid("no HTTP status in the answer"));
        }
        if length > MAX_ERROR_BODY {
            return Err(invalid("the head of the answer is too long"));
        }
        status = status.or_else(|| text.split(' ').nth(1)?.parse().ok());
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// `docker save NAME`, or `podman save NAME`.
fn save_by_command(name: &str) -> Result<Box<dyn Read>, AuditError> {
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let there =
        |engine: &&str| std::env::split_paths(&directories).any(|dir| Path::new(&dir).join(engine).exists());
    let Some(engine) = ["docker", "podman"].into_iter().find(|engine| there(engine)) else {
        let why = "no such file or directory, and no engine here to ask for an image of that name";
        return Err(AuditError::malformed(name, why));
    };
    let mut child = Command::new(engine)
        .args(["save", "--", name])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(AuditError::io("starting", engine))?;
    let output = child.stdout.take().expect("the output was piped");
    Ok(Box::new(CommandOutput { output: Some(output), child }))
}

/// The output of an engine's command; its end is an error where the command failed.
struct CommandOutput {
    output: Option<ChildStdout>,
    child: Child,
}

impl Read for CommandOutput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(output) = &mut self.output else { return Ok(0) };
        let got = output.read(buffer)?;
        if got == 0 && !buffer.is_empty() {
            self.output = None;
            let stderr = self.child.stderr.take();
            let said = stderr.map_or(Ok(Vec::new()), |said| bounded::beginning(said, MAX_ERROR_BODY))?;
            if !self.child.wait()?.success() {
                let said = String::from_utf8_lossy(&said);
                return Err(io::Error::other(said.trim().escape_debug().to_string()));
            }
        }
        Ok(got)
    }
}

impl Drop for CommandOutput {
    /// A command whose output is no longer read would wait for ever.
    fn drop(&mut self) {
        self.output = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    fn answered(answer: &'static str) -> Result<String, String> {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let stream = UnixStream::connect(dir.path().join("s")).unwrap();
        let engine = std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            let asked: Vec<String> = BufReader::new(&peer)
                .lines()
                .map_while(Result::ok)
                .take_while(|line| !line.is_empty())
                .collect();
            peer.write_all(answer.as_bytes()).unwrap();
            asked.concat()
        });
        let mut text = String::new();
        let result = get(stream, "a/b:c")
            .map_err(|e| e.to_string())
            .and_then(|mut reader| reader.read_to_string(&mut text).map_err(|e| e.to_string()));
        assert!(engine.join().unwrap().starts_with("GET /images/a/b:c/get HTTP/1.0"));
        result.map(|_| text)
    }

    #[test]
    fn an_answer_is_its_body_or_what_the_engine_says() {
        assert_eq!(answered("HTTP/1.0 200 OK\r\nContent-Type: x\r\n\r\narchive"), Ok("archive".to_owned()));
        let error =
            answered("HTTP/1.0 404 Not Found\r\n\r\n{\"message\":\"no such image: a/b:c\"}").unwrap_err();
        assert_eq!(error, "a/b:c: the engine says 404: no such image: a/b:c");
        assert!(answered("nonsense\r\n\r\n").is_err());
        assert!(answered("").is_err());
    }

    #[test]
    fn what_is_no_name_never_reaches_an_engine() {
        for name in ["-o/etc/passwd", "a b", "a\r\nHost: x", "../x", "", "a?b", "\u{202e}"] {
            assert!(save(name).is_err(), "{name:?}");
        }
    }
}
