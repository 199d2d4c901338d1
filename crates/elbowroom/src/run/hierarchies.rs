//! The cgroup hierarchies of this machine in which a run has cgroups.

use anyhow::{Context, ensure};
use elbowroom_linux::bounded;
use elbowroom_linux::mountinfo::{MountTable, MountTableBounds};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The cgroup that holds all others.
pub(super) const PARENT: &str = "elbowroom";

/// What limits and view pages are made of. The hierarchy of cgroup v2 is used even without controllers: it has pressure.
const CONTROLLERS: [&str; 7] = ["cpu", "cpuacct", "cpuset", "memory", "blkio", "io", "pids"];

/// Version of a hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunCgroupVersion {
    /// Several hierarchies, controllers fixed at mount.
    V1,
    /// One hierarchy, controllers enabled level by level.
    V2,
}

/// One mounted cgroup hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunHierarchy {
    pub(super) root: PathBuf,
    /// Which kind it is.
    pub(crate) version: RunCgroupVersion,
    pub(super) controllers: BTreeSet<String>,
}

/// The hierarchies of this machine that have something we use.
#[derive(Clone, Debug)]
pub(crate) struct RunHierarchies(pub(super) Vec<RunHierarchy>);

impl RunHierarchies {
    /// Reads this process's mount table.
    pub(crate) fn read() -> anyhow::Result<Self> {
        let path = Path::new("/proc/self/mountinfo");
        let file = std::fs::File::open(path).context("/proc/self/mountinfo")?;
        let table = MountTable::read(file, MountTableBounds::HOST, path)?;
        let mut found: Vec<RunHierarchy> = Vec::new();
        let mut devices = BTreeSet::new();
        for mount in table.iter() {
            let version = match mount.fstype.as_str() {
                "cgroup" => RunCgroupVersion::V1,
                "cgroup2" => RunCgroupVersion::V2,
                _ => continue,
            };
            let visible = table.visible(&mount.mount_point).is_some_and(|top| top.id == mount.id);
            // The same hierarchy can be mounted more than once, in parts too; only its root will do.
            if !visible
                || mount.root != Path::new("/")
                || !devices.insert((mount.device.major, mount.device.minor))
            {
                continue;
            }
            let root = mount.mount_point.clone();
            let names: Vec<String> = match version {
                RunCgroupVersion::V1 => mount.super_options().map(str::to_owned).collect(),
                RunCgroupVersion::V2 => {
                    read(&root.join("cgroup.controllers"))?.split_whitespace().map(str::to_owned).collect()
                }
            };
            let controllers: BTreeSet<String> =
                names.into_iter().filter(|name| CONTROLLERS.contains(&name.as_str())).collect();
            if version == RunCgroupVersion::V2 || !controllers.is_empty() {
                found.push(RunHierarchy { root, version, controllers });
            }
        }
        ensure!(!found.is_empty(), "no cgroup hierarchy is mounted: mount one at /sys/fs/cgroup");
        Ok(Self(found))
    }

    /// The hierarchy that has `controller`.
    pub(crate) fn hierarchy_with(&self, controller: &str) -> Option<&RunHierarchy> {
        self.0.iter().find(|hierarchy| hierarchy.has(controller))
    }

    /// The directories of the run `name`, one in each.
    pub(super) fn dirs(&self, name: &str) -> Vec<PathBuf> {
        self.0.iter().map(|hierarchy| hierarchy.root.join(PARENT).join(name)).collect()
    }

    #[cfg(test)]
    pub(super) fn of(hierarchies: Vec<RunHierarchy>) -> Self {
        Self(hierarchies)
    }
}

impl RunHierarchy {
    /// Whether `controller` is one of its own.
    pub(crate) fn has(&self, controller: &str) -> bool {
        self.controllers.contains(controller)
    }

    #[cfg(test)]
    pub(super) fn new(root: &str, version: RunCgroupVersion, controllers: &[&str]) -> Self {
        let controllers = controllers.iter().map(|name| (*name).to_owned()).collect();
        Self { root: root.into(), version, controllers }
    }
}

/// A cgroup's file.
pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    bounded::file_text(path, bounded::KERNEL_FILE).with_context(|| path.display().to_string())
}
