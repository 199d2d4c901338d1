//! Limits and weights of a cgroup on a disk, as leases.
//!
//! v1 has a file per limit (`blkio.throttle.*_device`), v2 a field per limit in `io.max`. One knob here is one limit, so
//! that a limit of ours on writes does not touch one of the user's on reads.

use super::{CgroupKnob, KnobKey, LeaseOutcome, Leases, UnsetValue};
use crate::cgroup::{CgroupController, CgroupDir, CgroupLayout, CgroupVersion};
use elbowroom_types::id::{CgroupId, DeviceNumber};
use elbowroom_types::io::{IoLimits, IoMax, IoWeightMechanism, LimitWriteFailure};
use elbowroom_types::unit::Limit;
use std::path::Path;

/// v1 keeps operations per second in 32 bits, and takes the lower 32 of what is written (block/blk-throttle.c,
/// `tg_set_conf_uint`); the highest of them means no limit, on v2 too.
const MAX_IOPS: u64 = u32::MAX as u64 - 1;
/// The lowest limit the kernel takes: 0 means none on v1, and v2 refuses 0 and 1 (`tg_set_limit`).
const MIN_LIMIT: u64 = 2;

/// A container on a disk: what [`set_io_max`] is about.
#[derive(Clone, Copy, Debug)]
pub struct IoTarget<'a> {
    /// Where cgroups are.
    pub layout: &'a CgroupLayout,
    /// The container's cgroup, for the answer.
    pub group: CgroupId,
    /// Its path below the root of the hierarchy.
    pub path: &'a str,
    /// The disk.
    pub disk: DeviceNumber,
}

/// Puts our limits on a container, in place of ours before: of the user's and ours the tighter is in force.
/// [`IoMax::MAX`] and no weight take ours off.
///
/// `weight` is 1..=1000, the kernel's own scale for bfq and a part of iocost's; it is set where the disk divides by weight,
/// and where it cannot be, limits work all the same. Limits are all or nothing: where another program holds one of the four,
/// or the kernel refuses it, none of ours stays on this container and disk, and the answer says why.
pub fn set_io_max(
    leases: &mut Leases,
    place: &IoTarget<'_>,
    ours: IoMax,
    weight: Option<u16>,
    weights: Option<IoWeightMechanism>,
    because: &str,
) -> IoLimits {
    let answer = |user, ours, ceded| IoLimits { group: place.group, disk: place.disk, user, ours, ceded };
    let Some(knobs) = knobs(place.layout, place.path, place.disk) else {
        return answer(IoMax::MAX, IoMax::MAX, Some(LimitWriteFailure::Gone));
    };
    let asked = [bps(ours.rbps), bps(ours.wbps), iops(ours.riops), iops(ours.wiops)];
    let mut ceded = knobs.iter().any(|knob| leases.is_yielded(knob)).then_some(LimitWriteFailure::Foreign);
    for (knob, limit) in knobs.iter().zip(asked) {
        if ceded.is_none() {
            ceded = apply_limit(leases, knob, limit, because);
        }
    }
    for kind in [IoWeightMechanism::Iocost, IoWeightMechanism::Bfq] {
        let Some(knob) = weight_knob(place, kind) else { continue };
        // A disk that has another scheduler now, or none, keeps no weight of ours.
        let weight = weight.filter(|_| ceded.is_none() && weights == Some(kind));
        apply_weight(leases, &knob, weight, because);
    }
    if ceded.is_some() {
        for knob in &knobs {
            leases.release(knob);
        }
    }
    let user = knobs.each_ref().map(|knob| user_limit(leases, knob).unwrap_or(Limit::Max));
    // Also what could not be taken off.
    let in_force = knobs.each_ref().map(|knob| leases.ours(knob).unwrap_or(Limit::Max));
    answer(io_max(user), io_max(in_force), ceded)
}

