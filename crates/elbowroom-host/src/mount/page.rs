//! The view page on its place in a container: the empty file that the view itself has for it, so that there is a place in
//! every container, and so that taking the view out takes the page along.

use super::MountError;
use super::attach::{id_of, move_mount, open_target, open_tree, refuse_shared_below};
use super::mountinfo::Mount;
use super::place::{Place, file_id, open_dir};
use super::plan::{is_view, view_name};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::mount::MoveMountFlags;
use std::path::Path;

/// Where programs find the page: `ELBOWROOM_VIEW_PATH` of `shim/view.h`.
pub const PAGE_TARGET: &str = "/sys/devices/system/cpu/elbowroom";

impl Place {
    /// Mounts the page (a file on the host) read-only where the view of the same name is mounted already. Safe to call again. False
    /// where there is no place for it, or another container that shares the mount namespace has it.
    pub fn attach_page(&self, page: &Path) -> Result<bool, MountError> {
        self.explain(self.refuse_host())?;
        attach_at(self, page)
    }
}

fn attach_at(place: &Place, page: &Path) -> Result<bool, MountError> {
    let no_view = |call, errno| match errno {
        Errno::NOENT | Errno::NOTDIR => MountError::NoView { path: page.to_owned() },
        errno => MountError::of(call, page, errno),
    };
    let (dir, name) = (page.parent().unwrap_or(Path::new("/")), page.file_name().unwrap_or_default());
    let dir = open_dir(dir).map_err(|e| no_view("open", e))?;
    let source = file_id(dir.as_fd(), Path::new(name)).map_err(|e| no_view("statx", e))?;
    let target = Path::new(PAGE_TARGET);
    let _lock = place.lock()?;
    let table = place.table()?;
    let stack = table.stack(target);
    let (top, stale) = match stack.first() {
        // A page on the view's own file; whose it is says its inode.
        Some(top) => {
            let fd = place.explain(open_target(place, target, top.id))?;
            let there = place.explain(id_of(&fd, target))?;
            if (there.device, there.inode) == (source.device, source.inode) {
                return Ok(true);
            }
            (*top, true)
        }
        None => match table.visible(target) {
            Some(view) => (view, false),
            None => return Ok(false),
        },
    };
    let below = if stale { table.by_id(top.parent) } else { Some(top) };
    let is_own = |mount: &&Mount| is_view(mount) && view_name(mount) == Some(name);
    let Some(below) = below.filter(is_own) else { return Ok(false) };
    refuse_shared_below(place, below, target)?;
    let tree = open_tree(dir.as_fd(), Path::new(name)).map_err(|e| no_view("open_tree", e))?;
    read_only(&tree).map_err(|e| MountError::of("mount_setattr", page, e))?;
    let (top, below) = (top.id, below.id);
    place.enter(|unmounter| {
        let error = |call| move |errno| MountError::of(call, target, errno);
        if stale {
            unmounter.unmount(open_target(place, target, top)?.as_fd()).map_err(error("umount2"))?;
        }
        let fd = open_target(place, target, below)?;
        move_mount(&tree, &fd, MoveMountFlags::empty()).map_err(error("move_mount"))?;
        if let Err(errno) = unmounter.make_private(tree.as_fd()) {
            let _ = unmounter.unmount(tree.as_fd());
            return Err(error("mount")(errno));
        }
        Ok(true)
    })
}

/// Makes a mount that is nowhere yet read-only, for good (Linux 5.12).
fn read_only(tree: &OwnedFd) -> Result<(), Errno> {
    let attr = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY
            | libc::MOUNT_ATTR_NOSUID
            | libc::MOUNT_ATTR_NODEV
            | libc::MOUNT_ATTR_NOEXEC,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the descriptor is open, the path is a string with its end, and the kernel reads one `mount_attr`, whose size is
    // passed.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}
