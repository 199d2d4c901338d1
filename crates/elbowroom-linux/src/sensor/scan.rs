//! Which groups there are: from directories, when something says they changed. What each one is: `group.rs`.

use super::tenant::MAX_GROUPS_PER_TENANT;
use super::tree::{GroupSlot, GroupTree, HierarchyInodes, MAX_HIERARCHIES};
use super::{Sensor, duration};
use crate::cgroup::{CgroupDir, CgroupVersion};
use crate::watch::{CgroupEvent, CgroupWatcher};
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::HostEvent;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// After lost notifications everything is looked at again, which takes at most one part in this many of the time.
const SCAN_ALL_SHARE: u32 = 10;
/// Without notifications, everything is looked at in this time, or in the longer time that [`SCAN_ALL_SHARE`] demands.
const UNWATCHED_RESCAN: Duration = Duration::from_secs(1);

/// What notices and ticks ask to be looked at.
#[derive(Debug, Default)]
pub(super) struct PendingScans {
    pub(super) all: bool,
    listings: BTreeSet<GroupSlot>,
    pub(super) settings: BTreeSet<GroupSlot>,
    /// Those whose settings are to be read with all below them, which are in it too.
    below: BTreeSet<GroupSlot>,
    processes: BTreeSet<GroupSlot>,
}

impl Sensor {
    /// Looks at everything: at start, and when notices were lost.
    pub(super) fn scan_all(&mut self, events: &mut Vec<HostEvent>) {
        let begin = Instant::now();
        let mut gone = Vec::new();
        self.pending = PendingScans { all: true, ..PendingScans::default() };
        if self.tree.is_empty() {
            let root = PathBuf::new();
            let inodes = self.inodes_of(&root);
            self.tree.insert(None, root, inodes);
            self.tree[GroupTree::ROOT].visible = true;
            self.tree.mark(GroupTree::ROOT);
        }
        self.scan(GroupTree::ROOT, true, &mut gone);
        for slot in self.tree.subtree(GroupTree::ROOT) {
            self.read_settings(slot);
        }
        for slot in self.tree.subtree(GroupTree::ROOT).into_iter().rev() {
            self.read_population(slot);
        }
        self.pending.all = false;
        self.scanned_all = (Instant::now(), begin.elapsed());
        self.emit_events(gone, events);
    }

    /// Works off what notices, ticks and the rescan ask for.
    pub(super) fn collect_changes(&mut self, events: &mut Vec<HostEvent>) {
        let mut notices = Vec::new();
        self.watcher.drain(&mut notices);
        let mut chores = std::mem::take(&mut self.pending);
        // A tenant writes as often as it likes, also into each of a thousand groups in each other.
        notices.sort_unstable();
        notices.dedup();
        for notice in notices {
            self.schedule(notice, &mut chores);
        }
        chores.settings.append(&mut chores.below);
        let (at, took) = self.scanned_all;
        if chores.all && at.elapsed() >= took * SCAN_ALL_SHARE {
            tracing::info!(because = "notifications were lost", "looking at every cgroup again");
            return self.scan_all(events);
        }
        for id in std::mem::take(&mut self.removed) {
            chores.listings.extend(self.tree.slot(id).and_then(|slot| self.tree[slot].parent));
        }
        for id in std::mem::take(&mut self.idle) {
            // v2 announces it.
            chores
                .processes
                .extend(self.tree.slot(id).filter(|_| self.primary_version() == CgroupVersion::V1));
        }
        self.schedule_rescan(&mut chores);
        let mut gone = Vec::new();
        for slot in chores.listings {
            if !self.has_turn(self.tree.tenant(slot)) {
                self.pending.listings.insert(slot);
            } else if self.tree.get(slot).is_some() {
                self.scan(slot, false, &mut gone);
            }
        }
        // Settings that hold for a container are read at once, whatever it does below itself.
        let above = |sensor: &Self, slot| sensor.tree.get(slot).and_then(|entry| entry.tenant);
        for slot in chores.settings {
            let (top, begin) = (above(self, self.read_with(slot).unwrap_or(slot)), Instant::now());
            match self.has_turn(top) {
                true => self.read_settings(slot),
                false => drop(self.pending.settings.insert(slot)),
            }
            self.charge(top, begin);
        }
        for slot in chores.processes {
            let (top, begin) = (above(self, slot), Instant::now());
            match self.has_turn(top) {
                true => self.read_population(slot),
                false => drop(self.pending.processes.insert(slot)),
            }
            self.charge(top, begin);
        }
        self.pending.all = chores.all;
        self.emit_events(gone, events);
    }

