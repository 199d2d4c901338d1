//! What is asked seldom: a group's statistics and its processes.
//!
//! These files are opened, read and closed each time, but of a container that somebody looks at: there they stay open as long as
//! somebody does, for opening costs more than reading.

use super::Sensor;
use crate::cgroup::read::KeptFiles;
use crate::cgroup::{self, At, Dir};
use crate::process;
use elbowroom_types::psi::Pressure;
use elbowroom_types::sample::{GroupId, IoStat, MemoryStat};
use elbowroom_types::unit::{Bytes, Micros};
use std::collections::BTreeSet;

/// A group's statistics, each for its whole subtree. `None` where the controller is not there or the file cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Memory charged.
    pub memory_usage: Option<Bytes>,
    /// `memory.stat`.
    pub memory_stat: Option<MemoryStat>,
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
    pub fn details(&mut self, id: GroupId, again: bool) -> Option<Details> {
        let path = self.tree[self.tree.slot(id)?].path.clone();
        if !again {
            self.close_details(id);
        } else if !self.details.contains_key(&id) {
            let files = KeptFiles::within(&mut self.budget);
            self.details.extend(files.map(|files| (id, files)));
        }
        let at = match self.details.get(&id) {
            Some(files) => At::through(&path, files),
            None => At::from(&path),
        };
        let (layout, warnings) = (&self.layout, &mut self.warnings);
        let cpu = warnings.keep(cgroup::cpu_times(layout, at)).flatten();
        let details = Details {
            memory_usage: warnings.keep(cgroup::memory_usage(layout, at)).flatten(),
            memory_stat: warnings.keep(cgroup::memory_stat(layout, at)).flatten(),
            cpu_user: cpu.map(|(user, _)| user),
            cpu_system: cpu.map(|(_, system)| system),
            io: warnings.keep(cgroup::io_stat(layout, at)).unwrap_or_default(),
            pressure: warnings.keep(cgroup::pressure(layout, at)).flatten(),
            nr_threads: warnings.keep(cgroup::pids_current(layout, at)).flatten(),
        };
        let hierarchies = self.walked.iter().map(|index| &self.layout.hierarchies()[*index]);
        let there = hierarchies.into_iter().any(|hierarchy| Dir::new(hierarchy, &path).exists());
        there.then_some(details)
    }

    /// Closes what is kept open of a group for its statistics.
    pub(super) fn close_details(&mut self, id: GroupId) {
        if let Some(files) = self.details.remove(&id) {
            files.close(&mut self.budget);
        }
    }

    /// Every process in a group and below it, as this process' pid namespace numbers them, ascending, but the container's
    /// first process in front: the outermost one that is number 1 in a pid namespace of its own, else the oldest. Empty when
    /// the group is empty or gone.
    pub fn processes(&mut self, id: GroupId) -> Vec<i32> {
        let mut pids = self.pids(id);
        if let Some(first) = process::first(&self.root, &pids) {
            pids[..=first].rotate_right(1);
        }
        pids
    }

    /// Every process in a group and below it, ascending.
    pub fn pids(&mut self, id: GroupId) -> Vec<i32> {
        let Some(top) = self.tree.slot(id) else { return Vec::new() };
        let mut pids = BTreeSet::new();
        for slot in self.tree.subtree(top) {
            let entry = &self.tree[slot];
            // A process is in every hierarchy; one that has the group is enough, and not all have.
            let Some(walked) = entry.inodes.iter().position(|inode| *inode != 0) else { continue };
            let dir = Dir::new(&self.layout.hierarchies()[self.walked[walked]], &entry.path);
            let text = self.warnings.keep(dir.read("cgroup.procs")).flatten().unwrap_or_default();
            // Processes of other pid namespaces are all number 0.
            pids.extend(text.lines().filter_map(|pid| pid.parse::<i32>().ok()).filter(|pid| *pid > 0));
        }
        pids.into_iter().collect()
    }
}
