//! The control protocol: one JSON request on a line, one JSON answer on a line, over `<run-dir>/agent.sock`. The command
//! line speaks nothing else, so everything it shows is there for programs too.

mod request;
mod status;

pub use request::{ControlRequest, LabelRequest, LaunchRequest, PrepareRequest};
pub use status::{AgentMode, AgentPids, AgentStatus, DiskGovernorStats, OtlpStatus, ReceiverStatus};

use crate::change::Change;
use crate::number_format::{needs_more, short_ids};
use crate::profile_store::StoredProfile;
use elbowroom_govern::disk::{ContainerDiskStatus, DiskPolicy, DiskView};
use elbowroom_govern::verdict::KILLED_FOR;
use elbowroom_govern::{GovernorMode, memory};
use elbowroom_linux::mount::{MountSurface, ViewParts};
use elbowroom_linux::timer;
use elbowroom_types::alert::{Alert, AlertKind};
use elbowroom_types::container::{ContainerEngine, Pod};
use elbowroom_types::finding::DoctorFinding;
use elbowroom_types::label::{ContainerLabels, RuntimeInjection};
use elbowroom_types::lookup::ContainerNames;
use elbowroom_types::probe::{Freshness, ProbeReport};
use elbowroom_types::sample::{NetworkCounters, Usage};
use elbowroom_types::unit::{Bytes, Micros};
use elbowroom_types::verdict::{Verdict, VerdictStatus};
use elbowroom_view::rules::{View, ViewExplanation};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What the agent answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlResponse {
    /// Answer to [`ControlRequest::List`] and [`ControlRequest::Ended`].
    List(Vec<ContainerView>),
    /// Answer to [`ControlRequest::Show`] and to everything that does something to a container.
    Container(Box<ContainerView>),
    /// Answer to [`ControlRequest::Explain`].
    Explain(Box<Explanation>),
    /// Answer to [`ControlRequest::Network`].
    Network(NetworkReport),
    /// Answer to [`ControlRequest::Prepare`].
    Prepared(PreparedView),
    /// Answer to [`ControlRequest::Launch`].
    Launch(LaunchGrant),
    /// Answer to [`ControlRequest::Disks`].
    Disks(Box<DisksReport>),
    /// Answer to [`ControlRequest::Memory`].
    Memory(Box<MemoryReport>),
    /// Answer to [`ControlRequest::Alerts`].
    Alerts(Box<AlertsReport>),
    /// Answer to [`ControlRequest::Findings`].
    Findings(Box<FindingsReport>),
    /// Answer to [`ControlRequest::Status`].
    Status(Box<AgentStatus>),
    /// Answer to [`ControlRequest::Snapshot`] and [`ControlRequest::SnapshotAfter`].
    Snapshot(Box<AgentSnapshot>),
    /// Answer to [`ControlRequest::Profiles`]: the newest first.
    Profiles(Vec<StoredProfile>),
    /// Answer to [`ControlRequest::Profile`]: its JSON, as it was kept.
    Profile(String),
    /// The request could not be met; one line that names the thing and the way out.
    Error(String),
}

/// What a container that is about to be made may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchGrant {
    /// What of that which it asks for.
    #[serde(flatten)]
    pub injections: RuntimeInjection,
    /// Whether the agent asks its programs for memory, where it has a place for the file ([`elbowroom_types::launch::PRESSURE_FILE`]).
    #[serde(default)]
    pub asks: bool,
}

