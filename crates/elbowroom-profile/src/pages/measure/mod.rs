//! The page tables of processes, for `crate::pages::model`.
//!
//! Two ways lead to them. BPF copies whole tables, entries as the processor has them (x86-64, feature `bpf`);
//! `/proc/PID/pagemap` has every frame too, but neither what was used nor which pages are huge: `/proc/PID/smaps` says that of
//! whole areas. No process is stopped, and one that ends or executes another program meanwhile is left out.
//!
//! Whether a page is used can be watched only by making the kernel forget that it was (`/proc/PID/clear_refs`). That makes pages
//! look colder to reclaim than they are, so it is done only when asked for. Every processor is visited then ([`tlb_flush`]).

mod maps;
#[cfg(feature = "bpf")]
mod page_tables;
mod pagemap;
mod probe;
mod tlb_flush;

pub use maps::areas;

use crate::pages::model as pages;
use crate::pages::model::{AccessTracking, PageTableComparison, PageTableRegion, ProcessAreas};
use elbowroom_linux::bounded;
use elbowroom_linux::root::{ReadError, Root, if_present};
#[cfg(feature = "bpf")]
use page_tables::PageTables;
use pagemap::Pagemap;
use probe::FrameProbe;
use rustix::io::Errno;
use serde::Serialize;
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

/// How tables are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PageTableSource {
    /// A BPF program copies them.
    Bpf,
    /// `/proc/PID/pagemap` and `/proc/PID/smaps`.
    Pagemap,
}

/// Why page tables cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PagesError {
    /// A file that everything depends on.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Frames are shown only to the administrator.
    #[error("/proc/PID/pagemap shows no frames to this user: run as root (CAP_SYS_ADMIN)")]
    NotAllowed,
    /// The memory of this process that is looked at first cannot be had.
    #[error("while mapping a few pages: {0}")]
    Memory(Errno),
    /// The BPF way was asked for, and is not there.
    #[error(
        "page tables cannot be copied by BPF here: {because}: leave it out to read /proc/PID/pagemap instead"
    )]
    NoBpf {
        /// Why not.
        because: String,
    },
}

/// What was found, and how.
#[derive(Clone, Debug)]
pub struct PageTableSnapshot {
    /// What the tables have in common.
    pub pages: PageTableComparison,
    /// Processes that were compared, by container.
    pub processes: Vec<u64>,
    /// Processes that ended or executed another program meanwhile, or have more areas or addresses than are looked at.
    pub gone: u64,
}

/// Reads page tables, any number of times.
pub struct PageTableReader {
    root: Root,
    probe: FrameProbe,
    #[cfg(feature = "bpf")]
    bpf: Option<PageTables>,
    /// Why there is no BPF, where there is none.
    refused: Option<String>,
}

impl PageTableReader {
    /// Opens the way that is asked for; the fastest that works where none is.
    ///
    /// # Errors
    /// The way does not work here, or this user may not see frames.
    pub fn open(source: Option<PageTableSource>) -> Result<Self, PagesError> {
        let probe = FrameProbe::new()?;
        let reader = Self {
            root: Root::host()?,
            probe,
            #[cfg(feature = "bpf")]
            bpf: None,
            refused: None,
        };
        match source {
            Some(PageTableSource::Pagemap) => Ok(reader),
            wanted => reader.with_bpf(wanted.is_some()),
        }
    }

    #[cfg(feature = "bpf")]
    fn with_bpf(mut self, must: bool) -> Result<Self, PagesError> {
        match PageTables::open(self.probe.page(), self.probe.frame()) {
            Ok(bpf) => self.bpf = Some(bpf),
            Err(error) if must => return Err(PagesError::NoBpf { because: error.to_string() }),
            Err(error) => self.refused = Some(error.to_string()),
        }
        Ok(self)
    }

