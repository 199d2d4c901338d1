//! View pages: one file of 4 KiB per container, which programs in the container map (`shim/view.h`).
//!
//! # Problem
//! A runtime that asks before every parallel region, or before every allocation, cannot afford a system call, and must
//! never be stopped by a page of its memory that cannot be filled.
//!
//! # Approach
//! A file of a tmpfs of ours, so that a page that is mapped needs no process to be there: no fault on it asks a process. The one writer
//! publishes with a few pwrite(2): two copies of the view, and a
//! generation that says which is current, as in the memory that the agent's processes share. Each write takes and gives back the lock of
//! the page in the cache, so readers see them in their order. A writer that dies half way leaves a whole view current. It stores nothing
//! through a mapping: a container whose root may mount on its own page what it likes can make it writable and shorten it, which costs the
//! writer no signal then, and that container its page. A change of what the container may use also increments a futex and wakes its
//! waiters. A writer that takes over does so with its first view, for the one before may have died in between.
//!
//! # Properties (`tests/view_page.rs`, and below)
//! - `c_and_rust_agree_about_every_field`
//! - `no_reader_ever_sees_half_a_view`
//! - `a_page_that_is_left_half_made_is_made_again`
//! - `a_waiter_is_woken_though_the_writer_died_before_it_could`

use crate::timer;
use elbowroom_view::pages::mapped::{MAGIC, MappedView, VERSION, VIEW_WORDS, is_view_change};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

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

