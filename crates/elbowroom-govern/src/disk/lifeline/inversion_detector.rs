//! The brake: where limits of ours hold everybody up while the disk does nothing, they go.
//!
//! A throttled task can hold what others wait for: a journal's transaction, a directory, a page that is written back. Then
//! everybody stands still while the disk is idle, and no measurement of the disk shows a reason.

use elbowroom_types::unit::Micros;

/// Every task of the machine waits for more than this part of the time with fewer requests under way than this.
const FULL_STALL: f64 = 0.4;
const IDLE_QUEUE: f64 = 0.2;
/// A disk that does less than this part of what it can does little.
const LOW_USE: f64 = 0.5;
/// It has to last this many seconds.
const TRIGGER_SECONDS: f64 = 5.0;
/// Then hands stay off for this long.
const RELEASE_FOR: Micros = Micros::secs(300);

/// What may show that limits of ours hold others up. Containers that wait for their own limits do not.
#[derive(Clone, Copy, Debug)]
pub(super) struct InversionSigns {
    /// A limit of ours binds.
    pub(super) limit_binds: bool,
    /// The disk looks saturated.
    pub(super) saturated: bool,
    /// The part of the period in which every task of the machine waited for I/O; where the kernel does not count that, `None`.
    pub(super) full_stall: Option<f64>,
    /// `aq`.
    pub(super) queue: f64,
    /// The part of the disk that is used.
    pub(super) used: f64,
    /// A container that no limit holds gets less than half of what it needs, and waits.
    pub(super) unlimited_starved: bool,
    /// One such waits for something that no disk does.
    pub(super) unlimited_blocked: bool,
}

impl InversionSigns {
    fn is_inverted(&self) -> bool {
        let idle = self.full_stall.is_some_and(|waited| waited > FULL_STALL) && self.queue < IDLE_QUEUE;
        self.limit_binds
            && !self.saturated
            && (self.unlimited_blocked || (idle && (self.unlimited_starved || self.used < LOW_USE)))
    }
}

/// Watches for it.
#[derive(Debug, Default)]
pub(super) struct InversionDetector {
    inverted_seconds: f64,
    released_until: Option<Micros>,
}

impl InversionDetector {
    /// Takes in a period; whether hands are off now.
    pub(super) fn update(&mut self, now: Micros, seconds: f64, signs: &InversionSigns) -> bool {
        if let Some(until) = self.released_until {
            if now < until {
                return true;
            }
            self.released_until = None;
        }
        self.inverted_seconds = if signs.is_inverted() { self.inverted_seconds + seconds } else { 0.0 };
        if self.inverted_seconds >= TRIGGER_SECONDS {
            self.inverted_seconds = 0.0;
            self.released_until = Some(now.saturating_add(RELEASE_FOR));
        }
        self.released_until.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNS: InversionSigns = InversionSigns {
        limit_binds: true,
        saturated: false,
        full_stall: Some(0.8),
        queue: 0.05,
        used: 0.1,
        unlimited_starved: false,
        unlimited_blocked: false,
    };

    #[test]
    fn five_seconds_of_standstill_under_our_limits_take_them_off() {
        let check = |name, signs: InversionSigns, expect| {
            let mut brake = InversionDetector::default();
            let at = (1..=20).find(|second| brake.update(Micros::secs(*second), 1.0, &signs));
            assert_eq!(at, expect, "{name}");
        };
        check("idle disk, everybody waits", SIGNS, Some(5));
        check("not everybody", InversionSigns { full_stall: Some(0.3), ..SIGNS }, None);
        check("it has work", InversionSigns { queue: 0.5, ..SIGNS }, None);
        check("it is not us", InversionSigns { limit_binds: false, ..SIGNS }, None);
        check("it does what limits allow", InversionSigns { used: 0.9, ..SIGNS }, None);
        check(
            "but not for somebody without one",
            InversionSigns { used: 0.9, unlimited_starved: true, ..SIGNS },
            Some(5),
        );
        check("nobody counts", InversionSigns { full_stall: None, ..SIGNS }, None);
        let locked =
            InversionSigns { full_stall: None, queue: 0.7, used: 0.7, unlimited_blocked: true, ..SIGNS };
        check("somebody waits for no disk", locked, Some(5));
        check("a saturated disk explains all", InversionSigns { saturated: true, ..locked }, None);
    }

    #[test]
    fn hands_stay_off_for_five_minutes() {
        let mut brake = InversionDetector::default();
        let signs = |second| InversionSigns { limit_binds: second <= 5, ..SIGNS };
        let held = (1..=600).filter(|second| brake.update(Micros::secs(*second), 1.0, &signs(*second)));
        assert_eq!((held.count(), brake.released_until), (300, None));
    }
}