    #[cfg(not(feature = "bpf"))]
    fn with_bpf(mut self, must: bool) -> Result<Self, PagesError> {
        let because = "this build has no BPF (cargo build --features bpf)".to_owned();
        if must {
            return Err(PagesError::NoBpf { because });
        }
        self.refused = Some(because);
        Ok(self)
    }

    /// How it reads.
    pub fn source(&self) -> PageTableSource {
        #[cfg(feature = "bpf")]
        if self.bpf.is_some() {
            return PageTableSource::Bpf;
        }
        PageTableSource::Pagemap
    }

    /// Why it does not read the fast way, where it could have.
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Compares the tables of the processes of several containers; no process is in two of them. `watch` is how long to watch which
    /// of their pages are used; without it nothing of the processes is changed, and nothing is known of use.
    ///
    /// # Errors
    /// A file that cannot be read though its process is there, or BPF that stops working.
    pub fn compare(
        &mut self,
        containers: &[Vec<i32>],
        watch: Option<Duration>,
    ) -> Result<PageTableSnapshot, PagesError> {
        let pids: Vec<(usize, i32)> = containers
            .iter()
            .enumerate()
            .flat_map(|(place, pids)| pids.iter().map(move |pid| (place, *pid)))
            .collect();
        if let Some(watch) = watch {
            for (_, pid) in &pids {
                clear_referenced(*pid)?;
            }
            tlb_flush::flush_all_cpus();
            std::thread::sleep(watch);
        }
        let mut taken = CollectedTables::default();
        match self.source() {
            #[cfg(feature = "bpf")]
            PageTableSource::Bpf => self.read_by_bpf(&pids, &mut taken)?,
            _ => self.read_by_pagemap(&pids, watch.is_some(), &mut taken)?,
        }
        let accesses = match (watch, self.source()) {
            (None, _) => AccessTracking::NotWatched,
            (Some(_), PageTableSource::Bpf) => AccessTracking::InEntries,
            (Some(_), PageTableSource::Pagemap) => AccessTracking::InAreas,
        };
        let zeros = self.probe.zeros();
        let pages = pages::compare_page_tables(
            containers.len(),
            &taken.processes,
            &mut taken.tables,
            zeros,
            accesses,
        );
        let mut processes = vec![0; containers.len()];
        taken.processes.iter().filter(|p| !p.areas.is_empty()).for_each(|p| processes[p.container] += 1);
        Ok(PageTableSnapshot { pages, processes, gone: taken.gone })
    }

    /// By `/proc`.
    fn read_by_pagemap(
        &self,
        pids: &[(usize, i32)],
        watched: bool,
        taken: &mut CollectedTables,
    ) -> Result<(), PagesError> {
        let mut rooms: HashMap<usize, u64> = HashMap::new();
        for (container, pid) in pids {
            let Some(before) = if_present(exec_signature(&self.root, *pid))? else {
                taken.gone += 1;
                continue;
            };
            let Some((file, areas)) = if_readable(self.open_process(*pid))? else {
                taken.gone += 1;
                continue;
            };
            let process = taken.processes.len();
            let tables = taken.tables.len();
            let left = rooms.entry(*container).or_insert(MAX_PAGES);
            let is_whole = file.tables(process, &areas, left, |table| taken.tables.push(table))?;
            if !is_whole || if_present(exec_signature(&self.root, *pid))?.as_ref() != Some(&before) {
                taken.tables.truncate(tables);
                taken.gone += 1;
                continue;
            }
            let of_area = |(mut area, _): (pages::MemoryArea, Option<u64>)| {
                area.totals.active = area.totals.active.filter(|_| watched);
                area
            };
            let areas = areas.into_iter().map(of_area).collect();
            taken.processes.push(ProcessAreas { container: *container, areas });
        }
        Ok(())
    }

    fn open_process(&self, pid: i32) -> Result<(Pagemap, ResidentAreas), ReadError> {
        let file = Pagemap::open(pid)?;
        let areas = self.areas(pid, "smaps")?;
        Ok((file, areas))
    }

