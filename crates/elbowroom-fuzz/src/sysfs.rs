use elbowroom_linux::cgroup::{CgroupController, CgroupLayout};
use elbowroom_linux::disk::{Devices, resolve};
use elbowroom_linux::fixture::{Fixture, sections};
use elbowroom_linux::numa::Numa;
use elbowroom_linux::root::Root;
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::id::DeviceNumber;
use std::collections::BTreeSet;
use std::path::Path;

/// Arbitrary files of a machine, as a fixture archive: nothing panics, every walk from device to device ends, each device is on a way
/// once, and where one is governed is a device that was found.
pub fn run(data: &[u8]) {
    let host = Fixture::new("").expect("a temporary directory");
    for (path, text) in sections(&String::from_utf8_lossy(data)) {
        // What cannot be a file, or leads out of the host, is not there.
        let _ = host.write(path, text);
    }
    let root = Root::at(host.path()).expect("the directory is there");
    disks(&root);
    if let Ok(layout) = CgroupLayout::detect(&root) {
        assert!(layout.primary_index().is_some());
        for controller in CgroupController::ALL {
            let index = layout.index(controller);
            assert!(index.is_none_or(|index| index < layout.hierarchies().len()));
            assert_eq!(index.is_some(), layout.dir(controller, Path::new("")).is_some());
        }
    }
    let numa = Numa::read(&root);
    let of = numa.nodes_of(&CpuSet::first_n(64));
    assert_eq!(of.intersection(&numa.nodes), of);
}

fn disks(root: &Root) {
    let listed = root.list("/sys/dev/block").unwrap_or_default();
    let numbers: Vec<DeviceNumber> =
        listed.iter().filter_map(|name| name.to_string_lossy().parse().ok()).collect();
    let mut devices = Devices::new(&["sd*".to_owned(), "loop*".to_owned()]);
    for number in &numbers {
        let _ = (devices.learn(root, *number), devices.refresh(root, *number));
    }
    let swap = devices.swap(root).unwrap_or_default();
    assert!(devices.len() <= listed.len(), "each has a directory");
    for number in &numbers {
        let governed = devices.governed(*number);
        assert!(governed.iter().all(|below| devices.get(*below).is_some()), "{governed:?}");
        assert!(!devices.is_governed(*number) || governed == BTreeSet::from([*number]));
        if let Ok(Some(disk)) = devices.disk(root, *number) {
            assert_eq!(disk.number, *number);
        }
    }
    assert!(swap.iter().all(|number| devices.get(*number).is_some()));
    for path in ["/", "/srv"] {
        let Ok(chain) = resolve(root, Path::new(path)) else { continue };
        let once: BTreeSet<_> = chain.iter().map(|link| link.number).collect();
        assert_eq!(once.len(), chain.len(), "{chain:?}");
    }
}
