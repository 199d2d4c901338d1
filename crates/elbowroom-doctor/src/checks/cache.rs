//! Pitfalls III.B and III.C: page cache that goes because the group's own anonymous memory grows, or because the host
//! takes it from any cgroup that has it.

use super::facts::{CgroupFacts, ControllerVersion, HierarchyController, HostFacts};
use super::fixes::{manual_fix, protect, raise_limit_or_ask};
use super::pressure::host_reclaim;
use super::sizing::estimate_need;
use crate::checks::DoctorCheck;
use crate::checks::measures::{
    REFAULT_RATE_THRESHOLD, hard_limit_hits, limit_hits, loses_cache_to_host, refault_rate,
    tightest_own_limit, whole_mib,
};
use elbowroom_types::finding::{DoctorFinding, Severity};
use elbowroom_types::unit::{Bytes, Percent};

/// A container above this part of its limit is at it: reclaim keeps it there.
const AT_LIMIT: Percent = Percent::whole(95);
/// A heap above this part of the limit leaves too little to cache what a server reads.
const ANON_SHARE: Percent = Percent::whole(70);

fn page_rate(rate: f64) -> String {
    format!("+{rate:.0} pages/s")
}

fn refault_evidence(finding: DoctorFinding, group: &CgroupFacts, rate: f64) -> DoctorFinding {
    finding.with_evidence(
        group.file(HierarchyController::Memory, "memory.stat workingset_refault_file"),
        page_rate(rate),
    )
}

/// The heap pushes out what the container reads.
pub(super) const ANON_EVICTS: DoctorCheck = DoctorCheck {
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

fn anon_evicts(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .containers()
        .filter_map(|g| {
            let (file, limit) = tightest_own_limit(g)?;
            let (stat, rate) = (g.stat(), refault_rate(facts, g));
            let (counter, hits) = hits_at_limit(facts, g, file);
            let at_limit = g.usage() >= Bytes(AT_LIMIT.of(limit.get())) && hits > 0;
            if !at_limit || rate < REFAULT_RATE_THRESHOLD || stat.anon < Bytes(ANON_SHARE.of(limit.get())) {
                return None;
            }
            // A look that is a second long sees little come back: a quarter more is worth the trouble at least.
            let wanted = estimate_need(facts, g).need.max(Bytes(limit.get() + limit.get() / 4));
            let fix = raise_limit_or_ask(facts, g, wanted);
            let found = DoctorFinding::new(
                Severity::Warning,
                format!(
                    "Its heap of {} leaves {} of a limit of {limit} for files: it reads them from disk again and again.",
                    stat.anon, limit.saturating_sub(stat.anon)
                ),
            )
            .for_cgroup(g.container_name(), &g.path)
            .with_evidence(g.file(HierarchyController::Memory, file), limit)
            .with_evidence(g.file(HierarchyController::Memory, g.usage_file()), g.usage())
            .with_evidence(g.file(HierarchyController::Memory, "memory.stat anon"), stat.anon)
            .with_evidence(g.file(HierarchyController::Memory, "memory.stat file"), stat.file)
            .with_evidence(counter.file(HierarchyController::Memory, counter.limit_hits_file()), format!("+{hits}"));
            Some(refault_evidence(found, g, rate).with_fix(fix).with_advice(
                "Or a smaller heap: -Xmx of a JVM, maxmemory, the buffer pool, so that heap and files fit together.",
            ))
        })
        .collect()
}

/// The files it reads do not fit, whatever its heap does.
pub(super) const CACHE_TOO_SMALL: DoctorCheck = DoctorCheck {
    id: "cache-does-not-fit",
    pitfall: "the files that are read again do not fit into the limit",
    reads_v1: "as anon-evicts-cache",
    reads_v2: "as anon-evicts-cache",
    threshold: "as anon-evicts-cache, but with anonymous memory below 70 % of the limit; and waiting for disk or memory \
                10 % of the time, where pressure is known",
    reference: "Documentation/admin-guide/cgroup-v2.rst, memory.stat workingset_refault_file",
    run: cache_too_small,
};

fn cache_too_small(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .containers()
        .filter_map(|g| {
            let (file, limit) = tightest_own_limit(g)?;
            let rate = refault_rate(facts, g);
            let (counter, hits) = hits_at_limit(facts, g, file);
            let at_limit = g.usage() >= Bytes(AT_LIMIT.of(limit.get())) && hits > 0;
            if !at_limit || rate < REFAULT_RATE_THRESHOLD || g.stat().anon >= Bytes(ANON_SHARE.of(limit.get())) {
                return None;
            }
            // A backup or a build streams through its cache and does not mind: only one that waits for it does.
            if stall_fraction(facts, g).is_some_and(|part| part < 0.1) {
                return None;
            }
            let wanted = estimate_need(facts, g).need.max(Bytes(limit.get() + limit.get() / 2));
            let found = DoctorFinding::new(
                Severity::Warning,
                format!(
                    "The files it works with do not fit into a limit of {limit}: it waits for what it had read before."
                ),
            )
            .for_cgroup(g.container_name(), &g.path)
            .with_evidence(g.file(HierarchyController::Memory, file), limit)
            .with_evidence(g.file(HierarchyController::Memory, "memory.stat file"), g.stat().file)
            .with_evidence(counter.file(HierarchyController::Memory, counter.limit_hits_file()), format!("+{hits}"));
            Some(refault_evidence(found, g, rate).with_fix(raise_limit_or_ask(facts, g, wanted)))
        })
        .collect()
}

/// How often its tightest limit, in `file`, was reached between the looks, and the cgroup that counted that.
fn hits_at_limit<'a>(facts: &'a HostFacts, group: &'a CgroupFacts, file: &str) -> (&'a CgroupFacts, u64) {
    if file == "memory.high" { (group, limit_hits(group)) } else { hard_limit_hits(facts, group) }
}

