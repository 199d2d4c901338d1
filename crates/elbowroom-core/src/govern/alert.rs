//! What an operator should hear of: conditions that begin, last and end; and how often.
//!
//! A condition that comes and goes every second must not start a program every second, and whoever heard that it began must
//! also hear that it ended. [`Board`] sees to both: it knows what is and what was told, and gives notice of the difference.

use crate::sample::{DeviceNumber, GroupId};
use crate::unit::Micros;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A condition that began is told at most once in this time, however often it comes and goes meanwhile.
pub const QUIET: Micros = Micros::secs(60);

/// A condition that began or ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// What is wrong.
    pub kind: Kind,
    /// On which disk.
    pub disk: Option<DeviceNumber>,
    /// For which container; `None` where it concerns all that share the resource.
    pub group: Option<GroupId>,
    /// When it began, on the monotonic clock.
    pub since: Micros,
    /// When it ended; `None` while it lasts.
    pub until: Option<Micros>,
    /// One sentence with the numbers that decided, and what to do.
    pub text: String,
}

/// What can be wrong. Two alerts of one kind about the same disk and container are the same condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Kind {
    /// More was promised than there is: lifelines and reservations add up to more than the capacity (Aridac: the sum of caps
    /// is above 1). The paper's remedy is to scale: a faster disk, or a container elsewhere.
    Overcommit,
    /// The disk is slower than it used to be.
    Degraded,
    /// A container gets less than its lifeline although it wants it.
    Starved,
    /// A container's I/O cannot be limited here: buffered writes on cgroup v1, a file system without cgroup writeback.
    Uncappable,
    /// Limits of ours slowed down everybody while the disk was idle; they were taken off.
    Inversion,
    /// Somebody else wrote a limit that was ours: it is theirs now.
    ForeignWriter,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::Overcommit,
        Self::Degraded,
        Self::Starved,
        Self::Uncappable,
        Self::Inversion,
        Self::ForeignWriter,
    ];
}

impl fmt::Display for Kind {
    /// `OVERCOMMIT`, as in configuration, metrics and hooks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Overcommit => "OVERCOMMIT",
            Self::Degraded => "DEGRADED",
            Self::Starved => "STARVED",
            Self::Uncappable => "UNCAPPABLE",
            Self::Inversion => "INVERSION",
            Self::ForeignWriter => "FOREIGN_WRITER",
        })
    }
}

/// What is, and what was told of it.
#[derive(Debug, Default)]
pub struct Board {
    conditions: BTreeMap<(Kind, Option<DeviceNumber>, Option<GroupId>), Condition>,
}

/// One condition on the board.
#[derive(Debug)]
struct Condition {
    /// As last heard; it has ended when `until` says so.
    alert: Alert,
    /// Whether the last notice given was of its beginning.
    told: bool,
    /// When its beginning was last told.
    told_at: Option<Micros>,
}

impl Board {
    /// Takes a beginning or an end to the board.
    pub fn apply(&mut self, alert: Alert) {
        let key = (alert.kind, alert.disk, alert.group);
        match self.conditions.get_mut(&key) {
            Some(condition) => condition.alert = alert,
            None if alert.until.is_some() => {}
            None => {
                self.conditions.insert(key, Condition { alert, told: false, told_at: None });
            }
        }
    }

    /// Notices that are due at `now`: beginnings nobody was told of for [`QUIET`], and the ends of those that were told. What
    /// began and ended between two calls is told as both where it is the first time.
    pub fn due(&mut self, now: Micros) -> Vec<Alert> {
        let mut notices = Vec::new();
        self.conditions.retain(|_, condition| {
            let Condition { alert, told, told_at } = condition;
            let quiet = told_at.is_some_and(|at| now.saturating_sub(at) < QUIET);
            let lasts = alert.until.is_none();
            if !*told && (told_at.is_none() || lasts && !quiet) {
                notices.push(Alert { until: None, ..alert.clone() });
                (*told, *told_at) = (true, Some(now));
            }
            if *told && !lasts {
                notices.push(alert.clone());
                *told = false;
            }
            // What ended is kept as long as it quiets the next of its kind.
            lasts || told_at.is_some_and(|at| now.saturating_sub(at) < QUIET)
        });
        notices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starved(group: u64, until: Option<u64>) -> Alert {
        Alert {
            kind: Kind::Starved,
            disk: Some(DeviceNumber { major: 8, minor: 0 }),
            group: Some(GroupId(group)),
            since: Micros::secs(1),
            until: until.map(Micros::secs),
            text: String::new(),
        }
    }

    /// Feeds `(second, alert)` and collects what is told, as `second` and whether it began.
    fn told(board: &mut Board, input: &[(u64, Option<Alert>)]) -> Vec<(u64, bool)> {
        let mut told = Vec::new();
        for (second, alert) in input {
            alert.iter().for_each(|alert| board.apply(alert.clone()));
            let notices = board.due(Micros::secs(*second));
            told.extend(notices.iter().map(|notice| (*second, notice.until.is_none())));
        }
        told
    }

    #[test]
    fn a_beginning_and_an_end_are_told_once() {
        let input = [
            (1, Some(starved(1, None))),
            (2, Some(starved(1, None))),
            (3, None),
            (4, Some(starved(1, Some(4)))),
            (5, None),
        ];
        assert_eq!(told(&mut Board::default(), &input), [(1, true), (4, false)]);
    }

    #[test]
    fn a_condition_that_flutters_is_told_once_a_minute_and_never_left_open() {
        let mut board = Board::default();
        let input: Vec<_> =
            (0..240).map(|second| (second, Some(starved(1, (second % 2 == 1).then_some(second))))).collect();
        let told = told(&mut board, &input);
        let begun: Vec<u64> = told.iter().filter(|(_, begun)| *begun).map(|(at, _)| *at).collect();
        assert_eq!(begun, [0, 60, 120, 180]);
        assert_eq!(told.iter().filter(|(_, begun)| !begun).count(), 4);
        assert!(told.windows(2).all(|pair| pair[0].1 != pair[1].1), "{told:?}");
    }

    #[test]
    fn a_condition_that_came_back_in_quiet_and_stayed_is_told_when_that_ends() {
        let input = [
            (0, Some(starved(1, None))),
            (5, Some(starved(1, Some(5)))),
            (10, Some(starved(1, None))),
            (59, None),
            (60, None),
            (61, None),
        ];
        assert_eq!(told(&mut Board::default(), &input), [(0, true), (5, false), (60, true)]);
    }

    #[test]
    fn what_was_over_before_anybody_looked_is_told_whole() {
        let mut board = Board::default();
        board.apply(starved(1, None));
        board.apply(starved(1, Some(2)));
        assert_eq!(
            board.due(Micros::secs(2)).iter().map(|a| a.until.is_some()).collect::<Vec<_>>(),
            [false, true]
        );
        board.apply(starved(2, Some(3)));
        assert_eq!(board.due(Micros::secs(3)), []);
    }

    #[test]
    fn the_board_forgets_what_is_over() {
        let mut board = Board::default();
        for group in 0..100 {
            board.apply(starved(group, None));
            board.apply(starved(group, Some(2)));
        }
        assert_eq!(board.due(Micros::secs(2)).len(), 200);
        board.due(Micros::secs(100));
        assert!(board.conditions.is_empty());
    }
}
