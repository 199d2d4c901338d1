//! How much of the page tables of several processes says the same.
//!
//! **Problem.** Containers of one application map the same libraries, files and forked memory, and each process has page-table
//! entries of its own for them: memory, cache and TLB space, and page faults spent on what a neighbour already has.
//!
//! **Approach.** All tables of all processes are laid side by side, region by region, and compared entry by entry.
//!
//! **Terminology.** An entry is *groupable* if another process has the same frame at the same virtual page; it is *elsewhere* if
//! others have the frame, but at other addresses; otherwise *exclusive*. It is *active* if the processor has used it within the
//! time that was watched. Everything is counted in entries of 4 KiB: a huge page is as many entries as it has pages.
//!
//! **Properties.** Every mapped entry within an area is counted once: `entries = groupable + elsewhere + exclusive + zero`.
//! The order of processes and tables changes nothing. One process alone has nothing groupable.
//!
//! Differs from the thesis: it has the kernel print one process after another while they are stopped; here nothing is stopped, so
//! the tables of two processes may be milliseconds apart. The kernel's page of zeros is shared by all processes that read memory that was
//! never written, as its huge one is; they are counted apart, because there is nothing in them to share.

pub(crate) mod area;
mod entry;
mod region;

pub use area::{AreaKind, NamedArea};
pub use entry::PageTableEntry;

use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// Entries of one table: what the processor finds in one page of 4 KiB.
pub(crate) const ENTRIES: usize = 512;

/// A process that was looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProcessAreas {
    /// Place of its container in the report.
    pub container: usize,
    /// Its areas, ascending and apart from each other.
    pub areas: Vec<MemoryArea>,
}

/// An area of a process' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryArea {
    /// Number of its first page.
    pub first: u64,
    /// Number of the page after its last.
    pub end: u64,
    /// What it is for.
    pub kind: AreaKind,
    /// What the kernel says of the whole area, where entries do not say it.
    pub totals: AreaTotals,
}

/// Sums over an area, in entries; from `/proc/PID/smaps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AreaTotals {
    /// In huge pages.
    pub huge: u64,
    /// Used since that was last forgotten.
    pub active: Option<u64>,
}

/// The entries of one process for 2 MiB of addresses.
#[derive(Clone, Debug)]
pub struct PageTableRegion {
    /// Place of the process.
    pub process: usize,
    /// Page number of the first entry, divided by [`ENTRIES`].
    pub region: u64,
    /// The entries.
    pub entries: Box<[PageTableEntry; ENTRIES]>,
}

/// Whether the entries say what was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessTracking {
    /// They do.
    InEntries,
    /// They do not, but areas may.
    InAreas,
    /// It was not watched.
    NotWatched,
}

/// Counts of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryCounts {
    /// All that are mapped.
    pub entries: u64,
    /// The same frame at the same page in another process.
    pub groupable: u64,
    /// Of these, in a process of another container.
    pub groupable_across: u64,
    /// The same frame in another process, at other addresses only.
    pub elsewhere: u64,
    /// The kernel's page of zeros, and the huge one.
    pub zero: u64,
    /// In huge pages, those of zeros left out.
    pub huge: u64,
    /// Used while it was watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<u64>,
    /// Both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_groupable: Option<u64>,
}

impl EntryCounts {
    /// Frames that no other process has.
    pub fn exclusive(&self) -> u64 {
        self.entries.saturating_sub(self.groupable + self.elsewhere + self.zero)
    }
}

impl AddAssign for EntryCounts {
    fn add_assign(&mut self, other: Self) {
        let both = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0) + b.unwrap_or(0)),
        };
        self.entries += other.entries;
        self.groupable += other.groupable;
        self.groupable_across += other.groupable_across;
        self.elsewhere += other.elsewhere;
        self.zero += other.zero;
        self.huge += other.huge;
        self.active = both(self.active, other.active);
        self.active_groupable = both(self.active_groupable, other.active_groupable);
    }
}

/// Frames in which the kernel has zeros for processes that read memory that was never written, where they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ZeroFrames {
    /// Of 4 KiB.
    pub page: Option<u64>,
    /// The first of the huge one: it is no process's memory, and the kernel counts it as no huge page either (`smaps`).
    pub huge: Option<u64>,
}

impl ZeroFrames {
    /// Whether `frame` is one of them.
    pub fn contains(&self, frame: u64) -> bool {
        let huge = self.huge.map(|first| first..first + ENTRIES as u64);
        self.page == Some(frame) || huge.is_some_and(|frames| frames.contains(&frame))
    }
}

/// What the tables of several processes have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageTableComparison {
    /// By container, then by kind in the order of [`AreaKind::ALL`].
    pub containers: Vec<[EntryCounts; AreaKind::ALL.len()]>,
    /// Different frames of 4 KiB.
    pub frames: u64,
    /// Entries outside of every area: mapped after the areas were read.
    pub unplaced: u64,
}

impl PageTableComparison {
    /// All containers and kinds together.
    pub fn total(&self) -> EntryCounts {
        let mut total = EntryCounts::default();
        self.containers.iter().flatten().for_each(|tally| total += *tally);
        total
    }
}

/// Compares the tables of `processes`, which belong to `containers` containers. `tables` are put in order.
pub(crate) fn compare_page_tables(
    containers: usize,
    processes: &[ProcessAreas],
    tables: &mut [PageTableRegion],
    zeros: ZeroFrames,
    accesses: AccessTracking,
) -> PageTableComparison {
    let mut counter = region::EntryCounter::new(processes, zeros);
    tables.sort_unstable_by_key(|table| (table.region, table.process));
    for region in tables.chunk_by(|a, b| a.region == b.region) {
        counter.count(region);
    }
    let (tallies, frames, unplaced) = counter.finish();
    let mut pages =
        PageTableComparison { containers: vec![Default::default(); containers], frames, unplaced };
    for (process, tallies) in processes.iter().zip(&tallies) {
        let Some(kinds) = pages.containers.get_mut(process.container) else { continue };
        for (sum, tally) in kinds.iter_mut().zip(tallies) {
            let mut tally = *tally;
            if accesses != AccessTracking::InEntries {
                (tally.active, tally.active_groupable) = (None, None);
            }
            *sum += tally;
        }
        for area in &process.areas {
            let tally = &mut kinds[area.kind as usize];
            tally.huge += area.totals.huge;
            if accesses == AccessTracking::InAreas
                && let Some(active) = area.totals.active
            {
                tally.active = Some(tally.active.unwrap_or(0) + active);
            }
        }
    }
    pages
}

#[cfg(test)]
mod tests;
