//! Where mounts happen: the root directory and mount namespace of another process, or our own.

use super::MountError;
use crate::mountinfo::{
    CgroupLine, MountEntry, MountTable, MountTableBounds, MountTableError, parse_cgroups,
};
use crate::root::open_inside;
use crate::{bounded, process};
use elbowroom_types::id::DeviceNumber;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long the lock on a namespace is waited for. An attach takes about a millisecond.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// The same for the caller's own namespace, whose command has not begun: no tenant holds that lock, only an agent on a busy machine.
const OWN_LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_PAUSE: Duration = Duration::from_millis(2);
/// The most bytes of a process's other files: a path for each hierarchy, or one line.
const MAX_FILE_BYTES: u64 = 256 << 10;

/// Identity of a mount namespace. Containers that share one need their views mounted once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MountNamespace {
    dev: u64,
    ino: u64,
}

/// How far a process has come on its way into a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryStage {
    /// It is in the host's mount namespace: not in a container, or not yet.
    HostNamespace,
    /// It has a mount namespace of its own and still the host's root directory: a runtime is at work, or there is nothing more
    /// to come (`elbowroom run`, a service manager's sandbox).
    HostRoot,
    /// It has a root directory of its own.
    Contained,
}

/// Gives this process a mount namespace of its own whose mounts do not spread anywhere. Where the host's are shared, what it mounts and
/// unmounts later comes and goes here too: copies of the agent's own mounts end with them. The process must have one thread, and nothing
/// else may use the current directory meanwhile.
pub fn own_namespace() -> Result<(), MountError> {
    // SAFETY: CLONE_NEWNS (which implies CLONE_FS) leaves the table of file descriptors shared, the only thing
    // `unshare_unsafe` asks its callers to mind.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
        .map_err(|e| MountError::of("unshare", "/", e))?;
    rustix::mount::mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM)
        .map_err(|e| MountError::of("mount", "/", e))
}

/// A root directory, the process whose tables describe it, and the way into its namespace.
pub struct NamespaceRoot {
    /// `/proc/PID`, held open: after the process ends reads fail, they never reach its number's next owner.
    process: OwnedFd,
    /// `None`: this process.
    pid: Option<u32>,
    root: OwnedFd,
    /// `root` as this process's mountinfo spells it; `/` where the process's own root directory is meant.
    prefix: PathBuf,
    /// Path of the container's cgroup, where it is known.
    group: Option<PathBuf>,
    /// Whether it is known that no runtime masks a part of it any more.
    is_made: bool,
    /// The host's mounts, once they were asked for.
    host_mounts: OnceLock<HostMounts>,
    /// Whether other containers are in the mount namespace, once that was asked.
    is_shared: OnceLock<bool>,
}

/// The host's mounts, as far as they can be read.
#[derive(Debug, Default)]
struct HostMounts {
    known: Vec<MountEntry>,
    /// Whether a table could not be read, so that there may be more.
    is_incomplete: bool,
}

impl HostMounts {
    fn read(tables: &[&str]) -> Self {
        let mut mounts = Self::default();
        for path in tables.iter().map(Path::new) {
            let table = File::open(path).map_err(MountTableError::Io);
            match table.and_then(|file| MountTable::read(file, MountTableBounds::HOST, path)) {
                Ok(table) => mounts.known.extend(table.iter().cloned()),
                Err(_) => mounts.is_incomplete = true,
            }
        }
        mounts
    }

    fn may_have(&self, device: DeviceNumber) -> bool {
        self.is_incomplete || self.known.iter().any(|mount| mount.device == device)
    }
}

/// What names a mounted file: one filesystem, one inode, one mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    pub(super) device: DeviceNumber,
    pub(super) inode: u64,
    pub(super) mount: u64,
}

