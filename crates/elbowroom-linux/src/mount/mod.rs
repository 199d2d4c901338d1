//! Getting views into containers.
//!
//! **Problem.** A view is a directory of files on the host (one FUSE mount, one directory per container). A container must
//! find these files under the names it already reads: `/proc/meminfo`, `/sys/devices/system/cpu`, `cpu.max` in its own cgroup
//! directory. The container may be running, and it may be hostile.
//!
//! **Approach.** A [`NamespaceRoot`] is a container's root directory and mount namespace, opened once for all that is done there.
//! [`NamespaceRoot::plan`] works out from the container's own mountinfo and cgroup which file goes where. [`NamespaceRoot::attach`]
//! mounts each one: `open_tree(OPEN_TREE_CLONE)` on the host, then `openat2` of the target and `move_mount` onto it, on a thread of
//! its own that has entered the container's mount namespace. [`NamespaceRoot::attach_view`] is both, and what goes with a view, under
//! one lock. A process that is already in the namespace (an OCI hook, the child of `elbowroom run`) starts from
//! [`NamespaceRoot::of_this_process`]. The mounts die with the namespace: nothing to clean up.
//!
//! **Properties** (each has a live test of about the same name)
//! - All or nothing: when one mount fails, those this call made are taken away again.
//! - Idempotent: a target that shows this very view already is counted, not covered a second time.
//! - A stale view (its agent is gone, reads give ENOTCONN) is replaced without a moment in which the host's file shows.
//! - No symbolic link is followed inside a container, and only procfs, sysfs and cgroup filesystems are covered. Another
//!   program's mount on a target stays.
//! - What a user has mounted below a directory that is covered stays, and is reported, where the view shows what is below it.
//! - A container that could mount proc and sysfs in a user namespace of its own still can.
//! - Nothing is mounted where it would spread to the host.
//! - A container whose mount namespace is a copy of another container's gets its own view in place of the other's.
//! - A view is taken out of every mount namespace that the container's processes are in: copies of one keep what was mounted.
//! - One at a time: a process that attaches or detaches holds a lock on the mount namespace.
//! - The process may vanish at any step: [`MountError::Vanished`]. A later process with its number is not mistaken for it.
//!
//! Needs Linux 5.8 (`openat2`, `STATX_MNT_ID`) and CAP_SYS_ADMIN; 5.12 for view pages, 6.5 for replacing without a window. A
//! container whose *root filesystem* is its own FUSE server can delay path walks. Callers that must not wait use a thread; a caller
//! that is to end when it is killed leaves that thread no open files.

mod attach;
mod detach;
mod mount_calls;
mod namespace;
mod page;
mod plan;
mod pressure;
mod uncovered;

pub use attach::{AttachReport, AttachedView, ViewParts};
pub use detach::{detach_all, detach_group};
pub use namespace::{EntryStage, MountNamespace, NamespaceRoot, own_namespace};
pub use page::PAGE_TARGET;
pub use plan::{BindMount, MountPlan, MountSurface, SkipReason, SkippedSurface, SurfaceTarget, prefetch};
pub use pressure::PressureFifo;

use crate::mountinfo::{MountParseError, MountTableError};
use std::path::PathBuf;

/// The filesystem type and the source of every view mount; what carries both is ours to replace and to remove.
pub(crate) const FSTYPE: &str = "fuse.elbowroom";
/// See [`FSTYPE`].
pub const SOURCE: &str = "elbowroom";

/// The directory beside that of all views where files of views are that take PSI triggers, in a directory of the same name for each
/// container. A file that is there is mounted in place of the view's own, which is read-only.
pub const TRIGGERS_DIR: &str = "triggers";
/// Where such files are in a view, and the one that is a clock: of that connection nothing is cached.
const UNCACHED_FILES: [&str; 2] = ["proc/pressure", "proc/uptime"];

