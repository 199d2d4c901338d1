//! Conditions that begin, last and end.

use super::Order;
use crate::govern::alert::{Alert, Kind};
use crate::sample::{DeviceNumber, GroupId};
use crate::unit::Micros;
use std::collections::BTreeMap;

/// How long a condition has to be away before its alert ends, so that one that flickers is one alert.
const LINGER: Micros = Micros::secs(10);

/// What an alert is about.
type Subject = (Option<DeviceNumber>, Option<GroupId>, Kind);

/// All conditions that are there, whether they have lasted long enough or not.
#[derive(Debug, Default)]
pub(super) struct Alerts {
    conditions: BTreeMap<Subject, Condition>,
}

#[derive(Debug)]
struct Condition {
    since: Micros,
    last: Micros,
    /// Once it has lasted long enough.
    alert: Option<Alert>,
}

impl Alerts {
    /// Says whether a condition is there now. Its alert begins when it has been there for `hold`, and ends when it has been
    /// away for a while.
    pub(super) fn set(
        &mut self,
        (kind, disk, group): (Kind, Option<DeviceNumber>, Option<GroupId>),
        now: Micros,
        there: bool,
        hold: Micros,
        text: impl FnOnce() -> String,
    ) -> Option<Order> {
        let subject = (disk, group, kind);
        if !there {
            return self.away(subject, now);
        }
        let condition =
            self.conditions.entry(subject).or_insert(Condition { since: now, last: now, alert: None });
        condition.last = now;
        if condition.alert.is_some() || now.saturating_sub(condition.since) < hold {
            return None;
        }
        let alert = Alert { kind, disk, group, since: condition.since, until: None, text: text() };
        condition.alert = Some(alert.clone());
        Some(Order::Alert(alert))
    }

    /// Ends everything about these at once.
    pub(super) fn forget(
        &mut self,
        now: Micros,
        about: impl Fn(Option<DeviceNumber>, Option<GroupId>) -> bool,
    ) -> Vec<Order> {
        let mut ended = Vec::new();
        self.conditions.retain(|(disk, group, _), condition| {
            let stays = !about(*disk, *group);
            if !stays && let Some(alert) = condition.alert.take() {
                ended.push(Order::Alert(Alert { until: Some(now), ..alert }));
            }
            stays
        });
        ended
    }

    /// Those that last.
    pub(super) fn lasting(&self) -> impl Iterator<Item = &Alert> {
        self.conditions.values().filter_map(|condition| condition.alert.as_ref())
    }

    fn away(&mut self, subject: Subject, now: Micros) -> Option<Order> {
        let condition = self.conditions.get(&subject)?;
        if condition.alert.is_some() && now.saturating_sub(condition.last) < LINGER {
            return None;
        }
        let alert = self.conditions.remove(&subject)?.alert?;
        Some(Order::Alert(Alert { until: Some(now), ..alert }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOUT: (Kind, Option<DeviceNumber>, Option<GroupId>) = (Kind::Starved, None, Some(GroupId(1)));

    /// Plays seconds of a condition that is there (`#`) or not; what was said in each: begin, end, nothing.
    fn play(hold: u64, seconds: &str) -> String {
        let mut alerts = Alerts::default();
        let said = seconds.chars().enumerate().map(|(second, c)| {
            let now = Micros::secs(second as u64);
            match alerts.set(ABOUT, now, c == '#', Micros::secs(hold), || "text".into()) {
                Some(Order::Alert(Alert { until: None, .. })) => '(',
                Some(_) => ')',
                None => '.',
            }
        });
        said.collect()
    }

    #[test]
    fn an_alert_begins_after_its_hold_and_ends_after_a_while() {
        let check = |hold, seconds, expect| assert_eq!(play(hold, seconds), expect, "{seconds}");
        check(0, " ## #           ", ".(............).");
        check(2, " ## ###           ", "......(.........).");
    }

    #[test]
    fn what_is_gone_has_no_alerts() {
        let mut alerts = Alerts::default();
        alerts.set(ABOUT, Micros::secs(1), true, Micros::ZERO, || "text".into());
        assert_eq!(alerts.lasting().count(), 1);
        assert_eq!(alerts.forget(Micros::secs(2), |_, group| group == Some(GroupId(2))), []);
        let ended = alerts.forget(Micros::secs(2), |_, group| group == Some(GroupId(1)));
        assert!(
            matches!(&ended[..], [Order::Alert(Alert { until: Some(Micros(2_000_000)), .. })]),
            "{ended:?}"
        );
        assert_eq!(alerts.lasting().count(), 0);
    }
}
