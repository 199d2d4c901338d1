//! One type of event for everything that is wrong, of every source: governors, the doctor's thread, the guard of leases, the check
//! of the whole node.

use crate::finding::{FindingEvidence, Severity};
use crate::id::{CgroupId, DeviceNumber};
use crate::unit::Micros;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A condition that began or ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Alert {
    /// What is wrong.
    pub kind: AlertKind,
    /// How bad it is.
    #[serde(default = "warning")]
    pub severity: Severity,
    /// On which disk.
    pub disk: Option<DeviceNumber>,
    /// For which container; `None` where it concerns all that share the resource.
    pub group: Option<CgroupId>,
    /// What exactly, where a kind has several: the doctor's check, `cpu` or `memory` of an overload, `claims` of an overcommitment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// When it began, on the monotonic clock.
    pub since: Micros,
    /// When it ended; `None` while it lasts.
    pub until: Option<Micros>,
    /// One sentence with the numbers that decided, and what to do.
    pub text: String,
    /// What files said, where that is not all in the sentence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<FindingEvidence>,
}

/// The topic of an [`AlertKind::Overcommit`] that is none without what containers claim for themselves, by labels.
pub const CLAIMS_TOPIC: &str = "claims";

/// What recordings of before there were severities meant.
const fn warning() -> Severity {
    Severity::Warning
}

/// What an alert is about: two alerts of one subject are the same condition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AlertSubject {
    /// What is wrong.
    pub kind: AlertKind,
    /// On which disk.
    pub disk: Option<DeviceNumber>,
    /// For which container.
    pub group: Option<CgroupId>,
    /// What exactly.
    pub topic: Option<String>,
}

impl AlertSubject {
    /// The node as a whole.
    pub const fn node(kind: AlertKind) -> Self {
        Self { kind, disk: None, group: None, topic: None }
    }
}

impl Alert {
    /// What it is about.
    pub fn subject(&self) -> AlertSubject {
        AlertSubject { kind: self.kind, disk: self.disk, group: self.group, topic: self.topic.clone() }
    }

    /// One that begins, as bad as its kind is.
    pub fn new(subject: AlertSubject, since: Micros, text: String) -> Self {
        let AlertSubject { kind, disk, group, topic } = subject;
        Self {
            kind,
            severity: kind.severity(),
            disk,
            group,
            topic,
            since,
            until: None,
            text,
            evidence: Vec::new(),
        }
    }

    /// Whether it has not ended.
    pub const fn is_active(&self) -> bool {
        self.until.is_none()
    }
}

/// What can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum AlertKind {
    /// The node is short of CPUs or memory, and containers have nothing left to give.
    Overload,
    /// More was promised than there is: lifelines and reservations add up to more than the capacity (Aridac: the sum of caps
    /// is above 1). The paper's remedy is to scale: a faster disk, or a container elsewhere.
    Overcommit,
    /// The disk is slower than it used to be.
    Degraded,
    /// A container gets less than its lifeline although it wants it.
    Starved,
    /// A container's I/O cannot be limited here: buffered writes on cgroup v1, a file system without cgroup writeback.
    Uncappable,
    /// Limits backed off: the agent's limits slowed every container down while the disk was idle, and were taken off.
    Inversion,
    /// Another program changed a limit that was the agent's, which leaves it alone for a while.
    ForeignWriter,
    /// Limits of ours were taken off because the process that held them died or hung.
    LeaseRestored,
    /// A limit of ours could not be taken off, and may still be in force.
    LeaseStuck,
    /// The doctor found something that hurts containers.
    Finding,
    /// A container or user asks more of the agent than it does for one; the rest is not done. `topic`: of what.
    Quota,
    /// A container is killed, waits, or is throttled or unfair. `topic`: the status of its verdict.
    Verdict,
}

impl AlertKind {
    /// Every kind.
    pub const ALL: [Self; 12] = [
        Self::Overload,
        Self::Overcommit,
        Self::Degraded,
        Self::Starved,
        Self::Uncappable,
        Self::Inversion,
        Self::ForeignWriter,
        Self::LeaseRestored,
        Self::LeaseStuck,
        Self::Finding,
        Self::Quota,
        Self::Verdict,
    ];

    /// How bad it is where nothing more is known.
    pub const fn severity(self) -> Severity {
        match self {
            Self::Starved | Self::LeaseStuck => Severity::Critical,
            _ => Severity::Warning,
        }
    }
}

impl fmt::Display for AlertKind {
    /// `OVERCOMMIT`, as in configuration, metrics and hooks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Overload => "OVERLOAD",
            Self::Overcommit => "OVERCOMMIT",
            Self::Degraded => "DEGRADED",
            Self::Starved => "STARVED",
            Self::Uncappable => "UNCAPPABLE",
            Self::Inversion => "INVERSION",
            Self::ForeignWriter => "FOREIGN_WRITER",
            Self::LeaseRestored => "LEASE_RESTORED",
            Self::LeaseStuck => "LEASE_STUCK",
            Self::Finding => "FINDING",
            Self::Quota => "QUOTA",
            Self::Verdict => "VERDICT",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_spelled_the_same_everywhere() {
        for kind in AlertKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.to_string());
        }
    }

    #[test]
    fn an_alert_of_an_older_recording_is_read() {
        let old = r#"{"kind":"STARVED","disk":null,"group":7,"since":1,"until":null,"text":"a"}"#;
        let alert: Alert = serde_json::from_str(old).unwrap();
        assert_eq!((alert.severity, alert.topic, alert.group), (Severity::Warning, None, Some(CgroupId(7))));
    }
}