impl NamespaceRoot {
    /// The root directory of process `pid`.
    pub fn of(pid: u32) -> Result<Self, MountError> {
        let path = PathBuf::from(format!("/proc/{pid}"));
        let gone = |call, errno| match errno {
            Errno::NOENT | Errno::SRCH => MountError::Vanished { pid },
            errno => MountError::of(call, &path, errno),
        };
        let process = open_dir(&path).map_err(|e| gone("open", e))?;
        let root = rustix::fs::openat(
            &process,
            "root",
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(|e| gone("open", e))?;
        Ok(Self::new(process, Some(pid), root, "/".into()))
    }

    /// The same of a process that is in the cgroup `group` or below it: one that is not has the number of one that has
    /// vanished. Only the last component of `group` is looked for, which for engines is the container's id: an agent in a
    /// cgroup namespace of its own reads paths here that begin otherwise.
    pub fn in_group(pid: u32, group: &str) -> Result<Self, MountError> {
        let place = Self { group: Some(group.into()), ..Self::of(pid)? };
        if is_in_group(&place.cgroups()?, group) { Ok(place) } else { Err(MountError::Vanished { pid }) }
    }

    /// The directory `root`, which is or will be a root directory in the mount namespace of this process.
    pub fn of_this_process(root: &Path) -> Result<Self, MountError> {
        let process =
            open_dir(Path::new("/proc/self")).map_err(|e| MountError::of("open", "/proc/self", e))?;
        let fd = open_dir(root).map_err(|e| MountError::of("open", root, e))?;
        let prefix = path_of(fd.as_fd()).map_err(|e| MountError::of("readlink", root, e))?;
        Ok(Self::new(process, None, fd, prefix))
    }

    fn new(process: OwnedFd, pid: Option<u32>, root: OwnedFd, prefix: PathBuf) -> Self {
        let (host_mounts, is_shared) = (OnceLock::new(), OnceLock::new());
        Self { process, pid, root, prefix, group: None, is_made: false, host_mounts, is_shared }
    }

    /// The same, of which it is known that all mounts are made: what runs next is the container's own program.
    pub fn made(self) -> Self {
        Self { is_made: true, ..self }
    }

    /// Whether a runtime has made all mounts, those that mask a part of another among them: that is so once the process runs a program
    /// that is on one of its own mounts. A runtime's program is on the host's, or on none, until it executes the container's
    /// (runc's init masks paths after `pivot_root`: libcontainer/standard_init_linux.go); a hook runs before that.
    pub(super) fn has_all_mounts(&self, table: &MountTable) -> bool {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let program = || {
            let exe = rustix::fs::openat(&self.process, "exe", flags, Mode::empty())?;
            file_id(exe.as_fd(), Path::new(""))
        };
        self.is_made || self.pid.is_some() && program().is_ok_and(|file| table.by_id(file.mount).is_some())
    }

    /// Whether it is that of the process that asks.
    pub(super) fn is_this_process(&self) -> bool {
        self.pid.is_none()
    }

    /// How far the process has come.
    pub fn stage(&self) -> Result<EntryStage, MountError> {
        match self.or_vanished(self.refuse_host()) {
            Err(MountError::HostNamespace { .. }) => return Ok(EntryStage::HostNamespace),
            other => other?,
        }
        let root = self.or_vanished(
            file_id(self.root.as_fd(), Path::new("")).map_err(|e| MountError::of("statx", "/", e)),
        )?;
        // The agent may itself be in a container, next to the host's process 1.
        let hosts = ["/", "/proc/1/root"]
            .iter()
            .filter_map(|path| file_id(open_dir(Path::new(path)).ok()?.as_fd(), Path::new("")).ok());
        let is_root = |host: FileId| (host.device, host.inode) == (root.device, root.inode);
        Ok(if hosts.into_iter().any(is_root) { EntryStage::HostRoot } else { EntryStage::Contained })
    }

    /// The mount namespace of the process.
    pub fn namespace(&self) -> Result<MountNamespace, MountError> {
        self.or_vanished(self.identity())
    }

    /// What the mounts that it sees depend on: the mount namespace, and its root directory there.
    pub(super) fn sight(&self) -> Result<(MountNamespace, u64, u64), MountError> {
        let root = file_id(self.root.as_fd(), Path::new("")).map_err(|e| MountError::of("statx", "/", e));
        let root = self.or_vanished(root)?;
        Ok((self.namespace()?, root.mount, root.inode))
    }

    /// The mounts below the root directory.
    pub(super) fn table(&self) -> Result<MountTable, MountError> {
        Ok(self.whole_table()?.below(&self.prefix))
    }

    /// The same, after `look` has looked at all mounts of this process.
    pub(super) fn table_checked<T>(
        &self,
        look: impl FnOnce(&MountTable) -> Result<T, MountError>,
    ) -> Result<(MountTable, T), MountError> {
        match self.pid {
            Some(_) => {
                let seen = look(&Self::of_this_process(Path::new("/"))?.whole_table()?)?;
                Ok((self.table()?, seen))
            }
            None => {
                let all = self.whole_table()?;
                let seen = look(&all)?;
                Ok((all.below(&self.prefix), seen))
            }
        }
    }

    /// All mounts that the process sees.
    fn whole_table(&self) -> Result<MountTable, MountError> {
        let path = self.path("mountinfo");
        let failed = |errno| MountError::of("read", &path, errno);
        let bounds = if self.pid.is_some() { MountTableBounds::CONTAINER } else { MountTableBounds::HOST };
        let table = match self.open_file("mountinfo") {
            Ok(file) => MountTable::read(file, bounds, &path),
            Err(errno) => return self.or_vanished(Err(failed(errno))),
        };
        self.or_vanished(table.map_err(|error| match error {
            MountTableError::Io(error) => failed(errno(&error)),
            MountTableError::Malformed(error) => error.into(),
            what @ MountTableError::TooLarge(_) => MountError::TableTooLarge { path: path.clone(), what },
        }))
    }

    /// The cgroups of the process.
    pub(super) fn cgroups(&self) -> Result<Vec<CgroupLine>, MountError> {
        Ok(parse_cgroups(&self.read("cgroup")?, &self.path("cgroup"))?)
    }

    /// The path of the container's cgroup as far as it is known.
    pub(super) fn group(&self) -> Option<&Path> {
        self.group.as_deref()
    }

    /// Whether a process of another container is in the mount namespace: it relies on what is mounted there. In a copy of another
    /// container's namespace there is none.
    pub(super) fn is_shared(&self) -> Result<bool, MountError> {
        if let Some(is_shared) = self.is_shared.get() {
            return Ok(*is_shared);
        }
        let (namespace, own) = (self.identity()?, self.cgroups()?);
        let is_others = |cgroups: &[CgroupLine]| match (&self.group, self.pid) {
            (Some(group), _) => !is_in_group(cgroups, &group.to_string_lossy()),
            // Nothing tells whose it is.
            (None, Some(_)) => true,
            (None, None) => cgroups != own,
        };
        let mut here = process::all_pids().into_iter().filter_map(|pid| {
            Self::of(pid).ok().filter(|place| place.identity().is_ok_and(|at| at == namespace))
        });
        let is_shared = here.any(|place| place.cgroups().is_ok_and(|cgroups| is_others(&cgroups)));
        Ok(*self.is_shared.get_or_init(|| is_shared))
    }

    /// Opens (`O_PATH`) what a walk to `target` reaches below the root directory, without following any symbolic link.
    pub(super) fn open(&self, target: &Path) -> Result<OwnedFd, Errno> {
        // Without O_NOFOLLOW: with it and O_PATH a link at the end would be opened instead of refused.
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        open_inside(&self.root, target, OFlags::PATH, resolve)
    }

    /// Refuses the namespace of the host: this process's and that of process 1.
    pub(super) fn refuse_host(&self) -> Result<(), MountError> {
        let Some(pid) = self.pid else { return Ok(()) };
        let theirs = self.identity()?;
        let hosts = ["/proc/thread-self/ns/mnt", "/proc/1/ns/mnt"];
        let host = hosts.iter().filter_map(|path| std::fs::metadata(path).ok()).map(|meta| identity(&meta));
        if host.into_iter().any(|host| host == theirs) {
            Err(MountError::HostNamespace { pid })
        } else {
            Ok(())
        }
    }

    /// Waits a moment for the lock on the mount namespace, which every attach and detach holds. It is a lock on the
    /// namespace's own file in nsfs: the same for all processes and gone with its holder. A container can hold it too, and
    /// so keep views out of itself, no more.
    pub(super) fn lock(&self) -> Result<OwnedFd, MountError> {
        let namespace = self.open_namespace()?;
        let timeout = if self.pid.is_some() { LOCK_TIMEOUT } else { OWN_LOCK_TIMEOUT };
        let begin = Instant::now();
        loop {
            match rustix::fs::flock(&namespace, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(namespace),
                Err(Errno::WOULDBLOCK) if begin.elapsed() < timeout => std::thread::sleep(LOCK_PAUSE),
                Err(Errno::WOULDBLOCK) => return Err(MountError::Busy { path: self.path("ns/mnt") }),
                Err(errno) => return Err(MountError::of("flock", self.path("ns/mnt"), errno)),
            }
        }
    }

    /// Whether a mount below `mount` shows on the host, as far as the host's mounts can be read. Most containers' mounts have no
    /// peers, and then nothing is read.
    pub(super) fn shows_on_host(&self, mount: &MountEntry) -> bool {
        mount
            .peer_group
            .is_some_and(|group| self.host_mounts().known.iter().any(|host| host.peer_group == Some(group)))
    }

    /// Whether the host has the same mounted at the same path: a container made from a copy of the host's mounts brought it along.
    pub(super) fn is_hosts(&self, mount: &MountEntry) -> bool {
        let what = |mount: &MountEntry| (mount.device, mount.root.clone(), mount.mount_point.clone());
        self.host_mounts().known.iter().any(|host| what(host) == what(mount))
    }

    /// Whether a file system is mounted on the host, anywhere; or may be, where not all of the host's mounts can be read.
    pub(super) fn is_mounted_on_host(&self, device: DeviceNumber) -> bool {
        self.host_mounts().may_have(device)
    }

    fn host_mounts(&self) -> &HostMounts {
        let tables: &[&str] = match self.pid {
            Some(_) => &["/proc/thread-self/mountinfo", "/proc/1/mountinfo"],
            None => &["/proc/1/mountinfo"],
        };
        self.host_mounts.get_or_init(|| HostMounts::read(tables))
    }

    /// Runs `work` inside the mount namespace; in another one than this process's, or where there is no way back to the current
    /// directory, on a thread of its own. `/proc` is whatever the container has there: `work` uses nothing but descriptors.
    pub(super) fn enter<T: Send>(
        &self,
        work: impl FnOnce(&Unmounter) -> Result<T, MountError> + Send,
    ) -> Result<T, MountError> {
        let namespace = self.pid.map(|_| self.open_namespace()).transpose()?;
        let inside = || {
            // SAFETY: CLONE_FS alone leaves the table of file descriptors shared, the only thing `unshare_unsafe` asks its
            // callers to mind. The current directory and root that `inside` changes are this thread's alone.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }
                .map_err(|e| MountError::of("unshare", "/", e))?;
            let own_fds = open_dir(Path::new("/proc/thread-self/fd"))
                .map_err(|e| MountError::of("open", "/proc/thread-self/fd", e))?;
            if let Some(namespace) = &namespace {
                rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))
                    .map_err(|e| MountError::of("setns", self.path("ns/mnt"), e))?;
            }
            rustix::process::fchdir(&own_fds)
                .map_err(|e| MountError::of("fchdir", "/proc/thread-self/fd", e))?;
            work(&Unmounter(()))
        };
        // A user's directory may be closed to root.
        let before = open_dir(Path::new(".")).ok().filter(|before| rustix::process::fchdir(before).is_ok());
        if let Some(before) = before.filter(|_| namespace.is_none()) {
            let result = inside();
            rustix::process::fchdir(&before).map_err(|errno| MountError::of("fchdir", ".", errno))?;
            return result;
        }
        let result = std::thread::scope(|scope| match scope.spawn(inside).join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        self.or_vanished(result)
    }

