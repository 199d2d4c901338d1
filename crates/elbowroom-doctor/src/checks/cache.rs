//! Pitfalls III.B and III.C: page cache that goes because the group's own anonymous memory grows, or because the host
//! takes it from whoever has it.

use super::facts::{Controller, Facts, Group, Version};
use super::fixes::{by_hand, kept, protect, raise_limit, whole_mib};
use super::pressure::host_reclaim;
use crate::checks::Check;
use crate::strategies::size::size;
use elbowroom_types::finding::{Finding, Severity};
use elbowroom_types::unit::{Bytes, Limit, Percent};

/// Pages read back per second after reclaim had dropped them: below this, a program that starts or a log that is read.
pub const REFAULTS: f64 = 100.0;
/// A container above this part of its limit is at it: reclaim keeps it there.
const AT_LIMIT: Percent = Percent::whole(95);
/// And below this one the limit has nothing to do with what it loses.
const BELOW_LIMIT: Percent = Percent::whole(90);
/// A heap above this part of the limit leaves too little to cache what a server reads.
const HEAP: Percent = Percent::whole(70);

/// The tightest of its own ceilings: v2 `memory.high` works like a limit.
pub fn ceiling(group: &Group) -> Option<(&'static str, Bytes)> {
    let high = group.limit("memory.high").and_then(Limit::value).map(|n| ("memory.high", n));
    let hard = group.hard().map(|n| (group.hard_file(), n));
    [hard, high].into_iter().flatten().min_by_key(|(_, n)| *n)
}

/// Refaults of page cache per second.
pub fn refaults(facts: &Facts, group: &Group) -> f64 {
    facts.per_second(group.stat_before().workingset_refault_file, group.stat().workingset_refault_file)
}

/// How often reclaim at its own ceiling was needed between the looks.
fn hits(group: &Group) -> u64 {
    ["max", "high"].iter().filter_map(|key| Some(group.event(key)?.0)).sum()
}

fn page_rate(rate: f64) -> String {
    format!("+{rate:.0} pages/s")
}

fn refault_evidence(finding: Finding, group: &Group, rate: f64) -> Finding {
    finding.because(group.file(Controller::Memory, "memory.stat workingset_refault_file"), page_rate(rate))
}

/// The heap pushes out what the container reads.
pub(super) const ANON_EVICTS: Check = Check {
    id: "anon-evicts-cache",
    pitfall: "anonymous memory evicts the group's own page cache",
    reads_v1: "memory.limit_in_bytes, memory.usage_in_bytes, memory.failcnt, memory.stat (total_rss, total_cache, \
               workingset_refault_file)",
    reads_v2: "memory.max, memory.high, memory.current, memory.events, memory.stat (anon, file, workingset_refault_file)",
    threshold: "use above 95 % of the limit, which was hit between the looks; anonymous memory above 70 % of it; more than \
                100 pages of cache read back per second",
    reference: "Taming Memory Related Performance Pitfalls in Linux Cgroups (ICNC'17), III.B, IV.B",
    run: anon_evicts,
};

fn anon_evicts(facts: &Facts) -> Vec<Finding> {
    facts
        .containers()
        .filter_map(|g| {
            let (file, limit) = ceiling(g)?;
            let (stat, rate) = (g.stat(), refaults(facts, g));
            let at_limit = g.usage() >= Bytes(AT_LIMIT.of(limit.get())) && hits(g) > 0;
            if !at_limit || rate < REFAULTS || stat.anon < Bytes(HEAP.of(limit.get())) {
                return None;
            }
            // A look that is a second long sees little come back: a quarter more is worth the trouble at least.
            let wanted = size(facts, g).need.max(Bytes(limit.get() + limit.get() / 4));
            let fix = raise_limit(facts, g, wanted);
            let found = Finding::new(
                Severity::Warning,
                format!(
                    "Its heap of {} leaves {} of a limit of {limit} for files: it reads them from disk again and again.",
                    stat.anon, limit.saturating_sub(stat.anon)
                ),
            )
            .about(g.container_name(), &g.path)
            .because(g.file(Controller::Memory, file), limit)
            .because(g.file(Controller::Memory, g.usage_file()), g.usage())
            .because(g.file(Controller::Memory, "memory.stat anon"), stat.anon)
            .because(g.file(Controller::Memory, "memory.stat file"), stat.file)
            .because(g.file(Controller::Memory, g.limit_hits_file()), format!("+{}", hits(g)));
            Some(refault_evidence(found, g, rate).fixed_by(fix).advise(
                "Or a smaller heap: -Xmx of a JVM, maxmemory, the buffer pool, so that heap and files fit together.",
            ))
        })
        .collect()
}

