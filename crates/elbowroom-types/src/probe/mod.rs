//! What an application says about how it is doing.
//!
//! **Problem.** The kernel sees pages and stalls; only the application knows whether its users are served. The paper
//! *Highlighting the Container Memory Consolidation Problems in Linux* (NCA 2019) ends with this wish: let the
//! containers tell.
//!
//! **Approach.** A probe is a number that the application has anyway (requests served in the last second, a latency) and
//! what was asked of it. It says nothing about memory: what a number means for memory is the governor's to judge, and
//! what a container may take is bounded by its reservation and weight whatever its probe says.

//! An application writes a [`ProbeRecord`] (one line of words, or JSON), or shows counters that a scrape finds
//! ([`prometheus`]); a [`ProbeMeter`] makes the [`ProbeReport`] of it that governors are told. Counters are as good as rates: what a
//! second made of them is computed here, so that a probe in a shell needs no memory.

mod meter;
pub mod prometheus;
mod record;

pub use meter::{ProbeDefaults, ProbeMeter};
pub use record::{MAX_RECORD_LEN, ProbeRecord, ProbeRecordError};

use crate::unit::Micros;
use serde::{Deserialize, Serialize};

/// How a container is doing.
///
/// The words are MemOpLight's (Laniel et al., NCA 2020).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Colour {
    /// The objective is missed.
    Red,
    /// The objective is met, and more could be served.
    Yellow,
    /// Everything that is offered is served: more memory cannot help.
    Green,
}

/// What [`Measure::served`] counts, and so which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum MeasureKind {
    /// Operations in a second; more is better.
    Throughput,
    /// A latency, in any unit that the objective shares; less is better.
    Latency,
}

/// A measurement that an application makes of itself.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Measure {
    /// Whether `served` is better large or small.
    pub kind: MeasureKind,
    /// Operations in a second, or the latency.
    pub served: f64,
    /// Operations in a second that were asked for; `None` where the application cannot know.
    pub offered: Option<f64>,
    /// What the operator has promised, in the unit of `served`; `None` leaves it to the configuration.
    pub objective: Option<f64>,
}

/// One record of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum ProbeReport {
    /// Numbers, judged by the governor.
    Measure(Measure),
    /// The application's own judgement.
    Colour {
        /// The judgement.
        colour: Colour,
    },
}

/// How long a report counts where nothing else is configured.
pub const DEFAULT_TTL: Micros = Micros::secs(5);
/// A probe that said nothing for this long is gone.
pub(crate) const ABSENT_AFTER: Micros = Micros::secs(60);

/// Whether a container's probe is to be listened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Freshness {
    /// The last report counts.
    Fresh,
    /// It is too old to count; the probe may be late, or dead.
    Stale,
    /// Nothing was ever heard, or not for [`ABSENT_AFTER`].
    Absent,
}

impl Freshness {
    /// Of a probe whose last report was made at `at` and counts for `ttl`.
    pub fn of(at: Micros, ttl: Micros, now: Micros) -> Self {
        match now.saturating_sub(at) {
            age if age <= ttl => Self::Fresh,
            age if age <= ABSENT_AFTER.max(ttl) => Self::Stale,
            _ => Self::Absent,
        }
    }

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Stale => "stale",
            Self::Absent => "absent",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_fresh_then_stale_then_absent() {
        let of = |now| Freshness::of(Micros::secs(10), DEFAULT_TTL, Micros::secs(now));
        assert_eq!(
            [10, 15, 16, 70, 71].map(of).map(Freshness::name),
            ["fresh", "fresh", "stale", "stale", "absent"]
        );
        // A clock that is a little behind makes nothing stale.
        assert_eq!(of(9), Freshness::Fresh);
        assert_eq!(Freshness::of(Micros::ZERO, Micros::secs(90), Micros::secs(80)), Freshness::Fresh);
    }
}
