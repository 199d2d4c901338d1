//! What the agent says of itself.

use super::MemoryGovernorStats;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// How much of what it can do an agent does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum AgentMode {
    /// All that its configuration asks for.
    #[default]
    Full,
    /// Views, and nothing that speaks to programs of containers, limits them, or starts programs.
    Views,
}

impl AgentMode {
    /// What an agent in this mode may do, in one line.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::Full => {
                "full: mounts views, measures, hears probes, asks for memory, runs hooks, and limits where told to"
            }
            Self::Views => {
                "views: mounts views; no probes, governors, requests for memory, hooks, checks or BPF"
            }
        }
    }
}

/// The agent's own state.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentStatus {
    /// Version of the program.
    pub version: String,
    /// What it may do.
    #[serde(default)]
    pub mode: AgentMode,
    /// Process ids of supervisor, view server and policy process.
    pub pids: AgentPids,
    /// Where its files are.
    pub run_dir: PathBuf,
    /// Its configuration file; `None` where it has none.
    #[serde(default)]
    pub config: Option<PathBuf>,
    /// How the host is sensed: `files` or `bpf`.
    pub source: String,
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
    pub disk: DiskGovernorStats,
    /// What the memory governor has been doing.
    #[serde(default)]
    pub memory: MemoryGovernorStats,
    /// Where alerts go, and what became of them.
    pub receivers: Vec<ReceiverStatus>,
    /// The push of metrics to a collector; `None` where there is none.
    #[serde(default)]
    pub otlp: Option<OtlpStatus>,
}

/// What became of the pushes of metrics by OTLP, since the policy process started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OtlpStatus {
    /// Scheme and host of the collector's address.
    pub collector: String,
    /// Pushes that it took.
    pub pushed: u64,
    /// Pushes that it did not take.
    pub failed: u64,
    /// Why the last push failed; `None` where it did not.
    pub problem: Option<String>,
}

/// The disk governor's own counters, since the policy process started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiskGovernorStats {
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
    /// Attempts to change a limit that another program's value, the kernel, or the end of the container prevented.
    pub not_written: u64,
}

/// What became of the alerts given to one receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReceiverStatus {
    /// The program, or the address without what may be secret in it.
    pub receiver: String,
    /// Programs that ended well, posts that were taken.
    pub delivered: u64,
    /// Those that did not.
    pub failed: u64,
    /// Alerts it was too slow for.
    pub dropped: u64,
    /// Alerts that were over before they could be told without telling too often.
    #[serde(default)]
    pub expired: u64,
}

/// Process ids of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentPids {
    /// Holds the device and the memory of views; restarts the others.
    pub supervisor: i32,
    /// Answers reads.
    pub view_server: i32,
    /// Senses and decides.
    pub policy: i32,
}
