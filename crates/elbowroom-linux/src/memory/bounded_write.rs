//! A write that may block, with an end.
//!
//! The kernel reclaims for as long as it makes progress while a process waits in a write to a memory file; only a signal
//! ends it. So a child process waits, and is killed when the time is over. It shares our table of open files, and the kernel
//! keeps a record lock until the last process that shares the table is gone. So a process that asks whether the holder of
//! leases lives ([`crate::lease`]) hears yes until no write of ours can take effect any more. The child dies with the thread
//! that made it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BoundedWrite {
    /// The kernel took it.
    Complete,
    /// The kernel refused.
    Refused(Errno),
    /// It was given up when its time was over; the kernel may have done a part of it.
    TimedOut,
}

/// Exit status of a child that did what it was for; others are the errno.
const CHILD_OK: i32 = 0;

/// How often a write that blocks is looked after.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How long [`reclaim_by_unreachable_limit`] lets the kernel reclaim before it looks whether it is enough, in microseconds. Large folios go
/// many times as fast as single pages.
const MIN_SLICE: libc::suseconds_t = 20;
/// The longest while little goes of what is left to go.
const USUAL_MAX_SLICE: libc::suseconds_t = 80;
/// The longest where shorter ones are over before anything went: the kernel asks every CPU first for what it holds back.
const MAX_SLICE: libc::suseconds_t = 10_000;

/// Writes `bytes` to `file`, for at most `patience`.
pub(super) fn write(file: &OwnedFd, bytes: &[u8], patience: Duration) -> BoundedWrite {
    let (fd, from, length) = (file.as_raw_fd(), bytes.as_ptr(), bytes.len());
    // SAFETY: the bytes outlive the child, which makes one raw system call.
    let child = || unsafe { exit_status(libc::write(fd, from.cast(), length), length) };
    in_child(child, patience, || false)
}

/// Writes a limit that cannot come about to v1 `memory.limit_in_bytes` until usage is down to `target`, for at most `patience` and only
/// while it is not `moot`. The kernel reclaims a few pages, tries the limit, and goes on for as long as usage is above it and no signal
/// came (mm/memcontrol-v1.c, `mem_cgroup_resize_max`): a timer of the child's stops it after every [`MIN_SLICE`]. Should a group become so
/// empty that the limit does come about, the child writes `back` at once. [`BoundedWrite::Complete`] says that usage is down.
pub(super) fn reclaim_by_unreachable_limit(
    file: &OwnedFd,
    limit: &[u8],
    back: &[u8],
    usage: &OwnedFd,
    target: u64,
    patience: Duration,
    moot: impl FnMut() -> bool,
) -> BoundedWrite {
    let (fd, usage, deadline) = (file.as_raw_fd(), usage.as_raw_fd(), Instant::now() + patience);
    // SAFETY: the bytes outlive the child.
    let put = |bytes: &[u8]| unsafe {
        exit_status(libc::write(fd, bytes.as_ptr().cast(), bytes.len()), bytes.len())
    };
    let used = || {
        let mut text = [0_u8; 24];
        // SAFETY: `text` is as long as is said.
        let read = unsafe { libc::pread(usage, text.as_mut_ptr().cast(), text.len(), 0) };
        (read > 0).then(|| leading_number(&text))
    };
    let child = || {
        // SAFETY: async-signal-safe functions, with structures of the child's own.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_alarm as extern "C" fn(libc::c_int) as usize;
            libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
            let mut alarm: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut alarm);
            libc::sigaddset(&raw mut alarm, libc::SIGALRM);
            libc::sigprocmask(libc::SIG_UNBLOCK, &raw const alarm, std::ptr::null_mut());
        }
        let (mut slice, mut before) = (MIN_SLICE, None);
        loop {
            let Some(now) = used() else { return libc::ENODEV };
            let left = now.saturating_sub(target);
            if left == 0 {
                return CHILD_OK;
            }
            // The process that looks after this child may have been stopped.
            if Instant::now() >= deadline {
                return libc::EINTR;
            }
            slice =
                before.map_or(MIN_SLICE, |before: u64| next_slice(slice, before.saturating_sub(now), left));
            before = Some(now);
            // Again and again: the first signal may come before the write has begun.
            if !set_alarm_interval(slice) {
                return libc::EINVAL;
            }
            match put(limit) {
                libc::EINTR => {}
                // As empty as can be.
                CHILD_OK => {
                    set_alarm_interval(0);
                    return put(back);
                }
                // The last that went may have been enough.
                libc::EBUSY if used().is_some_and(|now| now <= target) => return CHILD_OK,
                errno => return errno,
            }
        }
    };
    in_child(child, patience, moot)
}