/// One container as the agent sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContainerView {
    /// The engine's full identifier.
    pub id: String,
    /// The name people use.
    pub name: Option<String>,
    /// The engine that made it.
    pub engine: ContainerEngine,
    /// The Kubernetes pod around it.
    pub pod: Option<Pod>,
    /// What its maker asks of us.
    #[serde(default)]
    pub labels: ContainerLabels,
    /// What gave it these; `None` where they are those that it was made with.
    #[serde(default)]
    pub labels_by: Option<String>,
    /// Its cgroup, below the root of the hierarchy.
    pub path: String,
    /// The cgroup of the outermost container around it, or of the user who made it: its tenant makes such as it likes. `None` where an
    /// engine of the host's or root made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_in: Option<String>,
    /// Whether its view is mounted inside it.
    pub attached: bool,
    /// Why it is not attached, where that is known.
    pub attach_note: Option<String>,
    /// How long after its first process started its view came, in microseconds; `None` where it came before, or is not there.
    #[serde(default)]
    pub view_delay_usec: Option<u64>,
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
    /// CPU that its quota held back over the last second, in thousandths of a CPU; `None` where that is not read (no quota).
    #[serde(default)]
    pub cpu_throttled_millicpu: Option<u64>,
    /// The part of the last ten seconds that at least one task waited for a CPU, `some avg10` of `cpu.pressure`, as it was read last;
    /// `None` without PSI.
    #[serde(default)]
    pub cpu_pressure: Option<f64>,
    /// Where it stands at the disks it uses; the decisions that led there are in [`Explanation::disk`] only.
    pub disk: Vec<ContainerDiskStatus>,
    /// Where its memory stands, once it was measured; the decisions are in [`Explanation::memory`] only.
    #[serde(default)]
    pub memory: Option<memory::ContainerMemoryStatus>,
    /// What its application says of itself, where that was asked for or heard.
    #[serde(default)]
    pub probe: Option<ProbeView>,
    /// How it is doing, why, and what helps.
    #[serde(default)]
    pub verdict: Verdict,
    /// When it ended, in milliseconds since 1970; `None` while it runs. The rest is then what was so last.
    #[serde(default)]
    pub ended_unix_ms: Option<u64>,
    /// When the kernel last killed a process of it for memory, or of one of its name before it, within the last hour.
    #[serde(default)]
    pub killed_unix_ms: Option<u64>,
}

impl ContainerView {
    /// All that it is called.
    pub fn names(&self) -> ContainerNames<'_> {
        ContainerNames {
            id: &self.id,
            name: self.name.as_deref(),
            pod: self.pod.as_ref().map(Pod::label),
            path: &self.path,
        }
    }

    /// Whether its verdict is that of a kill within [`KILLED_FOR`] before `now`, in milliseconds since 1970: also of one that ended.
    pub fn is_killed(&self, now: u64) -> bool {
        let since = now.saturating_sub(KILLED_FOR.get() / 1_000);
        self.verdict.status == VerdictStatus::Killed && self.killed_unix_ms.is_some_and(|at| at > since)
    }
}

/// What a container's application says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProbeView {
    /// How it is heard.
    pub source: String,
    /// Whether the last report counts.
    pub freshness: Freshness,
    /// How old that is, in microseconds.
    pub age_usec: Option<u64>,
    /// The last report.
    pub report: Option<ProbeReport>,
    /// Records that were taken, since the policy process started.
    pub accepted: u64,
    /// Records that were refused, and questions without an answer.
    pub refused: u64,
    /// Why there is nothing newer, where that is known.
    pub problem: Option<String>,
}

/// Answer to [`ControlRequest::Explain`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explanation {
    /// Which container.
    pub container: ContainerView,
    /// Inputs, rule and last changes.
    pub explain: ViewExplanation,
    /// Where it stands at the disks it uses, with the last decisions.
    pub disk: Vec<ContainerDiskStatus>,
    /// Where its memory stands, with the last decisions.
    #[serde(default)]
    pub memory: Option<memory::ContainerMemoryStatus>,
    /// What it asks more of than the agent does for one container; of its own service something is missing.
    #[serde(default)]
    pub over_quota: Vec<String>,
}

/// Answer to [`ControlRequest::Network`]: read at that moment, and kept nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetworkReport {
    /// When, in milliseconds since 1970.
    pub time_unix_ms: u64,
    /// What the network namespace of its first process has counted. Containers of a pod share one. `None` where that is the host's,
    /// which counts every program of the host together.
    pub counters: Option<NetworkCounters>,
}

/// Answer to [`ControlRequest::Disks`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DisksReport {
    /// What is done with decisions.
    pub mode: GovernorMode,
    /// Why decisions are only shown although they should be carried out, where that is so.
    pub not_enforced: Option<String>,
    /// How bandwidth is divided.
    pub policy: DiskPolicy,
    /// Every governed disk, ascending.
    pub disks: Vec<DiskView>,
    /// The alerts that last now.
    pub alerts: Vec<AlertView>,
}