/// The files it reads do not fit, whatever its heap does.
pub(super) const CACHE_TOO_SMALL: Check = Check {
    id: "cache-does-not-fit",
    pitfall: "the files that are read again do not fit into the limit",
    reads_v1: "as anon-evicts-cache",
    reads_v2: "as anon-evicts-cache",
    threshold: "as anon-evicts-cache, but with anonymous memory below 70 % of the limit; and waiting for disk or memory \
                10 % of the time, where pressure is known",
    reference: "Documentation/admin-guide/cgroup-v2.rst, memory.stat workingset_refault_file",
    run: cache_too_small,
};

fn cache_too_small(facts: &Facts) -> Vec<Finding> {
    facts
        .containers()
        .filter_map(|g| {
            let (file, limit) = ceiling(g)?;
            let rate = refaults(facts, g);
            let at_limit = g.usage() >= Bytes(AT_LIMIT.of(limit.get())) && hits(g) > 0;
            if !at_limit || rate < REFAULTS || g.stat().anon >= Bytes(HEAP.of(limit.get())) {
                return None;
            }
            // A backup or a build streams through its cache and does not mind: only one that waits for it does.
            if stalled(facts, g).is_some_and(|part| part < 0.1) {
                return None;
            }
            let wanted = size(facts, g).need.max(Bytes(limit.get() + limit.get() / 2));
            let found = Finding::new(
                Severity::Warning,
                format!(
                    "The files it works with do not fit into a limit of {limit}: it waits for what it had read before."
                ),
            )
            .about(g.container_name(), &g.path)
            .because(g.file(Controller::Memory, file), limit)
            .because(g.file(Controller::Memory, "memory.stat file"), g.stat().file)
            .because(g.file(Controller::Memory, g.limit_hits_file()), format!("+{}", hits(g)));
            Some(refault_evidence(found, g, rate).fixed_by(raise_limit(facts, g, wanted)))
        })
        .collect()
}

/// The part of the time between the looks that it waited for disk or memory.
fn stalled(facts: &Facts, group: &Group) -> Option<f64> {
    let (before, after) = (group.before.pressure.as_ref()?, group.after.pressure.as_ref()?);
    let grew = |at: usize| facts.per_second(before[at].some.total.get(), after[at].some.total.get()) / 1e6;
    Some(grew(1).max(grew(2)))
}

/// The host takes cache from a container that is within its limit.
pub(super) const CACHE_STOLEN: Check = Check {
    id: "cache-stolen",
    pitfall: "the host takes page cache from any group",
    reads_v1: "memory.limit_in_bytes, memory.usage_in_bytes, memory.stat workingset_refault_file, /proc/vmstat (pgsteal_kswapd, \
               allocstall_*)",
    reads_v2: "memory.max, memory.current, memory.low, memory.stat workingset_refault_file, /proc/vmstat (pgsteal_kswapd, \
               allocstall_*)",
    threshold: "the host reclaims (1000 pages/s by kswapd, or allocations that reclaim), and a container below 90 % of its \
                limit reads back more than 100 pages of cache per second",
    reference: "Taming Memory Related Performance Pitfalls in Linux Cgroups (ICNC'17), III.C, IV.C",
    run: cache_stolen,
};

