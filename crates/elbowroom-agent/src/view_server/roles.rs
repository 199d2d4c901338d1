//! Which of the agent's processes is which.
//!
//! A role is one byte of `<run-dir>/agent.lock`, locked by the process that has it. The lock is a POSIX record lock: it
//! belongs to the process, survives `exec`, is not inherited by children, and is released by the kernel at death. So there
//! is at most one process per role, no pid file that could be stale, and the kernel itself tells which process it is. The
//! price: a process must never open and close that file a second time, which would drop its lock. The descriptor is
//! inherited instead.

use crate::view_server::FuseError;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Name of the lock file below the run directory.
pub(crate) const LOCK_FILE: &str = "agent.lock";
/// Name of the file that the API server locks instead: it must hold nothing by which it could take another role.
pub(crate) const API_LOCK_FILE: &str = "api.lock";

/// One of the agent's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentRole {
    /// Mounts and watches.
    Supervisor = 0,
    /// Answers the kernel.
    Server = 1,
    /// Decides and publishes.
    Policy = 2,
    /// Serves the HTTP API. Holds nothing of the others, and is handed nothing.
    Api = 3,
    /// Starts a supervisor where there is none. The view server has no rights by which it could.
    Standby = 4,
}

impl AgentRole {
    /// The hidden verb that a process of this role is started with.
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Supervisor => "supervise",
            Self::Server => "view-server",
            Self::Policy => "policy",
            Self::Api => "api-server",
            Self::Standby => "standby",
        }
    }
}

impl std::fmt::Display for AgentRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Supervisor => "supervisor",
            Self::Server => "view server",
            Self::Policy => "policy process",
            Self::Api => "API server",
            Self::Standby => "standby",
        })
    }
}

/// How many roles there are.
const ROLES: libc::off_t = 4;

/// Where the lock file counts the holders of a role that were given up.
const fn count_offset(role: AgentRole) -> u64 {
    role as u64 * size_of::<u32>() as u64
}

/// The lock file, open.
#[derive(Debug)]
pub struct RoleLock {
    /// Handed to the processes that this one starts ([`crate::view_server::handover`]).
    pub(super) file: File,
}

impl RoleLock {
    /// Opens the lock file of a run directory, which must exist, making the file where there is none.
    ///
    /// # Errors
    /// [`FuseError::Io`].
    pub fn open(run_dir: &Path) -> Result<Self, FuseError> {
        Self::open_file(run_dir.join(LOCK_FILE))
    }

    /// The same for the API server's role, which has a file of its own.
    ///
    /// # Errors
    /// [`FuseError::Io`].
    pub(crate) fn open_api(run_dir: &Path) -> Result<Self, FuseError> {
        Self::open_file(run_dir.join(API_LOCK_FILE))
    }

