//! The comparison itself, one region of 2 MiB after another.

use super::{AreaKind, ENTRIES, EntryCounts, PageTableEntry, PageTableRegion, ProcessAreas, ZeroFrames};

/// Kinds, and one more place for entries outside of every area.
const KIND_SLOTS: usize = AreaKind::ALL.len() + 1;
const OUTSIDE_AREAS: u8 = AreaKind::ALL.len() as u8;

/// Counts by process and kind.
pub(super) struct EntryCounter<'a> {
    processes: &'a [ProcessAreas],
    zeros: ZeroFrames,
    tallies: Vec<[EntryCounts; KIND_SLOTS]>,
    /// Every entry that is not of zeros: its frame, process and place, and whether it is groupable, in one word, so that
    /// ordering them brings the entries of each frame together.
    frames: Vec<u64>,
}

/// Bits of the word that are not the frame's: 1 for groupable, 3 for the place, 20 for the process.
const OWNER_BITS: u32 = 24;
const KIND_BITS: u32 = 3;
/// More processes than fit have the last one's number, which only makes two of them look like one.
const LAST_PROCESS: usize = (1 << (OWNER_BITS - KIND_BITS - 1)) - 1;

impl<'a> EntryCounter<'a> {
    pub(super) fn new(processes: &'a [ProcessAreas], zeros: ZeroFrames) -> Self {
        let tally = EntryCounts { active: Some(0), active_groupable: Some(0), ..EntryCounts::default() };
        Self { processes, zeros, tallies: vec![[tally; KIND_SLOTS]; processes.len()], frames: Vec::new() }
    }

    /// Compares the tables of one region, at most one of each process.
    pub(super) fn count(&mut self, tables: &[PageTableRegion]) {
        let places: Vec<[u8; ENTRIES]> = tables.iter().map(|table| self.entry_kinds(table)).collect();
        let mut here: Vec<(u64, usize)> = Vec::with_capacity(tables.len());
        for slot in 0..ENTRIES {
            self.compare(tables, &places, slot, &mut here);
        }
    }

    /// Compares the entries of one page; `here` is only room for them.
    fn compare(
        &mut self,
        tables: &[PageTableRegion],
        places: &[[u8; ENTRIES]],
        slot: usize,
        here: &mut Vec<(u64, usize)>,
    ) {
        here.clear();
        for (at, table) in tables.iter().enumerate() {
            let entry = table.entries[slot];
            if entry.is_mapped() {
                here.push((entry.frame(), at));
            }
        }
        if here.len() > 1 {
            here.sort_unstable();
        }
        for same in here.chunk_by(|a, b| a.0 == b.0) {
            let across = self.is_across(tables, same);
            for (_, at) in same {
                let entry = tables[*at].entries[slot];
                self.add(tables[*at].process, places[*at][slot], entry, same.len() > 1, across);
            }
        }
    }

    fn is_across(&self, tables: &[PageTableRegion], same: &[(u64, usize)]) -> bool {
        let container = |at: usize| self.processes[tables[at].process].container;
        same.len() > 1 && same.iter().any(|(_, at)| container(*at) != container(same[0].1))
    }

    fn add(&mut self, process: usize, place: u8, entry: PageTableEntry, groupable: bool, across: bool) {
        let tally = &mut self.tallies[process][place as usize];
        let is_zero = self.zeros.contains(entry.frame());
        tally.entries += 1;
        tally.huge += u64::from(entry.is_huge() && !is_zero);
        let accessed = u64::from(entry.is_accessed());
        tally.active = tally.active.map(|n| n + accessed);
        if is_zero {
            tally.zero += 1;
            return;
        }
        if groupable {
            tally.groupable += 1;
            tally.groupable_across += u64::from(across);
            tally.active_groupable = tally.active_groupable.map(|n| n + accessed);
        }
        let owner = (process.min(LAST_PROCESS) as u64) << KIND_BITS | u64::from(place);
        self.frames.push(entry.frame() << OWNER_BITS | owner << 1 | u64::from(groupable));
    }

    /// The place of each entry of a table, from the areas of its process.
    fn entry_kinds(&self, table: &PageTableRegion) -> [u8; ENTRIES] {
        let mut places = [OUTSIDE_AREAS; ENTRIES];
        let (first, end) = (table.region * ENTRIES as u64, (table.region + 1) * ENTRIES as u64);
        let areas = &self.processes[table.process].areas;
        let begin = areas.partition_point(|area| area.end <= first);
        for area in areas[begin..].iter().take_while(|area| area.first < end) {
            let from = area.first.max(first) - first;
            let to = area.end.min(end) - first;
            places[from as usize..to as usize].fill(area.kind as u8);
        }
        places
    }

    /// Tallies by process, the number of different frames, and the entries outside of every area.
    pub(super) fn finish(mut self) -> (Vec<[EntryCounts; AreaKind::ALL.len()]>, u64, u64) {
        self.frames.sort_unstable();
        let process = |word: u64| word >> (KIND_BITS + 1) & LAST_PROCESS as u64;
        let mut different = 0;
        for same in self.frames.chunk_by(|a, b| a >> OWNER_BITS == b >> OWNER_BITS) {
            different += 1;
            // In order, so that the first and the last are of different processes where any two are.
            if process(same[0]) == process(same[same.len() - 1]) {
                continue;
            }
            for word in same.iter().filter(|word| **word & 1 == 0) {
                let place = (word >> 1) as usize & ((1 << KIND_BITS) - 1);
                self.tallies[process(*word) as usize][place].elsewhere += 1;
            }
        }
        let unplaced = self.tallies.iter().map(|places| places[OUTSIDE_AREAS as usize].entries).sum();
        let kinds = |places: [EntryCounts; KIND_SLOTS]| std::array::from_fn(|kind| places[kind]);
        (self.tallies.into_iter().map(kinds).collect(), different, unplaced)
    }
}