/// A page, open for its writer.
#[derive(Debug)]
pub struct ViewPage {
    file: OwnedFd,
    /// Mapped to be read, and never read: a waiter is known to the kernel by the address.
    at: NonNull<u8>,
    generation: u32,
    changes: u32,
    last: [u64; VIEW_WORDS],
    /// Another writer's: whether `last` was counted, and whether its waiters were woken, is not known.
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
            // A writer that died while it made the page, which was not given out yet; or its owner broke it.
            Err(Errno::INVAL) => rustix::fs::unlink(&path)?,
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o644))?;
        // Whatever the umask: its readers are users of the container.
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
        // Not sparse: a page that is first filled later would be a fault that can fail for want of memory.
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, PAGE_SIZE as u64)?;
        // Two pages count from different numbers, so that a process that waited on one notices that it looks at another.
        let changes = timer::now_boot().get() as u32 | 1;
        let page =
            Self { at: map(&file)?, file, generation: 0, changes, last: [0; VIEW_WORDS], taken_over: false };
        page.write(offset::VERSION, &VERSION.to_ne_bytes());
        page.write(offset::VIEW_SIZE, &(VIEW_WORDS as u32 * 8).to_ne_bytes());
        page.write(offset::CHANGES, &changes.to_ne_bytes());
        // Last: what has it is whole.
        page.write(0, &MAGIC);
        Ok(page)
    }

    /// Takes a page that is there. [`Errno::INVAL`]: it is not whole, or another version's.
    fn take_over(path: &Path) -> Result<Self, Errno> {
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
        let mut bytes = [0; PAGE_SIZE];
        if rustix::io::pread(&file, &mut bytes, 0)? != PAGE_SIZE {
            return Err(Errno::INVAL);
        }
        let word32 = |at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().expect("it is in the page"));
        if bytes[..MAGIC.len()] != MAGIC || word32(offset::VERSION) != VERSION {
            return Err(Errno::INVAL);
        }
        let (generation, changes) = (word32(offset::GENERATION), word32(offset::CHANGES));
        let view = &bytes[view_offset(generation)..];
        let last = std::array::from_fn(|i| {
            u64::from_ne_bytes(*view[8 * i..].first_chunk().expect("it is in the page"))
        });
        Ok(Self { at: map(&file)?, file, generation, changes, last, taken_over: true })
    }

    /// Replaces the view. Costs a microsecond, and two more system calls where a program may be waiting for it.
    pub fn publish(&mut self, view: &MappedView) {
        let words = view.to_words();
        let counts = std::mem::take(&mut self.taken_over) || is_view_change(&self.last, &words);
        if words != self.last {
            self.replace(words);
        }
        if counts {
            self.changes = self.changes.wrapping_add(1);
            self.write(offset::CHANGES, &self.changes.to_ne_bytes());
            // No waiter is no error; nor is a page that was shortened.
            let _ = futex::wake(self.changes_word(), futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// The words and nothing else: where a writer may die before it counts them.
    fn replace(&mut self, words: [u64; VIEW_WORDS]) {
        let next = self.generation.wrapping_add(1);
        let mut bytes = [0; VIEW_WORDS * 8];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        self.write(view_offset(next), &bytes);
        self.write(offset::GENERATION, &next.to_ne_bytes());
        (self.generation, self.last) = (next, words);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        // It fails where the page's owner changed its size and no memory is left: no other reads it.
        let _ = rustix::io::pwrite(&self.file, bytes, at as u64);
    }

    /// What programs wait on.
    fn changes_word(&self) -> &AtomicU32 {
        // SAFETY: the mapping is page aligned, PAGE_SIZE long and lives as long as `self`. The kernel takes the address; what is there
        // is not touched, but by tests, whose files are not shortened.
        unsafe { &*self.at.as_ptr().add(offset::CHANGES).cast::<AtomicU32>() }
    }
}

/// Where the view of a generation is.
fn view_offset(generation: u32) -> usize {
    offset::VIEWS + (generation & 1) as usize * VIEW_WORDS * 8
}

impl Drop for ViewPage {
    fn drop(&mut self) {
        // SAFETY: the address and length of `map`, unmapped once; everything handed out borrows from `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), PAGE_SIZE) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Tells the readers of every page in `dir` that no agent keeps it any more. Pages that cannot be opened are left as they are.
pub fn retire_all(dir: &Path) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    for mut page in entries.filter_map(|entry| ViewPage::take_over(&entry.path()).ok()) {
        page.publish(&MappedView::DETACHED);
    }
}

fn map(file: &OwnedFd) -> Result<NonNull<u8>, Errno> {
    let access = ProtFlags::READ;
    // SAFETY: a new mapping at an address of the kernel's choosing disturbs nothing of this process.
    let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE_SIZE, access, MapFlags::SHARED, file, 0) }?;
    Ok(NonNull::new(at.cast()).expect("the kernel maps nothing at address zero unasked"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    #[test]
    fn a_container_that_shortens_its_page_breaks_nothing_else_and_the_next_writer_makes_another() {
        let dir = tempfile::tempdir().unwrap();
        let open = || ViewPage::open(dir.path(), "page").unwrap();
        let view = |cpus| MappedView { cpus, ..MappedView::DETACHED };
        let mut writer = open();
        writer.publish(&view(3));
        rustix::fs::ftruncate(&writer.file, 0).unwrap();
        writer.publish(&view(4));
        let mut next = open();
        next.publish(&view(5));
        assert_eq!(std::fs::read(dir.path().join("page")).unwrap().len(), PAGE_SIZE);
        assert_eq!(open().last, view(5).to_words());
    }

    #[test]
    fn a_waiter_is_woken_though_the_writer_died_before_it_could() {
        let dir = tempfile::tempdir().unwrap();
        let open = || ViewPage::open(dir.path(), "page").unwrap();
        let changes = |page: &ViewPage| page.changes_word().load(Ordering::SeqCst);
        let view = |cpus| MappedView { cpus, ..MappedView::DETACHED };
        let mut first = open();
        first.publish(&view(3));
        let seen = changes(&first);
        let reader = open();
        let waiting = std::thread::spawn(move || {
            let limit = rustix::thread::Timespec { tv_sec: 20, tv_nsec: 0 };
            futex::wait(reader.changes_word(), futex::Flags::empty(), seen, Some(&limit))
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
        // Once; and one that is made new owes nothing.
        second.publish(&view(2));
        assert_eq!(changes(&second), seen.wrapping_add(1));
        second.publish(&view(4));
        assert_eq!(changes(&second), seen.wrapping_add(2));
    }
}
