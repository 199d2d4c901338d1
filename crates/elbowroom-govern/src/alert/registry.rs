//! What lasts, and what ended lately.

use elbowroom_types::alert::{Alert, AlertKind, AlertSubject};
use elbowroom_types::unit::Micros;
use std::collections::{BTreeMap, VecDeque};

/// How long something that happened, and has no end of its own, is taken to last: long enough for every scraper to see it.
pub(crate) const TRANSIENT_DURATION: Micros = Micros::secs(300);
/// How long what ended is remembered.
const ENDED_RETENTION: Micros = Micros::secs(3_600);
/// Most alerts that ended and are remembered.
const MAX_ENDED: usize = 256;

/// All alerts there are.
#[derive(Debug, Default)]
pub struct AlertRegistry {
    active: BTreeMap<AlertSubject, Alert>,
    /// When those end that have no end of their own.
    transient_until: BTreeMap<AlertSubject, Micros>,
    /// The last to end comes last.
    ended: VecDeque<Alert>,
    begun: BTreeMap<AlertKind, u64>,
}

impl AlertRegistry {
    /// Takes a beginning or an end. A beginning of what lasts already only renews its words.
    pub fn record(&mut self, alert: Alert) {
        let subject = alert.subject();
        if alert.until.is_some() {
            self.transient_until.remove(&subject);
            if self.active.remove(&subject).is_some() {
                self.ended.push_back(alert);
                self.ended.drain(..self.ended.len().saturating_sub(MAX_ENDED));
            }
            return;
        }
        if !self.active.contains_key(&subject) {
            *self.begun.entry(alert.kind).or_default() += 1;
        }
        self.active.insert(subject, alert);
    }

    /// Takes something that happened at one moment. It ends by itself, [`TRANSIENT_DURATION`] after it last happened.
    pub fn record_transient(&mut self, alert: Alert, now: Micros) {
        self.transient_until.insert(alert.subject(), now.saturating_add(TRANSIENT_DURATION));
        self.record(alert);
    }

    /// Ends what has to end by now, and forgets what ended long ago. What ended is given, to be told.
    pub fn expire(&mut self, now: Micros) -> Vec<Alert> {
        let over: Vec<AlertSubject> = self
            .transient_until
            .iter()
            .filter(|(_, end)| **end <= now)
            .map(|(subject, _)| subject.clone())
            .collect();
        let mut ended = Vec::new();
        for subject in over {
            if let Some(alert) = self.active.get(&subject) {
                let alert = Alert { until: Some(now), ..alert.clone() };
                ended.push(alert.clone());
                self.record(alert);
            }
        }
        let old =
            |alert: &Alert| alert.until.is_some_and(|until| now.saturating_sub(until) > ENDED_RETENTION);
        while self.ended.front().is_some_and(old) {
            self.ended.pop_front();
        }
        ended
    }

    /// Those that last, by what they are about.
    pub fn active(&self) -> impl Iterator<Item = &Alert> {
        self.active.values()
    }

    /// Those that ended lately, the last one first.
    pub fn ended(&self) -> impl Iterator<Item = &Alert> {
        self.ended.iter().rev()
    }

    /// How many have begun, by kind.
    pub fn begun_counts(&self) -> impl Iterator<Item = (AlertKind, u64)> {
        self.begun.iter().map(|(kind, count)| (*kind, *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert(topic: &str, until: Option<u64>) -> Alert {
        let subject = AlertSubject { topic: Some(topic.into()), ..AlertSubject::node(AlertKind::Finding) };
        Alert { until: until.map(Micros::secs), ..Alert::new(subject, Micros::secs(1), topic.into()) }
    }

    #[test]
    fn what_lasts_is_there_once_and_what_ended_is_remembered_for_an_hour() {
        let mut register = AlertRegistry::default();
        register.record(alert("a", None));
        register.record(Alert { text: "worse".into(), ..alert("a", None) });
        register.record(alert("b", Some(2)));
        assert_eq!(register.active().map(|a| a.text.as_str()).collect::<Vec<_>>(), ["worse"]);
        assert_eq!(register.begun_counts().collect::<Vec<_>>(), [(AlertKind::Finding, 1)]);
        register.record(alert("a", Some(5)));
        assert_eq!((register.active().count(), register.ended().count()), (0, 1));
        register.expire(Micros::secs(3_600));
        assert_eq!(register.ended().count(), 1);
        register.expire(Micros::secs(3_606));
        assert_eq!(register.ended().count(), 0);
    }

    #[test]
    fn what_happened_ends_by_itself_five_minutes_after_the_last_time() {
        let mut register = AlertRegistry::default();
        register.record_transient(alert("a", None), Micros::secs(1));
        register.record_transient(alert("a", None), Micros::secs(100));
        assert_eq!(register.expire(Micros::secs(399)), []);
        let ended = register.expire(Micros::secs(400));
        assert_eq!(ended.iter().map(|a| a.until).collect::<Vec<_>>(), [Some(Micros::secs(400))]);
        assert_eq!((register.active().count(), register.expire(Micros::secs(401)).len()), (0, 0));
    }

    #[test]
    fn the_memory_of_what_ended_is_bounded() {
        let mut register = AlertRegistry::default();
        for n in 0..1_000 {
            register.record(alert(&n.to_string(), None));
            register.record(alert(&n.to_string(), Some(2)));
        }
        assert_eq!(register.ended().count(), MAX_ENDED);
        assert_eq!(register.ended().next().unwrap().text, "999");
    }
}
