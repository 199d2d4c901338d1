//! The file that a container's programs watch to be asked for memory (<https://systemd.io/MEMORY_PRESSURE>): a FIFO in memory that is the
//! container's own (`docs/decisions/0036-pressure-notification-place.md`).
//!
//! # Where
//! In the container's `/dev`, where that is a tmpfs of its own, as engines make one. Where it is the host's (`elbowroom run`, services),
//! in a ramfs on a directory of the agent's, in the container's mount namespace alone: on the host that directory is empty. Any other
//! container has none.
//!
//! # Why a writer is held
//! Once the last writer of a FIFO closes it, poll(2) reports `POLLHUP` for ever to processes that only read it: sd-event(3) gives such
//! a file up, and a simple loop around poll(2) never sleeps again. So a [`PressureFifo`] is a writer that stays. A reader that may write
//! too is a writer itself, and outlives the agent (`elbowroom_types::launch`).
//!
//! # Which threads may wait
//! Nothing here waits for a reader. But a process that opens, writes or closes a FIFO takes its lock (`fs/pipe.c`). A reader holds that
//! lock while the kernel copies to the reader's memory, which may never be filled (userfaultfd(2), a file system of its own). Only a
//! thread that may wait for good may have a [`PressureFifo`].

use super::attach::refuse_shared_below;
use super::detach::unmount_exactly;
use super::mount_calls::{id_of, move_mount, open_target};
use super::namespace::{NamespaceRoot, Unmounter, file_id, open_dir};
use super::{MountError, SOURCE};
use crate::mountinfo::{MountEntry, MountTable};
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::launch::{DEV, PRESSURE_FILE_NAME};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags};
use std::path::{Path, PathBuf};

/// What is mounted where a container has the host's `/dev`; tables of file systems leave it out, for it has no size.
const RAMFS: &str = "ramfs";

impl NamespaceRoot {
    /// Opens the file to write to it, as a program that asks does; `None` where it is not there.
    ///
    /// # Errors
    /// [`MountError`].
    pub fn open_pressure_file(&self) -> Result<Option<PressureFifo>, MountError> {
        self.or_vanished(self.refuse_host())?;
        let table = self.table()?;
        let Some(mount) = self.find_place(&table) else { return Ok(None) };
        let dir = self.or_vanished(open_target(self, &mount.mount_point, mount.id))?;
        match open_fifo(&dir).and_then(|fifo| PressureFifo::open(&fifo)) {
            Ok(fifo) => Ok(Some(fifo)),
            Err(Errno::NOENT | Errno::EXIST) => Ok(None),
            Err(errno) => Err(MountError::of("open", mount.mount_point.join(PRESSURE_FILE_NAME), errno)),
        }
    }

    /// Takes the file in `mount` away, or what it is in, if that is ours. A process that has it open keeps it.
    pub(super) fn withdraw_pressure_file(
        &self,
        unmounter: &Unmounter,
        mount: &MountEntry,
    ) -> Result<(), MountError> {
        if is_ours(mount) {
            return unmount_exactly(self, unmounter, mount).map(drop);
        }
        let dir = open_target(self, &mount.mount_point, mount.id)?;
        match open_fifo(&dir) {
            Ok(_) => rustix::fs::unlinkat(&dir, PRESSURE_FILE_NAME, AtFlags::empty())
                .map_err(|e| MountError::of("unlink", mount.mount_point.join(PRESSURE_FILE_NAME), e)),
            Err(_) => Ok(()),
        }
    }

    /// The mount in which the container's file is, or may be. To be asked outside of its mount namespace: inside, the host's files are not
    /// the host's.
    pub(super) fn find_place<'a>(&self, table: &'a MountTable) -> Option<&'a MountEntry> {
        find_place(table, &|device| host_dev().contains(&device) || self.is_mounted_on_host(device))
    }

    /// Mounts a place on the agent's directory, if that is what the container has at its path.
    fn mount_place(&self, table: &MountTable, host_dir: &Path) -> Result<Option<PathBuf>, MountError> {
        let error = |call| move |errno| MountError::of(call, host_dir, errno);
        let Ok(hosts) = open_dir(host_dir) else { return Ok(None) };
        let hosts = id_of(&hosts, host_dir)?;
        let Ok(target) = self.open(host_dir) else { return Ok(None) };
        let there = id_of(&target, host_dir)?;
        let on_ours = table.by_id(there.mount).is_some_and(is_ours);
        if !on_ours && (there.device, there.inode) != (hosts.device, hosts.inode) {
            return Ok(None);
        }
        let Some(below) = table.by_id(there.mount) else { return Ok(None) };
        refuse_shared_below(self, below, host_dir)?;
        let tree = detached_place().map_err(error("fsmount"))?;
        self.enter(|unmounter| {
            move_mount(&tree, &target, MoveMountFlags::empty()).map_err(error("move_mount"))?;
            unmounter.make_private(tree.as_fd()).map_err(|errno| {
                let _ = unmounter.unmount(tree.as_fd());
                error("mount")(errno)
            })
        })?;
        Ok(Some(host_dir.join(PRESSURE_FILE_NAME)))
    }
}

