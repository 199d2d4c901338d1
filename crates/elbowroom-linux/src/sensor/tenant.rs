//! What a tenant's cgroups may cost.
//!
//! Problem: a container that manages its own cgroups, or a user to whom a cgroup was delegated, makes as many below it as the kernel
//! takes, tens of thousands, and may make, write and remove them without a pause. Each costs memory and two open files here,
//! and each change a look.
//!
//! Approach: everything below a container, or below a directory that is not root's, goes on the account of the outermost such group.
//! Only so many groups are followed for each; of the others nothing is known, and the view of the container is that of its own
//! group as before. Looking at changes takes a bounded part of a CPU for each; what is left is done later. The settings
//! of a container's own group are read at once whatever it does below itself, and nothing here touches the turn of another.

use super::Sensor;
use super::tree::GroupSlot;
use crate::cgroup::CgroupDir;
use std::path::Path;
use std::time::{Duration, Instant};

/// How many groups are followed below one container, or below a cgroup that was delegated to a user. A Kubernetes node in a
/// container has some 500.
pub const MAX_GROUPS_PER_TENANT: usize = 1_000;
/// Looking at changes below one tenant takes at most one part in so many of a CPU,
const WORK_SHARE: u32 = 20;
/// and so much more once: as many groups are made when something starts.
const WORK_BURST: Duration = Duration::from_millis(10);
/// Each time, so many new groups are taken in: a long list of them does not keep all of them out.
const NEW_GROUPS_PER_TURN: usize = 16;

/// What a tenant costs.
#[derive(Debug)]
pub(super) struct TenantAccount {
    /// Groups that are followed below it.
    pub(super) groups: usize,
    /// It has more, and that was said.
    is_over_quota: bool,
    /// Time that looking took beyond its share, and when that was reckoned.
    debt: Duration,
    reckoned: Instant,
    /// New groups that are taken in this time.
    room: usize,
}

impl TenantAccount {
    pub(super) fn new(groups: usize) -> Self {
        Self {
            groups,
            is_over_quota: false,
            debt: Duration::ZERO,
            reckoned: Instant::now(),
            room: NEW_GROUPS_PER_TURN,
        }
    }

    fn has_turn(&mut self, now: Instant) -> bool {
        self.debt = self.debt.saturating_sub(now.saturating_duration_since(self.reckoned) / WORK_SHARE);
        self.reckoned = now;
        let has_turn = self.debt < WORK_BURST;
        self.room = if has_turn { NEW_GROUPS_PER_TURN } else { 0 };
        has_turn
    }
}

impl Sensor {
    /// Notes whether what is below a group is a tenant's: it is a container, or its directory belongs to a user.
    pub(super) fn find_tenant(&mut self, slot: GroupSlot) {
        let entry = &self.tree[slot];
        if entry.tenant.is_some() || entry.account.is_some() {
            return;
        }
        let owners = self.tree_hierarchies.iter().zip(entry.inodes).filter(|(_, inode)| *inode != 0);
        let mut owners = owners.map(|(index, _)| {
            let hierarchy = &self.layout.hierarchies()[*index];
            [&entry.path, Path::new("")].map(|path| CgroupDir::new(hierarchy, path).owner_uid())
        });
        if entry.group.container.is_some() || owners.any(|[own, root]| own.is_some() && own != root) {
            self.tree.make_tenant(slot);
        }
    }

    /// Says, the first time, that with so many groups more there are more below `top` than are followed.
    pub(super) fn note_quota(&mut self, top: GroupSlot, more: usize) {
        let entry = &mut self.tree[top];
        let Some(account) = &mut entry.account else { return };
        let is_over = account.groups + more > MAX_GROUPS_PER_TENANT;
        if is_over && !std::mem::replace(&mut account.is_over_quota, true) {
            tracing::warn!(
                cgroup = entry.group.path,
                followed = MAX_GROUPS_PER_TENANT,
                because = "it has more cgroups below it: the others are not followed, its own view stays"
            );
        }
    }

    /// Whether no more groups are followed below `top`.
    pub(super) fn is_quota_used_up(&mut self, top: GroupSlot) -> bool {
        self.tree.account(top).is_some_and(|account| account.groups >= MAX_GROUPS_PER_TENANT)
    }

    /// Whether there may be looked at what is below the tenant `top` now, or it is to be done later: where everything is looked at it
    /// is now.
    pub(super) fn has_turn(&mut self, top: Option<GroupSlot>) -> bool {
        let all = self.pending.all;
        let account = top.and_then(|top| self.tree.account(top));
        account.is_none_or(|account| account.has_turn(Instant::now()) || all)
    }

    /// Whether a new group below the tenant `top` is taken in now, or later.
    pub(super) fn takes_in(&mut self, top: Option<GroupSlot>) -> bool {
        let all = self.pending.all;
        let Some(account) = top.and_then(|top| self.tree.account(top)) else { return true };
        let takes_in = account.room > 0 || all;
        account.room = account.room.saturating_sub(1);
        takes_in
    }

    /// Puts a look that began then on the account of the tenant `top`; a look at everything is on nobody's.
    pub(super) fn charge(&mut self, top: Option<GroupSlot>, begin: Instant) {
        if self.pending.all {
            return;
        }
        if let Some(account) = top.and_then(|top| self.tree.account(top)) {
            account.debt += begin.elapsed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_that_had_its_share_waits_until_it_is_paid_off() {
        let mut account = TenantAccount::new(0);
        let begin = account.reckoned;
        let after = |ms| begin + Duration::from_millis(ms);
        assert!(account.has_turn(begin));
        account.debt = Duration::from_millis(60);
        assert!(!account.has_turn(after(10)));
        assert!(!account.has_turn(after(900)));
        assert!(account.has_turn(after(1_100)));
    }
}
