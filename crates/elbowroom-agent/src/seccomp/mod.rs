//! `elbowroom keeper`: answers `sched_getaffinity` and `sysinfo` of containers whose programs ask the kernel and no file, as static
//! programs of musl do.
//!
//! Two processes with the same descriptors: the *holder* takes them from the runtime, finds the containers' view pages, and
//! watches; the *answerer* answers, with a thread for each container, and asks nobody. Whichever dies, the other starts it anew, and what the dead one had taken and
//! not answered is left to the kernel (`elbowroom_linux::seccomp::Record`). Only when both die at once do calls fail with
//! `ENOSYS`, unless a service manager holds the descriptors too. `docs/decisions/0028-seccomp-keeper.md`

mod answerer;
mod holder;
mod pages;
mod serving;
mod wire;

pub use answerer::main as answer;
pub use holder::main as hold;
pub use holder::named;
pub use wire::told;

use anyhow::{Context, Result};
use elbowroom_linux::seccomp::{Listener, Record};
use elbowroom_types::unit::Micros;
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The hidden verb of the process that answers.
pub(crate) const VERB: &str = "keeper-answerer";
/// Below the run directory: where runtimes bring descriptors.
const SOCKET: &str = "keeper.sock";

/// Where runtimes bring descriptors (`linux.seccomp.listenerPath`).
pub(crate) fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join(SOCKET)
}

/// Whether there is a keeper: a container whose runtime finds none does not start.
///
/// # Errors
/// There is none, and how to start one.
pub(crate) fn is_there(run_dir: &Path) -> Result<()> {
    let path = socket(run_dir);
    UnixStream::connect(&path).map(drop).with_context(|| {
        format!("no seccomp keeper answers on {}: start one with `elbowroom keeper`", path.display())
    })
}

/// What both processes have.
struct Kept {
    run_dir: PathBuf,
    /// Where runtimes bring descriptors; `None` when no more are taken.
    socket: Option<UnixListener>,
    record: Arc<Record>,
    containers: BTreeMap<usize, Container>,
}

/// One container.
struct Container {
    /// The engine's identifier.
    id: String,
    /// A process in its cgroup.
    pid: i32,
    /// When that started: a later one of the same number is another container's. `None` where nobody knows.
    started: Option<Micros>,
    listener: Arc<Listener>,
    /// Its view page, once there is one.
    page: Option<Arc<OwnedFd>>,
    /// Whether that was looked for once: until then its calls wait.
    looked: bool,
}

impl Container {
    /// The same once more: its descriptors are shared.
    fn share(&self) -> Self {
        let Self { id, pid, started, listener, page, looked } = self;
        Self {
            id: id.clone(),
            pid: *pid,
            started: *started,
            listener: listener.clone(),
            page: page.clone(),
            looked: *looked,
        }
    }
}
