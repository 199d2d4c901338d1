//! Shared memory as words.

use crate::view_server::FuseError;
use rustix::fd::OwnedFd;
use rustix::mm::{MapFlags, ProtFlags};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A shared mapping of a whole file.
pub(super) struct SharedWords {
    at: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: it is a slice of atomics with an owner; where its address is used does not matter.
unsafe impl Send for SharedWords {}
// SAFETY: as above; everything reachable through a shared reference is atomic.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps the first `bytes` of `memory`, which the caller has checked to be that long and sealed against shrinking.
    pub(super) fn map(memory: &OwnedFd, bytes: usize) -> Result<Self, FuseError> {
        // SAFETY: a new mapping at an address of the kernel's choosing disturbs nothing of this process.
        let at = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, memory, 0)
        };
        let at = at.map_err(|source| FuseError::Memory { operation: "mmap", source })?;
        let at = NonNull::new(at.cast()).expect("the kernel maps nothing at address zero unasked");
        Ok(Self { at, len: bytes / 8 })
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page aligned, `len` words long (the file is as long and sealed against shrinking, so
        // no access faults), and lives as long as `self`. Every bit pattern is a u64, and other processes change it
        // only through atomics of the same width.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the address and length of `map`, unmapped once; everything handed out borrows from `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.len * 8) };
        debug_assert!(unmapped.is_ok());
    }
}