    /// Turns the failure of any step into [`MountError::Vanished`] where that is the reason.
    pub(super) fn or_vanished<T>(&self, result: Result<T, MountError>) -> Result<T, MountError> {
        match (result, self.pid) {
            (Err(_), Some(pid)) if self.is_gone() => Err(MountError::Vanished { pid }),
            (result, _) => result,
        }
    }

    fn open_namespace(&self) -> Result<OwnedFd, MountError> {
        let fd = rustix::fs::openat(&self.process, "ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        self.or_vanished(fd.map_err(|e| MountError::of("open", self.path("ns/mnt"), e)))
    }

    fn identity(&self) -> Result<MountNamespace, MountError> {
        let stat = rustix::fs::statat(&self.process, "ns/mnt", AtFlags::empty())
            .map_err(|e| MountError::of("stat", self.path("ns/mnt"), e))?;
        Ok(MountNamespace { dev: stat.st_dev, ino: stat.st_ino })
    }

    /// Reaped, a zombie, or dead: a zombie has given up its namespaces and reads as EINVAL, ENOENT or empty.
    fn is_gone(&self) -> bool {
        match self.read_raw("stat") {
            Err(errno) => matches!(errno, Errno::SRCH | Errno::NOENT),
            // The state follows the name, which is in parentheses and may itself contain some.
            Ok(text) => {
                let state = text.iter().rposition(|byte| *byte == b')').and_then(|end| text.get(end + 2));
                matches!(state, Some(b'Z' | b'X'))
            }
        }
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, MountError> {
        self.or_vanished(self.read_raw(name).map_err(|e| MountError::of("read", self.path(name), e)))
    }

    fn read_raw(&self, name: &str) -> Result<Vec<u8>, Errno> {
        bounded::bytes(self.open_file(name)?, MAX_FILE_BYTES).map_err(|error| errno(&error))
    }

    fn open_file(&self, name: &str) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.process, name, flags, Mode::empty()).map(File::from)
    }

