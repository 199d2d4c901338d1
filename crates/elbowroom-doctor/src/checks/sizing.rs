//! How much memory holds a container and the page cache that it really reads again (*Taming Memory Related Performance
//! Pitfalls*, IV.B: leave room for the cache).
//!
//! Problem: page cache fills every limit, so what a container uses says nothing about what it needs. Without the cache that it
//! works with it reads the same files from disk again and again; with all of it a backup would be given the whole disk.
//!
//! Approach: anonymous memory, shared memory and the kernel's own stay whatever happens. Of the page cache counts what was read
//! more than once: the active list, and pages that came back after reclaim had dropped them (`workingset_refault_file`). Where
//! pages come back at the limit, no counter tells which inactive pages would be read again, so all of them count. A tenth
//! is added to breathe.
//!
//! What comes back is counted between two looks: a short look sees a part of a large working set. So what is asked for grows
//! with each look until nothing comes back any more; it never exceeds twice the limit at once.

use super::facts::{CgroupFacts, HostFacts};
use super::measures::{REFAULT_RATE_THRESHOLD, refault_rate, tightest_own_limit};
use elbowroom_govern::verdict::{memory_need, unreclaimable_rest};
use elbowroom_types::unit::Bytes;
use serde::Serialize;

/// What a container needs, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LimitSizing {
    /// Anonymous memory, the larger of both looks.
    pub anon: Bytes,
    /// Shared memory, and what the kernel keeps for it and cannot give back.
    pub other: Bytes,
    /// Page cache that it works with.
    pub working_cache: Bytes,
    /// Page cache that it read once, as far as is known: the rest of it.
    pub idle_cache: Bytes,
    /// Page cache that came back between the looks after it had been dropped.
    pub reread: Bytes,
    /// What of all that has to fit, and a tenth.
    pub need: Bytes,
    /// The limit that it has; `None` without one.
    pub limit: Option<Bytes>,
}

/// What `group` needs, by the two looks.
pub fn estimate_need(facts: &HostFacts, group: &CgroupFacts) -> LimitSizing {
    let (before, stat) = (group.stat_before(), group.stat());
    let limit = tightest_own_limit(group).map(|(_, limit)| limit);
    let cache = stat.file.saturating_sub(stat.shmem);
    let anon = before.anon.max(stat.anon);
    let other = unreclaimable_rest(group.usage(), &stat);
    let pages = stat.workingset_refault_file.saturating_sub(before.workingset_refault_file);
    let back = HostFacts::page_bytes(pages);
    let reread = limit.map_or(back, |limit| back.min(limit));
    // A few pages come back to a program that starts, or a log that is read.
    let comes_back = refault_rate(facts, group) >= REFAULT_RATE_THRESHOLD;
    let kept = if comes_back { cache } else { stat.active_file.min(cache) };
    let working_cache = kept.saturating_add(if comes_back { reread } else { Bytes::ZERO });
    LimitSizing {
        anon,
        other,
        working_cache,
        idle_cache: cache.saturating_sub(kept),
        reread,
        need: memory_need(anon, other, working_cache),
        limit,
    }
}
