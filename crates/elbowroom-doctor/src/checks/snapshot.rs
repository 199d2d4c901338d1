//! One look at a host that is kept, so that a later one can be compared with it: `elbowroom doctor --since`.

use super::facts::{CgroupCounters, DiskCounters, HostFacts, MachineCounters};
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::unit::{Bytes, Micros};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything that counts up, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CounterSnapshot {
    /// When, on the clock that began when the host was started.
    pub at: Micros,
    host: MachineCounters,
    disks: Vec<(DeviceNumber, DiskCounters)>,
    groups: Vec<(String, Option<u64>, CgroupCounters)>,
}

impl HostFacts {
    /// What is worth keeping of the second look, which was made `at`.
    pub fn snapshot(&self, at: Micros) -> CounterSnapshot {
        CounterSnapshot {
            at,
            host: self.host.after.clone(),
            disks: self.host.disks.iter().map(|d| (d.number, d.after)).collect(),
            groups: self.groups.iter().map(|g| (g.path.clone(), g.inode, g.after.clone())).collect(),
        }
    }

    /// The same host with an earlier look as the first one; the second was made at `now`. What was not there then began at
    /// zero since. Settings, and pressure as an average, stay those of now.
    #[must_use]
    pub fn since(mut self, earlier: CounterSnapshot, now: Micros) -> Self {
        self.elapsed = now.saturating_sub(earlier.at);
        self.host.before = earlier.host;
        let disks: BTreeMap<DeviceNumber, DiskCounters> = earlier.disks.into_iter().collect();
        for disk in &mut self.host.disks {
            disk.before = disks.get(&disk.number).copied().unwrap_or_default();
        }
        let mut groups: BTreeMap<(String, Option<u64>), CgroupCounters> =
            earlier.groups.into_iter().map(|(path, inode, counters)| ((path, inode), counters)).collect();
        for group in &mut self.groups {
            group.before = match groups.remove(&(group.path.clone(), group.inode)) {
                Some(before) => before,
                None => zero_counters(&group.after),
            };
        }
        self
    }
}

/// The counters of a cgroup when it was made.
fn zero_counters(after: &CgroupCounters) -> CgroupCounters {
    let zeroes = |counts: &BTreeMap<String, u64>| counts.keys().map(|key| (key.clone(), 0)).collect();
    CgroupCounters {
        usage: after.usage.map(|_| Bytes::ZERO),
        memory: after.memory.map(|_| Default::default()),
        more: zeroes(&after.more),
        events: zeroes(&after.events),
        cpu: zeroes(&after.cpu),
        cpu_below: after.cpu_below.as_ref().map(|(name, counts)| (name.clone(), zeroes(counts))),
        pressure: after.pressure.map(|_| Default::default()),
        io: Vec::new(),
    }
}
