//! Conditions that begin, last and end.

use elbowroom_types::alert::{Alert, AlertKind, AlertSubject, CLAIMS_TOPIC};
use elbowroom_types::finding::{FindingEvidence, Severity};
use elbowroom_types::id::{CgroupId, DeviceNumber};
use elbowroom_types::unit::Micros;
use std::collections::BTreeMap;

/// How long a condition has to be away before its alert ends, so that a condition that flickers is a single alert.
const END_DELAY: Micros = Micros::secs(10);

/// All conditions that are there, whether they have lasted long enough or not.
#[derive(Debug, Default)]
pub struct Conditions {
    conditions: BTreeMap<AlertSubject, ActiveCondition>,
}

#[derive(Debug)]
struct ActiveCondition {
    since: Micros,
    last_seen: Micros,
    /// Once it has lasted long enough.
    alert: Option<Alert>,
}

impl Conditions {
    /// Says whether a condition is there now. Its alert begins when it has been there for `hold`, and ends when it has been
    /// away for a while.
    pub fn set(
        &mut self,
        (kind, disk, group): (AlertKind, Option<DeviceNumber>, Option<CgroupId>),
        now: Micros,
        there: bool,
        hold: Micros,
        text: impl FnOnce() -> String,
    ) -> Option<Alert> {
        let subject = AlertSubject { kind, disk, group, topic: None };
        if !there {
            return self.clear(&subject, now);
        }
        self.raise(subject, now, hold, || (kind.severity(), text(), Vec::new()))
    }

    /// Says how much is promised of what there is (1), and how much of it without what containers claim for themselves.
    pub(crate) fn set_overcommit(
        &mut self,
        (disk, group): (Option<DeviceNumber>, Option<CgroupId>),
        now: Micros,
        [promised, without_claims]: [f64; 2],
        hold: Micros,
        text: &dyn Fn() -> String,
    ) -> impl Iterator<Item = Alert> + use<> {
        let kind = AlertKind::Overcommit;
        let nodes = self.set((kind, disk, group), now, without_claims > 1.0, hold, text);
        let subject = AlertSubject { kind, disk, group, topic: Some(CLAIMS_TOPIC.to_owned()) };
        let claims = match promised > 1.0 && without_claims <= 1.0 {
            true => self.raise(subject, now, hold, || (kind.severity(), text(), Vec::new())),
            false => self.clear(&subject, now),
        };
        nodes.into_iter().chain(claims)
    }

