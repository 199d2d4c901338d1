//! What changed lately, with reasons: what a client that takes a snapshot a second must not miss. A container whose view changes all the
//! time has none of the others' changes forgotten, with however many containers in it.

use super::policy_loop::PolicyLoop;
use crate::fair_queue::FairQueue;
use elbowroom_client::api::{ChangeView, ContainerRef, MAX_CHANGES};
use elbowroom_client::change::Kind;
use elbowroom_client::{change, number_format};
use elbowroom_govern::disk::Cap;
use elbowroom_govern::memory::MemoryDecision;
use elbowroom_linux::timer;
use elbowroom_types::id::CgroupId;
use elbowroom_types::unit::Micros;
use elbowroom_view::rules::{ViewChange, ViewChangeReason, ViewDelta};
use std::sync::Arc;

/// How far back a snapshot tells: a client that takes one a second may miss four. By the monotonic clock: if the time of day were used and
/// set back, earlier changes would be told again until it has caught up. If it jumped ahead, they would not be told at all.
const WINDOW: Micros = Micros::secs(5);

/// The last changes.
#[derive(Debug)]
pub(super) struct RecentChanges {
    changes: FairQueue<RecentChange, { MAX_CHANGES as usize }>,
    /// Number of the next one.
    next: u64,
    /// Decisions of governors until here are among them.
    decisions_until: Micros,
}

/// A change, not yet in words: most are never asked for.
#[derive(Debug)]
struct RecentChange {
    seq: u64,
    /// When it was, on the monotonic clock.
    made: Micros,
    /// The same in milliseconds since 1970.
    at: u64,
    /// Identifier of the outermost container around it, or its own.
    tenant: Arc<str>,
    content: ChangeContent,
}

#[derive(Debug)]
enum ChangeContent {
    View(ViewChange),
    History(Box<change::Change>),
}

impl RecentChanges {
    /// None yet. Numbers begin where no policy process before can have come to, whatever becomes of the time of day; but
    /// for a recording, no client that remembers them outlives a boot.
    pub(super) fn new() -> Self {
        Self { changes: FairQueue::default(), next: timer::now_boot().get(), decisions_until: Micros::ZERO }
    }

    /// Takes a change of a view; `named` is asked for what will have no name any more when it is asked for.
    pub(super) fn push_view(
        &mut self,
        tenant: Arc<str>,
        change: &ViewChange,
        named: impl FnOnce() -> Option<ContainerRef>,
    ) {
        let told = match change.because {
            ViewChangeReason::Gone => {
                named().map(|named| view_change(change, 0, named)).map(Box::new).map(ChangeContent::History)
            }
            _ => Some(ChangeContent::View(*change)),
        };
        if let Some(told) = told {
            self.push(tenant, timer::now(), told);
        }
    }

    fn push(&mut self, tenant: Arc<str>, made: Micros, mut what: ChangeContent) {
        let ago_ms = timer::now().saturating_sub(made).get() / 1_000;
        let at = timer::unix_ms().saturating_sub(ago_ms);
        if let ChangeContent::History(change) = &mut what {
            change.at = at;
        }
        let seq = self.next;
        self.changes.push(&tenant.clone(), RecentChange { seq, made, at, tenant, content: what });
        self.next += 1;
    }

    fn last(&self, now: Micros, named: impl Fn(CgroupId) -> Option<ContainerRef>) -> Vec<ChangeView> {
        let tell = |kept: &RecentChange| {
            let change = match &kept.content {
                ChangeContent::View(change) => view_change(change, kept.at, named(change.id)?),
                ChangeContent::History(change) => (**change).clone(),
            };
            let tenant = (*change.container != *kept.tenant).then(|| kept.tenant.to_string());
            Some(ChangeView { seq: kept.seq, tenant, change })
        };
        // Decisions are gathered later than they were made, so the order of numbers is not that of times.
        self.changes.iter(|kept| kept.made.saturating_add(WINDOW) >= now).filter_map(tell).collect()
    }
}