    fn path(&self, name: &str) -> PathBuf {
        match self.pid {
            Some(pid) => format!("/proc/{pid}/{name}").into(),
            None => format!("/proc/self/{name}").into(),
        }
    }
}

/// Proof of being on a thread whose current directory is the host's `/proc/thread-self/fd`: from there the name of a
/// descriptor is a path to exactly the file it holds, whatever the container does to its own paths.
pub(super) struct Unmounter(());

impl Unmounter {
    /// Unmounts the mount whose root `fd` holds, or the topmost one on it.
    pub(super) fn unmount(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        rustix::mount::unmount(fd.as_raw_fd().to_string(), UnmountFlags::DETACH)
    }

    /// Takes the mount whose root `fd` holds out of any peer group it brought along from the host.
    pub(super) fn make_private(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        rustix::mount::mount_change(fd.as_raw_fd().to_string(), MountPropagationFlags::PRIVATE)
    }
}

/// Identifies what `name` below `dir` (or `dir` itself, where `name` is empty) is. Never asks a FUSE server: a view's own
/// agent calls this.
pub(super) fn file_id(dir: BorrowedFd<'_>, name: &Path) -> Result<FileId, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(dir, name, flags, StatxFlags::INO | StatxFlags::MNT_ID)?;
    let device = DeviceNumber::new(stat.stx_dev_major, stat.stx_dev_minor);
    Ok(FileId { device, inode: stat.stx_ino, mount: stat.stx_mnt_id })
}

