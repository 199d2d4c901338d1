//! What tenants make, in a recording: a share for each.
//!
//! Problem: a container, or a user to whom a cgroup was delegated, makes and ends hundreds of containers a second, each with another
//! path of a thousand bytes, or has hundreds that stay and are busy. What is new in a frame is what a ring fills with, so it would keep
//! an hour of all containers instead of days.
//!
//! Approach: one of them, and what is told of it, is recorded when it has been there for a minute, and no more than [`SHARE`] of each
//! tenant at a time: those that were recorded before, and then the oldest. How many that leaves out is recorded.

use elbowroom_client::api::{AgentSnapshot, ContainerView};
use std::collections::HashMap;

/// From when on one is recorded, in milliseconds.
const SETTLED_AFTER: u64 = 60_000;
/// How many of one tenant are recorded at a time.
pub(super) const SHARE: usize = 32;

/// When one was seen running first, in milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct Seen {
    first: u64,
    /// Whether it is in the recording.
    kept: bool,
}

/// Those that are there or have ended lately.
#[derive(Debug, Default)]
pub(super) struct Newcomers {
    /// `None` before the first snapshot: those that are in it have been there for long.
    seen: Option<HashMap<String, Seen>>,
}

impl Newcomers {
    /// Takes out of a snapshot what is too new, or ended when it was, and what is more than its tenant's share.
    pub(super) fn leave_out(&mut self, snapshot: &mut AgentSnapshot) {
        let now = snapshot.time_unix_ms;
        let (is_first, before) = (self.seen.is_none(), self.seen.take().unwrap_or_default());
        let known = |id: &str| before.get(id).copied().or(is_first.then_some(Seen { first: 0, kept: true }));
        let mut seen = HashMap::new();
        for ended in snapshot.ended.iter().filter(|container| is_tenants(container)) {
            seen.extend(known(&ended.id).map(|at| (ended.id.clone(), at)));
        }
        let mut settled: HashMap<&str, Vec<(bool, u64, &str)>> = HashMap::new();
        for running in snapshot.containers.iter().filter(|container| is_tenants(container)) {
            let before = before.get(&running.id);
            // A clock that was set back makes none older.
            let first = known(&running.id).map_or(now, |at| at.first.min(now));
            seen.insert(running.id.clone(), Seen { first, kept: false });
            if now.saturating_sub(first) >= SETTLED_AFTER {
                let tenant = running.made_in.as_deref().unwrap_or_default();
                let is_new = before.is_none_or(|at| !at.kept);
                settled.entry(tenant).or_default().push((is_new, first, &running.id));
            }
        }
        snapshot.left_out = 0;
        for mut of_tenant in settled.into_values() {
            of_tenant.sort_unstable();
            snapshot.left_out += of_tenant.len().saturating_sub(SHARE) as u64;
            for (.., id) in of_tenant.into_iter().take(SHARE) {
                seen.get_mut(id).expect("it was put in above").kept = true;
            }
        }
        let is_recorded = |id: &str| seen.get(id).is_some_and(|at| at.kept);
        let is_kept = |container: &ContainerView| !is_tenants(container) || is_recorded(&container.id);
        snapshot.changes.retain(|change| {
            let id = &change.change.container;
            is_recorded(id) || change.tenant.is_none() && !seen.contains_key(id)
        });
        snapshot.containers.retain(is_kept);
        snapshot.ended.retain(is_kept);
        self.seen = Some(seen);
    }
}

fn is_tenants(container: &ContainerView) -> bool {
    container.made_in.is_some() || container.engine.is_nested(&container.id)
}
