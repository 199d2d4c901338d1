//! A write that may block, with an end.
//!
//! The kernel reclaims for as long as it makes progress while somebody waits in a write to a memory file; only a signal ends
//! it. So a child process waits, and is killed when the time is over. It shares our table of open files: the kernel keeps a
//! record lock until the last process that shares the table is gone, so whoever asks whether the holder of leases lives
//! ([`crate::lease`]) hears yes until no write of ours can take effect any more. It dies with the thread that made it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The kernel took it.
    All,
    /// The kernel refused.
    Refused(Errno),
    /// It was given up when its time was over; the kernel may have done a part of it.
    Late,
}

/// Exit status of a child that wrote all; others are the errno.
const ALL: i32 = 0;

/// How often a write that blocks is looked after.
const LOOK: Duration = Duration::from_millis(2);

/// Writes `bytes` to `file`, for at most `patience`.
pub(super) fn write(file: &OwnedFd, bytes: &[u8], patience: Duration) -> Written {
    write_unless(file, bytes, patience, || false)
}

/// As [`write`], and only for as long as it is not `moot`.
pub(super) fn write_unless(
    file: &OwnedFd,
    bytes: &[u8],
    patience: Duration,
    moot: impl FnMut() -> bool,
) -> Written {
    let deadline = Instant::now() + patience;
    let (fd, from, length) = (file.as_raw_fd(), bytes.as_ptr(), bytes.len());
    // SAFETY: as fork(2): no CLONE_VM, so the child has memory of its own, a copy in which only this thread runs. It makes
    // raw system calls only, takes no lock and allocates nothing, and never returns from here. `parent_gone` is read before.
    let pid = unsafe {
        let flags = libc::CLONE_FILES | libc::SIGCHLD;
        let parent = libc::getpid();
        let pid = libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0);
        if pid == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // The parent may have died before that.
            if libc::getppid() != parent {
                libc::_exit(libc::ESRCH);
            }
            let written = libc::write(fd, from.cast(), length);
            libc::_exit(if written == length as isize { ALL } else { *libc::__errno_location() });
        }
        pid
    };
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Written::Refused(
            Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::AGAIN),
        );
    };
    if !ends(pid, deadline, moot) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    let mut status = 0;
    // SAFETY: waitpid writes the status to a place that outlives the call; the child is ours and nobody else waits for it.
    while unsafe { libc::waitpid(pid.as_raw_nonzero().get(), &raw mut status, 0) } < 0 {
        if Errno::from_io_error(&std::io::Error::last_os_error()) != Some(Errno::INTR) {
            return Written::Late;
        }
    }
    match libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)) {
        Some(ALL) => Written::All,
        Some(errno) => Written::Refused(Errno::from_raw_os_error(errno)),
        None => Written::Late,
    }
}

/// Whether a child ends in time.
fn ends(pid: Pid, deadline: Instant, mut moot: impl FnMut() -> bool) -> bool {
    let Ok(end) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let look = left.min(LOOK);
        let timeout = Timespec { tv_sec: look.as_secs() as i64, tv_nsec: i64::from(look.subsec_nanos()) };
        match poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&timeout)) {
            Ok(ended) if ended > 0 => return true,
            Ok(_) | Err(_) if left.is_zero() || moot() => return false,
            Ok(_) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn what_the_kernel_takes_is_written_and_what_it_refuses_is_told() {
        let (reader, writer) = std::io::pipe().unwrap();
        assert_eq!(write(&writer.try_clone().unwrap().into(), b"hello", PATIENCE), Written::All);
        drop(writer);
        let mut text = String::new();
        (&reader).read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        let full: OwnedFd = std::fs::File::options().write(true).open("/dev/full").unwrap().into();
        assert_eq!(write(&full, b"x", PATIENCE), Written::Refused(Errno::NOSPC));
    }

    #[test]
    fn a_write_that_blocks_is_given_up() {
        let (_reader, writer) = std::io::pipe().unwrap();
        let begin = Instant::now();
        assert_eq!(write(&writer.into(), &[0; 1 << 20], Duration::from_millis(50)), Written::Late);
        assert!(begin.elapsed() < PATIENCE);
    }

    #[test]
    fn a_write_that_became_moot_is_given_up() {
        let (_reader, writer) = std::io::pipe().unwrap();
        let (begin, mut looks) = (Instant::now(), 0);
        let moot = || {
            looks += 1;
            looks == 3
        };
        assert_eq!(write_unless(&writer.into(), &[0; 1 << 20], PATIENCE, moot), Written::Late);
        assert!(begin.elapsed() < PATIENCE);
        assert_eq!(looks, 3);
    }
}
