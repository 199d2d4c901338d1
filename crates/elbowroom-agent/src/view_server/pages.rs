//! The file system of the view pages ([`elbowroom_linux::view_page`]): a tmpfs of our own, so that pages live as long as
//! a program has them mapped, whatever becomes of the agent. On the host it is root's alone.

use crate::view_server::session::{MountLine, mounts_on, unmount};
use crate::view_server::{FuseError, MOUNT_SOURCE};
use elbowroom_linux::selinux;
use elbowroom_linux::view_page::retire_all;
use rustix::mount::MountFlags;
use std::ffi::CString;
use std::path::Path;

const TMPFS: &str = "tmpfs";

/// Mounts it on `dir`, with room for `capacity` pages. Its inodes are what is limited: of a tmpfs without a size `df` and other readers
/// of the mount table show nothing (mm/shmem.c `shmem_statfs`), and none but the agent writes there.
///
/// # Errors
/// [`FuseError::Io`].
pub fn mount(dir: &Path, capacity: u32) -> Result<(), FuseError> {
    // The inodes of the directory itself, and of a page that is removed while another is made.
    let options = format!("mode=0700,size=0,nr_inodes={}", u64::from(capacity) + 2);
    // Else SELinux lets no container map what is in there.
    let label = selinux::container_content().map(|label| format!("{options},context={label}"));
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME;
    let mount = |options: String| {
        let options = CString::new(options).expect("neither numbers nor labels have a NUL");
        rustix::mount::mount(MOUNT_SOURCE, dir, TMPFS, flags, options.as_c_str())
    };
    let mounted = match label.map(&mount) {
        Some(Ok(())) => Ok(()),
        Some(Err(because)) => {
            tracing::warn!(%because, "the view pages have no label that containers may map: SELinux refuses it");
            mount(options)
        }
        None => mount(options),
    };
    mounted.map_err(|e| FuseError::io("mounting the view pages on", dir)(e.into()))
}

/// Tells the readers of all pages that no agent keeps them any more, and unmounts; also what an agent before left.
///
/// # Errors
/// [`FuseError::Occupied`] when something else is mounted there.
pub fn remove(dir: &Path) -> Result<(), FuseError> {
    for line in mounts_on(dir)?.iter().rev() {
        if !is_page_mount(line) {
            return Err(FuseError::Occupied { path: dir.to_owned(), fs_type: line.fs_type.clone() });
        }
        retire_all(dir);
        unmount(dir);
    }
    Ok(())
}

/// Whether an agent mounted it for its view pages.
pub fn is_page_mount(line: &MountLine) -> bool {
    line.fs_type == TMPFS && line.source == MOUNT_SOURCE
}
