//! Pages of this process' own, from which is learned whether frames are shown at all, and which are the pages of zeros.

use super::PagesError;
use super::pagemap::Pagemap;
use crate::pages::model::ZeroFrames;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::NonNull;

const PAGE: usize = 4096;
/// Pages of a huge page.
const HUGE_PAGES: usize = 512;

/// A page that was written to, which has a frame of its own, and what was only read. They stay where they are.
#[derive(Debug)]
pub(super) struct FrameProbe {
    /// Number and frame of the page that was written to.
    #[cfg(feature = "bpf")]
    written: (u64, u64),
    zeros: ZeroFrames,
    /// While it is mapped, the kernel keeps the huge page of zeros where it is (`mm_get_huge_zero_folio()`), too.
    _memory: (ProbeMemory, Option<ProbeMemory>),
}

impl FrameProbe {
    pub(super) fn new() -> Result<Self, PagesError> {
        // Without huge pages the second page is not written with the first.
        let pages = ProbeMemory::map(2, Advice::LinuxNoHugepage).map_err(PagesError::Memory)?;
        pages.write(0);
        pages.read(1);
        let own = Pagemap::open(std::process::id() as i32)?;
        let frame = own.entry(pages.number(0))?.frame();
        if frame == 0 {
            return Err(PagesError::NotAllowed);
        }
        let page = Some(own.entry(pages.number(1))?.frame());
        let (huge, kept) = huge_zeros(&own)?.unzip();
        Ok(Self {
            #[cfg(feature = "bpf")]
            written: (pages.number(0), frame),
            zeros: ZeroFrames { page, huge },
            _memory: (pages, kept),
        })
    }

    /// The number of the page that was written to.
    #[cfg(feature = "bpf")]
    pub(super) fn page(&self) -> u64 {
        self.written.0
    }

    /// Its frame.
    #[cfg(feature = "bpf")]
    pub(super) fn frame(&self) -> u64 {
        self.written.1
    }

    /// The frames of the pages of zeros.
    pub(super) fn zeros(&self) -> ZeroFrames {
        self.zeros
    }
}

/// The first frame of the huge page of zeros, and where it is mapped: two areas that were only read have the same frames then. A
/// kernel that has none gives each of them memory of its own, or small pages.
fn huge_zeros(own: &Pagemap) -> Result<Option<(u64, ProbeMemory)>, PagesError> {
    let Ok(memory) = ProbeMemory::map(3 * HUGE_PAGES, Advice::LinuxHugepage) else { return Ok(None) };
    let before = memory.number(0) as usize % HUGE_PAGES;
    let areas = [1, 2].map(|n| n * HUGE_PAGES - before);
    areas.iter().for_each(|first| memory.read(*first));
    let frames = |first: usize| -> Result<(u64, u64), PagesError> {
        Ok((
            own.entry(memory.number(first))?.frame(),
            own.entry(memory.number(first + HUGE_PAGES - 1))?.frame(),
        ))
    };
    let (one, other) = (frames(areas[0])?, frames(areas[1])?);
    let is_huge =
        one.0 != 0 && one.0.is_multiple_of(HUGE_PAGES as u64) && one.1 == one.0 + HUGE_PAGES as u64 - 1;
    Ok((is_huge && one == other).then_some((one.0, memory)))
}

/// Private memory that no other code knows.
#[derive(Debug)]
struct ProbeMemory {
    start: NonNull<u8>,
    pages: usize,
}

impl ProbeMemory {
    /// A kernel without huge pages refuses advice about them, and has none.
    fn map(pages: usize, advice: Advice) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint lets the kernel choose unused addresses, so no existing mapping is replaced.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), pages * PAGE, protection, MapFlags::PRIVATE) }?;
        let start: NonNull<u8> = NonNull::new(start.cast())
            .expect("the kernel never chooses address 0 for a mapping without a hint");
        // SAFETY: the range is the mapping just made, in which nothing is yet.
        let _ = unsafe { madvise(start.as_ptr().cast(), pages * PAGE, advice) };
        Ok(Self { start, pages })
    }

    fn at(&self, page: usize) -> *mut u8 {
        assert!(page < self.pages, "pages of this mapping are asked for");
        self.start.as_ptr().wrapping_add(page * PAGE)
    }

    fn read(&self, page: usize) {
        // SAFETY: within the mapping, which is readable; there is no reference into it.
        unsafe { self.at(page).read_volatile() };
    }

    fn write(&self, page: usize) {
        // SAFETY: within the mapping, which is writable; there is no reference into it.
        unsafe { self.at(page).write_volatile(1) };
    }

    /// The number of a page, as `pagemap` counts them.
    fn number(&self, page: usize) -> u64 {
        (self.at(page) as usize / PAGE) as u64
    }
}

impl Drop for ProbeMemory {
    fn drop(&mut self) {
        // SAFETY: exactly what `map` mapped; no reference into it was ever made.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.pages * PAGE) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
    }
}
