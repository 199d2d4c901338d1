//! Notifications of cgroups that come and go, and of settings that are written.
//!
//! One fanotify mark per hierarchy where the kernel takes it: cgroupfs has had the file system id that
//! `FAN_REPORT_DFID_NAME` needs since Linux 6.6. Elsewhere an inotify watch on every directory, added before the directory
//! is listed and its settings are read so that nothing falls between. Both report `write(2)` to a setting within tens of microseconds;
//! neither promises completeness (queues overflow, watches run out), so the sensor also rescans. Where root's other programs have used up
//! `fs.inotify.max_user_instances` (128 by default, of which container shims take several each), rescans are all there is.
//!
//! Notices name a directory by hierarchy and inode. On cgroupfs a file handle is the inode number, which spares a lookup
//! of a directory that may be gone already.

use crate::cgroup::MountedHierarchy;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::inotify;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Type of a kernfs file handle: eight bytes, the inode number (include/linux/exportfs.h).
const FILEID_KERNFS: i32 = 0xfe;
const CGROUP_MAGICS: [i64; 2] = [0x0027_e0eb, 0x6367_7270];

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CgroupEvent {
    /// A cgroup came or went in this directory.
    Tree {
        /// Index of the hierarchy.
        hierarchy: usize,
        /// Inode of the directory.
        dir: u64,
    },
    /// A file in this directory was written.
    File {
        /// Index of the hierarchy.
        hierarchy: usize,
        /// Inode of the directory.
        dir: u64,
        /// Name of the file.
        name: OsString,
    },
    /// Notices were lost.
    Overflow,
}

/// How notices arrive.
#[derive(Debug)]
pub(crate) enum CgroupWatcher {
    /// One mark per hierarchy; file system ids to hierarchies.
    Fanotify { fd: OwnedFd, hierarchies: Vec<(u64, usize)> },
    /// Watch descriptors to directories.
    Inotify { fd: OwnedFd, dirs: HashMap<i32, (usize, u64)>, full: bool },
    /// Not at all: the kernel gives out no more of either. An eventfd that is never signalled stands for it.
    Nothing { fd: OwnedFd },
}

impl CgroupWatcher {
    /// Watches the hierarchies with these indices. An error is that of inotify, mostly that this user has all the instances it may have.
    pub(crate) fn open(
        hierarchies: &[MountedHierarchy],
        indices: &[usize],
        fanotify: bool,
    ) -> Result<Self, Errno> {
        let refused = match fanotify.then(|| Self::fanotify(hierarchies, indices)) {
            Some(Ok(watch)) => return Ok(watch),
            Some(Err(error)) => Some(error),
            None => None,
        };
        let fd = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        if let Some(error) = refused {
            tracing::info!(%error, because = "no fanotify on cgroupfs", instead = "inotify");
        }
        Ok(Self::Inotify { fd, dirs: HashMap::new(), full: false })
    }

    /// Tells of nothing.
    pub(crate) fn nothing() -> Result<Self, Errno> {
        Ok(Self::Nothing { fd: eventfd(0, EventfdFlags::CLOEXEC)? })
    }

    /// Whether it tells of anything.
    pub(crate) fn is_watching(&self) -> bool {
        !matches!(self, Self::Nothing { .. })
    }