/// Why views could not be mounted, found or removed. Each is one line that names the thing and the way out.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The process ended. Mounts in its namespace end with the namespace.
    #[error("process {pid} is gone: there is nothing to mount views into")]
    Vanished {
        /// The process.
        pid: u32,
    },
    /// The process shares the mount namespace of the host.
    #[error(
        "process {pid} is in the host's own mount namespace, where a view would show to every process: \
         start it with `elbowroom run` or in a container"
    )]
    HostNamespace {
        /// The process.
        pid: u32,
    },
    /// The container's mounts are peers of the host's.
    #[error(
        "{target}: a mount there would spread to the host (shared propagation): \
         start the container with private or slave mounts",
        target = target.display()
    )]
    SharedWithHost {
        /// Where the view would go.
        target: PathBuf,
    },
    /// The view itself is not there.
    #[error("{path}: no such view: is the agent running?", path = path.display())]
    NoView {
        /// File or directory on the host.
        path: PathBuf,
    },
    /// A surface whose source would leave the view's directory.
    #[error("{source_path}: not a path inside a view", source_path = source_path.display())]
    BadSource {
        /// The source.
        source_path: PathBuf,
    },
    /// Another process mounted or unmounted at the target meanwhile.
    #[error("{target}: mounts changed while views were being attached: try again", target = target.display())]
    Changed {
        /// Where the view would go.
        target: PathBuf,
    },
    /// Another process holds the lock of the mount namespace.
    #[error("{path}: another process is attaching or detaching views: try again", path = path.display())]
    Busy {
        /// The mount namespace.
        path: PathBuf,
    },
    /// Every look at it would take long.
    #[error("{path}: {what}: no view is mounted or unmounted there", path = path.display())]
    TableTooLarge {
        /// The mount table.
        path: PathBuf,
        /// What there is too much of.
        what: MountTableError,
    },
    /// A view is below a mount that is not ours.
    #[error("{target}: a view is covered by another mount: unmount that first", target = target.display())]
    Covered {
        /// Where the view is.
        target: PathBuf,
    },
    /// The mount namespace is full.
    #[error(
        "{path}: the container has no room for another mount: raise fs.mount-max, or look at what it has mounted",
        path = path.display()
    )]
    NoRoom {
        /// What was to be mounted.
        path: PathBuf,
    },
    /// The kernel lacks a system call.
    #[error("this kernel has no {call}: {} or later", needed(call))]
    OldKernel {
        /// The system call.
        call: &'static str,
    },
    /// Not enough privilege.
    #[error("{path}: {call}: not permitted: run as root (CAP_SYS_ADMIN)", path = path.display())]
    NotPermitted {
        /// The system call.
        call: &'static str,
        /// On what.
        path: PathBuf,
    },
    /// Any other failure of a system call.
    #[error("{path}: {call}: {source}", path = path.display())]
    Io {
        /// The system call.
        call: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The kernel's tables could not be read.
    #[error(transparent)]
    Malformed(#[from] MountParseError),
}

/// The feature that needs a system call, and the Linux version that brought it.
fn needed(call: &str) -> &'static str {
    match call {
        "mount_setattr" => "view pages need Linux 5.12",
        _ => "views of running containers need Linux 5.8",
    }
}

impl MountError {
    /// The error of `call` on `path`, with the kernel's answer put into words where a person can do something about it.
    fn of(call: &'static str, path: impl Into<PathBuf>, errno: rustix::io::Errno) -> Self {
        use rustix::io::Errno;
        match errno {
            Errno::NOSYS => Self::OldKernel { call },
            Errno::PERM | Errno::ACCESS => Self::NotPermitted { call, path: path.into() },
            Errno::NOSPC if call == "move_mount" => Self::NoRoom { path: path.into() },
            errno => Self::Io { call, path: path.into(), source: errno.into() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn an_old_kernel_is_told_what_it_lacks() {
        for (call, expect) in [
            ("openat2", "this kernel has no openat2: views of running containers need Linux 5.8 or later"),
            ("mount_setattr", "this kernel has no mount_setattr: view pages need Linux 5.12 or later"),
        ] {
            assert_eq!(MountError::of(call, "/page", Errno::NOSYS).to_string(), expect);
        }
    }

    #[test]
    fn a_full_mount_namespace_says_which_limit_it_has() {
        let text = |call| MountError::of(call, "/proc/stat", Errno::NOSPC).to_string();
        assert!(text("move_mount").contains("fs.mount-max"), "{}", text("move_mount"));
        assert!(!text("unshare").contains("fs.mount-max"), "that is user.max_mnt_namespaces");
    }
}
