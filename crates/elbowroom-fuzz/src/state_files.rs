use elbowroom_agent::policy::load_capacities;
use elbowroom_client::output::one_line;
use elbowroom_doctor::facts::{CounterSampleStore, LastCounterSample};
use elbowroom_doctor::fixes::journal::Journal;
use elbowroom_linux::fixture::Fixture;
use elbowroom_linux::lease::{RestoreNotice, take_restore_notices};
use elbowroom_linux::root::Root;
use serde_json::json;
use std::cell::RefCell;

thread_local! {
    static STATE: RefCell<Fixture> = RefCell::new(Fixture::new("").expect("a temporary directory"));
    static BOOT: String = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux says it");
}

const FILES: [&str; 5] = ["fixes/1.json", "looks/1.json", "last.json", "leases.restored", "disks.json"];

fn refused(file: &str, error: &str) {
    assert!(error.contains(file) && !error.contains(char::is_control), "{error:?}");
}

/// Arbitrary bytes as each file that the agent keeps for itself: a value that can be kept again, or an error on one line that names
/// the file. `@boot` stands for what the kernel calls the time since the machine was started.
pub fn run(data: &[u8]) {
    let text = BOOT.with(|boot| String::from_utf8_lossy(data).replace("@boot", boot.trim_end()));
    STATE.with_borrow(|state| {
        let (dir, root) = (state.path(), Root::at(state.path()).expect("the directory is there"));
        for file in FILES {
            state.write(file, &text).expect("the file can be written");
        }
        let journal = Journal::at(dir);
        match journal.entries() {
            Ok(entries) => {
                let writes = entries.iter().map(|entry| entry.writes.len()).sum::<usize>();
                assert!(journal.applied(&root).expect("it was read").len() <= writes);
                let again = serde_json::to_string(&entries[0]).expect("numbers and words");
                state.write(FILES[0], &again).expect("the file can be written");
                assert_eq!(journal.entries().expect("it was one"), entries);
            }
            Err(error) => refused(FILES[0], &one_line(&error.into())),
        }
        if let Err(error) = CounterSampleStore::at(dir).find(1) {
            refused(FILES[1], &one_line(&error.into()));
        }
        let last = LastCounterSample::at(&dir.join(FILES[2]));
        match last.find() {
            Ok(None) => {}
            Ok(Some(look)) => {
                last.save(look).expect("the file can be written");
                assert!(last.find().expect("it was one").is_some());
            }
            Err(error) => refused(FILES[2], &one_line(&error.into())),
        }
        let notes = take_restore_notices(&dir.join("leases"));
        assert!(notes.len() <= text.lines().count());
        for note in notes {
            let again = serde_json::to_vec(&note).expect("numbers and words");
            assert_eq!(serde_json::from_slice::<RestoreNotice>(&again).expect("it was one"), note);
        }
        assert!(take_restore_notices(&dir.join("leases")).is_empty(), "they are told once");
        let disks = dir.join(FILES[4]);
        match load_capacities(&disks) {
            Ok(known) => {
                let again = json!({"version": 1, "disks": known}).to_string();
                state.write(FILES[4], &again).expect("the file can be written");
                assert_eq!(load_capacities(&disks).expect("it was one"), known);
            }
            Err(error) => refused(FILES[4], &one_line(&error)),
        }
    });
}
