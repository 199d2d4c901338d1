//! Protection from reclaim that others cause: v2 `memory.low` and `memory.min`, v1 the soft limit.
//!
//! On v2 a claim counts only as far as every cgroup above makes it too (mm/page_counter.c, `effective_protection`). So
//! each cgroup above gets what its user set, plus what our claims below it add. It gets no less than the sum of all
//! claims of containers below it, because a claim of a container's own user may have had no cover. What a user of the host writes into
//! a cgroup of its own gets no cover from us. Parents are raised before children and lowered after them: no claim of ours is ever without
//! cover.

use crate::cgroup::{CgroupController, CgroupDir, CgroupLayout, CgroupVersion};
use crate::lease::{CgroupKnob, KnobError, LeaseError, LeaseOutcome, Leases, UnsetValue};
use elbowroom_types::container::is_of_kubernetes;
use elbowroom_types::id::CgroupId;
use elbowroom_types::memory;
use elbowroom_types::memory::ReclaimProtection;
use elbowroom_types::unit::Limit;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The files that protect on v2.
const PROTECTION_FILES: [&str; 2] = ["memory.low", "memory.min"];

/// What is claimed for containers now.
#[derive(Debug, Default)]
pub(super) struct ProtectionWriter {
    claims_by_group: BTreeMap<CgroupId, ContainerProtection>,
}

#[derive(Debug)]
struct ContainerProtection {
    path: PathBuf,
    /// In the order of [`PROTECTION_FILES`].
    claims: [ProtectionClaim; 2],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ProtectionClaim {
    /// What ours adds to its user's claim.
    added: u64,
    /// What is claimed, by its user or by us, whichever is more: what the cgroups above have to cover.
    total: u64,
}

impl ProtectionClaim {
    /// `is_made_by_root`: what the container's user claims is an operator's or an engine's word.
    fn new(ours: u64, user: Option<u64>, is_made_by_root: bool) -> Self {
        match user {
            Some(user) if ours > 0 => {
                let total = if is_made_by_root { ours.max(user) } else { ours };
                Self { added: ours.saturating_sub(user), total }
            }
            // All of it is protected already, or it is not known.
            _ => Self { added: 0, total: ours },
        }
    }

    const fn exceeds(self, other: Self) -> bool {
        self.added > other.added || self.total > other.total
    }
}

impl ProtectionWriter {
    /// Puts a claim in force in place of the last one for its container.
    pub(super) fn set(
        &mut self,
        layout: &CgroupLayout,
        leases: &mut Leases,
        order: &ReclaimProtection,
        path: &Path,
    ) -> memory::OrderOutcome {
        let Some((version, dir)) = layout.dir(CgroupController::Memory, path) else {
            return memory::OrderOutcome::Refused("no memory controller".into());
        };
        if version == CgroupVersion::V1 {
            let Some(knob) = CgroupKnob::new(&dir, "memory.soft_limit_in_bytes", None, UnsetValue::MinusOne)
            else {
                return memory::OrderOutcome::Gone;
            };
            let soft = whole_pages(order.soft);
            // A soft limit of the user's is a promise: ours never makes it smaller.
            let kept = |user: Limit<u64>| match (user, soft) {
                (user, Limit::Max) => user,
                (Limit::At(user), Limit::At(soft)) => Limit::At(user.max(soft)),
                (Limit::Max, soft) => soft,
            };
            return outcome(&knob, write_protection(leases, &knob, kept));
        }
        let mut worst = memory::OrderOutcome::Done;
        let made_by_root = layout.is_made_by_root(path);
        for (at, (file, claim)) in PROTECTION_FILES.into_iter().zip([order.low, order.min]).enumerate() {
            let Some(knob) = protection_knob(leases, &dir, path, file) else {
                self.forget(layout, leases, order.group);
                return memory::OrderOutcome::Gone;
            };
            let user = leases.before(&knob).map_or_else(|| knob.read(), Ok);
            // Where all of it is protected already, or it is not known, nothing is added.
            let user = user.ok().and_then(Limit::value);
            let claim = ProtectionClaim::new(order_pages(claim.get()), user, made_by_root);
            let shield = self
                .claims_by_group
                .entry(order.group)
                .or_insert_with(|| ContainerProtection { path: path.to_owned(), claims: Default::default() });
            let before = std::mem::replace(&mut shield.claims[at], claim);
            let own = |leases: &mut Leases| {
                outcome(&knob, write_protection(leases, &knob, |user| add_to_limit(user, claim.added)))
            };
            if claim.exceeds(before) {
                worst = worse(worst, self.update_ancestors(layout, leases, path, at, WriteOrder::TopDown));
                worst = worse(worst, own(leases));
            } else {
                worst = worse(worst, own(leases));
                worst = worse(worst, self.update_ancestors(layout, leases, path, at, WriteOrder::BottomUp));
            }
        }
        if order.low.get() == 0 && order.min.get() == 0 {
            self.claims_by_group.remove(&order.group);
        }
        worst
    }

    /// Forgets a container that is gone; those above it need less.
    pub(super) fn forget(&mut self, layout: &CgroupLayout, leases: &mut Leases, group: CgroupId) {
        let Some(shield) = self.claims_by_group.remove(&group) else { return };
        for at in 0..PROTECTION_FILES.len() {
            self.update_ancestors(layout, leases, &shield.path, at, WriteOrder::BottomUp);
        }
    }