/// Answer to [`ControlRequest::Memory`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryReport {
    /// What is done with decisions.
    pub mode: GovernorMode,
    /// Why decisions are only shown although they should be carried out, where that is so.
    pub not_enforced: Option<String>,
    /// What is shared: the machine, and cgroups with a hard limit around containers.
    pub pools: Vec<memory::PoolView>,
    /// The containers.
    pub containers: Vec<ContainerMemory>,
    /// The alerts that last now.
    pub alerts: Vec<AlertView>,
}

impl MemoryReport {
    /// Counts those in need of memory as their rows say it: the governor counts by their colours and knows no verdicts.
    pub fn count_needers(&mut self) {
        let needers = self.containers.iter().filter(|of| needs_more(of.status.colour, of.verdict.status));
        let paths: Vec<&str> = needers.map(|of| of.container.path.as_str()).collect();
        for pool in &mut self.pools {
            pool.needing_more = pool.needing_more.max(paths.iter().filter(|path| pool.holds(path)).count());
        }
    }
}

/// Answer to [`ControlRequest::Snapshot`]: what the agent knew at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentSnapshot {
    /// When, in milliseconds since 1970.
    pub time_unix_ms: u64,
    /// The machine.
    pub node: NodeView,
    /// The agent itself.
    pub status: AgentStatus,
    /// Every container.
    pub containers: Vec<ContainerView>,
    /// Of a recording: how many that tenants made ([`ContainerView::made_in`]) it leaves out, as they are more than each one's share.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
    /// Containers that ended within the last hour, the last one first; at most [`MAX_ENDED_CONTAINERS`].
    #[serde(default)]
    pub ended: Vec<ContainerView>,
    /// The governed disks.
    pub disks: DisksReport,
    /// What memory is shared.
    pub memory: MemoryReport,
    /// What changed in the last five seconds: a client that takes a snapshot a second misses nothing, and knows by the numbers what it
    /// has seen before.
    pub changes: Vec<ChangeView>,
    /// What is wrong, and what was lately.
    #[serde(default)]
    pub alerts: AlertsReport,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl AgentSnapshot {
    /// What a table shows: every container, and those that ended but still count as killed, so that one in a crash loop stays there
    /// between two of its lives.
    pub fn shown_containers(&self) -> Vec<ContainerView> {
        let killed = self.ended.iter().filter(|c| c.is_killed(self.time_unix_ms));
        self.containers.iter().chain(killed).cloned().collect()
    }
}

/// The machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeView {
    /// Online CPUs.
    pub cpus: u32,
    /// CPU used over the last second, in thousandths of a CPU; `None` in the agent's first second.
    pub cpu_used_millicpu: Option<u64>,
    /// `MemTotal`.
    pub memory_total: Bytes,
    /// `MemFree`; `None` before the first measurement.
    pub memory_free: Option<Bytes>,
    /// `MemAvailable`, less what is kept for containers: what could be had; `None` before the first measurement.
    #[serde(default)]
    pub memory_available: Option<Bytes>,
}

impl NodeView {
    /// Memory that no other program could have, as free(1) counts it: page cache that can be reclaimed is no use, and fills every machine.
    pub fn memory_used(&self) -> Option<Bytes> {
        self.memory_available.or(self.memory_free).map(|left| self.memory_total.saturating_sub(left))
    }
}

/// Most containers that ended and are remembered, each by its name: one in a crash loop is one.
pub const MAX_ENDED_CONTAINERS: usize = 64;

/// Most changes that a snapshot tells of: five hundred containers that all change twice.
pub const MAX_CHANGES: u64 = 1_024;

/// A change with its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChangeView {
    /// Later ones have higher numbers, over restarts of the agent too; they begin anew with a boot.
    pub seq: u64,
    /// Identifier of the outermost container around it; none where it is in no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The change itself.
    #[serde(flatten)]
    pub change: Change,
}

/// One container's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContainerMemory {
    /// Which.
    pub container: ContainerRef,
    /// Where it stands.
    pub status: memory::ContainerMemoryStatus,
    /// How it is doing in all, not only for memory.
    #[serde(default)]
    pub verdict: Verdict,
}

