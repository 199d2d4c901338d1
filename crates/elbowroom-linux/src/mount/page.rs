//! The view page on its place in a container, and beside it the file that asks for memory: each on the empty file that the view itself has
//! for it, so that there is a place in every container, and so that taking the view out takes them along.

use super::MountError;
use super::attach::{id_of, move_mount, open_target, open_tree, refuse_shared_below};
use super::mountinfo::{MountEntry, MountTable};
use super::namespace::{NamespaceRoot, Unmounter, file_id, open_dir};
use super::plan::{is_view, view_name};
use crate::pressure;
use elbowroom_types::launch::PRESSURE_FILE;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::mount::MoveMountFlags;
use std::ffi::OsStr;
use std::path::Path;

/// Where programs find the page: `ELBOWROOM_VIEW_PATH` of `shim/view.h`.
pub const PAGE_TARGET: &str = "/sys/devices/system/cpu/elbowroom";

impl NamespaceRoot {
    /// Mounts the page (a file on the host) read-only where the view of the same name is mounted already, and the FIFO beside it
    /// ([`pressure`]), where there is one. Safe to call again. False where there is no place for the page, or another container that
    /// shares the mount namespace has it.
    pub fn attach_page(&self, page: &Path) -> Result<bool, MountError> {
        self.or_vanished(self.refuse_host())?;
        attach_at(self, page)
    }
}

/// Whether this kernel mounts pages, and what is beside them (Linux 5.12).
pub fn can_attach_page() -> bool {
    // SAFETY: no descriptor and no `mount_attr` are passed, and the kernel reads nothing of a size that is none.
    unsafe {
        libc::syscall(libc::SYS_mount_setattr, -1, c"".as_ptr(), 0, std::ptr::null::<libc::mount_attr>(), 0)
    };
    std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
}

fn attach_at(place: &NamespaceRoot, page: &Path) -> Result<bool, MountError> {
    let (dir, view) = (page.parent().unwrap_or(Path::new("/")), page.file_name().unwrap_or_default());
    let files = ViewFiles {
        place,
        dir: open_dir(dir).map_err(|e| view_open_error("open", page, e))?,
        path: dir,
        view,
    };
    let _lock = place.lock()?;
    let table = place.table()?;
    let mut work = match files.inspect(&table, view, Path::new(PAGE_TARGET))? {
        FileTarget::NoView => return Ok(false),
        FileTarget::Present => Vec::new(),
        FileTarget::Mountable(work) => vec![work],
    };
    match files.inspect(&table, &pressure::file_name(view), Path::new(PRESSURE_FILE)) {
        Ok(FileTarget::Mountable(fifo)) => work.push(fifo),
        // An agent that does not govern memory makes none.
        Ok(FileTarget::NoView | FileTarget::Present) | Err(MountError::NoView { .. }) => {}
        // The page is what programs cannot do without.
        Err(error) => tracing::warn!(because = %error, "its programs cannot be asked for memory"),
    }
    if !work.is_empty() {
        place.enter(|unmounter| work.iter().try_for_each(|file| file.mount(place, unmounter)))?;
    }
    Ok(true)
}

fn view_open_error(call: &'static str, path: &Path, errno: Errno) -> MountError {
    match errno {
        Errno::NOENT | Errno::NOTDIR => MountError::NoView { path: path.to_owned() },
        errno => MountError::of(call, path, errno),
    }
}

/// The files of one view.
struct ViewFiles<'a> {
    place: &'a NamespaceRoot,
    dir: OwnedFd,
    path: &'a Path,
    view: &'a OsStr,
}

/// What there is at a file's place.
enum FileTarget<'a> {
    /// No view of that name.
    NoView,
    /// The file.
    Present,
    /// The view's own empty file, or a stale one.
    Mountable(FileMount<'a>),
}

/// A file to mount.
struct FileMount<'a> {
    target: &'a Path,
    /// The detached clone of the file.
    tree: OwnedFd,
    /// The view's mount.
    below: u64,
    /// Another agent's file on it.
    stale: Option<u64>,
}

impl ViewFiles<'_> {
    /// Compares what is at `target` with the file `name`.
    fn inspect<'a>(
        &self,
        table: &MountTable,
        name: &OsStr,
        target: &'a Path,
    ) -> Result<FileTarget<'a>, MountError> {
        let (place, path) = (self.place, self.path.join(name));
        let source = file_id(self.dir.as_fd(), Path::new(name))
            .map_err(|errno| view_open_error("statx", &path, errno))?;
        let stack = table.stack(target);
        let (top, stale) = match stack.first() {
            // A file on the view's own file; whose it is says its inode.
            Some(top) => {
                let fd = place.or_vanished(open_target(place, target, top.id))?;
                let there = place.or_vanished(id_of(&fd, target))?;
                if (there.device, there.inode) == (source.device, source.inode) {
                    return Ok(FileTarget::Present);
                }
                (*top, true)
            }
            None => match table.visible(target) {
                Some(view) => (view, false),
                None => return Ok(FileTarget::NoView),
            },
        };
        let below = if stale { table.by_id(top.parent) } else { Some(top) };
        let is_own = |mount: &&MountEntry| is_view(mount) && view_name(mount) == Some(self.view);
        let Some(below) = below.filter(is_own) else { return Ok(FileTarget::NoView) };
        refuse_shared_below(place, below, target)?;
        let tree = open_tree(self.dir.as_fd(), Path::new(name))
            .map_err(|e| view_open_error("open_tree", &path, e))?;
        read_only(&tree).map_err(|e| MountError::of("mount_setattr", path, e))?;
        Ok(FileTarget::Mountable(FileMount { target, tree, below: below.id, stale: stale.then_some(top.id) }))
    }
}

impl FileMount<'_> {
    fn mount(&self, place: &NamespaceRoot, unmounter: &Unmounter) -> Result<(), MountError> {
        let target = self.target;
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
