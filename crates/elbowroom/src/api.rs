//! The control protocol: one JSON request on a line, one JSON answer on a line, over `<run-dir>/agent.sock`. The command
//! line speaks nothing else, so everything it shows is there for programs too.

use elbowroom_core::govern::Mode;
use elbowroom_core::govern::alert::{Alert, Kind};
use elbowroom_core::govern::disk::{DiskView, Policy, Standing};
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
    /// The governed disks, and the alerts that last.
    Disks,
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
    /// Answer to [`Request::Disks`].
    Disks(Box<DisksReport>),
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
    /// Where it stands at the disks it uses; the decisions that led there are in [`Explanation::disk`] only.
    pub disk: Vec<Standing>,
}

/// Answer to [`Request::Explain`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// Which container.
    pub container: ContainerView,
    /// Inputs, rule and last changes.
    pub explain: Explain,
    /// Where it stands at the disks it uses, with the last decisions.
    pub disk: Vec<Standing>,
}

/// Answer to [`Request::Disks`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DisksReport {
    /// What is done with decisions.
    pub mode: Mode,
    /// Why decisions are only shown although they should be carried out, where that is so.
    pub not_enforced: Option<String>,
    /// How bandwidth is divided.
    pub policy: Policy,
    /// Every governed disk, ascending.
    pub disks: Vec<DiskView>,
    /// The alerts that last now.
    pub alerts: Vec<AlertView>,
}

/// An alert with the names of what it is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlertView {
    /// The alert itself.
    #[serde(flatten)]
    pub alert: Alert,
    /// The disk's name below `/sys/block`.
    pub disk_name: Option<String>,
    /// The container.
    pub container: Option<Named>,
}

/// A container, by all that it is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// The engine's full identifier.
    pub id: String,
    /// The name people use.
    pub name: Option<String>,
    /// Its cgroup, below the root of the hierarchy.
    pub path: String,
}

/// Where a prepared view is, and what belongs where in the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// Directory of the container's view.
    pub view_dir: PathBuf,
    /// What to mount.
    pub surfaces: Vec<Surface>,
    /// The view page, for programs that map it; mounted after the rest.
    #[serde(default)]
    pub page: Option<PathBuf>,
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
    /// What the disk governor has been doing.
    pub disk: DiskStatus,
    /// Who is told of alerts, and what became of it.
    pub hooks: Vec<HookStatus>,
}

/// The disk governor's own counters, since the policy process started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStatus {
    /// Measurements taken.
    pub ticks: u64,
    /// What the last of them took, in microseconds.
    pub tick_usec: u64,
    /// What the last decision took, in microseconds.
    pub decide_usec: u64,
    /// Limits of ours that are in force.
    pub held: u64,
    /// Attempts to change a limit that went through.
    pub written: u64,
    /// Attempts to change a limit that somebody else's value, the kernel, or the end of the container prevented.
    pub not_written: u64,
    /// Alerts that began, by kind.
    pub alerts_begun: Vec<(Kind, u64)>,
}

/// What became of the alerts given to one hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookStatus {
    /// The program, or the address without what may be secret in it.
    pub hook: String,
    /// Programs that ended well, posts that were taken.
    pub delivered: u64,
    /// Those that did not.
    pub failed: u64,
    /// Alerts it was too slow for.
    pub dropped: u64,
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