impl PolicyLoop {
    /// Identifier of the outermost container around a container, or its own; also of one that just appeared.
    pub(super) fn tenant_id(&self, id: CgroupId) -> Arc<str> {
        if let Some(managed) = self.containers.get(&id) {
            return managed.tenant.clone();
        }
        let container = |id| self.views.group(id)?.container.as_ref();
        let own = container(id);
        let outermost = own.filter(|own| own.is_nested()).and_then(|_| container(self.sensor.tenant_of(id)));
        outermost.or(own).map_or_else(Arc::default, |container| container.id.as_str().into())
    }

    /// What changed in the last seconds.
    pub(super) fn recent_changes(&mut self) -> Vec<ChangeView> {
        self.collect_decisions();
        self.recent_changes.last(timer::now(), |id| self.disk.container_name(id).cloned())
    }

    /// Takes in what governors decided since the last time.
    fn collect_decisions(&mut self) {
        let since = std::mem::replace(&mut self.recent_changes.decisions_until, timer::now());
        let mut decisions: Vec<(Micros, Arc<str>, change::Change)> = Vec::new();
        for (id, managed) in &self.containers {
            let tenant = || managed.tenant.clone();
            let Some(named) = self.disk.container_name(*id) else { continue };
            for status in self.disk.container_statuses(*id, true) {
                let new = status.decisions.iter().filter(|cap| cap.at > since);
                decisions.extend(new.map(|cap| (cap.at, tenant(), cap_change(cap, &status.name, named))));
            }
            let status = self.memory.container_status(*id, true);
            let new = status.iter().flat_map(|s| &s.decisions).filter(|decision| decision.at > since);
            decisions.extend(new.map(|decision| (decision.at, tenant(), decision_change(decision, named))));
        }
        decisions.sort_by_key(|(at, ..)| *at);
        for (at, tenant, change) in decisions {
            self.recent_changes.push(tenant, at, ChangeContent::History(Box::new(change)));
        }
    }
}

fn view_change(change: &ViewChange, at: u64, named: ContainerRef) -> change::Change {
    let kind = match change.what {
        ViewDelta::Cpu { .. } => Kind::Cpu,
        ViewDelta::Memory { .. } => Kind::Memory,
    };
    let (what, because) = (change.what.to_string(), change.because.to_string());
    change::Change { at, container: named.id, name: named.name, kind, what, because }
}

fn cap_change(cap: &Cap, disk: &str, named: &ContainerRef) -> change::Change {
    let what = format!("{disk}: {}", number_format::io_limits(cap.max));
    history_change(Kind::Disk, what, &cap.because, named)
}

fn decision_change(decision: &MemoryDecision, named: &ContainerRef) -> change::Change {
    history_change(Kind::Memory, number_format::what(decision.what, decision.at), &decision.because, named)
}

fn history_change(kind: Kind, what: String, because: &str, named: &ContainerRef) -> change::Change {
    let because = because.to_owned();
    change::Change { at: 0, container: named.id.clone(), name: named.name.clone(), kind, what, because }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_for_five_seconds_and_its_time_is_that_of_the_day() {
        let mut recent = RecentChanges::new();
        let made = timer::now();
        for (id, ago) in [("old", Micros::secs(3)), ("new", Micros::ZERO)] {
            let named = ContainerRef { id: id.into(), name: None, path: String::new() };
            let change = Box::new(history_change(Kind::Disk, String::new(), "", &named));
            recent.push(Arc::from(id), made.saturating_sub(ago), ChangeContent::History(change));
        }
        let told = |after| {
            let told = recent.last(made.saturating_add(after), |_| None);
            told.into_iter().map(|told| told.change.container).collect::<Vec<_>>()
        };
        assert_eq!(told(Micros::ZERO), ["old", "new"]);
        assert_eq!(told(Micros::secs(4)), ["new"]);
        assert!(told(Micros::secs(6)).is_empty());
        let at: Vec<u64> = recent.last(made, |_| None).iter().map(|told| told.change.at).collect();
        assert!((2_900..=3_100).contains(&(at[1] - at[0])), "{at:?}");
    }
}
