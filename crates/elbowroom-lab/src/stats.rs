//! Numbers about numbers: quantiles of samples, the spread of a figure over rounds, latency histograms that stay small.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A figure over rounds: the middle one and how far it ranged.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    /// Median.
    pub(crate) median: f64,
    /// Smallest.
    pub(crate) min: f64,
    /// Largest.
    pub(crate) max: f64,
}

impl Spread {
    /// The spread of `values`; `None` where there is none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Self { median, min, max })
    }

    /// `12.3 (11.8 to 14)`.
    pub(crate) fn text(&self) -> String {
        format!("{} ({} to {})", short(self.median), short(self.min), short(self.max))
    }
}

/// A figure over runs as the paper on memory gives it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mean {
    /// Mean.
    pub(crate) mean: f64,
    /// Standard deviation of the runs; 0 for a single one.
    pub(crate) deviation: f64,
}

impl Mean {
    /// The mean of `values`; `None` where there is none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = if values.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 };
        (!values.is_empty()).then_some(Self { mean, deviation })
    }

    /// `12.3 ± 0.4`.
    pub(crate) fn text(&self) -> String {
        format!("{} ± {}", short(self.mean), short(self.deviation))
    }
}

/// The least of `sorted` that at least so many of a thousand samples do not exceed; `None` for no samples.
pub(crate) fn quantile(sorted: &[u64], per_mille: usize) -> Option<u64> {
    sorted.get((sorted.len() * per_mille).div_ceil(1000).saturating_sub(1)).copied()
}

/// Quantiles of a latency, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Quantiles {
    /// Number of samples.
    pub(crate) samples: u64,
    /// Median.
    pub(crate) p50: u64,
    /// 90th percentile.
    pub(crate) p90: u64,
    /// 99th percentile.
    pub(crate) p99: u64,
    /// 99.9th percentile.
    pub(crate) p999: u64,
    /// Largest.
    pub(crate) max: u64,
}

impl Quantiles {
    /// Quantiles of `samples`, which it sorts.
    pub(crate) fn of(samples: &mut [u64]) -> Self {
        samples.sort_unstable();
        let at = |per_mille| quantile(samples, per_mille).unwrap_or(0);
        Self {
            samples: samples.len() as u64,
            p50: at(500),
            p90: at(900),
            p99: at(990),
            p999: at(999),
            max: at(1000),
        }
    }
}

/// Counts of latencies in buckets that are 1/8 of a power of two wide, by their upper bound in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Histogram(pub(crate) BTreeMap<u64, u64>);

impl Histogram {
    /// The histogram of `samples`.
    pub(crate) fn of(samples: &[u64]) -> Self {
        let mut counts = BTreeMap::new();
        for ns in samples {
            *counts.entry(bucket(*ns)).or_insert(0) += 1;
        }
        Self(counts)
    }

    /// Points (share of samples in (0, 1], nanoseconds) of the cumulative distribution.
    pub(crate) fn cumulative(&self) -> Vec<(f64, f64)> {
        let all: u64 = self.0.values().sum();
        let mut seen = 0;
        self.0
            .iter()
            .map(|(ns, count)| {
                seen += count;
                (seen as f64 / all as f64, *ns as f64)
            })
            .collect()
    }
}

fn bucket(ns: u64) -> u64 {
    if ns < 16 {
        return ns;
    }
    let width = 1 << (ns.ilog2() - 3);
    (ns / width + 1) * width
}

/// Slope of the least-squares line through `points`, and its standard error; `None` below three points.
pub(crate) fn slope(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let n = points.len() as f64;
    if points.len() < 3 {
        return None;
    }
    let mean = |f: fn(&(f64, f64)) -> f64| points.iter().map(f).sum::<f64>() / n;
    let (mx, my) = (mean(|p| p.0), mean(|p| p.1));
    let sxx: f64 = points.iter().map(|(x, _)| (x - mx).powi(2)).sum();
    let sxy: f64 = points.iter().map(|(x, y)| (x - mx) * (y - my)).sum();
    if sxx == 0.0 {
        return None;
    }
    let b = sxy / sxx;
    let residual: f64 = points.iter().map(|(x, y)| (y - my - b * (x - mx)).powi(2)).sum();
    Some((b, (residual / (n - 2.0) / sxx).sqrt()))
}

/// Three significant digits, without an exponent: `0.0123`, `1.23`, `123`, `12345`.
pub(crate) fn short(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let digits = 2 - value.abs().log10().floor() as i32;
    format!("{value:.*}", digits.clamp(0, 9) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let spread = Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (2.5, 1.0, 4.0));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn a_mean_has_the_deviation_of_a_sample_and_none_of_a_single_value() {
        let mean = Mean::of([2.0, 4.0, 6.0]).unwrap();
        assert_eq!((mean.mean, mean.deviation), (4.0, 2.0));
        assert_eq!(Mean::of([3.0]).unwrap().deviation, 0.0);
        assert_eq!(Mean::of([]), None);
    }

    #[test]
    fn quantiles_are_samples_that_were_taken() {
        let mut samples: Vec<u64> = (1..=1000).rev().collect();
        let q = Quantiles::of(&mut samples);
        assert_eq!((q.samples, q.p50, q.p99, q.p999, q.max), (1000, 500, 990, 999, 1000));
        assert_eq!(Quantiles::of(&mut []), Quantiles::default());
        assert_eq!([500, 950, 990].map(|part| quantile(&[1, 2, 3], part)), [Some(2), Some(3), Some(3)]);
    }

    #[test]
    fn a_bucket_is_above_its_samples_and_at_most_an_eighth_wider() {
        for ns in [0, 15, 16, 17, 31, 32, 1000, 999_999, 1 << 40] {
            let upper = bucket(ns);
            assert!(upper >= ns && upper as f64 <= ns as f64 * 1.13 + 1.0, "{ns} -> {upper}");
        }
        let histogram = Histogram::of(&[10, 10, 1000]);
        assert_eq!(histogram.cumulative().last().unwrap().0, 1.0);
    }

    #[test]
    fn a_straight_line_has_its_slope_and_no_error() {
        let (b, error) = slope(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]).unwrap();
        assert!((b - 2.0).abs() < 1e-12 && error < 1e-9);
        assert_eq!(slope(&[(0.0, 1.0), (1.0, 2.0)]), None);
    }

    #[test]
    fn numbers_keep_three_digits() {
        for (value, text) in
            [(0.01234, "0.0123"), (1.234, "1.23"), (123.4, "123"), (12345.6, "12346"), (0.0, "0")]
        {
            assert_eq!(short(value), text);
        }
    }
}
