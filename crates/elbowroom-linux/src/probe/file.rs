//! A file inside a container, which the container may make anything of.

use crate::bounded;
use crate::root::open_inside;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// A file's content and when it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileContent {
    /// At most as many bytes as were asked for.
    pub bytes: Vec<u8>,
    /// Its last change: content with another one is new.
    pub stamp: ContentStamp,
}

/// What tells one writing of a file from the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentStamp {
    inode: u64,
    size: i64,
    seconds: i64,
    nanos: i64,
}

impl ContentStamp {
    /// How long ago that was; nothing for one in the future.
    pub fn age(&self, now: SystemTime) -> Duration {
        let at =
            Duration::new(u64::try_from(self.seconds).unwrap_or(0), u32::try_from(self.nanos).unwrap_or(0));
        now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().saturating_sub(at)
    }
}

/// Reads at most `most` bytes of `path`, as process `pid` sees it. Only a plain file is read, no link leads out of the
/// process's root directory, and a pipe or a device is never opened.
///
/// # Errors
/// As openat2(2) and read(2); `InvalidInput` for what is no plain file.
pub fn read_in(pid: u32, path: &Path, most: usize) -> io::Result<FileContent> {
    let file = open_in(Path::new(&format!("/proc/{pid}/root")), path)?;
    let stat = rustix::fs::fstat(&file)?;
    let stamp = ContentStamp {
        inode: stat.st_ino,
        size: stat.st_size,
        seconds: stat.st_mtime as i64,
        nanos: stat.st_mtime_nsec as i64,
    };
    Ok(FileContent { bytes: bounded::beginning(file, most as u64)?, stamp })
}

/// Opens the plain file `path` below `root` for reading: no link leads out of `root`, and a pipe or a device is never opened.
///
/// # Errors
/// As openat2(2); `InvalidInput` for what is no plain file.
pub fn open_in(root: &Path, path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open_plain(rustix::fs::open(root, flags, Mode::empty())?, path, ResolveFlags::NO_MAGICLINKS)
}

/// The same below an open directory, where what else `resolve` forbids is refused.
///
/// # Errors
/// Those of [`open_in`].
pub fn open_plain(root: impl AsFd, path: &Path, resolve: ResolveFlags) -> io::Result<File> {
    let below = path.strip_prefix("/").unwrap_or(path);
    let found = open_inside(root, below, OFlags::PATH, resolve)?;
    refuse_special(&found)?;
    // That file, whatever has its name by now: to open a device can mean something.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let path = format!("/proc/thread-self/fd/{}", found.as_raw_fd());
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

fn refuse_special(file: &OwnedFd) -> io::Result<()> {
    match FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode) {
        FileType::RegularFile => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_is_read_and_its_next_writing_is_told_from_this_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("probe");
        fs::write(&path, "served=1").unwrap();
        let read = || read_in(std::process::id(), &path, 4).unwrap();
        let first = read();
        assert_eq!((first.bytes.as_slice(), first.clone()), (&b"serv"[..], read()));
        assert!(first.stamp.age(SystemTime::now()) < Duration::from_secs(60));
        fs::write(&path, "served=12").unwrap();
        assert_ne!(first.stamp, read().stamp);
    }

    #[test]
    fn what_is_no_plain_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RWXU).unwrap();
        for path in [fifo.as_path(), dir.path(), Path::new("/dev/null")] {
            let error = read_in(std::process::id(), path, 10).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{}", path.display());
        }
        assert!(read_in(std::process::id(), &dir.path().join("none"), 10).is_err());
    }

    #[test]
    fn what_takes_a_files_place_while_it_is_opened_is_not_opened() {
        use rustix::fs::{CWD, RenameFlags, inotify};
        let dir = tempfile::tempdir().unwrap();
        let [file, fifo] = ["file", "fifo"].map(|name| dir.path().join(name));
        fs::write(&file, "").unwrap();
        rustix::fs::mkfifoat(CWD, &fifo, Mode::RWXU).unwrap();
        let opened = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&opened, &fifo, inotify::WatchFlags::OPEN).unwrap();
        let events = || rustix::io::read(&opened, &mut [0u8; 4096]);
        drop(rustix::fs::open(&fifo, OFlags::PATH, Mode::empty()).unwrap());
        if events() != Err(rustix::io::Errno::AGAIN) {
            return eprintln!("skipped: to look at a file is to open it for this kernel (before Linux 6.10)");
        }
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    rustix::fs::renameat_with(CWD, &file, CWD, &fifo, RenameFlags::EXCHANGE).unwrap();
                }
            });
            let found = (0..20_000).filter(|_| open_in(dir.path(), Path::new("file")).is_ok()).count();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(found > 0);
        });
        assert_eq!(events(), Err(rustix::io::Errno::AGAIN), "the pipe was opened");
    }
}
