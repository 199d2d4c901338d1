//! Containers in a container: a recording has those that stay.
//!
//! Problem: a container makes and ends hundreds of them a second, each with another path of a thousand bytes. What is new in a frame is
//! what a ring fills with, so it would keep an hour of all containers instead of days.
//!
//! Approach: one of them, and what is told of it, is recorded when it has been there for a minute.

use elbowroom_client::api::{AgentSnapshot, ContainerView};
use std::collections::HashMap;

/// From when on one is recorded, in milliseconds.
const SETTLED_AFTER: u64 = 60_000;

/// When one was seen running, in milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct Seen {
    first: u64,
    last: u64,
}

/// Those that are there or have ended lately.
#[derive(Debug, Default)]
pub(super) struct Newcomers {
    /// `None` before the first snapshot: those that are in it have been there for long.
    seen: Option<HashMap<String, Seen>>,
}

impl Newcomers {
    /// Takes out of a snapshot what is too new, or ended when it was.
    pub(super) fn leave_out(&mut self, snapshot: &mut AgentSnapshot) {
        let now = snapshot.time_unix_ms;
        let (is_first, before) = (self.seen.is_none(), self.seen.take().unwrap_or_default());
        let known = |id: &str| before.get(id).copied().or(is_first.then_some(Seen { first: 0, last: now }));
        let mut seen = HashMap::new();
        for ended in snapshot.ended.iter().filter(|container| is_nested(container)) {
            seen.extend(known(&ended.id).map(|at| (ended.id.clone(), at)));
        }
        for running in snapshot.containers.iter().filter(|container| is_nested(container)) {
            // A clock that was set back makes none older.
            let first = known(&running.id).map_or(now, |at| at.first.min(now));
            seen.insert(running.id.clone(), Seen { first, last: now });
        }
        let is_settled =
            |id: &str| seen.get(id).is_some_and(|at| at.last.saturating_sub(at.first) >= SETTLED_AFTER);
        let is_kept = |container: &ContainerView| !is_nested(container) || is_settled(&container.id);
        snapshot.containers.retain(is_kept);
        snapshot.ended.retain(is_kept);
        snapshot.changes.retain(|change| change.tenant.is_none() || is_settled(&change.change.container));
        self.seen = Some(seen);
    }
}

fn is_nested(container: &ContainerView) -> bool {
    container.engine.is_nested(&container.id)
}
