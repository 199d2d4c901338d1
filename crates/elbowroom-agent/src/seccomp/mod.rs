//! `elbowroom keeper`: answers `sched_getaffinity` and `sysinfo` of containers whose programs ask the kernel and no file, as static
//! programs of musl do.
//!
//! Two processes hold the same descriptors. The *supervisor* takes them from the runtime, finds the containers' view pages, and watches.
//! The *worker* answers, with a thread for each container, and waits for no other process. When one dies, the other starts it anew. Calls
//! that the dead one had taken and not answered are left to the kernel (`elbowroom_linux::seccomp::NotificationLog`). Calls fail with
//! `ENOSYS` only when both die at once and no service manager holds the descriptors too. `docs/decisions/0028-seccomp-keeper.md`

mod listener_thread;
mod page_lookup;
mod stored_fds;
mod supervisor;
mod wire;
mod worker;
mod worker_process;

pub use stored_fds::parse_listener_name;
pub use supervisor::main as run_supervisor;
pub use wire::parse_process_state;
pub use worker::main as run_worker;

use anyhow::{Context, Result};
use elbowroom_linux::seccomp::{NotificationLog, SeccompListener};
use elbowroom_types::unit::Micros;
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The hidden verb of the process that answers.
pub(crate) const WORKER_VERB: &str = "keeper-worker";
/// Below the run directory: where runtimes bring descriptors.
const SOCKET: &str = "keeper.sock";
/// Most containers.
const MAX_CONTAINERS: usize = 4_000;

/// Where runtimes bring descriptors (`linux.seccomp.listenerPath`).
pub(crate) fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join(SOCKET)
}

/// Whether there is a keeper: a container whose runtime finds none does not start.
///
/// # Errors
/// There is none, and how to start one.
pub(crate) fn check_running(run_dir: &Path) -> Result<()> {
    let path = socket_path(run_dir);
    UnixStream::connect(&path).map(drop).with_context(|| {
        format!("no seccomp keeper answers on {}: start one with `elbowroom keeper`", path.display())
    })
}

/// What both processes have.
struct HandoverState {
    run_dir: PathBuf,
    /// Where runtimes bring descriptors; `None` when no more are taken.
    socket: Option<UnixListener>,
    record: Arc<NotificationLog>,
    containers: BTreeMap<usize, SeccompContainer>,
}

/// One container.
struct SeccompContainer {
    /// The engine's identifier.
    id: String,
    /// A process in its cgroup.
    pid: i32,
    /// When that started: a later one of the same number is another container's. `None`: unknown.
    started: Option<Micros>,
    listener: Arc<SeccompListener>,
    /// Its view page, once there is one.
    page: Option<Arc<OwnedFd>>,
    /// Whether that was looked for once: until then its calls wait.
    page_checked: bool,
}

impl SeccompContainer {
    /// The same once more: its descriptors are shared.
    fn clone_shared(&self) -> Self {
        let Self { id, pid, started, listener, page, page_checked: looked } = self;
        Self {
            id: id.clone(),
            pid: *pid,
            started: *started,
            listener: listener.clone(),
            page: page.clone(),
            page_checked: *looked,
        }
    }
}
