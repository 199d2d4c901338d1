//! The set as the sensor's tier: one slot per cgroup, which is the sensor's own.

use super::{ActiveSet, BpfError, TrackedHierarchy};
use crate::activity::{ActivitySource, ActivityTracker};
use crate::cgroup::{CgroupController, CgroupLayout, CgroupVersion};
use elbowroom_types::unit::Micros;

/// The BPF tier, or the files where this kernel refuses it, which is said in the log once.
pub(crate) fn detect_activity_source(layout: &CgroupLayout) -> ActivitySource {
    let Some(hierarchy) = hierarchy(layout) else { return ActivitySource::Files };
    match ActiveSet::open(hierarchy) {
        Ok(set) => ActivitySource::Tracked(Box::new(BpfTracker { set, refused: 0 })),
        Err(error) => {
            tracing::warn!(because = %error, "groups are read from files: BPF cannot be used on this kernel");
            ActivitySource::Files
        }
    }
}

/// The hierarchy whose inodes the sensor tracks: where the tree of groups is.
fn hierarchy(layout: &CgroupLayout) -> Option<TrackedHierarchy> {
    let v1 = [
        (CgroupController::Cpu, TrackedHierarchy::Cpu),
        (CgroupController::Cpuacct, TrackedHierarchy::Cpuacct),
    ];
    let (index, v1) = v1.into_iter().find_map(|(controller, v1)| Some((layout.index(controller)?, v1)))?;
    Some(match layout.hierarchies()[index].version {
        CgroupVersion::V1 => v1,
        CgroupVersion::V2 => TrackedHierarchy::Unified,
    })
}

#[derive(Debug)]
struct BpfTracker {
    set: ActiveSet,
    /// How many groups could not be tracked.
    refused: u64,
}

impl BpfTracker {
    /// Warns of the first group that is not followed; the others are counted.
    fn accepted(&mut self, result: Result<(), BpfError>) -> bool {
        if let Err(error) = &result {
            self.refused += 1;
            if self.refused == 1 {
                tracing::warn!(because = %error, "BPF cannot follow a group: its files are read, and those of others like it");
            }
        }
        result.is_ok()
    }
}

impl ActivityTracker for BpfTracker {
    fn track(&mut self, inode: u64, slot: u32) -> bool {
        let result = self.set.track(inode, slot);
        self.accepted(result)
    }

    fn untrack(&mut self, inode: u64) {
        let result = self.set.untrack(inode);
        self.accepted(result);
    }

    fn drain_active(&mut self, each: &mut dyn FnMut(u32, Micros)) {
        self.set.drain(each);
    }
}
