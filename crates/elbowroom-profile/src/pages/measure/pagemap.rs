//! `/proc/PID/pagemap`: the portable way to page tables, one process and area after another.

use crate::pages::model::{ENTRIES, MemoryArea, PageTableEntry, PageTableRegion};
use elbowroom_linux::root::ReadError;
use rustix::io::{Errno, pread};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// Entries read at once: 512 KiB of the file.
const CHUNK_ENTRIES: u64 = 65_536;

/// Areas beyond this size are read only if the kernel says that something is resident in them: a runtime reserves terabytes,
/// and the file has eight bytes for every page of them.
const LARGE_AREA_PAGES: u64 = 1 << 18;

/// The open file of one process.
#[derive(Debug)]
pub(super) struct Pagemap {
    file: OwnedFd,
    path: PathBuf,
}

impl Pagemap {
    /// Opens the file of a process; its memory stays the one it had now, whatever it executes later.
    pub(super) fn open(pid: i32) -> Result<Self, ReadError> {
        let path = PathBuf::from(format!("/proc/{pid}/pagemap"));
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, rustix::fs::Mode::empty()) {
            Ok(file) => Ok(Self { file, path }),
            Err(source) => Err(ReadError::Io { operation: "opening", path, source }),
        }
    }

    /// The entry of one page.
    pub(super) fn entry(&self, page: u64) -> Result<PageTableEntry, ReadError> {
        let mut words = [0];
        self.read(page, &mut words)?;
        Ok(PageTableEntry::from_pagemap(words[0]))
    }

    /// Calls `each` with the tables of all `areas`, ascending, for regions where something is mapped. `areas` are ascending,
    /// with their resident bytes where they are known. False where they have more pages than may be looked at: `left` counts down.
    pub(super) fn tables(
        &self,
        process: usize,
        areas: &[(MemoryArea, Option<u64>)],
        left: &mut u64,
        mut each: impl FnMut(PageTableRegion),
    ) -> Result<bool, ReadError> {
        let mut words = vec![0; CHUNK_ENTRIES as usize];
        let mut open: Option<PageTableRegion> = None;
        for (area, resident) in areas {
            if area.end - area.first > LARGE_AREA_PAGES && *resident == Some(0) {
                continue;
            }
            let mut page = area.first;
            while page < area.end {
                let some = (area.end - page).min(CHUNK_ENTRIES) as usize;
                match left.checked_sub(some as u64) {
                    Some(rest) => *left = rest,
                    None => return Ok(false),
                }
                let read = self.read(page, &mut words[..some])?;
                if read == 0 {
                    break;
                }
                for (word, page) in words[..read].iter().zip(page..) {
                    let entry = PageTableEntry::from_pagemap(*word);
                    if !entry.is_mapped() {
                        continue;
                    }
                    let region = page / ENTRIES as u64;
                    let table = match &mut open {
                        Some(table) if table.region == region => table,
                        open => {
                            let entries = Box::new([PageTableEntry::default(); ENTRIES]);
                            open.replace(PageTableRegion { process, region, entries })
                                .into_iter()
                                .for_each(&mut each);
                            open.as_mut().expect("a table has just been put there")
                        }
                    };
                    table.entries[(page % ENTRIES as u64) as usize] = entry;
                }
                page += read as u64;
            }
        }
        open.into_iter().for_each(each);
        Ok(true)
    }

    /// Reads whole words from the one of `page` on; fewer than asked for at the end of the address space.
    fn read(&self, page: u64, words: &mut [u64]) -> Result<usize, ReadError> {
        let mut bytes = vec![0u8; words.len() * 8];
        let read = loop {
            match pread(self.file.as_fd(), &mut bytes[..], page * 8) {
                Err(Errno::INTR) => {}
                Ok(read) => break read / 8,
                Err(source) => {
                    return Err(ReadError::Io { operation: "reading", path: self.path.clone(), source });
                }
            }
        };
        for (word, bytes) in words.iter_mut().zip(bytes[..read * 8].chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("chunks have 8 bytes"));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::model::{AreaKind, AreaTotals};

    #[test]
    fn one_page_in_a_sea_of_addresses_is_not_looked_for_without_end() {
        let own = Pagemap::open(std::process::id() as i32).unwrap();
        let area =
            MemoryArea { first: 1 << 20, end: 4 << 20, kind: AreaKind::Heap, totals: AreaTotals::default() };
        let look = |mut left: u64| own.tables(0, &[(area, Some(4096))], &mut left, drop).unwrap();
        assert_eq!([look(1 << 20), look(3 << 20)], [false, true]);
    }
}