    /// Nothing of ours is in force any more.
    pub(super) fn clear(&mut self) {
        self.claims_by_group.clear();
    }

    /// Brings the cgroups above `path`, but not the root, to what those below them need. One that another program writes is left
    /// to it, and no reason to give the container's own knob up.
    fn update_ancestors(
        &self,
        layout: &CgroupLayout,
        leases: &mut Leases,
        path: &Path,
        at: usize,
        order: WriteOrder,
    ) -> memory::OrderOutcome {
        let mut above: Vec<&Path> =
            path.ancestors().skip(1).take_while(|group| !group.as_os_str().is_empty()).collect();
        if order == WriteOrder::TopDown {
            above.reverse();
        }
        let mut worst = memory::OrderOutcome::Done;
        for group in above {
            let Some((_, dir)) = layout.dir(CgroupController::Memory, group) else { continue };
            let Some(knob) = protection_knob(leases, &dir, group, PROTECTION_FILES[at]) else { continue };
            let sum = self.sum_below(group, at);
            let covers = |user| match add_to_limit(user, sum.added) {
                Limit::At(all) => Limit::At(all.max(sum.total)),
                Limit::Max => Limit::Max,
            };
            let done = match outcome(&knob, write_protection(leases, &knob, covers)) {
                memory::OrderOutcome::Foreign => {
                    memory::OrderOutcome::Refused(format!("{knob}: another program set it"))
                }
                done => done,
            };
            worst = worse(worst, done);
        }
        worst
    }

    /// What containers below a group make it claim.
    fn sum_below(&self, group: &Path, at: usize) -> ProtectionClaim {
        let mut sum = ProtectionClaim::default();
        for shield in self
            .claims_by_group
            .values()
            .filter(|shield| shield.path.starts_with(group) && shield.path != group)
        {
            let claim = shield.claims[at];
            sum.added = sum.added.saturating_add(claim.added);
            sum.total = sum.total.saturating_add(claim.total);
        }
        sum
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteOrder {
    TopDown,
    BottomUp,
}

/// A file of a cgroup. The kubelet's word is its owner's, whenever it writes: with MemoryQoS it does every minute.
fn protection_knob(leases: &mut Leases, dir: &CgroupDir<'_>, group: &Path, file: &str) -> Option<CgroupKnob> {
    let knob = CgroupKnob::new(dir, file, None, UnsetValue::Max)?;
    if group.to_str().is_some_and(is_of_kubernetes) {
        leases.adopt(&knob);
    }
    Some(knob)
}

/// A value that is the user's own is no lease; asking for it ends ours.
fn write_protection(
    leases: &mut Leases,
    knob: &CgroupKnob,
    value: impl FnOnce(Limit<u64>) -> Limit<u64>,
) -> Result<LeaseOutcome, LeaseError> {
    leases.set_with(knob, value, CgroupKnob::write, "protect")
}

fn add_to_limit(user: Limit<u64>, extra: u64) -> Limit<u64> {
    match user {
        Limit::At(user) => Limit::At(user.saturating_add(extra)),
        Limit::Max => Limit::Max,
    }
}

/// The kernel keeps whole pages: any other number would read back as another program's.
fn order_pages(bytes: u64) -> u64 {
    let page = rustix::param::page_size() as u64;
    bytes / page * page
}

fn whole_pages(limit: Limit<elbowroom_types::unit::Bytes>) -> Limit<u64> {
    match limit {
        Limit::At(bytes) => Limit::At(order_pages(bytes.get())),
        Limit::Max => Limit::Max,
    }
}

/// What became of a change, in the governor's words.
pub(super) fn outcome(knob: &CgroupKnob, changed: Result<LeaseOutcome, LeaseError>) -> memory::OrderOutcome {
    match changed {
        Ok(LeaseOutcome::Written | LeaseOutcome::Unchanged) => memory::OrderOutcome::Done,
        Ok(LeaseOutcome::Foreign { .. }) => memory::OrderOutcome::Foreign,
        Ok(LeaseOutcome::Gone | LeaseOutcome::Refused(KnobError::Gone)) => memory::OrderOutcome::Gone,
        Ok(LeaseOutcome::Refused(why)) => memory::OrderOutcome::Refused(format!("{knob}: {why}")),
        Ok(LeaseOutcome::Revoked) => {
            memory::OrderOutcome::Refused("the guard has taken all limits off".into())
        }
        Err(error) => memory::OrderOutcome::Refused(error.to_string()),
    }
}

/// The one that matters more.
fn worse(a: memory::OrderOutcome, b: memory::OrderOutcome) -> memory::OrderOutcome {
    if a == memory::OrderOutcome::Done { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_writes_into_its_own_cgroup_is_covered_by_none_around_it() {
        // Ours, its user's, whether root made it; what is added to it, and what the groups above have to cover.
        for (ours, user, is_made_by_root, added, total) in [
            (8, Some(0), true, 8, 8),
            (8, Some(60), true, 0, 60),
            (8, Some(60), false, 0, 8),
            (8, Some(6), false, 2, 8),
            (0, Some(60), true, 0, 0),
            (0, Some(60), false, 0, 0),
            (8, None, false, 0, 8),
        ] {
            let claim = ProtectionClaim::new(ours, user, is_made_by_root);
            assert_eq!(claim, ProtectionClaim { added, total }, "{ours} {user:?} {is_made_by_root}");
        }
    }
}
