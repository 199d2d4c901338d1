//! What is worth an Event, and how often.
//!
//! Approach: a snapshot says what is so now, each under a [`EventKey`]; [`EventDeduplicator`] says what began and what ended since.
//!
//! Properties (tested with random sequences):
//!
//! 1. Of one thing, beginning and end take turns.
//! 2. The same thing begins at most once in [`QUIET_PERIOD`].
//! 3. At most [`MAX_BURST`] things begin in any [`QUIET_PERIOD`], and half as many of one namespace. What lasts is told when there is room,
//!    and first of the namespace of which least was told: a pod's maker says something new as often as they like.

use crate::agent::{ApiAlert, ApiContainer, ApiSnapshot, LABELS_BY};
use elbowroom_types::alert::AlertKind;
use elbowroom_types::finding::Severity;
use elbowroom_types::unit::Micros;
use elbowroom_types::visible::is_hidden;
use std::collections::{BTreeMap, VecDeque};

/// The same thing begins at most once in this time.
const QUIET_PERIOD: Micros = Micros::secs(300);
/// Most things that begin in that time, on one node.
const MAX_BURST: usize = 50;
/// Most of them that are of one namespace.
const MAX_OF_NAMESPACE: usize = MAX_BURST / 2;
/// Most bytes of a note (events.k8s.io/v1: 1 kB).
const MAX_NOTE_BYTES: usize = 1_000;

/// What something is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EventKey {
    /// The container's identifier; `None` for the node.
    pub(crate) container: Option<String>,
    /// Reason of the Event.
    pub(crate) reason: &'static str,
    /// What exactly: a disk, the doctor's check.
    pub(crate) topic: String,
}

/// What is so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventContent {
    pub(crate) warning: bool,
    pub(crate) note: String,
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventNotice {
    pub(crate) key: EventKey,
    pub(crate) content: EventContent,
    pub(crate) ended: bool,
}

impl EventNotice {
    /// Reason of the Event.
    pub(crate) fn reason(&self) -> String {
        format!("{}{}", self.key.reason, if self.ended { "Ended" } else { "" })
    }
}

/// Everything of a snapshot that is worth an Event. `gives`: whether this program gives containers their labels.
pub(crate) fn snapshot_events(snapshot: &ApiSnapshot, gives: bool) -> BTreeMap<EventKey, EventContent> {
    let alerts = snapshot.alerts.lasting.iter().map(alert_event);
    alerts.chain(snapshot.containers.iter().flat_map(|of| container_events(of, gives))).collect()
}

fn alert_event(view: &ApiAlert) -> (EventKey, EventContent) {
    let words = [view.disk_name.as_deref(), view.alert.topic.as_deref()];
    let key = EventKey {
        container: view.container.as_ref().map(|container| container.id.clone()),
        reason: reason(view.alert.kind),
        topic: words.into_iter().flatten().collect::<Vec<_>>().join(" "),
    };
    (key, event_content(view.alert.severity > Severity::Info, &view.alert.text))
}

fn container_events(container: &ApiContainer, gives: bool) -> Vec<(EventKey, EventContent)> {
    let key = |reason, topic: &str| EventKey {
        container: Some(container.id.clone()),
        reason,
        topic: topic.to_owned(),
    };
    let name = container.name.as_deref().unwrap_or(&container.id);
    let capped = container.disk.iter().filter(|disk| disk.enforced);
    let capped = capped.filter_map(|disk| {
        let text = format!(
            "{name}: limited to {:.0} % of disk {} while others need it",
            100.0 * disk.cap?,
            disk.name
        );
        Some((key("DiskLimited", &disk.name), event_content(false, &text)))
    });
    let memory = container.memory.iter().flat_map(|memory| {
        (memory.lent.get() > 0).then(|| {
            let text = format!("{name}: {} that it has no use for is lent to others", memory.lent);
            (key("MemoryLent", ""), event_content(false, &text))
        })
    });
    // What an engine keeps of a pod's annotations is not yet what they mean for this container.
    let counts = !gives || container.labels_by.as_deref() == Some(LABELS_BY);
    let ignored = (counts && !container.labels.ignored.is_empty()).then(|| {
        let text =
            format!("{name}: not understood, and without effect: {}", container.labels.ignored.join(", "));
        (key("AnnotationIgnored", &container.labels.ignored.concat()), event_content(true, &text))
    });
    capped.chain(memory).chain(ignored).collect()
}

pub(crate) fn event_content(warning: bool, text: &str) -> EventContent {
    let mut note = String::new();
    for c in text.chars().filter(|c| !is_hidden(*c)) {
        if note.len() + c.len_utf8() > MAX_NOTE_BYTES {
            break;
        }
        note.push(c);
    }
    EventContent { warning, note }
}