    /// Which mechanism it is.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Fanotify { .. } => "fanotify",
            Self::Inotify { .. } => "inotify",
            Self::Nothing { .. } => "none",
        }
    }

    fn fanotify(hierarchies: &[MountedHierarchy], indices: &[usize]) -> Result<Self, Errno> {
        // Marking the file system of a fixture would report the whole of /tmp.
        for index in indices {
            let magic = rustix::fs::fstatfs(&hierarchies[*index])?.f_type as i64;
            if !CGROUP_MAGICS.contains(&magic) {
                return Err(Errno::NOTSUP);
            }
        }
        let flags =
            libc::FAN_CLASS_NOTIF | libc::FAN_REPORT_DFID_NAME | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
        // SAFETY: takes two integers and returns a new descriptor or -1; touches no memory of this process.
        let raw = unsafe { libc::fanotify_init(flags, libc::O_RDONLY as u32) };
        if raw < 0 {
            return Err(last_errno());
        }
        // SAFETY: `raw` is a descriptor that fanotify_init just made and nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let mask = libc::FAN_CREATE | libc::FAN_DELETE | libc::FAN_MODIFY | libc::FAN_ONDIR;
        let mut ids = Vec::new();
        for index in indices {
            let hierarchy = &hierarchies[*index];
            // SAFETY: both descriptors are open for the length of the call, the path is a NUL-terminated literal, and the
            // kernel only reads it.
            let marked = unsafe {
                libc::fanotify_mark(
                    fd.as_raw_fd(),
                    libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM,
                    mask,
                    hierarchy.as_fd().as_raw_fd(),
                    c".".as_ptr(),
                )
            };
            if marked < 0 {
                return Err(last_errno());
            }
            ids.push((rustix::fs::fstatvfs(hierarchy)?.f_fsid, *index));
        }
        Ok(Self::Fanotify { fd, hierarchies: ids })
    }

    /// Makes sure that a directory is watched. Call before listing it, and before reading what is set in it.
    pub(crate) fn add(&mut self, hierarchy: &MountedHierarchy, index: usize, group: &Path, inode: u64) {
        let Self::Inotify { fd, dirs, full } = self else { return };
        use inotify::WatchFlags as F;
        // v2 announces the first and the last process of a cgroup as a change of cgroup.events.
        let flags = F::CREATE | F::DELETE | F::MODIFY | F::ONLYDIR;
        let link = format!("/proc/self/fd/{}", hierarchy.as_fd().as_raw_fd());
        match inotify::add_watch(&*fd, Path::new(&link).join(group), flags) {
            Ok(watch) => {
                dirs.insert(watch, (index, inode));
            }
            Err(Errno::NOENT) => {}
            Err(error) if !*full => {
                *full = true;
                tracing::warn!(
                    %error, watched = dirs.len(),
                    because = "a directory cannot be watched: changes in it are seen by rescans only; raise fs.inotify.max_user_watches"
                );
            }
            Err(_) => {}
        }
    }

    /// Gives up watches of directories that are not there any more. The kernel does so by itself when an inode goes, but a watch keeps
    /// that of a cgroup (fs/kernfs/dir.c never unlinks it), and with it one of `fs.inotify.max_user_watches`.
    pub(crate) fn retain(&mut self, is_there: impl Fn(usize, u64) -> bool) {
        let Self::Inotify { fd, dirs, .. } = self else { return };
        dirs.retain(|watch, (hierarchy, dir)| {
            let keep = is_there(*hierarchy, *dir);
            if !keep {
                // It may have gone this very moment.
                let _ = inotify::remove_watch(&*fd, *watch);
            }
            keep
        });
    }

    /// Takes what has arrived, without waiting.
    pub(crate) fn drain(&mut self, notices: &mut Vec<CgroupEvent>) {
        match self {
            Self::Fanotify { fd, hierarchies } => {
                let mut buffer = [0u8; 16384];
                loop {
                    match rustix::io::read(&*fd, &mut buffer) {
                        Ok(n) if n > 0 => parse_fanotify(&buffer[..n], hierarchies, notices),
                        Err(Errno::INTR) => {}
                        _ => return,
                    }
                }
            }
            Self::Inotify { fd, dirs, .. } => {
                let mut buffer = [MaybeUninit::uninit(); 16384];
                let mut reader = inotify::Reader::new(&*fd, &mut buffer);
                loop {
                    match reader.next() {
                        Ok(event) => parse_inotify(&event, dirs, notices),
                        Err(Errno::INTR) => {}
                        Err(_) => return,
                    }
                }
            }
            Self::Nothing { .. } => {}
        }
    }
}

impl AsFd for CgroupWatcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Fanotify { fd, .. } | Self::Inotify { fd, .. } | Self::Nothing { fd } => fd.as_fd(),
        }
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn parse_inotify(
    event: &inotify::Event<'_>,
    dirs: &mut HashMap<i32, (usize, u64)>,
    notices: &mut Vec<CgroupEvent>,
) {
    use inotify::ReadFlags as R;
    let flags = event.events();
    if flags.contains(R::QUEUE_OVERFLOW) {
        notices.push(CgroupEvent::Overflow);
        return;
    }
    if flags.contains(R::IGNORED) {
        dirs.remove(&event.wd());
        return;
    }
    let Some(&(hierarchy, dir)) = dirs.get(&event.wd()) else { return };
    if flags.intersects(R::CREATE | R::DELETE) {
        if flags.contains(R::ISDIR) {
            notices.push(CgroupEvent::Tree { hierarchy, dir });
        }
    } else if let Some(name) = event.file_name() {
        let name = std::ffi::OsStr::from_bytes(name.to_bytes()).to_owned();
        notices.push(CgroupEvent::File { hierarchy, dir, name });
    }
}