/// Makes the file where it is not there, and says where programs find it; `None`: this container has no place for it. `table` is what is
/// mounted there, and `host_dir` the agent's directory on the host. A process that asks for itself gets a file of its own, not that of the
/// container it is in.
///
/// # Errors
/// [`MountError`], also where another file has its name.
pub(super) fn offer_at(
    place: &NamespaceRoot,
    table: &MountTable,
    host_dir: &Path,
) -> Result<Option<PathBuf>, MountError> {
    match place.find_place(table) {
        Some(mount) if !(place.is_this_process() && is_ours(mount)) => {
            let path = mount.mount_point.join(PRESSURE_FILE_NAME);
            let dir = open_target(place, &mount.mount_point, mount.id)?;
            make(&dir).map_err(|e| MountError::of("mknod", &path, e))?;
            Ok(Some(path))
        }
        _ => place.mount_place(table, host_dir),
    }
}

/// The mount in which a container's file is, or may be: its own `/dev`, or what was mounted for it. A user with a mount namespace can
/// bind-mount any directory of the host, `/run` say, on `/dev`, without permission to write there.
fn find_place<'a>(table: &'a MountTable, is_hosts: &dyn Fn(DeviceNumber) -> bool) -> Option<&'a MountEntry> {
    let top = |path: &Path| table.stack(path).first().copied();
    let is_own = |mount: &&MountEntry| {
        mount.fstype == "tmpfs" && mount.root == Path::new("/") && !is_hosts(mount.device)
    };
    let ours = || table.iter().find(|mount| is_ours(mount)).and_then(|mount| top(&mount.mount_point));
    top(Path::new(DEV)).filter(is_own).or_else(|| ours().filter(|mount| is_ours(mount)))
}

/// The file systems that are the host's `/dev`: the agent may itself be in a container, next to the host's process 1.
fn host_dev() -> Vec<DeviceNumber> {
    let dirs = [Path::new(DEV).to_owned(), Path::new("/proc/1/root").join(DEV.trim_start_matches('/'))];
    dirs.iter()
        .filter_map(|dir| Some(file_id(open_dir(dir).ok()?.as_fd(), Path::new("")).ok()?.device))
        .collect()
}

fn is_ours(mount: &MountEntry) -> bool {
    mount.fstype == RAMFS && mount.source == Path::new(SOURCE)
}

/// A file system with the file in it, mounted nowhere yet (Linux 5.2).
fn detached_place() -> Result<OwnedFd, Errno> {
    let fs = rustix::mount::fsopen(RAMFS, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [("source", SOURCE), ("mode", "0755")] {
        rustix::mount::fsconfig_set_string(fs.as_fd(), key, value)?;
    }
    rustix::mount::fsconfig_create(fs.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let tree = rustix::mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    make(&tree)?;
    Ok(tree)
}

/// Makes the file in `dir`, where it is not there. [`Errno::EXIST`]: something else has its name.
fn make(dir: &OwnedFd) -> Result<(), Errno> {
    match open_fifo(dir) {
        Err(Errno::NOENT) => {}
        there => return there.map(drop),
    }
    // A reader may write to it too: then it never sees the end, and what it writes asks only its own container.
    let mode = Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(dir, PRESSURE_FILE_NAME, FileType::Fifo, mode, 0)?;
    // Whatever the umask; and exactly this file, whatever its name has become.
    rustix::fs::chmod(path_to(&open_fifo(dir)?), mode)
}

/// The file in `dir`, neither opened (`O_PATH`) nor followed. [`Errno::EXIST`]: it is no FIFO of that file system.
fn open_fifo(dir: &OwnedFd) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_XDEV
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = match rustix::fs::openat2(dir, PRESSURE_FILE_NAME, flags, Mode::empty(), resolve) {
        Err(Errno::LOOP | Errno::XDEV) => return Err(Errno::EXIST),
        opened => opened?,
    };
    let is_fifo = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) == FileType::Fifo;
    is_fifo.then_some(file).ok_or(Errno::EXIST)
}

/// A path to what a descriptor of this thread holds.
fn path_to(file: &OwnedFd) -> String {
    format!("/proc/thread-self/fd/{}", file.as_raw_fd())
}

/// The writing end of a container's file. This process must ignore `SIGPIPE`, as Rust's do.
#[derive(Debug)]
pub struct PressureFifo(OwnedFd);

impl PressureFifo {
    /// Opens a FIFO, whether any program reads it or not.
    fn open(fifo: &OwnedFd) -> Result<Self, Errno> {
        let open = |access| {
            let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC;
            rustix::fs::open(path_to(fifo), flags, Mode::empty())
        };
        // For one that only writes there must be one that reads (fifo(7)).
        let _reader = open(OFlags::RDWR)?;
        Ok(Self(open(OFlags::WRONLY)?))
    }

