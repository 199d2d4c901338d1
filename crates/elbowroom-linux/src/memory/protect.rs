//! Protection from reclaim that others cause: v2 `memory.low` and `memory.min`, v1 the soft limit.
//!
//! On v2 a claim counts only as far as every cgroup above makes it too (mm/page_counter.c, `effective_protection`), so
//! each of those gets what its user set and the sum of what ours below it add to theirs, and no less than the sum of all that
//! is claimed for containers below it: a claim of a container's own user may have had no cover. Parents are raised before
//! children and lowered after them: no claim of ours is ever without cover.

use crate::cgroup::{Controller, Layout, Version};
use crate::lease::{Knob, KnobError, LeaseError, Leases, Outcome, Unset};
use elbowroom_types::memory;
use elbowroom_types::memory::Protect;
use elbowroom_types::sample::GroupId;
use elbowroom_types::unit::Limit;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The files that protect on v2.
const FILES: [&str; 2] = ["memory.low", "memory.min"];

/// What is claimed for containers now.
#[derive(Debug, Default)]
pub(super) struct Shields {
    of: BTreeMap<GroupId, Shield>,
}

#[derive(Debug)]
struct Shield {
    path: PathBuf,
    /// In the order of [`FILES`].
    claims: [Claim; 2],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Claim {
    /// What ours adds to its user's claim.
    extra: u64,
    /// What is claimed, by its user or by us, whichever is more.
    whole: u64,
}

impl Claim {
    fn new(ours: u64, user: Option<u64>) -> Self {
        match user {
            Some(user) if ours > 0 => Self { extra: ours.saturating_sub(user), whole: ours.max(user) },
            // All of it is protected already, or nobody knows.
            _ => Self { extra: 0, whole: ours },
        }
    }

    const fn exceeds(self, other: Self) -> bool {
        self.extra > other.extra || self.whole > other.whole
    }
}

impl Shields {
    /// Puts a claim in force in place of the last one for its container.
    pub(super) fn set(
        &mut self,
        layout: &Layout,
        leases: &mut Leases,
        order: &Protect,
        path: &Path,
    ) -> memory::Outcome {
        let Some((version, dir)) = layout.dir(Controller::Memory, path) else {
            return memory::Outcome::Refused("no memory controller".into());
        };
        if version == Version::V1 {
            let Some(knob) = Knob::new(&dir, "memory.soft_limit_in_bytes", None, Unset::MinusOne) else {
                return memory::Outcome::Gone;
            };
            let soft = whole_pages(order.soft);
            // A soft limit of the user's is a promise: ours never makes it smaller.
            let kept = |user: Limit<u64>| match (user, soft) {
                (user, Limit::Max) => user,
                (Limit::At(user), Limit::At(soft)) => Limit::At(user.max(soft)),
                (Limit::Max, soft) => soft,
            };
            return outcome(&knob, set(leases, &knob, kept));
        }
        let mut worst = memory::Outcome::Done;
        for (at, (file, claim)) in FILES.into_iter().zip([order.low, order.min]).enumerate() {
            let Some(knob) = Knob::new(&dir, file, None, Unset::Max) else {
                self.forget(layout, leases, order.group);
                return memory::Outcome::Gone;
            };
            let user = leases.before(&knob).map_or_else(|| knob.read(), Ok);
            // Where all of it is protected already, or nobody knows, nothing is added.
            let claim = Claim::new(order_pages(claim.get()), user.ok().and_then(Limit::value));
            let shield = self
                .of
                .entry(order.group)
                .or_insert_with(|| Shield { path: path.to_owned(), claims: Default::default() });
            let before = std::mem::replace(&mut shield.claims[at], claim);
            let own =
                |leases: &mut Leases| outcome(&knob, set(leases, &knob, |user| plus(user, claim.extra)));
            if claim.exceeds(before) {
                worst = worse(worst, self.cover(layout, leases, path, at, Order::FromTheTop));
                worst = worse(worst, own(leases));
            } else {
                worst = worse(worst, own(leases));
                worst = worse(worst, self.cover(layout, leases, path, at, Order::FromBelow));
            }
        }
        if order.low.get() == 0 && order.min.get() == 0 {
            self.of.remove(&order.group);
        }
        worst
    }

