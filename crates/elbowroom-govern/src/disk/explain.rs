//! Decisions as sentences, with the numbers that decided.

use super::flow::per_second;

/// Why a disk with swap is not governed.
pub(super) const SWAP_EXEMPT: &str =
    "it carries swap: a limit here could delay the memory of every container, so the disk is only watched";

/// Why a disk is left alone after a priority inversion.
pub(super) const INVERSION_EXEMPT: &str = "a container without a limit waited for I/O while the disk was not busy and the agent limited others: limits are backed off for ten minutes";
/// Why a container is not limited.
pub(super) const UNCONTENDED: &str =
    "no container on the disk was short of what it needs for ten minutes: no limits";

/// Why a container is cut: how slow the disk is; which container is short, what it gets and needs; what this one took, needs and may take
/// now.
pub(super) fn cut(
    disk: &str,
    ratio: f64,
    (short, gets, needs): (&str, f64, f64),
    [took, own, cap]: [f64; 3],
) -> String {
    let [gets, needs, took, own, cap] = [gets, needs, took, own, cap].map(per_second);
    format!(
        "shared out: {disk} is slow (requests take {ratio:.1} times as long as on a quiet day) and {short} gets {gets} of the {needs} it needs; this \
         container takes {took} and needs {own}: it may take {cap}"
    )
}

/// Why a limit becomes looser.
pub(super) fn grow(disk: &str, cap: f64) -> String {
    let cap = per_second(cap);
    format!(
        "limiting bursts: no container on {disk} is short of what it needs now: this one may take {cap}, more each second"
    )
}

pub(super) fn weighted(disk: &str, weight: u16) -> String {
    format!(
        "{disk} divides itself by weight; {weight} is this container's part by what it needs, 100 the mean"
    )
}

pub(super) fn overcommit(disk: &str, promised: f64) -> String {
    format!(
        "containers need or were promised {} of what {disk} can do: get a faster disk, move a container to another disk, or lower \
         a reservation",
        percent(promised),
    )
}

pub(super) fn degraded(disk: &str, part: f64) -> String {
    format!(
        "{disk} does {} of what it did at its best of about a day: look at its health, its cloud credits, and what else uses it",
        percent(part),
    )
}

pub(super) fn inversion(disk: &str) -> String {
    format!(
        "limits on {disk} delayed every container while the disk was idle; they are backed off for ten minutes: find the container that \
         holds a lock that others wait for, often a file system's journal, and give it a larger reservation"
    )
}

pub(super) fn starved(container: &str, disk: &str, gets: &str, needs: &str, queue: f64) -> String {
    format!(
        "{container} gets {gets} of {disk} and needs {needs} ({queue:.1} requests under way): give it a reservation or a weight, or move a \
         container to another disk"
    )
}

pub(super) fn escapes(container: &str, disk: &str) -> String {
    format!(
        "what {container} does on {disk} goes past its limits: writes through the page cache reach a disk without their container's \
         name, and cgroup v1 limits no cgroup below the container's own: use cgroup v2 with a file system that has cgroup writeback, or direct I/O"
    )
}

pub(super) fn aridac(lifeline: f64, elasticity: f64, samples: usize, max_disk_io: f64, idle: f64) -> String {
    format!(
        "aridac: the last {samples} samples average {} of {}, its protected rate (lifeline); the cap is {} above it, and \
         grows by at most the {} that no container uses",
        percent(lifeline),
        per_second(max_disk_io),
        percent(elasticity),
        percent(idle.max(0.0)),
    )
}

pub(super) fn aridac_overcommit(disk: &str, promised: f64, max_disk_io: f64) -> String {
    format!(
        "the caps on {disk} add up to {} of its {}: get a faster disk, or move a container to another disk",
        percent(promised),
        per_second(max_disk_io),
    )
}

pub(super) fn foreign(container: &str, disk: &str) -> String {
    format!(
        "another program changed a limit of {container} on {disk} that was the agent's: the agent leaves it alone for ten minutes, and then \
         takes it for the user's own. Let only one of the two set it"
    )
}

pub(super) fn refused(container: &str, disk: &str) -> String {
    format!(
        "the kernel has no limit for {container} on {disk}, or refused it: check that its cgroup has the io controller \
         (v1: blkio); tried again every ten minutes"
    )
}

/// `17%`; one decimal where a whole number says little.
pub(super) fn percent(part: f64) -> String {
    let percent = part * 100.0;
    if percent.abs() < 9.95 && percent != 0.0 { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
}