/// The memory governor's own counters, since the policy process started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryGovernorStats {
    /// Measurements taken.
    pub ticks: u64,
    /// What the last of them took, in microseconds.
    pub tick_usec: u64,
    /// What the last decision took, in microseconds.
    pub decide_usec: u64,
    /// Memory that was taken, in bytes.
    pub reclaimed_bytes: u64,
    /// Orders that were carried out, at least in part.
    pub done: u64,
    /// Orders that another program's value, the kernel, or the end of the container prevented.
    pub not_done: u64,
}

/// An alert with the names of what it is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AlertView {
    /// The alert itself.
    #[serde(flatten)]
    pub alert: Alert,
    /// The disk's name below `/sys/block`.
    pub disk_name: Option<String>,
    /// The container.
    pub container: Option<ContainerRef>,
    /// When it began, in milliseconds since 1970.
    #[serde(default)]
    pub since_unix_ms: u64,
    /// When it ended; `None` while it lasts.
    #[serde(default)]
    pub until_unix_ms: Option<u64>,
}

impl AlertView {
    /// Names an alert; its times are turned into times of day as the clocks stand now.
    pub fn new(alert: Alert, disk_name: Option<String>, container: Option<ContainerRef>) -> Self {
        let (now, now_unix_ms) = (timer::now(), elbowroom_linux::timer::unix_ms());
        let unix_ms = |at: Micros| now_unix_ms.saturating_sub(now.saturating_sub(at).get() / 1_000);
        let (since_unix_ms, until_unix_ms) = (unix_ms(alert.since), alert.until.map(unix_ms));
        Self { alert, disk_name, container, since_unix_ms, until_unix_ms }
    }
}

/// Answer to [`ControlRequest::Alerts`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AlertsReport {
    /// Those that last, of every source.
    pub lasting: Vec<AlertView>,
    /// Those that ended within the last hour, the last one first; at most 256.
    pub ended: Vec<AlertView>,
    /// How many have begun since the policy process started, by kind.
    pub begun: Vec<(AlertKind, u64)>,
}

/// Answer to [`ControlRequest::Findings`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FindingsReport {
    /// Time between two looks, in microseconds; `None` where the agent never looks (`doctor.enabled = false`).
    pub period_usec: Option<u64>,
    /// When the last look ended, in milliseconds since 1970; `None` before the first one.
    pub looked_unix_ms: Option<u64>,
    /// CPU time that it took, in microseconds.
    pub cpu_usec: u64,
    /// Why the last look saw nothing, where that is so.
    pub problem: Option<String>,
    /// Everything it found, worst first, notes included.
    pub findings: Vec<DoctorFinding>,
}

/// A container, by all that it is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContainerRef {
    /// The engine's full identifier.
    pub id: String,
    /// The name people use.
    pub name: Option<String>,
    /// Its cgroup, below the root of the hierarchy.
    pub path: String,
}

/// Where a prepared view is, and what belongs where in the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedView {
    /// Directory of the container's view.
    pub view_dir: PathBuf,
    /// What to mount.
    pub surfaces: Vec<MountSurface>,
    /// The view page, for programs that map it; mounted after the rest.
    #[serde(default)]
    pub page: Option<PathBuf>,
    /// Where the agent asks programs for memory: its directory for containers that have the host's `/dev`.
    #[serde(default)]
    pub pressure_dir: Option<PathBuf>,
}

impl PreparedView {
    /// What there is to mount.
    pub fn parts(&self) -> ViewParts<'_> {
        ViewParts {
            dir: &self.view_dir,
            surfaces: &self.surfaces,
            page: self.page.as_deref(),
            pressure_dir: self.pressure_dir.as_deref(),
        }
    }
}

/// The shortest thing that people call a container: its name, or the beginning of its id.
pub fn display_name(container: &ContainerView) -> String {
    match (&container.name, &container.pod) {
        (Some(name), Some(pod)) => format!("{}/{name}", pod.name.as_deref().unwrap_or(&pod.uid)),
        (Some(name), None) => name.clone(),
        (None, _) if container.id.starts_with('/') => short_ids(&container.id),
        // Those of a recording may be anything.
        (None, _) if container.id.len() == 64 => container.id.chars().take(12).collect(),
        (None, _) => container.id.clone(),
    }
}
