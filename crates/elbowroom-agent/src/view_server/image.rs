//! An agent in a container of its own. `elbowroom host agent` takes the directory of the image that holds the program, mounts it below the
//! host's run directory, and starts the agent from there: engines find the program of a hook at that path.
//!
//! A container's main process is the supervisor. When it is killed, the engine ends every process in the container's cgroups. The standby
//! has left these: it starts a supervisor that stops the agent, so views are taken out of containers, and limits off, instead of failing.

use crate::view_server::session::{mounts_on, unmount};
use elbowroom_linux::host_namespaces::mount_tree;
use rustix::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Where the image's directory is mounted, below the run directory.
const IMAGE_DIR: &str = "image";
/// The program in it.
pub const PROGRAM: &str = "elbowroom";

/// Mounts `tree`, the image's directory, below the run directory, in place of what an agent before left there; its path.
///
/// # Errors
/// The directory cannot be made, or mounting is refused.
pub fn mount(run_dir: &Path, tree: &OwnedFd) -> anyhow::Result<PathBuf> {
    let dir = run_dir.join(IMAGE_DIR);
    std::fs::create_dir_all(&dir)?;
    let dir = dir.canonicalize()?;
    for _ in mounts_on(&dir)? {
        unmount(&dir);
    }
    mount_tree(tree, &dir)?;
    Ok(dir)
}

/// Whether `exe` is in the image's directory.
pub(crate) fn has_program(run_dir: &Path, exe: &Path) -> bool {
    exe.canonicalize().is_ok_and(|exe| exe.parent() == Some(&run_dir.join(IMAGE_DIR)))
}

/// Unmounts the image's directory, if `program` is in it and not in one that another container's agent has mounted since.
pub(crate) fn remove(run_dir: &Path, program: impl AsFd) {
    let dir = run_dir.join(IMAGE_DIR);
    let there = rustix::fs::stat(dir.join(PROGRAM));
    let is_same = match (there, rustix::fs::fstat(program)) {
        (Ok(there), Ok(own)) => (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino),
        _ => false,
    };
    if is_same && mounts_on(&dir).is_ok_and(|mounts| !mounts.is_empty()) {
        unmount(&dir);
    }
    // One that is mounted on, or not ours, stays.
    let _ = std::fs::remove_dir(dir);
}
