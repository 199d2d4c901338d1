//! Which controller is mounted where.
//!
//! v1 controllers are mounted alone or together (`cpu,cpuacct`), v2 holds whatever v1 does not. All of it is in one
//! process' `mountinfo`; the second word on v2 is `cgroup.controllers` at its mount point. Every controller is looked up
//! by itself, so a host with memory on v2 and cpu on v1 is nothing special.

use super::read::Dir;
use crate::parse::{Malformed, malformed};
use crate::root::{ReadError, Root, if_there};
use rustix::fs::OFlags;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A cgroup version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// cgroup.
    V1,
    /// cgroup2.
    V2,
}

/// How a machine's cgroups are laid out, in systemd's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// v1 only.
    Legacy,
    /// v1 with v2 beside it.
    Hybrid,
    /// v2 only.
    Unified,
}

/// The controllers that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
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

impl Controller {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Cpu, Self::Cpuacct, Self::Cpuset, Self::Memory, Self::Io, Self::Pids];

    /// Its name in v1 mount options.
    pub const fn v1_name(self) -> &'static str {
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
    pub const fn v2_name(self) -> &'static str {
        match self {
            Self::Io => "io",
            other => other.v1_name(),
        }
    }
}

/// One mounted hierarchy.
#[derive(Debug)]
pub struct Hierarchy {
    /// Its version.
    pub version: Version,
    /// Where it is mounted, from the root.
    pub mount_point: PathBuf,
    /// The directory of its topmost cgroup.
    dir: OwnedFd,
}

impl AsFd for Hierarchy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// Every hierarchy that matters, and which of them each controller is in.
#[derive(Debug)]
pub struct Layout {
    /// Legacy, hybrid or unified.
    pub kind: Kind,
    hierarchies: Vec<Hierarchy>,
    at: [Option<usize>; Controller::ALL.len()],
    unified: Option<usize>,
}

/// A line of `mountinfo` that mounts cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupMount {
    /// Its version.
    pub version: Version,
    /// Where.
    pub mount_point: PathBuf,
    /// The cgroup at the mount point; `/` unless a part of a hierarchy is bound there.
    pub root: PathBuf,
    /// Mount options of the superblock, among them v1 controllers.
    pub options: Vec<String>,
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

/// The cgroup mounts of a `mountinfo` file (`Documentation/filesystems/proc.rst`, 3.5).
pub fn mountinfo(text: &str) -> Result<Vec<CgroupMount>, Malformed> {
    const EXPECTED: &str = "a mountinfo line";
    let mut mounts = Vec::new();
    for line in text.lines() {
        let (mount, fs) = line.split_once(" - ").ok_or_else(|| malformed(line, EXPECTED))?;
        let mut fs = fs.split(' ');
        let version = match fs.next() {
            Some("cgroup") => Version::V1,
            Some("cgroup2") => Version::V2,
            _ => continue,
        };
        let options = fs.nth(1).ok_or_else(|| malformed(line, EXPECTED))?;
        let mut mount = mount.split(' ').skip(3);
        let (Some(root), Some(point)) = (mount.next(), mount.next()) else {
            return Err(malformed(line, EXPECTED));
        };
        mounts.push(CgroupMount {
            version,
            mount_point: unescape(point),
            root: unescape(root),
            options: options.split(',').map(str::to_owned).collect(),
        });
    }
    Ok(mounts)
}

/// Spaces, tabs, newlines and backslashes are octal in `mountinfo`.
fn unescape(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let octal = bytes
            .get(at + 1..at + 4)
            .filter(|o| *byte == b'\\' && o.iter().all(|d| (b'0'..=b'7').contains(d)));
        match octal {
            Some(o) => {
                out.push(o.iter().fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d - b'0')));
                at += 4;
            }
            None => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

impl Layout {
    /// Finds every hierarchy of the machine below `root`.
    pub fn detect(root: &Root) -> Result<Self, LayoutError> {
        // Below another root, this process' own mounts are not that machine's; its first process' are.
        let (path, text) = match root.is_host() {
            true => ("/proc/self/mountinfo", root.read("/proc/self/mountinfo")?),
            false => match if_there(root.read("/proc/1/mountinfo"))? {
                Some(text) => ("/proc/1/mountinfo", text),
                None => ("/proc/self/mountinfo", root.read("/proc/self/mountinfo")?),
            },
        };
        let mounts = mountinfo(&text).map_err(|e| ReadError::malformed(path, e))?;
        let mut layout = Self { kind: Kind::Unified, hierarchies: Vec::new(), at: [None; 6], unified: None };
        let (mut v1, mut controllers_v2) = (false, String::new());
        for mount in whole_hierarchies_first(mounts) {
            match mount.version {
                Version::V1 => {
                    let mine: Vec<_> = layout.missing(|c| mount.options.iter().any(|o| o == c.v1_name()));
                    if !mine.is_empty() {
                        v1 = true;
                        let index = layout.add(root, &mount)?;
                        mine.into_iter().for_each(|c| layout.at[c as usize] = Some(index));
                    }
                }
                Version::V2 if layout.unified.is_none() => {
                    let index = layout.add(root, &mount)?;
                    layout.unified = Some(index);
                    controllers_v2 = if_there(root.read(mount.mount_point.join("cgroup.controllers")))?
                        .unwrap_or_default();
                }
                Version::V2 => {}
            }
        }
        let on_v2 = |c: Controller| controllers_v2.split_ascii_whitespace().any(|name| name == c.v2_name());
        let cpu_on_v1 = layout.at[Controller::Cpu as usize].is_some();
        for c in layout.missing(|c| on_v2(c) || c == Controller::Cpuacct && !cpu_on_v1) {
            layout.at[c as usize] = layout.unified;
        }
        layout.kind = match (v1, layout.unified) {
            (true, None) => Kind::Legacy,
            (true, Some(_)) => Kind::Hybrid,
            (false, _) => Kind::Unified,
        };
        match layout.spine_index() {
            Some(_) => Ok(layout),
            None => Err(LayoutError::NoCgroups),
        }
    }