fn apply_limit(
    leases: &mut Leases,
    knob: &CgroupKnob,
    limit: Limit<u64>,
    because: &str,
) -> Option<LimitWriteFailure> {
    let outcome = match limit {
        // The kernel takes the limits of a disk that was pulled out along: that is no other program's doing.
        Limit::Max => Ok(leases.release(knob)),
        Limit::At(_) => leases.tighten(knob, limit, because),
    };
    match outcome {
        Ok(LeaseOutcome::Written | LeaseOutcome::Unchanged) => None,
        Ok(LeaseOutcome::Foreign { .. }) => Some(LimitWriteFailure::Foreign),
        Ok(LeaseOutcome::Gone) => Some(LimitWriteFailure::Gone),
        Ok(LeaseOutcome::Refused(why)) => {
            tracing::debug!(%knob, %limit, because = %why, "limit not set");
            Some(LimitWriteFailure::Refused)
        }
        // The guard took everything away while the kernel held this write up for seconds: it is not tried again at once.
        Ok(LeaseOutcome::Revoked) => Some(LimitWriteFailure::Refused),
        // The ledger has said so in the log.
        Err(_) => Some(LimitWriteFailure::Refused),
    }
}

fn apply_weight(leases: &mut Leases, knob: &CgroupKnob, weight: Option<u16>, because: &str) {
    let outcome = match weight {
        Some(weight) => leases.set(knob, Limit::At(u64::from(weight)), because),
        None => Ok(leases.release(knob)),
    };
    if let Ok(LeaseOutcome::Refused(why)) = outcome {
        tracing::debug!(%knob, because = %why, "weight not set");
    }
}

fn user_limit(leases: &Leases, knob: &CgroupKnob) -> Option<Limit<u64>> {
    leases.before(knob).or_else(|| knob.read().ok())
}

const fn io_max([rbps, wbps, riops, wiops]: [Limit<u64>; 4]) -> IoMax {
    IoMax { rbps, wbps, riops, wiops }
}

fn bps(limit: Limit<u64>) -> Limit<u64> {
    match limit {
        Limit::At(n) if n < u64::MAX => Limit::At(n.max(MIN_LIMIT)),
        _ => Limit::Max,
    }
}

fn iops(limit: Limit<u64>) -> Limit<u64> {
    match limit {
        Limit::At(n) if n <= MAX_IOPS => Limit::At(n.max(MIN_LIMIT)),
        _ => Limit::Max,
    }
}

/// The knobs for bytes read and written and operations read and written, per second; `None` where the cgroup is not there.
fn knobs(layout: &CgroupLayout, path: &str, disk: DeviceNumber) -> Option<[CgroupKnob; 4]> {
    const V1: [&str; 4] = ["read_bps", "write_bps", "read_iops", "write_iops"];
    const V2: [&str; 4] = ["rbps", "wbps", "riops", "wiops"];
    let (version, dir) = io_dir(layout, path)?;
    let inode = dir.inode()?;
    let knob = |file: String, field: Option<&str>, unset| CgroupKnob {
        dir: dir.path(),
        inode,
        file,
        key: Some(KnobKey { device: disk, field: field.map(str::to_owned) }),
        unset,
    };
    Some(match version {
        CgroupVersion::V1 => {
            V1.map(|name| knob(format!("blkio.throttle.{name}_device"), None, UnsetValue::Zero))
        }
        CgroupVersion::V2 => V2.map(|field| knob("io.max".to_owned(), Some(field), UnsetValue::Max)),
    })
}

fn weight_knob(place: &IoTarget<'_>, weights: IoWeightMechanism) -> Option<CgroupKnob> {
    let (version, dir) = io_dir(place.layout, place.path)?;
    let file = match (weights, version) {
        (IoWeightMechanism::Iocost, CgroupVersion::V2) => "io.weight",
        (IoWeightMechanism::Bfq, CgroupVersion::V2) => "io.bfq.weight",
        (IoWeightMechanism::Bfq, CgroupVersion::V1) => "blkio.bfq.weight_device",
        // iocost has no v1 files (block/blk-iocost.c, `ioc_files`).
        (IoWeightMechanism::Iocost, CgroupVersion::V1) => return None,
    };
    let inode = dir.inode()?;
    let key = Some(KnobKey { device: place.disk, field: None });
    Some(CgroupKnob { dir: dir.path(), inode, file: file.to_owned(), key, unset: UnsetValue::Default })
}

fn io_dir<'a>(layout: &'a CgroupLayout, path: &'a str) -> Option<(CgroupVersion, CgroupDir<'a>)> {
    layout.dir(CgroupController::Io, Path::new(path.trim_start_matches('/')))
}
