//! One word for how a container is doing, with one sentence and one command: the same in every table, page, alert and metric.

use crate::resource_command::ResourceSetting;
use crate::unit::{Bytes, Millicpu};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How a container is doing. Later ones are worse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum VerdictStatus {
    /// It gets what it asks for.
    #[default]
    Ok,
    /// It runs, and hardly anything is left below its memory limit.
    Tight,
    /// It takes more than its part of a resource that its neighbours wait for.
    Unfair,
    /// Its CPU quota stops it.
    Throttled,
    /// It waits for a CPU that others use.
    WaitingCpu,
    /// It waits for a disk.
    WaitingDisk,
    /// It waits for memory.
    WaitingMemory,
    /// The kernel killed a process of it for memory.
    Killed,
}

impl VerdictStatus {
    /// Every status, the best one first.
    pub const ALL: [Self; 8] = [
        Self::Ok,
        Self::Tight,
        Self::Unfair,
        Self::Throttled,
        Self::WaitingCpu,
        Self::WaitingDisk,
        Self::WaitingMemory,
        Self::Killed,
    ];

    /// How bad it is: 0 for [`Self::Ok`], 7 for [`Self::Killed`].
    pub const fn severity(self) -> u8 {
        self as u8
    }

    /// Whether it suffers, or others do because of it. What is tight suffers from nothing yet.
    pub const fn hurts(self) -> bool {
        self.severity() > Self::Tight.severity()
    }

    /// Its name in JSON, metrics and alert topics: `waiting_cpu`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Tight => "tight",
            Self::Unfair => "unfair",
            Self::Throttled => "throttled",
            Self::WaitingCpu => "waiting_cpu",
            Self::WaitingDisk => "waiting_disk",
            Self::WaitingMemory => "waiting_memory",
            Self::Killed => "killed",
        }
    }
}

impl fmt::Display for VerdictStatus {
    /// For people: `waiting cpu`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::WaitingCpu => "waiting cpu",
            Self::WaitingDisk => "waiting disk",
            Self::WaitingMemory => "waiting memory",
            other => other.name(),
        })
    }
}

/// A limit of a container's own that holds it back, with the value that would help it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum RaisedLimit {
    /// Its memory limit, in bytes.
    Memory(Bytes),
    /// Its CPU quota, in thousandths of a CPU.
    Cpu(Millicpu),
}

impl RaisedLimit {
    /// The limit that a setting raises; `None` where it is no limit.
    pub const fn of(setting: &ResourceSetting) -> Option<Self> {
        match setting {
            ResourceSetting::MemoryLimit { limit, .. } => Some(Self::Memory(*limit)),
            ResourceSetting::Cpus(cpus) => Some(Self::Cpu(*cpus)),
            _ => None,
        }
    }
}

/// How a container is doing, why, and what helps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Verdict {
    /// The worst that is true of it.
    pub status: VerdictStatus,
    /// One sentence with the numbers that decided.
    pub reason: String,
    /// A command that helps, of the tool that made the container; `None` where no command does.
    pub command: Option<String>,
    /// The same for programs, where a higher limit helps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raise: Option<RaisedLimit>,
}

impl Default for Verdict {
    /// Nothing is wrong.
    fn default() -> Self {
        let reason = "it gets what it asks for".to_owned();
        Self { status: VerdictStatus::Ok, reason, command: None, raise: None }
    }
}

impl Verdict {
    /// How bad it is, see [`VerdictStatus::severity`].
    pub const fn severity(&self) -> u8 {
        self.status.severity()
    }

    /// The sentence, and behind a semicolon the command.
    pub fn sentence(&self) -> String {
        match &self.command {
            Some(command) => format!("{}; {command}", self.reason),
            None => self.reason.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_in_the_order_of_their_severity_and_are_spelled_alike() {
        for (severity, status) in VerdictStatus::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(status.severity()), severity);
            assert_eq!(serde_json::to_value(status).unwrap(), status.name());
        }
        assert!(VerdictStatus::ALL.is_sorted());
        assert!(!VerdictStatus::Tight.hurts() && VerdictStatus::Unfair.hurts());
    }

    #[test]
    fn a_verdict_in_json_is_a_status_a_reason_and_a_command() {
        let json = serde_json::to_value(Verdict::default()).unwrap();
        assert_eq!(
            json,
            serde_json::json!({"status": "ok", "reason": "it gets what it asks for", "command": null})
        );
    }
}
