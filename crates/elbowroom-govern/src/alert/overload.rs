//! Whether the node as a whole is short of CPUs or memory.
//!
//! Problem: a busy machine is not an overloaded one. All CPUs in use is what a batch host is for, and memory that is full of cache is
//! what memory is for.
//!
//! Approach: two signs at least. CPUs are short when runnable tasks wait (`/proc/pressure/cpu`) *and* some container that is busy
//! has been taken down to its lower bound, so that nothing is left to be moved. Memory is short when tasks wait for it
//! (`/proc/pressure/memory`) *and* what is free is down to where the kernel reclaims. On a kernel without PSI the first sign is
//! that the CPUs, or the memory that is available, are used up.

use crate::alert::conditions::Conditions;
use elbowroom_types::alert::{Alert, AlertKind, AlertSubject};
use elbowroom_types::finding::{FindingEvidence, Severity};
use elbowroom_types::psi::Pressure;
use elbowroom_types::unit::{Bytes, Micros};

/// How long it has to last.
const MIN_DURATION: Micros = Micros::secs(30);
/// Waiting for a CPU, in hundredths of a percent of the last ten seconds: every fifth moment a task does.
const CPU_PRESSURE: u32 = 2_000;
/// Waiting for memory: every tenth.
const MEMORY_PRESSURE: u32 = 1_000;
/// All tasks wait for memory at once: no work is done.
const MEMORY_FULL_PRESSURE: u32 = 1_000;
/// Used part of all CPUs that leaves nothing.
const CPUS_EXHAUSTED: f64 = 0.98;
/// Available part of all memory that is nothing.
const MIN_AVAILABLE_PERCENT: u64 = 3;
/// Names in a sentence.
const MAX_NAMES: usize = 3;

/// What is looked at.
#[derive(Clone, Debug, Default)]
pub struct OverloadSignals {
    /// `/proc/pressure/cpu`, where the kernel has it.
    pub cpu: Option<Pressure>,
    /// `/proc/pressure/memory`.
    pub memory: Option<Pressure>,
    /// The part of all CPU time that was used since the last look; absent at the first.
    pub busy: Option<f64>,
    /// All containers.
    pub containers: usize,
    /// Names of those that are busy and have been taken down to a lower bound that is below their upper one.
    pub at_lower_bound: Vec<String>,
    /// `MemFree`.
    pub free: Bytes,
    /// `MemAvailable`, where it is known.
    pub available: Option<Bytes>,
    /// `MemTotal`.
    pub total: Bytes,
    /// Where the kernel starts to reclaim: the low watermarks of all zones.
    pub low_mark: Bytes,
}

/// Looks at the node, once a second or so.
#[derive(Debug, Default)]
pub struct OverloadDetector {
    conditions: Conditions,
}

impl OverloadDetector {
    /// What began or ended by now.
    pub fn check(&mut self, now: Micros, signals: &OverloadSignals) -> Vec<Alert> {
        [("cpu", cpu(signals)), ("memory", memory(signals))]
            .into_iter()
            .filter_map(|(topic, found)| {
                let subject =
                    AlertSubject { topic: Some(topic.to_owned()), ..AlertSubject::node(AlertKind::Overload) };
                match found {
                    Some(said) => self.conditions.raise(subject, now, MIN_DURATION, || said),
                    None => self.conditions.clear(&subject, now),
                }
            })
            .collect()
    }
}

type AlertDetails = (Severity, String, Vec<FindingEvidence>);

fn cpu(signals: &OverloadSignals) -> Option<AlertDetails> {
    let squeezed = &signals.at_lower_bound;
    if squeezed.is_empty() {
        return None;
    }
    let waits = match &signals.cpu {
        Some(pressure) if pressure.some.avg10 >= CPU_PRESSURE => {
            format!("tasks waited for a CPU in {} of the last 10 s", percent(pressure.some.avg10))
        }
        None if signals.busy.is_some_and(|busy| busy >= CPUS_EXHAUSTED) => "all CPUs are in use".to_owned(),
        _ => return None,
    };
    let mut names = squeezed.iter().take(MAX_NAMES).cloned().collect::<Vec<_>>().join(", ");
    if squeezed.len() > MAX_NAMES {
        names += ", ...";
    }
    let text = format!(
        "CPUs are short: {waits}, and {} of {} containers are busy at their lower bound ({names}): move some elsewhere, or give \
         the node more CPUs",
        squeezed.len(),
        signals.containers
    );
    let mut evidence = Vec::new();
    if let Some(pressure) = &signals.cpu {
        evidence.push(evidence_line("/proc/pressure/cpu some avg10", percent(pressure.some.avg10)));
    }
    if let Some(busy) = signals.busy {
        evidence.push(evidence_line("/proc/stat busy", format!("{:.0}%", busy * 100.0)));
    }
    Some((AlertKind::Overload.severity(), text, evidence))
}

