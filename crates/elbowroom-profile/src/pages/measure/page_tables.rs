//! Page tables of processes, copied by `bpf/page_tables.bpf.c`: how its memory is read, and how often it must be called.

use crate::pages::model as pages;
use crate::pages::model::{ENTRIES, PageTableEntry};
use elbowroom_linux::bpf::object::{Aligned, map, mapped, open, setup_error};
use elbowroom_linux::bpf::shared::{ArrayMapping, SharedValue};
use elbowroom_linux::bpf::{BpfError, SetupStep};
use libbpf_rs::{Iter, Link, MapCore, MapFlags, MapHandle};
use std::collections::HashMap;
use std::io::Read;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/page_tables.bpf.o")));

/// Processes that are followed at once: `max_entries` of `walks`.
const MAX_WALKS: usize = 4096;

/// What stands for no table; the program takes it from here.
const NO_TABLE: u64 = 0xffff_ffff;

/// `struct table` of the program.
#[repr(C)]
#[derive(Debug)]
struct TableCopy {
    address: AtomicU64,
    pid: AtomicU32,
    level: AtomicU32,
    first: AtomicU32,
    end: AtomicU32,
    entries: [AtomicU64; ENTRIES],
}

/// `struct state` of the program.
#[repr(C)]
#[derive(Debug)]
struct WalkProgramState {
    base: AtomicU64,
    levels: AtomicU64,
    count: AtomicU64,
    probe_pid: AtomicU64,
    probe_address: AtomicU64,
    probe_frame: AtomicU64,
    none: AtomicU64,
}

impl SharedValue for TableCopy {}
impl SharedValue for WalkProgramState {}

/// `struct walk` of the program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct ProcessWalk {
    next: u64,
    mm: u64,
    done: u32,
    changed: u32,
}

impl ProcessWalk {
    const SIZE: usize = 24;

    fn from_bytes(bytes: &[u8]) -> Self {
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("a word has 8 bytes"));
        let half =
            |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("half a word has 4 bytes"));
        Self { next: word(0), mm: word(8), done: half(16), changed: half(20) }
    }
}

const _: () =
    assert!(size_of::<ProcessWalk>() == ProcessWalk::SIZE && size_of::<TableCopy>() == 24 + 8 * ENTRIES);

/// The loaded program, and where the kernel's direct map begins. Dropping it removes the program.
#[derive(Debug)]
pub struct PageTables {
    link: Link,
    walks: MapHandle,
    tables: ArrayMapping<TableCopy>,
    state: ArrayMapping<WalkProgramState>,
}

impl PageTables {
    /// Loads the program, and finds the direct map by `page` of this process, which lies in `frame`.
    ///
    /// # Errors
    /// The kernel refuses the program, or the page is not found: another architecture, or encrypted memory.
    pub fn open(page: u64, frame: u64) -> Result<Self, BpfError> {
        if !cfg!(target_arch = "x86_64") {
            return Err(BpfError::Architecture);
        }
        let object = open(OBJECT)?.load().map_err(setup_error(SetupStep::Load))?;
        let walks = MapHandle::try_from(&map(&object, "walks")).map_err(setup_error(SetupStep::Map))?;
        let tables = mapped(&object, "tables")?;
        let state = mapped::<WalkProgramState>(&object, "states")?;
        let program = object.progs_mut().next().expect("the object has one program");
        let link = program.attach().map_err(setup_error(SetupStep::Attach))?;
        let opened = Self { link, walks, tables, state };
        let state = opened.state();
        state.probe_pid.store(u64::from(std::process::id()), Ordering::Relaxed);
        state.probe_address.store(page * 4096, Ordering::Relaxed);
        state.probe_frame.store(frame, Ordering::Relaxed);
        state.none.store(NO_TABLE, Ordering::Relaxed);
        opened.run_iterator()?;
        match opened.state().base.load(Ordering::Relaxed) {
            0 => Err(BpfError::DirectMap),
            _ => Ok(opened),
        }
    }

