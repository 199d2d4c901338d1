//! What is told about a governed disk.

use super::Devices;
use super::backing::device_by_path;
use super::node::{BlockDeviceKind, line};
use crate::proc;
use crate::root::{ReadError, Root, if_present};
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::io::{DiskProperties, IoWeightMechanism};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

impl Devices {
    /// A learned device, in the words of an event; `None` when it was not learned. What its own directory does not say is not
    /// set: swap ([`Devices::swap`]), and iocost.
    pub fn disk(&self, root: &Root, number: DeviceNumber) -> Result<Option<DiskProperties>, ReadError> {
        let Some(node) = self.get(number) else { return Ok(None) };
        let dir = PathBuf::from(format!("/sys/dev/block/{number}"));
        let scheduler = line(root, &dir.join("queue/scheduler"))?.map(|all| selected_option(&all).to_owned());
        let scheduler = scheduler.unwrap_or_else(|| "none".to_owned());
        Ok(Some(DiskProperties {
            number,
            name: node.name.clone(),
            identity: identity(root, &dir, &node.kind)?.unwrap_or_else(|| node.name.clone()),
            rotational: line(root, &dir.join("queue/rotational"))?.as_deref() == Some("1"),
            weights: (scheduler == "bfq").then_some(IoWeightMechanism::Bfq),
            scheduler,
            swap: false,
        }))
    }

    /// The governed devices that carry swap, learning them on the way.
    pub fn swap(&mut self, root: &Root) -> Result<BTreeSet<DeviceNumber>, ReadError> {
        let mut found = BTreeSet::new();
        let path = "/proc/swaps";
        let Some(text) = if_present(root.read(path))? else { return Ok(found) };
        for swap in proc::swaps(&text).map_err(|e| ReadError::malformed(path, e))? {
            let numbers = match swap.starts_with("/dev") {
                true => device_by_path(root, &swap)?.into_iter().collect(),
                false => self.of_path(root, &swap)?,
            };
            for number in numbers {
                self.learn(root, number)?;
                found.extend(self.governed(number));
            }
        }
        Ok(found)
    }
}

/// What makes a disk the same disk after a restart, where something does.
fn identity(root: &Root, dir: &Path, layer: &BlockDeviceKind) -> Result<Option<String>, ReadError> {
    let one = |file: &str| line(root, &dir.join(file));
    match layer {
        BlockDeviceKind::Mapped { uuid, name } if uuid.is_empty() => return Ok(Some(name.clone())),
        BlockDeviceKind::Mapped { uuid, .. } => return Ok(Some(uuid.clone())),
        BlockDeviceKind::Raid { .. } => return one("md/uuid"),
        BlockDeviceKind::Loop { file, .. } => return Ok(Some(file.to_string_lossy().into_owned())),
        BlockDeviceKind::Disk
        | BlockDeviceKind::Partition
        | BlockDeviceKind::Idle
        | BlockDeviceKind::Other => {}
    }
    // virtio shows its serial number beside the queue, others below the device.
    let serial = match one("device/serial")? {
        Some(serial) => Some(serial),
        None => one("serial")?,
    };
    let world_wide_name = match one("wwid")? {
        Some(name) => Some(name),
        None => one("device/wwid")?,
    };
    Ok(match (one("device/model")?, serial) {
        (Some(model), Some(serial)) => Some(format!("{model} {serial}")),
        (_, serial) => world_wide_name.or(serial),
    })
}

/// The word in brackets of `none [mq-deadline] kyber`.
fn selected_option(text: &str) -> &str {
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(text, |(word, _)| word)
}
