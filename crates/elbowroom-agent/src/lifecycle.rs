//! An agent as another program sees it that knows no more than its run directory: whether there is one, and ending it whole.

use crate::view_server::roles::{AgentRole, LOCK_FILE, RoleLock, wait_readable};
use crate::view_server::{FuseError, PAGES_DIR, TRIGGERS_DIR, VIEWS_DIR, pages, session};
use elbowroom_client::control::socket_path;
use rustix::fd::OwnedFd;
use rustix::process::{Signal, pidfd_send_signal};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// A supervisor that died has a successor sooner than this.
const SUCCESSION: Duration = Duration::from_millis(20);

/// The roles that are handed from process to process; while one of them is held, there is an agent.
const ROLES: [AgentRole; 3] = [AgentRole::Supervisor, AgentRole::Policy, AgentRole::Server];

/// Whether an agent has `run_dir`: it answers, or it is just starting.
pub fn is_running(run_dir: &Path) -> bool {
    let is_held = |roles: RoleLock| ROLES.into_iter().any(|role| roles.holder(role).is_some());
    UnixStream::connect(socket_path(run_dir)).is_ok() || open_roles(run_dir).is_some_and(is_held)
}

/// A descriptor that becomes readable when the supervisor of the agent of `run_dir` ends; `None` where there is none.
pub fn supervisor_end(run_dir: &Path) -> Option<OwnedFd> {
    Some(open_roles(run_dir)?.watch(AgentRole::Supervisor)?.1)
}

/// Ends the agent of `run_dir`, in order while `patience` lasts and then for certain, and takes away what it leaves mounted and its
/// directory. There may be none, or one that was killed.
///
/// # Errors
/// [`FuseError::Io`]; [`FuseError::Occupied`] when something else is mounted there.
pub fn remove(run_dir: &Path, patience: Duration) -> Result<(), FuseError> {
    if let Some(roles) = open_roles(run_dir) {
        stop(&roles, Instant::now() + patience);
    }
    for dir in [VIEWS_DIR, TRIGGERS_DIR] {
        session::remove_stale(&run_dir.join(dir))?;
    }
    pages::remove(&run_dir.join(PAGES_DIR))?;
    match std::fs::remove_dir_all(run_dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(FuseError::io("removing", run_dir)(error))
        }
        _ => Ok(()),
    }
}

/// Not where there is none: to open it makes it.
fn open_roles(run_dir: &Path) -> Option<RoleLock> {
    run_dir.join(LOCK_FILE).exists().then(|| RoleLock::open(run_dir).ok()).flatten()
}

fn stop(roles: &RoleLock, deadline: Instant) {
    loop {
        let in_time = Instant::now() < deadline;
        let Some((role, end)) = ROLES.into_iter().find_map(|role| Some((role, roles.watch(role)?.1))) else {
            return;
        };
        let patience = match (in_time, role) {
            (true, AgentRole::Supervisor) => {
                let _ = pidfd_send_signal(&end, Signal::TERM);
                deadline.saturating_duration_since(Instant::now())
            }
            // The others start a new one first.
            (true, _) => SUCCESSION,
            (false, _) => {
                let _ = pidfd_send_signal(&end, Signal::KILL);
                SUCCESSION
            }
        };
        wait_readable(&end, Some(patience));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_look_for_an_agent_makes_nothing_and_to_remove_one_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().join("run");
        std::fs::create_dir(&run_dir).unwrap();
        assert!(!is_running(&run_dir) && supervisor_end(&run_dir).is_none());
        assert_eq!(std::fs::read_dir(&run_dir).unwrap().count(), 0);
        // As one that was killed leaves it.
        drop(RoleLock::open(&run_dir).unwrap());
        std::fs::create_dir_all(run_dir.join(VIEWS_DIR)).unwrap();
        assert!(!is_running(&run_dir));
        remove(&run_dir, Duration::ZERO).unwrap();
        assert!(!run_dir.exists());
        remove(&run_dir, Duration::ZERO).unwrap();
    }
}
