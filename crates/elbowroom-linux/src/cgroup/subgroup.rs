//! The cgroup below its scope in which crun keeps a container and its limits, where systemd manages cgroups.

use super::{CgroupController, CgroupLayout, CgroupVersion};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// What crun calls it (crun(1), `run.oci.systemd.subgroup`).
const NAME: &str = "container";

/// Whether `below`, the only cgroup below the container at `path`, is one that crun made for it.
pub(crate) fn is_subgroup(path: &Path, below: &OsStr) -> bool {
    path.extension().is_some_and(|extension| extension == "scope") && below == NAME
}

/// The path of the cgroup below a container's in which all of it is, with limits that hold for it, where there is one.
pub fn subgroup(layout: &CgroupLayout, container: &Path) -> Option<PathBuf> {
    let (version, dir) = layout.dir(CgroupController::Memory, container)?;
    let children = dir.children(2).ok()??;
    let [(only, _)] = &children[..] else { return None };
    (version == CgroupVersion::V2 && is_subgroup(container, only)).then(|| container.join(only))
}
