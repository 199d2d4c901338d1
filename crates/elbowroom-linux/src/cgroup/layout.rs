//! Which controller is mounted where.
//!
//! v1 controllers are mounted alone or together (`cpu,cpuacct`), v2 holds whatever v1 does not. All of it is in one
//! process' `mountinfo`; the second word on v2 is `cgroup.controllers` at its mount point. Every controller is looked up
//! by itself, so a host with memory on v2 and cpu on v1 is nothing special.

use super::read::{CgroupDir, CgroupRef};
use crate::mountinfo::{MountEntry, MountTable, MountTableBounds};
use crate::root::{ReadError, Root, if_present};
use rustix::fs::OFlags;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A cgroup version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// cgroup.
    V1,
    /// cgroup2.
    V2,
}

/// How a machine's cgroups are laid out, in systemd's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HierarchyMode {
    /// v1 only.
    Legacy,
    /// v1 with v2 beside it.
    Hybrid,
    /// v2 only.
    Unified,
}

/// The controllers that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupController {
    /// `cpu`: shares, quota, throttling.
    Cpu,
    /// `cpuacct` (v1): CPU time used. On v2 every cgroup has it, whether or not `cpu` is enabled.
    Cpuacct,
    /// `cpuset`.
    Cpuset,
    /// `memory`.
    Memory,
    /// `blkio` (v1), `io` (v2).
    Io,
    /// `pids`.
    Pids,
}

impl CgroupController {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Cpu, Self::Cpuacct, Self::Cpuset, Self::Memory, Self::Io, Self::Pids];

    /// Its name in v1 mount options.
    pub(crate) const fn v1_name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cpuacct => "cpuacct",
            Self::Cpuset => "cpuset",
            Self::Memory => "memory",
            Self::Io => "blkio",
            Self::Pids => "pids",
        }
    }

    /// Its name in `cgroup.controllers`.
    pub(crate) const fn v2_name(self) -> &'static str {
        match self {
            Self::Io => "io",
            other => other.v1_name(),
        }
    }
}

/// One mounted hierarchy.
#[derive(Debug)]
pub struct MountedHierarchy {
    /// Its version.
    pub version: CgroupVersion,
    /// Where it is mounted, from the root.
    pub mount_point: PathBuf,
    /// The directory of its topmost cgroup.
    dir: OwnedFd,
}

impl AsFd for MountedHierarchy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// Every hierarchy that matters, and which of them each controller is in.
#[derive(Debug)]
pub struct CgroupLayout {
    /// Legacy, hybrid or unified.
    pub mode: HierarchyMode,
    hierarchies: Vec<MountedHierarchy>,
    controller_hierarchy: [Option<usize>; CgroupController::ALL.len()],
    unified: Option<usize>,
}

/// Why cgroups cannot be read here.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// A file of the machine.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Nothing mounted.
    #[error("no cgroup hierarchy with cpu or memory is mounted: mount cgroup2 on /sys/fs/cgroup")]
    NoCgroups,
}

impl CgroupLayout {
    /// Finds every hierarchy of the machine below `root`.
    pub fn detect(root: &Root) -> Result<Self, LayoutError> {
        let mounts = mounts(root)?;
        let mut layout = Self {
            mode: HierarchyMode::Unified,
            hierarchies: Vec::new(),
            controller_hierarchy: [None; 6],
            unified: None,
        };
        let (mut v1, mut controllers_v2) = (false, String::new());
        for (version, mount) in whole_hierarchies_first(&mounts) {
            match version {
                CgroupVersion::V1 => {
                    let mine: Vec<_> = layout.unassigned(|c| mount.has_controller(c.v1_name()));
                    if !mine.is_empty() {
                        v1 = true;
                        let index = layout.add(root, version, mount)?;
                        mine.into_iter().for_each(|c| layout.controller_hierarchy[c as usize] = Some(index));
                    }
                }
                CgroupVersion::V2 if layout.unified.is_none() => {
                    let index = layout.add(root, version, mount)?;
                    layout.unified = Some(index);
                    controllers_v2 = if_present(root.read(mount.mount_point.join("cgroup.controllers")))?
                        .unwrap_or_default();
                }
                CgroupVersion::V2 => {}
            }
        }
        let on_v2 =
            |c: CgroupController| controllers_v2.split_ascii_whitespace().any(|name| name == c.v2_name());
        let cpu_on_v1 = layout.controller_hierarchy[CgroupController::Cpu as usize].is_some();
        for c in layout.unassigned(|c| on_v2(c) || c == CgroupController::Cpuacct && !cpu_on_v1) {
            layout.controller_hierarchy[c as usize] = layout.unified;
        }
        layout.mode = match (v1, layout.unified) {
            (true, None) => HierarchyMode::Legacy,
            (true, Some(_)) => HierarchyMode::Hybrid,
            (false, _) => HierarchyMode::Unified,
        };
        match layout.primary_index() {
            Some(_) => Ok(layout),
            None => Err(LayoutError::NoCgroups),
        }
    }