    /// The hierarchies, each once.
    pub fn hierarchies(&self) -> &[Hierarchy] {
        &self.hierarchies
    }

    /// Which of [`Layout::hierarchies`] a controller is in.
    pub fn index(&self, controller: Controller) -> Option<usize> {
        self.at[controller as usize]
    }

    /// The hierarchy whose tree is the tree of groups: the one that shares out CPU time.
    pub fn spine_index(&self) -> Option<usize> {
        [Controller::Cpu, Controller::Cpuacct, Controller::Memory].into_iter().find_map(|c| self.index(c))
    }

    /// A cgroup's directory in the hierarchy of `controller`, whether or not it exists there.
    pub fn dir<'a>(&'a self, controller: Controller, group: &'a Path) -> Option<(Version, Dir<'a>)> {
        let hierarchy = &self.hierarchies[self.index(controller)?];
        Some((hierarchy.version, Dir::new(hierarchy, group)))
    }

    /// A cgroup's directory in v2, with or without controllers.
    pub fn unified_dir<'a>(&'a self, group: &'a Path) -> Option<Dir<'a>> {
        Some(Dir::new(&self.hierarchies[self.unified?], group))
    }

    fn missing(&self, wanted: impl Fn(Controller) -> bool) -> Vec<Controller> {
        Controller::ALL.into_iter().filter(|c| self.at[*c as usize].is_none() && wanted(*c)).collect()
    }

    fn add(&mut self, root: &Root, mount: &CgroupMount) -> Result<usize, ReadError> {
        let dir = root.open(&mount.mount_point, OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.hierarchies.push(Hierarchy {
            version: mount.version,
            mount_point: mount.mount_point.clone(),
            dir,
        });
        Ok(self.hierarchies.len() - 1)
    }
}

/// A hierarchy mounted whole before one whose mount shows a part; otherwise in the order of mounting, so that what an
/// engine binds into its containers later comes last.
fn whole_hierarchies_first(mut mounts: Vec<CgroupMount>) -> Vec<CgroupMount> {
    mounts.sort_by_key(|m| m.root != Path::new("/"));
    mounts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;
    use proptest::prelude::*;

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
        let layout = Layout::detect(&root).unwrap();
        assert_eq!(layout.kind, Kind::Legacy);
        assert_eq!(layout.index(Controller::Cpu), layout.index(Controller::Cpuacct));
        assert_ne!(layout.index(Controller::Cpu), layout.index(Controller::Memory));
        assert_eq!(layout.index(Controller::Cpuset), None);
    }

    #[test]
    fn a_controller_that_v1_left_to_v2_is_found_there() {
        let (_host, root) = host(
            "1 0 0:1 / /cpu rw - cgroup cgroup rw,cpu,cpuacct\n2 0 0:2 / /unified rw - cgroup2 none rw,nsdelegate\n",
            "-- cpu/ --\n-- unified/cgroup.controllers --\nio memory\n",
        );
        let layout = Layout::detect(&root).unwrap();
        assert_eq!(layout.kind, Kind::Hybrid);
        assert_eq!(layout.dir(Controller::Memory, Path::new("")).unwrap().0, Version::V2);
        assert_eq!(layout.dir(Controller::Cpu, Path::new("")).unwrap().0, Version::V1);
        assert_eq!(layout.index(Controller::Cpuset), None);
    }

    #[test]
    fn every_cgroup_of_v2_counts_cpu_time() {
        let (_host, root) = host(
            "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 none rw\n",
            "-- sys/fs/cgroup/cgroup.controllers --\ncpuset cpu io memory hugetlb pids rdma misc\n",
        );
        let layout = Layout::detect(&root).unwrap();
        assert_eq!(layout.kind, Kind::Unified);
        assert!(Controller::ALL.iter().all(|c| layout.index(*c) == Some(0)));
    }

    #[test]
    fn a_part_of_a_hierarchy_bound_elsewhere_is_not_taken_for_the_whole() {
        let (_host, root) = host(
            &format!("9 0 0:1 /docker/abc /bound rw - cgroup cgroup rw,cpu,cpuacct\n{TOGETHER}"),
            TOGETHER_DIRS,
        );
        let layout = Layout::detect(&root).unwrap();
        assert_eq!(layout.hierarchies()[0].mount_point, Path::new("/sys/fs/cgroup/cpu,cpuacct"));
    }

    #[test]
    fn no_cgroups_says_what_to_do() {
        let (_host, root) = host("1 0 0:1 / / rw - ext4 /dev/vda rw\n", "");
        assert!(matches!(Layout::detect(&root), Err(LayoutError::NoCgroups)));
    }

    #[test]
    fn mount_points_are_unescaped() {
        let mounts = mountinfo("1 0 0:1 / /a\\040b\\134c rw - cgroup2 none rw\n").unwrap();
        assert_eq!(mounts[0].mount_point, Path::new("/a b\\c"));
    }

    #[test]
    fn malformed_mountinfo_quotes_its_line() {
        for bad in ["x", "1 0 0:1 - cgroup cgroup rw", "1 0 0:1 / /m rw - cgroup"] {
            assert_eq!(mountinfo(bad).unwrap_err().line, bad);
        }
    }

    proptest! {
        #[test]
        fn no_mountinfo_panics(text in "( - cgroup|/|\\\\04|[0-9 \n:a]|.){0,60}") {
            let _ = mountinfo(&text);
            let _ = unescape(&text);
        }
    }
}
