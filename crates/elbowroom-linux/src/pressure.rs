//! The file that a container's programs watch to be asked for memory (<https://systemd.io/MEMORY_PRESSURE>): a FIFO, beside the
//! view page of the same container and on the same tmpfs of ours.
//!
//! # Why a writer is held
//! A FIFO whose last writer closes it says `POLLHUP` to all who only read it, for ever: sd-event(3) gives such a file up, and a simple
//! loop around poll(2) never sleeps again. So a [`PressureFifo`] is a writer that stays. A reader that may write too is one himself, and outlives
//! the agent (`elbowroom_types::launch`).
//!
//! # Who waits
//! Nothing here waits for a reader. But whoever opens, writes or closes a FIFO takes its lock (`fs/pipe.c`), which a reader holds
//! while the kernel copies what he reads to his memory, and that may be memory that never comes (userfaultfd(2), a file system of his
//! own). Only a thread that may wait for good may have a [`PressureFifo`].

use crate::new_file;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The file's name beside the page `view`. No view's name begins with a dot.
pub fn file_name(view: &OsStr) -> OsString {
    let mut name = OsString::from(".");
    name.push(view);
    name
}

/// Makes the file of `view` in `dir`, where it is not there.
///
/// # Errors
/// What the kernel says: no room, no permission; [`Errno::EXIST`] where something else has its name.
pub fn make(dir: &Path, view: &str) -> Result<(), Errno> {
    let path = dir.join(file_name(view.as_ref()));
    // Whoever reads it may write to it too: then he never sees the end of it, and what he writes only he is asked by.
    let mode = Mode::from_raw_mode(0o666);
    let make = || Ok(rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0)?);
    let made = new_file::create_with_mode(mode, None, make);
    match made.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => {
            let there = rustix::fs::lstat(&path)?;
            let is_fifo = FileType::from_raw_mode(there.st_mode) == FileType::Fifo;
            is_fifo.then_some(()).ok_or(Errno::EXIST)
        }
        Err(errno) => Err(errno),
    }
}

/// Takes the file of `view` away. Who has it open keeps it.
pub fn remove(dir: &Path, view: &str) {
    // One that is not there is what is wanted.
    let _ = rustix::fs::unlink(dir.join(file_name(view.as_ref())));
}

/// The writing end of a container's file. This process must ignore `SIGPIPE`, as Rust's do.
#[derive(Debug)]
pub struct PressureFifo(OwnedFd);

impl PressureFifo {
    /// Opens the file of `view` in `dir`, whether somebody reads it or not.
    ///
    /// # Errors
    /// What the kernel says: it is not there, or no descriptor is left.
    pub fn open(dir: &Path, view: &str) -> Result<Self, Errno> {
        let path = dir.join(file_name(view.as_ref()));
        let open = |access| {
            let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            rustix::fs::open(&path, flags, Mode::empty())
        };
        // For one that only writes there must be one that reads (fifo(7)).
        let _reader = open(OFlags::RDWR)?;
        Ok(Self(open(OFlags::WRONLY)?))
    }

    /// Asks who reads it; whether anybody does. One who has not read what he was asked by before is not asked more by more.
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

    const VIEW: &str = "0123abcd";

    fn read_end(dir: &Path) -> OwnedFd {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::open(dir.join(file_name(VIEW.as_ref())), flags, Mode::empty()).unwrap()
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
    fn who_reads_is_asked_and_sees_no_end_while_there_is_a_bell() {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path(), VIEW).unwrap();
        make(dir.path(), VIEW).unwrap();
        let before = read_end(dir.path());
        let bell = PressureFifo::open(dir.path(), VIEW).unwrap();
        let reader = read_end(dir.path());
        assert_eq!((told(&before), told(&reader)), (PollFlags::empty(), PollFlags::empty()));
        assert_eq!(bell.notify(), Ok(true));
        assert_eq!((told(&before), told(&reader)), (PollFlags::IN, PollFlags::IN));
        assert_eq!(drain(&reader), 1);
        assert_eq!(told(&reader), PollFlags::empty());
        // Another bell at the same file, as that of the next process, keeps it open.
        let next = PressureFifo::open(dir.path(), VIEW).unwrap();
        drop(bell);
        assert_eq!(told(&reader), PollFlags::empty());
        drop(next);
        assert_eq!(told(&reader), PollFlags::HUP);
    }

    #[test]
    fn nobody_who_reads_is_no_error_and_nothing_is_left_for_the_next() {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path(), VIEW).unwrap();
        let bell = PressureFifo::open(dir.path(), VIEW).unwrap();
        assert_eq!(bell.notify(), Ok(false));
        drop(read_end(dir.path()));
        assert_eq!(bell.notify(), Ok(false));
        assert_eq!(told(&read_end(dir.path())), PollFlags::empty());
        remove(dir.path(), VIEW);
        assert_eq!(bell.notify(), Ok(false));
        assert_eq!(PressureFifo::open(dir.path(), VIEW).err(), Some(Errno::NOENT));
    }

    #[test]
    fn who_does_not_read_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path(), VIEW).unwrap();
        let bell = PressureFifo::open(dir.path(), VIEW).unwrap();
        let reader = read_end(dir.path());
        for _ in 0..100_000 {
            assert_eq!(bell.notify(), Ok(true));
        }
        assert!(drain(&reader) <= 1 << 16);
    }

    #[test]
    fn what_is_no_fifo_is_nobodys_bell() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(file_name(VIEW.as_ref())), "").unwrap();
        assert_eq!(make(dir.path(), VIEW), Err(Errno::EXIST));
    }
}