/// A kind of alert, as reasons are written.
const fn reason(kind: AlertKind) -> &'static str {
    match kind {
        AlertKind::Overload => "Overload",
        AlertKind::Overcommit => "Overcommit",
        AlertKind::Degraded => "Degraded",
        AlertKind::Starved => "Starved",
        AlertKind::Uncappable => "Uncappable",
        AlertKind::Inversion => "Inversion",
        AlertKind::ForeignWriter => "ForeignWriter",
        AlertKind::LeaseRestored => "LeaseRestored",
        AlertKind::LeaseStuck => "LeaseStuck",
        AlertKind::Finding => "Finding",
        AlertKind::Quota => "Quota",
        AlertKind::Verdict => "Verdict",
    }
}

/// The namespace of the pod that something is about; `None` where it is about no pod.
type Namespace = Option<String>;

/// What was told.
#[derive(Debug, Default)]
pub(crate) struct EventDeduplicator {
    reported: BTreeMap<EventKey, ReportedEvent>,
    /// When things began, within the last [`QUIET_PERIOD`], and in which namespace.
    begun: VecDeque<(Micros, Namespace)>,
}

#[derive(Debug)]
struct ReportedEvent {
    at: Micros,
    /// As it was told; `None` once its end was.
    lasts: Option<EventContent>,
}

