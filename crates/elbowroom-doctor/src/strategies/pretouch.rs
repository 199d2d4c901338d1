//! Free memory for what a container was promised (*Taming Memory Related Performance Pitfalls*, III.A and IV.A).
//!
//! Problem: a limit reserves nothing. The host's free memory is other containers' page cache, so that the first touch of a
//! promised page may have to reclaim before it returns. Only a program can touch its own memory early (a JVM with
//! `-XX:+AlwaysPreTouch`); from outside, reclaim can be made to happen earlier.
//!
//! Approach: [`plan`] says how much is promised and how much of that the host can free without hurting a container: what is free
//! above the watermarks, and page cache that was not used lately. On v2 the groups that give it are named ([`CacheDonor`]) and asked
//! through `memory.reclaim`; the rest, and all of it on v1, is taken by touching pages, which kswapd replaces.
//! [`stop_reason`] says when to stop, [`memory_to_hold`] how much to hold while the container takes over.
//!
//! Properties:
//! - A plan is never more than is promised, than is free or idle, or than leaves a tenth of the machine available.
//! - Donors keep what their reservation covers.
//! - What is kept never grows as the container does.

use crate::checks::facts::{CgroupFacts, ControllerVersion, HierarchyController, HostFacts};
use crate::checks::measures::{own_protection, protected_memory};
use elbowroom_types::unit::{Bytes, Limit, Micros, Percent};
use serde::Serialize;
use std::collections::BTreeMap;

/// This part of the machine stays available whatever is promised: below it the doctor calls a host short.
const AVAILABLE_RESERVE: Percent = Percent::whole(10);

/// Reclaim of less than this is not worth a write.
const MIN_RECLAIM: Bytes = Bytes::mib(8);

/// Time that a container may wait for memory more than it did before, as a part of the time.
const MAX_STALL_INCREASE: f64 = 0.05;

/// What keeps a plan from being larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PretouchBound {
    /// That is all that was asked for, or is promised.
    Promise,
    /// A limit of the container or of a cgroup around it.
    Limit,
    /// The memory that is free or idle page cache.
    Idle,
    /// More would leave the host short.
    Reserve,
}

/// A cgroup whose idle page cache makes room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CacheDonor {
    /// Its path.
    pub cgroup: String,
    /// Its `memory.reclaim`.
    pub file: String,
    /// At most so much.
    pub gives: Bytes,
}

/// How much to free, and where from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PretouchPlan {
    /// What was asked for, or what reservation or limit promise beyond what is used.
    pub promised: Bytes,
    /// What can be freed for it.
    pub size: Bytes,
    /// Why that is not more.
    pub bound: PretouchBound,
    /// What has to be reclaimed for it; zero where it is free already.
    pub reclaim: Bytes,
    /// The groups that give it, the host's own jobs first; empty where the kernel must choose.
    pub donors: Vec<CacheDonor>,
}

/// The plan for `group`; `asked` instead of what its files promise. `marks` are the zones' high watermarks together: memory
/// below them is kswapd's.
pub fn plan(facts: &HostFacts, group: &CgroupFacts, asked: Option<Bytes>, marks: Bytes) -> PretouchPlan {
    let host = &facts.host;
    let room = limit_headroom(facts, group);
    let promised = asked.unwrap_or_else(|| promised_memory(facts, group).saturating_sub(group.usage()));
    let free = host.meminfo("MemFree").unwrap_or_default().saturating_sub(marks);
    let bounds = [
        (promised, PretouchBound::Promise),
        (room, PretouchBound::Limit),
        (free.saturating_add(idle_cache(facts, group)), PretouchBound::Idle),
        (
            host.mem_available().saturating_sub(Bytes(AVAILABLE_RESERVE.of(host.mem_total().get()))),
            PretouchBound::Reserve,
        ),
    ];
    let (size, bound) = bounds.into_iter().min_by_key(|(n, _)| *n).expect("an array of four");
    let size = Bytes(size.get() >> 20 << 20);
    let reclaim = size.saturating_sub(free);
    PretouchPlan { promised, size, bound, reclaim, donors: donors(facts, group, reclaim) }
}

/// What a container may count on: its reservation, else its limit, else nothing.
fn promised_memory(facts: &HostFacts, group: &CgroupFacts) -> Bytes {
    let reserved = match facts.version(HierarchyController::Memory) {
        Some(ControllerVersion::V1) => {
            group.limit("memory.soft_limit_in_bytes").and_then(Limit::value).unwrap_or_default()
        }
        _ => own_protection(group),
    };
    if reserved > Bytes::ZERO { reserved } else { group.hard_limit().unwrap_or_default() }
}

/// What it may still take before a limit is reached, its own or one around it.
fn limit_headroom(facts: &HostFacts, group: &CgroupFacts) -> Bytes {
    let limits = std::iter::once(group).chain(facts.ancestors(group));
    limits
        .filter_map(|g| Some(crate::checks::measures::tightest_own_limit(g)?.1.saturating_sub(g.usage())))
        .min()
        .unwrap_or(Bytes(u64::MAX))
}

