//! What several checks and fixes measure of a cgroup.

use super::facts::{CgroupFacts, ControllerVersion, HierarchyController, HostFacts};
pub(crate) use elbowroom_govern::verdict::whole_mib;
use elbowroom_types::unit::{Bytes, Limit, Percent};

/// Pages read back per second after reclaim had dropped them: below this, a program that starts or a log that is read.
pub(crate) const REFAULT_RATE_THRESHOLD: f64 = 100.0;

/// Refaults of page cache per second.
pub(crate) fn refault_rate(facts: &HostFacts, group: &CgroupFacts) -> f64 {
    facts.per_second(group.stat_before().workingset_refault_file, group.stat().workingset_refault_file)
}

/// The tightest of its own ceilings: v2 `memory.high` works like a limit.
pub(crate) fn tightest_own_limit(group: &CgroupFacts) -> Option<(&'static str, Bytes)> {
    let high = group.limit("memory.high").and_then(Limit::value).map(|n| ("memory.high", n));
    let hard = group.hard_limit().map(|n| (group.hard_limit_file(), n));
    [hard, high].into_iter().flatten().min_by_key(|(_, n)| *n)
}

/// Whether it reads back what was taken from it though neither its own limit nor one around it took that.
pub(crate) fn loses_cache_to_host(facts: &HostFacts, group: &CgroupFacts) -> bool {
    let usage = group.usage();
    let below = tightest_own_limit(group).is_none_or(|(_, limit)| usage < Bytes(BELOW_LIMIT.of(limit.get())));
    // A limit around it may be what takes, just as well: then it is that limit's finding.
    let own = limit_hits(group) > 0 || facts.ancestors(group).any(|a| limit_hits(a) > 0);
    // What is kept for it the kernel does not take; what comes back then is on its way home.
    let safe = protected_memory(facts, group) >= usage && usage > Bytes::ZERO;
    refault_rate(facts, group) >= REFAULT_RATE_THRESHOLD && below && !own && !safe
}

/// Containers that may ask for more than is kept for them, with their limits and how much more that is; none where all of it is
/// available.
pub(crate) fn unreserved_containers(facts: &HostFacts) -> Vec<(&CgroupFacts, Bytes, Bytes)> {
    let total = facts.host.mem_total();
    // A limit above the machine's memory promises nothing: it is there to be one.
    let mut open: Vec<(&CgroupFacts, Bytes, Bytes)> = facts
        .containers()
        .filter_map(|g| {
            // Nor does one of a cgroup without processes.
            let hard = g.hard_limit().filter(|hard| *hard < total && g.usage() > Bytes::ZERO)?;
            let owed = hard.saturating_sub(g.usage().max(protected_memory(facts, g)));
            (owed > Bytes(hard.get() / 10)).then_some((g, hard, owed))
        })
        .collect();
    if unreserved_total(&open) <= facts.host.mem_available() {
        open.clear();
    }
    open
}

/// Promises may add up to this part of the machine; the rest is the kernel's and the host's own.
pub(crate) const RESERVABLE: Percent = Percent::whole(80);

/// What a cgroup itself claims, whatever is around it.
pub(crate) fn own_protection(group: &CgroupFacts) -> Bytes {
    let of = |file| group.limit(file).map_or(Bytes::ZERO, |l| l.or(Bytes(i64::MAX as u64)));
    of("memory.low").max(of("memory.min"))
}

/// What is kept for a cgroup when the host is short: v2 the least of `memory.low` or `memory.min` and those around it; v1
/// the soft limit, which only says that others give first.
pub(crate) fn protected_memory(facts: &HostFacts, group: &CgroupFacts) -> Bytes {
    match facts.version(HierarchyController::Memory) {
        Some(ControllerVersion::V1) => {
            group.limit("memory.soft_limit_in_bytes").and_then(Limit::value).unwrap_or_default()
        }
        _ => facts.ancestors(group).map(own_protection).fold(own_protection(group), Bytes::min),
    }
}

/// What is kept for all containers together.
pub(crate) fn total_protected(facts: &HostFacts) -> Bytes {
    facts.containers().map(|g| protected_memory(facts, g)).sum()
}

/// And below this one the limit has nothing to do with what it loses.
pub(crate) const BELOW_LIMIT: Percent = Percent::whole(90);

/// How often reclaim at its own ceiling was needed between the looks.
pub(crate) fn limit_hits(group: &CgroupFacts) -> u64 {
    ["max", "high"].iter().filter_map(|key| Some(group.event_counts(key)?.0)).sum()
}

/// How often the limit of `group` itself was in the way between the looks: `max` or `high`. v2 counts in it what happens at limits below.
pub(crate) fn own_hits(facts: &HostFacts, group: &CgroupFacts, key: &str) -> u64 {
    let grown = |g: &CgroupFacts| g.event_counts(key).map_or(0, |(now, _)| now);
    let below = match facts.version(HierarchyController::Memory) {
        Some(ControllerVersion::V1) => 0,
        _ => facts.children(group).map(grown).sum(),
    };
    grown(group).saturating_sub(below)
}

/// How often a container was at its hard limit between the looks, and the cgroup that counted that: its own. In Kubernetes it may be the
/// pod's, whose limit is the sum of its containers' and is full before theirs: the sandbox's process is in it too.
pub(crate) fn hard_limit_hits<'a>(facts: &'a HostFacts, group: &'a CgroupFacts) -> (&'a CgroupFacts, u64) {
    let own = group.event_counts("max").map_or(0, |(now, _)| now);
    let in_pod = group.container.as_ref().is_some_and(|container| container.pod.is_some());
    let pod = facts.ancestors(group).next().filter(|pod| in_pod && pod.hard_limit().is_some());
    let pods = pod.map(|pod| (pod, own_hits(facts, pod, "max")));
    pods.filter(|(_, hits)| *hits > own).unwrap_or((group, own))
}

/// Whether `group` has the most of what the containers in `at` have, which is `group` or around it: of a limit around many, that one is told.
pub(crate) fn has_most_in(
    facts: &HostFacts,
    group: &CgroupFacts,
    at: &CgroupFacts,
    of: impl Fn(&CgroupFacts) -> u64,
) -> bool {
    let is_in = |g: &&CgroupFacts| facts.ancestors(g).any(|around| std::ptr::eq(around, at));
    let most = || facts.containers().filter(is_in).max_by_key(|g| of(g));
    std::ptr::eq(group, at) || most().is_some_and(|most| std::ptr::eq(most, group))
}

pub(crate) fn unreserved_total(open: &[(&CgroupFacts, Bytes, Bytes)]) -> Bytes {
    open.iter().map(|(_, _, owed)| *owed).sum()
}

pub(crate) const MIB: u64 = 1 << 20;

/// v1's lowest swappiness that cannot kill: at its own limit a container with 0 is killed where one with 1 swaps.
pub(crate) fn safe_swappiness(facts: &HostFacts, group: &CgroupFacts) -> u64 {
    u64::from(facts.self_and_ancestors(group).any(can_swap_at_own_limit))
}

/// Whether reaching this cgroup's own limit can swap: its limit on memory is not also its limit on memory and swap.
fn can_swap_at_own_limit(group: &CgroupFacts) -> bool {
    let both = group.limit("memory.memsw.limit_in_bytes").and_then(Limit::value);
    group.hard_limit().is_some_and(|hard| both != Some(hard))
}
