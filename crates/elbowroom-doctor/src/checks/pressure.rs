//! Whether the host is short of memory now, which tells a plan on paper from harm.

use super::facts::HostFacts;
use elbowroom_types::unit::{Bytes, Percent};

/// Below this part of the machine's memory it is short, reclaim or not.
const LOW_MEMORY: Percent = Percent::whole(10);

/// Pages per second that reclaim takes before it counts: a trickle is the kernel keeping house.
pub(super) const RECLAIM_RATE_THRESHOLD: f64 = 1_000.0;

/// Why the host is short of memory: a file and its value.
pub(super) fn shortage(facts: &HostFacts) -> Option<(String, String)> {
    let host = &facts.host;
    let available = host.mem_available();
    if available < Bytes(LOW_MEMORY.of(host.mem_total().get())) {
        return Some((host.available_file().into(), available.to_string()));
    }
    if let Some(reclaim) = host_reclaim(facts) {
        return Some(reclaim);
    }
    let stalled = host.after.pressure.as_ref().map_or(0, |p| p[2].some.avg10);
    // The host's file counts stalls of every cgroup, also of one that reclaims below its own limit while memory is free for all
    // others (kernel/sched/psi.c): they are the host's where the host reclaimed too, however little.
    let (kswapd, allocations) = host_reclaim_rates(facts);
    (stalled >= 500 && kswapd + allocations > 0.0).then(|| {
        ("/proc/pressure/memory some avg10".into(), format!("{}.{:02}%", stalled / 100, stalled % 100))
    })
}

/// Reclaim for the whole host between the looks: kswapd, or allocations that had to reclaim because the host was short
/// (`allocstall` is counted for the host only, never for a cgroup at its own limit: mm/vmscan.c, `try_to_free_pages`).
pub(super) fn host_reclaim(facts: &HostFacts) -> Option<(String, String)> {
    let (kswapd, stalls) = host_reclaim_rates(facts);
    if kswapd >= RECLAIM_RATE_THRESHOLD {
        return Some(("/proc/vmstat pgsteal_kswapd".into(), format!("+{kswapd:.0} pages/s")));
    }
    (stalls >= 1.0).then(|| ("/proc/vmstat allocstall_*".into(), format!("+{stalls:.0}/s")))
}

/// Pages per second that kswapd took, and allocations per second that had to reclaim for themselves.
fn host_reclaim_rates(facts: &HostFacts) -> (f64, f64) {
    let kswapd = facts.host.vmstat("pgsteal_kswapd").map_or(0.0, |(b, a)| facts.per_second(b, a));
    (kswapd, allocstall_rate(facts))
}

/// Allocations per second that had to reclaim for themselves, in whatever zone.
pub(super) fn allocstall_rate(facts: &HostFacts) -> f64 {
    let zones = ["dma", "dma32", "normal", "movable", "device"];
    let grown = zones.iter().filter_map(|zone| facts.host.vmstat(&format!("allocstall_{zone}")));
    grown.map(|(before, after)| facts.per_second(before, after)).sum()
}