fn memory(signals: &OverloadSignals) -> Option<AlertDetails> {
    let OverloadSignals { free, low_mark, total, available, .. } = *signals;
    // Page cache brings free memory down to the mark on every machine that has been up for a while; only where the kernel does not
    // say what could be had does that count.
    let none_left = match available {
        Some(left) => left.get() < total.get() / 100 * MIN_AVAILABLE_PERCENT,
        None => free <= low_mark.saturating_add(low_mark),
    };
    let (waits, severity) = match &signals.memory {
        Some(pressure) if pressure.some.avg10 >= MEMORY_PRESSURE && none_left => {
            let stalls = pressure.full.avg10 >= MEMORY_FULL_PRESSURE;
            let severity = if stalls { Severity::Critical } else { Severity::Warning };
            (format!("tasks waited for it in {} of the last 10 s", percent(pressure.some.avg10)), severity)
        }
        None if available.is_some() && none_left => ("nothing is available".to_owned(), Severity::Warning),
        _ => return None,
    };
    let text = format!(
        "memory is short: {waits}, {} of {total} can be had and the kernel reclaims below {low_mark}: move a container \
         elsewhere, or see `elbowroom memory` for what each container uses and is entitled to",
        available.unwrap_or(free)
    );
    let mut evidence = Vec::new();
    if let Some(pressure) = &signals.memory {
        evidence.push(evidence_line("/proc/pressure/memory some avg10", percent(pressure.some.avg10)));
        evidence.push(evidence_line("/proc/pressure/memory full avg10", percent(pressure.full.avg10)));
    }
    evidence.push(evidence_line("/proc/meminfo MemFree", free.to_string()));
    if let Some(available) = available {
        evidence.push(evidence_line("/proc/meminfo MemAvailable", available.to_string()));
    }
    Some((severity, text, evidence))
}

fn evidence_line(file: &str, value: String) -> FindingEvidence {
    FindingEvidence { file: file.to_owned(), value }
}

/// Hundredths of a percent as a percentage.
fn percent(hundredths: u32) -> String {
    format!("{}%", hundredths / 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::psi::Stall;

    const GIB: u64 = 1 << 30;

    fn psi(some: u32, full: u32) -> Option<Pressure> {
        let stall = |avg10| Stall { avg10, ..Stall::EMPTY };
        Some(Pressure { some: stall(some), full: stall(full) })
    }

    fn calm() -> OverloadSignals {
        OverloadSignals {
            cpu: psi(0, 0),
            memory: psi(0, 0),
            busy: Some(0.2),
            containers: 4,
            at_lower_bound: Vec::new(),
            free: Bytes(GIB),
            available: Some(Bytes(4 * GIB)),
            total: Bytes(8 * GIB),
            low_mark: Bytes(GIB / 64),
        }
    }

    /// What has begun after a minute of it.
    fn after_a_minute(signals: &OverloadSignals) -> Vec<(String, Severity)> {
        let mut overload = OverloadDetector::default();
        let said = (0..60).flat_map(|second| overload.check(Micros::secs(second), signals));
        said.map(|alert| (alert.topic.unwrap(), alert.severity)).collect()
    }

    #[test]
    fn one_sign_alone_is_no_overload() {
        let squeezed = vec!["web".to_owned()];
        for signals in [
            calm(),
            OverloadSignals { cpu: psi(9_000, 0), busy: Some(1.0), ..calm() },
            OverloadSignals { at_lower_bound: squeezed.clone(), busy: Some(1.0), ..calm() },
            OverloadSignals { cpu: None, at_lower_bound: squeezed, busy: Some(0.9), ..calm() },
            OverloadSignals { memory: psi(5_000, 2_000), ..calm() },
            OverloadSignals { free: Bytes::ZERO, ..calm() },
            OverloadSignals { free: Bytes::ZERO, memory: None, ..calm() },
            // A machine full of page cache, and a container that waits at its own limit.
            OverloadSignals { free: Bytes::ZERO, memory: psi(5_000, 2_000), ..calm() },
        ] {
            assert_eq!(after_a_minute(&signals), [], "{signals:?}");
        }
    }

    #[test]
    fn two_signs_that_stay_are() {
        let squeezed = vec!["web".to_owned(), "db".to_owned()];
        let cpu = |severity| vec![("cpu".to_owned(), severity)];
        let memory = |severity| vec![("memory".to_owned(), severity)];
        let short = OverloadSignals { free: Bytes(GIB / 128), available: Some(Bytes(GIB / 100)), ..calm() };
        for (signals, expect) in [
            (
                OverloadSignals { cpu: psi(2_000, 0), at_lower_bound: squeezed.clone(), ..calm() },
                cpu(Severity::Warning),
            ),
            (
                OverloadSignals { cpu: None, busy: Some(0.99), at_lower_bound: squeezed, ..calm() },
                cpu(Severity::Warning),
            ),
            (OverloadSignals { memory: psi(1_000, 0), ..short.clone() }, memory(Severity::Warning)),
            (OverloadSignals { memory: psi(3_000, 1_000), ..short.clone() }, memory(Severity::Critical)),
            (OverloadSignals { memory: None, ..short.clone() }, memory(Severity::Warning)),
            (OverloadSignals { memory: psi(1_000, 0), available: None, ..short }, memory(Severity::Warning)),
        ] {
            assert_eq!(after_a_minute(&signals), expect, "{signals:?}");
        }
    }

    #[test]
    fn it_says_by_which_signal_and_whom_it_hits_and_ends_when_that_is_over() {
        let mut overload = OverloadDetector::default();
        let squeezed = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let short = OverloadSignals { cpu: psi(4_312, 0), at_lower_bound: squeezed, ..calm() };
        let said: Vec<Alert> =
            (0..=30).flat_map(|second| overload.check(Micros::secs(second), &short)).collect();
        assert_eq!(
            said[0].text,
            "CPUs are short: tasks waited for a CPU in 43% of the last 10 s, and 4 of 4 containers are busy at their lower bound \
             (a, b, c, ...): move some elsewhere, or give the node more CPUs"
        );
        assert_eq!(said[0].evidence[0].file, "/proc/pressure/cpu some avg10");
        let ended: Vec<Alert> =
            (31..60).flat_map(|second| overload.check(Micros::secs(second), &calm())).collect();
        assert_eq!(ended.iter().map(|a| a.until.is_some()).collect::<Vec<_>>(), [true]);
    }
}
