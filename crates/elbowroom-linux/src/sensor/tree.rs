//! The groups that are known, by id, by inode and in the order parents first.

use super::meter::GroupMeter;
use super::tenant::TenantAccount;
use crate::cgroup::read::FdBudget;
use crate::discover::StateStamp;
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::{CgroupProperties, CgroupSettings};
use elbowroom_types::unit::Micros;
use std::collections::{BTreeSet, HashMap};
use std::ops::{Index, IndexMut};
use std::path::{Path, PathBuf};

/// The place of a group in the tree; used again after the group is gone, so it is not kept across scans.
pub(super) type GroupSlot = usize;

/// The most hierarchies that are walked: cpu, cpuacct, memory and cpuset, each mounted alone.
pub(super) const MAX_HIERARCHIES: usize = 4;

/// One directory's inode in each walked hierarchy; 0 where it has none.
pub(super) type HierarchyInodes = [u64; MAX_HIERARCHIES];

/// One group, apart from what every tick needs.
#[derive(Debug)]
pub(super) struct GroupEntry {
    /// As it is to be told.
    pub(super) group: CgroupProperties,
    /// Exactly its path, from the hierarchy's root; `group.path` is for people.
    pub(super) path: PathBuf,
    pub(super) parent: Option<GroupSlot>,
    pub(super) children: Vec<GroupSlot>,
    /// How many there were when they were listed last: more than `children` where not all are followed, or not yet.
    pub(super) directories: usize,
    /// Where it is now.
    pub(super) inodes: HierarchyInodes,
    /// Where it was last seen: what is re-created with another inode is another group.
    pub(super) seen: HierarchyInodes,
    /// A process directly in it.
    pub(super) own_processes: bool,
    /// Told, or to be told. A directory beside the spine that neither is nor holds a container stays unsaid.
    pub(super) visible: bool,
    /// Differs from what was told.
    pub(super) dirty: bool,
    /// Was told.
    pub(super) reported: bool,
    /// The engine's file about it.
    pub(super) state: Option<(PathBuf, StateStamp)>,
    /// Of a container, the path of the group below it whose limits hold for it too.
    pub(super) subgroup: Option<PathBuf>,
    /// The group above it whose owner makes as many groups below it as it likes; the outermost, where there are several.
    pub(super) tenant: Option<GroupSlot>,
    /// Where this one is such a group: what it costs.
    pub(super) account: Option<Box<TenantAccount>>,
}

/// All groups. Slot 0 is the root of the hierarchies.
#[derive(Debug, Default)]
pub(super) struct GroupTree {
    entries: Vec<Option<GroupEntry>>,
    /// By slot, apart from the entries: a tick walks these and should find them side by side.
    pub(super) meters: Vec<GroupMeter>,
    /// By slot, when the group's files are to be read again: of most groups a tick needs no more.
    pub(super) due: Vec<Micros>,
    free: Vec<GroupSlot>,
    ids: HashMap<CgroupId, GroupSlot>,
    inodes: HashMap<(usize, u64), GroupSlot>,
    next_id: u64,
    order: Vec<GroupSlot>,
    order_is_stale: bool,
    marked: Vec<GroupSlot>,
}

impl GroupTree {
    /// The root of the hierarchies.
    pub(super) const ROOT: GroupSlot = 0;

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many slots there are, in use or not.
    pub(super) fn slots(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, slot: GroupSlot) -> Option<&GroupEntry> {
        self.entries.get(slot)?.as_ref()
    }

    pub(super) fn slot(&self, id: CgroupId) -> Option<GroupSlot> {
        self.ids.get(&id).copied()
    }

    /// The group whose directory has this inode in the walked hierarchy.
    pub(super) fn by_inode(&self, walked: usize, inode: u64) -> Option<GroupSlot> {
        self.inodes.get(&(walked, inode)).copied()
    }

