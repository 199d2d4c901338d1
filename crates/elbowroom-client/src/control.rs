//! Asks the agent: one request, one answer.

use crate::api::{Given, Launch, Prepare, Prepared, Request, Response};
use anyhow::{Context, Result, bail};
use elbowroom_linux::discover::ContainerSources;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an answer may take; the agent itself gives up earlier and says why.
const PATIENCE: Duration = Duration::from_secs(20);

/// The agent's directory unless somebody says otherwise.
pub const RUN_DIR: &str = "/run/elbowroom";

/// Name of the control socket below the run directory.
pub const SOCKET: &str = "agent.sock";

/// Below the run directory: a file of labels for each container of `elbowroom run` that has some, by its name.
const LABELS: &str = "labels";

/// Where the agent of `run_dir` listens.
pub fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join(SOCKET)
}

/// Where `elbowroom run` of `run_dir` writes labels.
pub fn labels_dir(run_dir: &Path) -> PathBuf {
    run_dir.join(LABELS)
}

/// Reads what a configuration file, or the default one, says of where containers are.
pub type LoadSources = fn(Option<&Path>) -> Result<ContainerSources>;

/// A connection to the agent.
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the agent of `run_dir`; the error says how to start one.
    pub fn connect(run_dir: &Path) -> Result<Self> {
        Self::connect_within(run_dir, PATIENCE)
    }

    /// Connects to an agent that must answer each request within `patience`.
    pub fn connect_within(run_dir: &Path, patience: Duration) -> Result<Self> {
        let path = socket_path(run_dir);
        let stream = match UnixStream::connect(&path) {
            Ok(stream) => stream,
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                bail!("{}: permission denied: only root may ask the agent", path.display())
            }
            Err(_) => bail!("no agent answers on {}: start one with `elbowroom agent`", path.display()),
        };
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Asks; an error answer of the agent is an error here.
    pub fn ask(&mut self, request: &Request) -> Result<Response> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).context("asking the agent")?;
        let mut answer = String::new();
        match self.stream.read_line(&mut answer) {
            Ok(0) => bail!("the agent closed the connection: it is stopping, or restarting; try again"),
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                bail!(
                    "the agent does not answer: look at its log, or restart it (containers keep their views)"
                )
            }
            Err(e) => return Err(e).context("reading the agent's answer"),
        }
        match serde_json::from_str(&answer).context("the agent's answer: is it of another version?")? {
            Response::Error(message) => bail!("{message}"),
            response => Ok(response),
        }
    }
}

/// Asks the agent what a container that is about to be made may be given beside its view.
pub fn launch(run_dir: &Path, container: Launch, patience: Duration) -> Result<Given> {
    match Client::connect_within(run_dir, patience)?.ask(&Request::Launch(container))? {
        Response::Launch(given) => Ok(given),
        other => bail!("the agent answered {other:?} to a launch request: is it of another version?"),
    }
}

/// Has the agent make the view of a container that is about to run; `pid` is a process in its cgroup.
pub fn prepare(run_dir: &Path, pid: i32, patience: Duration) -> Result<Prepared> {
    let request = Request::Prepare(Prepare { pid });
    match Client::connect_within(run_dir, patience)?.ask(&request)? {
        Response::Prepared(prepared) => Ok(prepared),
        other => bail!("the agent answered {other:?} to a prepare request: is it of another version?"),
    }
}
