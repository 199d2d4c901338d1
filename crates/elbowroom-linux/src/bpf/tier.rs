//! The set as the sensor's tier: one slot per cgroup, which is the sensor's own.

use super::{ActiveSet, BpfError, Hierarchy};
use crate::cgroup::{Controller, Layout, Version};
use crate::sensor::{ActiveGroups, Tier};
use elbowroom_types::unit::Micros;

/// The BPF tier, or the files where this kernel refuses it, which is said in the log once.
pub(crate) fn tier(layout: &Layout) -> Tier {
    let Some(hierarchy) = hierarchy(layout) else { return Tier::Files };
    match ActiveSet::open(hierarchy) {
        Ok(set) => Tier::Active(Box::new(Followed { set, refused: 0 })),
        Err(error) => {
            tracing::warn!(because = %error, "reading files: this kernel has no BPF for us");
            Tier::Files
        }
    }
}

/// The hierarchy whose inodes the sensor tracks: where the tree of groups is.
fn hierarchy(layout: &Layout) -> Option<Hierarchy> {
    let v1 = [(Controller::Cpu, Hierarchy::Cpu), (Controller::Cpuacct, Hierarchy::Cpuacct)];
    let (index, v1) = v1.into_iter().find_map(|(controller, v1)| Some((layout.index(controller)?, v1)))?;
    Some(match layout.hierarchies()[index].version {
        Version::V1 => v1,
        Version::V2 => Hierarchy::Unified,
    })
}

#[derive(Debug)]
struct Followed {
    set: ActiveSet,
    /// How many groups could not be tracked.
    refused: u64,
}

impl Followed {
    /// Warns of the first group that is not followed; the others are counted.
    fn kept(&mut self, result: Result<(), BpfError>) -> bool {
        if let Err(error) = &result {
            self.refused += 1;
            if self.refused == 1 {
                tracing::warn!(because = %error, "reading this group's files, and those of others like it");
            }
        }
        result.is_ok()
    }
}

impl ActiveGroups for Followed {
    fn track(&mut self, inode: u64, slot: u32) -> bool {
        let result = self.set.track(inode, slot);
        self.kept(result)
    }

    fn untrack(&mut self, inode: u64) {
        let result = self.set.untrack(inode);
        self.kept(result);
    }

    fn ran(&mut self, each: &mut dyn FnMut(u32, Micros)) {
        self.set.drain(each);
    }
}