/// Page cache that was not used lately and that can be dropped at once, but for the container's own.
fn idle_cache(facts: &HostFacts, group: &CgroupFacts) -> Bytes {
    let line = |key: &str| facts.host.meminfo(key).unwrap_or_default();
    let unwritten = line("Dirty").saturating_add(line("Writeback"));
    line("Inactive(file)").saturating_sub(unwritten).saturating_sub(group.stat().inactive_file)
}

/// Cgroups without cgroups in them that hold idle page cache: first those that are no containers, then those that hold most.
fn donors(facts: &HostFacts, group: &CgroupFacts, need: Bytes) -> Vec<CacheDonor> {
    if need == Bytes::ZERO || facts.version(HierarchyController::Memory) != Some(ControllerVersion::V2) {
        return Vec::new();
    }
    let inside = |g: &CgroupFacts| g.path == group.path || g.path.starts_with(&format!("{}/", group.path));
    let leaf = |at: usize| !facts.groups.iter().any(|g| g.parent == Some(at));
    let mut able: Vec<(&CgroupFacts, Bytes)> = facts
        .groups
        .iter()
        .enumerate()
        .filter(|(at, g)| {
            g.parent.is_some() && !inside(g) && leaf(*at) && g.dirs.contains_key(&HierarchyController::Memory)
        })
        .map(|(_, g)| (g, reclaimable_cache(facts, g)))
        .filter(|(_, gives)| *gives >= MIN_RECLAIM)
        .collect();
    able.sort_by_key(|(g, gives)| (g.container.is_some(), std::cmp::Reverse(*gives)));
    let mut left = need;
    let mut donors = Vec::new();
    for (g, gives) in able {
        if left == Bytes::ZERO {
            break;
        }
        let gives = gives.min(left);
        left = left.saturating_sub(gives);
        donors.push(CacheDonor {
            cgroup: g.path.clone(),
            file: g.file(HierarchyController::Memory, "memory.reclaim"),
            gives,
        });
    }
    donors
}

/// Idle page cache of a cgroup that no reservation covers.
fn reclaimable_cache(facts: &HostFacts, group: &CgroupFacts) -> Bytes {
    let stat = group.stat();
    let unwritten = stat.file_dirty.saturating_add(stat.file_writeback);
    stat.inactive_file
        .saturating_sub(unwritten)
        .min(group.usage().saturating_sub(protected_memory(facts, group)))
}

/// What can be seen of a host that suffers, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StallSample {
    /// When.
    pub at: Micros,
    /// `MemTotal`.
    pub total: Bytes,
    /// `MemAvailable`.
    pub available: Bytes,
    /// Pages that went to swap since boot.
    pub pswpout: u64,
    /// How long everything in a container waited for memory since it was made, by the container's name; the host is `""`.
    pub stalled: BTreeMap<String, Micros>,
}

/// Why to stop: `calm` is the time before, `then` and `now` are two moments since. `None` where no container suffers more than before.
pub(crate) fn stop_reason(
    calm: (&StallSample, &StallSample),
    then: &StallSample,
    now: &StallSample,
) -> Option<String> {
    if now.available < Bytes(AVAILABLE_RESERVE.of(now.total.get())) {
        return Some(format!("only {} of the host's memory is available", now.available));
    }
    let rate = |from: &StallSample, to: &StallSample, count: &dyn Fn(&StallSample) -> Option<u64>| match to
        .at
        .saturating_sub(from.at)
    {
        Micros::ZERO => 0.0,
        time => count(to)
            .zip(count(from))
            .map_or(0.0, |(to, from)| to.saturating_sub(from) as f64 / time.get() as f64),
    };
    let swaps: &dyn Fn(&StallSample) -> Option<u64> = &|s| Some(s.pswpout);
    if rate(then, now, swaps) > 2.0 * rate(calm.0, calm.1, swaps) {
        return Some("the host began to swap".to_owned());
    }
    now.stalled.keys().find_map(|name| {
        let waits: &dyn Fn(&StallSample) -> Option<u64> = &|s| Some(s.stalled.get(name)?.get());
        let part = rate(then, now, waits);
        let who = if name.is_empty() { "the host" } else { name };
        (part > rate(calm.0, calm.1, waits) + MAX_STALL_INCREASE).then(|| {
            format!("{who} waited for memory {:.0} % of the time (memory.pressure full)", part * 100.0)
        })
    })
}

/// How much to hold of `size` for a container that used `before` and uses `now`: what it did not take yet, less a head start of
/// an eighth, so that memory is free before it is asked for. Never more than `held` now: what was handed over is the container's.
pub(crate) fn memory_to_hold(size: Bytes, held: Bytes, before: Bytes, now: Bytes) -> Bytes {
    let ahead = Bytes(size.get() / 8).min(Bytes::mib(256));
    let left = size.saturating_sub(now.saturating_sub(before));
    left.saturating_sub(ahead).min(held)
}

