//! The memory that the kernel and a reader share: a page of counters, then records in a ring (perf_event_open(2), *MMAP layout*).

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// `data_head` and `data_tail` of `struct perf_event_mmap_page`.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// A ring, mapped by its only reader.
#[derive(Debug)]
pub(super) struct PerfRing {
    at: NonNull<u8>,
    page: usize,
    data: usize,
}

// SAFETY: it owns its mapping; where its address is used does not matter.
unsafe impl Send for PerfRing {}

impl PerfRing {
    /// Maps the ring of an event; `pages` is a power of two.
    pub(super) fn map(event: impl AsFd, pages: usize) -> Result<Self, Errno> {
        let page = rustix::param::page_size();
        let data = pages * page;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choosing disturbs nothing of this process.
        let at = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), page + data, access, MapFlags::SHARED, event, 0)
        }?;
        Ok(Self {
            at: NonNull::new(at.cast()).expect("the kernel maps nothing at address zero unasked"),
            page,
            data,
        })
    }

    /// Takes what was written since, as one run of bytes, and makes room.
    pub(super) fn take(&self, into: &mut Vec<u8>) {
        into.clear();
        let head = self.counter(DATA_HEAD).load(Ordering::Acquire);
        let tail = self.counter(DATA_TAIL).load(Ordering::Relaxed);
        let length = (head.wrapping_sub(tail) as usize).min(self.data);
        let begin = (tail % self.data as u64) as usize;
        let first = length.min(self.data - begin);
        // SAFETY: both pieces lie inside the `data` bytes behind the first page. The kernel writes only from `data_head` on,
        // up to one ring before `data_tail`, which is moved below; the acquire above orders its writes before these reads.
        unsafe {
            let data = self.at.as_ptr().add(self.page);
            into.extend_from_slice(std::slice::from_raw_parts(data.add(begin), first));
            into.extend_from_slice(std::slice::from_raw_parts(data, length - first));
        }
        self.counter(DATA_TAIL).store(head, Ordering::Release);
    }

    fn counter(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the mapping is page aligned and longer than a page, and lives as long as `self`; both offsets are aligned
        // and inside that page. The kernel accesses the words as we do, atomically.
        unsafe { &*self.at.as_ptr().add(at).cast::<AtomicU64>() }
    }
}

impl Drop for PerfRing {
    fn drop(&mut self) {
        // SAFETY: the address and length of `map`, unmapped once; everything handed out borrows from `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.page + self.data) };
        debug_assert!(unmapped.is_ok());
    }
}
