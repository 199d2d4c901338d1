//! The control protocol: one JSON request on a line, one JSON answer on a line, over `<run-dir>/agent.sock`. The command
//! line speaks nothing else, so everything it shows is there for programs too.

use elbowroom_core::sample::{Engine, Pod, Usage};
use elbowroom_core::view::{Explain, View};
use elbowroom_host::mount::Surface;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What can be asked of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Every container.
    List,
    /// One container, by id, unique id prefix, name or cgroup path.
    Show(String),
    /// Why a container's view is what it is.
    Explain(String),
    /// Mount a container's view into it.
    Attach(String),
    /// Unmount it again, and leave the container alone from now on.
    Detach(String),
    /// Create the view of a container that is just being made; the caller mounts it.
    Prepare(Prepare),
    /// The agent itself.
    Status,
}

/// A container that is about to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepare {
    /// The engine's identifier.
    pub id: String,
    /// A process in the container's cgroup; 0 or 1: the process that asks.
    pub pid: i32,
}

/// What the agent answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// Answer to [`Request::List`].
    List(Vec<ContainerView>),
    /// Answer to [`Request::Show`], [`Request::Attach`] and [`Request::Detach`].
    Container(Box<ContainerView>),
    /// Answer to [`Request::Explain`].
    Explain(Box<Explanation>),
    /// Answer to [`Request::Prepare`].
    Prepared(Prepared),
    /// Answer to [`Request::Status`].
    Status(Box<Status>),
    /// The request could not be met; one line that names the thing and the way out.
    Error(String),
}

/// One container as the agent sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContainerView {
    /// The engine's full identifier.
    pub id: String,
    /// The name people use.
    pub name: Option<String>,
    /// Who made it.
    pub engine: Engine,
    /// The Kubernetes pod around it.
    pub pod: Option<Pod>,
    /// Its cgroup, below the root of the hierarchy.
    pub path: String,
    /// Whether its view is mounted inside it.
    pub attached: bool,
    /// Why it is not attached, where that is known.
    pub attach_note: Option<String>,
    /// Surfaces that could not be mounted because the container has no such file.
    pub missing: Vec<String>,
    /// Where its view can be read from the host.
    pub view_dir: PathBuf,
    /// What it sees.
    pub view: View,
    /// What it has used.
    pub usage: Usage,
    /// CPU it used over the last second, in thousandths of a CPU.
    pub cpu_used_millicpu: u64,
}

/// Answer to [`Request::Explain`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// Which container.
    pub container: ContainerView,
    /// Inputs, rule and last changes.
    pub explain: Explain,
}

/// Where a prepared view is, and what belongs where in the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// Directory of the container's view.
    pub view_dir: PathBuf,
    /// What to mount.
    pub surfaces: Vec<Surface>,
}

/// The agent's own state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Process ids of supervisor, view server and policy process.
    pub pids: Pids,
    /// Where its files are.
    pub run_dir: PathBuf,
    /// How the host is sensed: `files` or `bpf`.
    pub tier: String,
    /// Containers known.
    pub containers: usize,
    /// Containers whose view is mounted.
    pub attached: usize,
    /// Ticks taken and missed since the policy process started.
    pub ticks: u64,
    /// Ticks that came too late to be taken.
    pub ticks_missed: u64,
    /// CPU time of the policy process, in microseconds.
    pub cpu_usec: u64,
}

/// Process ids of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pids {
    /// Holds the device and the memory of views; restarts the others.
    pub supervisor: i32,
    /// Answers reads.
    pub view_server: i32,
    /// Senses and decides.
    pub policy: i32,
}
