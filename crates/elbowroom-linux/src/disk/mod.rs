//! Block devices: what lies on what, and at which of them containers are governed.
//!
//! Problem: what a container writes passes several devices on its way (a volume, an encrypted layer, a RAID array, a
//! partition, a disk), the kernel counts it at each, and limits at two of them would throttle it twice.
//!
//! Approach: [`Devices`] reads the stack from sysfs once and answers which devices stand for a given one ([`governed`]). These
//! are the whole disks, as long as every layer above them passes each request on, charged to the cgroup that made it, else
//! the lowest layer that does not. Experiments showed which layers do: `docs/decisions/0007-governed-device.md`.
//!
//! Properties: reading never opens a device and never asks a file system that could make it wait: a path is resolved by
//! the table of mounts, not by `stat`. A device that vanishes while it is read is not there. A stack that leads back to
//! itself ends.
//!
//! [`governed`]: Devices::governed

mod backing;
mod node;
mod properties;

use crate::mountinfo::MountTable;
use crate::root::{ReadError, Root};
use elbowroom_types::glob;
use elbowroom_types::id::DeviceNumber;
pub use node::{BlockDevice, BlockDeviceKind};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::Path;

/// The devices that were looked at, with everything below and above them.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    nodes: BTreeMap<DeviceNumber, BlockDevice>,
    /// Patterns of the disks a person wants governed; empty for all.
    patterns: Vec<String>,
    /// The table of mounts, read when the first question needs it.
    mounts: Option<MountTable>,
}

/// One device on the way from a path down to the hardware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackedDevice {
    /// Its number.
    pub number: DeviceNumber,
    /// Its name below `/sys/block`, for example `dm-0`.
    pub name: String,
    /// What it is.
    pub kind: BlockDeviceKind,
    /// Containers are governed here.
    pub governed: bool,
}

/// Why a path has no chain of devices.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A file of the machine.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Not an absolute path.
    #[error("{}: not an absolute path", .0.display())]
    NotAbsolute(std::path::PathBuf),
}

/// The devices below `path`, from the one its file system is on down to the disks, each once; empty where that file system is
/// on no disk of this machine (network, memory, FUSE). For people: a governor asks [`Devices`].
pub fn resolve(root: &Root, path: &Path) -> Result<Vec<StackedDevice>, DiskError> {
    if !path.is_absolute() {
        return Err(DiskError::NotAbsolute(path.to_owned()));
    }
    let mut devices = Devices::default();
    let mut chain = Vec::new();
    let mut next = devices.of_path(root, path)?;
    next.reverse();
    while let Some(number) = next.pop() {
        devices.learn(root, number)?;
        let Some(node) = devices.nodes.get(&number) else { continue };
        if chain.iter().any(|link: &StackedDevice| link.number == number) {
            continue;
        }
        chain.push(StackedDevice {
            number,
            name: node.name.clone(),
            kind: node.kind.clone(),
            governed: devices.is_governed(number),
        });
        next.extend(node.below.iter().rev());
    }
    Ok(chain)
}

impl Devices {
    /// No device yet. A loop device that a pattern names is governed itself, rather than the disk its file is on.
    pub fn new(patterns: &[String]) -> Self {
        Self { patterns: patterns.to_vec(), ..Self::default() }
    }

    /// How many devices were learned.
    #[expect(clippy::len_without_is_empty, reason = "not needed")]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// A device that was learned.
    pub fn get(&self, number: DeviceNumber) -> Option<&BlockDevice> {
        self.nodes.get(&number)
    }

    /// Reads a device with all it lies on and all that lies on it. A device that is not there is not learned.
    pub fn learn(&mut self, root: &Root, number: DeviceNumber) -> Result<(), ReadError> {
        let mut rest = vec![number];
        while let Some(number) = rest.pop() {
            if self.nodes.contains_key(&number) {
                continue;
            }
            let Some(mut node) = BlockDevice::read(root, number)? else { continue };
            if let BlockDeviceKind::Loop { file, .. } = &node.kind {
                node.below = self.of_path(root, file)?;
            }
            if !node.above.is_empty() && !node.free_partitions.is_empty() {
                node.used_directly = self.any_mounted(root, &node.free_partitions)?;
            }
            rest.extend(node.below.iter().chain(&node.above));
            self.nodes.insert(number, node);
        }
        Ok(())
    }

