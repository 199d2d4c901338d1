//! What a person may choose about memory: the `[memory]` table of the configuration.

use super::super::GovernorMode;
use elbowroom_types::unit::{Micros, Percent};
use serde::{Deserialize, Serialize};

/// The choices. Every field has a default; an unknown field is an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemorySettings {
    /// What is done with decisions.
    pub mode: GovernorMode,
    /// Time between two measurements.
    #[serde(with = "elbowroom_types::unit::duration")]
    pub period: Micros,
    /// The part of a reservation that others may use while its owner has no use for it, where a claim does not say.
    pub lend: Percent,
    /// Memory is short when less than this part of it is free.
    pub short: Percent,
    /// A container that gives memory shows less in its view, so that its programs can give it back themselves.
    pub lower_views: bool,
    /// Memory that containers do not use is taken while no container needs it, where a claim does not say.
    pub saving: bool,
    /// The part of the time that a container may wait for memory on that account.
    pub saving_pressure: Percent,
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self {
            mode: GovernorMode::Observe,
            period: Micros::secs(1),
            lend: Percent::whole(75),
            short: Percent::whole(4),
            lower_views: true,
            saving: false,
            saving_pressure: Percent::hundredths(10),
        }
    }
}
