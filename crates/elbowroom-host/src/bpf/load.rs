//! Getting `active.bpf.c` into the kernel: everything that needs libbpf.

use super::shared::{Cpu, Mapping};
use super::{BpfError, Hierarchy, Step};
use libbpf_rs::{
    Link, MapCore, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel, num_possible_cpus, set_print,
};
use std::cell::RefCell;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;

/// libelf reads headers in place, so the bytes are aligned as an ELF file mapped into memory would be.
#[repr(C, align(8))]
struct Aligned<B: ?Sized>(B);

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
    set_print(Some((PrintLevel::Warn, remember)));
    SAID.take();
    let mut object = ObjectBuilder::default().open_memory(&OBJECT.0).map_err(refused(Step::Open))?;
    configure(&mut object, hierarchy)?;
    let object = object.load().map_err(refused(Step::Load))?;
    let groups = MapHandle::try_from(&map(&object, "groups")).map_err(refused(Step::Map))?;
    let totals = mapped(&object, "totals")?;
    let ran = mapped(&object, "ran")?;
    let cpus = mapped(&object, "cpus")?;
    let program = object.progs_mut().next().expect("the object has one program");
    let link = program.attach().map_err(refused(Step::Attach))?;
    Ok(Loaded { _link: link, groups, totals, ran, cpus })
}

fn configure(object: &mut OpenObject, hierarchy: Hierarchy) -> Result<(), BpfError> {
    let cpus = num_possible_cpus().map_err(refused(Step::Open))?;
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if name == "cpus" {
            map.set_max_entries(cpus as u32).map_err(refused(Step::Open))?;
        } else if name.ends_with(".rodata") {
            let constants = map.initial_value_mut().expect("the object's constants have initial values");
            // `hierarchy` is the only one.
            constants.copy_from_slice(&(hierarchy as u32).to_ne_bytes());
        }
    }
    Ok(())
}

fn map<'a>(object: &'a Object, name: &str) -> libbpf_rs::Map<'a> {
    object.maps().find(|map| map.name() == name).expect("the object has the maps its source names")
}

fn mapped<T: super::shared::Shared>(object: &Object, name: &str) -> Result<Mapping<T>, BpfError> {
    let map = map(object, name);
    Mapping::new(map.as_fd(), map.max_entries() as usize).map_err(|error| BpfError::Refused {
        step: Step::Map,
        said: name.to_owned(),
        source: std::io::Error::from(error).into(),
    })
}

thread_local! {
    /// What libbpf printed on this thread since the last call: where it explains a bare EPERM.
    static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn remember(_: PrintLevel, line: String) {
    tracing::debug!(target: "libbpf", line = line.trim_end());
    SAID.with_borrow_mut(|said| said.push(line));
}

/// The error of a step, with the first line libbpf said about it: the later ones follow from it.
fn refused(step: Step) -> impl Fn(libbpf_rs::Error) -> BpfError {
    move |source| {
        let lines = SAID.take();
        let first = lines.first().map_or("nothing more is known", |line| line.trim());
        BpfError::Refused { step, said: first.trim_start_matches("libbpf: ").to_owned(), source }
    }
}