    /// Adds a group below `parent`, or the root.
    pub(super) fn insert(
        &mut self,
        parent: Option<GroupSlot>,
        path: PathBuf,
        inodes: HierarchyInodes,
    ) -> GroupSlot {
        let id = CgroupId(self.next_id);
        self.next_id += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.meters.push(GroupMeter::default());
            self.due.push(Micros::ZERO);
            self.entries.len() - 1
        });
        let group = CgroupProperties {
            id,
            parent: parent.map(|p| self[p].group.id),
            path: display_path(&path),
            container: None,
            limits: CgroupSettings::default(),
            populated: false,
            made_by_user: false,
        };
        let tenant = parent.and_then(|parent| self.tenant(parent));
        if let Some(account) = tenant.and_then(|top| self.account(top)) {
            account.groups += 1;
        }
        self.meters[slot] = GroupMeter::new(id, parent.unwrap_or(Self::ROOT));
        self.due[slot] = Micros::ZERO;
        self.entries[slot] = Some(GroupEntry {
            group,
            path,
            parent,
            children: Vec::new(),
            directories: 0,
            inodes: [0; MAX_HIERARCHIES],
            seen: [0; MAX_HIERARCHIES],
            own_processes: false,
            visible: false,
            dirty: false,
            reported: false,
            state: None,
            subgroup: None,
            tenant,
            account: None,
        });
        if let Some(parent) = parent {
            self[parent].children.push(slot);
        }
        self.ids.insert(id, slot);
        self.update_inodes(slot, inodes);
        self.order_is_stale = true;
        slot
    }

    /// The group that pays for the directory of this one: the outermost that is a tenant's, which may be itself.
    pub(super) fn tenant(&self, slot: GroupSlot) -> Option<GroupSlot> {
        let entry = self.get(slot)?;
        entry.tenant.or(entry.account.is_some().then_some(slot))
    }

    /// Whether the group is a part of a container, and none itself.
    pub(super) fn is_inside_container(&self, slot: GroupSlot) -> bool {
        let entry = &self[slot];
        let mut up = entry.parent.filter(|_| entry.tenant.is_some() && entry.group.container.is_none());
        while let Some(slot) = up {
            if self[slot].group.container.is_some() {
                return true;
            }
            up = self[slot].parent;
        }
        false
    }

    /// What the tenant of this group costs; `None` for a group that is no tenant's topmost.
    pub(super) fn account(&mut self, top: GroupSlot) -> Option<&mut TenantAccount> {
        self.entries.get_mut(top)?.as_mut()?.account.as_deref_mut()
    }

    /// Notes that what is below this group is made by a tenant, unless this group is below another one's.
    pub(super) fn make_tenant(&mut self, top: GroupSlot) {
        if self.tenant(top).is_some() {
            return;
        }
        let below = self.subtree(top).split_off(1);
        let containers = below.iter().filter(|slot| self[**slot].group.container.is_some()).count();
        self[top].account = Some(Box::new(TenantAccount::new(below.len(), containers)));
        for slot in below {
            self[slot].tenant = Some(top);
            self[slot].account = None;
        }
    }

    /// Notes where the group's directories are now; true if it is in a hierarchy where it was not.
    pub(super) fn update_inodes(&mut self, slot: GroupSlot, inodes: HierarchyInodes) -> bool {
        let entry = self.entries[slot].as_mut().expect("a slot in hand holds a group");
        let mut came = false;
        for (walked, inode) in inodes.into_iter().enumerate() {
            let was = std::mem::replace(&mut entry.inodes[walked], inode);
            if was == inode {
                continue;
            }
            self.inodes.remove(&(walked, was));
            if inode != 0 {
                entry.seen[walked] = inode;
                self.inodes.insert((walked, inode), slot);
                came = true;
            }
        }
        came
    }

    /// Notes that the group is to be told.
    pub(super) fn mark(&mut self, slot: GroupSlot) {
        if !std::mem::replace(&mut self[slot].dirty, true) {
            self.marked.push(slot);
        }
    }

    /// Notes whether a process is in the group; true if that is news.
    pub(super) fn set_populated(&mut self, slot: GroupSlot, populated: bool) -> bool {
        self[slot].group.populated = populated;
        std::mem::replace(&mut self.meters[slot].populated, populated) != populated
    }

    /// The visible ones of the marked groups, parents first; none is marked afterwards.
    pub(super) fn take_marked(&mut self) -> Vec<GroupSlot> {
        let mut marked = std::mem::take(&mut self.marked);
        marked.retain(|slot| {
            self.entries[*slot]
                .as_mut()
                .is_some_and(|entry| std::mem::take(&mut entry.dirty) && entry.visible)
        });
        marked.sort_by_cached_key(|slot| (self[*slot].path.components().count(), *slot));
        marked
    }

    /// A group with its meter.
    pub(super) fn entry_and_meter(&mut self, slot: GroupSlot) -> (&GroupEntry, &mut GroupMeter) {
        (self.entries[slot].as_ref().expect("a slot in hand holds a group"), &mut self.meters[slot])
    }

    /// Removes a group with everything below it; the ids of the told ones, topmost first.
    pub(super) fn remove(&mut self, slot: GroupSlot, budget: &mut FdBudget) -> Vec<CgroupId> {
        if let Some(parent) = self[slot].parent {
            self[parent].children.retain(|child| *child != slot);
        }
        let (mut doomed, mut told) = (vec![slot], Vec::new());
        while let Some(slot) = doomed.pop() {
            let Some(entry) = self.entries[slot].take() else { continue };
            doomed.extend(entry.children);
            if entry.reported {
                told.push(entry.group.id);
            }
            if let Some(account) = entry.tenant.and_then(|top| self.account(top)) {
                account.groups -= 1;
                account.containers -= usize::from(entry.group.container.is_some());
            }
            self.ids.remove(&entry.group.id);
            for (walked, inode) in entry.inodes.into_iter().enumerate() {
                self.inodes.remove(&(walked, inode));
            }
            self.meters[slot].close(budget);
            self.free.push(slot);
        }
        self.order_is_stale = true;
        told
    }

    /// The group and everything below it, parents first.
    pub(super) fn subtree(&self, top: GroupSlot) -> Vec<GroupSlot> {
        let mut slots = vec![top];
        let mut next = 0;
        while let Some(slot) = slots.get(next) {
            slots.extend(&self[*slot].children);
            next += 1;
        }
        slots
    }

    /// Adds the group and everything below it to `to`, in which there is with each group everything below that.
    pub(super) fn add_subtree(&self, top: GroupSlot, to: &mut BTreeSet<GroupSlot>) {
        let mut next = vec![top];
        while let Some(slot) = next.pop() {
            if to.insert(slot) {
                next.extend(&self[slot].children);
            }
        }
    }

    /// Marks that what is visible changed.
    pub(super) fn invalidate_order(&mut self) {
        self.order_is_stale = true;
    }

    /// The visible groups but the root, parents first.
    pub(super) fn order(&mut self) -> &[GroupSlot] {
        if self.order_is_stale {
            self.order_is_stale = false;
            let all = if self.is_empty() { Vec::new() } else { self.subtree(Self::ROOT) };
            self.order = all.into_iter().filter(|s| *s != Self::ROOT && self[*s].visible).collect();
            for slot in 0..self.entries.len() {
                self.meters[slot].has_children = self.get(slot).is_some_and(|e| !e.children.is_empty());
            }
        }
        &self.order
    }
}

