//! How often one addressee is told.
//!
//! Problem: a condition that comes and goes every second must not start a program every second. Five hundred containers that starve
//! at once must not send five hundred messages. A receiver that heard that something began must also hear that it ended.
//!
//! Approach: an [`Outbox`] knows what is and what its addressee was told, and gives notice of the difference.
//!
//! Properties, in any sequence of events (tested with random ones):
//!
//! 1. Of one condition, beginning and end take turns. One that became worse after it was told ends as it was, and begins anew.
//! 2. The same condition begins at most once in [`NotificationLimit::quiet`], however often it comes and goes.
//! 3. At most [`NotificationLimit::burst`] conditions begin in any [`NotificationLimit::quiet`], the worst first. The others wait, and are
//!    told when there is room, if they still last; those that do not are counted ([`Outbox::dropped`]).
//! 4. When nothing changes any more, every receiver has soon been told of exactly what lasts.

use elbowroom_types::alert::{Alert, AlertSubject};
use elbowroom_types::unit::Micros;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// How often an addressee may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotificationLimit {
    /// A condition that began is told at most once in this time.
    pub quiet: Micros,
    /// Most conditions that are told in this time.
    pub burst: usize,
}

impl Default for NotificationLimit {
    fn default() -> Self {
        Self { quiet: Micros::secs(60), burst: 30 }
    }
}

/// What is, and what one addressee was told of it.
#[derive(Debug, Default)]
pub struct Outbox {
    limit: NotificationLimit,
    conditions: BTreeMap<AlertSubject, DeliveryState>,
    /// When beginnings were told, within the last [`NotificationLimit::quiet`].
    notified_at: VecDeque<Micros>,
    dropped: u64,
}

/// One condition as the addressee knows it.
#[derive(Debug)]
struct DeliveryState {
    /// As last heard; it has ended when `until` says so.
    alert: Alert,
    /// What the last notice given said, where that was of its beginning.
    notified: Option<Alert>,
    /// When its beginning was last told.
    notified_at: Option<Micros>,
    /// There was no room to tell of it.
    is_deferred: bool,
}

impl DeliveryState {
    /// Whether its beginning is to be told: it was not, or of less than it is.
    fn needs_notice(&self) -> bool {
        self.notified.as_ref().is_none_or(|told| told.severity < self.alert.severity)
    }
}

impl Outbox {
    /// An empty one.
    pub fn new(rule: NotificationLimit) -> Self {
        Self { limit: rule, ..Self::default() }
    }

    /// Takes a beginning or an end.
    pub fn apply(&mut self, alert: &Alert) {
        match self.conditions.get_mut(&alert.subject()) {
            Some(condition) => condition.alert = alert.clone(),
            None if alert.until.is_some() => {}
            None => {
                let condition = DeliveryState {
                    alert: alert.clone(),
                    notified: None,
                    notified_at: None,
                    is_deferred: false,
                };
                self.conditions.insert(alert.subject(), condition);
            }
        }
    }

    /// Notices that are due at `now`. What began and ended between two calls is told as both where it is the first time.
    pub fn due(&mut self, now: Micros) -> Vec<Alert> {
        let quiet = self.limit.quiet;
        let lately = |at: Micros| now.saturating_sub(at) < quiet;
        while self.notified_at.front().is_some_and(|at| !lately(*at)) {
            self.notified_at.pop_front();
        }
        let mut begin: Vec<&mut DeliveryState> = self
            .conditions
            .values_mut()
            .filter(|c| match c.notified_at {
                None => c.alert.is_active() || !c.is_deferred,
                Some(at) => c.needs_notice() && c.alert.is_active() && !lately(at),
            })
            .collect();
        begin.sort_by_key(|c| (std::cmp::Reverse(c.alert.severity), c.alert.since));
        let room = self.limit.burst.saturating_sub(self.notified_at.len());
        let mut notices = Vec::new();
        for (n, condition) in begin.into_iter().enumerate() {
            if n < room {
                let begun = Alert { until: None, ..condition.alert.clone() };
                let before = condition.notified.replace(begun.clone());
                notices.extend(before.map(|before| Alert { until: Some(now), ..before }));
                notices.push(begun);
                condition.notified_at = Some(now);
                self.notified_at.push_back(now);
            } else {
                condition.is_deferred = true;
            }
        }
        self.conditions.retain(|_, condition| {
            let DeliveryState { alert, notified: told, notified_at: told_at, .. } = condition;
            if !alert.is_active() && told.take().is_some() {
                notices.push(alert.clone());
            }
            self.dropped += u64::from(!alert.is_active() && told_at.is_none());
            // What ended is kept as long as it quiets the next of its kind.
            alert.is_active() || told_at.is_some_and(lately)
        });
        notices
    }