/// What a JVM was told about its heap; the last word counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JvmHeap {
    /// Its process.
    pub pid: i32,
    /// `-Xms`, `-XX:InitialHeapSize`.
    pub initial: Option<Bytes>,
    /// `-Xmx`, `-XX:MaxHeapSize`.
    pub max: Option<Bytes>,
    /// `-XX:+AlwaysPreTouch`.
    pub pretouch: bool,
}

impl JvmHeap {
    /// What it should be told; `None` where it touches its whole heap when it starts.
    pub fn advice(&self) -> Option<String> {
        let pid = self.pid;
        let whole = self.max.is_some() && self.initial == self.max;
        let sizes = match self.max {
            Some(max) if self.initial.is_some_and(|i| i > max) || max == Bytes::ZERO => return None,
            Some(max) => format!("-Xms{0}m -Xmx{0}m", max.get() >> 20),
            None => "-Xms equal to -Xmx".to_owned(),
        };
        match (self.pretouch, whole) {
            (true, true) => None,
            (true, false) => Some(format!(
                "the JVM {pid} touches only its first heap when it starts (-XX:+AlwaysPreTouch): start it with {sizes}, \
                 and all of it is its own from then on"
            )),
            (false, _) => Some(format!(
                "the JVM {pid} touches its heap when it needs it: start it with -XX:+AlwaysPreTouch {sizes}, which no one \
                 can do from outside"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn jvm(initial: Option<u64>, max: Option<u64>, pretouch: bool) -> JvmHeap {
        JvmHeap { pid: 7, initial: initial.map(Bytes::mib), max: max.map(Bytes::mib), pretouch }
    }

    #[test]
    fn a_jvm_is_told_what_it_lacks() {
        assert_eq!(jvm(Some(512), Some(512), true).advice(), None);
        let told = |j: JvmHeap| j.advice().unwrap_or_default();
        assert!(told(jvm(None, Some(512), true)).contains("start it with -Xms512m -Xmx512m"));
        assert!(told(jvm(Some(512), Some(512), false)).contains("-XX:+AlwaysPreTouch -Xms512m -Xmx512m"));
        assert!(told(jvm(None, None, false)).contains("-Xms equal to -Xmx"));
    }

    fn signs(at: u64, stalled: u64, pswpout: u64) -> StallSample {
        StallSample {
            at: Micros::millis(at),
            total: Bytes::gib(10),
            available: Bytes::gib(5),
            pswpout,
            stalled: [("web".to_owned(), Micros::millis(stalled))].into(),
        }
    }

    #[test]
    fn neighbours_that_wait_more_than_before_are_trouble() {
        let calm = (signs(0, 0, 0), signs(1_000, 10, 0));
        let says = |then: &StallSample, now: &StallSample| stop_reason((&calm.0, &calm.1), then, now);
        assert_eq!(says(&signs(1_000, 10, 0), &signs(1_200, 15, 0)), None);
        let waits = says(&signs(1_000, 10, 0), &signs(1_200, 40, 0)).unwrap();
        assert!(waits.contains("web waited for memory 15 %"), "{waits}");
        assert!(says(&signs(1_000, 10, 0), &signs(1_200, 10, 1)).unwrap().contains("swap"));
        let short = StallSample { available: Bytes::mib(900), ..signs(1_200, 10, 0) };
        assert!(says(&signs(1_000, 10, 0), &short).unwrap().contains("available"));
        // A container that is new or gone says nothing, and no time is no rate.
        assert_eq!(
            says(&StallSample { stalled: BTreeMap::new(), ..signs(1_000, 0, 0) }, &signs(1_200, 900, 0)),
            None
        );
        assert_eq!(says(&signs(1_000, 0, 0), &signs(1_000, 900, 9)), None);
    }

    #[test]
    fn a_container_that_waited_all_the_time_may_go_on_waiting() {
        let calm = (signs(0, 0, 0), signs(1_000, 500, 100));
        assert_eq!(stop_reason((&calm.0, &calm.1), &signs(1_000, 500, 100), &signs(2_000, 1_000, 250)), None);
    }

    proptest! {
        #[test]
        fn what_is_kept_never_grows(size in 0u64..1 << 40, before in 0u64..1 << 40, uses in prop::collection::vec(0u64..1 << 41, 1..20)) {
            let mut held = Bytes(size);
            for now in uses {
                let next = memory_to_hold(Bytes(size), held, Bytes(before), Bytes(now));
                prop_assert!(next <= held);
                // Never more than what it did not take.
                prop_assert!(next.get() <= size.saturating_sub(now.saturating_sub(before)));
                held = next;
            }
        }
    }
}
