//! `[recorder]` of the configuration.

use anyhow::{Result, ensure};
use elbowroom_types::unit::{Bytes, Micros, deserialize_quantity, parse_bytes};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::path::{Path, PathBuf};

/// The black box of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecorderSettings {
    /// Whether the agent records.
    pub enabled: bool,
    /// Where to; `recorder` in the state directory where it does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Most that all of it takes.
    #[serde(serialize_with = "shown", deserialize_with = "read")]
    pub max_size: Bytes,
    /// Time between two snapshots.
    #[serde(with = "elbowroom_types::unit::duration")]
    pub period: Micros,
}

/// The smallest ring: segments hold some key frames.
pub const MIN_SIZE: Bytes = Bytes::mib(1);

impl Default for RecorderSettings {
    fn default() -> Self {
        Self { enabled: true, directory: None, max_size: Bytes::mib(256), period: Micros::secs(1) }
    }
}

impl RecorderSettings {
    /// Where the ring is.
    pub fn directory(&self, state_dir: &Path) -> PathBuf {
        self.directory.clone().unwrap_or_else(|| state_dir.join("recorder"))
    }

    /// Refuses what cannot be kept to.
    pub(crate) fn validate(&self) -> Result<()> {
        ensure!(
            self.max_size >= MIN_SIZE,
            "recorder.max_size: {} is too small: at least {MIN_SIZE}",
            self.max_size
        );
        ensure!(
            self.period >= Micros::millis(100),
            "recorder.period: \"{}\" is too short: at least \"100ms\"",
            self.period
        );
        ensure!(
            self.period <= Micros::secs(4),
            "recorder.period: \"{}\" is too long: a snapshot tells what changed in five seconds: at most \"4s\"",
            self.period
        );
        ensure!(
            self.directory.as_ref().is_none_or(|directory| directory.is_absolute()),
            "recorder.directory: write an absolute path"
        );
        Ok(())
    }
}

fn shown<S: Serializer>(bytes: &Bytes, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(bytes)
}

fn read<'de, D: Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
    deserialize_quantity(d, parse_bytes)
}