    /// Forgets a container that is gone; those above it need less.
    pub(super) fn forget(&mut self, layout: &Layout, leases: &mut Leases, group: GroupId) {
        let Some(shield) = self.of.remove(&group) else { return };
        for at in 0..FILES.len() {
            self.cover(layout, leases, &shield.path, at, Order::FromBelow);
        }
    }

    /// Nothing of ours is in force any more.
    pub(super) fn clear(&mut self) {
        self.of.clear();
    }

    /// Brings the cgroups above `path`, but not the root, to what those below them need. One that somebody else writes is his, and no
    /// reason to give the container's own knob up.
    fn cover(
        &self,
        layout: &Layout,
        leases: &mut Leases,
        path: &Path,
        at: usize,
        order: Order,
    ) -> memory::Outcome {
        let mut above: Vec<&Path> =
            path.ancestors().skip(1).take_while(|group| !group.as_os_str().is_empty()).collect();
        if order == Order::FromTheTop {
            above.reverse();
        }
        let mut worst = memory::Outcome::Done;
        for group in above {
            let Some((_, dir)) = layout.dir(Controller::Memory, group) else { continue };
            let Some(knob) = Knob::new(&dir, FILES[at], None, Unset::Max) else { continue };
            let sum = self.sum_below(group, at);
            let covers = |user| match plus(user, sum.extra) {
                Limit::At(all) => Limit::At(all.max(sum.whole)),
                Limit::Max => Limit::Max,
            };
            let done = match outcome(&knob, set(leases, &knob, covers)) {
                memory::Outcome::Foreign => memory::Outcome::Refused(format!("{knob}: somebody else set it")),
                done => done,
            };
            worst = worse(worst, done);
        }
        worst
    }

    /// What containers below a group make it claim.
    fn sum_below(&self, group: &Path, at: usize) -> Claim {
        let mut sum = Claim::default();
        for shield in self.of.values().filter(|shield| shield.path.starts_with(group) && shield.path != group)
        {
            let claim = shield.claims[at];
            sum.extra = sum.extra.saturating_add(claim.extra);
            sum.whole = sum.whole.saturating_add(claim.whole);
        }
        sum
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    FromTheTop,
    FromBelow,
}

/// A value that is the user's own is no lease; asking for it ends ours.
fn set(
    leases: &mut Leases,
    knob: &Knob,
    value: impl FnOnce(Limit<u64>) -> Limit<u64>,
) -> Result<Outcome, LeaseError> {
    leases.set_by(knob, value, Knob::write, "protect")
}

fn plus(user: Limit<u64>, extra: u64) -> Limit<u64> {
    match user {
        Limit::At(user) => Limit::At(user.saturating_add(extra)),
        Limit::Max => Limit::Max,
    }
}

/// The kernel keeps whole pages: any other number would read back as somebody else's.
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
pub(super) fn outcome(knob: &Knob, changed: Result<Outcome, LeaseError>) -> memory::Outcome {
    match changed {
        Ok(Outcome::Written | Outcome::Unchanged) => memory::Outcome::Done,
        Ok(Outcome::Foreign { .. }) => memory::Outcome::Foreign,
        Ok(Outcome::Gone | Outcome::Refused(KnobError::Gone)) => memory::Outcome::Gone,
        Ok(Outcome::Refused(why)) => memory::Outcome::Refused(format!("{knob}: {why}")),
        Ok(Outcome::Revoked) => memory::Outcome::Refused("the guard has taken all limits off".into()),
        Err(error) => memory::Outcome::Refused(error.to_string()),
    }
}

/// The one that matters more.
fn worse(a: memory::Outcome, b: memory::Outcome) -> memory::Outcome {
    if a == memory::Outcome::Done { b } else { a }
}
