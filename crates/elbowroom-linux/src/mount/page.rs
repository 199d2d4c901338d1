//! The view page on its place in a container: on the empty file that the view itself has for it, so that there is a place in every
//! container, and so that taking the view out takes it along.

use super::MountError;
use super::attach::refuse_shared_below;
use super::mount_calls::{id_of, move_mount, open_target, open_tree};
use super::namespace::{NamespaceRoot, Unmounter, file_id, open_dir};
use super::plan::{is_view, view_name};
use crate::mountinfo::{MountEntry, MountTable};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::mount::MoveMountFlags;
use std::ffi::OsStr;
use std::path::Path;

/// Where programs find the page: `ELBOWROOM_VIEW_PATH` of `shim/view.h`.
pub const PAGE_TARGET: &str = "/sys/devices/system/cpu/elbowroom";

/// Mounts the page (a file on the host) read-only where the view of the same name is mounted already, as `table` says. Safe to call again.
/// False where there is no place for it, or another container that shares the mount namespace has it.
pub(super) fn attach_at(place: &NamespaceRoot, table: &MountTable, page: &Path) -> Result<bool, MountError> {
    let (dir_path, name) = (page.parent().unwrap_or(Path::new("/")), page.file_name().unwrap_or_default());
    let dir = open_dir(dir_path).map_err(|e| view_open_error("open", page, e))?;
    let file = PageFile { place, path: page, dir, name };
    match file.inspect(table)? {
        PageState::NoPlace => Ok(false),
        PageState::Present => Ok(true),
        PageState::Missing(mount) => {
            place.enter(|unmounter| mount.mount(place, unmounter))?;
            Ok(true)
        }
    }
}

fn view_open_error(call: &'static str, path: &Path, errno: Errno) -> MountError {
    match errno {
        Errno::NOENT | Errno::NOTDIR => MountError::NoView { path: path.to_owned() },
        errno => MountError::of(call, path, errno),
    }
}

/// The page of one view.
struct PageFile<'a> {
    place: &'a NamespaceRoot,
    path: &'a Path,
    dir: OwnedFd,
    /// The view's name, and the file's.
    name: &'a OsStr,
}

/// What there is at the page's place.
enum PageState {
    /// No view of that name.
    NoPlace,
    /// The page.
    Present,
    /// The view's own empty file, or a stale page.
    Missing(PageMount),
}

/// A page to mount.
struct PageMount {
    /// The detached clone of the file.
    tree: OwnedFd,
    /// The view's mount.
    below: u64,
    /// Another agent's page on it.
    stale: Option<u64>,
}

impl PageFile<'_> {
    /// Compares what is at its place with the page.
    fn inspect(&self, table: &MountTable) -> Result<PageState, MountError> {
        let (place, target) = (self.place, Path::new(PAGE_TARGET));
        let source = file_id(self.dir.as_fd(), Path::new(self.name))
            .map_err(|errno| view_open_error("statx", self.path, errno))?;
        let stack = table.stack(target);
        let (top, stale) = match stack.first() {
            // A file on the view's own file; whose it is says its inode.
            Some(top) => {
                let fd = place.or_vanished(open_target(place, target, top.id))?;
                let there = place.or_vanished(id_of(&fd, target))?;
                if (there.device, there.inode) == (source.device, source.inode) {
                    return Ok(PageState::Present);
                }
                (*top, true)
            }
            None => match table.visible(target) {
                Some(view) => (view, false),
                None => return Ok(PageState::NoPlace),
            },
        };
        let below = if stale { table.by_id(top.parent) } else { Some(top) };
        let is_own = |mount: &&MountEntry| is_view(mount) && view_name(mount) == Some(self.name);
        let Some(below) = below.filter(is_own) else { return Ok(PageState::NoPlace) };
        refuse_shared_below(place, below, target)?;
        let tree = open_tree(self.dir.as_fd(), Path::new(self.name))
            .map_err(|e| view_open_error("open_tree", self.path, e))?;
        read_only(&tree).map_err(|e| MountError::of("mount_setattr", self.path, e))?;
        Ok(PageState::Missing(PageMount { tree, below: below.id, stale: stale.then_some(top.id) }))
    }
}

impl PageMount {
    fn mount(&self, place: &NamespaceRoot, unmounter: &Unmounter) -> Result<(), MountError> {
        let target = Path::new(PAGE_TARGET);
        let error = |call| move |errno| MountError::of(call, target, errno);
        if let Some(stale) = self.stale {
            unmounter.unmount(open_target(place, target, stale)?.as_fd()).map_err(error("umount2"))?;
        }
        let fd = open_target(place, target, self.below)?;
        move_mount(&self.tree, &fd, MoveMountFlags::empty()).map_err(error("move_mount"))?;
        unmounter.make_private(self.tree.as_fd()).map_err(|errno| {
            let _ = unmounter.unmount(self.tree.as_fd());
            error("mount")(errno)
        })
    }
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
