//! Committed results: summaries and figures are what their raw numbers say.

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn every_committed_summary_and_figure_is_drawn_again_from_its_raw_numbers() {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/results");
    let mut checked = 0;
    for entry in fs::read_dir(results).unwrap() {
        let dir = entry.unwrap().path();
        if !dir.join("raw.json").exists() {
            continue; // no job of the lab's
        }
        let name = dir.file_name().unwrap().to_str().unwrap();
        let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("redraw-{name}"));
        let _ = fs::remove_dir_all(&copy);
        fs::create_dir_all(&copy).unwrap();
        for file in ["raw.json", "sysinfo.json"] {
            fs::copy(dir.join(file), copy.join(file)).unwrap();
        }
        let out =
            Command::new(env!("CARGO_BIN_EXE_elbowroom-lab")).arg("redraw").arg(&copy).output().unwrap();
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
        for file in fs::read_dir(&dir).unwrap().map(|file| file.unwrap().file_name()) {
            let [committed, drawn] = [&dir, &copy].map(|dir| fs::read(dir.join(&file)).unwrap_or_default());
            assert!(committed == drawn, "{name}/{} is not what `elbowroom-lab redraw` makes", file.display());
        }
        checked += 1;
    }
    assert!(checked > 0, "no results");
}
