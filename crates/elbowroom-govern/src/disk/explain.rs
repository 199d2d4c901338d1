//! Decisions as sentences, with the numbers that decided.

use super::flow::per_second;

/// Why a disk with swap is not governed.
pub(super) const SWAP_EXEMPT: &str =
    "it carries swap: a limit here could hold up the memory of everybody, so it is watched only";

/// Why a disk is left alone after the brake.
pub(super) const INVERSION_EXEMPT: &str = "everybody waited for I/O while the disk was idle and limits of ours were in force: none for five minutes";
/// Why nobody is limited.
pub(super) const UNCONTENDED: &str = "nobody had to share the disk for ten minutes: no limits";

/// What decided about a limit, in parts of the disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitInputs<'a> {
    pub(super) disk: &'a str,
    pub(super) share: f64,
    pub(super) lifeline: f64,
    pub(super) elasticity: f64,
    pub(super) reserve: f64,
    /// What is kept for others.
    pub(super) kept_for_others: f64,
    /// How many of those use the disk.
    pub(super) others: usize,
    pub(super) weight: f64,
    pub(super) queue: f64,
    pub(super) latency_ratio: f64,
    pub(super) target: f64,
}

pub(super) fn guard(facts: &LimitInputs<'_>) -> String {
    format!(
        "guard: {} has room; {} is kept for {}, so this container may take {} of it at once",
        facts.disk,
        percent(facts.kept_for_others),
        containers(facts.others),
        percent(facts.share),
    )
}

pub(super) fn share(facts: &LimitInputs<'_>) -> String {
    let protected = facts.lifeline * (1.0 + facts.elasticity);
    let due = match () {
        () if facts.reserve > protected => format!("its reservation of {}", percent(facts.reserve)),
        () if facts.lifeline < 0.0005 => "a container without a lifeline".to_owned(),
        () => {
            format!("its lifeline of {} and {} above it", percent(facts.lifeline), percent(facts.elasticity))
        }
    };
    let wait = match facts.latency_ratio {
        ratio if ratio.is_finite() => format!("requests take {ratio:.0} times as long as on a quiet day"),
        _ => "no request completed".to_owned(),
    };
    format!(
        "share: {} is full ({:.1} requests under way, {wait}); {} of it is divided among this container and {}: {} for \
         {due} and its part by weight {} of the rest",
        facts.disk,
        facts.queue,
        percent(facts.target),
        containers(facts.others),
        percent(facts.share),
        facts.weight,
    )
}

pub(super) fn weighted(disk: &str, weight: u16) -> String {
    format!(
        "{disk} divides itself by weight; {weight} is this container's part by what it needs, 100 the mean"
    )
}

pub(super) fn unlimited(never: Option<&str>, alone: bool, latency: bool, disk: &str) -> String {
    match never {
        Some(why) => why.to_owned(),
        None if alone => format!("nobody else uses {disk}: no limit"),
        None if latency => format!("{disk} has room, and this container must not wait for a limit: none"),
        None => format!("it did not use {disk} for ten minutes: no limit"),
    }
}

pub(super) fn overcommit(disk: &str, promised: f64) -> String {
    format!(
        "containers need or were promised {} of what {disk} can do: get a faster disk, move a container elsewhere, or lower a \
         reservation",
        percent(promised),
    )
}

pub(super) fn degraded(disk: &str, part: f64) -> String {
    format!(
        "{disk} does {} of what it did on most of the last 24 hours: look at its health, its cloud credits, and who else uses it",
        percent(part),
    )
}

pub(super) fn inversion(disk: &str) -> String {
    format!(
        "limits on {disk} held everybody up while it was idle; they are off for five minutes: look who holds a lock that others \
         wait for, often a journal, and give it a larger reservation"
    )
}

pub(super) fn starved(container: &str, disk: &str, used: f64, lifeline: f64, queue: f64) -> String {
    format!(
        "{container} gets {} of {disk} and needs {} ({queue:.1} requests under way): give it a reservation or a weight, or move a \
         container elsewhere",
        percent(used),
        percent(lifeline),
    )
}

pub(super) fn escapes(container: &str, disk: &str) -> String {
    format!(
        "what {container} does on {disk} goes past its limits: writes through the page cache reach a disk in nobody's name, and cgroup v1 \
         holds no cgroup below the container's own: use cgroup v2 with a file system that has cgroup writeback, or direct I/O"
    )
}

fn containers(n: usize) -> String {
    match n {
        1 => "one other".to_owned(),
        n => format!("{n} others"),
    }
}

pub(super) fn aridac(lifeline: f64, elasticity: f64, samples: usize, max_disk_io: f64, idle: f64) -> String {
    format!(
        "aridac: the last {samples} samples average {} of {}, its lifeline; the cap is {} above it, and grows by at most the \
         {} that nobody uses",
        percent(lifeline),
        per_second(max_disk_io),
        percent(elasticity),
        percent(idle.max(0.0)),
    )
}

pub(super) fn aridac_overcommit(disk: &str, promised: f64, max_disk_io: f64) -> String {
    format!(
        "the caps on {disk} add up to {} of its {}: get a faster disk, or move a container elsewhere",
        percent(promised),
        per_second(max_disk_io),
    )
}

pub(super) fn foreign(container: &str, disk: &str) -> String {
    format!(
        "somebody else set a limit of {container} on {disk} that was ours; it is theirs for ten minutes, and then counts as their own: one of \
         the two should stop"
    )
}

pub(super) fn refused(container: &str, disk: &str) -> String {
    format!(
        "the kernel has no limit for {container} on {disk}, or refused it: look whether its cgroup has the io controller (v1: \
         blkio); tried again every five minutes"
    )
}

/// `17%`; one decimal where a whole number says little.
pub(super) fn percent(part: f64) -> String {
    let percent = part * 100.0;
    if percent.abs() < 9.95 && percent != 0.0 { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
}
