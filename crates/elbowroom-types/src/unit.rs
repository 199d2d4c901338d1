//! Units are types: a number that means bytes cannot be added to one that means microseconds.
//!
//! Subtraction is saturating, never `-`: a counter that went backwards is an ordinary event, not a wrap to 2^64. A
//! cgroup may be re-created under the same name, or a usage may be above a limit that was just lowered.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(transparent)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// Nothing of it.
            pub const ZERO: Self = Self(0);

            /// The bare number, in this type's unit.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// `self - other`, or zero when `other` is larger.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }

            /// `self + other`, or the largest value when that does not fit.
            #[must_use]
            pub const fn saturating_add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl std::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
                iter.fold(Self::ZERO, Self::saturating_add)
            }
        }
    };
}

unit! {
    /// An amount of memory or disk transfer, in bytes.
    Bytes
}
unit! {
    /// A duration or an instant of some clock, in microseconds. v1 nanoseconds become `Micros` in the v1 reader.
    Micros
}
unit! {
    /// Thousandths of one CPU: 1500 is one CPU and a half.
    Millicpu
}

impl Bytes {
    /// `n` KiB.
    pub const fn kib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 10))
    }
    /// `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }
    /// `n` GiB.
    pub const fn gib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 30))
    }
    /// Whole KiB, rounded down: the unit of `/proc/meminfo`.
    pub const fn as_kib(self) -> u64 {
        self.0 >> 10
    }
}

impl Micros {
    /// `n` milliseconds.
    pub const fn millis(n: u64) -> Self {
        Self(n.saturating_mul(1_000))
    }
    /// `n` seconds.
    pub const fn secs(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000))
    }
    /// From nanoseconds, rounded down.
    pub const fn nanos(n: u64) -> Self {
        Self(n / 1_000)
    }
}

impl Millicpu {
    /// `n` whole CPUs.
    pub const fn cpus(n: u64) -> Self {
        Self(n.saturating_mul(1_000))
    }
    /// Whole CPUs, rounded up, at least one: a quota of half a CPU still shows one.
    pub const fn cpus_ceil(self) -> u32 {
        let n = self.0.div_ceil(1_000);
        if n == 0 {
            1
        } else if n > u32::MAX as u64 {
            u32::MAX
        } else {
            n as u32
        }
    }
}

/// A part of a whole, in hundredths of a percent: 9500 is 95 %. People write `"95%"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(with = "String"))]
pub struct Percent(u16);

impl Percent {
    /// `n` percent, at most 100.
    pub const fn whole(n: u16) -> Self {
        Self(if n < 100 { n * 100 } else { 10_000 })
    }

    /// `n` hundredths of a percent, at most 100 %.
    pub const fn hundredths(n: u16) -> Self {
        Self(if n < 10_000 { n } else { 10_000 })
    }

    /// This part of `whole`, rounded down.
    pub const fn of(self, whole: u64) -> u64 {
        (whole as u128 * self.0 as u128 / 10_000) as u64
    }

    /// As a part of 1: 20 % is 0.2.
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / 10_000.0
    }

    /// Whether `part` is more than this part of `whole`; exact, also where `whole` is zero.
    pub const fn exceeded_by(self, part: u64, whole: u128) -> bool {
        part as u128 * 10_000 > whole.saturating_mul(self.0 as u128)
    }
}

impl fmt::Display for Percent {
    /// `95%`, `0.5%`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}%", f64::from(self.0) / 100.0))
    }
}

impl Serialize for Percent {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        deserialize_quantity(d, parse_percent)
    }
}

impl fmt::Display for Bytes {
    /// Binary units, exact where the number is round: `512MiB`, `1.5GiB`, `100B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB"];
        let (mut scale, mut unit) = (1u64, 0);
        while unit + 1 < units.len() && self.0 / scale >= 1024 {
            scale *= 1024;
            unit += 1;
        }
        if self.0.is_multiple_of(scale) {
            f.pad(&format!("{}{}", self.0 / scale, units[unit]))
        } else {
            f.pad(&format!("{:.1}{}", self.0 as f64 / scale as f64, units[unit]))
        }
    }
}