    /// Looks at a device again. One that cannot be read stays what it was, one that is not there is forgotten.
    pub fn refresh(&mut self, root: &Root, number: DeviceNumber) -> Result<(), ReadError> {
        let before = self.nodes.remove(&number);
        let learned = self.learn(root, number);
        if let (Err(_), Some(node)) = (&learned, before) {
            self.nodes.insert(number, node);
        }
        learned
    }

    /// Has the table of mounts read again when it is next needed.
    pub(crate) fn forget_mounts(&mut self) {
        self.mounts = None;
    }

    /// The learned devices that come after `number`, and then those up to it.
    pub(crate) fn cycle_from(&self, number: DeviceNumber) -> impl Iterator<Item = DeviceNumber> {
        let after = self.nodes.range((Bound::Excluded(number), Bound::Unbounded));
        after.chain(self.nodes.range(..=number)).map(|(number, _)| *number)
    }

    /// Whether containers' transfer is measured and limited at this device, and a person wants it to be.
    pub fn is_governed(&self, number: DeviceNumber) -> bool {
        let Some(node) = self.nodes.get(&number) else { return false };
        let wanted = self.patterns.is_empty() || self.patterns.iter().any(|p| glob::matches(p, &node.name));
        wanted && self.governed(number) == BTreeSet::from([number]) && !self.is_hidden_below_layer(number)
    }

    /// The devices that stand for `number`: itself, or those below it that all of its transfer reaches, charged to the cgroup
    /// that made it. Empty for a device that was not learned, or that leads nowhere (a loop device without a file).
    pub fn governed(&self, number: DeviceNumber) -> BTreeSet<DeviceNumber> {
        let (mut found, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut rest = vec![number];
        while let Some(number) = rest.pop() {
            let Some(node) = self.nodes.get(&number).filter(|_| seen.insert(number)) else { continue };
            match self.passes_through(node) {
                true => rest.extend(&node.below),
                false if node.kind != BlockDeviceKind::Idle => drop(found.insert(number)),
                false => {}
            }
        }
        found
    }

    /// Whether every request to this device comes through a layer that hides the cgroup that made it, so that there is nothing
    /// to govern here: a path of a multipath disk, a member of a RAID 5.
    fn is_hidden_below_layer(&self, number: DeviceNumber) -> bool {
        let (mut rest, mut seen, mut covered) = (vec![number], BTreeSet::new(), false);
        while let Some(number) = rest.pop() {
            let Some(node) = self.nodes.get(&number).filter(|_| seen.insert(number)) else { continue };
            if node.used_directly {
                return false;
            }
            for above in &node.above {
                match self.nodes.get(above) {
                    Some(layer) if !self.passes_through(layer) => covered = true,
                    Some(layer) if layer.above.is_empty() => return false,
                    _ => rest.push(*above),
                }
            }
        }
        covered
    }

    /// Whether a layer passes each request on to the devices below it, charged to the cgroup that made it.
    fn passes_through(&self, node: &BlockDevice) -> bool {
        let below = |n: &DeviceNumber| self.nodes.get(n).map(|node| &node.kind);
        match &node.kind {
            BlockDeviceKind::Partition => true,
            BlockDeviceKind::Raid { level } => {
                matches!(level.as_str(), "linear" | "raid0" | "raid1" | "raid10")
            }
            BlockDeviceKind::Mapped { uuid, .. } => {
                node::is_pass_through(uuid, node.below.iter().filter_map(below))
            }
            BlockDeviceKind::Loop { direct, .. } => {
                *direct && !node.below.is_empty() && !self.is_named_loop_device(&node.name)
            }
            BlockDeviceKind::Disk | BlockDeviceKind::Other | BlockDeviceKind::Idle => false,
        }
    }

    /// Whether a pattern means this loop device and not any device at all.
    fn is_named_loop_device(&self, name: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.starts_with("loop") && glob::matches(pattern, name))
    }
}
