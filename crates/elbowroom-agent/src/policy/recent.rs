//! What changed lately, with reasons: what somebody who takes a snapshot a second must not miss.

use super::owner::Owner;
use elbowroom_client::api::{ChangeView, MOST_CHANGES, Named};
use elbowroom_client::change;
use elbowroom_client::change::Kind;
use elbowroom_client::rates;
use elbowroom_govern::disk::Cap;
use elbowroom_govern::memory::Decision;
use elbowroom_linux::timer;
use elbowroom_types::sample::GroupId;
use elbowroom_types::unit::Micros;
use elbowroom_view::rules::{Because, Change, What};
use std::collections::VecDeque;

/// How far back a snapshot tells: whoever takes one a second may miss four.
const TOLD_MS: u64 = 5_000;
/// The last changes.
#[derive(Debug)]
pub(super) struct Recent {
    changes: VecDeque<Kept>,
    /// Number of the next one.
    next: u64,
    /// Decisions of governors until here are among them.
    gathered: Micros,
}

/// A change, not yet in words: most are never asked for.
#[derive(Debug)]
struct Kept {
    seq: u64,
    at: u64,
    what: Told,
}

#[derive(Debug)]
enum Told {
    View(Change),
    Words(Box<change::Change>),
}

impl Recent {
    /// None yet. Numbers begin where no policy process before can have come to, whatever becomes of the time of day; but
    /// for a recording, nobody who remembers them outlives a boot.
    pub(super) fn new() -> Self {
        Self { changes: VecDeque::new(), next: timer::now_boot().get(), gathered: Micros::ZERO }
    }

    /// Takes a change of a view; `named` is asked for what will have no name any more when somebody asks.
    pub(super) fn view(&mut self, change: &Change, named: impl FnOnce() -> Option<Named>) {
        let told = match change.because {
            Because::Gone => named().map(|named| words(change, 0, named)).map(Box::new).map(Told::Words),
            _ => Some(Told::View(*change)),
        };
        if let Some(told) = told {
            self.push(elbowroom_linux::timer::unix_ms(), told);
        }
    }

    fn push(&mut self, at: u64, mut what: Told) {
        if let Told::Words(change) = &mut what {
            change.at = at;
        }
        if self.changes.len() as u64 == MOST_CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back(Kept { seq: self.next, at, what });
        self.next += 1;
    }

    fn last(&self, now: u64, named: impl Fn(GroupId) -> Option<Named>) -> Vec<ChangeView> {
        let tell = |kept: &Kept| {
            let change = match &kept.what {
                Told::View(change) => words(change, kept.at, named(change.id)?),
                Told::Words(change) => (**change).clone(),
            };
            Some(ChangeView { seq: kept.seq, change })
        };
        // Decisions are gathered later than they were made, so the order of numbers is not that of times.
        self.changes.iter().filter(|kept| kept.at + TOLD_MS >= now).filter_map(tell).collect()
    }
}

impl Owner {
    /// What changed in the last seconds.
    pub(super) fn recent_changes(&mut self) -> Vec<ChangeView> {
        self.gather();
        self.recent.last(elbowroom_linux::timer::unix_ms(), |id| self.disk.named(id).cloned())
    }

    /// Takes in what governors decided since the last time.
    fn gather(&mut self) {
        let (now, now_unix) = (timer::now(), elbowroom_linux::timer::unix_ms());
        let since = std::mem::replace(&mut self.recent.gathered, now);
        let mut decisions: Vec<(Micros, change::Change)> = Vec::new();
        for id in self.residents.keys() {
            let Some(named) = self.disk.named(*id) else { continue };
            for standing in self.disk.standings(*id, true) {
                let new = standing.decisions.iter().filter(|cap| cap.at > since);
                decisions.extend(new.map(|cap| (cap.at, capped(cap, &standing.name, named))));
            }
            let standing = self.memory.standing(*id, true);
            let new = standing.iter().flat_map(|s| &s.decisions).filter(|decision| decision.at > since);
            decisions.extend(new.map(|decision| (decision.at, decided(decision, named))));
        }
        decisions.sort_by_key(|(at, _)| *at);
        for (at, change) in decisions {
            let ago_ms = now.saturating_sub(at).get() / 1_000;
            self.recent.push(now_unix.saturating_sub(ago_ms), Told::Words(Box::new(change)));
        }
    }
}

fn words(change: &Change, at: u64, named: Named) -> change::Change {
    let kind = match change.what {
        What::Cpu { .. } => Kind::Cpu,
        What::Memory { .. } => Kind::Memory,
    };
    let (what, because) = (change.what.to_string(), change.because.to_string());
    change::Change { at, container: named.id, name: named.name, kind, what, because }
}

fn capped(cap: &Cap, disk: &str, named: &Named) -> change::Change {
    let what = format!("{disk}: {}", rates::limits(cap.max));
    told(Kind::Disk, what, &cap.because, named)
}

fn decided(decision: &Decision, named: &Named) -> change::Change {
    told(Kind::Memory, rates::what(decision.what), &decision.because, named)
}

fn told(kind: Kind, what: String, because: &str, named: &Named) -> change::Change {
    let because = because.to_owned();
    change::Change { at: 0, container: named.id.clone(), name: named.name.clone(), kind, what, because }
}
