//! Asks the agent: one request, one answer.

use crate::api::{ControlRequest, ControlResponse, LaunchGrant, LaunchRequest, PrepareRequest, PreparedView};
use anyhow::{Context, Result, bail};
use elbowroom_linux::bounded::LineReader;
use elbowroom_linux::discover::ContainerSources;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an answer may take; the agent itself gives up earlier and says why.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// How long verbs that need no agent wait for one that may hang.
const CONFIG_TIMEOUT: Duration = Duration::from_secs(2);

/// The agent's directory unless another is given.
pub const DEFAULT_RUN_DIR: &str = "/run/elbowroom";

/// Name of the control socket below the run directory.
pub const CONTROL_SOCKET: &str = "agent.sock";

/// Name of the socket below the run directory where the API server asks.
pub const FEED_SOCKET: &str = "feed.sock";

/// Below the run directory: a file of labels for each container of `elbowroom run` that has some, by its name.
const LABELS: &str = "labels";

/// Where the agent of `run_dir` listens.
pub fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join(CONTROL_SOCKET)
}

/// Where `elbowroom run` of `run_dir` writes labels.
pub fn labels_dir(run_dir: &Path) -> PathBuf {
    run_dir.join(LABELS)
}

/// Reads what a configuration file, or the default one, says of where containers are.
pub type LoadSources = fn(Option<&Path>) -> Result<ContainerSources>;

/// The most bytes of an answer: a profile has some, a thousand containers a few millions.
const MAX_RESPONSE_BYTES: u64 = 256 << 20;

/// A connection to the agent.
pub struct ControlClient {
    stream: LineReader<UnixStream>,
}

impl ControlClient {
    /// Connects to the agent of `run_dir`; the error says how to start one.
    pub fn connect(run_dir: &Path) -> Result<Self> {
        Self::connect_with_timeout(run_dir, REQUEST_TIMEOUT)
    }

    /// Connects to an agent that must answer each request within `patience`.
    pub fn connect_with_timeout(run_dir: &Path, patience: Duration) -> Result<Self> {
        let path = socket_path(run_dir);
        let stream = match UnixStream::connect(&path) {
            Ok(stream) => stream,
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                let why = "only root may ask the agent: this needs root: try with sudo";
                return Err(std::io::Error::new(e.kind(), format!("{}: {why}", path.display())).into());
            }
            Err(_) => bail!("no agent answers on {}: start one with `elbowroom agent`", path.display()),
        };
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self { stream: LineReader::new(stream, MAX_RESPONSE_BYTES) })
    }

    /// Asks; an error answer of the agent is an error here.
    pub fn request(&mut self, request: &ControlRequest) -> Result<ControlResponse> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).context("asking the agent")?;
        let mut answer = Vec::new();
        match self.stream.next_line(&mut answer) {
            Ok(false) => bail!("the agent closed the connection: it is stopping, or restarting; try again"),
            Ok(true) => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                bail!(
                    "the agent does not answer: look at its log, or restart it (containers keep their views)"
                )
            }
            Err(e) => return Err(e).context("reading the agent's answer"),
        }
        match serde_json::from_slice(&answer).context("the agent's answer: is it of another version?")? {
            ControlResponse::Error(message) => bail!("{message}"),
            response => Ok(response),
        }
    }
}

/// The configuration file of the agent of `run_dir`. `None` without an agent that answers, and where its file cannot be read here.
pub fn running_config(run_dir: &Path) -> Option<PathBuf> {
    let mut agent = ControlClient::connect_with_timeout(run_dir, CONFIG_TIMEOUT).ok()?;
    match agent.request(&ControlRequest::Status).ok()? {
        ControlResponse::Status(status) => status.config.filter(|file| std::fs::File::open(file).is_ok()),
        _ => None,
    }
}

/// Asks the agent what a container that is about to be made may be given beside its view.
pub fn request_launch(run_dir: &Path, container: LaunchRequest, patience: Duration) -> Result<LaunchGrant> {
    match ControlClient::connect_with_timeout(run_dir, patience)?
        .request(&ControlRequest::Launch(container))?
    {
        ControlResponse::Launch(given) => Ok(given),
        other => bail!("the agent answered {other:?} to a launch request: is it of another version?"),
    }
}

/// Has the agent make the view of a container that is about to run; `pid` is a process in its cgroup.
pub fn request_view(run_dir: &Path, pid: i32, patience: Duration) -> Result<PreparedView> {
    let request = ControlRequest::Prepare(PrepareRequest { pid });
    match ControlClient::connect_with_timeout(run_dir, patience)?.request(&request)? {
        ControlResponse::Prepared(prepared) => Ok(prepared),
        other => bail!("the agent answered {other:?} to a prepare request: is it of another version?"),
    }
}
