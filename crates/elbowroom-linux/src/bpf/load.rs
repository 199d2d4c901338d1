//! Getting `active.bpf.c` into the kernel.

use super::object::{Aligned, map, mapped, open, set_hierarchy, set_max_entries, setup_error};
use super::shared::{ArrayMapping, CpuRecord};
use super::{BpfError, SetupStep, TrackedHierarchy};
use libbpf_rs::{Link, MapHandle, num_possible_cpus};
use std::sync::atomic::AtomicU64;

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/active.bpf.o")));

/// What is left of the object once it runs. Closing these is all it takes to remove it: nothing is pinned.
#[derive(Debug)]
pub(super) struct LoadedProgram {
    /// Keeps the program attached.
    _link: Link,
    /// cgroup id -> slot.
    pub(super) groups: MapHandle,
    /// Nanoseconds by slot.
    pub(super) totals: ArrayMapping<AtomicU64>,
    /// A bit per slot.
    pub(super) ran: ArrayMapping<AtomicU64>,
    /// One record per possible CPU.
    pub(super) cpus: ArrayMapping<CpuRecord>,
}

pub(super) fn load(hierarchy: TrackedHierarchy) -> Result<LoadedProgram, BpfError> {
    let mut object = open(OBJECT)?;
    let cpus = num_possible_cpus().map_err(setup_error(SetupStep::Open))?;
    set_max_entries(&mut object, "cpus", cpus as u32)?;
    set_hierarchy(&mut object, hierarchy);
    let object = object.load().map_err(setup_error(SetupStep::Load))?;
    let groups = MapHandle::try_from(&map(&object, "groups")).map_err(setup_error(SetupStep::Map))?;
    let totals = mapped(&object, "totals")?;
    let ran = mapped(&object, "ran")?;
    let cpus = mapped(&object, "cpus")?;
    let program = object.progs_mut().next().expect("the object has one program");
    let link = program.attach().map_err(setup_error(SetupStep::Attach))?;
    Ok(LoadedProgram { _link: link, groups, totals, ran, cpus })
}
