//! What a person may choose about disks: the `[disk]` table of the configuration.

use super::super::GovernorMode;
use super::constants::LifelineConstants;
use elbowroom_types::unit::{Micros, Percent};
use serde::{Deserialize, Serialize};

/// The choices. Every field has a default; an unknown field is an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DiskSettings {
    /// What is done with decisions.
    pub mode: GovernorMode,
    /// How bandwidth is divided.
    pub policy: DiskPolicy,
    /// Time between two measurements.
    #[serde(with = "elbowroom_types::unit::duration")]
    pub period: Micros,
    /// Disks that are governed, as glob patterns of names below `/sys/block`. Empty: every disk that containers use.
    pub devices: Vec<String>,
    /// Constants of [`DiskPolicy::Aridac`].
    pub aridac: AridacSettings,
    /// Constants of [`DiskPolicy::Lifeline`].
    pub lifeline: LifelineSettings,
}

impl Default for DiskSettings {
    fn default() -> Self {
        Self {
            mode: GovernorMode::Observe,
            policy: DiskPolicy::Lifeline,
            period: Micros::secs(1),
            devices: Vec::new(),
            aridac: AridacSettings::default(),
            lifeline: LifelineSettings::default(),
        }
    }
}

/// How bandwidth is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DiskPolicy {
    /// As in the paper: lifeline = mean of the last samples, cap = lifeline * (1 + P).
    Aridac,
    /// The same idea without its failures: samples taken under pressure never move a lifeline, and caps are only on containers that
    /// take more than they need, and only since another was short.
    #[default]
    Lifeline,
}

/// Constants of [`DiskPolicy::Aridac`], the paper's where it names them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AridacSettings {
    /// `N`: samples whose mean is the lifeline. The paper does not say it: 2, a second apart, give a burst the idle bandwidth as fast as
    /// its figure 7; the default keeps a victim's lifeline through a squeeze of seconds, as in its figure 5.
    pub samples: u16,
    /// `P`: how far a cap is above the lifeline.
    pub elasticity: Percent,
    /// `MAX_DISK_IO`, the capacity that the paper takes as given: bytes per second, read and written together.
    #[serde(with = "max_disk_io")]
    pub max_disk_io: u64,
}

impl Default for AridacSettings {
    fn default() -> Self {
        Self { samples: 30, elasticity: Percent::whole(20), max_disk_io: 100 << 20 }
    }
}

mod max_disk_io {
    use elbowroom_types::unit::{deserialize_quantity, parse_byte_rate};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(rate: &u64, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{rate}B/s"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
        deserialize_quantity(d, parse_byte_rate)
    }
}

/// Constants of [`DiskPolicy::Lifeline`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LifelineSettings {
    /// `P`: how far above what it needs a container may go before it is cut for another that is short.
    pub elasticity: Percent,
    /// What a user should not have to choose.
    #[serde(skip)]
    pub constants: LifelineConstants,
}

impl Default for LifelineSettings {
    fn default() -> Self {
        Self { elasticity: Percent::whole(20), constants: LifelineConstants::DEFAULT }
    }
}
