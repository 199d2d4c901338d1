//! Programs whose memory is known to the page.

use std::path::{Path, PathBuf};
use std::process::Command;

/// One of `lab/programs`. What is newer than its source stays: a guest finds what this machine compiled.
pub fn compiled(name: &str, options: &[&str]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../lab/programs/{name}.c"));
    let modified = |path: &Path| std::fs::metadata(path).and_then(|file| file.modified());
    if !modified(&path).is_ok_and(|built| built > modified(&source).unwrap()) {
        let made = path.with_extension(std::process::id().to_string());
        let done = Command::new("cc").args(options).arg("-o").arg(&made).arg(&source).output();
        let done = done.expect("a C compiler is there");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        std::fs::rename(&made, &path).unwrap();
    }
    path
}