extern "C" fn on_alarm(_: libc::c_int) {}

/// Sends this process `SIGALRM` every `micros` microseconds; 0 ends that.
fn set_alarm_interval(micros: libc::suseconds_t) -> bool {
    let every = libc::timeval { tv_sec: 0, tv_usec: micros };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: the structure outlives the call.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) == 0 }
}

/// The length of the next slice, in microseconds: the last one reclaimed `went` bytes, and `left` bytes remain.
fn next_slice(slice: libc::suseconds_t, went: u64, left: u64) -> libc::suseconds_t {
    match went {
        0 => (2 * slice).min(MAX_SLICE),
        _ if went > left / 2 => (slice / 2).max(MIN_SLICE),
        _ if went < left / 8 && slice < USUAL_MAX_SLICE => 2 * slice,
        _ => slice,
    }
}

/// The number at the beginning of what a cgroup file says.
fn leading_number(text: &[u8]) -> u64 {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |n: u64, digit| n.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
}

/// The exit status for what a write returned.
///
/// # Safety
/// Nothing was called since that could have changed `errno`.
unsafe fn exit_status(result: isize, length: usize) -> i32 {
    // SAFETY: the place is this thread's own.
    if result == length as isize { CHILD_OK } else { unsafe { *libc::__errno_location() } }
}

/// Does `work` in a child process, for at most `patience` and only while it is not `moot`; `work` returns its exit status. It runs in a
/// copy of this process that has one thread: no lock, no allocation.
fn in_child(work: impl FnOnce() -> i32, patience: Duration, moot: impl FnMut() -> bool) -> BoundedWrite {
    let deadline = Instant::now() + patience;
    // SAFETY: as fork(2): no CLONE_VM, so the child has memory of its own, a copy in which only this thread runs. It makes
    // raw system calls only, takes no lock and allocates nothing, and never returns from here. `parent` is read before.
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
            libc::_exit(work());
        }
        pid
    };
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return BoundedWrite::Refused(
            Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::AGAIN),
        );
    };
    if !exits_before(pid, deadline, moot) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    let mut status = 0;
    // SAFETY: waitpid writes the status to a place that outlives the call; the child is ours and no other code waits for it.
    while unsafe { libc::waitpid(pid.as_raw_nonzero().get(), &raw mut status, 0) } < 0 {
        if Errno::from_io_error(&std::io::Error::last_os_error()) != Some(Errno::INTR) {
            return BoundedWrite::TimedOut;
        }
    }
    match libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)) {
        Some(CHILD_OK) => BoundedWrite::Complete,
        Some(errno) => BoundedWrite::Refused(Errno::from_raw_os_error(errno)),
        None => BoundedWrite::TimedOut,
    }
}