    fn schedule(&self, notice: CgroupEvent, chores: &mut PendingScans) {
        // An unknown directory is new and will be listed with its parent, or gone.
        let at = |hierarchy, dir| directory(&self.tree_hierarchies, &self.tree, hierarchy, dir);
        match notice {
            CgroupEvent::Overflow => chores.all = true,
            CgroupEvent::Tree { hierarchy, dir } => chores.listings.extend(at(hierarchy, dir)),
            CgroupEvent::File { hierarchy, dir, name } => {
                let Some(slot) = at(hierarchy, dir) else { return };
                match name.to_str().unwrap_or("") {
                    "cgroup.procs" | "tasks" | "cgroup.events" => drop(chores.processes.insert(slot)),
                    // Turns controllers, and with them files, of the children on or off.
                    "cgroup.subtree_control" => chores.settings.extend(&self.tree[slot].children),
                    // A partition takes its CPUs from the groups around it, and those below them. A tenant's own has to be read in
                    // the tenant's time: what it takes from others is seen with the rescan.
                    "cpuset.cpus.partition" | "cpuset.cpus.exclusive" => {
                        let from = self.tree.tenant(slot).unwrap_or(GroupTree::ROOT);
                        self.tree.add_subtree(from, &mut chores.below);
                    }
                    // A cpuset takes effect on everything below it.
                    name if name.starts_with("cpuset.") => self.tree.add_subtree(slot, &mut chores.below),
                    name if name.starts_with("cpu.") || name.starts_with("memory.") => {
                        chores.settings.insert(slot);
                    }
                    _ => {}
                }
            }
        }
    }

    /// The groups whose turn it is: spread, so that a thousand groups do not stall one call.
    fn schedule_rescan(&mut self, chores: &mut PendingScans) {
        let slots = self.tree.slots();
        let elapsed = self.rescanned.elapsed().as_micros();
        let owed = elapsed * slots as u128 / self.rescan_period().as_micros().max(1);
        if owed == 0 {
            return;
        }
        self.rescanned = Instant::now();
        for _ in 0..owed.min(slots as u128) {
            self.rescan_at = (self.rescan_at + 1) % slots;
            if self.rescan_at == 0 {
                self.watch_again(chores);
                let (walked, tree) = (&self.tree_hierarchies, &self.tree);
                self.watcher.retain(|hierarchy, dir| directory(walked, tree, hierarchy, dir).is_some());
            }
            let slot = self.rescan_at;
            if self.tree.get(slot).is_some() {
                chores.listings.insert(slot);
                chores.settings.insert(slot);
                chores.processes.insert(slot);
                self.find_container(slot);
                self.find_tenant(slot);
            }
        }
    }

    /// In what time everything is looked at again.
    fn rescan_period(&self) -> Duration {
        let configured = duration(self.config.rescan);
        if self.watcher.is_watching() {
            return configured;
        }
        let (_, took) = self.scanned_all;
        (took * SCAN_ALL_SHARE).max(UNWATCHED_RESCAN).min(configured)
    }

    /// Asks for notifications where there were none to be had.
    fn watch_again(&mut self, chores: &mut PendingScans) {
        if self.watcher.is_watching() {
            return;
        }
        let hierarchies = self.layout.hierarchies();
        let opened = CgroupWatcher::open(hierarchies, &self.tree_hierarchies, self.config.fanotify);
        if let Ok(watcher) = opened {
            self.watcher = watcher;
            tracing::info!(notifications = self.watcher.name(), "notifications of cgroups again");
            // Each directory is watched before it is looked at.
            chores.all = true;
        }
    }

    /// Lists one group's directories and makes its children in the tree what they are; new ones are listed in turn, known
    /// ones only when `deep`.
    fn scan(&mut self, slot: GroupSlot, deep: bool, gone: &mut Vec<CgroupId>) {
        let (top, begin) = (self.tree.tenant(slot), Instant::now());
        self.watch_group(slot);
        let found = self.list_children(slot);
        self.charge(top, begin);
        let Some(found) = found else { return };
        self.tree[slot].directories = found.len();
        let mut known = BTreeMap::new();
        let mut lost = false;
        for child in self.tree[slot].children.clone() {
            let name = self.tree[child].path.file_name().unwrap_or_default();
            let seen = self.tree[child].seen;
            let same = |now: &HierarchyInodes| {
                now.iter().zip(seen).all(|(now, was)| *now == 0 || was == 0 || *now == was)
            };
            if found.get(name).is_some_and(same) {
                known.insert(name.to_owned(), child);
            } else {
                gone.extend(self.forget(child));
                lost = true;
            }
        }
        if lost {
            self.read_population(slot);
        }
        if let Some(top) = top {
            self.note_quota(top, found.len() - known.len());
        }
        if found.len() > known.len() {
            // Its manager may have recorded what it is after making it and before making these: machined does.
            self.find_container(slot);
            self.find_tenant(slot);
        }
        for (name, inodes) in found {
            match known.get(&name).copied() {
                Some(child) => {
                    let placed = self.tree.update_inodes(child, inodes);
                    if placed {
                        self.refresh_group(child);
                    }
                    // New in one hierarchy: notices of what was made below it there came from a directory unknown until now.
                    if deep || placed {
                        self.scan(child, true, gone);
                    }
                }
                None if top.is_some_and(|top| self.is_quota_used_up(top)) => {}
                None if !self.takes_in(top) => drop(self.pending.listings.insert(slot)),
                None => {
                    let begin = Instant::now();
                    let path = self.tree[slot].path.join(name);
                    let child = self.tree.insert(Some(slot), path, inodes);
                    self.refresh_group(child);
                    self.charge(top, begin);
                    self.scan(child, true, gone);
                }
            }
        }
        if self.subgroup(slot).map(|subgroup| &self.tree[subgroup].path) != self.tree[slot].subgroup.as_ref()
        {
            self.read_settings(slot);
        }
    }

