//! Page faults by cgroup and class, counted by `bpf/fault_functions.bpf.c` or `bpf/fault_tracepoints.bpf.c`.

use crate::counter;
use crate::counter::{CounterScope, PerfCounterEvent};
use crate::faults::model::{BUCKETS, CLASSES, FaultCounts, FaultTier};
use elbowroom_linux::bpf::object::{Aligned, map, open, set_hierarchy, set_max_entries, setup_error};
use elbowroom_linux::bpf::{BpfError, SetupStep, TrackedHierarchy};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object};
use libbpf_sys as sys;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

static FUNCTIONS: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/fault_functions.bpf.o")));
static TRACEPOINTS: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/fault_tracepoints.bpf.o")));

/// A program on a function that not every kernel has: without huge pages there are no writes to shared ones.
const OPTIONAL_PROGRAM: &str = "elbowroom_huge_write_protect";

/// The program that times faults, and costs all of them.
const LATENCY_PROGRAM: &str = "elbowroom_begin";

/// The program that is called for major faults of one CPU.
const MAJOR_FAULT_PROGRAM: &str = "elbowroom_major";

/// `struct counts` of the programs: this many words.
const COUNTS_WORDS: usize = HEADER_WORDS + 3 * CLASSES + 2 + BUCKETS;
/// Its words that are about the cgroup, and no counts.
const HEADER_WORDS: usize = 3;

/// The programs at work. Dropping them removes them.
#[derive(Debug)]
pub struct FaultCounter {
    tier: FaultTier,
    slots: MapHandle,
    counts: MapHandle,
    lost: MapHandle,
    owners: MapHandle,
    names: MapHandle,
    /// How often owners were named.
    owner_updates: u64,
    /// Descriptors of the programs, for what they cost.
    programs: Vec<OwnedFd>,
    _links: Vec<Link>,
}

/// How often the programs were called, and how long that took, while [`FaultCounter::measure`] was looking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BpfRunStats {
    /// Calls.
    pub runs: u64,
    /// Nanoseconds of all of them.
    pub ns: u64,
}

impl FaultCounter {
    /// Loads and attaches the programs. `latency` asks for the time of some faults, where the tier can tell; `groups` is how many
    /// cgroups may be counted; `cpus` are those that are online.
    ///
    /// # Errors
    /// [`BpfError::Refused`] with what this kernel does not allow.
    pub fn open(
        tier: FaultTier,
        latency: bool,
        hierarchy: TrackedHierarchy,
        groups: u32,
        cpus: &[u32],
    ) -> Result<Self, BpfError> {
        let without: &[&str] = if latency { &[] } else { &[LATENCY_PROGRAM] };
        let object = match tier {
            FaultTier::Functions => load(FUNCTIONS, hierarchy, groups, without).or_else(|first| {
                load(FUNCTIONS, hierarchy, groups, &[without, &[OPTIONAL_PROGRAM]].concat())
                    .map_err(|_| first)
            })?,
            FaultTier::Tracepoints if !cfg!(target_arch = "x86_64") => return Err(BpfError::Architecture),
            FaultTier::Tracepoints => load(TRACEPOINTS, hierarchy, groups, &[])?,
        };
        let handle = |name| MapHandle::try_from(&map(&object, name)).map_err(setup_error(SetupStep::Map));
        let (slots, counts) = (handle("slots")?, handle("counts")?);
        let (lost, owners, names) = (handle("lost")?, handle("owners")?, handle("names")?);
        let mut links = Vec::new();
        let mut programs = Vec::new();
        for program in object.progs_mut().filter(|program| program.autoload()) {
            if program.name() == MAJOR_FAULT_PROGRAM {
                for cpu in cpus {
                    let event = counter::open(PerfCounterEvent::MajorFaults, CounterScope::AllTasks, *cpu)
                        .map_err(|error| {
                            setup_error(SetupStep::Attach)(std::io::Error::from(error).into())
                        })?;
                    // libbpf closes it with the link.
                    links.push(
                        program
                            .attach_perf_event(event.into_raw_fd())
                            .map_err(setup_error(SetupStep::Attach))?,
                    );
                }
            } else {
                links.push(program.attach().map_err(setup_error(SetupStep::Attach))?);
            }
            let own = program.as_fd().try_clone_to_owned();
            programs.push(own.map_err(|error| setup_error(SetupStep::Attach)(error.into()))?);
        }
        Ok(Self { tier, slots, counts, lost, owners, names, owner_updates: 0, programs, _links: links })
    }

    /// How faults are followed.
    pub fn tier(&self) -> FaultTier {
        self.tier
    }

    /// Says which container each cgroup is a part of, by any number but 0 that only this container has; 0 for those that are
    /// of none. For duplicates; counts are by cgroup.
    ///
    /// # Errors
    /// The kernel's map is full.
    pub(crate) fn set_owners(
        &mut self,
        owners: impl IntoIterator<Item = (u64, u64)>,
    ) -> Result<(), BpfError> {
        for (cgroup, owner) in owners {
            self.owners
                .update(&cgroup.to_ne_bytes(), &owner.to_ne_bytes(), MapFlags::ANY)
                .map_err(|source| BpfError::Group { operation: "name the owner of", cgroup, source })?;
        }
        self.owner_updates += 1;
        let named = self.names.update(&0u32.to_ne_bytes(), &self.owner_updates.to_ne_bytes(), MapFlags::ANY);
        named.map_err(|source| BpfError::Group { operation: "name owners beside", cgroup: 0, source })
    }