fn cache_stolen(facts: &Facts) -> Vec<Finding> {
    let Some((file, value)) = host_reclaim(facts) else { return Vec::new() };
    let (thief, size) = greediest(facts);
    facts
        .containers()
        .filter(|g| stolen(facts, g))
        .map(|g| {
            let rate = refaults(facts, g);
            let keep = working_set(facts, g, rate);
            let found = Finding::new(
                Severity::Warning,
                format!(
                    "The host drops files it reads, though it is within its limit: the most page cache of all, {size}, is in \
                     {thief}."
                ),
            )
            .about(g.container_name(), &g.path)
            .because(g.file(Controller::Memory, g.usage_file()), g.usage())
            .because(
                g.file(Controller::Memory, g.hard_file()),
                g.limit(g.hard_file()).map_or("absent".into(), |l| l.to_string()),
            )
            .because(file.clone(), &value);
            refault_evidence(found, g, rate).fixed_by(protect(facts, g, keep)).advise(
                if facts.version(Controller::Memory) == Some(Version::V1) {
                    "cgroup v1 keeps cache for nobody: soft limits only say who gives first. Bound the host's own jobs: \
                     `systemd-cgtop -m` shows them."
                } else {
                    "Bound what grows: `systemd-cgtop -m` shows the host's own jobs."
                },
            )
        })
        .collect()
}

/// Whether it reads back what was taken from it though neither its own limit nor one around it took that.
pub(super) fn stolen(facts: &Facts, group: &Group) -> bool {
    let usage = group.usage();
    let below = ceiling(group).is_none_or(|(_, limit)| usage < Bytes(BELOW_LIMIT.of(limit.get())));
    // A limit around it may be what takes, just as well: then it is that limit's finding.
    let own = hits(group) > 0 || facts.ancestors(group).any(|a| hits(a) > 0);
    // What is kept for it the kernel does not take; what comes back then is on its way home.
    let safe = kept(facts, group) >= usage && usage > Bytes::ZERO;
    refaults(facts, group) >= REFAULTS && below && !own && !safe
}

/// What to keep for a container that loses its cache: what it has, and what it reads back in half a minute; never more than
/// its limit, or a quarter of the machine where it has none. A claim takes nothing that is not used.
fn working_set(facts: &Facts, group: &Group, refaults: f64) -> Bytes {
    let most = ceiling(group).map_or(Bytes(facts.host.mem_total().get() / 4), |(_, limit)| limit);
    let back = Facts::pages((refaults * 30.0) as u64);
    let usage = group.usage();
    usage.saturating_add(back.max(Bytes(usage.get() / 4))).min(most)
}

/// The group below the root, or the host itself, with the most page cache.
fn greediest(facts: &Facts) -> (String, Bytes) {
    let file = |g: &Group| g.stat().file;
    let tops: Vec<&Group> = facts.root().into_iter().flat_map(|root| facts.children(root)).collect();
    let leaves = tops.iter().map(|g| {
        // The one container that makes up most of a group is a better name than the group's.
        let inside = facts.containers().filter(|c| c.path.starts_with(&format!("{}/", g.path)));
        match inside.max_by_key(|c| file(c)) {
            Some(c) if file(c).get() * 2 > file(g).get() => (c.name(), file(c)),
            _ => (g.name(), file(g)),
        }
    });
    let in_groups: Bytes = tops.iter().map(|g| file(g)).sum();
    let cached = facts.host.meminfo("Cached").unwrap_or_default();
    let unowned = cached.saturating_sub(in_groups);
    leaves
        .chain([("processes outside all groups".to_owned(), unowned)])
        .max_by_key(|(_, size)| *size)
        .unwrap_or(("none".into(), Bytes::ZERO))
}

/// The host's own jobs hold what containers need.
pub(super) const HOST_JOBS: Check = Check {
    id: "host-jobs-unbounded",
    pitfall: "the host's own jobs have no limit",
    reads_v1: "memory.usage_in_bytes of the root less its children, of system.slice and of user.slice; memory.limit_in_bytes",
    reads_v2: "memory.stat of the root less memory.current of its children; memory.current, memory.high and memory.max of \
               system.slice and user.slice",
    threshold: "the host reclaims, and processes outside containers, without a limit, hold more than 20 % of MemTotal",
    reference: "Taming Memory Related Performance Pitfalls in Linux Cgroups (ICNC'17), IV.C; systemd.resource-control(5)",
    run: host_jobs,
};