    /// What the addressee was told of and has not been told the end of.
    pub fn notified(&self) -> impl Iterator<Item = &Alert> {
        self.conditions
            .values()
            .filter(|condition| condition.notified.is_some())
            .map(|condition| &condition.alert)
    }

    /// How many were over before there was room to tell of them.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::alert::AlertKind;
    use elbowroom_types::finding::Severity;
    use elbowroom_types::id::{CgroupId, DeviceNumber};
    use proptest::prelude::*;

    fn starved(group: u64, until: Option<u64>) -> Alert {
        let disk = Some(DeviceNumber { major: 8, minor: 0 });
        let subject =
            AlertSubject { kind: AlertKind::Starved, disk, group: Some(CgroupId(group)), topic: None };
        Alert { until: until.map(Micros::secs), ..Alert::new(subject, Micros::secs(1), String::new()) }
    }

    /// Feeds `(second, alert)` and collects what is told, as `second` and whether it began.
    fn told(outbox: &mut Outbox, input: &[(u64, Option<Alert>)]) -> Vec<(u64, bool)> {
        let mut told = Vec::new();
        for (second, alert) in input {
            alert.iter().for_each(|alert| outbox.apply(alert));
            let notices = outbox.due(Micros::secs(*second));
            told.extend(notices.iter().map(|notice| (*second, notice.is_active())));
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
        assert_eq!(told(&mut Outbox::default(), &input), [(1, true), (4, false)]);
    }

    #[test]
    fn a_condition_that_flutters_is_told_once_a_minute_and_never_left_open() {
        let input: Vec<_> =
            (0..240).map(|second| (second, Some(starved(1, (second % 2 == 1).then_some(second))))).collect();
        let told = told(&mut Outbox::default(), &input);
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
        assert_eq!(told(&mut Outbox::default(), &input), [(0, true), (5, false), (60, true)]);
    }

    #[test]
    fn a_condition_that_becomes_worse_ends_as_it_was_and_begins_anew() {
        let mut outbox = Outbox::default();
        let begun = Alert { severity: Severity::Warning, ..starved(1, None) };
        let worse = Alert { severity: Severity::Critical, ..begun.clone() };
        outbox.apply(&begun);
        assert_eq!(outbox.due(Micros::secs(1)), std::slice::from_ref(&begun));
        outbox.apply(&worse);
        assert_eq!(outbox.due(Micros::secs(2)), [], "once in a minute");
        let ended = Alert { until: Some(Micros::secs(61)), ..begun };
        assert_eq!(outbox.due(Micros::secs(61)), [ended, worse.clone()]);
        assert_eq!(outbox.due(Micros::secs(200)), []);
        let over = Alert { until: Some(Micros::secs(201)), ..worse };
        outbox.apply(&over);
        assert_eq!(outbox.due(Micros::secs(201)), [over]);
    }

    #[test]
    fn what_was_over_before_the_first_look_is_told_whole() {
        let mut outbox = Outbox::default();
        outbox.apply(&starved(1, None));
        outbox.apply(&starved(1, Some(2)));
        let ends: Vec<bool> = outbox.due(Micros::secs(2)).iter().map(|a| a.until.is_some()).collect();
        assert_eq!(ends, [false, true]);
        outbox.apply(&starved(2, Some(3)));
        assert_eq!(outbox.due(Micros::secs(3)), []);
    }

    #[test]
    fn of_many_at_once_the_worst_are_told_first_and_the_rest_when_there_is_room() {
        let rule = NotificationLimit { quiet: Micros::secs(60), burst: 3 };
        let mut outbox = Outbox::new(rule);
        for group in 0..6 {
            let severity = if group == 5 { Severity::Critical } else { Severity::Warning };
            outbox.apply(&Alert { severity, ..starved(group, None) });
        }
        let groups = |alerts: Vec<Alert>| alerts.iter().map(|a| a.group.unwrap().0).collect::<Vec<_>>();
        assert_eq!(groups(outbox.due(Micros::ZERO)), [5, 0, 1]);
        assert!(groups(outbox.due(Micros::secs(59))).is_empty());
        outbox.apply(&starved(2, Some(59)));
        assert_eq!(groups(outbox.due(Micros::secs(60))), [3, 4]);
        assert_eq!(outbox.dropped(), 1);
        assert_eq!(outbox.notified().count(), 5);
    }

    proptest! {
        #[test]
        fn the_rule_holds_whatever_happens(
            burst in 1usize..6,
            events in prop::collection::vec((0u64..20, 0u64..8, any::<bool>()), 1..300),
        ) {
            let rule = NotificationLimit { quiet: Micros::secs(60), burst };
            let mut outbox = Outbox::new(rule);
            let (mut now, mut notices, mut lasting) = (0, Vec::new(), std::collections::BTreeSet::new());
            for (pause, group, begins) in events {
                now += pause;
                if begins { lasting.insert(group); } else { lasting.remove(&group); }
                outbox.apply(&starved(group, (!begins).then_some(now)));
                notices.extend(outbox.due(Micros::secs(now)).into_iter().map(|a| (now, a.group.unwrap().0, a.is_active())));
            }
            // 4. Soon, every receiver knows what is.
            for _ in 0..9 {
                now += 60;
                notices.extend(outbox.due(Micros::secs(now)).into_iter().map(|a| (now, a.group.unwrap().0, a.is_active())));
            }
            let known: std::collections::BTreeSet<u64> = outbox.notified().map(|a| a.group.unwrap().0).collect();
            prop_assert_eq!(&known, &lasting);
            for group in 0..8 {
                let own: Vec<_> = notices.iter().filter(|n| n.1 == group).collect();
                // 1. They take turns, the beginning first.
                for (n, notice) in own.iter().enumerate() {
                    prop_assert_eq!(notice.2, n % 2 == 0);
                }
                // 2. Not too often.
                let begun: Vec<u64> = own.iter().filter(|n| n.2).map(|n| n.0).collect();
                prop_assert!(begun.windows(2).all(|pair| pair[1] - pair[0] >= 60), "{:?}", begun);
            }
            // 3. Not too many.
            let begun: Vec<u64> = notices.iter().filter(|n| n.2).map(|n| n.0).collect();
            prop_assert!(begun.windows(burst + 1).all(|of| of[burst] - of[0] >= 60), "{:?}", begun);
        }
    }

    #[test]
    fn the_outbox_forgets_what_is_over() {
        let mut outbox = Outbox::new(NotificationLimit { burst: 1_000, ..NotificationLimit::default() });
        for group in 0..100 {
            outbox.apply(&starved(group, None));
            outbox.apply(&starved(group, Some(2)));
        }
        assert_eq!(outbox.due(Micros::secs(2)).len(), 200);
        outbox.due(Micros::secs(100));
        assert!(outbox.conditions.is_empty() && outbox.notified_at.is_empty());
    }
}