    /// Everything counted so far by cgroup id, and how many faults of further cgroups were not counted.
    ///
    /// # Errors
    /// The kernel's map cannot be read.
    pub fn read(&self) -> Result<(HashMap<u64, FaultCounts>, u64), BpfError> {
        let mut all = HashMap::new();
        for key in self.slots.keys() {
            let cgroup = u64::from_ne_bytes(key[..].try_into().expect("a key is a cgroup id"));
            let error = |source| BpfError::Group { operation: "read the faults of", cgroup, source };
            let Some(slot) = self.slots.lookup(&key, MapFlags::ANY).map_err(error)? else { continue };
            let found = self.counts.lookup_percpu(&slot, MapFlags::ANY).map_err(error)?;
            all.insert(cgroup, counts(&found.unwrap_or_default()));
        }
        let lost = self.lost.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let lost = lost.map_err(|source| BpfError::Group {
            operation: "read the faults beside",
            cgroup: 0,
            source,
        })?;
        let lost = lost.and_then(|bytes| Some(u64::from_ne_bytes(bytes[..].try_into().ok()?)));
        Ok((all, lost.unwrap_or(0)))
    }

    /// Lets the kernel time the programs while `meanwhile` runs (`BPF_ENABLE_STATS`), which makes each call some tens of
    /// nanoseconds longer. The kernel stops when this process ends.
    ///
    /// # Errors
    /// The kernel does not allow it.
    pub fn measure(&self, meanwhile: impl FnOnce()) -> Result<BpfRunStats, BpfError> {
        // SAFETY: the call takes a number, and returns a new descriptor or a negative error.
        let fd = unsafe { sys::bpf_enable_stats(sys::BPF_STATS_RUN_TIME) };
        if fd < 0 {
            return Err(setup_error(SetupStep::Map)(std::io::Error::from_raw_os_error(-fd).into()));
        }
        // SAFETY: the kernel has just returned this descriptor; no other code knows or closes it.
        let enabled = unsafe { OwnedFd::from_raw_fd(fd) };
        let before = self.run_stats();
        meanwhile();
        let after = self.run_stats();
        drop(enabled);
        Ok(BpfRunStats {
            runs: after.runs.saturating_sub(before.runs),
            ns: after.ns.saturating_sub(before.ns),
        })
    }

    fn run_stats(&self) -> BpfRunStats {
        let mut sum = BpfRunStats::default();
        for program in &self.programs {
            let mut info = sys::bpf_prog_info::default();
            let mut size = size_of::<sys::bpf_prog_info>() as u32;
            // SAFETY: `info` is a whole structure of `size` bytes without pointers set, so the kernel writes into it alone.
            let result =
                unsafe { sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut size) };
            if result == 0 {
                sum.runs += info.run_cnt;
                sum.ns += info.run_time_ns;
            }
        }
        sum
    }
}

fn load(
    object: &'static Aligned<[u8]>,
    hierarchy: TrackedHierarchy,
    groups: u32,
    without: &[&str],
) -> Result<Object, BpfError> {
    let mut object = open(object)?;
    set_hierarchy(&mut object, hierarchy);
    set_max_entries(&mut object, "slots", groups)?;
    set_max_entries(&mut object, "counts", groups)?;
    for mut program in object.progs_mut().filter(|program| without.iter().any(|name| program.name() == *name))
    {
        program.set_autoload(false);
    }
    object.load().map_err(setup_error(SetupStep::Load))
}

/// The sum of `struct counts` of every CPU. A fault that turns out to be of swap is taken from the anonymous ones where it ends: on
/// another CPU than it began on, or without having been counted at its begin, when nothing counted yet.
fn counts(cpus: &[Vec<u8>]) -> FaultCounts {
    let mut words = [0u64; COUNTS_WORDS];
    for bytes in cpus {
        assert_eq!(bytes.len(), 8 * COUNTS_WORDS, "the map has the values its source names");
        for (sum, word) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    let (faults, rest) = words[HEADER_WORDS..].split_at(CLASSES);
    let (timed, rest) = rest.split_at(CLASSES);
    let (ns, rest) = rest.split_at(CLASSES);
    FaultCounts {
        faults: std::array::from_fn(|class| u64::try_from(faults[class] as i64).unwrap_or(0)),
        timed: timed.try_into().expect("split at the classes"),
        ns: ns.try_into().expect("split at the classes"),
        major: rest[0],
        duplicates: rest[1],
        latency: rest[2..].try_into().expect("the rest are the buckets"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::model::FaultClass;

    #[test]
    fn a_fault_that_is_taken_away_and_was_never_counted_leaves_none() {
        let anonymous = HEADER_WORDS + FaultClass::Anonymous as usize;
        let of_cpus = |counted: &[i64]| {
            let cpu = |n: &i64| {
                let mut words = [0u64; COUNTS_WORDS];
                words[anonymous] = *n as u64;
                words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>()
            };
            counts(&counted.iter().map(cpu).collect::<Vec<_>>()).of(FaultClass::Anonymous)
        };
        assert_eq!([of_cpus(&[3, 4]), of_cpus(&[-2, 5]), of_cpus(&[1, -3]), of_cpus(&[])], [7, 3, 0, 0]);
    }
}
