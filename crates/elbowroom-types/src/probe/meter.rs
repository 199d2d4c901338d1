//! What a record means for governors: counters become rates, and the operator's terms fill in what it leaves out.

use super::{Measure, MeasureKind, ProbeRecord, ProbeReport};
use crate::unit::Micros;
use serde::{Deserialize, Serialize};

/// What the operator says about a probe, for records that do not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ProbeDefaults {
    /// Whether more is better or less.
    pub kind: Option<MeasureKind>,
    /// What is promised.
    pub objective: Option<f64>,
}

/// Two records closer than this make no rate: one packet more or less would be all of it.
const MIN_INTERVAL: Micros = Micros::millis(50);

/// Makes reports of one probe's records, in the order they come.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProbeMeter {
    last: Option<(Micros, ProbeCounters)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct ProbeCounters {
    served: f64,
    offered: Option<f64>,
    time: Option<f64>,
}

impl ProbeMeter {
    /// The report that a record makes, with `at` on the monotonic clock. `None` from the first record of counters, from one
    /// after they began anew (the application was restarted), and from one that comes right after another.
    pub fn report(&mut self, record: &ProbeRecord, terms: ProbeDefaults, at: Micros) -> Option<ProbeReport> {
        if let Some(colour) = record.colour {
            return Some(ProbeReport::Colour { colour });
        }
        let kind = record.kind.or(terms.kind).unwrap_or(MeasureKind::Throughput);
        let objective = record.objective.or(terms.objective);
        let now = match record.served {
            Some(served) => {
                return Some(ProbeReport::Measure(Measure {
                    kind,
                    served,
                    offered: record.offered,
                    objective,
                }));
            }
            None => ProbeCounters {
                served: record.served_total?,
                offered: record.offered_total,
                time: record.time_total,
            },
        };
        let Some((since, before)) = self.last else {
            self.last = Some((at, now));
            return None;
        };
        let elapsed = at.saturating_sub(since);
        if elapsed < MIN_INTERVAL {
            return None;
        }
        self.last = Some((at, now));
        let seconds = elapsed.get() as f64 / 1e6;
        let grew = increase(before.served, now.served)?;
        let served = match kind {
            MeasureKind::Throughput => grew / seconds,
            // None asked: none waited.
            MeasureKind::Latency if grew == 0.0 => 0.0,
            MeasureKind::Latency => increase(before.time?, now.time?)? / grew,
        };
        let offered = match (record.offered, before.offered, now.offered) {
            (Some(offered), _, _) => Some(offered),
            (None, Some(before), Some(now)) => Some(increase(before, now)? / seconds),
            _ => None,
        };
        Some(ProbeReport::Measure(Measure { kind, served, offered, objective }))
    }
}

/// How much a counter grew; `None` where it began anew.
fn increase(before: f64, now: f64) -> Option<f64> {
    (now >= before).then_some(now - before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Colour;

    /// Feeds records a second apart.
    fn reports(texts: &[&str], terms: ProbeDefaults) -> Vec<Option<ProbeReport>> {
        let mut meter = ProbeMeter::default();
        let record = |text: &str| ProbeRecord::parse(text.as_bytes()).unwrap();
        (1..).zip(texts).map(|(n, text)| meter.report(&record(text), terms, Micros::secs(n))).collect()
    }

    fn measure(
        kind: MeasureKind,
        served: f64,
        offered: Option<f64>,
        objective: Option<f64>,
    ) -> Option<ProbeReport> {
        Some(ProbeReport::Measure(Measure { kind, served, offered, objective }))
    }

    #[test]
    fn counters_become_rates_and_a_restart_is_not_a_rate() {
        let texts = [
            "served_total=100",
            "served_total=350",
            "served_total=350",
            "served_total=20",
            "served_total=50",
        ];
        let rate = |served| measure(MeasureKind::Throughput, served, None, None);
        assert_eq!(
            reports(&texts, ProbeDefaults::default()),
            [None, rate(250.0), rate(0.0), None, rate(30.0)]
        );
        let texts = ["served_total=0 offered_total=0", "served_total=80 offered_total=100"];
        let both = measure(MeasureKind::Throughput, 80.0, Some(100.0), None);
        assert_eq!(reports(&texts, ProbeDefaults::default()), [None, both]);
    }

    #[test]
    fn a_latency_of_counters_is_a_mean_and_without_requests_there_is_no_wait() {
        let texts = ["10 1.0", "20 1.5", "20 1.5"].map(|two| {
            let (served, time) = two.split_once(' ').unwrap();
            format!("kind=latency served_total={served} time_total={time} objective=0.1")
        });
        let latency = |served| measure(MeasureKind::Latency, served, None, Some(0.1));
        let texts = texts.each_ref().map(String::as_str);
        assert_eq!(reports(&texts, ProbeDefaults::default()), [None, latency(0.05), latency(0.0)]);
    }

    #[test]
    fn what_a_record_says_itself_counts_more_than_the_operators_terms() {
        let terms = ProbeDefaults { kind: Some(MeasureKind::Latency), objective: Some(9.0) };
        let texts = ["served=4", "served=4 objective=5 kind=throughput", "red"];
        assert_eq!(
            reports(&texts, terms),
            [
                measure(MeasureKind::Latency, 4.0, None, Some(9.0)),
                measure(MeasureKind::Throughput, 4.0, None, Some(5.0)),
                Some(ProbeReport::Colour { colour: Colour::Red }),
            ]
        );
    }

    #[test]
    fn records_that_come_together_make_no_rate_and_lose_nothing() {
        let mut meter = ProbeMeter::default();
        let mut at = |millis, total: f64| {
            let record = ProbeRecord { served_total: Some(total), ..ProbeRecord::default() };
            meter.report(&record, ProbeDefaults::default(), Micros::millis(millis))
        };
        assert_eq!((at(1_000, 0.0), at(1_010, 50.0)), (None, None));
        assert_eq!(at(2_000, 100.0), measure(MeasureKind::Throughput, 100.0, None, None));
    }
}
