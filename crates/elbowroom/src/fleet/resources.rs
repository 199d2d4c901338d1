//! What one node has.

use elbowroom_types::claim::DiskReservation;
use elbowroom_types::io::IoMax;
use elbowroom_types::unit::{Bytes, Limit, Millicpu};
use serde::{Deserialize, Serialize};

/// What a node has, and what of it is taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeResources {
    /// Online CPUs.
    pub cpu: Millicpu,
    /// CPU used over the last second; `None` while that is not known.
    pub cpu_used: Option<Millicpu>,
    /// The CPUs that its containers see, added up: above [`Self::cpu`] where they see each other's idle time.
    pub cpu_effective: Millicpu,
    /// Memory.
    pub memory: Bytes,
    /// What of it is not free; page cache is use. `None` while that is not known.
    pub memory_used: Option<Bytes>,
    /// What containers have reserved.
    pub memory_reserved: Bytes,
    /// Free to lend: what no container uses, less what containers have reserved and do not use, for they may call it back. `None` while
    /// that is not known.
    pub memory_free: Option<Bytes>,
    /// Whether containers compete for memory now.
    pub memory_short: bool,
    /// The governed disks.
    pub disks: Vec<NodeDisk>,
}

/// One disk of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeDisk {
    /// Its name below `/sys/block`.
    pub name: String,
    /// What it can do, per second; `max` while nothing has shown it.
    pub capacity: IoMax,
    /// The part of its capacity that is used; `None` while that is not known.
    pub used: Option<f64>,
    /// Lifelines and reservations together, in parts of its capacity.
    pub promised: f64,
}

impl NodeResources {
    /// The worse of two looks at the same node, number by number: what was there all the time.
    #[must_use]
    pub fn min_of(&self, other: &Self) -> Self {
        // What only one look knew counts: the other could not say otherwise.
        let most = |a: Option<Bytes>, b: Option<Bytes>| a.max(b);
        let disk = |disk: &NodeDisk| {
            let before = other.disks.iter().find(|before| before.name == disk.name);
            let used = [disk.used, before.and_then(|before| before.used)].into_iter().flatten();
            NodeDisk {
                used: used.reduce(f64::max),
                promised: before.map_or(disk.promised, |before| disk.promised.max(before.promised)),
                ..disk.clone()
            }
        };
        Self {
            cpu: self.cpu.min(other.cpu),
            cpu_used: self.cpu_used.max(other.cpu_used),
            memory: self.memory.min(other.memory),
            memory_used: most(self.memory_used, other.memory_used),
            memory_reserved: self.memory_reserved.max(other.memory_reserved),
            memory_free: match (self.memory_free, other.memory_free) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
            memory_short: self.memory_short || other.memory_short,
            disks: self.disks.iter().map(disk).collect(),
            cpu_effective: self.cpu_effective,
        }
    }
}

impl NodeDisk {
    /// The part of this disk that these rates take: of bytes and operations the dearer, reads and writes together. `None` where
    /// it never showed what it can do of one that is asked for.
    pub fn utilization(&self, rates: DiskReservation) -> Option<f64> {
        let part = |rate: Option<u64>, most: Limit<u64>| match (rate, most) {
            (None | Some(0), _) => Some(0.0),
            (Some(_), Limit::Max) => None,
            (Some(rate), Limit::At(most)) => Some(rate as f64 / most.max(1) as f64),
        };
        let read = part(rates.rbps, self.capacity.rbps)?.max(part(rates.riops, self.capacity.riops)?);
        let write = part(rates.wbps, self.capacity.wbps)?.max(part(rates.wiops, self.capacity.wiops)?);
        Some(read + write)
    }
}
