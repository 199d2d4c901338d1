//! Governors, which divide disks and memory between containers: pure state machines over [`elbowroom_types::sample::HostEvent`]s that
//! give orders.
//!
//! A governor decides the same whether it is obeyed or only watched ([`GovernorMode`]); what became of its orders comes back to it as
//! events, so a recording replays to the same decisions.
//!
//! Begin with [`disk::DiskGovernor`] and [`memory::MemoryGovernor`]; [`alert`] turns conditions into messages.
//!
//! What stays true: no clock, file or environment (`clippy.toml` refuses them), and nothing here writes a limit.

#![forbid(unsafe_code)]

pub mod alert;
pub mod disk;
pub mod memory;
pub mod verdict;

use serde::{Deserialize, Serialize};

/// What is done with a governor's orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum GovernorMode {
    /// Nothing is measured, nothing is decided.
    Off,
    /// Measured, decided and shown, but not carried out.
    #[default]
    Observe,
    /// Carried out.
    Enforce,
}

/// Cgroups that hold the machine's own services: all containers wait for those, so nothing is ever taken from them.
pub(crate) const SERVICE_CGROUPS: [&str; 4] = ["/", "/init.scope", "/system.slice", "/user.slice"];
