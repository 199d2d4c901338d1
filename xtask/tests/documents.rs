//! What documents promise of the repository.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn architecture_names_every_room() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let listed = Command::new("git").arg("ls-files").current_dir(&root).output().expect("git is there");
    let files = String::from_utf8(listed.stdout).unwrap();
    let room = |path: &str| {
        let path = path.strip_prefix("crates/").unwrap_or(path);
        path.split_once('/').filter(|(room, _)| !room.starts_with('.')).map(|(room, _)| room.to_owned())
    };
    let rooms: BTreeSet<String> = files.lines().filter_map(room).collect();
    assert!(rooms.len() > 10, "{rooms:?}");
    for room in rooms {
        let crate_name = room.starts_with("elbowroom") && text.contains(&format!("`{room}`"));
        let is_named = crate_name || text.contains(&format!("{room}/"));
        // The floors are a picture, without backticks.
        assert!(is_named || text.contains(&format!("{room} (")), "{room} is not in ARCHITECTURE.md");
    }
}
