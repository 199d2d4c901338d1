//! What lasts, and what ended lately.

use elbowroom_types::alert::{Alert, Kind, Subject};
use elbowroom_types::unit::Micros;
use std::collections::{BTreeMap, VecDeque};

/// How long something that happened, and has no end of its own, is taken to last: long enough for every scraper to see it.
pub const PASSING: Micros = Micros::secs(300);
/// How long what ended is remembered.
const REMEMBERED: Micros = Micros::secs(3_600);
/// Most alerts that ended and are remembered.
const MOST_ENDED: usize = 256;

/// All alerts there are.
#[derive(Debug, Default)]
pub struct Register {
    lasting: BTreeMap<Subject, Alert>,
    /// When those end that have no end of their own.
    passing: BTreeMap<Subject, Micros>,
    /// The last to end comes last.
    ended: VecDeque<Alert>,
    begun: BTreeMap<Kind, u64>,
}

impl Register {
    /// Takes a beginning or an end. A beginning of what lasts already only renews its words.
    pub fn take(&mut self, alert: Alert) {
        let subject = alert.subject();
        if alert.until.is_some() {
            self.passing.remove(&subject);
            if self.lasting.remove(&subject).is_some() {
                self.ended.push_back(alert);
                self.ended.drain(..self.ended.len().saturating_sub(MOST_ENDED));
            }
            return;
        }
        if !self.lasting.contains_key(&subject) {
            *self.begun.entry(alert.kind).or_default() += 1;
        }
        self.lasting.insert(subject, alert);
    }

    /// Takes something that happened at one moment. It ends by itself, [`PASSING`] after it last happened.
    pub fn happened(&mut self, alert: Alert, now: Micros) {
        self.passing.insert(alert.subject(), now.saturating_add(PASSING));
        self.take(alert);
    }

    /// Ends what has to end by now, and forgets what ended long ago. What ended is given, to be told.
    pub fn tick(&mut self, now: Micros) -> Vec<Alert> {
        let over: Vec<Subject> =
            self.passing.iter().filter(|(_, end)| **end <= now).map(|(subject, _)| subject.clone()).collect();
        let mut ended = Vec::new();
        for subject in over {
            if let Some(alert) = self.lasting.get(&subject) {
                let alert = Alert { until: Some(now), ..alert.clone() };
                ended.push(alert.clone());
                self.take(alert);
            }
        }
        let old = |alert: &Alert| alert.until.is_some_and(|until| now.saturating_sub(until) > REMEMBERED);
        while self.ended.front().is_some_and(old) {
            self.ended.pop_front();
        }
        ended
    }

    /// Those that last, by what they are about.
    pub fn lasting(&self) -> impl Iterator<Item = &Alert> {
        self.lasting.values()
    }

    /// Those that ended lately, the last one first.
    pub fn ended(&self) -> impl Iterator<Item = &Alert> {
        self.ended.iter().rev()
    }

    /// How many have begun, by kind.
    pub fn begun(&self) -> impl Iterator<Item = (Kind, u64)> {
        self.begun.iter().map(|(kind, count)| (*kind, *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert(topic: &str, until: Option<u64>) -> Alert {
        let subject = Subject { topic: Some(topic.into()), ..Subject::node(Kind::Finding) };
        Alert { until: until.map(Micros::secs), ..Alert::new(subject, Micros::secs(1), topic.into()) }
    }

    #[test]
    fn what_lasts_is_there_once_and_what_ended_is_remembered_for_an_hour() {
        let mut register = Register::default();
        register.take(alert("a", None));
        register.take(Alert { text: "worse".into(), ..alert("a", None) });
        register.take(alert("b", Some(2)));
        assert_eq!(register.lasting().map(|a| a.text.as_str()).collect::<Vec<_>>(), ["worse"]);
        assert_eq!(register.begun().collect::<Vec<_>>(), [(Kind::Finding, 1)]);
        register.take(alert("a", Some(5)));
        assert_eq!((register.lasting().count(), register.ended().count()), (0, 1));
        register.tick(Micros::secs(3_600));
        assert_eq!(register.ended().count(), 1);
        register.tick(Micros::secs(3_606));
        assert_eq!(register.ended().count(), 0);
    }

    #[test]
    fn what_happened_ends_by_itself_five_minutes_after_the_last_time() {
        let mut register = Register::default();
        register.happened(alert("a", None), Micros::secs(1));
        register.happened(alert("a", None), Micros::secs(100));
        assert_eq!(register.tick(Micros::secs(399)), []);
        let ended = register.tick(Micros::secs(400));
        assert_eq!(ended.iter().map(|a| a.until).collect::<Vec<_>>(), [Some(Micros::secs(400))]);
        assert_eq!((register.lasting().count(), register.tick(Micros::secs(401)).len()), (0, 0));
    }

    #[test]
    fn the_memory_of_what_ended_is_bounded() {
        let mut register = Register::default();
        for n in 0..1_000 {
            register.take(alert(&n.to_string(), None));
            register.take(alert(&n.to_string(), Some(2)));
        }
        assert_eq!(register.ended().count(), MOST_ENDED);
        assert_eq!(register.ended().next().unwrap().text, "999");
    }
}
