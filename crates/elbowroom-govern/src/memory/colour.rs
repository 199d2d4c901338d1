//! How a container is doing: what its probe says, else what the kernel shows.
//!
//! # Approach
//! A probe's numbers become one, `sigma`: what is served over what should be, so that 1 is the objective met. Red is told at once,
//! green has to last for three periods: what helps others may be late, what hurts may not. Between the two lies a dead band, the
//! objective met and more wanted, so that no measurement noise turns red into green.

use super::meter::MemoryMeter;
use super::to_f64;
use super::tuning::TUNING;
use elbowroom_types::claim::{Claim, ServiceClass};
use elbowroom_types::probe::{Colour, Measure, MeasureKind, ProbeReport};
use elbowroom_types::unit::Bytes;
use serde::{Deserialize, Serialize};

/// What a colour was made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ColourSource {
    /// It was not watched for long enough.
    #[default]
    Unknown,
    /// Its probe.
    Probe,
    /// Stalls, for it has no probe or that is silent.
    Stalls,
    /// Refaults, for this kernel counts no stalls.
    Refaults,
}

/// A judgement of one period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Judgement {
    pub(super) colour: Colour,
    pub(super) source: ColourSource,
    /// What is served over what should be, where a probe says.
    pub(super) sigma: Option<f64>,
    /// What is asked of it, where a probe says; nothing for a latency, which says little about that.
    pub(super) load: Option<f64>,
}

impl Default for Judgement {
    fn default() -> Self {
        Self { colour: Colour::Yellow, source: ColourSource::Unknown, sigma: None, load: None }
    }
}

/// Judges a period by a probe's record where there is one that says something, else by what the kernel shows.
pub(super) fn judge(report: Option<&ProbeReport>, claim: &Claim, meter: &MemoryMeter) -> Judgement {
    let told = report.and_then(|report| match report {
        ProbeReport::Colour { colour } => Some((*colour, None, None)),
        ProbeReport::Measure(measure) => {
            let counts_throughput = measure.kind == MeasureKind::Throughput;
            let has_idle_time =
                counts_throughput && claim.class == ServiceClass::Throughput && meter.has_idle_time();
            let calm = is_unstalled(claim.class, meter) || has_idle_time;
            let load = measure.offered.filter(|_| counts_throughput);
            by_measure(measure, claim.memory.objective, calm)
                .map(|(colour, sigma)| (colour, Some(sigma), load))
        }
    });
    if let Some((colour, sigma, load)) = told {
        return Judgement { colour, source: ColourSource::Probe, sigma, load };
    }
    let (colour, source) = match (meter.is_settled(), meter.stall(), meter.stall_minute()) {
        (false, ..) => (Colour::Yellow, ColourSource::Unknown),
        (true, Some(stall), Some(minute)) => {
            (by_stall(claim.class, stall, minute, meter.refault()), ColourSource::Stalls)
        }
        (true, ..) => (by_refaults(meter), ColourSource::Refaults),
    };
    // A container that grows has use for more, though it waits for nothing yet: what it reads for the first time is no refault.
    let colour = if colour == Colour::Green && meter.is_growing() { Colour::Yellow } else { colour };
    Judgement { colour, source, sigma: None, load: None }
}

/// Whether it waits for memory so little that whatever it does less than it should is not for want of that.
fn is_unstalled(class: ServiceClass, meter: &MemoryMeter) -> bool {
    let unnoticed = match class {
        ServiceClass::Latency => TUNING.tolerated_stall / 4.0,
        ServiceClass::Throughput => TUNING.tolerated_stall,
    };
    meter.stall().map_or(is_none(meter.refault()), |stall| stall < unnoticed)
}

/// Colour and `sigma`; `None` where the numbers say nothing. A container that does not say how much is asked of it, and is `calm`, serves
/// all that is asked: little, where that is less than its objective. It waits for nothing, or, where throughput is what counts, it has
/// nothing to do for a part of the time.
fn by_measure(measure: &Measure, objective: Option<f64>, calm: bool) -> Option<(Colour, f64)> {
    let sane = |x: f64| (x.is_finite() && x >= 0.0).then_some(x);
    let objective = measure.objective.or(objective).and_then(sane);
    let served = sane(measure.served)?;
    let offered = measure.offered.and_then(sane);
    match measure.kind {
        MeasureKind::Throughput => {
            objective.or(offered)?;
            let offered = offered.or(calm.then_some(served));
            let due = objective.into_iter().chain(offered).reduce(f64::min)?;
            let sigma = if due > 0.0 { served / due } else { 1.0 };
            let all = offered.is_some_and(|offered| served >= offered * (1.0 - TUNING.missed));
            Some((colour(sigma, all), sigma))
        }
        MeasureKind::Latency => {
            let objective = objective.filter(|objective| *objective > 0.0)?;
            // Nothing was served, perhaps for want of memory: a latency of nothing says nothing.
            if served == 0.0 && offered != Some(0.0) && !calm {
                return None;
            }
            let sigma = if served > 0.0 { objective / served } else { 1.0 / TUNING.relaxed_latency };
            Some((colour(sigma, served <= TUNING.relaxed_latency * objective || offered == Some(0.0)), sigma))
        }
    }
}

fn colour(sigma: f64, all_served: bool) -> Colour {
    match sigma {
        _ if sigma < 1.0 - TUNING.missed => Colour::Red,
        _ if all_served => Colour::Green,
        _ => Colour::Yellow,
    }
}

