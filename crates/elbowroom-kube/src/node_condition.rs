//! What of a node's alerts concerns a scheduler, and when it is told.
//!
//! Properties (tested with random sequences):
//!
//! 1. A [`Latch`] goes on only for what has lasted [`LatchTiming::hold`], and off only after [`LatchTiming::linger`] without it.
//! 2. What stays is followed: after that time the latch is what is.
//! 3. So it changes at most twice in [`LatchTiming::linger`].

use elbowroom_types::alert::AlertKind;
use elbowroom_types::unit::Micros;

/// A condition of the node, and the taint that goes with it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NodeConditionSpec {
    /// The alert behind it.
    pub(crate) kind: AlertKind,
    /// Type of the condition.
    pub(crate) condition: &'static str,
    /// Key of the taint.
    pub(crate) taint: &'static str,
    /// Reasons: while it is there, and while it is not.
    pub(crate) reasons: [&'static str; 2],
}

/// All of them.
pub(crate) const NODE_CONDITIONS: [NodeConditionSpec; 3] = [
    NodeConditionSpec {
        kind: AlertKind::Overload,
        condition: "ElbowroomOverloaded",
        taint: "elbowroom.dev/overloaded",
        reasons: ["Overload", "EnoughForAll"],
    },
    NodeConditionSpec {
        kind: AlertKind::Overcommit,
        condition: "ElbowroomOvercommitted",
        taint: "elbowroom.dev/overcommitted",
        reasons: ["Overcommit", "PromisesFit"],
    },
    NodeConditionSpec {
        kind: AlertKind::Degraded,
        condition: "ElbowroomDiskDegraded",
        taint: "elbowroom.dev/disk-degraded",
        reasons: ["Degraded", "DisksAsUsual"],
    },
];

/// When a condition is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatchTiming {
    /// It has lasted this long.
    pub(crate) hold: Micros,
    /// It is over when it has been away this long.
    pub(crate) linger: Micros,
}

/// A condition that is slow to come and slower to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Latch {
    active: bool,
    absent_since: Option<Micros>,
}

impl Latch {
    /// One that goes on where a predecessor left off.
    pub(crate) const fn resumed(on: bool) -> Self {
        Self { active: on, absent_since: None }
    }

    /// Takes what is: for how long it has lasted, `None` where it is not there. Gives what is told.
    pub(crate) fn step(&mut self, now: Micros, lasted: Option<Micros>, rule: LatchTiming) -> bool {
        match lasted {
            Some(lasted) => {
                self.absent_since = None;
                self.active |= lasted >= rule.hold;
            }
            None => {
                let since = *self.absent_since.get_or_insert(now);
                self.active &= now.saturating_sub(since) < rule.linger;
            }
        }
        self.active
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULE: LatchTiming = LatchTiming { hold: Micros::secs(3), linger: Micros::secs(5) };

    /// Plays seconds in which it is there (`#`) or not; what is told in each.
    fn play(latch: Latch, seconds: &str) -> String {
        let (mut latch, mut began) = (latch, None);
        let told = seconds.chars().enumerate().map(|(second, c)| {
            let now = Micros::secs(second as u64);
            began = (c == '#').then(|| began.unwrap_or(now));
            let lasted = began.map(|began: Micros| now.saturating_sub(began));
            if latch.step(now, lasted, RULE) { '#' } else { '.' }
        });
        told.collect()
    }

    #[test]
    fn a_latch_is_slow_to_come_and_slower_to_go() {
        let check = |seconds, expect| assert_eq!(play(Latch::default(), seconds), expect, "{seconds}");
        check(".####.......", "....######..");
        check("##.##.##.", ".........");
        check("#####..#..###.....", "...###############");
    }

    #[test]
    fn a_latch_that_goes_on_where_another_left_off_lingers_too() {
        assert_eq!(play(Latch::resumed(true), "......."), "#####..");
        assert_eq!(play(Latch::resumed(true), "...#..."), "#######");
    }

    proptest! {
        #[test]
        fn a_latch_is_what_lasts_and_changes_rarely(seconds in "[#.]{0,60}", last in "[#.]") {
            let seconds = seconds + &last.repeat(6);
            let told = play(Latch::default(), &seconds);
            prop_assert_eq!(told.chars().last(), last.chars().next());
            let changes: Vec<usize> = (1..told.len()).filter(|at| told.as_bytes()[*at] != told.as_bytes()[at - 1]).collect();
            for pair in changes.windows(3) {
                prop_assert!(pair[2] - pair[0] >= 5, "{} {}", seconds, told);
            }
        }
    }
}
