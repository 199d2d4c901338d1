//! The brake: where limits of ours hold everybody up while the disk does nothing, they go.
//!
//! A throttled task can hold what others wait for: a journal's transaction, a directory, a page that is written back. Then
//! everybody stands still while the disk is idle, and no measurement of the disk shows a reason.

use elbowroom_types::unit::Micros;

/// Every task of the machine waits for more than this part of the time with fewer requests under way than this.
const WAITED: f64 = 0.4;
const QUEUE: f64 = 0.2;
/// A disk that does less than this part of what it can does little.
const LITTLE: f64 = 0.5;
/// It has to last this many seconds.
const PATIENCE: f64 = 5.0;
/// Then hands stay off for this long.
const HOLD: Micros = Micros::secs(300);

/// What may show that limits of ours hold others up. Containers that wait for their own limits do not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signs {
    /// A limit of ours binds.
    pub(super) binds: bool,
    /// The disk looks saturated.
    pub(super) saturated: bool,
    /// The part of the period in which every task of the machine waited for I/O; where the kernel does not count that, `None`.
    pub(super) waited: Option<f64>,
    /// `aq`.
    pub(super) queue: f64,
    /// The part of the disk that is used.
    pub(super) used: f64,
    /// A container that no limit holds gets less than half of what it needs, and waits.
    pub(super) held_up: bool,
    /// One such waits for something that no disk does.
    pub(super) blocked: bool,
}

impl Signs {
    fn inverted(&self) -> bool {
        let idle = self.waited.is_some_and(|waited| waited > WAITED) && self.queue < QUEUE;
        self.binds && !self.saturated && (self.blocked || (idle && (self.held_up || self.used < LITTLE)))
    }
}

/// Watches for it.
#[derive(Debug, Default)]
pub(super) struct Brake {
    seconds: f64,
    until: Option<Micros>,
}

impl Brake {
    /// Takes in a period; whether hands are off now.
    pub(super) fn step(&mut self, now: Micros, seconds: f64, signs: &Signs) -> bool {
        if let Some(until) = self.until {
            if now < until {
                return true;
            }
            self.until = None;
        }
        self.seconds = if signs.inverted() { self.seconds + seconds } else { 0.0 };
        if self.seconds >= PATIENCE {
            self.seconds = 0.0;
            self.until = Some(now.saturating_add(HOLD));
        }
        self.until.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNS: Signs = Signs {
        binds: true,
        saturated: false,
        waited: Some(0.8),
        queue: 0.05,
        used: 0.1,
        held_up: false,
        blocked: false,
    };

    #[test]
    fn five_seconds_of_standstill_under_our_limits_take_them_off() {
        let check = |name, signs: Signs, expect| {
            let mut brake = Brake::default();
            let at = (1..=20).find(|second| brake.step(Micros::secs(*second), 1.0, &signs));
            assert_eq!(at, expect, "{name}");
        };
        check("idle disk, everybody waits", SIGNS, Some(5));
        check("not everybody", Signs { waited: Some(0.3), ..SIGNS }, None);
        check("it has work", Signs { queue: 0.5, ..SIGNS }, None);
        check("it is not us", Signs { binds: false, ..SIGNS }, None);
        check("it does what limits allow", Signs { used: 0.9, ..SIGNS }, None);
        check("but not for somebody without one", Signs { used: 0.9, held_up: true, ..SIGNS }, Some(5));
        check("nobody counts", Signs { waited: None, ..SIGNS }, None);
        let locked = Signs { waited: None, queue: 0.7, used: 0.7, blocked: true, ..SIGNS };
        check("somebody waits for no disk", locked, Some(5));
        check("a saturated disk explains all", Signs { saturated: true, ..locked }, None);
    }

    #[test]
    fn hands_stay_off_for_five_minutes() {
        let mut brake = Brake::default();
        let signs = |second| Signs { binds: second <= 5, ..SIGNS };
        let held = (1..=600).filter(|second| brake.step(Micros::secs(*second), 1.0, &signs(*second)));
        assert_eq!((held.count(), brake.until), (300, None));
    }
}
