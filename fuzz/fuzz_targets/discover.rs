//! Arbitrary cgroup paths and engine state files: whatever is found is a container with an id that is a word.
#![no_main]

use elbowroom_core::label::Heed;
use elbowroom_host::discover::Discover;
use elbowroom_host::fixture::Fixture;
use elbowroom_host::root::Root;
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

thread_local! {
    static HOST: RefCell<Fixture> = RefCell::new(Fixture::new("").expect("a temporary directory"));
}

fuzz_target!(|data: &[u8]| {
    let split = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let (path, state) = data.split_at(split);
    let (path, state) = (String::from_utf8_lossy(path), String::from_utf8_lossy(state.get(1..).unwrap_or_default()));
    HOST.with_borrow(|host| {
        let root = Root::at(host.path()).expect("the directory is there");
        host.write(&format!("var/lib/docker/containers/{ID}/config.v2.json"), &state).expect("the file can be written");
        let mut discover = Discover::new(&root, &["/plain/**".to_owned()], None, Heed::All);
        for path in [path.as_ref(), &format!("docker/{ID}")] {
            if let Ok(Some(found)) = discover.find(&root, path, false) {
                assert!(!found.container.id.is_empty() && !found.container.id.contains('\n'));
                assert!(found.container.name.is_none_or(|name| !name.contains('\n')));
            }
        }
    });
    let _ = elbowroom_core::glob::matches(&state, &path);
});
