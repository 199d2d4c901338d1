//! A limit that holds what a container needs ([`crate::checks::sizing`]; *Taming Memory Related Performance Pitfalls*, IV.B: leave
//! room for the cache).
//!
//! What comes back is counted between two looks, and a short look sees a part of a large working set. So what is asked for grows with
//! each look until nothing comes back any more; it never exceeds twice the limit at once.

use crate::checks::facts::{CgroupFacts, HostFacts};
use crate::checks::fixes::raise_limit;
use crate::checks::sizing::LimitSizing;
use elbowroom_types::finding::FindingFix;

/// What can be done about a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitAdvice {
    /// It is large enough, or there is none.
    Enough,
    /// These writes make it so.
    Raise(FindingFix),
    /// It is too small, and a cgroup around it, or the memory of the host, does not allow more.
    Blocked,
}

/// Whether the limit holds what is needed, and how it would. A limit is never lowered.
pub fn limit_advice(facts: &HostFacts, group: &CgroupFacts, size: &LimitSizing) -> LimitAdvice {
    match size.limit {
        Some(limit) if size.need > limit => {
            raise_limit(facts, group, size.need).map_or(LimitAdvice::Blocked, LimitAdvice::Raise)
        }
        _ => LimitAdvice::Enough,
    }
}