impl fmt::Display for Millicpu {
    /// CPUs: `2`, `1.5`, `0.25`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}", self.0 as f64 / 1_000.0))
    }
}

/// An amount with its noun: `1 CPU`, `0.25 CPUs`, `3 processes`.
pub fn counted(amount: impl fmt::Display, noun: &str) -> String {
    let amount = amount.to_string();
    let ending = match amount.as_str() {
        "1" => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{amount} {noun}{ending}")
}

impl fmt::Display for Micros {
    /// The largest unit that keeps it readable: `24ms`, `1.5s`, `800us`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            n if n >= 1_000_000 => format!("{}s", (n / 1_000) as f64 / 1_000.0),
            n if n >= 1_000 => format!("{}ms", n as f64 / 1_000.0),
            n => format!("{n}us"),
        };
        f.pad(&text)
    }
}

/// The share of CPU time of one cgroup, as the kernel file says it. It means something only next to its siblings' share
/// on the same hierarchy, so the two kinds are never converted into one another: runtimes disagree on the law
/// (opencontainers/runc#4896), and only the kernel's own number decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CpuShare {
    /// cgroup v1 `cpu.shares`, 2..=262144, 1024 by default.
    Shares(u64),
    /// cgroup v2 `cpu.weight`, 1..=10000, 100 by default.
    Weight(u64),
}

impl CpuShare {
    /// The number in its file.
    pub const fn raw(self) -> u64 {
        match self {
            Self::Shares(n) | Self::Weight(n) => n,
        }
    }
}

/// A kernel limit: a value, or `max` (v1 spells it `-1` or a huge number). A limit that cannot be read is `None` around
/// this type, never `Max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Limit<T> {
    /// No limit.
    Max,
    /// At most this much.
    At(T),
}

impl<T: Copy + Ord> Limit<T> {
    /// The value, or `ceiling` where there is no limit; never above `ceiling`.
    pub fn or(self, ceiling: T) -> T {
        match self {
            Self::Max => ceiling,
            Self::At(v) => v.min(ceiling),
        }
    }

    /// The tighter of the two.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        match (self, other) {
            (Self::At(a), Self::At(b)) => Self::At(a.min(b)),
            (Self::At(a), Self::Max) | (Self::Max, Self::At(a)) => Self::At(a),
            (Self::Max, Self::Max) => Self::Max,
        }
    }

    /// The value, if there is a limit.
    pub fn value(self) -> Option<T> {
        match self {
            Self::Max => None,
            Self::At(v) => Some(v),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Limit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Max => f.pad("max"),
            Self::At(v) => v.fmt(f),
        }
    }
}

/// Why a quantity written by a person was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// A number without its unit.
    #[error("\"{0}\" has no unit: write for example {1}")]
    Bare(String, &'static str),
    /// Not a number with a known unit.
    #[error("\"{0}\" is not {1}: write for example {2}")]
    Malformed(String, &'static str, &'static str),
}

