//! View pages: one file of 4 KiB per container, which programs in the container map (`shim/view.h`).
//!
//! # Problem
//! A runtime that asks before every parallel region, or before every allocation, cannot afford a system call, and must
//! never be stopped by a page of its memory that nobody can fill.
//!
//! # Approach
//! A file of a tmpfs of ours, so that a page that is mapped needs no process to be there: no fault on it asks anybody, and
//! nobody can shorten it. The one writer maps it too and publishes with a few stores: two copies of the view, and a
//! generation that says which is current, as in the memory that the agent's processes share. A writer that dies half way
//! leaves a whole view current. A change of what the container may use also counts up a futex and wakes who waits on it; a writer
//! that takes over does so with its first view, for the one before may have died in between.
//!
//! # Properties (`tests/view_page.rs`, and below)
//! - `c_and_rust_agree_about_every_field`
//! - `no_reader_ever_sees_half_a_view`
//! - `a_page_that_is_left_half_made_is_made_again`
//! - `who_waits_is_woken_though_the_writer_died_before_it_could`

use crate::timer;
use elbowroom_view::pages::mapped::{MAGIC, MappedView, VERSION, VIEW_WORDS, is_view_change};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The size of the file.
pub const PAGE_SIZE: usize = 4096;

/// Byte offsets in `struct elbowroom_page`.
pub mod offset {
    /// `version`.
    pub const VERSION: usize = 8;
    /// `view_size`.
    pub const VIEW_SIZE: usize = 12;
    /// `generation`.
    pub const GENERATION: usize = 16;
    /// `changes`.
    pub const CHANGES: usize = 20;
    /// `views`.
    pub const VIEWS: usize = 64;
}

/// A page, mapped by its writer.
#[derive(Debug)]
pub struct ViewPage {
    at: NonNull<u8>,
    last: [u64; VIEW_WORDS],
    /// Another writer's: whether `last` was counted, and whether who waits was woken, is not known.
    taken_over: bool,
}

// SAFETY: it owns its mapping; where its address is used does not matter.
unsafe impl Send for ViewPage {}

impl ViewPage {
    /// Opens the page `name` in `dir`, making it where there is none, or none that is whole. It says
    /// [`MappedView::DETACHED`] until something is published.
    ///
    /// # Errors
    /// What the kernel says: no room, no permission.
    pub fn open(dir: &Path, name: &str) -> Result<Self, Errno> {
        let path = dir.join(name);
        match Self::take_over(&path) {
            Ok(page) => return Ok(page),
            // A writer that died while it made the page; nobody was given it yet.
            Err(Errno::INVAL) => rustix::fs::unlink(&path)?,
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o644))?;
        // Whatever the umask: those who read it are users of the container.
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
        // Not sparse: a page that is first filled later would be a fault that can fail for want of memory.
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, PAGE_SIZE as u64)?;
        let page = Self { at: map(&file)?, last: [0; VIEW_WORDS], taken_over: false };
        page.word32(offset::VERSION).store(VERSION, Ordering::Relaxed);
        page.word32(offset::VIEW_SIZE).store(VIEW_WORDS as u32 * 8, Ordering::Relaxed);
        // Two pages count from different numbers, so that who waited on one notices that it looks at another.
        page.word32(offset::CHANGES).store(timer::now_boot().get() as u32 | 1, Ordering::Relaxed);
        // Last: what has it is whole.
        page.word64(0).store(u64::from_ne_bytes(MAGIC), Ordering::Release);
        Ok(page)
    }

    /// Maps a page that is there. [`Errno::INVAL`]: it is not whole, or another version's.
    fn take_over(path: &Path) -> Result<Self, Errno> {
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        if stat.st_size != PAGE_SIZE as i64 {
            return Err(Errno::INVAL);
        }
        let mut page = Self { at: map(&file)?, last: [0; VIEW_WORDS], taken_over: true };
        let head =
            (page.word64(0).load(Ordering::Acquire), page.word32(offset::VERSION).load(Ordering::Relaxed));
        if head != (u64::from_ne_bytes(MAGIC), VERSION) {
            return Err(Errno::INVAL);
        }
        let now = page.word32(offset::GENERATION).load(Ordering::Relaxed);
        page.last = std::array::from_fn(|i| page.view_word(now, i).load(Ordering::Relaxed));
        Ok(page)
    }

    /// Replaces the view. Costs some tens of nanoseconds, and a system call where somebody may be waiting for it.
    pub fn publish(&mut self, view: &MappedView) {
        let words = view.to_words();
        let counts = std::mem::take(&mut self.taken_over) || is_view_change(&self.last, &words);
        if words != self.last {
            self.replace(words);
        }
        if counts {
            let changes = self.word32(offset::CHANGES);
            changes.fetch_add(1, Ordering::SeqCst);
            // Nobody waiting is no error, and nothing else can go wrong with a word that is mapped.
            let _ = futex::wake(changes, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// The words and nothing else: where a writer may die before it counts them.
    fn replace(&mut self, words: [u64; VIEW_WORDS]) {
        let generation = self.word32(offset::GENERATION);
        let now = generation.load(Ordering::Relaxed);
        // A reader that still copies the buffer before the current one must see the generation that made it old: the
        // stores below may not rise above the store that wrote `now`.
        fence(Ordering::SeqCst);
        for (i, word) in words.iter().enumerate() {
            self.view_word(now.wrapping_add(1), i).store(*word, Ordering::Relaxed);
        }
        generation.store(now.wrapping_add(1), Ordering::SeqCst);
        self.last = words;
    }

    fn view_word(&self, generation: u32, i: usize) -> &AtomicU64 {
        self.word64(offset::VIEWS + ((generation & 1) as usize * VIEW_WORDS + i) * 8)
    }

    fn word32(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at < PAGE_SIZE);
        // SAFETY: the mapping is page aligned, PAGE_SIZE long and lives as long as `self`; the assertion keeps the word
        // inside. The file is as long: readers have a read-only mount, so beside this process only who may mount on this host could
        // shorten it, and a store is a signal then that ends the process, not an access to something else. Every bit pattern is a u32.
        unsafe { &*self.at.as_ptr().add(at).cast::<AtomicU32>() }
    }

    fn word64(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < PAGE_SIZE);
        // SAFETY: as in `word32`.
        unsafe { &*self.at.as_ptr().add(at).cast::<AtomicU64>() }
    }
}

