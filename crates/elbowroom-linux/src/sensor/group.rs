//! What is read of one group: whether it is a container, its settings, and whether it has processes.
//!
//! Whether a group has processes (`populated`) costs differently by version. v2 keeps the answer for a whole subtree in
//! `cgroup.events` and announces it. v1 has only lists of processes. A group is looked at when it is new, when a process
//! writes its `cgroup.procs`, when it has just been idle for the longest back-off, and when the rescan comes by. A group that
//! uses CPU time is in use without a look. So on v1 a group whose processes moved out or ended counts as populated for
//! some seconds more, which costs its siblings fair share and nothing else.

use super::Sensor;
use super::tree::{GroupSlot, GroupTree};
use crate::cgroup::{self, CgroupController, CgroupDir, CgroupVersion, v2};
use crate::discover::StateStamp;
use crate::root::ReadError;
use elbowroom_types::container::ContainerEngine;
use elbowroom_types::sample::CgroupSettings;
use elbowroom_types::unit::Micros;

impl Sensor {
    /// A group that is new, or new in one of its hierarchies.
    pub(super) fn refresh_group(&mut self, slot: GroupSlot) {
        self.watch_group(slot);
        self.tree.meters[slot].close(&mut self.budget);
        self.tree.due[slot] = Micros::ZERO;
        self.close_details(self.tree[slot].group.id);
        self.find_container(slot);
        self.find_tenant(slot);
        let entry = &self.tree[slot];
        if !entry.visible && (entry.inodes[0] != 0 || entry.group.container.is_some()) {
            self.make_visible(slot);
        } else if entry.visible && self.tree.meters[slot].tracked.is_none() {
            self.track(slot);
        }
        self.read_settings(slot);
        self.read_population(slot);
    }

    /// Makes the group and those above it known to the receiver of events.
    fn make_visible(&mut self, slot: GroupSlot) {
        let mut up = Some(slot);
        while let Some(slot) = up.filter(|s| !self.tree[*s].visible) {
            self.tree[slot].visible = true;
            self.tree.mark(slot);
            self.read_settings(slot);
            self.track(slot);
            up = self.tree[slot].parent;
        }
        self.tree.invalidate_order();
    }

    /// Asks whether the group is a container, unless what is known of it cannot have changed.
    pub(super) fn find_container(&mut self, slot: GroupSlot) {
        let entry = &self.tree[slot];
        if let Some((file, stamp)) = &entry.state
            && StateStamp::of(&self.root, file) == Some(*stamp)
        {
            return;
        }
        let mut up = entry.parent;
        let mut inside = false;
        while let Some(slot) = up {
            inside |= self.tree[slot].group.container.is_some();
            up = self.tree[slot].parent;
        }
        let path = entry.group.path.trim_start_matches('/').to_owned();
        let found = match self.discover.find(&self.root, &path, inside) {
            Ok(found) => found,
            Err(error) => {
                // State that cannot be read must not take a running container away.
                self.warnings.warn_once(&error);
                return;
            }
        };
        let made_by_root = || self.layout.is_made_by_root(&self.tree[slot].path);
        let found = found.filter(|found| found.container.engine == ContainerEngine::Plain || made_by_root());
        let is_known = self.tree[slot].group.container.is_some();
        let found = found.filter(|_| is_known || self.has_room_for_container(slot));
        if let Some(account) = self.tree[slot]
            .tenant
            .filter(|_| found.is_some() && !is_known)
            .and_then(|top| self.tree.account(top))
        {
            account.containers += 1;
        }
        let entry = &mut self.tree[slot];
        match found {
            Some(found) => {
                entry.state = found.state;
                if entry.group.container.as_ref() != Some(&found.container) {
                    entry.group.made_by_user = !self.layout.is_made_by_root(&entry.path);
                    entry.group.container = Some(found.container);
                    self.tree.mark(slot);
                    self.machine.settings_changed();
                    self.make_visible(slot);
                }
            }
            // An engine deletes its files before the cgroup: once a container, it stays one until it is gone.
            None => entry.state = None,
        }
    }

    /// Those of a container and of the group below it that all of it is in are read together.
    pub(super) fn read_settings(&mut self, slot: GroupSlot) {
        let slot = self.read_with(slot).unwrap_or(slot);
        let Some(mut limits) = self.limits(slot) else { return };
        let subgroup = self.subgroup(slot);
        if let Some(inner) = subgroup
            && let Some(below) = self.limits(inner)
        {
            self.note_limits(inner, below);
            limits = limits.within(&below);
        }
        let subgroup = subgroup.map(|subgroup| self.tree[subgroup].path.clone());
        if self.tree[slot].subgroup != subgroup {
            self.tree.meters[slot].reset_throttled(&mut self.budget);
            self.tree[slot].subgroup = subgroup;
        }
        self.note_limits(slot, limits);
    }

