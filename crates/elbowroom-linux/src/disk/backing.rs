//! From a path to the devices its file system is on.

use super::Devices;
use super::node::{device, line};
use crate::cgroup::layout::mounts;
use crate::mountinfo::{MountEntry, MountTable};
use crate::parse::unescape;
use crate::root::{ReadError, Root, if_present};
use elbowroom_types::id::DeviceNumber;
use std::path::{Path, PathBuf};

/// An upper directory on an overlay on an overlay: more than can be stacked, for the kernel refuses the third.
const MAX_OVERLAY_DEPTH: usize = 3;

impl Devices {
    /// The devices that the file system of `path` is on; empty where that is none of this machine's disks.
    pub(super) fn of_path(&mut self, root: &Root, path: &Path) -> Result<Vec<DeviceNumber>, ReadError> {
        let table = self.mounts(root)?;
        let mut path = path.to_owned();
        for _ in 0..MAX_OVERLAY_DEPTH {
            let Some(mount) = table.visible(&path) else { break };
            match mount.fstype.as_str() {
                "overlay" => match upper_dir(mount) {
                    Some(upper) => path = upper,
                    None => break,
                },
                "btrfs" => return btrfs_devices(root, mount),
                // Its server does the transfer, in its own name.
                fuse if fuse.starts_with("fuse") => break,
                _ if mount.device.major != 0 => return Ok(vec![mount.device]),
                _ => break,
            }
        }
        Ok(Vec::new())
    }

    /// Whether a file system that containers may have something on is on one of `partitions`: not the firmware's.
    pub(super) fn any_mounted(
        &mut self,
        root: &Root,
        partitions: &[DeviceNumber],
    ) -> Result<bool, ReadError> {
        let mut mounts = self.mounts(root)?.iter();
        Ok(mounts.any(|mount| partitions.contains(&mount.device) && mount.fstype != "vfat"))
    }

    /// The table of mounts, read once until everything is forgotten.
    fn mounts(&mut self, root: &Root) -> Result<&MountTable, ReadError> {
        let table = match self.mounts.take() {
            Some(table) => table,
            None => mounts(root)?,
        };
        Ok(self.mounts.insert(table))
    }
}

/// Where writes to an overlay go.
fn upper_dir(mount: &MountEntry) -> Option<PathBuf> {
    let upper = mount.super_options().find_map(|option| option.strip_prefix("upperdir="))?;
    Some(unescape(upper.as_bytes())).filter(|upper| upper.is_absolute())
}

/// btrfs hides its devices behind a number of its own, and may have several: one of them is in the table of mounts, all of
/// them below `/sys/fs/btrfs`.
fn btrfs_devices(root: &Root, mount: &MountEntry) -> Result<Vec<DeviceNumber>, ReadError> {
    let Some(one) = device_by_path(root, &mount.source)? else { return Ok(Vec::new()) };
    let all = Path::new("/sys/fs/btrfs");
    for filesystem in if_present(root.list(all))?.unwrap_or_default() {
        let members = all.join(filesystem).join("devices");
        let mut numbers = Vec::new();
        for member in if_present(root.list(&members))?.unwrap_or_default() {
            numbers.extend(device(root, &members.join(member).join("dev"))?);
        }
        if numbers.contains(&one) {
            numbers.sort_unstable();
            return Ok(numbers);
        }
    }
    Ok(vec![one])
}

/// The number of `/dev/sda2` or `/dev/mapper/vg-root`, from sysfs: `/dev` may be another one than the machine's.
pub(super) fn device_by_path(root: &Root, path: &Path) -> Result<Option<DeviceNumber>, ReadError> {
    let Ok(name) = path.strip_prefix("/dev") else { return Ok(None) };
    let block = Path::new("/sys/class/block");
    let Ok(mapped) = name.strip_prefix("mapper") else {
        let name = name.to_string_lossy().replace('/', "!");
        return device(root, &block.join(name).join("dev"));
    };
    for entry in if_present(root.list(block))?.unwrap_or_default() {
        let dir = block.join(entry);
        if line(root, &dir.join("dm/name"))?.is_some_and(|name| Path::new(&name) == mapped) {
            return device(root, &dir.join("dev"));
        }
    }
    Ok(None)
}