impl Index<GroupSlot> for GroupTree {
    type Output = GroupEntry;

    fn index(&self, slot: GroupSlot) -> &GroupEntry {
        self.entries[slot].as_ref().expect("a slot in hand holds a group")
    }
}

impl IndexMut<GroupSlot> for GroupTree {
    fn index_mut(&mut self, slot: GroupSlot) -> &mut GroupEntry {
        self.entries[slot].as_mut().expect("a slot in hand holds a group")
    }
}

/// A path as `/proc/PID/cgroup` has it. What is not UTF-8 shows as U+FFFD: it is never opened by this.
fn display_path(path: &Path) -> String {
    format!("/{}", path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_never_used_twice_though_its_slot_is() {
        let mut budget = FdBudget::new(1_000);
        let mut tree = GroupTree::default();
        let root = tree.insert(None, PathBuf::new(), [1, 0, 0, 0]);
        let first = tree.insert(Some(root), "a".into(), [2, 3, 0, 0]);
        let id = tree[first].group.id;
        tree[first].reported = true;
        assert_eq!(tree.remove(first, &mut budget), [id]);
        assert_eq!((tree.slot(id), tree.by_inode(0, 2), tree.by_inode(1, 3)), (None, None, None));
        let second = tree.insert(Some(root), "a".into(), [4, 5, 0, 0]);
        assert_eq!(second, first);
        assert_ne!(tree[second].group.id, id);
    }

    #[test]
    fn groups_count_for_the_outermost_tenant_above_them() {
        let mut budget = FdBudget::new(1_000);
        let mut tree = GroupTree::default();
        let root = tree.insert(None, PathBuf::new(), [1, 0, 0, 0]);
        let user = tree.insert(Some(root), "u".into(), [2, 0, 0, 0]);
        let container = tree.insert(Some(user), "u/c".into(), [3, 0, 0, 0]);
        tree.make_tenant(container);
        let inside = tree.insert(Some(container), "u/c/d".into(), [4, 0, 0, 0]);
        assert_eq!((tree.tenant(inside), tree.tenant(user)), (Some(container), None));
        tree.make_tenant(user);
        tree.make_tenant(container);
        let later = tree.insert(Some(inside), "u/c/d/e".into(), [5, 0, 0, 0]);
        let groups = |tree: &GroupTree| tree[user].account.as_ref().unwrap().groups;
        assert_eq!((tree.tenant(later), tree.tenant(container), groups(&tree)), (Some(user), Some(user), 3));
        tree.remove(inside, &mut budget);
        assert_eq!(groups(&tree), 1);
        tree.remove(user, &mut budget);
        assert_eq!(tree.tenant(root), None);
    }

    #[test]
    fn removal_takes_everything_below() {
        let mut budget = FdBudget::new(1_000);
        let mut tree = GroupTree::default();
        let root = tree.insert(None, PathBuf::new(), [1, 0, 0, 0]);
        let a = tree.insert(Some(root), "a".into(), [2, 0, 0, 0]);
        let b = tree.insert(Some(a), "a/b".into(), [3, 0, 0, 0]);
        for slot in [root, a, b] {
            tree[slot].visible = true;
        }
        assert_eq!(tree.order(), [a, b]);
        tree.remove(a, &mut budget);
        assert!(tree.order().is_empty() && tree.get(b).is_none());
        assert_eq!(tree.subtree(root), [root]);
    }
}