    /// The children's directories in all walked hierarchies; `None` when the group is in none any more, which its parent's
    /// listing will tell.
    fn list_children(&mut self, slot: GroupSlot) -> Option<BTreeMap<OsString, HierarchyInodes>> {
        let most = if self.tree.tenant(slot).is_some() { 2 * MAX_GROUPS_PER_TENANT } else { usize::MAX };
        let entry = &self.tree[slot];
        let mut found: BTreeMap<OsString, HierarchyInodes> = BTreeMap::new();
        let (mut there, mut whole) = (false, true);
        for (walked, index) in self.tree_hierarchies.iter().enumerate() {
            let inode = entry.inodes[walked];
            if inode == 0 {
                continue;
            }
            let hierarchy = &self.layout.hierarchies()[*index];
            let Some(children) =
                self.warnings.ok_or_warn(CgroupDir::new(hierarchy, &entry.path).children(most)).flatten()
            else {
                continue;
            };
            there = true;
            whole &= children.len() < most;
            for (name, inode) in children {
                found.entry(name).or_insert([0; MAX_HIERARCHIES])[walked] = inode;
            }
        }
        if !whole {
            // Only a part was listed: of those that are known, each is asked for.
            for path in self.tree[slot].children.iter().map(|child| &self.tree[*child].path) {
                let inodes = self.inodes_of(path);
                if inodes != [0; MAX_HIERARCHIES] {
                    found.insert(path.file_name().unwrap_or_default().to_owned(), inodes);
                }
            }
        }
        there.then_some(found)
    }

    /// To be called before its directories are listed and its settings read: what is made or written in between is seen by one of the
    /// two.
    pub(super) fn watch_group(&mut self, slot: GroupSlot) {
        let entry = &self.tree[slot];
        for (index, inode) in self.tree_hierarchies.iter().zip(entry.inodes).filter(|(_, inode)| *inode != 0)
        {
            self.watcher.add(&self.layout.hierarchies()[*index], *index, &entry.path, inode);
        }
    }

    /// Removes a group with everything below it; the ids of those that were known.
    fn forget(&mut self, slot: GroupSlot) -> Vec<CgroupId> {
        for below in self.tree.subtree(slot) {
            self.untrack(below);
            self.close_details(self.tree[below].group.id);
            if self.tree[below].group.container.is_some() {
                self.machine.settings_changed();
            }
        }
        self.tree.remove(slot, &mut self.budget)
    }

    /// The groups that are gone, then those that are new or changed, parents first.
    fn emit_events(&mut self, gone: Vec<CgroupId>, events: &mut Vec<HostEvent>) {
        events.extend(gone.into_iter().map(HostEvent::Gone));
        for slot in self.tree.take_marked() {
            let entry = &mut self.tree[slot];
            entry.reported = true;
            events.push(HostEvent::Group(entry.group.clone()));
        }
    }

    pub(super) fn primary_version(&self) -> CgroupVersion {
        self.layout.hierarchies()[self.tree_hierarchies[0]].version
    }

    fn inodes_of(&self, path: &Path) -> HierarchyInodes {
        let mut inodes = [0; MAX_HIERARCHIES];
        for (slot, index) in inodes.iter_mut().zip(&self.tree_hierarchies) {
            *slot = CgroupDir::new(&self.layout.hierarchies()[*index], path).inode().unwrap_or(0);
        }
        inodes
    }
}

/// The group that has this directory, of a hierarchy by its index.
fn directory(walked: &[usize], tree: &GroupTree, hierarchy: usize, inode: u64) -> Option<GroupSlot> {
    let walked = walked.iter().position(|index| *index == hierarchy)?;
    tree.by_inode(walked, inode)
}
