//! Giving up rights: what a process that talks to strangers does first.

use crate::bounded;
use rustix::fs::{Gid, Uid};
use rustix::io;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

/// Name of the user that unprivileged processes of the agent are, where there is one.
const USER: &str = "elbowroom";

/// A user and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// The kernel's and every distribution's `nobody` (`/proc/sys/kernel/overflowuid`).
pub const NOBODY: Identity = Identity { uid: 65_534, gid: 65_534 };

/// The capabilities that the agent works with. Its unit has the same, and says what each is for.
const AGENT_CAPABILITIES: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYSLOG)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID);

/// Those of them that no view needs: BPF programs and perf events, by which the host is sensed otherwise, the kernel's log of kills, and
/// modes of files of others.
const NOT_FOR_VIEWS: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYSLOG)
    .union(CapabilitySet::FOWNER);

/// What a process may have at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessRlimits {
    /// Open files.
    pub files: u64,
    /// Bytes of memory of its own (`RLIMIT_DATA`).
    pub data: u64,
    /// Whether it may still start threads and processes.
    pub forks: bool,
}

/// The user of unprivileged processes of the agent: `elbowroom`, or `nobody`. Only local users count: others may need a
/// network.
pub fn unprivileged_user() -> Identity {
    let passwd = bounded::file_text("/etc/passwd", bounded::KERNEL_FILE).unwrap_or_default();
    let field = |n: usize| account_entry(&passwd, USER)?.split(':').nth(n)?.parse().ok();
    match (field(2), field(3)) {
        (Some(uid), Some(gid)) if uid != 0 => Identity { uid, gid },
        _ => NOBODY,
    }
}

/// The id of a local group; `None` where there is no such group.
pub fn group_id(name: &str) -> Option<u32> {
    let groups = bounded::file_text("/etc/group", bounded::KERNEL_FILE).ok()?;
    account_entry(&groups, name)?.split(':').nth(2)?.parse().ok()
}

/// Becomes another user for good, without capabilities and without a way to get any. For a process that has one thread.
/// Opening what only root can open comes before.
///
/// # Errors
/// When the kernel refuses any of it. The process should end then.
pub fn drop_privileges(identity: Identity, bounds: ProcessRlimits) -> io::Result<()> {
    // Before Linux 6.4 such parameters of the kernel are read from /proc/self/auxv, once and for all of them; afterwards this process may
    // not open it any more, and asking for one would be a panic.
    let _ = rustix::param::page_size();
    let exactly = |n| Rlimit { current: Some(n), maximum: Some(n) };
    setrlimit(Resource::Nofile, exactly(bounds.files))?;
    setrlimit(Resource::Data, exactly(bounds.data))?;
    setrlimit(Resource::Core, exactly(0))?;
    set_no_new_privs(true)?;
    drop_bounding_set(CapabilitySet::empty())?;
    set_thread_groups(&[])?;
    let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    set_thread_res_gid(gid, gid, gid)?;
    // Leaving user 0 drops all capabilities, and forbids others of that user to look into this process (capabilities(7),
    // PR_SET_DUMPABLE).
    set_thread_res_uid(uid, uid, uid)?;
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    match bounds.forks {
        true => Ok(()),
        // After that: root would not be bound by it.
        false => setrlimit(Resource::Nproc, exactly(0)),
    }
}

/// Gives up for good, also for the programs that this process executes, what the agent does not need. With `CAP_SETPCAP`, where it is
/// there, its processes give up the rest. `only_views`: also what an agent does not need that shows views and does nothing else.
///
/// # Errors
/// When the kernel refuses it.
pub fn keep_agent_capabilities(only_views: bool) -> io::Result<()> {
    let needed = if only_views { AGENT_CAPABILITIES - NOT_FOR_VIEWS } else { AGENT_CAPABILITIES };
    let kept = needed | CapabilitySet::SETPCAP;
    drop_bounding_set(kept)?;
    let own = capabilities(None)?;
    let sets = CapabilitySets {
        effective: own.effective & kept,
        permitted: own.permitted & kept,
        inheritable: own.inheritable & kept,
    };
    set_capabilities(None, sets)
}