/// Opens a directory as a place to start walks from.
pub(super) fn open_dir(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The path of a descriptor of this thread, which need not have the same as the first one.
pub(super) fn path_of(fd: BorrowedFd<'_>) -> Result<PathBuf, Errno> {
    std::fs::read_link(format!("/proc/thread-self/fd/{}", fd.as_raw_fd()))
        .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}

/// What the kernel said; a file that is too long is refused here.
fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::FBIG)
}

fn identity(meta: &std::fs::Metadata) -> MountNamespace {
    MountNamespace { dev: meta.dev(), ino: meta.ino() }
}

/// Whether a process with these cgroups is in `group` or below it; everything is in the root.
fn is_in_group(cgroups: &[CgroupLine], group: &str) -> bool {
    let Some(name) = Path::new(group).file_name() else { return true };
    // A group's path is text, as far as it can be.
    let is_name = |part: Component<'_>| part.as_os_str().to_string_lossy() == name.to_string_lossy();
    cgroups.iter().any(|line| line.path.components().any(is_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_may_be_the_hosts_where_its_mounts_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let malformed = dir.path().join("mountinfo");
        std::fs::write(&malformed, "no mount table\n").unwrap();
        let (own, nowhere) = ("/proc/self/mountinfo", DeviceNumber::new(0xfff, 0xfffff));
        let here = HostMounts::read(&[own]);
        assert!(here.may_have(here.known[0].device) && !here.may_have(nowhere));
        for unreadable in [Path::new("/nonexistent"), &malformed] {
            let partly = HostMounts::read(&[own, unreadable.to_str().unwrap()]);
            assert!(partly.known.len() == here.known.len() && partly.may_have(nowhere), "{unreadable:?}");
        }
    }

    #[test]
    fn a_process_is_in_its_group_from_wherever_the_path_is_read() {
        let is_in = |text: &str, group| {
            is_in_group(&parse_cgroups(text.as_bytes(), Path::new("cgroup")).unwrap(), group)
        };
        assert!(is_in("0::/system.slice/docker-4f5e.scope\n", "/system.slice/docker-4f5e.scope"));
        assert!(is_in("0::/system.slice/docker-4f5e.scope/init.scope\n", "/system.slice/docker-4f5e.scope"));
        assert!(is_in("0::/../docker-4f5e.scope\n", "/system.slice/docker-4f5e.scope"));
        assert!(is_in("4:cpu:/docker/4f5e\n1:name=systemd:/\n", "/docker/4f5e"));
        assert!(is_in("0::/\n", "/"));
        assert!(!is_in("0::/system.slice/docker-4f5e.scope2\n", "/system.slice/docker-4f5e.scope"));
        assert!(!is_in("4:cpu:/docker/77\n0::/docker/77\n", "/docker/4f5e"));
        assert!(!is_in("0::/\n", "/docker/4f5e"));
        assert!(!is_in("", "/docker/4f5e"));
    }
}