    /// Calls `each` with every table of the processes `pids` in which something is mapped; a table's process is its place in
    /// `pids`. Returns the places of those that have gone or changed their memory meanwhile, of which some tables may have been
    /// given.
    ///
    /// # Errors
    /// The kernel's table of processes cannot be changed, or the program cannot be called.
    pub fn read(
        &mut self,
        pids: &[u32],
        mut each: impl FnMut(pages::PageTableRegion),
    ) -> Result<Vec<usize>, BpfError> {
        let mut gone = Vec::new();
        for (at, some) in pids.chunks(MAX_WALKS).enumerate() {
            let places: HashMap<u32, usize> =
                some.iter().enumerate().map(|(place, pid)| (*pid, at * MAX_WALKS + place)).collect();
            let result = self.read_batch(&places, &mut each);
            for pid in some {
                let _ = self.walks.delete(&pid.to_ne_bytes());
            }
            gone.extend(result?);
        }
        Ok(gone)
    }

    fn read_batch(
        &mut self,
        places: &HashMap<u32, usize>,
        each: &mut impl FnMut(pages::PageTableRegion),
    ) -> Result<Vec<usize>, BpfError> {
        let map_error = |operation| move |source| BpfError::Process { operation, source };
        // How far each process was read by the last call.
        let mut left: HashMap<u32, u64> = places.keys().map(|pid| (*pid, 0)).collect();
        for pid in left.keys() {
            self.walks
                .update(&pid.to_ne_bytes(), &[0; ProcessWalk::SIZE], MapFlags::ANY)
                .map_err(map_error("follow"))?;
        }
        let mut gone = Vec::new();
        let mut moved = true;
        // A process that has ended is never visited: what stands still is gone.
        while !left.is_empty() && moved {
            self.run_iterator()?;
            let count = self.state().count.load(Ordering::Relaxed) as usize;
            let copied = &self.tables[..count.min(self.tables.len())];
            copied.iter().for_each(|table| emit_tables(table, places, each));
            moved = false;
            for pid in left.keys().copied().collect::<Vec<_>>() {
                let walk =
                    self.walks.lookup(&pid.to_ne_bytes(), MapFlags::ANY).map_err(map_error("look at"))?;
                let walk = walk.map(|bytes| ProcessWalk::from_bytes(&bytes)).unwrap_or_default();
                if walk.done != 0 {
                    left.remove(&pid);
                    gone.extend((walk.changed != 0).then_some(places[&pid]));
                } else if left.insert(pid, walk.next) != Some(walk.next) {
                    moved = true;
                }
            }
        }
        gone.extend(left.into_keys().map(|pid| places[&pid]));
        Ok(gone)
    }

    /// Runs the program over all tasks.
    fn run_iterator(&self) -> Result<(), BpfError> {
        self.state().count.store(0, Ordering::Relaxed);
        let call = || {
            let mut iter = Iter::new(&self.link)?;
            let mut nothing = [0; 64];
            while iter.read(&mut nothing).map_err(libbpf_rs::Error::from)? > 0 {}
            Ok(())
        };
        call().map_err(|source| BpfError::Process { operation: "visit", source })
    }

    fn state(&self) -> &WalkProgramState {
        &self.state[0]
    }
}

/// One copied table as tables of the lowest level.
fn emit_tables(
    copied: &TableCopy,
    places: &HashMap<u32, usize>,
    each: &mut impl FnMut(pages::PageTableRegion),
) {
    let load = |at: usize| copied.entries[at].load(Ordering::Relaxed);
    let Some(process) = places.get(&copied.pid.load(Ordering::Relaxed)).copied() else { return };
    let level = copied.level.load(Ordering::Relaxed);
    let region = (copied.address.load(Ordering::Relaxed) >> 12) / ENTRIES as u64;
    let first = copied.first.load(Ordering::Relaxed) as usize;
    let end = (copied.end.load(Ordering::Relaxed) as usize).min(ENTRIES);
    let huge = |region: u64, start: PageTableEntry| pages::PageTableRegion {
        process,
        region,
        entries: Box::new(std::array::from_fn(|at| start.within(at as u64))),
    };
    match level {
        1 => {
            let entries = Box::new(std::array::from_fn(|at| PageTableEntry::from_x86(load(at), 1)));
            if entries.iter().any(|entry| entry.is_mapped()) {
                each(pages::PageTableRegion { process, region, entries });
            }
        }
        2 => {
            for at in first..end {
                let start = PageTableEntry::from_x86(load(at), 2);
                if start.is_mapped() {
                    each(huge(region + at as u64, start));
                }
            }
        }
        _ => {
            let start = PageTableEntry::from_x86(load(0), 3);
            for at in 0..ENTRIES as u64 {
                each(huge(region + at, start.within(at * ENTRIES as u64)));
            }
        }
    }
}