/// Whether a child ends in time.
fn exits_before(pid: Pid, deadline: Instant, mut moot: impl FnMut() -> bool) -> bool {
    let Ok(end) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let look = left.min(POLL_INTERVAL);
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

    /// A pipe that nothing more fits into.
    fn full() -> (std::io::PipeReader, OwnedFd) {
        let (reader, writer) = std::io::pipe().unwrap();
        let size = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
        assert_eq!(rustix::io::write(&writer, &vec![0; size]), Ok(size));
        (reader, writer.into())
    }

    /// A file that says how much is used.
    fn usage(text: &str) -> OwnedFd {
        let file = rustix::fs::memfd_create("usage", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&file, text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn slices_grow_while_nothing_goes_and_shrink_towards_the_end() {
        let mib = |n: u64| n << 20;
        let slices = |steps: &[(u64, u64)]| {
            let mut slice = MIN_SLICE;
            steps
                .iter()
                .map(|&(went, left)| {
                    slice = next_slice(slice, went, left);
                    slice
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(slices(&[(0, mib(9)); 10]), [40, 80, 160, 320, 640, 1280, 2560, 5120, 10_000, 10_000]);
        assert_eq!(slices(&[(1 << 18, mib(16)), (1 << 18, mib(15)), (1 << 18, mib(14))]), [40, 80, 80]);
        assert_eq!(
            slices(&[(0, mib(9)), (0, mib(9)), (mib(4), mib(5)), (mib(2), mib(3)), (mib(2), mib(1))]),
            [40, 80, 40, 20, 20]
        );
        assert_eq!(slices(&[(mib(2), mib(6))]), [20]);
    }

    #[test]
    fn what_the_kernel_takes_is_written_and_what_it_refuses_is_told() {
        let (reader, writer) = std::io::pipe().unwrap();
        assert_eq!(write(&writer.try_clone().unwrap().into(), b"hello", PATIENCE), BoundedWrite::Complete);
        drop(writer);
        let mut text = String::new();
        (&reader).read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        let full: OwnedFd = std::fs::File::options().write(true).open("/dev/full").unwrap().into();
        assert_eq!(write(&full, b"x", PATIENCE), BoundedWrite::Refused(Errno::NOSPC));
    }

    #[test]
    fn a_limit_that_came_about_is_taken_back_at_once() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let pressed =
            reclaim_by_unreachable_limit(&writer.into(), b"0", b"777", &usage("5\n"), 4, PATIENCE, || false);
        assert_eq!(pressed, BoundedWrite::Complete);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "0777");
    }

    #[test]
    fn a_write_that_blocks_is_given_up() {
        let (_reader, writer) = std::io::pipe().unwrap();
        let begin = Instant::now();
        assert_eq!(write(&writer.into(), &[0; 1 << 20], Duration::from_millis(50)), BoundedWrite::TimedOut);
        assert!(begin.elapsed() < PATIENCE);
    }

    #[test]
    fn a_write_that_became_moot_is_given_up() {
        let (_reader, writer) = full();
        let (begin, mut looks) = (Instant::now(), 0);
        let moot = || {
            looks += 1;
            looks == 3
        };
        assert_eq!(
            reclaim_by_unreachable_limit(&writer, b"0", b"1", &usage("5\n"), 4, PATIENCE, moot),
            BoundedWrite::TimedOut
        );
        assert!(begin.elapsed() < PATIENCE);
        assert_eq!(looks, 3);
    }

    #[test]
    fn a_write_that_blocks_is_given_up_when_it_is_enough() {
        let (_reader, writer) = full();
        let file = usage("123456\n");
        let other = file.try_clone().unwrap();
        let mut looks = 0;
        // As the kernel's count would, it changes while the write blocks.
        let falls = || {
            looks += 1;
            if looks == 3 {
                rustix::io::pwrite(&other, b"000456\n", 0).unwrap();
            }
            false
        };
        assert_eq!(
            reclaim_by_unreachable_limit(&writer, b"0", b"1", &file, 456, PATIENCE, falls),
            BoundedWrite::Complete
        );
        assert!(looks >= 3);
        assert_eq!(
            reclaim_by_unreachable_limit(&writer, b"0", b"1", &file, 456, PATIENCE, || false),
            BoundedWrite::Complete
        );
    }
}
