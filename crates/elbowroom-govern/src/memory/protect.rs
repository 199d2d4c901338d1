//! Protection: what is kept for a container by the kernel's own means, which can only ever help it.

use super::member::{MemoryMember, ProtectionStatus};
use super::tuning::TUNING;
use super::{to_bytes, to_f64};
use elbowroom_types::memory::{MemoryOrder, ReclaimProtection};
use elbowroom_types::probe::Colour;
use elbowroom_types::unit::{Bytes, Limit, Micros};

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
        _ if !member.mechanisms.protection_by_colour => (
            TUNING.protected_reservation * member.reservation.min(member.nominal_entitlement),
            member.reservation,
        ),
        // An idle container is taken from by loans, in steps that are watched. Above a soft limit the kernel would take all of it at once,
        // and first, for any program that reads files.
        Colour::Green => (usage.min(member.minimum), f64::INFINITY),
        // More than it uses: it is not to pay for its own growth.
        Colour::Yellow | Colour::Red => {
            let owed = member.entitlement;
            ((TUNING.protected * owed).max(TUNING.protected_reservation * member.reservation.min(owed)), owed)
        }
    };
    let guaranteed = member.claim.memory.guaranteed && !member.is_unpopulated();
    let protect = ReclaimProtection {
        at: now,
        group: member.id,
        low: to_bytes(low),
        min: if guaranteed { to_bytes(member.reservation) } else { Bytes::ZERO },
        // A soft limit of nothing would be an invitation.
        soft: if soft >= TUNING.min_amount && soft.is_finite() {
            Limit::At(to_bytes(soft))
        } else {
            Limit::Max
        },
    };
    // What failed may be in force in part, and is to be put right also when it is to be taken off.
    let failed = matches!(member.protection, ProtectionStatus::Refused | ProtectionStatus::Foreign);
    // The kubelet writes what it protects anew every minute (MemoryQoS), also around its containers.
    let stale = member.is_of_kubernetes
        && member.protect.is_some_and(|before| {
            before.low.max(before.min) > Bytes::ZERO && now.saturating_sub(before.at) >= TUNING.refused_retry
        });
    if !failed && !stale && !differs(member.protect.as_ref(), &protect) {
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
        (a - b).abs() > (TUNING.noise * a.max(b)).max(TUNING.min_amount) || (a == 0.0) != (b == 0.0)
    };
    let soft = match (before.soft, after.soft) {
        (Limit::At(a), Limit::At(b)) => far(a, b),
        (a, b) => a != b,
    };
    far(before.low, after.low) || before.min != after.min || soft
}
