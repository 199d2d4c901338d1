//! A poke: a limit is asked for so that the kernel reclaims, and is in force for a moment (`memory.high`) or never (v1).

use super::bounded::{self, Written};
use crate::lease::{Knob, KnobError, LeaseError, Leases, Outcome};
use elbowroom_types::unit::{Bytes, Limit};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// What a poke came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Poked {
    /// The kernel reclaimed all that was asked for.
    All,
    /// It gave up, or its time was over.
    Partly,
    /// The knob is somebody else's.
    Foreign,
    /// It cannot be done, and why.
    Refused(String),
    /// The cgroup is gone.
    Gone,
}

/// Lowers `memory.high` to `target`, where its user's value is above that, and puts it back. The lease is on record before the write.
pub(super) fn poke(leases: &mut Leases, knob: &Knob, target: Bytes, patience: Duration) -> Poked {
    let page = rustix::param::page_size() as u64;
    // The kernel counts pages: any other number would read back as somebody else's.
    let target = Limit::At(target.get() / page * page);
    with_lease(leases, knob, target, |file, line| bounded::write(file, line, patience))
}

/// Asks for a v1 `memory.limit_in_bytes` of nothing until usage, which `usage` is the file of, is down to `target`. The kernel reclaims
/// first and sets the limit when usage fits, which is when nothing is left in a group: for that it is on record.
pub(super) fn press(
    leases: &mut Leases,
    knob: &Knob,
    usage: &OwnedFd,
    target: Bytes,
    patience: Duration,
) -> Poked {
    // Where it cannot be read, no lease is had.
    let found = knob.read().unwrap_or(Limit::Max);
    let back = knob.line(found);
    // Its user has set another meanwhile.
    let is_moot = || knob.read().is_ok_and(|now| now != found);
    let mut is_down = false;
    let poked = with_lease(leases, knob, Limit::At(0), |file, line| {
        match bounded::press(file, line, back.as_bytes(), usage, target.get(), patience, is_moot) {
            // Nothing of ours is in force.
            Written::All => {
                is_down = true;
                Written::Late
            }
            written => written,
        }
    });
    if is_down && poked == Poked::Partly { Poked::All } else { poked }
}

fn with_lease(
    leases: &mut Leases,
    knob: &Knob,
    target: Limit<u64>,
    write: impl FnOnce(&OwnedFd, &[u8]) -> Written,
) -> Poked {
    let mut written = Written::All;
    let outcome = leases.set_by(
        knob,
        |user| user.min(target),
        |knob, value| {
            knob.write_by(value, OFlags::empty(), |file, line| {
                written = write(file, line);
                match written {
                    Written::All => Ok(()),
                    Written::Refused(errno) => Err(errno),
                    Written::Late => Err(Errno::INTR),
                }
            })
        },
        "reclaim",
    );
    match leases.release(knob) {
        Outcome::Foreign { .. } => return Poked::Foreign,
        Outcome::Refused(why) => {
            tracing::error!(%knob, because = %why, "a limit that was lowered to reclaim cannot be put back now");
        }
        _ => {}
    }
    match outcome {
        Ok(Outcome::Written | Outcome::Unchanged) if written == Written::All => Poked::All,
        Ok(Outcome::Written | Outcome::Unchanged | Outcome::Revoked) => Poked::Partly,
        // EBUSY: v1 reclaims first, and sets nothing when usage does not come down.
        Ok(Outcome::Refused(KnobError::Refused(Errno::BUSY | Errno::INTR | Errno::AGAIN))) => Poked::Partly,
        Ok(Outcome::Refused(why)) => Poked::Refused(format!("{knob}: {why}")),
        Ok(Outcome::Foreign { .. }) => Poked::Foreign,
        Ok(Outcome::Gone) => Poked::Gone,
        Err(error @ LeaseError::Io { .. }) => Poked::Refused(error.to_string()),
        Err(error) => Poked::Refused(error.to_string()),
    }
}
