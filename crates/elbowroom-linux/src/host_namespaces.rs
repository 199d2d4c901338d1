//! From a container to its host, for an agent that is shipped as a container image: views are mounted where engines see them, and
//! the files of the host have their own paths.
//!
//! The way is setns(2) into the namespaces of process 1, which `--pid=host` (`hostPID: true`) shows. Nothing of the host needs to be
//! mounted into the container, and no mount needs to propagate.

use crate::bounded;
use crate::mountinfo::{MountEntry, MountTable, MountTableBounds};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Why the host cannot be entered.
#[derive(Debug, thiserror::Error)]
pub enum HostEntryError {
    /// The container has process ids of its own.
    #[error(
        "this container has process ids of its own: start it with --pid=host (Kubernetes: hostPID: true)"
    )]
    OwnPids,
    /// A right is missing.
    #[error("{operation} {}: {source}: start the container with --privileged, or with the rights that docs/guide/install.md lists", path.display())]
    Refused {
        /// What was tried.
        operation: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the kernel said.
        source: Errno,
    },
}

fn refused(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(Errno) -> HostEntryError {
    let path = path.into();
    move |source| HostEntryError::Refused { operation, path, source }
}

/// Moves this process, which must have one thread, to the host's mount and cgroup namespaces. False where it is in them already.
///
/// # Errors
/// [`HostEntryError`].
pub fn enter_host() -> Result<bool, HostEntryError> {
    if std::process::id() == 1 {
        return Err(HostEntryError::OwnPids);
    }
    // A security module may guard process 1. The first thread of the kernel is in the same namespaces, and in no container's /proc.
    let is_kthreadd =
        bounded::file_text("/proc/2/comm", bounded::KERNEL_FILE).is_ok_and(|name| name == "kthreadd\n");
    let namespaces =
        Namespaces::of(1).or_else(|error| Namespaces::of(2).ok().filter(|_| is_kthreadd).ok_or(error))?;
    if namespaces.is_own_mount()? {
        return Ok(false);
    }
    namespaces.enter()?;
    Ok(true)
}

/// Those of a process that matter.
struct Namespaces {
    of: u32,
    mount: OwnedFd,
    cgroup: OwnedFd,
}

impl Namespaces {
    fn of(pid: u32) -> Result<Self, HostEntryError> {
        let open = |name: &str| open_namespace(&format!("/proc/{pid}/ns/{name}"));
        Ok(Self { of: pid, mount: open("mnt")?, cgroup: open("cgroup")? })
    }

    fn is_own_mount(&self) -> Result<bool, HostEntryError> {
        const OWN: &str = "/proc/self/ns/mnt";
        let inode = |fd: &OwnedFd| {
            rustix::fs::fstat(fd).map(|of| (of.st_dev, of.st_ino)).map_err(refused("reading", OWN))
        };
        Ok(inode(&open_namespace(OWN)?)? == inode(&self.mount)?)
    }

    fn enter(&self) -> Result<(), HostEntryError> {
        let kinds =
            [(&self.cgroup, LinkNameSpaceType::ControlGroup), (&self.mount, LinkNameSpaceType::Mount)];
        for (namespace, kind) in kinds {
            move_into_link_name_space(namespace.as_fd(), Some(kind))
                .map_err(refused("entering namespaces of", format!("/proc/{}", self.of)))?;
        }
        Ok(())
    }
}

fn open_namespace(path: &str) -> Result<OwnedFd, HostEntryError> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(refused("opening", path))
}

/// A copy of what is mounted at `dir` and below, to be mounted in another mount namespace.
///
/// # Errors
/// [`HostEntryError::Refused`].
pub fn copy_tree(dir: &Path) -> Result<OwnedFd, HostEntryError> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    rustix::mount::open_tree(CWD, dir, flags).map_err(refused("copying the mount of", dir))
}

/// Mounts what [`copy_tree`] copied.
///
/// # Errors
/// [`HostEntryError::Refused`].
pub fn mount_tree(tree: &OwnedFd, target: &Path) -> Result<(), HostEntryError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(tree, c"", CWD, target, flags).map_err(refused("mounting on", target))
}

/// Moves this process to the topmost cgroup of every hierarchy: what ends the processes of a container ends those in its cgroups.
///
/// # Errors
/// The first hierarchy that refuses; the others are tried all the same.
pub fn leave_cgroups() -> std::io::Result<()> {
    const MOUNTINFO: &str = "/proc/self/mountinfo";
    let table = MountTable::read(File::open(MOUNTINFO)?, MountTableBounds::HOST, Path::new(MOUNTINFO))
        .map_err(std::io::Error::other)?;
    let mut seen = HashSet::new();
    let mut result = Ok(());
    for mount in table.iter().filter(|mount| is_whole_hierarchy(mount) && seen.insert(mount.device)) {
        let file = mount.mount_point.join("cgroup.procs");
        if let Err(error) = std::fs::write(&file, "0") {
            result =
                result.and(Err(std::io::Error::new(error.kind(), format!("{}: {error}", file.display()))));
        }
    }
    result
}

fn is_whole_hierarchy(mount: &MountEntry) -> bool {
    matches!(mount.fstype.as_str(), "cgroup" | "cgroup2") && mount.root == Path::new("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_the_host_has_nothing_to_enter() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: needs root to look at process 1");
        }
        // Tests that run in a container of their own have one.
        let Ok(host) = Namespaces::of(1).or_else(|_| Namespaces::of(2)) else {
            return eprintln!("skipped: needs to see processes of the host");
        };
        if !host.is_own_mount().unwrap() {
            return eprintln!("skipped: needs to be in no container");
        }
        assert!(!enter_host().unwrap());
    }

    #[test]
    fn only_whole_hierarchies_are_left() {
        let line = |root: &str, kind: &str| {
            let text = format!("29 23 0:26 {root} /sys/fs/cgroup rw - {kind} cgroup rw\n");
            MountTable::read(text.as_bytes(), MountTableBounds::HOST, Path::new("x")).unwrap()
        };
        for (root, kind, expect) in
            [("/", "cgroup2", true), ("/", "cgroup", true), ("/a", "cgroup2", false), ("/", "tmpfs", false)]
        {
            assert_eq!(line(root, kind).iter().any(is_whole_hierarchy), expect, "{root} {kind}");
        }
    }
}