/// `512MiB`, `1.5GiB`, `64k`, `512Mi`: binary units, as `docker --memory` and Kubernetes read them. A bare number is refused.
pub fn parse_bytes(text: &str) -> Result<Bytes, UnitError> {
    const HINT: &str = "\"512MiB\"";
    let units: [(&str, u64); 5] = [("t", 1 << 40), ("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10), ("", 1)];
    parse_scaled(text, "an amount of memory", HINT, |unit| {
        let unit = unit.to_ascii_lowercase();
        let stem = unit.strip_suffix('b').unwrap_or(&unit);
        let stem = stem.strip_suffix('i').filter(|scale| !scale.is_empty()).unwrap_or(stem);
        units.iter().find(|(name, _)| *name == stem).map(|(_, scale)| *scale as f64)
    })
    .map(Bytes)
}

/// `24ms`, `1.5s`, `250us`, `10m`, `2h`, `1d`. A bare number is refused.
pub fn parse_duration(text: &str) -> Result<Micros, UnitError> {
    parse_scaled(text, "a duration", "\"250ms\"", |unit| match unit {
        "us" => Some(1.0),
        "ms" => Some(1e3),
        "s" => Some(1e6),
        "m" | "min" => Some(60e6),
        "h" => Some(3600e6),
        "d" => Some(24.0 * 3600e6),
        _ => None,
    })
    .map(Micros)
}

/// `95%`, `0.5%`: from nothing to all of it. A bare number is refused.
pub fn parse_percent(text: &str) -> Result<Percent, UnitError> {
    let (what, hint) = ("a part from 0% to 100%", "\"20%\"");
    let hundredths = parse_scaled(text, what, hint, |unit| (unit == "%").then_some(100.0))?;
    match u16::try_from(hundredths) {
        Ok(n) if n <= 10_000 => Ok(Percent(n)),
        _ => Err(UnitError::Malformed(text.to_owned(), what, hint)),
    }
}

/// `1.5`, `0.25`, `4`, `500m`: CPUs as `docker --cpus` and Kubernetes read them, above zero.
pub fn parse_cpus(text: &str) -> Result<Millicpu, UnitError> {
    let malformed = || UnitError::Malformed(text.to_owned(), "a number of CPUs above zero", "\"1.5\"");
    let (number, scale) = text.strip_suffix('m').map_or((text, 1_000.0), |thousandths| (thousandths, 1.0));
    let n: f64 = number.parse().map_err(|_| malformed())?;
    let milli = (n * scale).round();
    if (1.0..=1e9).contains(&milli) { Ok(Millicpu(milli as u64)) } else { Err(malformed()) }
}

/// `50MiB/s`, `1.5GiB/s`: bytes per second, binary units as [`parse_bytes`].
pub fn parse_byte_rate(text: &str) -> Result<u64, UnitError> {
    let malformed = || UnitError::Malformed(text.to_owned(), "an amount of data per second", "\"50MiB/s\"");
    parse_bytes(text.strip_suffix("/s").ok_or_else(malformed)?).map(Bytes::get).map_err(|_| malformed())
}

/// `500/s`: operations per second.
pub fn parse_rate(text: &str) -> Result<u64, UnitError> {
    let malformed = || UnitError::Malformed(text.to_owned(), "a number per second", "\"500/s\"");
    text.strip_suffix("/s").and_then(|n| n.parse().ok()).ok_or_else(malformed)
}

fn parse_scaled(
    text: &str,
    what: &'static str,
    hint: &'static str,
    scale: impl Fn(&str) -> Option<f64>,
) -> Result<u64, UnitError> {
    let malformed = || UnitError::Malformed(text.to_owned(), what, hint);
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| malformed())?;
    if unit.is_empty() {
        return Err(UnitError::Bare(text.to_owned(), hint));
    }
    let value = number * scale(unit).ok_or_else(malformed)?;
    if value.is_finite() && value < 9.2e18 { Ok(value.round() as u64) } else { Err(malformed()) }
}

/// For serde's `with`: a duration as people write it.
pub mod duration {
    use super::{Micros, deserialize_quantity, parse_duration};
    use serde::{Deserializer, Serializer};

    /// The shortest text that reads back as the same duration.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(time: &Micros, s: S) -> Result<S::Ok, S::Error> {
        let words = time.to_string();
        match parse_duration(&words) {
            Ok(read) if read == *time => s.serialize_str(&words),
            _ => s.collect_str(&format_args!("{}us", time.get())),
        }
    }

    /// As [`deserialize_quantity`].
    ///
    /// # Errors
    /// What is not a duration with its unit.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Micros, D::Error> {
        deserialize_quantity(d, parse_duration)
    }
}

