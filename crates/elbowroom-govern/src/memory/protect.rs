//! Protection: what is kept for a container by the kernel's own means, which can only ever help it.

use super::member::{MemoryMember, ProtectionStatus};
use super::{to_bytes, to_f64};
use elbowroom_types::memory::{MemoryOrder, ReclaimProtection};
use elbowroom_types::probe::Colour;
use elbowroom_types::unit::{Bytes, Limit, Micros};

/// A change of less than this part, or of less than this, is not worth a write.
const HYSTERESIS: f64 = 0.02;
const MIN_CHANGE: f64 = (1 << 20) as f64;
/// The part of an entitlement that is kept: the rest is where growth of others is paid from, also of those outside containers. Of
/// what is reserved nearly all is, but not the last page: where everything is protected, reclaim protects nobody and takes many
/// pages at once (mm/vmscan.c, `memcg_low_reclaim`).
const PROTECTED_PART: f64 = 0.95;
const PROTECTED_RESERVATION: f64 = 0.995;
/// What somebody else wrote is left to him for this long.
pub(super) const FOREIGN_RETRY: Micros = Micros::secs(600);
/// What could not be done is tried again after this.
pub(super) const REFUSED_RETRY: Micros = Micros::secs(30);

/// The protection that a container should have, where it has another.
pub(super) fn protection_order(member: &mut MemoryMember, now: Micros) -> Option<MemoryOrder> {
    if !member.mechanisms.protection
        || !member.is_measured
        || member.exempt_reason.is_some()
        || now < member.unprotectable_until
    {
        return None;
    }
    let usage = member.usage();
    let (low, soft) = match member.colour() {
        _ if member.is_unpopulated() => (0.0, f64::INFINITY),
        _ if !member.mechanisms.protection_by_colour => {
            (PROTECTED_RESERVATION * member.reserve.min(member.nominal_entitlement), member.reserve)
        }
        // Who is idle is taken from by loans, in steps that are watched. Above a soft limit the kernel would take all of it at once,
        // and first, for whoever reads files.
        Colour::Green => (usage.min(member.floor), f64::INFINITY),
        // More than it uses: it is not to pay for its own growth.
        Colour::Yellow | Colour::Red => {
            let owed = member.entitlement;
            ((PROTECTED_PART * owed).max(PROTECTED_RESERVATION * member.reserve.min(owed)), owed)
        }
    };
    let guaranteed = member.claim.memory.guaranteed && !member.is_unpopulated();
    let protect = ReclaimProtection {
        at: now,
        group: member.id,
        low: to_bytes(low),
        min: if guaranteed { to_bytes(member.reserve) } else { Bytes::ZERO },
        // A soft limit of nothing would be an invitation.
        soft: if soft >= MIN_CHANGE && soft.is_finite() { Limit::At(to_bytes(soft)) } else { Limit::Max },
    };
    // What failed may be in force in part, and is to be put right also when it is to be taken off.
    let failed = matches!(member.protection, ProtectionStatus::Refused | ProtectionStatus::Foreign);
    if !failed && !differs(member.protect.as_ref(), &protect) {
        return None;
    }
    if failed {
        member.protection = ProtectionStatus::Pending;
    }
    member.protect = Some(protect);
    Some(MemoryOrder::Protect(protect))
}

fn differs(before: Option<&ReclaimProtection>, after: &ReclaimProtection) -> bool {
    let Some(before) = before else {
        return after.low > Bytes::ZERO || after.min > Bytes::ZERO || after.soft != Limit::Max;
    };
    let far = |a: Bytes, b: Bytes| {
        let (a, b) = (to_f64(a), to_f64(b));
        (a - b).abs() > (HYSTERESIS * a.max(b)).max(MIN_CHANGE) || (a == 0.0) != (b == 0.0)
    };
    let soft = match (before.soft, after.soft) {
        (Limit::At(a), Limit::At(b)) => far(a, b),
        (a, b) => a != b,
    };
    far(before.low, after.low) || before.min != after.min || soft
}