impl EventDeduplicator {
    /// Takes all that is so; gives what is to be told.
    pub(crate) fn update(
        &mut self,
        now: Micros,
        facts: BTreeMap<EventKey, EventContent>,
        namespace: impl Fn(&EventKey) -> Namespace,
    ) -> Vec<EventNotice> {
        let recent = |at: Micros| now.saturating_sub(at) < QUIET_PERIOD;
        while self.begun.front().is_some_and(|(at, _)| !recent(*at)) {
            self.begun.pop_front();
        }
        let mut notices = Vec::new();
        for (key, told) in &mut self.reported {
            if !facts.contains_key(key)
                && let Some(fact) = told.lasts.take()
            {
                notices.push(EventNotice {
                    key: key.clone(),
                    content: EventContent { warning: false, ..fact },
                    ended: true,
                });
            }
        }
        self.reported.retain(|_, told| told.lasts.is_some() || recent(told.at));
        let new = facts.into_iter().filter(|(key, _)| !self.reported.contains_key(key));
        let mut new: Vec<(Namespace, EventKey, EventContent)> =
            new.map(|(key, fact)| (namespace(&key), key, fact)).collect();
        while self.begun.len() < MAX_BURST {
            let told = |of: &Namespace| self.begun.iter().filter(|(_, begun)| begun == of).count();
            let next = new.iter().enumerate().map(|(place, (of, ..))| (told(of), place)).min();
            let Some((_, place)) = next.filter(|(told, _)| *told < MAX_OF_NAMESPACE) else { break };
            let (of, key, fact) = new.remove(place);
            self.begun.push_back((now, of));
            self.reported.insert(key.clone(), ReportedEvent { at: now, lasts: Some(fact.clone()) });
            notices.push(EventNotice { key, content: fact, ended: false });
        }
        notices
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(n: u8) -> EventKey {
        EventKey { container: Some(n.to_string()), reason: "Starved", topic: String::new() }
    }

    /// Four namespaces.
    fn namespace(key: &EventKey) -> Namespace {
        let number: u8 = key.container.as_deref()?.parse().ok()?;
        Some((number % 4).to_string())
    }

    fn there(keys: impl IntoIterator<Item = u8>) -> BTreeMap<EventKey, EventContent> {
        keys.into_iter().map(|n| (key(n), event_content(true, "text"))).collect()
    }

    #[test]
    fn a_snapshot_says_what_is_worth_an_event() {
        let mut snapshot: ApiSnapshot = serde_json::from_str(
            r#"{"time_unix_ms": 5, "status": {}, "containers": [{"id": "c1", "name": "app", "more": 1, "labels_by": "elbowroom-kube",
                "labels": {"ignored": ["elbowroom.dev/x = \"y\": there is no such label"]},
                "disk": [{"name": "sda", "cap": 0.25, "enforced": true}, {"name": "sdb", "cap": 0.5, "enforced": false}],
                "memory": {"lent": 1048576}}],
              "alerts": {"ended": [], "lasting": [
                {"kind": "STARVED", "severity": "critical", "disk": null, "group": 3, "since": 1, "until": null,
                 "text": "app gets\nless", "disk_name": "sda", "container": {"id": "c1", "name": null, "path": "/"}},
                {"kind": "OVERLOAD", "severity": "warning", "topic": "cpu", "disk": null, "group": null, "since": 1,
                 "until": null, "text": "short", "disk_name": null, "container": null}]}}"#,
        )
        .unwrap();
        let all = snapshot_events(&snapshot, true);
        let told: Vec<String> = all
            .iter()
            .map(|(key, fact)| format!("{:?} {} {} {}", key.container, key.reason, key.topic, fact.note))
            .collect();
        assert_eq!(
            told,
            [
                "None Overload cpu short",
                "Some(\"c1\") AnnotationIgnored elbowroom.dev/x = \"y\": there is no such label app: not understood, and \
                    without effect: elbowroom.dev/x = \"y\": there is no such label",
                "Some(\"c1\") DiskLimited sda app: limited to 25 % of disk sda while others need it",
                "Some(\"c1\") MemoryLent  app: 1MiB that it has no use for is lent to others",
                "Some(\"c1\") Starved sda app getsless",
            ]
        );
        let ignored = |snapshot, gives| {
            snapshot_events(snapshot, gives).keys().any(|key| key.reason == "AnnotationIgnored")
        };
        snapshot.containers[0].labels_by = None;
        assert!(!ignored(&snapshot, true), "they are the engine's, and ours are on their way");
        assert!(ignored(&snapshot, false));
        assert!(event_content(true, &"ö".repeat(2_000)).note.len() <= MAX_NOTE_BYTES);
    }

    #[test]
    fn what_flickers_is_told_once_and_what_lasts_is_told() {
        let mut notices = EventDeduplicator::default();
        let mut said = String::new();
        for second in 0..700 {
            let keys = if second % 2 == 0 || second > 650 { vec![1] } else { vec![] };
            for notice in notices.update(Micros::secs(second), there(keys), namespace) {
                said += &format!("{second}{} ", if notice.ended { ")" } else { "(" });
            }
        }
        assert_eq!(said, "0( 1) 300( 301) 600( 601) ");
        let told = notices.update(Micros::secs(900), there([1]), namespace);
        assert_eq!((told.len(), told[0].reason()), (1, "Starved".to_owned()));
    }

    #[test]
    fn a_namespace_that_has_something_new_each_second_hides_nothing_of_another() {
        let (mut notices, mut told) = (EventDeduplicator::default(), 0);
        let mut heard = None;
        for second in 0..900_u64 {
            let container = Some("0".to_owned());
            let new = EventKey { container, reason: "AnnotationIgnored", topic: second.to_string() };
            let mut facts = BTreeMap::from([(new, event_content(true, "text"))]);
            facts.extend(there((second >= 500).then_some(1)));
            for notice in notices.update(Micros::secs(second), facts, namespace) {
                told += usize::from(!notice.ended);
                if notice.key == key(1) {
                    heard.get_or_insert(second);
                }
            }
        }
        assert_eq!((heard, told), (Some(500), 3 * MAX_OF_NAMESPACE + 1));
    }

    proptest! {
        #[test]
        fn beginnings_and_ends_take_turns_and_are_rare(steps in prop::collection::vec((1u64..200, prop::collection::btree_set(0u8..100, 0..90)), 1..40)) {
            let (mut notices, mut now) = (EventDeduplicator::default(), Micros::ZERO);
            let (mut lasts, mut begun): (BTreeMap<EventKey, bool>, Vec<(Micros, EventKey)>) = Default::default();
            for (pause, keys) in steps {
                now = now.saturating_add(Micros::secs(pause));
                for EventNotice { key, ended, .. } in notices.update(now, there(keys), namespace) {
                    prop_assert_eq!(lasts.insert(key.clone(), !ended).unwrap_or(false), ended);
                    if !ended {
                        let again = begun.iter().any(|(at, of)| *of == key && now.saturating_sub(*at) < QUIET_PERIOD);
                        prop_assert!(!again, "{:?} began twice", key);
                        begun.push((now, key));
                    }
                }
                let recent = begun.iter().filter(|(at, _)| now.saturating_sub(*at) < QUIET_PERIOD).count();
                prop_assert!(recent <= MAX_BURST);
            }
            // What lasts is told when there is room, and what is over has ended.
            for round in 1..4 {
                let last = now.saturating_add(Micros(QUIET_PERIOD.get() * round));
                for EventNotice { key, ended, .. } in notices.update(last, there(0..100), namespace) {
                    lasts.insert(key, !ended);
                }
            }
            prop_assert_eq!(lasts.values().filter(|lasts| **lasts).count(), 100);
        }
    }
}
