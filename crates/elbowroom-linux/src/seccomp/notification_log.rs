//! What survives a process that answers: which notice it took last of each listener and which it answered, in memory that its successor
//! has too.
//!
//! The kernel gives a notice once. One that was taken by a process that died is never answered, and its caller waits for ever,
//! unless the successor knows its number. Numbers of a listener ascend by one with every call that is made, so the notice that was
//! taken last is the one on record or one of the next. For each listener one thread at a time writes here.

use super::SeccompListener;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most listeners.
pub const SLOTS: usize = 4_095;
/// Words before those of the listeners: one that moves while there is an answerer, and one of none.
const HEADER_WORDS: usize = 2;
/// The notices that were taken, then those that were answered.
const WORDS: usize = HEADER_WORDS + 2 * SLOTS;
const BYTES: usize = WORDS * 8;
/// Most notices after the recorded one among which a taken one is looked for: callers may have given up in between.
const MAX_ID_GAP: u64 = 4_096;

/// The memory.
#[derive(Debug)]
pub struct NotificationLog {
    fd: OwnedFd,
    at: NonNull<u8>,
}

// SAFETY: it owns its mapping, in which everything is atomic; where its address is used does not matter.
unsafe impl Send for NotificationLog {}
// SAFETY: the same; nothing is written but through atomics.
unsafe impl Sync for NotificationLog {}

impl AsFd for NotificationLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl NotificationLog {
    /// An empty one.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new() -> Result<Self, Errno> {
        let fd =
            rustix::fs::memfd_create("elbowroom-keeper", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, BYTES as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        Self::open(fd)
    }

    /// That of a predecessor. [`Errno::INVAL`]: it is not of this size for ever.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(fd: OwnedFd) -> Result<Self, Errno> {
        let seals = rustix::fs::fcntl_get_seals(&fd)?;
        if rustix::fs::fstat(&fd)?.st_size != BYTES as i64 || !seals.contains(SealFlags::SHRINK) {
            return Err(Errno::INVAL);
        }
        // SAFETY: a new mapping of a file that is as long and cannot be shortened.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )?
        };
        Ok(Self { fd, at: NonNull::new(at.cast()).ok_or(Errno::NOMEM)? })
    }

    /// The answerer is there.
    pub fn heartbeat(&self) {
        self.word(0).fetch_add(1, Ordering::Release);
    }

    /// How often they were.
    pub fn heartbeats(&self) -> u64 {
        self.word(0).load(Ordering::Acquire)
    }

    /// A notice was taken.
    pub fn taken(&self, slot: usize, id: u64) {
        self.word(HEADER_WORDS + slot).store(id, Ordering::Release);
    }

    /// And answered.
    pub fn answered(&self, slot: usize, id: u64) {
        self.word(HEADER_WORDS + SLOTS + slot).store(id, Ordering::Release);
    }

    /// Which notice of a listener was taken last, and which was answered last: the same where no answerer is at work.
    pub fn last(&self, slot: usize) -> (u64, u64) {
        let word = |n| self.word(n).load(Ordering::Acquire);
        (word(HEADER_WORDS + slot), word(HEADER_WORDS + SLOTS + slot))
    }

    /// A listener that comes to a slot was never answered.
    pub fn reset_slot(&self, slot: usize) {
        self.taken(slot, 0);
        self.answered(slot, 0);
    }

    /// Leaves to the kernel what a predecessor took and did not answer. How many there were.
    pub fn recover(&self, slot: usize, listener: &SeccompListener) -> usize {
        let (last, _) = self.last(slot);
        self.answered(slot, last);
        if last == 0 {
            return 0;
        }
        (0..MAX_ID_GAP)
            .map(|n| last.wrapping_add(n))
            .filter(|id| listener.is_valid(*id) && listener.continue_syscall(*id).is_ok())
            .count()
    }

    fn word(&self, n: usize) -> &AtomicU64 {
        assert!(n < WORDS);
        // SAFETY: the mapping is page aligned, BYTES long and lives as long as `self`; the assertion keeps the word inside, and
        // the file can not be shortened. Every bit pattern is a u64.
        unsafe { &*self.at.as_ptr().add(n * 8).cast::<AtomicU64>() }
    }
}

impl Drop for NotificationLog {
    fn drop(&mut self) {
        // SAFETY: the address and length of `open`, unmapped once; everything handed out borrows from `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_knows_what_was_taken_of_each_listener_and_not_answered() {
        let record = NotificationLog::new().unwrap();
        let last = SLOTS - 1;
        record.taken(0, 7);
        record.taken(last, 9);
        record.answered(last, 9);
        record.heartbeat();
        let successor = NotificationLog::open(rustix::io::dup(record.as_fd()).unwrap()).unwrap();
        assert_eq!((successor.last(0), successor.last(1), successor.last(last)), ((7, 0), (0, 0), (9, 9)));
        assert_eq!(successor.heartbeats(), 1);
        successor.reset_slot(0);
        assert_eq!(record.last(0), (0, 0));
    }
}
