//! What a tenant's cgroups may cost.
//!
//! Problem: a container that manages its own cgroups, or a user to whom a cgroup was delegated, makes as many below it as the
//! kernel takes, tens of thousands. It may make, write and remove them without a pause. Each costs memory and two open files
//! here, and each change a look.
//!
//! Approach: everything below a container, or below a directory that is not root's, goes on the account of the outermost such group.
//! A bounded number of groups is followed for each ([`MAX_GROUPS_PER_TENANT`]); the others are unknown, and the view of the container is
//! that of its own group as before. Looking at changes takes a bounded part of a CPU for each; what is left is done later. The settings
//! of a container's own group are read at once whatever it does below itself, and nothing here touches the turn of another.

use super::Sensor;
use super::tree::{GroupEntry, GroupSlot};
use crate::cgroup::CgroupDir;
use crate::process;
use elbowroom_types::id::CgroupId;
use std::path::Path;
use std::time::{Duration, Instant};

/// How many groups are followed below one container, or below a cgroup that was delegated to a user. A Kubernetes node in a
/// container has some 500.
pub const MAX_GROUPS_PER_TENANT: usize = 1_000;
/// How many of these may be containers, each with a view of its own: a Kubernetes node in a container has some 200. They all take from
/// the views that there are (`view_server::slots`), and from what the mounter does.
pub const MAX_CONTAINERS_PER_TENANT: usize = 256;
/// A quota counts as used up for this long after it was seen to be: longer than a rescan takes.
const OVER_QUOTA_FOR: Duration = Duration::from_secs(60);
/// Looking at changes below one tenant takes at most one part in this many of a CPU, and looking at its processes as much again.
const WORK_SHARE: u32 = 20;
/// CPU time that a tenant may use once beyond that share: a program that starts makes many groups at once.
const WORK_BURST: Duration = Duration::from_millis(10);
/// Most new groups that are added in one turn, so that a list of any length is added bit by bit.
const NEW_GROUPS_PER_TURN: usize = 16;

/// What a tenant has more of than is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantQuota {
    /// Cgroups below it: [`MAX_GROUPS_PER_TENANT`].
    Groups,
    /// Containers below it: [`MAX_CONTAINERS_PER_TENANT`].
    Containers,
}

/// What a tenant costs.
#[derive(Debug)]
pub(super) struct TenantAccount {
    /// Groups that are followed below it.
    pub(super) groups: usize,
    /// Containers among them.
    pub(super) containers: usize,
    /// When it was seen last that it has more of each [`TenantQuota`].
    over_quota: [Option<Instant>; 2],
    /// What looking at its changes took.
    changes: WorkBudget,
    /// What looking at processes and numbers of containers in it took: changes without a pause keep none of them waiting.
    looks: WorkBudget,
    /// New groups that are taken in this time.
    room: usize,
}

impl TenantAccount {
    pub(super) fn new(groups: usize, containers: usize) -> Self {
        Self {
            groups,
            containers,
            over_quota: [None; 2],
            changes: WorkBudget::new(),
            looks: WorkBudget::new(),
            room: NEW_GROUPS_PER_TURN,
        }
    }

    /// Notes that the tenant has more than it may.
    pub(super) fn note_over(&mut self, quota: TenantQuota) {
        self.over_quota[quota as usize] = Some(Instant::now());
    }

    fn is_over(&self, quota: TenantQuota, now: Instant) -> bool {
        self.over_quota[quota as usize].is_some_and(|at| now.saturating_duration_since(at) < OVER_QUOTA_FOR)
    }

    fn has_turn(&mut self, now: Instant) -> bool {
        let has_turn = self.changes.has_turn(now);
        self.room = if has_turn { NEW_GROUPS_PER_TURN } else { 0 };
        has_turn
    }
}

/// The CPU time that a kind of work may take for a tenant.
#[derive(Debug)]
struct WorkBudget {
    /// What was taken beyond the share, and when that was reckoned.
    debt: Duration,
    reckoned: Instant,
}

impl WorkBudget {
    fn new() -> Self {
        Self { debt: Duration::ZERO, reckoned: Instant::now() }
    }