    /// Asks its readers; whether there is one. A reader that has not read the last request is not asked more by another.
    ///
    /// # Errors
    /// What the kernel says: no memory.
    pub fn notify(&self) -> Result<bool, Errno> {
        match rustix::io::write(&self.0, b"\n") {
            Ok(_) | Err(Errno::AGAIN) => Ok(true),
            Err(Errno::PIPE) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn place() -> (tempfile::TempDir, OwnedFd) {
        let dir = tempfile::tempdir().unwrap();
        let fd = open_dir(dir.path()).unwrap();
        make(&fd).unwrap();
        (dir, fd)
    }

    fn writer(dir: &OwnedFd) -> PressureFifo {
        PressureFifo::open(&open_fifo(dir).unwrap()).unwrap()
    }

    fn read_end(dir: &OwnedFd) -> OwnedFd {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::openat(dir, PRESSURE_FILE_NAME, flags, Mode::empty()).unwrap()
    }

    /// What a reader is told at once.
    fn told(reader: &OwnedFd) -> PollFlags {
        let mut fds = [PollFd::new(reader, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        fds[0].revents()
    }

    fn drain(reader: &OwnedFd) -> usize {
        let mut bytes = [0; 1 << 17];
        rustix::io::read(reader, &mut bytes).unwrap_or(0)
    }

    #[test]
    fn a_reader_is_asked_and_sees_no_end_while_there_is_a_writer() {
        let (_dir, place) = place();
        make(&place).unwrap();
        let before = read_end(&place);
        let first = writer(&place);
        let reader = read_end(&place);
        assert_eq!((told(&before), told(&reader)), (PollFlags::empty(), PollFlags::empty()));
        assert_eq!(first.notify(), Ok(true));
        assert_eq!((told(&before), told(&reader)), (PollFlags::IN, PollFlags::IN));
        assert_eq!(drain(&reader), 1);
        assert_eq!(told(&reader), PollFlags::empty());
        // Another writer of the same file, as that of the next process, keeps it open.
        let next = writer(&place);
        drop(first);
        assert_eq!(told(&reader), PollFlags::empty());
        drop(next);
        assert_eq!(told(&reader), PollFlags::HUP);
    }

    #[test]
    fn no_reader_is_no_error_and_nothing_is_left_for_the_next() {
        let (_dir, place) = place();
        let fifo = writer(&place);
        assert_eq!(fifo.notify(), Ok(false));
        drop(read_end(&place));
        assert_eq!(fifo.notify(), Ok(false));
        assert_eq!(told(&read_end(&place)), PollFlags::empty());
    }

    #[test]
    fn a_program_that_does_not_read_keeps_no_other_waiting() {
        let (_dir, place) = place();
        let fifo = writer(&place);
        let reader = read_end(&place);
        for _ in 0..100_000 {
            assert_eq!(fifo.notify(), Ok(true));
        }
        assert!(drain(&reader) <= 1 << 16);
    }

    #[test]
    fn what_a_container_planted_there_is_neither_opened_nor_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (place, name) = (open_dir(dir.path()).unwrap(), dir.path().join(PRESSURE_FILE_NAME));
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "").unwrap();
        rustix::fs::chmod(&secret, Mode::from_raw_mode(0o600)).unwrap();
        std::fs::write(&name, "").unwrap();
        assert_eq!(make(&place), Err(Errno::EXIST));
        std::fs::remove_file(&name).unwrap();
        std::os::unix::fs::symlink(&secret, &name).unwrap();
        assert_eq!(make(&place), Err(Errno::EXIST));
        assert_eq!(rustix::fs::stat(&secret).unwrap().st_mode & 0o777, 0o600);
    }

    #[test]
    fn a_dev_of_its_own_is_a_place_and_the_hosts_is_none() {
        let hosts = host_dev()[0];
        let find = |line: &str| {
            let table = MountTable::parse(line.as_bytes(), Path::new("mountinfo")).unwrap();
            let is_hosts = |device| device == hosts || device == DeviceNumber::new(0, 9996);
            find_place(&table, &is_hosts).map(|mount| mount.mount_point.clone())
        };
        let host = format!("102 100 {}:{} / /dev rw - tmpfs dev rw\n", hosts.major, hosts.minor);
        let (dev, run) = (Some(PathBuf::from("/dev")), Some(PathBuf::from("/run/x")));
        assert_eq!(find("102 100 0:9999 / /dev rw,nosuid - tmpfs tmpfs rw\n"), dev);
        assert_eq!(find("102 100 0:9999 /sub /dev rw - tmpfs tmpfs rw\n"), None);
        assert_eq!(find("102 100 0:9999 / /dev rw - devtmpfs udev rw\n"), None);
        assert_eq!(find(&host), None);
        assert_eq!(find("102 100 0:9996 / /dev rw - tmpfs run rw\n"), None);
        let ours = "103 100 0:9998 / /run/x rw - ramfs elbowroom rw\n";
        assert_eq!(find(&format!("{host}{ours}")), run);
        assert_eq!(find(&format!("{host}{ours}104 103 0:9997 / /run/x rw - tmpfs other rw\n")), None);
        assert_eq!(find("103 100 0:9998 / /run/x rw - ramfs other rw\n"), None);
    }
}
