//! Giving up rights: what a process that talks to strangers does first.

use crate::bounded;
use rustix::fs::{Gid, Uid};
use rustix::io;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Name of the user that unprivileged processes of the agent are, where there is one.
const USER: &str = "elbowroom";
/// The kernel's and everybody's `nobody` (`/proc/sys/kernel/overflowuid`).
const NOBODY: u32 = 65_534;

/// A user and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// What a process may have at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessRlimits {
    /// Open files.
    pub files: u64,
    /// Bytes of memory of its own (`RLIMIT_DATA`).
    pub data: u64,
}

/// Who unprivileged processes of the agent are: the user `elbowroom`, or nobody. Only local users count: others may need a
/// network.
pub fn unprivileged_user() -> Identity {
    let passwd = bounded::file_text("/etc/passwd", bounded::KERNEL_FILE).unwrap_or_default();
    let field = |n: usize| account_entry(&passwd, USER)?.split(':').nth(n)?.parse().ok();
    match (field(2), field(3)) {
        (Some(uid), Some(gid)) if uid != 0 => Identity { uid, gid },
        _ => Identity { uid: NOBODY, gid: NOBODY },
    }
}

/// The id of a local group; `None` where there is no such group.
pub fn group_id(name: &str) -> Option<u32> {
    let groups = bounded::file_text("/etc/group", bounded::KERNEL_FILE).ok()?;
    account_entry(&groups, name)?.split(':').nth(2)?.parse().ok()
}

/// Becomes somebody else for good, without capabilities, without a way to get any, and without new processes or threads. For
/// a process that has one thread. Opening what only root can open comes before.
///
/// # Errors
/// When the kernel refuses any of it. The process should end then.
pub fn drop_privileges(identity: Identity, bounds: ProcessRlimits) -> io::Result<()> {
    let exactly = |n| Rlimit { current: Some(n), maximum: Some(n) };
    setrlimit(Resource::Nofile, exactly(bounds.files))?;
    setrlimit(Resource::Data, exactly(bounds.data))?;
    setrlimit(Resource::Core, exactly(0))?;
    set_no_new_privs(true)?;
    set_thread_groups(&[])?;
    let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    set_thread_res_gid(gid, gid, gid)?;
    // Leaving user 0 drops all capabilities, and forbids others of that user to look into this process (capabilities(7),
    // PR_SET_DUMPABLE).
    set_thread_res_uid(uid, uid, uid)?;
    // After that: root would not be bound by it.
    setrlimit(Resource::Nproc, exactly(0))
}

/// The line of `/etc/passwd` or `/etc/group` that begins with this name.
pub fn account_entry<'a>(database: &'a str, name: &str) -> Option<&'a str> {
    database.lines().find(|line| line.split(':').next() == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_found_by_its_whole_name() {
        let database = "root:x:0:\nelbowroom2:x:7:\nelbowroom:x:8:a,b\n";
        assert_eq!(account_entry(database, "elbowroom"), Some("elbowroom:x:8:a,b"));
        assert_eq!(account_entry(database, "elbow"), None);
        assert_eq!(group_id("root"), Some(0));
        assert_eq!(group_id("elbowroom-test-no-such-group"), None);
    }

    #[test]
    fn whoever_is_unprivileged_is_not_root() {
        assert_ne!(unprivileged_user().uid, 0);
    }
}
