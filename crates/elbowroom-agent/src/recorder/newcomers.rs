//! Containers in a container: a recording has those that stay.
//!
//! Problem: a container makes and ends hundreds of them a second, each with another path of a thousand bytes. What is new in a frame is
//! what a ring fills with, so it would keep an hour of all containers instead of days.
//!
//! Approach: one of them, and what is told of it, is recorded when it has been there for a minute.

use elbowroom_client::api::{AgentSnapshot, ContainerView};
use elbowroom_types::container::ContainerEngine;
use std::collections::HashMap;

/// From when on one is recorded, in milliseconds.
const SETTLED_AFTER: u64 = 60_000;

/// When each was first seen, in milliseconds since 1970.
#[derive(Debug, Default)]
pub(super) struct Newcomers {
    /// `None` before the first snapshot: those that are there then have been there for long.
    since: Option<HashMap<String, u64>>,
}

impl Newcomers {
    /// Takes out of a snapshot what is too new.
    pub(super) fn leave_out(&mut self, snapshot: &mut AgentSnapshot) {
        let now = snapshot.time_unix_ms;
        let begin = if self.since.is_some() { now } else { 0 };
        let before = self.since.take().unwrap_or_default();
        let nested =
            snapshot.containers.iter().chain(&snapshot.ended).filter(|container| is_nested(container));
        // A clock that was set back makes none older.
        let seen = |id: &String| before.get(id).copied().unwrap_or(begin).min(now);
        let since: HashMap<String, u64> =
            nested.map(|container| (container.id.clone(), seen(&container.id))).collect();
        let is_settled =
            |id: &str| since.get(id).is_some_and(|since| now.saturating_sub(*since) >= SETTLED_AFTER);
        let is_kept = |container: &ContainerView| !is_nested(container) || is_settled(&container.id);
        snapshot.containers.retain(is_kept);
        snapshot.ended.retain(is_kept);
        snapshot.changes.retain(|change| change.tenant.is_none() || is_settled(&change.change.container));
        self.since = Some(since);
    }
}

/// As `ContainerIdentity::is_nested`.
fn is_nested(container: &ContainerView) -> bool {
    container.engine != ContainerEngine::Plain && container.id.starts_with('/')
}
