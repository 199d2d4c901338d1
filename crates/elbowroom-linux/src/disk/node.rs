//! One block device, as sysfs has it.

use crate::root::{ReadError, Root, if_present};
use elbowroom_types::id::DeviceNumber;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    /// Its name below `/sys/class/block`.
    pub name: String,
    /// What it is.
    pub kind: BlockDeviceKind,
    /// What it lies on: `slaves`, a partition's disk, the disks of a loop device's file.
    pub below: Vec<DeviceNumber>,
    /// What lies on it or on one of its partitions: `holders`.
    pub above: Vec<DeviceNumber>,
    /// Its partitions that no other device lies on.
    pub(super) free_partitions: Vec<DeviceNumber>,
    /// A file system is on one of those.
    pub(super) used_directly: bool,
}

/// What a block device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockDeviceKind {
    /// Hardware, or what a driver shows as such.
    Disk,
    /// A part of a disk.
    Partition,
    /// The device mapper's: LVM, LUKS, multipath.
    Mapped {
        /// `dm/name`.
        name: String,
        /// `dm/uuid`; its prefix names the tool that made the device.
        uuid: String,
    },
    /// Software RAID.
    Raid {
        /// `md/level`, for example `raid1`.
        level: String,
    },
    /// A file as a disk.
    Loop {
        /// `loop/backing_file`.
        file: PathBuf,
        /// `loop/dio`: requests bypass the page cache, each charged to the cgroup that made it. Else writes are the page cache's.
        direct: bool,
    },
    /// A loop device without a file.
    Idle,
    /// Something else that lies on other devices, for example bcache.
    Other,
}

impl fmt::Display for BlockDeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk => f.write_str("disk"),
            Self::Partition => f.write_str("partition"),
            Self::Mapped { name, uuid } => match uuid.split_once('-') {
                Some(("LVM", _)) => write!(f, "LVM volume {name}"),
                Some(("CRYPT", _)) => write!(f, "encrypted {name}"),
                Some(("mpath", _)) => write!(f, "multipath {name}"),
                _ => write!(f, "mapped {name}"),
            },
            Self::Raid { level } => f.write_str(level),
            Self::Loop { file, .. } => write!(f, "file {}", file.display()),
            Self::Idle => f.write_str("loop device without a file"),
            Self::Other => f.write_str("layer over other devices"),
        }
    }
}

impl BlockDevice {
    /// Reads a device; `None` when there is none with this number.
    pub(super) fn read(root: &Root, number: DeviceNumber) -> Result<Option<Self>, ReadError> {
        let dir = PathBuf::from(format!("/sys/dev/block/{number}"));
        let Some(uevent) = if_present(root.read(dir.join("uevent")))? else { return Ok(None) };
        let value = |key: &str| uevent.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        // Devices in a directory of their own (cciss!c0d0) have a slash in their file's name.
        let name = value("DEVNAME").unwrap_or("").replace('/', "!");
        let mut node = Self {
            name,
            kind: BlockDeviceKind::Disk,
            below: Vec::new(),
            above: Vec::new(),
            free_partitions: Vec::new(),
            used_directly: false,
        };
        if value("DEVTYPE") == Some("partition") {
            node.kind = BlockDeviceKind::Partition;
            node.below.extend(device(root, &dir.join("../dev"))?);
            return Ok(Some(node));
        }
        node.above = devices(root, &dir.join("holders"))?;
        if node.name.starts_with("dm-") {
            let name = line(root, &dir.join("dm/name"))?.unwrap_or_default();
            node.kind =
                BlockDeviceKind::Mapped { name, uuid: line(root, &dir.join("dm/uuid"))?.unwrap_or_default() };
            node.below = devices(root, &dir.join("slaves"))?;
            return Ok(Some(node));
        }
        node.read_partitions(root, &dir)?;
        if node.name.starts_with("loop") {
            node.kind = match line(root, &dir.join("loop/backing_file"))? {
                Some(file) => BlockDeviceKind::Loop {
                    file: file.into(),
                    direct: line(root, &dir.join("loop/dio"))?.as_deref() == Some("1"),
                },
                None => BlockDeviceKind::Idle,
            };
            return Ok(Some(node));
        }
        node.below = devices(root, &dir.join("slaves"))?;
        if !node.below.is_empty() {
            node.kind = match line(root, &dir.join("md/level"))? {
                Some(level) => BlockDeviceKind::Raid { level },
                None => BlockDeviceKind::Other,
            };
        }
        Ok(Some(node))
    }

    /// What uses the disk's partitions.
    fn read_partitions(&mut self, root: &Root, dir: &Path) -> Result<(), ReadError> {
        for entry in list(root, dir)? {
            if !entry.to_str().is_some_and(|entry| entry.starts_with(&self.name)) {
                continue;
            }
            let holders = devices(root, &dir.join(&entry).join("holders"))?;
            if holders.is_empty() {
                self.free_partitions.extend(device(root, &dir.join(entry).join("dev"))?);
            }
            self.above.extend(holders);
        }
        Ok(())
    }
}