/// The names of the capabilities in a mask as `/proc/PID/status` has it, as capabilities(7) has them without `CAP_`.
pub fn capability_names(mask: u64) -> Vec<&'static str> {
    CapabilitySet::from_bits_retain(mask).iter_names().map(|(name, _)| name).collect()
}

/// Bounds what a program that this process executes could have. Without `CAP_SETPCAP`, as under a service manager that
/// bounds it already, the bound stays as it is.
fn drop_bounding_set(kept: CapabilitySet) -> io::Result<()> {
    let all = (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit));
    for capability in all.filter(|capability| !kept.contains(*capability)) {
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The kernel has no more; this process may not.
            Err(io::Errno::INVAL | io::Errno::PERM) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sees to it that this process, and those it starts, leave no image of their memory when they crash, and that files they make
/// are for their user alone where the code says nothing else.
///
/// # Errors
/// When the kernel refuses it.
pub fn keep_private() -> io::Result<()> {
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
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
    fn the_unit_has_the_same_capabilities() {
        let unit = include_str!("../../../packaging/systemd/elbowroom.service.in");
        let words = unit.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
        let mut named: Vec<&str> = words.flat_map(str::split_whitespace).collect();
        let mut own: Vec<String> =
            AGENT_CAPABILITIES.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
        named.sort_unstable();
        own.sort_unstable();
        assert_eq!(named, own);
    }

    #[test]
    fn the_unprivileged_user_is_not_root() {
        assert_ne!(unprivileged_user().uid, 0);
    }

    /// On a kernel without PR_GET_AUXV (before Linux 6.4), which a filter stands for. In a process of its own: there is no way back.
    #[test]
    fn parameters_of_the_kernel_are_known_after_rights_are_gone_on_an_old_kernel_too() {
        const INSIDE: &str = "ELBOWROOM_TEST_DROPS_PRIVILEGES";
        const NAME: &str =
            "privilege::tests::parameters_of_the_kernel_are_known_after_rights_are_gone_on_an_old_kernel_too";
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: needs root, whose rights are given up");
        }
        if std::env::var_os(INSIDE).is_none() {
            let this = std::env::current_exe().unwrap();
            let inside = std::process::Command::new(this)
                .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
                .env(INSIDE, "1")
                .env("RUST_BACKTRACE", "0")
                .output()
                .unwrap();
            let said = [inside.stdout, inside.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
            return assert!(inside.status.success() && said[0].contains("1 passed"), "{said:?}");
        }
        set_no_new_privs(true).unwrap();
        refuse_get_auxv();
        drop_privileges(NOBODY, ProcessRlimits { files: 64, data: 1 << 30, forks: true }).unwrap();
        assert!(std::fs::read("/proc/self/auxv").is_err(), "root's");
        // SAFETY: asks the C library for a number.
        assert_eq!(rustix::param::page_size() as i64, unsafe { libc::sysconf(libc::_SC_PAGESIZE) });
        crate::process::forget_start();
    }

    /// Has `prctl(PR_GET_AUXV)` answer EINVAL.
    fn refuse_get_auxv() {
        const PR_GET_AUXV: u32 = 0x4155_5856;
        let (load, equal) =
            (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
        let give = libc::BPF_RET | libc::BPF_K;
        let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let mut program = [
            // struct seccomp_data: the number of the call, and the low half of its first argument.
            step(load, 0, 0, 0),
            step(equal, 0, 3, libc::SYS_prctl as u32),
            step(load, 0, 0, 16),
            step(equal, 0, 1, PR_GET_AUXV),
            step(give, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
            step(give, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: the kernel copies the program, which lasts as long as the call.
        let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}