/// The part of the time between the looks that it waited for disk or memory.
fn stall_fraction(facts: &HostFacts, group: &CgroupFacts) -> Option<f64> {
    let (before, after) = (group.before.pressure.as_ref()?, group.after.pressure.as_ref()?);
    let grew = |at: usize| facts.per_second(before[at].some.total.get(), after[at].some.total.get()) / 1e6;
    Some(grew(1).max(grew(2)))
}

/// The host takes cache from a container that is within its limit.
pub(super) const CACHE_TAKEN_BY_HOST: DoctorCheck = DoctorCheck {
    id: "cache-stolen",
    pitfall: "the host takes page cache from any group",
    reads_v1: "memory.limit_in_bytes, memory.usage_in_bytes, memory.stat workingset_refault_file, /proc/vmstat (pgsteal_kswapd, \
               allocstall_*)",
    reads_v2: "memory.max, memory.current, memory.low, memory.stat workingset_refault_file, /proc/vmstat (pgsteal_kswapd, \
               allocstall_*)",
    threshold: "the host reclaims (1000 pages/s by kswapd, or allocations that reclaim), and a container below 90 % of its \
                limit reads back more than 100 pages of cache per second",
    reference: "Taming Memory Related Performance Pitfalls in Linux Cgroups (ICNC'17), III.C, IV.C",
    run: cache_taken_by_host,
};

fn cache_taken_by_host(facts: &HostFacts) -> Vec<DoctorFinding> {
    let Some((file, value)) = host_reclaim(facts) else { return Vec::new() };
    let (thief, size) = largest_cache_holder(facts);
    facts
        .containers()
        .filter(|g| loses_cache_to_host(facts, g))
        .map(|g| {
            let rate = refault_rate(facts, g);
            let keep = working_set(facts, g, rate);
            let found = DoctorFinding::new(
                Severity::Warning,
                format!(
                    "The host drops files it reads, though it is within its limit: the most page cache of all, {size}, is in \
                     {thief}."
                ),
            )
            .for_cgroup(g.container_name(), &g.path)
            .with_evidence(g.file(HierarchyController::Memory, g.usage_file()), g.usage())
            .with_evidence(
                g.file(HierarchyController::Memory, g.hard_limit_file()),
                g.limit(g.hard_limit_file()).map_or("absent".into(), |l| l.to_string()),
            )
            .with_evidence(file.clone(), &value);
            refault_evidence(found, g, rate).with_fix(protect(facts, g, keep)).with_advice(
                if facts.version(HierarchyController::Memory) == Some(ControllerVersion::V1) {
                    "cgroup v1 keeps cache for no container: soft limits only say which gives first. Bound the host's own \
                     jobs: `systemd-cgtop -m` shows them."
                } else {
                    "Bound what grows: `systemd-cgtop -m` shows the host's own jobs."
                },
            )
        })
        .collect()
}

/// What to keep for a container that loses its cache: what it has, and what it reads back in half a minute; never more than
/// its limit, or a quarter of the machine where it has none. A claim takes nothing that is not used.
fn working_set(facts: &HostFacts, group: &CgroupFacts, refaults: f64) -> Bytes {
    let most = tightest_own_limit(group).map_or(Bytes(facts.host.mem_total().get() / 4), |(_, limit)| limit);
    let back = HostFacts::page_bytes((refaults * 30.0) as u64);
    let usage = group.usage();
    usage.saturating_add(back.max(Bytes(usage.get() / 4))).min(most)
}

