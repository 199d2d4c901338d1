//! System calls of others that wait for an answer of ours (seccomp_unotify(2)), and those that processes of ours may make
//! ([`allow_only`]).
//!
//! A descriptor of a filter gives one [`SeccompNotification`] per call; its caller waits until it is answered, or ends. Everything in a
//! notice was true when the call was made: numbers are the kernel's, pointers are the caller's, and its pid means something only as
//! long as [`SeccompListener::is_valid`] says so after whatever was found out by it.

mod allow_list;
mod fd_passing;
mod notification_log;

pub use allow_list::{COMMON_CALLS, allow_only};
pub use fd_passing::{receive, send};
pub use notification_log::NotificationLog;

use elbowroom_types::cpuset::CpuSet;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Setter, Updater, ioctl, opcode};
use rustix::process::Pid;

/// `sched_getaffinity` and `sysinfo` of this machine's own calls.
pub const SYSCALLS: [(&str, i64); 2] =
    [("sched_getaffinity", libc::SYS_sched_getaffinity), ("sysinfo", libc::SYS_sysinfo)];
/// `AUDIT_ARCH_*` of this machine (`include/uapi/linux/audit.h`); `None` where answers are not known to be right.
pub const ARCH: Option<u32> = if cfg!(all(target_arch = "x86_64", target_pointer_width = "64")) {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else {
    None
};
/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`.
const CONTINUE: u32 = 1;

/// A call that waits: `struct seccomp_notif`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeccompNotification {
    /// Its number, which no other notice of this listener has.
    pub id: u64,
    /// The thread, in our pid namespace; 0 where it is not in ours.
    pub pid: u32,
    /// None yet.
    pub flags: u32,
    /// Number of the call.
    pub nr: i32,
    /// `AUDIT_ARCH_*` of the call.
    pub arch: u32,
    /// Where it was made.
    pub instruction_pointer: u64,
    /// Its arguments.
    pub args: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct SeccompResponse {
    id: u64,
    val: i64,
    error: i32,
    flags: u32,
}

/// The descriptor of a filter.
#[derive(Debug)]
pub struct SeccompListener(OwnedFd);

impl AsFd for SeccompListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl SeccompListener {
    /// Takes a descriptor that was sent; [`Errno::NOTTY`] where it is of something else.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(fd: OwnedFd) -> Result<Self, Errno> {
        let listener = Self(fd);
        // No notice has had this number yet; what is no listener does not know the question.
        match listener.check(u64::MAX) {
            Ok(()) | Err(Errno::NOENT) => Ok(listener),
            Err(errno) => Err(errno),
        }
    }

    /// The next call that waits. Blocks where there is none.
    ///
    /// # Errors
    /// [`Errno::NOENT`]: its caller has ended meanwhile.
    pub fn recv(&self) -> Result<SeccompNotification, Errno> {
        // The kernel refuses one that is not zero.
        let mut notice = SeccompNotification::default();
        // SAFETY: `SECCOMP_IOCTL_NOTIF_RECV` reads and writes a `struct seccomp_notif`, which `SeccompNotification` is, field by field; the
        // size is in the number, and a kernel with another size does not know that number.
        unsafe {
            ioctl(
                &self.0,
                Updater::<{ opcode::read_write::<SeccompNotification>(b'!', 0) }, SeccompNotification>::new(
                    &mut notice,
                ),
            )?;
        }
        Ok(notice)
    }

    /// Whether a call still waits: what was opened by its pid before was its caller's.
    pub(crate) fn is_valid(&self, id: u64) -> bool {
        self.check(id).is_ok()
    }

    fn check(&self, id: u64) -> Result<(), Errno> {
        // SAFETY: `SECCOMP_IOCTL_NOTIF_ID_VALID` reads a u64.
        unsafe { ioctl(&self.0, Setter::<{ opcode::write::<u64>(b'!', 2) }, u64>::new(id)) }
    }

    /// The call gives `value`.
    ///
    /// # Errors
    /// [`Errno::NOENT`]: the caller waits no more.
    pub fn respond(&self, id: u64, value: i64) -> Result<(), Errno> {
        self.send(SeccompResponse { id, val: value, ..SeccompResponse::default() })
    }

    /// The kernel does the call, as if we were not there.
    ///
    /// # Errors
    /// As [`Self::respond`].
    pub fn continue_syscall(&self, id: u64) -> Result<(), Errno> {
        self.send(SeccompResponse { id, flags: CONTINUE, ..SeccompResponse::default() })
    }

    fn send(&self, mut answer: SeccompResponse) -> Result<(), Errno> {
        // SAFETY: `SECCOMP_IOCTL_NOTIF_SEND` reads a `struct seccomp_notif_resp`, which `SeccompResponse` is, field by field.
        unsafe {
            ioctl(
                &self.0,
                Updater::<{ opcode::read_write::<SeccompResponse>(b'!', 1) }, SeccompResponse>::new(
                    &mut answer,
                ),
            )
        }
    }

    /// Writes to the memory of the waiting caller; `false` where it ended or has no such memory. The file of its memory is opened
    /// before the check that the call still waits, so a pid that means another process by now is noticed.
    pub fn write(&self, notice: &SeccompNotification, at: u64, bytes: &[u8]) -> bool {
        let path = format!("/proc/{}/mem", notice.pid);
        let Ok(memory) = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) else {
            return false;
        };
        self.is_valid(notice.id) && rustix::io::pwrite(&memory, bytes, at) == Ok(bytes.len())
    }

    /// The CPUs that the waiting thread may run on.
    pub fn affinity(&self, notice: &SeccompNotification) -> Option<CpuSet> {
        let pid = i32::try_from(notice.pid).ok().and_then(Pid::from_raw)?;
        let mask = rustix::thread::sched_getaffinity(Some(pid)).ok()?;
        let mask = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| mask.is_set(*cpu)).map(|cpu| cpu as u32);
        let mask: CpuSet = mask.collect();
        self.is_valid(notice.id).then_some(mask)
    }
}