/// Whether a device-mapper device hands each request to the devices below it, charged to the cgroup that made it. sysfs does not
/// show the device's targets, but the tool that made it (the prefix of `uuid`) and the devices `below`:
///
/// - `CRYPT-`: encryption does.
/// - `partN-`: kpartx makes nothing but linear ones.
/// - `LVM-`: a volume on disks is linear or striped, and does; one on volumes of LVM itself is something of its own (RAID,
///   snapshot, cache), but for a thin pool (`-tpool`) and the volumes in it, which do.
///
/// Any other device counts as hiding the cgroup: `mpath-` does (drivers/md/dm-rq.c), and any target may.
pub(super) fn is_pass_through<'a>(uuid: &str, mut below: impl Iterator<Item = &'a BlockDeviceKind>) -> bool {
    let Some((maker, rest)) = uuid.split_once('-') else { return false };
    let is_pool = |uuid: &str| uuid.starts_with("LVM-") && uuid.ends_with("-tpool");
    match maker {
        "CRYPT" => true,
        "LVM" => {
            is_pool(uuid)
                || below.all(|layer| match layer {
                    BlockDeviceKind::Mapped { uuid, .. } => !uuid.starts_with("LVM-") || is_pool(uuid),
                    _ => true,
                })
        }
        part => {
            let digits = part.strip_prefix("part").unwrap_or("");
            !rest.is_empty() && !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
        }
    }
}

/// The numbers of the devices that a directory of links (`slaves`, `holders`) names.
fn devices(root: &Root, dir: &Path) -> Result<Vec<DeviceNumber>, ReadError> {
    let mut numbers = Vec::new();
    for name in list(root, dir)? {
        numbers.extend(device(root, &dir.join(name).join("dev"))?);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn list(root: &Root, dir: &Path) -> Result<Vec<OsString>, ReadError> {
    Ok(if_present(root.list(dir))?.unwrap_or_default())
}

/// A device's `dev` file.
pub(super) fn device(root: &Root, path: &Path) -> Result<Option<DeviceNumber>, ReadError> {
    let Some(text) = line(root, path)? else { return Ok(None) };
    let number = text.parse().map_err(|_| {
        ReadError::malformed(path, crate::parse::malformed(&text, "a device number such as \"8:0\""))
    })?;
    Ok(Some(number))
}

/// A file of one line, without blanks around it; `None` where it is not there or empty.
pub(super) fn line(root: &Root, path: &Path) -> Result<Option<String>, ReadError> {
    let text = if_present(root.read(path))?;
    Ok(text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VG: &str = "LVM-xsPvWwYs3Pf0rJWTV3WJPGCUW4Xka0dAfuxlbbcDNy1KEIrkFfVbTlPTMItuY6UO";

    #[test]
    fn the_maker_of_a_mapping_and_its_base_say_whether_names_pass_through() {
        let hidden =
            |suffix: &str| BlockDeviceKind::Mapped { name: String::new(), uuid: format!("{VG}{suffix}") };
        let crypt = BlockDeviceKind::Mapped { name: "safe".into(), uuid: "CRYPT-LUKS2-1-safe".into() };
        let raid = BlockDeviceKind::Raid { level: "raid5".into() };
        for (uuid, below, passes) in [
            (VG, vec![BlockDeviceKind::Disk, BlockDeviceKind::Partition], true),
            (VG, vec![raid], true),
            (VG, vec![crypt], true),
            (VG, vec![hidden("-tpool")], true),
            (&format!("{VG}-tpool"), vec![hidden("-tdata"), hidden("-tmeta")], true),
            (&format!("{VG}-tdata"), vec![BlockDeviceKind::Disk], true),
            (VG, vec![hidden(""), hidden("")], false),
            (VG, vec![hidden("-real"), hidden("-cow")], false),
            (VG, vec![BlockDeviceKind::Disk, hidden("_rimage")], false),
            ("CRYPT-LUKS2-5-safe", vec![hidden("")], true),
            ("part1-mpath-3600", vec![BlockDeviceKind::Disk], true),
            ("part-mpath-3600", vec![BlockDeviceKind::Disk], false),
            ("partition", vec![BlockDeviceKind::Disk], false),
            ("mpath-3600", vec![BlockDeviceKind::Disk], false),
            ("stratis-1-private", vec![BlockDeviceKind::Disk], false),
            ("", vec![BlockDeviceKind::Disk], false),
        ] {
            assert_eq!(is_pass_through(uuid, below.iter()), passes, "{uuid} on {below:?}");
        }
    }
}
