//! What is asked seldom: a group's statistics and its processes.
//!
//! These files are opened, read and closed each time, but of a container that is looked at: there they stay open as long as
//! it is, for opening costs more than reading.

use super::Sensor;
use super::tree::GroupSlot;
use crate::cgroup::read::CgroupFileCache;
use crate::cgroup::{self, CgroupDir, CgroupRef};
use crate::process;
use elbowroom_types::id::CgroupId;
use elbowroom_types::io::IoStat;
use elbowroom_types::psi::Pressure;
use elbowroom_types::sample::MemoryStat;
use elbowroom_types::unit::{Bytes, Micros};
use std::collections::BTreeSet;

/// A group's statistics, each for its whole subtree. `None` where the controller is not there or the file cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupDetails {
    /// Memory charged.
    pub memory_usage: Option<Bytes>,
    /// `memory.stat`.
    pub memory_stat: Option<MemoryStat>,
    /// Processes that the kernel killed for memory.
    pub oom_kills: Option<u64>,
    /// User CPU time: v1 `cpuacct.stat` in grains of 10 ms, v2 `cpu.stat`.
    pub cpu_user: Option<Micros>,
    /// System CPU time.
    pub cpu_system: Option<Micros>,
    /// Disk transfer per device, ascending by device number; empty where none or not known.
    pub io: Vec<IoStat>,
    /// `cpu.pressure`, `io.pressure`, `memory.pressure`. On a hybrid host from the same path in the unified hierarchy.
    pub pressure: Option<[Pressure; 3]>,
    /// Threads (`pids.current`).
    pub nr_threads: Option<u64>,
}

impl Sensor {
    /// A group's statistics; `None` when there is no such group, or no longer. `again`: they will be asked for again soon.
    pub fn details(&mut self, id: CgroupId, again: bool) -> Option<GroupDetails> {
        let path = self.tree[self.tree.slot(id)?].path.clone();
        if !again {
            self.close_details(id);
        } else if !self.details.contains_key(&id) {
            let files = CgroupFileCache::reserve(&mut self.budget);
            self.details.extend(files.map(|files| (id, files)));
        }
        let at = match self.details.get(&id) {
            Some(files) => CgroupRef::with_cached_files(&path, files),
            None => CgroupRef::from(&path),
        };
        let (layout, warnings) = (&self.layout, &mut self.warnings);
        let cpu = warnings.ok_or_warn(cgroup::cpu_times(layout, at)).flatten();
        let details = GroupDetails {
            memory_usage: warnings.ok_or_warn(cgroup::memory_usage(layout, at)).flatten(),
            memory_stat: warnings.ok_or_warn(cgroup::memory_stat(layout, at)).flatten(),
            oom_kills: warnings.ok_or_warn(cgroup::oom_kills(layout, at)).flatten(),
            cpu_user: cpu.map(|(user, _)| user),
            cpu_system: cpu.map(|(_, system)| system),
            io: warnings.ok_or_warn(cgroup::io_stat(layout, at)).unwrap_or_default(),
            pressure: warnings.ok_or_warn(cgroup::pressure(layout, at)).flatten(),
            nr_threads: warnings.ok_or_warn(cgroup::pids_current(layout, at)).flatten(),
        };
        let hierarchies = self.tree_hierarchies.iter().map(|index| &self.layout.hierarchies()[*index]);
        let there = hierarchies.into_iter().any(|hierarchy| CgroupDir::new(hierarchy, &path).exists());
        there.then_some(details)
    }

    /// Closes what is kept open of a group for its statistics.
    pub(super) fn close_details(&mut self, id: CgroupId) {
        if let Some(files) = self.details.remove(&id) {
            files.close(&mut self.budget);
        }
    }

    /// Every process in a group and below it, as this process' pid namespace numbers them, ascending, but the container's
    /// first process in front: the outermost one that is number 1 in a pid namespace of its own, else the oldest. Empty when
    /// the group is empty or gone.
    pub fn processes(&mut self, id: CgroupId) -> Vec<i32> {
        let pids = self.pids(id);
        self.first_in_front(pids)
    }

    /// The same without those in groups inside of it that are `others`, and below them.
    pub fn processes_beside(&mut self, id: CgroupId, others: impl Fn(CgroupId) -> bool) -> Vec<i32> {
        let Some(top) = self.tree.slot(id) else { return Vec::new() };
        let mut own = vec![top];
        let mut next = 0;
        while let Some(slot) = own.get(next) {
            let inside = self.tree[*slot].children.iter().filter(|slot| !others(self.tree[**slot].group.id));
            own.extend(inside.copied().collect::<Vec<_>>());
            next += 1;
        }
        let pids = self.pids_in(own);
        self.first_in_front(pids)
    }

    /// Every process in a group and below it, ascending.
    pub fn pids(&mut self, id: CgroupId) -> Vec<i32> {
        let Some(top) = self.tree.slot(id) else { return Vec::new() };
        let below = self.tree.subtree(top);
        self.pids_in(below)
    }

    fn first_in_front(&self, mut pids: Vec<i32>) -> Vec<i32> {
        if let Some(first) = process::first_process_index(&self.root, &pids) {
            pids[..=first].rotate_right(1);
        }
        pids
    }

    fn pids_in(&mut self, groups: Vec<GroupSlot>) -> Vec<i32> {
        let mut pids = BTreeSet::new();
        for slot in groups {
            let entry = &self.tree[slot];
            // A process is in every hierarchy; one that has the group is enough, and not all have.
            let Some(walked) = entry.inodes.iter().position(|inode| *inode != 0) else { continue };
            let dir = CgroupDir::new(&self.layout.hierarchies()[self.tree_hierarchies[walked]], &entry.path);
            pids.extend(self.warnings.ok_or_warn(dir.processes(&self.root)).unwrap_or_default());
        }
        pids.into_iter().collect()
    }
}