    fn has_turn(&mut self, now: Instant) -> bool {
        self.debt = self.debt.saturating_sub(now.saturating_duration_since(self.reckoned) / WORK_SHARE);
        self.reckoned = now;
        self.debt < WORK_BURST
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

    /// Notes whether `more` further groups below `top` would exceed [`MAX_GROUPS_PER_TENANT`].
    pub(super) fn note_quota(&mut self, top: GroupSlot, more: usize) {
        if let Some(account) =
            self.tree.account(top).filter(|account| account.groups + more > MAX_GROUPS_PER_TENANT)
        {
            account.note_over(TenantQuota::Groups);
        }
    }

    /// Whether the group may be a container more of its tenant; that it may not is noted.
    pub(super) fn has_room_for_container(&mut self, slot: GroupSlot) -> bool {
        let top = self.tree[slot].tenant;
        let Some(account) = top.and_then(|top| self.tree.account(top)) else { return true };
        let has_room = account.containers < MAX_CONTAINERS_PER_TENANT;
        if !has_room {
            account.note_over(TenantQuota::Containers);
        }
        has_room
    }

    /// The tenants that have more than is followed, with the path of each.
    pub fn over_quota(&self) -> Vec<(CgroupId, TenantQuota, String)> {
        let now = Instant::now();
        let entries = (0..self.tree.slots()).filter_map(|slot| self.tree.get(slot));
        let over = |entry: &GroupEntry, quota| {
            let is_over = entry.account.as_ref().is_some_and(|account| account.is_over(quota, now));
            is_over.then(|| (entry.group.id, quota, entry.group.path.clone()))
        };
        let both = [TenantQuota::Groups, TenantQuota::Containers];
        entries.flat_map(|entry| both.into_iter().filter_map(move |quota| over(entry, quota))).collect()
    }

    /// The tenant that answers for a group: the outermost container or user above it, or itself.
    pub fn tenant_of(&self, id: CgroupId) -> CgroupId {
        let top = self.tree.slot(id).and_then(|slot| self.tree.tenant(slot));
        top.map_or(id, |top| self.tree[top].group.id)
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

    /// Looks at processes or numbers of a group where its tenant has a turn for that; `None`: later. A tenant chooses how many
    /// processes it has, and in how many containers each of them is.
    pub fn in_turn<T>(&mut self, id: CgroupId, look: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let top = self.tree.slot(id).and_then(|slot| self.tree.tenant(slot));
        let account = top.and_then(|top| self.tree.account(top));
        if account.is_some_and(|account| !account.looks.has_turn(Instant::now())) {
            return None;
        }
        let begin = process::own_thread_cpu_time();
        let seen = look(self);
        if let Some(account) = top.and_then(|top| self.tree.account(top)) {
            account.looks.debt += process::own_thread_cpu_time().saturating_sub(begin);
        }
        Some(seen)
    }

    /// Puts a look that began then on the account of the tenant `top`; a look at everything is on none's.
    pub(super) fn charge(&mut self, top: Option<GroupSlot>, begin: Instant) {
        if self.pending.all {
            return;
        }
        if let Some(account) = top.and_then(|top| self.tree.account(top)) {
            account.changes.debt += begin.elapsed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;
    use crate::sensor::SensorConfig;
    use crate::sensor::tree::GroupTree;
    use elbowroom_types::sample::HostEvent;
    use elbowroom_types::unit::{Bytes, Limit};

    const UNIFIED: &str = include_str!("../../../../tests/hosts/unified-kubepods.txt");

    #[test]
    fn limits_that_hold_for_a_container_are_read_though_its_tenant_has_no_turn() {
        let scope = format!("libpod-{}.scope", "9d20".repeat(16));
        let (node, _) = UNIFIED.split_once("-- sys/fs/cgroup/").unwrap();
        let host = Fixture::new(&format!(
            "{node}-- sys/fs/cgroup/cgroup.controllers --\ncpu memory\n\
             -- sys/fs/cgroup/{scope}/memory.max --\nmax\n\
             -- sys/fs/cgroup/{scope}/container/memory.max --\n4096\n\
             -- sys/fs/cgroup/{scope}/container/deep/memory.max --\n4096\n"
        ))
        .unwrap();
        let config = SensorConfig { root: host.path().into(), ..SensorConfig::default() };
        let mut sensor = Sensor::open(&config).unwrap();
        sensor.start();
        let top = sensor.tree[GroupTree::ROOT].children[0];
        sensor.tree.account(top).unwrap().changes.debt = Duration::from_secs(3_600);
        let limit = |sensor: &Sensor| sensor.tree[top].group.limits.memory_max;
        for dir in ["", "/deep"] {
            host.write(&format!("sys/fs/cgroup/{scope}/container{dir}/memory.max"), "8192\n").unwrap();
        }
        let mut told = sensor.changes();
        told.retain(|event| matches!(event, HostEvent::Group(group) if group.path.ends_with("/deep")));
        assert_eq!((limit(&sensor), told), (Some(Limit::At(Bytes(8_192))), Vec::new()));
        // Each look at it is one at both.
        host.write(&format!("sys/fs/cgroup/{scope}/container/memory.max"), "2048\n").unwrap();
        sensor.read_settings(top);
        assert_eq!(limit(&sensor), Some(Limit::At(Bytes(2_048))));
    }

    #[test]
    fn a_tenant_that_had_its_share_waits_until_it_is_paid_off() {
        let mut account = TenantAccount::new(0, 0);
        let begin = account.changes.reckoned;
        let after = |ms| begin + Duration::from_millis(ms);
        assert!(account.has_turn(begin));
        account.changes.debt = Duration::from_millis(60);
        assert!(!account.has_turn(after(10)));
        assert!(!account.has_turn(after(900)));
        assert!(account.looks.has_turn(after(900)), "what looks cost is reckoned by itself");
        assert!(account.has_turn(after(1_100)));
    }
}
