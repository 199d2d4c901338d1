//! What a disk could do over the last 24 hours.

use super::super::flow::Flow;
use elbowroom_types::unit::Micros;

/// Microseconds of which the most counts, and how many of these are remembered.
const SLOT_US: u64 = 300_000_000;
const SLOTS: u64 = 288;
/// Kinds of loads that are not compared with each other.
const LOAD_CLASSES: usize = 9;

/// Per class of loads, the most of every five minutes: as the load that filled the disk, because what an operation costs may be
/// known better later.
#[derive(Debug, Default)]
pub(super) struct CapacityHistory {
    classes: [Vec<(u64, Flow)>; LOAD_CLASSES],
}

impl CapacityHistory {
    /// Remembers that this filled the disk; more or less than another load by what it costs if an operation is `theta` bytes.
    pub(super) fn record(&mut self, now: Micros, class: usize, full: Flow, theta: f64) {
        let slot = now.get() / SLOT_US;
        let slots = &mut self.classes[class];
        slots.retain(|(then, _)| slot.abs_diff(*then) < SLOTS);
        match slots.last_mut() {
            Some((then, most)) if *then == slot => {
                if full.weighted_bytes(theta) > most.weighted_bytes(theta) {
                    *most = full;
                }
            }
            _ => slots.push((slot, full)),
        }
    }

    /// The 90th percentile, in bytes per second.
    pub(super) fn normal_speed(&self, now: Micros, class: usize, theta: f64) -> Option<f64> {
        let slot = now.get() / SLOT_US;
        let fresh = self.classes[class].iter().filter(|(then, _)| slot.abs_diff(*then) < SLOTS);
        let mut speeds: Vec<f64> = fresh.map(|(_, full)| full.weighted_bytes(theta)).collect();
        speeds.sort_unstable_by(f64::total_cmp);
        speeds.get((speeds.len().saturating_sub(1) * 9).div_ceil(10)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_normal_is_weighed_by_what_is_known_now() {
        let mut history = CapacityHistory::default();
        let load = |bytes, operations| Flow([bytes, 0.0, operations, 0.0]);
        history.record(Micros::secs(1), 0, load(1000.0, 0.0), 0.0);
        history.record(Micros::secs(2), 0, load(900.0, 10.0), 0.0);
        assert_eq!(
            history.normal_speed(Micros::secs(3), 0, 4.0),
            Some(1000.0),
            "the most of its five minutes"
        );
        history.record(Micros::secs(400), 0, load(900.0, 100.0), 0.0);
        assert_eq!(history.normal_speed(Micros::secs(401), 0, 0.0), Some(1000.0), "the better of two");
        assert_eq!(history.normal_speed(Micros::secs(401), 0, 4.0), Some(1300.0));
        assert_eq!(history.normal_speed(Micros::secs(401), 1, 4.0), None);
        assert_eq!(history.normal_speed(Micros::secs(100_000), 0, 4.0), None, "a day later");
    }
}
