//! What can be asked of the agent.

use elbowroom_types::probe::ProbeRecord;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What can be asked of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlRequest {
    /// Every container.
    List,
    /// The containers that ended within the last hour; answered as [`Self::List`] is.
    Ended,
    /// One container, by id, unique id prefix, name or cgroup path.
    Show(String),
    /// Why a container's view is what it is.
    Explain(String),
    /// What a container's network interfaces have carried.
    Network(String),
    /// Mount a container's view into it.
    Attach(String),
    /// Unmount it again, and leave the container alone from now on.
    Detach(String),
    /// Create the view of a container that is just being made; the caller mounts it.
    Prepare(PrepareRequest),
    /// What a container that is about to be made may be given beside its view; the caller gives it.
    Launch(LaunchRequest),
    /// Gives a container other labels than it was made with, until it is gone or another request says otherwise.
    Label(LabelRequest),
    /// Gives a container the labels back that it was made with.
    Unlabel(String),
    /// What a container's application says of itself, told by a program that may speak for it.
    Probe {
        /// As in [`Self::Show`].
        container: String,
        /// What it says.
        record: ProbeRecord,
    },
    /// The governed disks, and the alerts that last.
    Disks,
    /// What memory is shared, and the alerts that last.
    Memory,
    /// What is wrong, and what was lately.
    Alerts,
    /// What the doctor found when the agent last had it look.
    Findings,
    /// The agent itself.
    Status,
    /// All of that at one moment: what screens, metrics and recordings are made of.
    Snapshot,
    /// The next one after that with this `time_unix_ms`: answered when there is news, or after five seconds.
    SnapshotAfter(u64),
    /// The profiles that are kept.
    Profiles,
    /// One of them, by name.
    Profile(String),
}

impl ControlRequest {
    /// Whether the API server may ask it: what only tells, and what root may do over HTTP.
    pub fn is_allowed_over_http(&self) -> bool {
        match self {
            Self::List
            | Self::Ended
            | Self::Show(_)
            | Self::Explain(_)
            | Self::Network(_)
            | Self::Attach(_)
            | Self::Detach(_)
            | Self::Disks
            | Self::Memory
            | Self::Alerts
            | Self::Findings
            | Self::Status
            | Self::Snapshot
            | Self::SnapshotAfter(_)
            | Self::Profiles
            | Self::Profile(_) => true,
            Self::Prepare(_) | Self::Launch(_) | Self::Probe { .. } | Self::Label(_) | Self::Unlabel(_) => {
                false
            }
        }
    }
}

/// Labels for a container that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelRequest {
    /// As in [`ControlRequest::Show`].
    pub container: String,
    /// The program that gives them; shown beside them.
    pub by: String,
    /// What the operator promises it. These count whatever `containers.labels` says.
    #[serde(default)]
    pub promised: BTreeMap<String, String>,
    /// What its maker asks for: goes before what is promised, as far as `containers.labels` heeds it.
    #[serde(default)]
    pub asked: BTreeMap<String, String>,
    /// How long they count, in seconds; as long as the container runs where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_seconds: Option<u64>,
    /// Whether labels that another program gave it stay, and these are not given. A program that gives labels again and again does not
    /// undo an operator's word by that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_others: bool,
}

/// A container that is about to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrepareRequest {
    /// A process in the container's cgroup; 0 or 1: the process that asks.
    pub pid: i32,
}

/// A container that is about to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRequest {
    /// The engine's identifier.
    pub id: String,
    /// The name people use, where it is known.
    pub name: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}
