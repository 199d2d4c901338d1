use super::*;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};

fn area(first: u64, end: u64, kind: AreaKind) -> MemoryArea {
    MemoryArea { first, end, kind, totals: AreaTotals::default() }
}

fn process(container: usize, areas: &[MemoryArea]) -> ProcessAreas {
    ProcessAreas { container, areas: areas.to_vec() }
}

/// An entry as the processor has it.
fn entry(frame: u64, accessed: bool) -> PageTableEntry {
    PageTableEntry::from_x86(frame << 12 | 1 | u64::from(accessed) << 5, 1)
}

fn zero(page: u64) -> ZeroFrames {
    ZeroFrames { page: Some(page), huge: None }
}

/// Tables of one process from page, frame.
fn tables(process: usize, mapped: &[(u64, PageTableEntry)]) -> Vec<PageTableRegion> {
    let mut regions: HashMap<u64, Box<[PageTableEntry; ENTRIES]>> = HashMap::new();
    for (page, entry) in mapped {
        let entries =
            regions.entry(page / 512).or_insert_with(|| Box::new([PageTableEntry::default(); ENTRIES]));
        entries[(page % 512) as usize] = *entry;
    }
    regions.into_iter().map(|(region, entries)| PageTableRegion { process, region, entries }).collect()
}

#[test]
fn same_page_and_frame_are_groupable_and_other_addresses_are_elsewhere() {
    let whole = [area(0, 4096, AreaKind::Heap)];
    let processes = [process(0, &whole), process(0, &whole), process(1, &whole)];
    let mut all = tables(
        0,
        &[(1, entry(70, true)), (2, entry(80, false)), (3, entry(90, false)), (600, entry(5, false))],
    );
    all.extend(tables(1, &[(1, entry(70, false)), (3, entry(91, false))]));
    all.extend(tables(2, &[(9, entry(80, true)), (3, entry(90, true)), (5, entry(7, false))]));
    let pages = compare_page_tables(2, &processes, &mut all, zero(7), AccessTracking::InEntries);
    let heap = AreaKind::Heap as usize;
    let web = pages.containers[0][heap];
    assert_eq!((web.entries, web.groupable, web.groupable_across, web.elsewhere), (6, 3, 1, 1));
    assert_eq!((web.exclusive(), web.active, web.active_groupable), (2, Some(1), Some(1)));
    let other = pages.containers[1][heap];
    assert_eq!((other.entries, other.groupable, other.elsewhere, other.zero), (3, 1, 1, 1));
    assert_eq!((other.exclusive(), other.active, other.active_groupable), (0, Some(2), Some(1)));
    assert_eq!((pages.frames, pages.unplaced), (5, 0));
}

#[test]
fn the_huge_page_of_zeros_is_zeros_and_no_huge_page() {
    let whole = [area(0, 4096, AreaKind::Heap)];
    let processes = [process(0, &whole), process(0, &whole)];
    let huge = |first: u64| PageTableEntry::from_x86(first << 12 | 0x81, 2);
    let mapped: Vec<(u64, PageTableEntry)> = (0..512)
        .flat_map(|n| [(n, huge(1024).within(n)), (512 + n, huge(2048).within(n))])
        .chain([(1024, entry(7, false)), (1025, entry(1023, false)), (1026, entry(1536, false))])
        .collect();
    let mut all = [tables(0, &mapped), tables(1, &mapped)].concat();
    let zeros = ZeroFrames { page: Some(7), huge: Some(1024) };
    let tally = compare_page_tables(1, &processes, &mut all, zeros, AccessTracking::NotWatched).total();
    assert_eq!((tally.entries, tally.zero, tally.huge), (2 * 1027, 2 * 513, 2 * 512));
    assert_eq!((tally.groupable, tally.exclusive()), (2 * 514, 0));
    let unknown = compare_page_tables(1, &processes, &mut all, zero(7), AccessTracking::NotWatched).total();
    assert_eq!((unknown.zero, unknown.huge), (2, 2 * 1024), "a kernel that has none");
}

