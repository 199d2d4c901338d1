//! What changed for a container, as history and snapshots tell it.

use serde::{Deserialize, Serialize};

/// What a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Effective CPU, or its bounds.
    Cpu,
    /// Effective memory, its bounds, or what the memory governor decided.
    Memory,
    /// What the disk governor decided.
    Disk,
}

/// Something that changed for a container, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Change {
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// The container's identifier.
    pub container: String,
    /// The name people use.
    pub name: Option<String>,
    /// What it is about.
    pub kind: Kind,
    /// What: `cpu 4 -> 2`.
    pub what: String,
    /// Why, with the numbers that decided.
    pub because: String,
}
