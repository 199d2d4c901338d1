//! How long containers take to start when requests come at a given rate.
//!
//! # Approach
//! An open loop: requests come when they are due, whether or not earlier ones are done, as users send them. A start's latency
//! counts from when it was due until the engine answered, so that an engine that falls behind is charged for the queue it
//! made (Tene's *coordinated omission*). Percentiles are samples that were taken (nearest rank): with 8 starts the 99th is
//! the largest, and [`StartupSummary::starts`] beside it says so.

use elbowroom_types::unit::Micros;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Requests per second; above 0, at most 1000.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct RequestRate(f64);

/// Why a text is no [`RequestRate`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no rate: write starts per second, above 0 and at most 1000, such as \"4\" or \"0.5\"")]
pub(crate) struct RequestRateError(String);

impl RequestRate {
    /// Requests per second.
    pub fn per_second(self) -> f64 {
        self.0
    }

    /// When each request is due that begins within `duration`, from the first one at 0.
    pub fn schedule(self, duration: Micros) -> Vec<Micros> {
        let gap = 1e6 / self.0;
        let count = (duration.get() as f64 / gap).ceil().max(1.0) as u64;
        (0..count).map(|i| Micros((i as f64 * gap) as u64)).collect()
    }
}

impl FromStr for RequestRate {
    type Err = RequestRateError;

    fn from_str(text: &str) -> Result<Self, RequestRateError> {
        let rate = text.trim().parse::<f64>().ok().filter(|rate| *rate > 0.0 && *rate <= 1000.0);
        rate.map(Self).ok_or_else(|| RequestRateError(text.chars().take(40).collect()))
    }
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StartSample {
    /// Which application, by its place in the list of those that are compared.
    pub application: usize,
    /// When it was due, from the first request of its rate.
    #[serde(rename = "due_usec")]
    pub due: Micros,
    /// From due to answered.
    #[serde(rename = "latency_usec")]
    pub latency: Micros,
    /// What the engine said where it did not start the container.
    pub error: Option<String>,
}

/// Starts at one rate, of one application or of all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StartupSummary {
    /// Requests.
    pub starts: u64,
    /// Of them, those that the engine refused. Their latencies are not in the rest.
    pub failures: u64,
    /// Arithmetic mean.
    #[serde(rename = "mean_usec")]
    pub mean: Micros,
    /// Median.
    #[serde(rename = "p50_usec")]
    pub p50: Micros,
    /// 95th percentile.
    #[serde(rename = "p95_usec")]
    pub p95: Micros,
    /// 99th percentile.
    #[serde(rename = "p99_usec")]
    pub p99: Micros,
    /// Largest.
    #[serde(rename = "max_usec")]
    pub max: Micros,
    /// Starts that were answered well, per second from the first request to the last answer.
    pub achieved_per_second: f64,
}

impl StartupSummary {
    /// What `starts` come to.
    pub fn of<'a>(starts: impl IntoIterator<Item = &'a StartSample>) -> Self {
        let mut summary = Self::default();
        let mut latencies: Vec<Micros> = Vec::new();
        let mut ended = Micros::ZERO;
        for start in starts {
            summary.starts += 1;
            ended = ended.max(start.due.saturating_add(start.latency));
            match start.error {
                Some(_) => summary.failures += 1,
                None => latencies.push(start.latency),
            }
        }
        latencies.sort_unstable();
        if latencies.is_empty() {
            return summary;
        }
        let sum: u64 = latencies.iter().map(|latency| latency.get()).sum();
        summary.mean = Micros(sum / latencies.len() as u64);
        summary.p50 = percentile(&latencies, 50);
        summary.p95 = percentile(&latencies, 95);
        summary.p99 = percentile(&latencies, 99);
        summary.max = percentile(&latencies, 100);
        summary.achieved_per_second = latencies.len() as f64 * 1e6 / ended.get().max(1) as f64;
        summary
    }

    /// Whether the engine answered clearly fewer starts per second than were asked for: a queue grows. The last start of a run
    /// is answered after the run's end, so a short run at a rate that is kept looks a little slower, too.
    pub fn is_saturated(&self, rate: RequestRate) -> bool {
        self.failures == 0 && self.starts >= 8 && self.achieved_per_second < 0.85 * rate.per_second()
    }
}

/// The smallest sample that is not below `percent` of all; zero of none.
fn percentile(sorted: &[Micros], percent: usize) -> Micros {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(Micros::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn start(due_ms: u64, latency_ms: u64) -> StartSample {
        StartSample {
            application: 0,
            due: Micros::millis(due_ms),
            latency: Micros::millis(latency_ms),
            error: None,
        }
    }

    #[test]
    fn requests_are_due_at_their_rate_and_before_the_end() {
        let rate: RequestRate = "4".parse().unwrap();
        let due = rate.schedule(Micros::secs(1));
        assert_eq!(due, [0, 250_000, 500_000, 750_000].map(Micros));
        assert_eq!("0.5".parse::<RequestRate>().unwrap().schedule(Micros::secs(1)).len(), 1);
    }

    #[test]
    fn what_is_no_rate_is_refused_in_words() {
        for bad in ["", "0", "-1", "nan", "inf", "1001", "4/s"] {
            let error = bad.parse::<RequestRate>().unwrap_err().to_string();
            assert!(error.contains("starts per second"), "{bad}: {error}");
        }
    }

    #[test]
    fn percentiles_are_latencies_that_were_seen() {
        let starts: Vec<StartSample> = (1..=100).map(|i| start(0, i)).collect();
        let summary = StartupSummary::of(&starts);
        let ms = |latency: Micros| latency.get() / 1000;
        assert_eq!([summary.p50, summary.p95, summary.p99, summary.max].map(ms), [50, 95, 99, 100]);
        assert_eq!(StartupSummary::of(&[]), StartupSummary::default());
    }

    #[test]
    fn a_failure_is_counted_and_its_latency_is_not() {
        let failed = StartSample { error: Some("no".into()), ..start(0, 9_000) };
        let summary = StartupSummary::of(&[start(0, 10), failed]);
        assert_eq!((summary.starts, summary.failures, summary.max), (2, 1, Micros::millis(10)));
    }

    #[test]
    fn a_queue_that_grows_is_called_saturated() {
        let rate: RequestRate = "8".parse().unwrap();
        let kept: Vec<StartSample> = (0..40).map(|i| start(i * 125, 100)).collect();
        let behind: Vec<StartSample> = (0..40).map(|i| start(i * 125, 100 + i * 100)).collect();
        assert!(!StartupSummary::of(&kept).is_saturated(rate));
        assert!(StartupSummary::of(&behind).is_saturated(rate));
    }

    proptest! {
        #[test]
        fn percentiles_never_fall_and_the_mean_lies_between(latencies in prop::collection::vec(0u64..100_000, 1..200)) {
            let starts: Vec<StartSample> = latencies.iter().map(|latency| start(0, *latency)).collect();
            let s = StartupSummary::of(&starts);
            prop_assert!(s.p50 <= s.p95 && s.p95 <= s.p99 && s.p99 <= s.max);
            prop_assert!(s.mean <= s.max);
            prop_assert_eq!(s.starts, latencies.len() as u64);
        }
    }
}