/// `struct fanotify_event_metadata` with its information records (fanotify(7)). What does not parse is as good as lost.
/// `hierarchies` are file system ids and whose they are; events of others are none of ours.
pub fn parse_fanotify(mut bytes: &[u8], hierarchies: &[(u64, usize)], notices: &mut Vec<CgroupEvent>) {
    const METADATA: usize = 24;
    while bytes.len() >= METADATA {
        let (Some(len), Some(header), Some(mask)) = (u32_at(bytes, 0), u16_at(bytes, 6), u64_at(bytes, 8))
        else {
            return;
        };
        let len = len as usize;
        if len < METADATA || len > bytes.len() {
            notices.push(CgroupEvent::Overflow);
            return;
        }
        let (event, rest) = bytes.split_at(len);
        bytes = rest;
        if mask & libc::FAN_Q_OVERFLOW != 0 {
            notices.push(CgroupEvent::Overflow);
            continue;
        }
        let record = event.get(usize::from(header)..).unwrap_or_default();
        let Some((fsid, dir, name)) = dir_and_name(record) else {
            notices.push(CgroupEvent::Overflow);
            continue;
        };
        let Some((_, hierarchy)) = hierarchies.iter().find(|(id, _)| *id == fsid) else { continue };
        let hierarchy = *hierarchy;
        if mask & libc::FAN_ONDIR != 0 {
            if mask & (libc::FAN_CREATE | libc::FAN_DELETE) != 0 {
                notices.push(CgroupEvent::Tree { hierarchy, dir });
            }
        } else if mask & libc::FAN_MODIFY != 0 {
            let name = OsString::from_vec(name.to_vec());
            notices.push(CgroupEvent::File { hierarchy, dir, name });
        }
    }
}

/// A `FAN_EVENT_INFO_TYPE_DFID_NAME` record: file system id, inode of the directory, name in it.
fn dir_and_name(record: &[u8]) -> Option<(u64, u64, &[u8])> {
    let kind = *record.first()?;
    let record = record.get(..usize::from(u16_at(record, 2)?))?;
    if kind != libc::FAN_EVENT_INFO_TYPE_DFID_NAME {
        return None;
    }
    let fsid = u64_at(record, 4)?;
    let (handle_bytes, handle_type) = (u32_at(record, 12)?, u32_at(record, 16)? as i32);
    if handle_bytes != 8 || handle_type != FILEID_KERNFS {
        return None;
    }
    let name = record.get(28..)?;
    let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    Some((fsid, u64_at(record, 20)?, &name[..end]))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(mask: u64, fsid: u64, inode: u64, name: &str) -> Vec<u8> {
        let mut record = vec![libc::FAN_EVENT_INFO_TYPE_DFID_NAME, 0, 0, 0];
        record.extend(fsid.to_ne_bytes());
        record.extend(8u32.to_ne_bytes());
        record.extend(FILEID_KERNFS.to_ne_bytes());
        record.extend(inode.to_ne_bytes());
        record.extend(name.as_bytes());
        record.push(0);
        while record.len() % 4 != 0 {
            record.push(0);
        }
        let len = record.len() as u16;
        record[2..4].copy_from_slice(&len.to_ne_bytes());
        let mut event = (24 + u32::from(len)).to_ne_bytes().to_vec();
        event.extend([3, 0]);
        event.extend(24u16.to_ne_bytes());
        event.extend(mask.to_ne_bytes());
        event.extend([0; 8]);
        event.extend(record);
        event
    }

    #[test]
    fn fanotify_events_become_notices() {
        let mut bytes = event(libc::FAN_CREATE | libc::FAN_ONDIR, 7, 11, "web");
        bytes.extend(event(libc::FAN_MODIFY, 8, 12, "memory.max"));
        bytes.extend(event(libc::FAN_MODIFY, 99, 12, "of another file system"));
        let mut notices = Vec::new();
        parse_fanotify(&bytes, &[(7, 0), (8, 1)], &mut notices);
        assert_eq!(
            notices,
            [
                CgroupEvent::Tree { hierarchy: 0, dir: 11 },
                CgroupEvent::File { hierarchy: 1, dir: 12, name: "memory.max".into() }
            ]
        );
    }

    #[test]
    fn an_overflow_or_a_truncated_event_asks_for_a_rescan() {
        let mut notices = Vec::new();
        parse_fanotify(&event(libc::FAN_Q_OVERFLOW, 0, 0, ""), &[], &mut notices);
        let mut cut = event(libc::FAN_MODIFY, 7, 11, "x");
        cut.truncate(30);
        parse_fanotify(&cut, &[(7, 0)], &mut notices);
        assert_eq!(notices, [CgroupEvent::Overflow, CgroupEvent::Overflow]);
    }

    proptest! {
        #[test]
        fn no_bytes_panic_the_fanotify_parser(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            parse_fanotify(&bytes, &[(0, 0)], &mut Vec::new());
        }
    }
}
