//! The system calls that move mounts, on descriptors: `open_tree`, `move_mount`, and the opening of a target that is known.

use super::MountError;
use super::namespace::{FileId, NamespaceRoot, file_id};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags};
use std::path::Path;

/// A detached copy of the mount whose root `fd` holds, to be made in the mount's own namespace.
pub(super) fn copy_mount(fd: &OwnedFd, how: OpenTreeFlags) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_NO_AUTOMOUNT
        | how;
    rustix::mount::open_tree(fd, "", flags)
}

/// Opens `target`, on which the mount table promised the mount `expect`.
pub(super) fn open_target(place: &NamespaceRoot, target: &Path, expect: u64) -> Result<OwnedFd, MountError> {
    let changed = || MountError::Changed { target: target.to_owned() };
    let fd = place.open(target).map_err(|errno| match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::AGAIN => changed(),
        errno => MountError::of("openat2", target, errno),
    })?;
    if id_of(&fd, target)?.mount == expect { Ok(fd) } else { Err(changed()) }
}

pub(super) fn id_of(fd: &OwnedFd, path: &Path) -> Result<FileId, MountError> {
    file_id(fd.as_fd(), Path::new("")).map_err(|e| MountError::of("statx", path, e))
}

pub(super) fn open_tree(dir: BorrowedFd<'_>, source: &Path) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW
        | OpenTreeFlags::AT_NO_AUTOMOUNT;
    rustix::mount::open_tree(dir, source, flags)
}

pub(super) fn move_mount(tree: &OwnedFd, target: &OwnedFd, how: MoveMountFlags) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH | how;
    rustix::mount::move_mount(tree, "", target, "", flags)
}