fn by_stall(class: ServiceClass, stall: f64, minute: f64, refault: Bytes) -> Colour {
    let green = match class {
        ServiceClass::Latency => minute < TUNING.unnoticed_stall && stall < TUNING.tolerated_stall / 4.0,
        ServiceClass::Throughput => stall < TUNING.tolerated_stall,
    };
    match stall {
        _ if stall > TUNING.harmful_stall && !is_none(refault) => Colour::Red,
        _ if green => Colour::Green,
        _ => Colour::Yellow,
    }
}

/// Less back from reclaim in ten periods is none.
fn is_none(refault: Bytes) -> bool {
    to_f64(refault) < TUNING.min_amount
}

/// A kernel without pressure stall information: a container that reads back a hundredth of its memory every period needs more.
pub(super) fn by_refaults(meter: &MemoryMeter) -> Colour {
    let back = meter.refault_mean();
    match back / (meter.last().usage.get().max(1) as f64) {
        part if part > TUNING.pressing / 10.0 && !is_none(meter.refault()) => Colour::Red,
        _ if is_none(meter.refault()) => Colour::Green,
        _ => Colour::Yellow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Colour::{Green, Red, Yellow};

    fn throughput(served: f64, offered: Option<f64>, objective: Option<f64>) -> Measure {
        Measure { kind: MeasureKind::Throughput, served, offered, objective }
    }

    #[test]
    fn a_throughput_is_judged_by_what_was_asked_and_promised() {
        let check = |served, offered, objective, expect| {
            let got =
                by_measure(&throughput(served, offered, objective), None, true).map(|(colour, _)| colour);
            assert_eq!(got, expect, "{served} of {offered:?} for {objective:?}");
        };
        check(700.0, Some(1000.0), Some(800.0), Some(Red));
        check(790.0, Some(1000.0), Some(800.0), Some(Yellow));
        check(990.0, Some(1000.0), Some(800.0), Some(Green));
        check(100.0, Some(100.0), Some(800.0), Some(Green));
        check(90.0, Some(100.0), Some(800.0), Some(Red));
        check(0.0, Some(0.0), Some(800.0), Some(Green));
        check(900.0, None, Some(800.0), Some(Green));
        check(900.0, Some(1000.0), None, Some(Red));
        check(900.0, None, None, None);
        check(f64::NAN, Some(1.0), Some(1.0), None);
        check(-1.0, Some(1.0), Some(1.0), None);
        check(900.0, Some(f64::INFINITY), Some(800.0), Some(Green));
    }

    #[test]
    fn the_objective_of_the_configuration_counts_where_the_probe_has_none() {
        let got = by_measure(&throughput(700.0, None, None), Some(800.0), false);
        assert_eq!(got, Some((Red, 0.875)));
        let got = by_measure(&throughput(700.0, None, Some(600.0)), Some(800.0), false);
        assert_eq!(got.map(|(colour, _)| colour), Some(Yellow), "waiting for memory is not green");
    }

    #[test]
    fn a_container_asked_for_little_that_waits_for_nothing_misses_nothing() {
        let idle = throughput(1.0, None, Some(800.0));
        assert_eq!(by_measure(&idle, None, true), Some((Green, 1.0)));
        assert_eq!(by_measure(&idle, None, false), Some((Red, 1.0 / 800.0)));
        assert_eq!(by_measure(&throughput(900.0, None, None), None, true), None, "no objective says nothing");
    }

    #[test]
    fn a_latency_is_better_small() {
        let check = |served, offered, expect| {
            let measure = Measure { kind: MeasureKind::Latency, served, offered, objective: Some(10.0) };
            assert_eq!(by_measure(&measure, None, true).map(|(colour, _)| colour), Some(expect), "{served}");
        };
        check(12.0, None, Red);
        check(10.0, None, Yellow);
        check(7.0, None, Green);
        check(0.0, None, Green);
        check(9.0, Some(0.0), Green);
    }

    #[test]
    fn a_container_that_waits_for_memory_and_serves_nothing_has_no_good_latency() {
        let of = |offered, calm| {
            let measure = Measure { kind: MeasureKind::Latency, served: 0.0, offered, objective: Some(10.0) };
            by_measure(&measure, None, calm).map(|(colour, _)| colour)
        };
        assert_eq!((of(None, false), of(Some(3.0), false)), (None, None));
        assert_eq!((of(None, true), of(Some(0.0), false)), (Some(Green), Some(Green)));
    }

    #[test]
    fn stalls_without_refaults_are_not_for_memory() {
        let check = |class, stall, minute, refault, expect| {
            assert_eq!(
                by_stall(class, stall, minute, Bytes::mib(refault)),
                expect,
                "{class:?} {stall} {minute}"
            );
        };
        check(ServiceClass::Throughput, 0.2, 0.1, 100, Red);
        check(ServiceClass::Throughput, 0.2, 0.1, 0, Yellow);
        check(ServiceClass::Throughput, 0.01, 0.1, 100, Green);
        check(ServiceClass::Latency, 0.01, 0.0005, 0, Yellow);
        check(ServiceClass::Latency, 0.002, 0.0005, 0, Green);
        check(ServiceClass::Latency, 0.0005, 0.1, 0, Yellow);
    }
}
