//! `elbowroom run`, the OCI hook and the runtime wrapper, as a user has them: the program itself, real cgroups, real runc. A
//! stand-in agent answers on the control socket; its views are plain files. Needs root.

mod agent;
mod oci;
mod run;

use std::path::Path;

const PROGRAM: &str = env!("CARGO_BIN_EXE_elbowroom");

/// Says why live tests cannot run here.
fn skip() -> bool {
    let why = if !rustix::process::geteuid().is_root() {
        "needs root"
    } else if !Path::new("/sys/fs/cgroup").exists() {
        "needs cgroups at /sys/fs/cgroup"
    } else {
        return false;
    };
    println!("skipped: {why}");
    true
}

/// Polls `done` for at most ten seconds.
fn wait_until(what: &str, done: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed().as_secs() < 10, "waited too long for {what}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}