#[test]
fn two_mappings_of_one_process_share_with_no_other() {
    let processes = [process(0, &[area(0, 512, AreaKind::Shared)]), process(0, &[])];
    let mut all = tables(0, &[(1, entry(70, false)), (2, entry(70, false))]);
    let pages =
        compare_page_tables(1, &processes, &mut all, ZeroFrames::default(), AccessTracking::NotWatched);
    let tally = pages.containers[0][AreaKind::Shared as usize];
    assert_eq!((tally.entries, tally.groupable, tally.elsewhere, tally.exclusive()), (2, 0, 0, 2));
    assert_eq!((pages.frames, tally.active), (1, None));
}

#[test]
fn entries_are_of_the_area_they_lie_in_and_the_rest_is_said() {
    let areas =
        [area(10, 20, AreaKind::Code), area(20, 30, AreaKind::Heap), area(1000, 2000, AreaKind::File)];
    let mut all = tables(0, &[9, 10, 19, 20, 29, 30, 999, 1000, 1024].map(|page| (page, entry(page, false))));
    let pages = compare_page_tables(
        1,
        &[process(0, &areas)],
        &mut all,
        ZeroFrames::default(),
        AccessTracking::NotWatched,
    );
    let entries = |kind: AreaKind| pages.containers[0][kind as usize].entries;
    assert_eq!((entries(AreaKind::Code), entries(AreaKind::Heap), entries(AreaKind::File)), (2, 2, 2));
    assert_eq!((pages.unplaced, pages.total().entries), (3, 6));
}

#[test]
fn what_areas_say_counts_where_entries_say_nothing() {
    let told = AreaTotals { huge: 512, active: Some(40) };
    let areas = [MemoryArea { totals: told, ..area(0, 512, AreaKind::Heap) }];
    let mut all = tables(0, &[(1, entry(1, true))]);
    let mut count = |accesses| {
        compare_page_tables(1, &[process(0, &areas)], &mut all, ZeroFrames::default(), accesses).total()
    };
    assert_eq!((count(AccessTracking::InAreas).huge, count(AccessTracking::InAreas).active), (512, Some(40)));
    assert_eq!(count(AccessTracking::NotWatched).active, None);
}

/// Processes that map few pages to few frames, so that much coincides.
fn worlds() -> impl Strategy<Value = Vec<(usize, Vec<(u64, u64)>)>> {
    let mappings = prop::collection::vec((0u64..1100, 1u64..40), 0..60);
    prop::collection::vec((0usize..3, mappings), 1..6)
}

proptest! {
    /// Against the definition, read naively.
    #[test]
    fn every_entry_is_counted_once(world in worlds(), seed: u64) {
        let whole = [area(0, 1 << 20, AreaKind::Heap)];
        let mapped: Vec<HashMap<u64, u64>> =
            world.iter().map(|(_, pairs)| pairs.iter().copied().collect()).collect();
        let processes: Vec<ProcessAreas> = world.iter().map(|(container, _)| process(*container, &whole)).collect();
        let mut all: Vec<PageTableRegion> = mapped.iter().enumerate().flat_map(|(at, pairs)| {
            tables(at, &pairs.iter().map(|(page, frame)| (*page, entry(*frame, false))).collect::<Vec<_>>())
        }).collect();
        let turn = seed as usize % all.len().max(1);
        all.rotate_left(turn);
        let found = compare_page_tables(3, &processes, &mut all, zero(39), AccessTracking::NotWatched);
        let mut expected = [EntryCounts::default(); 3];
        for (at, pairs) in mapped.iter().enumerate() {
            for (page, frame) in pairs {
                let tally = &mut expected[world[at].0];
                let others = || mapped.iter().enumerate().filter(|(other, _)| *other != at);
                tally.entries += 1;
                if *frame == 39 {
                    tally.zero += 1;
                } else if others().any(|(_, o)| o.get(page) == Some(frame)) {
                    tally.groupable += 1;
                    let across = others().any(|(i, o)| world[i].0 != world[at].0 && o.get(page) == Some(frame));
                    tally.groupable_across += u64::from(across);
                } else if others().any(|(_, o)| o.values().any(|f| f == frame)) {
                    tally.elsewhere += 1;
                }
            }
        }
        let heap: Vec<EntryCounts> = found.containers.iter().map(|kinds| kinds[AreaKind::Heap as usize]).collect();
        prop_assert_eq!(heap, expected.to_vec());
        let frames: BTreeSet<u64> = mapped.iter().flat_map(HashMap::values).copied().filter(|f| *f != 39).collect();
        prop_assert_eq!(found.frames, frames.len() as u64);
    }
}
