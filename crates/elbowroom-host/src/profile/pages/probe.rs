//! Two pages of this process' own, from which is learned whether frames are shown at all, and which one is the page of zeros.

use super::PagesError;
use super::pagemap::Pagemap;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::NonNull;

const PAGE: usize = 4096;

/// A page that was written to, which has a frame of its own, and one that was only read. They stay where they are.
#[derive(Debug)]
pub(super) struct Probe {
    start: NonNull<u8>,
    frame: u64,
    zero: u64,
}

impl Probe {
    pub(super) fn new() -> Result<Self, PagesError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint lets the kernel choose unused addresses, so no existing mapping is replaced.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * PAGE, protection, MapFlags::PRIVATE) }
            .map_err(PagesError::Memory)?;
        let start: NonNull<u8> = NonNull::new(start.cast())
            .expect("the kernel never chooses address 0 for a mapping without a hint");
        let mut probe = Self { start, frame: 0, zero: 0 };
        // SAFETY: the range is the mapping just made. Without huge pages the second page is not written with the first; a
        // kernel without them refuses, and has none.
        let _ = unsafe { madvise(start.as_ptr().cast(), 2 * PAGE, Advice::LinuxNoHugepage) };
        // SAFETY: both pages are mapped, readable and writable, and nobody else knows them.
        unsafe {
            start.as_ptr().write_volatile(1);
            start.as_ptr().add(PAGE).read_volatile();
        }
        let own = Pagemap::open(std::process::id() as i32)?;
        probe.frame = own.entry(probe.page())?.frame();
        probe.zero = own.entry(probe.page() + 1)?.frame();
        if probe.frame == 0 { Err(PagesError::NotAllowed) } else { Ok(probe) }
    }

    /// The number of the page that was written to.
    pub(super) fn page(&self) -> u64 {
        (self.start.as_ptr() as usize / PAGE) as u64
    }

    /// Its frame.
    #[cfg(feature = "bpf")]
    pub(super) fn frame(&self) -> u64 {
        self.frame
    }

    /// The frame of the page of zeros.
    pub(super) fn zero(&self) -> u64 {
        self.zero
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped; no reference into it was ever made.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), 2 * PAGE) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
    }
}
