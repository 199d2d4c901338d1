//! Getting `active.bpf.c` into the kernel.

use super::object::{Aligned, map, mapped, open, refused, set_hierarchy, set_max_entries};
use super::shared::{Cpu, Mapping};
use super::{BpfError, Hierarchy, Step};
use libbpf_rs::{Link, MapHandle, num_possible_cpus};
use std::sync::atomic::AtomicU64;

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/active.bpf.o")));

/// What is left of the object once it runs. Closing these is all it takes to remove it: nothing is pinned.
#[derive(Debug)]
pub(super) struct Loaded {
    /// Keeps the program attached.
    _link: Link,
    /// cgroup id -> slot.
    pub(super) groups: MapHandle,
    /// Nanoseconds by slot.
    pub(super) totals: Mapping<AtomicU64>,
    /// A bit per slot.
    pub(super) ran: Mapping<AtomicU64>,
    /// One record per possible CPU.
    pub(super) cpus: Mapping<Cpu>,
}

pub(super) fn load(hierarchy: Hierarchy) -> Result<Loaded, BpfError> {
    let mut object = open(OBJECT)?;
    let cpus = num_possible_cpus().map_err(refused(Step::Open))?;
    set_max_entries(&mut object, "cpus", cpus as u32)?;
    set_hierarchy(&mut object, hierarchy);
    let object = object.load().map_err(refused(Step::Load))?;
    let groups = MapHandle::try_from(&map(&object, "groups")).map_err(refused(Step::Map))?;
    let totals = mapped(&object, "totals")?;
    let ran = mapped(&object, "ran")?;
    let cpus = mapped(&object, "cpus")?;
    let program = object.progs_mut().next().expect("the object has one program");
    let link = program.attach().map_err(refused(Step::Attach))?;
    Ok(Loaded { _link: link, groups, totals, ran, cpus })
}