    /// The container with whose settings those of this group are read, where all of it is in this one.
    pub(super) fn read_with(&self, slot: GroupSlot) -> Option<GroupSlot> {
        self.tree.get(slot)?.parent.filter(|above| self.subgroup(*above) == Some(slot))
    }

    /// What its own files say, where it is told of.
    fn limits(&mut self, slot: GroupSlot) -> Option<CgroupSettings> {
        let entry = self.tree.get(slot).filter(|entry| entry.visible)?;
        let warnings = &mut self.warnings;
        Some(cgroup::limits(&self.layout, &entry.path, |error| warnings.warn_once(error)))
    }

    fn note_limits(&mut self, slot: GroupSlot, limits: CgroupSettings) {
        // A file that was absent may be there now.
        self.tree.meters[slot].retry_absent(&mut self.budget);
        self.tree.meters[slot].has_quota = limits.cpu_max.is_some_and(|max| max.quota.value().is_some());
        let entry = &mut self.tree[slot];
        if entry.group.limits != limits {
            entry.group.limits = limits;
            self.tree.mark(slot);
            self.machine.settings_changed();
        }
    }

    /// The group below a container's in which all of it is, with limits of its own: see [`cgroup::subgroup`].
    pub(super) fn subgroup(&self, slot: GroupSlot) -> Option<GroupSlot> {
        let entry = &self.tree[slot];
        let [only] = entry.children[..] else { return None };
        let is_it = entry.directories == 1
            && entry.group.container.is_some()
            && self.primary_version() == CgroupVersion::V2
            && cgroup::is_subgroup(&entry.path, self.tree[only].path.file_name()?);
        is_it.then_some(only)
    }

    /// Looks whether the group has processes, and lets everything above it know.
    pub(super) fn read_population(&mut self, slot: GroupSlot) {
        if self.tree.get(slot).is_none() {
            return;
        }
        let mut at = slot;
        loop {
            let populated = self.population(at, at == slot);
            let changed = self.tree.set_populated(at, populated);
            if changed {
                self.tree.mark(at);
            }
            match self.tree[at].parent {
                Some(parent) if changed => at = parent,
                _ => return,
            }
        }
    }

    fn population(&mut self, slot: GroupSlot, look: bool) -> bool {
        let entry = &self.tree[slot];
        let walked = entry.inodes.iter().position(|inode| *inode != 0).unwrap_or(0);
        let hierarchy = &self.layout.hierarchies()[self.tree_hierarchies[walked]];
        let dir = CgroupDir::new(hierarchy, &entry.path);
        if hierarchy.version == CgroupVersion::V2 {
            let answer = self.warnings.ok_or_warn(v2::populated(&dir)).flatten();
            return answer.unwrap_or(slot == GroupTree::ROOT);
        }
        if look {
            let any = self.warnings.ok_or_warn(has_processes(&dir)).flatten().unwrap_or(false);
            self.tree[slot].own_processes = any;
        }
        let entry = &self.tree[slot];
        entry.own_processes || entry.children.iter().any(|child| self.tree[*child].group.populated)
    }

    /// A tick found the group using CPU time.
    pub(super) fn mark_populated(&mut self, slot: GroupSlot) {
        if !self.tree.meters[slot].populated {
            self.tree.set_populated(slot, true);
            self.tree.mark(slot);
        }
    }

    /// Whether some container is kept to a part of the online CPUs, by itself or with others in a group around it: on v2 that group
    /// alone may have a cpuset.
    pub(super) fn any_narrow_cpuset(&self) -> bool {
        let online = &self.node.online;
        let is_narrow = |slot: GroupSlot| {
            let mut around = std::iter::successors(Some(slot), |slot| self.tree[*slot].parent);
            let cpus = around.find_map(|slot| self.tree[slot].group.limits.cpuset);
            cpus.is_some_and(|set| set.intersection(online) != *online)
        };
        self.layout.index(CgroupController::Cpuset).is_some()
            && (0..self.tree.slots())
                .filter(|slot| self.tree.get(*slot).is_some_and(|entry| entry.group.container.is_some()))
                .any(is_narrow)
    }
}

/// Whether `cgroup.procs` has a line. The kernel of v1 sorts the whole list for that; it keeps it for a second.
fn has_processes(dir: &CgroupDir<'_>) -> cgroup::ReadResult<bool> {
    let file = crate::root::if_present(dir.open("cgroup.procs"))?;
    let Some(file) = file else { return Ok(None) };
    let mut buffer = [0u8; 32];
    match rustix::io::read(&file, &mut buffer) {
        Ok(n) => Ok(Some(n > 0)),
        Err(rustix::io::Errno::NODEV) => Ok(None),
        Err(source) => {
            Err(ReadError::Io { operation: "reading", path: dir.path().join("cgroup.procs"), source })
        }
    }
}
