//! A container's own pressure, as the kernel has it: its cgroup's `cpu.pressure`, `io.pressure` and `memory.pressure`, mounted on the files of
//! `/proc/pressure` (`docs/decisions/0044-pressure-inside.md`).
//!
//! **Problem.** These files are not only read. A program writes a trigger to one and polls it (`Documentation/accounting/psi.rst`). A view's
//! file is read-only, and a FUSE server could not say when a trigger fires without sensing it itself.
//!
//! **Approach.** The files of a cgroup v2 have the same form and the same triggers. A copy of the container's own mount of its hierarchy,
//! of that one file, goes on each. Where a container has no directory in a v2 hierarchy, the kernel's own files stay, with the machine's
//! pressure. Who may write is as in `/proc/pressure`: where that lets all users write (since Linux 5.13), the cgroup's file does too.

use super::MountError;
use super::attach::{copy_mount, id_of, move_mount, open_target, refuse_shared_below, unmount_exactly};
use super::mountinfo::{CgroupLine, MountEntry, MountTable};
use super::namespace::{FileId, NamespaceRoot, Unmounter};
use super::plan::{MountPlan, covered_filesystem, own_directories};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags};
use std::path::{Path, PathBuf};

/// Where the kernel shows the machine's.
const DIRECTORY: &str = "/proc/pressure";
const RESOURCES: [&str; 3] = ["cpu", "io", "memory"];

/// Mounts the files of the container's cgroup where they are not yet; `table` is its mount table, with or without them.
pub(super) fn keep(place: &NamespaceRoot, table: &MountTable, plan: &MountPlan) -> Result<(), MountError> {
    let cgroups = place.cgroups()?;
    let is_root = |line: &CgroupLine| line.controllers.is_empty() && line.path == Path::new("/");
    let may_walk = |path: &Path| covered_filesystem(table, &plan.view, path, &|_| false).is_ok();
    if cgroups.iter().any(is_root) || !may_walk(Path::new(DIRECTORY)) {
        return Ok(());
    }
    let directories = own_directories(table, &cgroups, place.group(), "");
    for resource in RESOURCES {
        let target = Path::new(DIRECTORY).join(resource);
        let Some(shown) = table.visible(&target) else { continue };
        let occupied = shown.mount_point == target && !is_ours(shown);
        let files = directories.iter().map(|directory| directory.join(format!("{resource}.pressure")));
        let found =
            files.filter(|file| !occupied && may_walk(file)).find_map(|file| find(place, table, file));
        if let Some((file, id)) = found {
            mount_on(place, table, shown, &target, &file, id)?;
        }
    }
    Ok(())
}

/// Takes the mounts away.
pub(super) fn withdraw(place: &NamespaceRoot, unmounter: &Unmounter) -> Result<(), MountError> {
    let table = place.table()?;
    table
        .iter()
        .filter(|mount| is_ours(mount))
        .try_for_each(|mount| unmount_exactly(place, unmounter, mount).map(drop))
}

/// Whether [`keep`] has mounted it.
pub(super) fn is_ours(mount: &MountEntry) -> bool {
    let Some(resource) = mount.mount_point.strip_prefix(DIRECTORY).ok().and_then(Path::to_str) else {
        return false;
    };
    let file =
        mount.root.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".pressure"));
    mount.fstype == "cgroup2" && RESOURCES.contains(&resource) && file == Some(resource)
}

/// The file, on the mount of a hierarchy that the table has there; `None`: there is none, or it is on another.
fn find(place: &NamespaceRoot, table: &MountTable, file: PathBuf) -> Option<(PathBuf, FileId)> {
    let on = table.visible(&file).filter(|mount| mount.fstype == "cgroup2")?;
    let id = id_of(&open_target(place, &file, on.id).ok()?, &file).ok()?;
    Some((file, id))
}

fn mount_on(
    place: &NamespaceRoot,
    table: &MountTable,
    shown: &MountEntry,
    target: &Path,
    file: &Path,
    id: FileId,
) -> Result<(), MountError> {
    let error = |call| move |errno| MountError::of(call, target, errno);
    let there = place.open(target).map_err(error("openat2"))?;
    let there_id = id_of(&there, target)?;
    if (there_id.device, there_id.inode) == (id.device, id.inode) {
        return Ok(());
    }
    let below = if is_ours(shown) { table.by_id(shown.parent) } else { Some(shown) };
    let Some(below) = below else { return Ok(()) };
    refuse_shared_below(place, below, target)?;
    place.enter(|unmounter| {
        let fd = open_target(place, file, id.mount)?;
        let copy = copy_mount(&fd, OpenTreeFlags::empty()).map_err(error("open_tree"))?;
        if is_ours(shown) {
            unmount_exactly(place, unmounter, shown)?;
        }
        let on = open_target(place, target, below.id)?;
        let all_may_write = is_for_all(&on).map_err(error("fstat"))?;
        move_mount(&copy, &on, MoveMountFlags::empty()).map_err(error("move_mount"))?;
        let made = unmounter.make_private(copy.as_fd()).and_then(|()| open_up(&copy, all_may_write));
        made.map_err(|errno| {
            let _ = unmounter.unmount(copy.as_fd());
            error("mount")(errno)
        })
    })
}

fn is_for_all(file: &OwnedFd) -> Result<bool, Errno> {
    Ok(Mode::from_raw_mode(rustix::fs::fstat(file)?.st_mode).contains(Mode::WOTH))
}

/// Engines mount a container's cgroups read-only; this one file may be written, by those who could write the kernel's.
fn open_up(copy: &OwnedFd, all_may_write: bool) -> Result<(), Errno> {
    let path = copy.as_raw_fd().to_string();
    let flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount_remount(&path, flags, "")?;
    match all_may_write {
        true => rustix::fs::chmod(&path, Mode::from_raw_mode(0o666)),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_on_a_file_of_pressure_from_the_same_file_of_a_cgroup_is_ours() {
        let is_ours = |line: &str| {
            let table = MountTable::parse(line.as_bytes(), Path::new("mountinfo")).unwrap();
            table.iter().all(is_ours)
        };
        assert!(is_ours("9 8 0:26 /a/memory.pressure /proc/pressure/memory rw - cgroup2 cgroup rw\n"));
        assert!(!is_ours("9 8 0:26 /a/memory.pressure /mnt/memory rw - cgroup2 cgroup rw\n"));
        assert!(!is_ours("9 8 0:26 /a/io.pressure /proc/pressure/memory rw - cgroup2 cgroup rw\n"));
        assert!(!is_ours("9 8 0:26 /a/memory.pressure /proc/pressure/memory rw - fuse.lxcfs lxcfs rw\n"));
        assert!(!is_ours("9 8 0:26 / /proc rw - proc proc rw\n"));
    }
}
