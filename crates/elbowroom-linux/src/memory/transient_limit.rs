//! A transient limit: it is asked for so that the kernel reclaims, and is in force for a moment (`memory.high`) or never (v1).

use super::bounded_write::{self, BoundedWrite};
use crate::lease::{CgroupKnob, KnobError, LeaseError, LeaseOutcome, Leases};
use elbowroom_types::unit::{Bytes, Limit};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// What a transient limit came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TransientLimitOutcome {
    /// The kernel reclaimed all that was asked for.
    Complete,
    /// It gave up, or its time was over.
    Partial,
    /// The knob is another program's.
    Foreign,
    /// It cannot be done, and why.
    Refused(String),
    /// The cgroup is gone.
    Gone,
}

/// Lowers `memory.high` to `target`, where its user's value is above that, and puts it back. The lease is on record before the write.
pub(super) fn lower_high_briefly(
    leases: &mut Leases,
    knob: &CgroupKnob,
    target: Bytes,
    patience: Duration,
) -> TransientLimitOutcome {
    let page = rustix::param::page_size() as u64;
    // The kernel counts pages: any other number would read back as another program's.
    let target = Limit::At(target.get() / page * page);
    with_lease(leases, knob, target, |file, line| bounded_write::write(file, line, patience))
}

/// Asks for a v1 `memory.limit_in_bytes` of nothing until usage, which `usage` is the file of, is down to `target`. The kernel reclaims
/// first and sets the limit when usage fits, which is when nothing is left in a group: for that it is on record.
pub(super) fn request_unreachable_limit(
    leases: &mut Leases,
    knob: &CgroupKnob,
    usage: &OwnedFd,
    target: Bytes,
    patience: Duration,
) -> TransientLimitOutcome {
    // Where it cannot be read, no lease is had.
    let found = knob.read().unwrap_or(Limit::Max);
    let back = knob.format_line(found);
    // Its user has set another meanwhile.
    let is_moot = || knob.read().is_ok_and(|now| now != found);
    let mut is_down = false;
    let outcome = with_lease(leases, knob, Limit::At(0), |file, line| {
        match bounded_write::reclaim_by_unreachable_limit(
            file,
            line,
            back.as_bytes(),
            usage,
            target.get(),
            patience,
            is_moot,
        ) {
            // Nothing of ours is in force.
            BoundedWrite::Complete => {
                is_down = true;
                BoundedWrite::TimedOut
            }
            written => written,
        }
    });
    if is_down && outcome == TransientLimitOutcome::Partial {
        TransientLimitOutcome::Complete
    } else {
        outcome
    }
}

fn with_lease(
    leases: &mut Leases,
    knob: &CgroupKnob,
    target: Limit<u64>,
    write: impl FnOnce(&OwnedFd, &[u8]) -> BoundedWrite,
) -> TransientLimitOutcome {
    let mut written = BoundedWrite::Complete;
    let outcome = leases.set_with(
        knob,
        |user| user.min(target),
        |knob, value| {
            knob.write_with(value, OFlags::empty(), |file, line| {
                written = write(file, line);
                match written {
                    BoundedWrite::Complete => Ok(()),
                    BoundedWrite::Refused(errno) => Err(errno),
                    BoundedWrite::TimedOut => Err(Errno::INTR),
                }
            })
        },
        "reclaim",
    );
    match leases.release(knob) {
        LeaseOutcome::Foreign { .. } => return TransientLimitOutcome::Foreign,
        LeaseOutcome::Refused(why) => {
            tracing::error!(%knob, because = %why, "a limit that was lowered to reclaim cannot be put back now");
        }
        _ => {}
    }
    match outcome {
        Ok(LeaseOutcome::Written | LeaseOutcome::Unchanged) if written == BoundedWrite::Complete => {
            TransientLimitOutcome::Complete
        }
        Ok(LeaseOutcome::Written | LeaseOutcome::Unchanged | LeaseOutcome::Revoked) => {
            TransientLimitOutcome::Partial
        }
        // EBUSY: v1 reclaims first, and sets nothing when usage does not come down.
        Ok(LeaseOutcome::Refused(KnobError::Refused(Errno::BUSY | Errno::INTR | Errno::AGAIN))) => {
            TransientLimitOutcome::Partial
        }
        Ok(LeaseOutcome::Refused(why)) => TransientLimitOutcome::Refused(format!("{knob}: {why}")),
        Ok(LeaseOutcome::Foreign { .. }) => TransientLimitOutcome::Foreign,
        Ok(LeaseOutcome::Gone) => TransientLimitOutcome::Gone,
        Err(error @ LeaseError::Io { .. }) => TransientLimitOutcome::Refused(error.to_string()),
        Err(error) => TransientLimitOutcome::Refused(error.to_string()),
    }
}