    fn areas(&self, pid: i32, file: &str) -> Result<ResidentAreas, ReadError> {
        let path = format!("/proc/{pid}/{file}");
        let text = self.root.read(&path)?;
        if text.len() as u64 >= bounded::KERNEL_FILE {
            return Err(ReadError::Io { operation: "reading", path: path.into(), source: Errno::FBIG });
        }
        // Without a program: a kernel thread, or one that has just ended.
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        maps::areas(&text, &program.to_string_lossy()).map_err(|e| ReadError::malformed(path, e))
    }

    /// By BPF.
    #[cfg(feature = "bpf")]
    fn read_by_bpf(&mut self, pids: &[(usize, i32)], taken: &mut CollectedTables) -> Result<(), PagesError> {
        let mut before = Vec::new();
        let mut wanted = Vec::new();
        for (container, pid) in pids {
            let found =
                if_present(exec_signature(&self.root, *pid))?.zip(if_readable(self.areas(*pid, "maps"))?);
            let Some((image, areas)) = found else {
                taken.gone += 1;
                continue;
            };
            wanted.push(*pid as u32);
            before.push(image);
            let areas = areas.into_iter().map(|(area, _)| area).collect();
            taken.processes.push(ProcessAreas { container: *container, areas });
        }
        let bpf = self.bpf.as_mut().expect("the source is BPF only where it is open");
        let mut changed = bpf
            .read(&wanted, |table| taken.tables.push(table))
            .map_err(|error| PagesError::NoBpf { because: error.to_string() })?;
        for (process, pid) in wanted.iter().enumerate() {
            if if_present(exec_signature(&self.root, *pid as i32))?.as_ref() != Some(&before[process]) {
                changed.push(process);
            }
        }
        changed.sort_unstable();
        changed.dedup();
        taken.tables.retain(|table| changed.binary_search(&table.process).is_err());
        changed.iter().for_each(|process| taken.processes[*process].areas.clear());
        taken.gone += changed.len() as u64;
        Ok(())
    }
}

/// Pages of addresses that are looked at for all processes of a container: 8 TiB, of which the file says 16 GiB.
const MAX_PAGES: u64 = 1 << 31;

/// `Ok(None)` for what is absent, and for a list of areas that is longer than is read: a process has as many as it likes.
fn if_readable<T>(result: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match if_present(result) {
        Err(ReadError::Io { source: Errno::FBIG, .. }) => Ok(None),
        result => result,
    }
}

/// Areas with their resident bytes, where those are known.
type ResidentAreas = Vec<(pages::MemoryArea, Option<u64>)>;

/// What a look has brought so far.
#[derive(Default)]
struct CollectedTables {
    processes: Vec<ProcessAreas>,
    tables: Vec<PageTableRegion>,
    gone: u64,
}

/// What changes when a process executes another program: where its code and stack begin and end (`/proc/PID/stat`, fields 26 to
/// 28). Absent for a process that is gone.
fn exec_signature(root: &Root, pid: i32) -> Result<Vec<String>, ReadError> {
    let stat = root.read(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    // The state, first after the command, is field 3.
    Ok(fields.split(' ').skip(26 - 3).take(3).map(str::to_owned).collect())
}

/// Makes the kernel forget which pages of a process were used (`clear_refs`, 1). One that is gone is no error.
fn clear_referenced(pid: i32) -> Result<(), ReadError> {
    let path = Path::new("/proc").join(pid.to_string()).join("clear_refs");
    let written = std::fs::write(&path, "1").map_err(|error| ReadError::Io {
        operation: "writing",
        source: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        path,
    });
    if_present(written).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_too_many_areas_is_left_out_and_not_all_with_it() {
        let io = |source| ReadError::Io { operation: "reading", path: "/proc/7/smaps".into(), source };
        for source in [Errno::FBIG, Errno::NOENT] {
            assert!(if_readable::<()>(Err(io(source))).unwrap().is_none());
        }
        assert!(if_readable::<()>(Err(io(Errno::ACCESS))).is_err());
    }
}
