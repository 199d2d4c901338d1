//! Getting objects into the kernel: everything that needs libbpf and is not of one program.

use super::shared::{ArrayMapping, SharedValue};
use super::{BpfError, SetupStep, TrackedHierarchy};
use libbpf_rs::{MapCore, Object, ObjectBuilder, OpenObject, PrintLevel, set_print};
use std::cell::RefCell;
use std::os::fd::AsFd;

/// libelf reads headers in place, so the bytes are aligned as an ELF file mapped into memory would be.
#[repr(C, align(8))]
pub struct Aligned<B: ?Sized>(pub B);

/// Reads an object; nothing is in the kernel yet.
pub fn open(object: &'static Aligned<[u8]>) -> Result<OpenObject, BpfError> {
    set_print(Some((PrintLevel::Warn, record_output)));
    LIBBPF_OUTPUT.take();
    ObjectBuilder::default().open_memory(&object.0).map_err(setup_error(SetupStep::Open))
}

/// Sets the hierarchy of an object whose only constant that is.
pub fn set_hierarchy(object: &mut OpenObject, hierarchy: TrackedHierarchy) {
    for mut map in object.maps_mut() {
        if map.name().to_string_lossy().ends_with(".rodata") {
            let constants = map.initial_value_mut().expect("the object's constants have initial values");
            constants.copy_from_slice(&(hierarchy as u32).to_ne_bytes());
        }
    }
}

/// Sets how many elements a map has.
pub fn set_max_entries(object: &mut OpenObject, name: &str, count: u32) -> Result<(), BpfError> {
    let mut map =
        object.maps_mut().find(|map| map.name() == name).expect("the object has the maps its source names");
    map.set_max_entries(count).map_err(setup_error(SetupStep::Open))
}

/// A map by its name, which the object's source has.
pub fn map<'a>(object: &'a Object, name: &str) -> libbpf_rs::Map<'a> {
    object.maps().find(|map| map.name() == name).expect("the object has the maps its source names")
}

/// A map, mapped into memory.
///
/// # Errors
/// The kernel refuses to map it.
pub fn mapped<T: SharedValue>(object: &Object, name: &str) -> Result<ArrayMapping<T>, BpfError> {
    let map = map(object, name);
    ArrayMapping::new(map.as_fd(), map.max_entries() as usize).map_err(|error| BpfError::Refused {
        step: SetupStep::Map,
        said: name.to_owned(),
        source: std::io::Error::from(error).into(),
    })
}

thread_local! {
    /// What libbpf printed on this thread since the last call: where it explains a bare EPERM.
    static LIBBPF_OUTPUT: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn record_output(_: PrintLevel, line: String) {
    tracing::debug!(target: "libbpf", line = line.trim_end());
    LIBBPF_OUTPUT.with_borrow_mut(|said| said.push(line));
}

/// The error of a step, with the first line libbpf said about it: the later ones follow from it.
pub fn setup_error(step: SetupStep) -> impl Fn(libbpf_rs::Error) -> BpfError {
    move |source| {
        let lines = LIBBPF_OUTPUT.take();
        let first = lines.first().map_or("nothing more is known", |line| line.trim());
        BpfError::Refused { step, said: first.trim_start_matches("libbpf: ").to_owned(), source }
    }
}