    /// The hierarchies, each once.
    pub fn hierarchies(&self) -> &[MountedHierarchy] {
        &self.hierarchies
    }

    /// Which of [`CgroupLayout::hierarchies`] a controller is in.
    pub fn index(&self, controller: CgroupController) -> Option<usize> {
        self.controller_hierarchy[controller as usize]
    }

    /// The hierarchy whose tree is the tree of groups: the one that shares out CPU time.
    pub fn primary_index(&self) -> Option<usize> {
        [CgroupController::Cpu, CgroupController::Cpuacct, CgroupController::Memory]
            .into_iter()
            .find_map(|c| self.index(c))
    }

    /// A cgroup's directory in the hierarchy of `controller`, whether or not it exists there.
    pub fn dir<'a>(
        &'a self,
        controller: CgroupController,
        group: impl Into<CgroupRef<'a>>,
    ) -> Option<(CgroupVersion, CgroupDir<'a>)> {
        let hierarchy = &self.hierarchies[self.index(controller)?];
        Some((hierarchy.version, CgroupDir::new(hierarchy, group)))
    }

    /// Whether only root can have made a cgroup. A user to whom the parent cgroup was delegated could choose any name, also one
    /// that an engine would choose. The cgroup itself may belong to a user, as in a container with a user namespace.
    pub(crate) fn is_made_by_root(&self, group: &Path) -> bool {
        !self.is_delegated(group.parent().unwrap_or(Path::new("")))
    }

    /// Whether a cgroup's directory belongs to a user, so that this user can make cgroups in it.
    pub fn is_delegated(&self, group: &Path) -> bool {
        self.hierarchies.iter().any(|hierarchy| {
            let owner = |path: &Path| CgroupDir::new(hierarchy, path).owner_uid();
            let own = owner(group);
            own.is_some() && own != owner(Path::new(""))
        })
    }

    /// A cgroup's directory in v2, with or without controllers.
    pub fn unified_dir<'a>(&'a self, group: impl Into<CgroupRef<'a>>) -> Option<CgroupDir<'a>> {
        Some(CgroupDir::new(&self.hierarchies[self.unified?], group))
    }

    fn unassigned(&self, wanted: impl Fn(CgroupController) -> bool) -> Vec<CgroupController> {
        CgroupController::ALL
            .into_iter()
            .filter(|c| self.controller_hierarchy[*c as usize].is_none() && wanted(*c))
            .collect()
    }

    fn add(&mut self, root: &Root, version: CgroupVersion, mount: &MountEntry) -> Result<usize, ReadError> {
        let dir = root.open(&mount.mount_point, OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.hierarchies.push(MountedHierarchy { version, mount_point: mount.mount_point.clone(), dir });
        Ok(self.hierarchies.len() - 1)
    }
}

/// The machine's mounts.
pub fn mounts(root: &Root) -> Result<MountTable, ReadError> {
    // Below another root, this process' own mounts are not that machine's; its first process' are.
    let [own, first] = ["/proc/self/mountinfo", "/proc/1/mountinfo"];
    let open = |path| root.open(path, OFlags::RDONLY).map(|file| (path, file));
    let (path, file) = match if root.is_host() { None } else { if_present(open(first))? } {
        Some(found) => found,
        None => open(own)?,
    };
    let path = Path::new(path);
    MountTable::read(File::from(file), MountTableBounds::HOST, path)
        .map_err(|source| ReadError::Mounts { path: path.into(), source })
}

