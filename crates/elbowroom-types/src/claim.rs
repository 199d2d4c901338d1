//! What single containers are promised: the `[[claims]]` of the configuration, one entry for all governors.

use crate::io::IoMax;
use crate::unit::{Bytes, Limit, Percent, deserialize_quantity, parse_byte_rate, parse_bytes, parse_rate};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::RangeInclusive;

/// What a weight may be.
pub const WEIGHT_RANGE: RangeInclusive<u32> = 1..=10_000;

/// One entry. A container without any has what its labels say ([`crate::label`]), or the default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Claim {
    /// Which containers: a glob pattern of their names or ids.
    pub container: String,
    /// Its part among containers of one tier when there is not enough; one of [`WEIGHT_RANGE`].
    pub weight: u32,
    /// Strict priority: a higher tier is served before a lower one gets anything beyond its reservation.
    pub tier: u8,
    /// What it suffers from first.
    pub class: ServiceClass,
    /// Its reservation of every disk it uses, whatever it used so far.
    pub disk: DiskReservation,
    /// The reservation of disks is its own claim, by a label: it is no promise of the operator.
    #[serde(skip)]
    pub disk_is_asked: bool,
    /// What it is entitled to of memory.
    pub memory: MemoryClaim,
}

impl Default for Claim {
    fn default() -> Self {
        Self {
            container: String::new(),
            weight: 100,
            tier: 0,
            class: ServiceClass::default(),
            disk: DiskReservation::default(),
            disk_is_asked: false,
            memory: MemoryClaim::default(),
        }
    }
}

/// What a container suffers from first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ServiceClass {
    /// Less work done per second.
    #[default]
    Throughput,
    /// Single requests that take long: it is not throttled, for throttling makes requests wait up to 100 ms
    /// (block/blk-throttle.c, `throtl_slice`).
    Latency,
}

impl ServiceClass {
    /// As in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Latency => "latency",
        }
    }
}

/// A reservation on a disk, each number per second; what is absent is not reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct DiskReservation {
    /// Bytes read: `"50MiB/s"`.
    #[serde(with = "bytes", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub rbps: Option<u64>,
    /// Bytes written: `"50MiB/s"`.
    #[serde(with = "bytes", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub wbps: Option<u64>,
    /// Reads: `"500/s"`.
    #[serde(with = "operations", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub riops: Option<u64>,
    /// Writes: `"500/s"`.
    #[serde(with = "operations", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub wiops: Option<u64>,
}

impl DiskReservation {
    /// Whether anything is reserved.
    pub const fn is_empty(self) -> bool {
        self.rbps.is_none() && self.wbps.is_none() && self.riops.is_none() && self.wiops.is_none()
    }
}

impl fmt::Display for DiskReservation {
    /// As labels have it: `rbps=50MiB/s wiops=200/s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |key, rate: Option<u64>| rate.map(|n| format!("{key}={}/s", Bytes(n)));
        let operations = |key, rate: Option<u64>| rate.map(|n| format!("{key}={n}/s"));
        let words = [
            rate("rbps", self.rbps),
            rate("wbps", self.wbps),
            operations("riops", self.riops),
            operations("wiops", self.wiops),
        ];
        f.write_str(&words.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

impl From<DiskReservation> for IoMax {
    /// The same numbers; [`Limit::Max`] where nothing is reserved.
    fn from(reservation: DiskReservation) -> Self {
        let limit = |n: Option<u64>| n.map_or(Limit::Max, Limit::At);
        Self {
            rbps: limit(reservation.rbps),
            wbps: limit(reservation.wbps),
            riops: limit(reservation.riops),
            wiops: limit(reservation.wiops),
        }
    }
}

/// What a container is entitled to of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryClaim {
    /// Never taken from it while it has use for it: `"2GiB"`. Absent: what its user protects with `memory.min`, `memory.low` or
    /// the v1 soft limit, else nothing.
    #[serde(with = "size", skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Bytes>,
    /// Where the reservation is a container's own claim, by a label: what of it the operator promised. The rest counts at most
    /// to the container's own limit.
    #[serde(skip)]
    pub promised: Option<Bytes>,
    /// The part of its reservation that others may use while it has none for it; absent: as `memory.lend` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lend: Option<Percent>,
    /// The reservation is kept for it whatever happens to others (`memory.min`): the kernel kills another process before it takes
    /// from it.
    pub guaranteed: bool,
    /// What its probe is measured by, where that does not say it itself: operations per second, or a latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objective: Option<f64>,
    /// Whether memory that it does not use is taken while no container needs it; absent: as `memory.saving` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saving: Option<bool>,
}

mod size {
    use super::{Bytes, Deserializer, Serializer, deserialize_quantity, parse_bytes};

    pub(super) fn serialize<S: Serializer>(size: &Option<Bytes>, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{}B", size.unwrap_or_default().get()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Bytes>, D::Error> {
        deserialize_quantity(d, parse_bytes).map(Some)
    }
}

mod bytes {
    use super::{Deserializer, Serializer, deserialize_quantity, parse_byte_rate};

    pub(super) fn serialize<S: Serializer>(rate: &Option<u64>, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{}B/s", rate.unwrap_or(0)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
        deserialize_quantity(d, parse_byte_rate).map(Some)
    }
}

mod operations {
    use super::{Deserializer, Serializer, deserialize_quantity, parse_rate};

    pub(super) fn serialize<S: Serializer>(rate: &Option<u64>, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{}/s", rate.unwrap_or(0)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
        deserialize_quantity(d, parse_rate).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_reads_as_people_write_it_and_reads_back() {
        let text = r#"{"container": "db*", "weight": 300, "class": "latency", "disk": {"rbps": "50MiB/s", "riops": "500/s"}}"#;
        let claim: Claim = serde_json::from_str(text).unwrap();
        assert_eq!(
            claim.disk,
            DiskReservation { rbps: Some(50 << 20), riops: Some(500), ..DiskReservation::default() }
        );
        assert_eq!((claim.weight, claim.tier, claim.class), (300, 0, ServiceClass::Latency));
        let written = serde_json::to_string(&claim).unwrap();
        assert_eq!(serde_json::from_str::<Claim>(&written).unwrap(), claim, "{written}");
    }

    #[test]
    fn a_claim_of_memory_reads_as_people_write_it_and_reads_back() {
        let text = r#"{"container": "db", "memory": {"reservation": "1.5GiB", "lend": "50%", "objective": 800, "saving": false}}"#;
        let claim: Claim = serde_json::from_str(text).unwrap();
        assert_eq!(claim.memory.reservation, Some(Bytes::mib(1536)));
        assert_eq!((claim.memory.lend, claim.memory.objective), (Some(Percent::whole(50)), Some(800.0)));
        assert_eq!(claim.memory.saving, Some(false));
        let written = serde_json::to_string(&claim).unwrap();
        assert_eq!(serde_json::from_str::<Claim>(&written).unwrap(), claim, "{written}");
        assert!(serde_json::from_str::<Claim>(r#"{"memory": {"reservation": 7}}"#).is_err());
    }

    #[test]
    fn a_rate_without_its_unit_is_refused() {
        for text in [r#"{"disk": {"rbps": 50}}"#, r#"{"disk": {"rbps": "50MiB"}}"#, r#"{"wieght": 3}"#] {
            assert!(serde_json::from_str::<Claim>(text).is_err(), "{text}");
        }
    }
}
