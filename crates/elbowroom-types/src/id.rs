//! Numbers that name things of the kernel: cgroups by inode, block devices by major and minor.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A cgroup's identity inside one run of the agent, given by the host layer and never used twice: a path can come back
/// with another cgroup behind it, an identity cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct CgroupId(pub u64);

/// A block device, as the kernel numbers it: `MAJOR:MINOR` in `io.stat`, `io.max` and `/sys/dev/block`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(with = "String"))]
#[repr(C)]
pub struct DeviceNumber {
    /// The driver.
    pub major: u32,
    /// The device within it.
    pub minor: u32,
}

impl DeviceNumber {
    /// `major:minor`.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}:{}", self.major, self.minor))
    }
}

impl FromStr for DeviceNumber {
    type Err = DeviceNumberError;

    fn from_str(text: &str) -> Result<Self, DeviceNumberError> {
        let parse = |t: &str| t.bytes().all(|b| b.is_ascii_digit()).then(|| t.parse().ok()).flatten();
        let (major, minor) = text.split_once(':').ok_or_else(|| DeviceNumberError(text.to_owned()))?;
        match (parse(major), parse(minor)) {
            (Some(major), Some(minor)) => Ok(Self { major, minor }),
            _ => Err(DeviceNumberError(text.to_owned())),
        }
    }
}

impl Serialize for DeviceNumber {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DeviceNumber {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Not `MAJOR:MINOR`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a device number: write for example \"8:0\"")]
pub struct DeviceNumberError(String);