fn host_jobs(facts: &Facts) -> Vec<Finding> {
    let Some((file, value)) = host_reclaim(facts) else { return Vec::new() };
    let Some(root) = facts.root() else { return Vec::new() };
    let much = Bytes(Percent::whole(20).of(facts.host.mem_total().get()));
    let all = match facts.version(Controller::Memory) {
        Some(Version::V1) => root.usage(),
        _ => root.stat().anon.saturating_add(root.stat().file),
    };
    let inside: Bytes = facts.children(root).map(Group::usage).sum();
    let loose = all.saturating_sub(inside);
    let mut found = Vec::new();
    if loose > much {
        found.push(
            Finding::new(
                Severity::Warning,
                format!("Processes in no group hold {loose} of memory and cache, and nothing limits them."),
            )
            .because(root.file(Controller::Memory, root.usage_file()), all)
            .because(file.clone(), &value)
            .advise(
                "`elbowroom housekeeping` names them and puts them into groups of a size; what is to be started: \
                 `systemd-run --scope -p MemoryHigh=1G COMMAND`.",
            ),
        );
    }
    for slice in facts.children(root).filter(|g| ["/system.slice", "/user.slice"].contains(&g.path.as_str()))
    {
        // Engines with the systemd driver put containers into system.slice: theirs is not the slice's own.
        let inside: Vec<&Group> =
            facts.containers().filter(|c| c.path.starts_with(&format!("{}/", slice.path))).collect();
        let held: Bytes = inside.iter().map(|c| c.usage()).sum();
        let own = slice.usage().saturating_sub(held);
        if own > much && ceiling(slice).is_none() {
            let command = format!(
                "systemctl set-property --runtime {} MemoryHigh={}",
                slice.path.trim_start_matches('/'),
                whole_mib(own).get()
            );
            // It would hold back containers in the slice, too; and v1 has no such limit.
            let bounds = inside.is_empty() && facts.version(Controller::Memory) == Some(Version::V2);
            found.push(
                Finding::new(
                    Severity::Warning,
                    format!("Services of the host in {} hold {own}, and nothing limits them.", slice.path),
                )
                .because(slice.file(Controller::Memory, slice.usage_file()), slice.usage())
                .because(file.clone(), &value)
                .fixed_by(bounds.then(|| by_hand(&[&command])).flatten())
                .advise("`elbowroom housekeeping` says which of them it is, and bounds that one alone."),
            );
        }
    }
    found
}

/// A dashboard's number that is cache.
pub(super) const WORKING_SET: Check = Check {
    id: "working-set-is-cache",
    pitfall: "a working set, as it is commonly counted, that is cache",
    reads_v1: "memory.usage_in_bytes, memory.stat (total_inactive_file, total_active_file)",
    reads_v2: "memory.current, memory.stat (inactive_file, active_file)",
    threshold: "use less inactive_file, as kubelet and cAdvisor count it, above 80 % of the limit, and half of that is \
                active_file",
    reference: "kubernetes/kubernetes#43916",
    run: working_set_is_cache,
};

fn working_set_is_cache(facts: &Facts) -> Vec<Finding> {
    facts
        .containers()
        .filter_map(|g| {
            let (limit, stat) = (g.hard()?, g.stat());
            let set = g.usage().saturating_sub(stat.inactive_file);
            let high = set > Bytes(Percent::whole(80).of(limit.get()));
            (high && stat.active_file.get() > set.get() / 2).then(|| {
                Finding::new(
                    Severity::Info,
                    format!(
                        "Its \"working set\" of {set} is mostly page cache: {} of it can be dropped before anything fails.",
                        stat.active_file
                    ),
                )
                .about(g.container_name(), &g.path)
                .because(g.file(Controller::Memory, g.usage_file()), g.usage())
                .because(g.file(Controller::Memory, "memory.stat active_file"), stat.active_file)
                .because(g.file(Controller::Memory, "memory.stat inactive_file"), stat.inactive_file)
                .advise("Alert on memory pressure or on OOM kills instead of on this number.")
            })
        })
        .collect()
}
