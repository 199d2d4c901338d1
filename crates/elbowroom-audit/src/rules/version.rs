//! Versions as programs write them in their own bytes.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Three numbers, compared from the left; what is not written is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramVersion(pub u32, pub u32, pub u32);

impl ProgramVersion {
    /// The version at the beginning of a text: `1.22.1`, `v20.20.2`, `3.11`, `go1.25rc1`. `None` where no digit is.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix("go").or_else(|| text.strip_prefix('v')).unwrap_or(text);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let mut numbers = text[..end].split('.');
        let first = numbers.next()?.parse().ok()?;
        let mut next = || numbers.next().and_then(|n| n.parse().ok()).unwrap_or(0);
        Some(Self(first, next(), next()))
    }

    /// Java's: `1.8.0_392` is 8 update 392, `17.0.15+6` is what it looks like (JEP 223).
    pub(crate) fn parse_java(text: &str) -> Option<Self> {
        match Self::parse(text)? {
            Self(1, feature, _) => {
                let update = text.split_once('_').and_then(|(_, u)| Self::parse(u)).map_or(0, |v| v.0);
                Some(Self(feature, 0, update))
            }
            version => Some(version),
        }
    }
}

impl fmt::Display for ProgramVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self(a, 0, 0) => write!(f, "{a}"),
            Self(a, b, 0) => write!(f, "{a}.{b}"),
            Self(a, b, c) => write!(f, "{a}.{b}.{c}"),
        }
    }
}

impl Serialize for ProgramVersion {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ProgramVersion {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("no version: {text:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_programs_write_them() {
        for (text, expect) in [
            ("1.22.1", Some(ProgramVersion(1, 22, 1))),
            ("v20.20.2/node", Some(ProgramVersion(20, 20, 2))),
            ("go1.25rc1", Some(ProgramVersion(1, 25, 0))),
            ("3.11", Some(ProgramVersion(3, 11, 0))),
            ("15.13 (Debian 15.13-0+deb12u1)", Some(ProgramVersion(15, 13, 0))),
            ("devel +abc", None),
            ("", None),
            ("99999999999", None),
        ] {
            assert_eq!(ProgramVersion::parse(text), expect, "{text}");
        }
    }

    #[test]
    fn java_counts_updates_of_eight_as_patches() {
        assert_eq!(ProgramVersion::parse_java("1.8.0_392-b08"), Some(ProgramVersion(8, 0, 392)));
        assert_eq!(ProgramVersion::parse_java("17.0.15+6-Debian"), Some(ProgramVersion(17, 0, 15)));
        assert_eq!(ProgramVersion::parse_java("25"), Some(ProgramVersion(25, 0, 0)));
    }
}
