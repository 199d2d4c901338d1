//! Conditions that begin, last and end.

use elbowroom_types::alert::{Alert, Kind, Subject};
use elbowroom_types::finding::{Evidence, Severity};
use elbowroom_types::sample::{DeviceNumber, GroupId};
use elbowroom_types::unit::Micros;
use std::collections::BTreeMap;

/// How long a condition has to be away before its alert ends, so that one that flickers is one alert.
const LINGER: Micros = Micros::secs(10);

/// All conditions that are there, whether they have lasted long enough or not.
#[derive(Debug, Default)]
pub struct Conditions {
    conditions: BTreeMap<Subject, Condition>,
}

#[derive(Debug)]
struct Condition {
    since: Micros,
    last: Micros,
    /// Once it has lasted long enough.
    alert: Option<Alert>,
}

impl Conditions {
    /// Says whether a condition is there now. Its alert begins when it has been there for `hold`, and ends when it has been
    /// away for a while.
    pub fn set(
        &mut self,
        (kind, disk, group): (Kind, Option<DeviceNumber>, Option<GroupId>),
        now: Micros,
        there: bool,
        hold: Micros,
        text: impl FnOnce() -> String,
    ) -> Option<Alert> {
        let subject = Subject { kind, disk, group, topic: None };
        if !there {
            return self.away(&subject, now);
        }
        self.there(subject, now, hold, || (kind.severity(), text(), Vec::new()))
    }

    /// The condition is there now; `say` is asked for its words. One that lasts and has become worse begins once more, with what is
    /// said then: who wanted to hear only of the worst hears of it now. It does not become better before it ends, so that its end
    /// reaches whoever heard of it.
    pub fn there(
        &mut self,
        subject: Subject,
        now: Micros,
        hold: Micros,
        say: impl FnOnce() -> (Severity, String, Vec<Evidence>),
    ) -> Option<Alert> {
        let condition = self.conditions.entry(subject.clone()).or_insert(Condition {
            since: now,
            last: now,
            alert: None,
        });
        condition.last = now;
        if condition.alert.is_none() && now.saturating_sub(condition.since) < hold {
            return None;
        }
        let (severity, text, evidence) = say();
        if condition.alert.as_ref().is_some_and(|alert| alert.severity >= severity) {
            return None;
        }
        let alert = Alert { severity, evidence, ..Alert::new(subject, condition.since, text) };
        condition.alert = Some(alert.clone());
        Some(alert)
    }

    /// What was not there at `now`, when everything that is there was told, is away: also what nobody can look at any more.
    pub fn rest(&mut self, now: Micros) -> Vec<Alert> {
        let unsaid = self.conditions.iter().filter(|(_, condition)| condition.last < now);
        let unsaid: Vec<Subject> = unsaid.map(|(subject, _)| subject.clone()).collect();
        unsaid.iter().filter_map(|subject| self.away(subject, now)).collect()
    }

    /// Ends everything about these at once.
    pub fn forget(
        &mut self,
        now: Micros,
        about: impl Fn(Option<DeviceNumber>, Option<GroupId>) -> bool,
    ) -> Vec<Alert> {
        let mut ended = Vec::new();
        self.conditions.retain(|subject, condition| {
            let stays = !about(subject.disk, subject.group);
            if !stays && let Some(alert) = condition.alert.take() {
                ended.push(Alert { until: Some(now), ..alert });
            }
            stays
        });
        ended
    }

    /// Those that last.
    pub fn lasting(&self) -> impl Iterator<Item = &Alert> {
        self.conditions.values().filter_map(|condition| condition.alert.as_ref())
    }

    /// The condition is not there now.
    pub fn away(&mut self, subject: &Subject, now: Micros) -> Option<Alert> {
        let condition = self.conditions.get(subject)?;
        if condition.alert.is_some() && now.saturating_sub(condition.last) < LINGER {
            return None;
        }
        let alert = self.conditions.remove(subject)?.alert?;
        Some(Alert { until: Some(now), ..alert })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOUT: (Kind, Option<DeviceNumber>, Option<GroupId>) = (Kind::Starved, None, Some(GroupId(1)));

    /// Plays seconds of a condition that is there (`#`) or not; what was said in each: begin, end, nothing.
    fn play(hold: u64, seconds: &str) -> String {
        let mut alerts = Conditions::default();
        let said = seconds.chars().enumerate().map(|(second, c)| {
            let now = Micros::secs(second as u64);
            match alerts.set(ABOUT, now, c == '#', Micros::secs(hold), || "text".into()) {
                Some(Alert { until: None, .. }) => '(',
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
    fn what_becomes_worse_is_said_again_and_never_becomes_better() {
        let mut alerts = Conditions::default();
        let subject = Subject { topic: Some("memory".into()), ..Subject::node(Kind::Overload) };
        let mut there = |second, severity| {
            let say = || (severity, format!("{severity:?}"), Vec::new());
            let said = alerts.there(subject.clone(), Micros::secs(second), Micros::secs(2), say);
            said.map(|alert| (alert.severity, alert.text, alert.since))
        };
        let said = |severity: Severity| Some((severity, format!("{severity:?}"), Micros::secs(1)));
        assert_eq!(there(1, Severity::Critical), None, "it has not lasted");
        assert_eq!(there(3, Severity::Warning), said(Severity::Warning));
        assert_eq!(there(4, Severity::Warning), None);
        assert_eq!(there(5, Severity::Critical), said(Severity::Critical));
        assert_eq!(there(6, Severity::Warning), None);
        let ended = alerts.away(&subject, Micros::secs(60)).unwrap();
        assert_eq!((ended.severity, ended.until), (Severity::Critical, Some(Micros::secs(60))));
    }

    #[test]
    fn what_nobody_speaks_of_any_more_ends_after_a_while() {
        let mut alerts = Conditions::default();
        let other = (Kind::Overcommit, None, None);
        for second in 1..30 {
            let now = Micros::secs(second);
            alerts.set(ABOUT, now, true, Micros::ZERO, || "text".into());
            if second < 5 {
                alerts.set(other, now, true, Micros::ZERO, || "text".into());
            }
            let ended = alerts.rest(now);
            assert_eq!(ended.len(), usize::from(second == 14), "{second}: {ended:?}");
        }
        assert_eq!(alerts.lasting().map(|alert| alert.kind).collect::<Vec<_>>(), [Kind::Starved]);
    }

    #[test]
    fn what_is_gone_has_no_alerts() {
        let mut alerts = Conditions::default();
        alerts.set(ABOUT, Micros::secs(1), true, Micros::ZERO, || "text".into());
        assert_eq!(alerts.lasting().count(), 1);
        assert_eq!(alerts.forget(Micros::secs(2), |_, group| group == Some(GroupId(2))), []);
        let ended = alerts.forget(Micros::secs(2), |_, group| group == Some(GroupId(1)));
        assert!(matches!(&ended[..], [Alert { until: Some(Micros(2_000_000)), .. }]), "{ended:?}");
        assert_eq!(alerts.lasting().count(), 0);
    }
}