/// Reads a quantity as a person writes it. A bare number, quoted or not, is refused with the way out.
///
/// # Errors
/// What `parse` refuses.
pub fn deserialize_quantity<'de, D: Deserializer<'de>, T>(
    d: D,
    parse: fn(&str) -> Result<T, UnitError>,
) -> Result<T, D::Error> {
    struct Quantity<T>(fn(&str) -> Result<T, UnitError>);
    impl<T> serde::de::Visitor<'_> for Quantity<T> {
        type Value = T;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a quantity with its unit, in quotes")
        }
        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
            (self.0)(text).map_err(E::custom)
        }
        fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }
        fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }
        fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }
    }
    d.deserialize_any(Quantity(parse))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtraction_never_wraps() {
        assert_eq!(Bytes(1).saturating_sub(Bytes(2)), Bytes::ZERO);
    }

    #[test]
    fn half_a_cpu_still_shows_one() {
        assert_eq!(Millicpu(500).cpus_ceil(), 1);
        assert_eq!(Millicpu(1_001).cpus_ceil(), 2);
        assert_eq!(Millicpu(0).cpus_ceil(), 1);
    }

    #[test]
    fn quantities_read_as_people_write_them() {
        assert_eq!(parse_bytes("512MiB"), Ok(Bytes::mib(512)));
        assert_eq!(parse_bytes("1.5g"), Ok(Bytes::mib(1536)));
        assert_eq!(parse_bytes("100B"), Ok(Bytes(100)));
        assert_eq!(parse_duration("24ms"), Ok(Micros(24_000)));
        assert_eq!(parse_duration("10m"), parse_duration("10min"));
        assert_eq!(parse_duration("1d"), parse_duration("24h"));
        assert_eq!(parse_cpus("1.5"), Ok(Millicpu(1_500)));
        assert_eq!(parse_byte_rate("50MiB/s"), Ok(50 << 20));
        assert_eq!(parse_rate("500/s"), Ok(500));
    }

    #[test]
    fn a_percentage_compares_exactly_and_reads_back() {
        let busy = Percent::whole(95);
        assert!(!busy.exceeded_by(95, 100) && busy.exceeded_by(96, 100));
        assert!(busy.exceeded_by(1, 0) && !busy.exceeded_by(0, 0));
        assert!(!busy.exceeded_by(u64::MAX, u128::MAX));
        assert_eq!(Percent::whole(10).of(u64::MAX), u64::MAX / 10);
        for text in ["0%", "0.5%", "95%", "100%"] {
            assert_eq!(parse_percent(text).unwrap().to_string(), text);
        }
        for bad in ["95", "101%", "-1%", "%", "5 %"] {
            assert!(parse_percent(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn units_of_kubernetes_are_read() {
        assert_eq!(parse_bytes("512Mi"), Ok(Bytes::mib(512)));
        assert_eq!(parse_bytes("2Gi"), Ok(Bytes::gib(2)));
        assert_eq!([parse_cpus("500m"), parse_cpus("0.5")], [Ok(Millicpu(500)), Ok(Millicpu(500))]);
        for bad in ["512i", "512ib", "512Mii"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_bare_number_is_refused_with_the_way_out() {
        assert_eq!(
            parse_bytes("512").unwrap_err().to_string(),
            "\"512\" has no unit: write for example \"512MiB\""
        );
        assert!(parse_duration("250").is_err());
        for bad in ["", "MiB", "1e400GiB", "-1MiB", "5 MiB", "1.2.3MiB", "5parsecs"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
        for bad in ["50MiB", "50/s", "/s", "-1MiB/s", ""] {
            assert!(parse_byte_rate(bad).is_err(), "{bad}");
        }
        for bad in ["500", "0.5/s", "-1/s", "/s", "5MiB/s"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
        for bad in ["0", "-1", "nan", "inf", "0.4m", "m", "1M", ""] {
            assert!(parse_cpus(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn one_of_a_thing_is_one_thing() {
        let cpus = [1_000, 250, 2_000].map(|n| counted(Millicpu(n), "CPU"));
        assert_eq!(cpus, ["1 CPU", "0.25 CPUs", "2 CPUs"]);
        assert_eq!([0, 1, 2].map(|n| counted(n, "process")), ["0 processes", "1 process", "2 processes"]);
    }

    #[test]
    fn amounts_print_short_and_exact() {
        assert_eq!(Bytes::mib(512).to_string(), "512MiB");
        assert_eq!(Bytes::mib(1536).to_string(), "1.5GiB");
        assert_eq!(Millicpu(1_500).to_string(), "1.5");
        assert_eq!(Micros(24_000).to_string(), "24ms");
        assert_eq!(Limit::<Bytes>::Max.to_string(), "max");
    }
}
