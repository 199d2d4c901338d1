//! The view file system: a read-only FUSE mount with one directory per container, whose files outlive every process of
//! the agent but the last. A second one beside it has the files of which each that is opened must be known ([triggers]).
//!
//! # Problem
//! Containers have these files mounted over `/proc/meminfo` and its like. A read must cost no more than the native file,
//! and show the whole of the last published version. It must never fail or hang because some part of the agent was killed,
//! however it was killed.
//!
//! # Approach
//! Readers are served from the page cache: names and attributes hold for ever, pages are dropped
//! (`FUSE_NOTIFY_INVAL_INODE`) only when the numbers changed *and* a program read them since. Four processes hold
//! the same `/dev/fuse` descriptors and the same [slots]:
//!
//! | process | does | is brought back by |
//! |---|---|---|
//! | [supervisor] | mounts, watches the others | policy or the standby, whichever sees it die first |
//! | [server] | answers requests: slot, render, reply; has no state that matters, and no rights | the supervisor |
//! | standby ([roles]) | starts a supervisor where there is none | the supervisor |
//! | policy (the caller of [publisher]) | decides, writes slots, notifies the kernel | the supervisor |
//!
//! Rules, each of which was a real failure once:
//! - A process that answers requests never sends an invalidation: that sleeps until READs under way are answered, which
//!   would wait for itself, beyond the reach of SIGKILL. The notifier is a thread of the policy process.
//! - Files have constant size: it is measured when a container is added, and seldom grows. A size that changes tears readers.
//! - Node ids are computed (`serial << 24 | node`), so a new server needs nothing but the descriptors.
//! - `/dev/fuse` is shared, never cloned (`FUSE_DEV_IOC_CLONE`): requests that a process read through a clone of its
//!   own fail when it dies, those read through the shared one can be asked for again (`FUSE_NOTIFY_RESEND`, Linux 6.9).
//!   **Before Linux 6.9** a READ that a killed server had taken and not answered keeps its page locked, and the notifier
//!   would wait for that page for good. So the next server aborts the connection, and all views are made anew.
//! - No code here touches a path below the mount, not even with `stat`.
//!
//! # Properties (crates/elbowroom-agent/tests/fuse.rs)
//! `no_read_fails_tears_or_mixes_while_every_process_is_killed_in_turn`, `what_is_published_is_what_is_read_next`,
//! `every_file_reads_as_rendered`.
//!
//! # What a reader may rely on
//! One `read` that returns a whole file of at most one page (4 KiB) is one version. Larger files (`cpuinfo` of many CPUs,
//! `stat`) may be asked for in several READs, each rendered by itself. They can mix two versions at a page boundary, but every
//! line is still whole, since lines keep their place and length.

pub mod abi;
mod answer_threads;
pub(crate) mod backoff;
mod budget;
mod deferred;
pub mod fuse_server;
pub(crate) mod handover;
pub mod host_files;
pub mod image;
mod notifier;
mod notifier_queue;
pub mod pages;
pub(crate) mod policy_silence;
pub mod publisher;
mod rendered;
mod rights;
pub mod roles;
pub(crate) mod run_dir;
pub mod server;
pub(crate) mod service_manager;
pub mod session;
pub mod slots;
mod triggers;

pub use service_manager::{service_unit, will_restart};

use elbowroom_linux::signal::{self, SignalFd};
use rustix::io::Errno;
use rustix::process::Signal;
use std::path::PathBuf;

/// What can go wrong between the agent's processes, the mount and the shared memory.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// Another agent runs on this run directory.
    #[error("{} is in use by an agent already ({role} is process {pid}): stop it, or choose another run directory", run_dir.display())]
    AlreadyRunning {
        /// The run directory.
        run_dir: PathBuf,
        /// Which of the agent's processes.
        role: roles::AgentRole,
        /// Its process id.
        pid: i32,
    },
    /// The process was not started by a supervisor.
    #[error("{what}: this command is started by `elbowroom agent` only")]
    NotInherited {
        /// What is missing or wrong.
        what: String,
    },
    /// Something is mounted where the views belong, and it is not ours.
    #[error("{} has a file system of type {fs_type} mounted on it that is not elbowroom's: unmount it or choose another run directory", path.display())]
    Occupied {
        /// The mount point.
        path: PathBuf,
        /// What is mounted.
        fs_type: String,
    },
    /// A file operation failed.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A right could not be given up.
    #[error("{operation}: {source}")]
    Rights {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The kernel's first message was not the one the protocol starts with, or its version is too old.
    #[error("the kernel's FUSE handshake: {what}")]
    Handshake {
        /// What is wrong.
        what: String,
    },
    /// The connection is gone: unmounted, or aborted through `/sys/fs/fuse/connections`.
    #[error("the FUSE connection is gone (unmounted or aborted)")]
    Disconnected,
    /// An operation on the shared memory failed.
    #[error("shared memory of the views: {operation}: {source}")]
    Memory {
        /// The system call.
        operation: &'static str,
        /// What the kernel said.
        source: Errno,
    },
    /// The shared memory was made by another version of this program.
    #[error("shared memory of the views: {what}: it was made by another version; restart the agent")]
    Layout {
        /// What does not fit.
        what: &'static str,
    },
    /// A container's name cannot be a directory's.
    #[error("\"{name}\" cannot name a view: 1 to {} bytes without '/'", slots::MAX_NAME)]
    Name {
        /// The name.
        name: String,
    },
    /// A container of that name has a view already.
    #[error("\"{name}\" has a view already: remove that view first")]
    Exists {
        /// The name.
        name: String,
    },
    /// No slot is free.
    #[error("all {capacity} views are in use")]
    Full {
        /// How many there are.
        capacity: usize,
    },
    /// More CPUs than the machine could have when the agent started.
    #[error("times of {got} CPUs, the view has room for {room}")]
    TooManyCpus {
        /// How many were given.
        got: usize,
        /// How many fit.
        room: usize,
    },
    /// The container was removed.
    #[error("the view is gone")]
    Gone,
}

impl FuseError {
    pub(crate) fn io(
        operation: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { operation, path, source }
    }
}

/// SIGTERM, SIGINT and SIGHUP no longer end this process: they wait here to be read, or for nothing.
pub(crate) fn stop_signals() -> Result<SignalFd, FuseError> {
    signal::restore_sigchld();
    SignalFd::block(&[Signal::TERM, Signal::INT, Signal::HUP]).map_err(FuseError::io("making", "signalfd"))
}

/// Name of the file system type in mount tables: `fuse` with our subtype.
pub(crate) const FS_TYPE: &str = "fuse.elbowroom";
/// Name of the mount's source in mount tables.
pub(crate) const MOUNT_SOURCE: &str = "elbowroom";
/// Directory below the run directory where the views are mounted. Only root may enter its parent: the kernel checks no modes in the
/// views themselves, which containers' users read.
pub(crate) const VIEWS_DIR: &str = "private/views";
/// Directory below the run directory where the files of views are mounted that take PSI triggers, beside [`VIEWS_DIR`]: a program that
/// mounts views looks there first ([`elbowroom_linux::mount::TRIGGERS_DIR`]).
pub(crate) const TRIGGERS_DIR: &str = "private/triggers";
/// Directory below the run directory where the view pages are.
pub(crate) const PAGES_DIR: &str = "pages";
/// Directory below the run directory that is empty on the host: in containers with the host's `/dev` the file is mounted there by which
/// their programs are asked for memory.
pub(crate) const PRESSURE_DIR: &str = "pressure";
