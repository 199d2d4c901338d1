//! What survives a process that answers: which notice it took last of each listener, in memory that its successor has too.
//!
//! The kernel gives a notice once. One that was taken by a process that died is answered by nobody, and its caller waits for ever,
//! unless the successor knows its number. Numbers of a listener ascend by one with every call that is made, so the notice that was
//! taken last is the one on record or one of the next.

use super::Listener;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most listeners.
pub const SLOTS: usize = 8_190;
/// Words before those of the listeners.
const HEAD: usize = 2;
const BYTES: usize = (SLOTS + HEAD) * 8;
/// So many calls may have ended unanswered between two that were taken.
const FAR: u64 = 4_096;

/// The memory.
#[derive(Debug)]
pub struct Record {
    fd: OwnedFd,
    at: NonNull<u8>,
}

// SAFETY: it owns its mapping, in which everything is atomic; where its address is used does not matter.
unsafe impl Send for Record {}

impl AsFd for Record {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Record {
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

    /// Notices that were taken, and that were answered, by all processes that ever did.
    pub fn counts(&self) -> (u64, u64) {
        (self.word(0).load(Ordering::Acquire), self.word(1).load(Ordering::Acquire))
    }

    /// A notice was taken.
    pub fn taken(&self, slot: usize, id: u64) {
        self.word(HEAD + slot).store(id, Ordering::Release);
        self.word(0).fetch_add(1, Ordering::Release);
    }

    /// And answered.
    pub fn answered(&self) {
        self.word(1).fetch_add(1, Ordering::Release);
    }

    /// A listener that comes to a slot was never answered.
    pub fn begin(&self, slot: usize) {
        self.word(HEAD + slot).store(0, Ordering::Release);
    }

    /// Leaves to the kernel what a predecessor took and did not answer. How many there were.
    pub fn recover(&self, slot: usize, listener: &Listener) -> usize {
        let last = self.word(HEAD + slot).load(Ordering::Acquire);
        if last == 0 {
            return 0;
        }
        (0..FAR)
            .map(|n| last.wrapping_add(n))
            .filter(|id| listener.is_valid(*id) && listener.leave(*id).is_ok())
            .count()
    }

    /// A predecessor's notices are answered or gone.
    pub fn settle(&self) {
        self.word(1).store(self.word(0).load(Ordering::Acquire), Ordering::Release);
    }

    fn word(&self, n: usize) -> &AtomicU64 {
        assert!(n < SLOTS + HEAD);
        // SAFETY: the mapping is page aligned, BYTES long and lives as long as `self`; the assertion keeps the word inside, and
        // the file can not be shortened. Every bit pattern is a u64.
        unsafe { &*self.at.as_ptr().add(n * 8).cast::<AtomicU64>() }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // SAFETY: the address and length of `open`, unmapped once; everything handed out borrows from `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}