/// The group below the root, or the host itself, with the most page cache.
fn largest_cache_holder(facts: &HostFacts) -> (String, Bytes) {
    let file = |g: &CgroupFacts| g.stat().file;
    let tops: Vec<&CgroupFacts> = facts.root().into_iter().flat_map(|root| facts.children(root)).collect();
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
pub(super) const HOST_JOBS: DoctorCheck = DoctorCheck {
    id: "host-jobs-unbounded",
    pitfall: "the host's own jobs have no limit",
    reads_v1: "memory.usage_in_bytes of the root less its children, of system.slice and of user.slice; memory.limit_in_bytes",
    reads_v2: "memory.stat of the root less memory.current of its children; memory.current, memory.high and memory.max of \
               system.slice and user.slice",
    threshold: "the host reclaims, and processes outside containers, without a limit, hold more than 20 % of MemTotal",
    reference: "Taming Memory Related Performance Pitfalls in Linux Cgroups (ICNC'17), IV.C; systemd.resource-control(5)",
    run: host_jobs,
};

fn host_jobs(facts: &HostFacts) -> Vec<DoctorFinding> {
    let Some((file, value)) = host_reclaim(facts) else { return Vec::new() };
    let Some(root) = facts.root() else { return Vec::new() };
    let much = Bytes(Percent::whole(20).of(facts.host.mem_total().get()));
    let all = match facts.version(HierarchyController::Memory) {
        Some(ControllerVersion::V1) => root.usage(),
        _ => root.stat().anon.saturating_add(root.stat().file),
    };
    let inside: Bytes = facts.children(root).map(CgroupFacts::usage).sum();
    let loose = all.saturating_sub(inside);
    let mut found = Vec::new();
    if loose > much {
        found.push(
            DoctorFinding::new(
                Severity::Warning,
                format!("Processes in no group hold {loose} of memory and cache, and nothing limits them."),
            )
            .with_evidence(root.file(HierarchyController::Memory, root.usage_file()), all)
            .with_evidence(file.clone(), &value)
            .with_advice(
                "`elbowroom housekeeping` names them and puts them into groups of a size; what is to be started: \
                 `systemd-run --scope -p MemoryHigh=1G COMMAND`.",
            ),
        );
    }
    for slice in facts.children(root).filter(|g| ["/system.slice", "/user.slice"].contains(&g.path.as_str()))
    {
        // Engines with the systemd driver put containers into system.slice: theirs is not the slice's own.
        let inside: Vec<&CgroupFacts> =
            facts.containers().filter(|c| c.path.starts_with(&format!("{}/", slice.path))).collect();
        let held: Bytes = inside.iter().map(|c| c.usage()).sum();
        let own = slice.usage().saturating_sub(held);
        if own > much && tightest_own_limit(slice).is_none() {
            let command = format!(
                "systemctl set-property --runtime {} MemoryHigh={}",
                slice.path.trim_start_matches('/'),
                whole_mib(own).get()
            );
            // It would hold back containers in the slice, too; and v1 has no such limit.
            let bounds = inside.is_empty()
                && facts.version(HierarchyController::Memory) == Some(ControllerVersion::V2);
            found.push(
                DoctorFinding::new(
                    Severity::Warning,
                    format!("Services of the host in {} hold {own}, and nothing limits them.", slice.path),
                )
                .with_evidence(slice.file(HierarchyController::Memory, slice.usage_file()), slice.usage())
                .with_evidence(file.clone(), &value)
                .with_fix(bounds.then(|| manual_fix(&[&command])).flatten())
                .with_advice("`elbowroom housekeeping` says which service it is, and bounds only that."),
            );
        }
    }
    found
}

/// A dashboard's number that is cache.
pub(super) const WORKING_SET: DoctorCheck = DoctorCheck {
    id: "working-set-is-cache",
    pitfall: "a working set, as it is commonly counted, that is cache",
    reads_v1: "memory.usage_in_bytes, memory.stat (total_inactive_file, total_active_file)",
    reads_v2: "memory.current, memory.stat (inactive_file, active_file)",
    threshold: "use less inactive_file, as kubelet and cAdvisor count it, above 80 % of the limit, and half of that is \
                active_file",
    reference: "kubernetes/kubernetes#43916",
    run: working_set_is_cache,
};

fn working_set_is_cache(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .containers()
        .filter_map(|g| {
            let (limit, stat) = (g.hard_limit()?, g.stat());
            let set = g.usage().saturating_sub(stat.inactive_file);
            let high = set > Bytes(Percent::whole(80).of(limit.get()));
            (high && stat.active_file.get() > set.get() / 2).then(|| {
                DoctorFinding::new(
                    Severity::Info,
                    format!(
                        "Its \"working set\" of {set} is mostly page cache: {} of it can be dropped before anything fails.",
                        stat.active_file
                    ),
                )
                .for_cgroup(g.container_name(), &g.path)
                .with_evidence(g.file(HierarchyController::Memory, g.usage_file()), g.usage())
                .with_evidence(g.file(HierarchyController::Memory, "memory.stat active_file"), stat.active_file)
                .with_evidence(g.file(HierarchyController::Memory, "memory.stat inactive_file"), stat.inactive_file)
                .with_advice("Alert on memory pressure or on OOM kills instead of on this number.")
            })
        })
        .collect()
}