    fn open_file(path: PathBuf) -> Result<Self, FuseError> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        Ok(Self { file: file.map_err(FuseError::io("opening", path))? })
    }

    /// Takes a role for this process, for as long as it lives. False when another process has it.
    pub fn acquire(&self, role: AgentRole) -> bool {
        let lock = self.record_lock(libc::F_WRLCK, role);
        // SAFETY: the descriptor is open for as long as `self`, and F_SETLK reads one `struct flock`, which `lock` is.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLK, &raw const lock) == 0 }
    }

    /// Gives a role back.
    pub fn release(&self, role: AgentRole) {
        let lock = self.record_lock(libc::F_UNLCK, role);
        // SAFETY: as in `take`. Unlocking a lock one has, or has not, does not fail.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLK, &raw const lock) };
    }

    /// The other process that has a role. `None` also where this process has it itself.
    pub fn holder(&self, role: AgentRole) -> Option<Pid> {
        let mut lock = self.record_lock(libc::F_WRLCK, role);
        // SAFETY: the descriptor is open for as long as `self`, and F_GETLK writes one `struct flock`, which `lock` is.
        let answered = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_GETLK, &raw mut lock) == 0 };
        let held = answered && lock.l_type != libc::F_UNLCK as libc::c_short;
        // A holder in a pid namespace that cannot be seen from here has no pid: it cannot be watched.
        held.then(|| Pid::from_raw(lock.l_pid)).flatten()
    }

    /// A descriptor that becomes readable when the holder of a role dies, with its pid.
    pub fn watch(&self, role: AgentRole) -> Option<(Pid, OwnedFd)> {
        let pid = self.holder(role)?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The pid could have died and come back as another process in between; the lock could not.
        (self.holder(role) == Some(pid)).then_some((pid, pidfd))
    }

    /// Frees the role of a process that was killed and does not end. It must have been: no program of it may run any more.
    pub(crate) fn abandon(&self, role: AgentRole) {
        let next = self.abandoned(role) + 1;
        if let Err(error) = self.file.write_all_at(&next.to_ne_bytes(), count_offset(role)) {
            tracing::error!(%role, %error, "the role of a dead process cannot be freed");
        }
    }

    /// How many holders of a role were given up.
    fn abandoned(&self, role: AgentRole) -> u32 {
        let mut count = [0; 4];
        // Shorter: none was.
        self.file.read_exact_at(&mut count, count_offset(role)).map_or(0, |()| u32::from_ne_bytes(count))
    }

    fn record_lock(&self, kind: libc::c_int, role: AgentRole) -> libc::flock {
        libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: libc::off_t::from(self.abandoned(role)) * ROLES + role as libc::off_t,
            l_len: 1,
            l_pid: 0,
        }
    }

    /// Whether the file still is what its path names: it was not removed by an agent that stopped meanwhile.
    pub(crate) fn is_same_file(&self, run_dir: &Path) -> bool {
        let at_path = std::fs::symlink_metadata(run_dir.join(LOCK_FILE));
        match (at_path, self.file.metadata()) {
            (Ok(path), Ok(open)) => (path.dev(), path.ino()) == (open.dev(), open.ino()),
            _ => false,
        }
    }
}

/// Waits until a descriptor is readable, or for `timeout`. False when the time passed.
pub(crate) fn wait_readable(fd: &OwnedFd, timeout: Option<Duration>) -> bool {
    let until = timeout.map(|t| Instant::now() + t);
    loop {
        let left = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        match rustix::event::poll(&mut [PollFd::new(fd, PollFlags::IN)], left.as_ref()) {
            Ok(n) => return n > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                // Not possible for a descriptor that is open; do not spin if it happens all the same.
                tracing::error!(%error, "poll");
                std::thread::sleep(Duration::from_millis(100));
                return true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_linux::process;

    #[test]
    fn a_role_that_was_given_up_is_free_though_its_holder_keeps_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let ours = RoleLock::open(dir.path()).unwrap();
        // A thread that shares no files is another process to the kernel's locks.
        let in_another = |work: fn(&RoleLock) -> bool| {
            let path = dir.path().to_owned();
            let alone = move || {
                // SAFETY: the thread opens by path all that it uses.
                unsafe { process::unshare_open_files() };
                work(&RoleLock::open(&path).unwrap())
            };
            std::thread::spawn(alone).join().unwrap()
        };
        assert!(ours.acquire(AgentRole::Policy) && ours.acquire(AgentRole::Server));
        assert!(!in_another(|lock| lock.acquire(AgentRole::Policy)));
        ours.abandon(AgentRole::Policy);
        assert!(in_another(
            |lock| lock.holder(AgentRole::Policy).is_none() && lock.acquire(AgentRole::Policy)
        ));
        // The other roles are as they were.
        assert!(!in_another(|lock| lock.acquire(AgentRole::Server)));
        ours.abandon(AgentRole::Policy);
        assert!(ours.acquire(AgentRole::Policy) && !in_another(|lock| lock.acquire(AgentRole::Policy)));
    }
}