impl Drop for ViewPage {
    fn drop(&mut self) {
        // SAFETY: the address and length of `map`, unmapped once; everything handed out borrows from `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), PAGE_SIZE) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Tells the readers of every page in `dir` that nobody keeps it any more. Pages that cannot be opened are left as they are.
pub fn retire_all(dir: &Path) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    // What is no page is not opened: who opens a FIFO may have to wait for its reader.
    let pages = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    for mut page in pages.filter_map(|entry| ViewPage::take_over(&entry.path()).ok()) {
        page.publish(&MappedView::DETACHED);
    }
}

fn map(file: &rustix::fd::OwnedFd) -> Result<NonNull<u8>, Errno> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choosing disturbs nothing of this process.
    let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE_SIZE, access, MapFlags::SHARED, file, 0) }?;
    Ok(NonNull::new(at.cast()).expect("the kernel maps nothing at address zero unasked"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn who_waits_is_woken_though_the_writer_died_before_it_could() {
        let dir = tempfile::tempdir().unwrap();
        let open = || ViewPage::open(dir.path(), "page").unwrap();
        let changes = |page: &ViewPage| page.word32(offset::CHANGES).load(Ordering::SeqCst);
        let view = |cpus| MappedView { cpus, ..MappedView::DETACHED };
        let mut first = open();
        first.publish(&view(3));
        let seen = changes(&first);
        let reader = open();
        let waiting = std::thread::spawn(move || {
            let limit = rustix::thread::Timespec { tv_sec: 20, tv_nsec: 0 };
            futex::wait(reader.word32(offset::CHANGES), futex::Flags::empty(), seen, Some(&limit))
        });
        // It dies between the words and their count.
        first.replace(view(2).to_words());
        drop(first);
        std::thread::sleep(Duration::from_millis(100));
        let mut second = open();
        assert_eq!(changes(&second), seen);
        second.publish(&view(2));
        assert_eq!(changes(&second), seen.wrapping_add(1));
        assert!(matches!(waiting.join().unwrap(), Ok(()) | Err(Errno::AGAIN)));
        // Once; and one that is made new owes nobody anything.
        second.publish(&view(2));
        assert_eq!(changes(&second), seen.wrapping_add(1));
        second.publish(&view(4));
        assert_eq!(changes(&second), seen.wrapping_add(2));
    }
}