    /// The condition is there now; `say` is asked for its words. One that lasts and has become worse begins once more, with what is
    /// said then: a receiver of only the worst hears of it now. It does not become better before it ends, so that its end
    /// reaches every receiver that heard of it.
    pub fn raise(
        &mut self,
        subject: AlertSubject,
        now: Micros,
        hold: Micros,
        say: impl FnOnce() -> (Severity, String, Vec<FindingEvidence>),
    ) -> Option<Alert> {
        let condition = self.conditions.entry(subject.clone()).or_insert(ActiveCondition {
            since: now,
            last_seen: now,
            alert: None,
        });
        condition.last_seen = now;
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

    /// Renews the words of an alert that lasts; `None` where they are the same, or there is none.
    pub fn update_text(&mut self, subject: &AlertSubject, text: &str) -> Option<Alert> {
        let alert = self.conditions.get_mut(subject)?.alert.as_mut().filter(|alert| alert.text != text)?;
        text.clone_into(&mut alert.text);
        Some(alert.clone())
    }

    /// What was not there at `now`, when everything that is there was told, is away: also what cannot be looked at any more.
    pub fn clear_unseen(&mut self, now: Micros) -> Vec<Alert> {
        let unsaid = self.conditions.iter().filter(|(_, condition)| condition.last_seen < now);
        let unsaid: Vec<AlertSubject> = unsaid.map(|(subject, _)| subject.clone()).collect();
        unsaid.iter().filter_map(|subject| self.clear(subject, now)).collect()
    }

    /// Ends everything about these at once.
    pub fn forget(
        &mut self,
        now: Micros,
        about: impl Fn(Option<DeviceNumber>, Option<CgroupId>) -> bool,
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

    /// Ends one at once.
    pub fn end(&mut self, subject: &AlertSubject, now: Micros) -> Option<Alert> {
        let alert = self.conditions.remove(subject)?.alert?;
        Some(Alert { until: Some(now), ..alert })
    }

    /// Those that last.
    pub fn active(&self) -> impl Iterator<Item = &Alert> {
        self.conditions.values().filter_map(|condition| condition.alert.as_ref())
    }

    /// The condition is not there now.
    pub fn clear(&mut self, subject: &AlertSubject, now: Micros) -> Option<Alert> {
        let condition = self.conditions.get(subject)?;
        if condition.alert.is_some() && now.saturating_sub(condition.last_seen) < END_DELAY {
            return None;
        }
        self.end(subject, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOUT: (AlertKind, Option<DeviceNumber>, Option<CgroupId>) =
        (AlertKind::Starved, None, Some(CgroupId(1)));

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
    fn what_only_claims_promise_is_another_alert() {
        let mut alerts = Conditions::default();
        let mut said = |second, parts| {
            let at = Micros::secs(second);
            let told = alerts.set_overcommit((None, None), at, parts, Micros::ZERO, &|| "text".into());
            told.map(|alert| (alert.topic, alert.until.is_none())).collect::<Vec<_>>()
        };
        let claims = Some(CLAIMS_TOPIC.to_owned());
        assert_eq!(said(0, [0.9, 0.9]), []);
        assert_eq!(said(1, [2.0, 0.9]), [(claims.clone(), true)]);
        assert_eq!(said(2, [2.0, 1.1]), [(None, true)]);
        assert_eq!(said(60, [2.0, 1.1]), [(claims, false)]);
        assert_eq!(said(90, [2.0, 0.0]).len(), 2, "one ends and the other begins");
    }

    #[test]
    fn what_becomes_worse_is_said_again_and_never_becomes_better() {
        let mut alerts = Conditions::default();
        let subject =
            AlertSubject { topic: Some("memory".into()), ..AlertSubject::node(AlertKind::Overload) };
        let mut there = |second, severity| {
            let say = || (severity, format!("{severity:?}"), Vec::new());
            let said = alerts.raise(subject.clone(), Micros::secs(second), Micros::secs(2), say);
            said.map(|alert| (alert.severity, alert.text, alert.since))
        };
        let said = |severity: Severity| Some((severity, format!("{severity:?}"), Micros::secs(1)));
        assert_eq!(there(1, Severity::Critical), None, "it has not lasted");
        assert_eq!(there(3, Severity::Warning), said(Severity::Warning));
        assert_eq!(there(4, Severity::Warning), None);
        assert_eq!(there(5, Severity::Critical), said(Severity::Critical));
        assert_eq!(there(6, Severity::Warning), None);
        let ended = alerts.clear(&subject, Micros::secs(60)).unwrap();
        assert_eq!((ended.severity, ended.until), (Severity::Critical, Some(Micros::secs(60))));
    }

    #[test]
    fn the_words_of_an_alert_that_lasts_are_renewed_and_nothing_begins_by_that() {
        let mut alerts = Conditions::default();
        let subject = AlertSubject::node(AlertKind::Verdict);
        assert_eq!(alerts.update_text(&subject, "twice"), None, "there is none");
        let say = || (Severity::Critical, "once".to_owned(), Vec::new());
        alerts.raise(subject.clone(), Micros::secs(1), Micros::ZERO, say);
        assert_eq!(alerts.update_text(&subject, "once"), None);
        let renewed = alerts.update_text(&subject, "twice").unwrap();
        assert_eq!((renewed.text.as_str(), renewed.since), ("twice", Micros::secs(1)));
        assert_eq!(alerts.active().next().map(|alert| alert.text.as_str()), Some("twice"));
    }

    #[test]
    fn a_condition_that_is_not_said_again_ends_after_a_while() {
        let mut alerts = Conditions::default();
        let other = (AlertKind::Overcommit, None, None);
        for second in 1..30 {
            let now = Micros::secs(second);
            alerts.set(ABOUT, now, true, Micros::ZERO, || "text".into());
            if second < 5 {
                alerts.set(other, now, true, Micros::ZERO, || "text".into());
            }
            let ended = alerts.clear_unseen(now);
            assert_eq!(ended.len(), usize::from(second == 14), "{second}: {ended:?}");
        }
        assert_eq!(alerts.active().map(|alert| alert.kind).collect::<Vec<_>>(), [AlertKind::Starved]);
    }

    #[test]
    fn what_is_gone_has_no_alerts() {
        let mut alerts = Conditions::default();
        alerts.set(ABOUT, Micros::secs(1), true, Micros::ZERO, || "text".into());
        assert_eq!(alerts.active().count(), 1);
        assert_eq!(alerts.forget(Micros::secs(2), |_, group| group == Some(CgroupId(2))), []);
        let ended = alerts.forget(Micros::secs(2), |_, group| group == Some(CgroupId(1)));
        assert!(matches!(&ended[..], [Alert { until: Some(Micros(2_000_000)), .. }]), "{ended:?}");
        assert_eq!(alerts.active().count(), 0);
    }
}
