//! What single containers are promised: the `[[claims]]` of the configuration, one entry for all governors.

use crate::glob;
use crate::sample::{Container, IoMax};
use crate::unit::{Limit, parse_byte_rate, parse_rate};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One entry. A container without any has the default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Claim {
    /// Which containers: a glob pattern of their names or ids.
    pub container: String,
    /// Its part among containers of one tier when there is not enough, 1 to 10000.
    pub weight: u32,
    /// Strict priority: a higher tier is served before a lower one gets anything beyond its reservation.
    pub tier: u8,
    /// What it suffers from first.
    pub class: Class,
    /// What it is owed of every disk it uses, whatever it used so far.
    pub disk: Reserve,
}

/// What a container nobody mentioned claims.
pub static NO_CLAIM: Claim = Claim {
    container: String::new(),
    weight: 100,
    tier: 0,
    class: Class::Throughput,
    disk: Reserve { rbps: None, wbps: None, riops: None, wiops: None },
};

impl Claim {
    /// Whether this entry is about `container`.
    pub fn fits(&self, container: &Container) -> bool {
        glob::matches(&self.container, &container.id)
            || container.name.as_deref().is_some_and(|name| glob::matches(&self.container, name))
    }
}

impl Default for Claim {
    fn default() -> Self {
        NO_CLAIM.clone()
    }
}

/// What a container suffers from first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Less work done per second.
    #[default]
    Throughput,
    /// Single requests that take long: it is not throttled, for throttling makes requests wait up to 100 ms
    /// (block/blk-throttle.c, `throtl_slice`).
    Latency,
}

/// A reservation on a disk, each number per second; what is absent is not reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reserve {
    /// Bytes read: `"50MiB/s"`.
    #[serde(with = "bytes", skip_serializing_if = "Option::is_none")]
    pub rbps: Option<u64>,
    /// Bytes written: `"50MiB/s"`.
    #[serde(with = "bytes", skip_serializing_if = "Option::is_none")]
    pub wbps: Option<u64>,
    /// Reads: `"500/s"`.
    #[serde(with = "operations", skip_serializing_if = "Option::is_none")]
    pub riops: Option<u64>,
    /// Writes: `"500/s"`.
    #[serde(with = "operations", skip_serializing_if = "Option::is_none")]
    pub wiops: Option<u64>,
}

impl Reserve {
    /// Whether anything is reserved.
    pub const fn is_empty(self) -> bool {
        self.rbps.is_none() && self.wbps.is_none() && self.riops.is_none() && self.wiops.is_none()
    }
}

impl From<Reserve> for IoMax {
    /// The same numbers; [`Limit::Max`] where nothing is reserved.
    fn from(reserve: Reserve) -> Self {
        let limit = |n: Option<u64>| n.map_or(Limit::Max, Limit::At);
        Self {
            rbps: limit(reserve.rbps),
            wbps: limit(reserve.wbps),
            riops: limit(reserve.riops),
            wiops: limit(reserve.wiops),
        }
    }
}

mod bytes {
    use super::{Deserialize, Deserializer, Serializer, parse_byte_rate};

    pub(super) fn serialize<S: Serializer>(rate: &Option<u64>, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{}B/s", rate.unwrap_or(0)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
        parse_byte_rate(&String::deserialize(d)?).map(Some).map_err(serde::de::Error::custom)
    }
}

mod operations {
    use super::{Deserialize, Deserializer, Serializer, parse_rate};

    pub(super) fn serialize<S: Serializer>(rate: &Option<u64>, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{}/s", rate.unwrap_or(0)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
        parse_rate(&String::deserialize(d)?).map(Some).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_reads_as_people_write_it_and_reads_back() {
        let text = r#"{"container": "db*", "weight": 300, "class": "latency", "disk": {"rbps": "50MiB/s", "riops": "500/s"}}"#;
        let claim: Claim = serde_json::from_str(text).unwrap();
        assert_eq!(claim.disk, Reserve { rbps: Some(50 << 20), riops: Some(500), ..Reserve::default() });
        assert_eq!((claim.weight, claim.tier, claim.class), (300, 0, Class::Latency));
        let written = serde_json::to_string(&claim).unwrap();
        assert_eq!(serde_json::from_str::<Claim>(&written).unwrap(), claim, "{written}");
    }

    #[test]
    fn a_rate_without_its_unit_is_refused() {
        for text in [r#"{"disk": {"rbps": 50}}"#, r#"{"disk": {"rbps": "50MiB"}}"#, r#"{"wieght": 3}"#] {
            assert!(serde_json::from_str::<Claim>(text).is_err(), "{text}");
        }
    }
}