/// The mounts of cgroups: a hierarchy mounted whole before one whose mount shows a part; otherwise in the order of mounting,
/// so that what an engine binds into its containers later comes last.
fn whole_hierarchies_first(mounts: &MountTable) -> Vec<(CgroupVersion, &MountEntry)> {
    let version = |mount: &MountEntry| match mount.fstype.as_str() {
        "cgroup" => Some(CgroupVersion::V1),
        "cgroup2" => Some(CgroupVersion::V2),
        _ => None,
    };
    let mut mounts: Vec<_> = mounts.iter().filter_map(|mount| Some((version(mount)?, mount))).collect();
    mounts.sort_by_key(|(_, mount)| mount.root != Path::new("/"));
    mounts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    fn host(mountinfo: &str, rest: &str) -> (Fixture, Root) {
        let host = Fixture::new(&format!("-- proc/self/mountinfo --\n{mountinfo}{rest}")).unwrap();
        let root = Root::at(host.path()).unwrap();
        (host, root)
    }

    const TOGETHER: &str = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
                            35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n";
    const TOGETHER_DIRS: &str = "-- sys/fs/cgroup/cpu,cpuacct/ --\n-- sys/fs/cgroup/memory/ --\n";

    #[test]
    fn controllers_mounted_together_share_a_hierarchy() {
        let (_host, root) = host(TOGETHER, TOGETHER_DIRS);
        let layout = CgroupLayout::detect(&root).unwrap();
        assert_eq!(layout.mode, HierarchyMode::Legacy);
        assert_eq!(layout.index(CgroupController::Cpu), layout.index(CgroupController::Cpuacct));
        assert_ne!(layout.index(CgroupController::Cpu), layout.index(CgroupController::Memory));
        assert_eq!(layout.index(CgroupController::Cpuset), None);
    }

    #[test]
    fn a_controller_that_v1_left_to_v2_is_found_there() {
        let (_host, root) = host(
            "1 0 0:1 / /cpu rw - cgroup cgroup rw,cpu,cpuacct\n2 0 0:2 / /unified rw - cgroup2 none rw,nsdelegate\n",
            "-- cpu/ --\n-- unified/cgroup.controllers --\nio memory\n",
        );
        let layout = CgroupLayout::detect(&root).unwrap();
        assert_eq!(layout.mode, HierarchyMode::Hybrid);
        assert_eq!(layout.dir(CgroupController::Memory, Path::new("")).unwrap().0, CgroupVersion::V2);
        assert_eq!(layout.dir(CgroupController::Cpu, Path::new("")).unwrap().0, CgroupVersion::V1);
        assert_eq!(layout.index(CgroupController::Cpuset), None);
    }

    #[test]
    fn every_cgroup_of_v2_counts_cpu_time() {
        let (_host, root) = host(
            "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 none rw\n",
            "-- sys/fs/cgroup/cgroup.controllers --\ncpuset cpu io memory hugetlb pids rdma misc\n",
        );
        let layout = CgroupLayout::detect(&root).unwrap();
        assert_eq!(layout.mode, HierarchyMode::Unified);
        assert!(CgroupController::ALL.iter().all(|c| layout.index(*c) == Some(0)));
    }

    #[test]
    fn a_part_of_a_hierarchy_bound_elsewhere_is_not_taken_for_the_whole() {
        let (_host, root) = host(
            &format!("9 0 0:1 /docker/abc /bound rw - cgroup cgroup rw,cpu,cpuacct\n{TOGETHER}"),
            TOGETHER_DIRS,
        );
        let layout = CgroupLayout::detect(&root).unwrap();
        assert_eq!(layout.hierarchies()[0].mount_point, Path::new("/sys/fs/cgroup/cpu,cpuacct"));
    }

    #[test]
    fn mount_points_are_unescaped() {
        let (_host, root) =
            host("1 0 0:1 / /a\\040b rw - cgroup2 none rw\n", "-- a b/cgroup.controllers --\ncpu memory\n");
        assert_eq!(CgroupLayout::detect(&root).unwrap().hierarchies()[0].mount_point, Path::new("/a b"));
    }

    #[test]
    fn a_malformed_mount_is_quoted_with_its_line() {
        let (_host, root) = host(&format!("{TOGETHER}1 0 0:1 / /m rw - cgroup\n"), TOGETHER_DIRS);
        let error = CgroupLayout::detect(&root).unwrap_err().to_string();
        assert!(error.starts_with("/proc/self/mountinfo:3: too few fields in \"1 0 0:1"), "{error}");
    }

    #[test]
    fn no_cgroups_says_what_to_do() {
        let (_host, root) = host("1 0 0:1 / / rw - ext4 /dev/vda rw\n", "");
        assert!(matches!(CgroupLayout::detect(&root), Err(LayoutError::NoCgroups)));
    }
}
