use elbowroom_doctor::host_text;
use elbowroom_linux::process;
use std::collections::BTreeSet;

/// Arbitrary bytes as what only the doctor reads, and as what processes show of themselves, their words among it: each disk is
/// mounted once, what cannot be dropped is in the text, and a heap is of the size that its last argument says.
pub fn run(data: &[u8]) {
    let whole = String::from_utf8_lossy(data);
    let _ = (
        host_text::selected_word(&whole),
        host_text::meminfo(&whole),
        host_text::keyed(&whole),
        host_text::diskstats(&whole),
    );
    let mounts = host_text::mounts(&whole);
    let disks: BTreeSet<_> = mounts.iter().map(|mount| mount.number).collect();
    assert!(disks.len() == mounts.len() && disks.iter().all(|disk| disk.major != 0));
    for (device, rest) in host_text::device_rows(&whole) {
        assert!(whole.contains(rest.as_str()), "{device}: {rest:?} is from nowhere");
    }
    let _ = host_text::unreclaimable_memory(&whole);
    let _ = (process::state(&whole), process::start_ticks(&whole), process::ns_pids(&whole));
    // A command line and an environment, both with zeros between their words.
    let (command, environment) = whole.split_once("\0\0").unwrap_or((&whole, ""));
    let jvm = host_text::jvm_heap_options(1, command, environment);
    assert_eq!(jvm, host_text::jvm_heap_options(1, command, environment.trim_end_matches('\0')));
    let bare = host_text::jvm_heap_options(1, command, "");
    assert!(bare.max.is_none() || jvm.max.is_some(), "an environment takes no word back");
    if let Some(heap) = host_text::heap_limit(1, command) {
        assert!(command.split('\0').any(|word| word == heap.argument));
        assert_eq!(host_text::heap_limit(1, &heap.argument).map(|alone| alone.size), Some(heap.size));
    }
}
