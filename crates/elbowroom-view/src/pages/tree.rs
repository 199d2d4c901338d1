//! The tree of files one container sees: names, numbers, and what each file stands for.
//!
//! # Terminology
//! A [`ViewNode`] is a file or a directory of *one* container's tree; it says nothing about which container. Its 24 bits
//! ([`ViewNode::to_bits`]) are the low part of a FUSE node id. The tree is the same for every container but for the CPUs and
//! NUMA nodes that have a directory.
//!
//! # What is there
//! A name in the tables below is there when the host has it: **a node whose [`host_path`] names something the host
//! lacks does not exist**. The view server answers `ENOENT` for it and leaves it out of listings. That is how one
//! compile-time list serves kernels that know fewer vulnerabilities, caches or topology levels. A node without a host
//! path is always there.

use super::files::{FIXED_NODES, FileFormat, HUGEPAGE_SIZES, HUGEPAGES, NUMA_NODE, VULNERABILITIES};
use super::snapshot::ContainerSnapshot;
use crate::pages::view_node::{CpuDir, ViewNode};
use elbowroom_types::cpuset::{CpuSet, MAX_CPUS};

/// How a [`ViewNode`] is laid out in 24 bits: kind, CPU or node number, directory and file.
mod bits {
    pub(super) const KIND: u32 = 21;
    pub(super) const NUMBER: u32 = 11;
    pub(super) const NUMBER_MASK: u32 = (1 << (KIND - NUMBER)) - 1;
    pub(super) const DIR: u32 = 5;
    pub(super) const DIR_MASK: u32 = (1 << (NUMBER - DIR)) - 1;
    pub(super) const FILE_MASK: u32 = (1 << DIR) - 1;

    pub(super) const SINGLE: u32 = 0;
    pub(super) const VULNERABILITY: u32 = 1;
    pub(super) const CPU: u32 = 2;
    pub(super) const NUMA: u32 = 3;
    pub(super) const CPUFREQ_POLICY: u32 = 4;
    pub(super) const NODE_OF_CPU: u32 = 5;
    pub(super) const CPU_OF_NODE: u32 = 6;
    pub(super) const HUGEPAGES_OF_NODE: u32 = 7;
}

impl ViewNode {
    /// A container's own root directory.
    pub const ROOT: Self = Self::Root;

    /// The node as a number of 24 bits, never 0; 1 for [`Self::ROOT`].
    pub fn to_bits(self) -> u32 {
        use bits::*;
        let pack = |kind: u32, n: u16, dir: u32, file: u32| {
            kind << KIND | (u32::from(n) & NUMBER_MASK) << NUMBER | dir << DIR | file
        };
        match self {
            Self::Vulnerability(i) => pack(VULNERABILITY, 0, 0, u32::from(i)),
            // File 0 is the directory itself.
            Self::CpuDir(n, dir) => pack(CPU, n, dir.index(), 0),
            Self::CpuFile(n, dir, i) => pack(CPU, n, dir.index(), u32::from(i) + 1),
            Self::NumaNode(n) => pack(NUMA, n, 0, 0),
            Self::NumaFile(n, i) => pack(NUMA, n, 0, u32::from(i) + 1),
            Self::Hugepages(n) => pack(HUGEPAGES_OF_NODE, n, 0, 0),
            Self::HugepageSize(n, k) => pack(HUGEPAGES_OF_NODE, n, u32::from(k) + 1, 0),
            Self::HugepageFile(n, k, i) => pack(HUGEPAGES_OF_NODE, n, u32::from(k) + 1, u32::from(i) + 1),
            Self::CpufreqPolicy(n) => pack(CPUFREQ_POLICY, n, 0, 0),
            // A second number takes the place of directory and file.
            Self::NodeOfCpu(n, node) => pack(NODE_OF_CPU, n, 0, u32::from(node) & NUMBER_MASK),
            Self::CpuOfNode(n, cpu) => pack(CPU_OF_NODE, n, 0, u32::from(cpu) & NUMBER_MASK),
            single => {
                let place = FIXED_NODES.iter().position(|(node, ..)| *node == single);
                pack(SINGLE, 0, 0, 0) | place.map_or(0, |i| i as u32 + 1)
            }
        }
    }

    /// The node that has these bits.
    pub fn from_bits(bits: u32) -> Option<Self> {
        use bits::*;
        let number = (bits >> NUMBER & NUMBER_MASK) as u16;
        let (dir, file) = (bits >> DIR & DIR_MASK, (bits & FILE_MASK) as usize);
        let node = match bits >> KIND {
            SINGLE => FIXED_NODES.get((bits as usize).checked_sub(1)?)?.0,
            VULNERABILITY => {
                VULNERABILITIES.get(file)?;
                Self::Vulnerability(file as u8)
            }
            CPU => match (CpuDir::from_index(dir)?, file.checked_sub(1)) {
                (dir, None) => Self::CpuDir(number, dir),
                (dir, Some(i)) => {
                    dir.files().get(i)?;
                    Self::CpuFile(number, dir, i as u8)
                }
            },
            NUMA => match file.checked_sub(1) {
                None => Self::NumaNode(number),
                Some(i) => {
                    NUMA_NODE.get(i)?;
                    Self::NumaFile(number, i as u8)
                }
            },
            CPUFREQ_POLICY => Self::CpufreqPolicy(number),
            NODE_OF_CPU => Self::NodeOfCpu(number, (bits & NUMBER_MASK) as u16),
            CPU_OF_NODE => Self::CpuOfNode(number, (bits & NUMBER_MASK) as u16),
            HUGEPAGES_OF_NODE => match ((dir as usize).checked_sub(1), file.checked_sub(1)) {
                (None, _) => Self::Hugepages(number),
                (Some(k), file) => {
                    HUGEPAGE_SIZES.get(k)?;
                    match file {
                        None => Self::HugepageSize(number, k as u8),
                        Some(i) => {
                            HUGEPAGES.get(i)?;
                            Self::HugepageFile(number, k as u8, i as u8)
                        }
                    }
                }
            },
            _ => return None,
        };
        // Bits that a kind does not use are zero, so that a node has one number.
        (node.to_bits() == bits).then_some(node)
    }

    /// Whether it is a directory.
    pub fn is_dir(self) -> bool {
        match self {
            Self::CpuDir(..) | Self::NumaNode(_) | Self::Hugepages(_) | Self::HugepageSize(..) => true,
            Self::CpuFile(..) | Self::NumaFile(..) | Self::HugepageFile(..) | Self::Vulnerability(_) => false,
            Self::CpufreqPolicy(_) | Self::NodeOfCpu(..) | Self::CpuOfNode(..) => false,
            Self::UncoveredProc | Self::UncoveredSys => true,
            // A single node that is no parent and yet a directory has numbered ones below it.
            single => {
                matches!(single, Self::Root | Self::Vulnerabilities)
                    || FIXED_NODES.iter().any(|(_, parent, _)| *parent == single)
            }
        }
    }

    /// What it links to, where it is a symbolic link.
    pub fn link_target(self) -> Option<String> {
        match self {
            Self::CpufreqPolicy(n) => Some(format!("../cpu{n}/cpufreq")),
            Self::NodeOfCpu(_, node) => Some(format!("../../node/node{node}")),
            Self::CpuOfNode(_, cpu) => Some(format!("../../cpu/cpu{cpu}")),
            _ => match self.file_format()? {
                FileFormat::Link(target) => Some(target.to_owned()),
                _ => None,
            },
        }
    }

    /// Whether its name comes and goes while a container lives: those of CPUs, nodes and the links between them.
    pub fn may_vanish(self) -> bool {
        matches!(
            self,
            Self::CpuDir(_, CpuDir::Itself)
                | Self::NumaNode(_)
                | Self::CpufreqPolicy(_)
                | Self::NodeOfCpu(..)
                | Self::CpuOfNode(..)
        )
    }

    /// The directory it is in; [`Self::ROOT`] is in itself.
    pub fn parent(self) -> Self {
        match self {
            Self::Vulnerability(_) => Self::Vulnerabilities,
            Self::CpuDir(_, CpuDir::Itself) => Self::Cpus,
            Self::CpuDir(n, dir) => Self::CpuDir(n, dir.name_and_parent().1),
            Self::CpuFile(n, dir, _) => Self::CpuDir(n, dir),
            Self::NumaNode(_) => Self::NumaNodes,
            Self::NumaFile(n, _) | Self::CpuOfNode(n, _) | Self::Hugepages(n) => Self::NumaNode(n),
            Self::HugepageSize(n, _) => Self::Hugepages(n),
            Self::HugepageFile(n, k, _) => Self::HugepageSize(n, k),
            Self::NodeOfCpu(n, _) => Self::CpuDir(n, CpuDir::Itself),
            Self::CpufreqPolicy(_) => Self::CpufreqAll,
            single => {
                FIXED_NODES.iter().find(|(node, ..)| *node == single).map_or(Self::Root, |(_, up, _)| *up)
            }
        }
    }

    /// Its name in its directory; empty for [`Self::ROOT`].
    pub fn name(self) -> String {
        match self {
            Self::Vulnerability(i) => {
                VULNERABILITIES.get(usize::from(i)).copied().unwrap_or_default().to_owned()
            }
            Self::CpuDir(n, CpuDir::Itself) => format!("cpu{n}"),
            Self::CpuDir(_, dir) => dir.name_and_parent().0,
            Self::CpuFile(_, dir, i) => {
                dir.files().get(usize::from(i)).map_or("", |(name, _)| name).to_owned()
            }
            Self::NumaNode(n) | Self::NodeOfCpu(_, n) => format!("node{n}"),
            Self::CpuOfNode(_, n) => format!("cpu{n}"),
            Self::CpufreqPolicy(n) => format!("policy{n}"),
            Self::NumaFile(_, i) => NUMA_NODE.get(usize::from(i)).map_or("", |(name, _)| name).to_owned(),
            Self::Hugepages(_) => "hugepages".to_owned(),
            Self::HugepageSize(_, k) => {
                HUGEPAGE_SIZES.get(usize::from(k)).map_or_else(String::new, |kb| format!("hugepages-{kb}kB"))
            }
            Self::HugepageFile(_, _, i) => {
                HUGEPAGES.get(usize::from(i)).map_or("", |(name, _)| name).to_owned()
            }
            single => {
                FIXED_NODES.iter().find(|(node, ..)| *node == single).map_or("", |(.., name)| name).to_owned()
            }
        }
    }

    /// Its path below the container's root directory, without a leading slash: `proc/meminfo`.
    pub fn path(self) -> String {
        match (self, self.parent()) {
            (Self::Root, _) => String::new(),
            (_, Self::Root) => self.name(),
            (_, parent) => parent.path() + "/" + &self.name(),
        }
    }

    /// Which of 64 bits says "read since it last changed". Files that change together share one, `nodes_with_page_bit` tells which;
    /// files whose content is fixed while the container lives have none.
    pub fn page_bit(self) -> Option<u8> {
        Some(match self {
            Self::Meminfo => 0,
            Self::Cpuinfo => 1,
            Self::Stat => 2,
            Self::Uptime => 3,
            Self::Loadavg => 4,
            Self::Swaps => 5,
            Self::Diskstats => 6,
            Self::Vmstat => 7,
            Self::Zoneinfo => 8,
            Self::PressureCpu => 9,
            Self::PressureIo => 10,
            Self::PressureMemory => 11,
            Self::CpuOnline => 12,
            Self::CpuOffline => 13,
            Self::CpuPossible => 14,
            Self::CpuPresent => 15,
            Self::CpuEnabled => 16,
            Self::CpuFile(..) if self.file_format() == Some(FileFormat::Online) => 17,
            // Which CPUs share a frequency never changes.
            Self::CpuFile(_, CpuDir::Cpufreq, _) if self.file_format() != Some(FileFormat::Words) => 18,
            Self::HugepageFile(..) => 18,
            Self::NumaFile(..) => match self.file_format()? {
                FileFormat::OnlineList | FileFormat::OnlineMask => 19,
                FileFormat::NodeMeminfo => 20,
                FileFormat::NodeVmstat => 21,
                _ => return None,
            },
            Self::NumaHasCpu => 22,
            Self::NumaHasMemory => 23,
            Self::CpuMax => 24,
            Self::CpuCfsQuotaUs => 25,
            Self::CpuCfsPeriodUs => 26,
            Self::CpuShares => 27,
            Self::MemoryMax => 28,
            Self::MemoryHigh => 29,
            Self::MemoryLimitInBytes => 30,
            Self::MemorySoftLimitInBytes => 31,
            _ => return None,
        })
    }

    /// Whether it is a file without a bit whose text is another for other present or possible CPUs or NUMA nodes.
    pub fn is_fixed_file(self) -> bool {
        // The hierarchies are the same for every container, and the place of the view page is empty.
        let is_same = self.is_dir() || matches!(self, Self::Cgroups | Self::ViewPage);
        self.page_bit().is_none() && !is_same && self.link_target().is_none()
    }

    /// Of which entry of [`ContainerSnapshot::pressure`] it is the file.
    pub fn pressure_index(self) -> Option<usize> {
        [Self::PressureCpu, Self::PressureIo, Self::PressureMemory].iter().position(|node| *node == self)
    }

    /// Whether it changes with what the container does and how long it runs, not only with its view: to be refreshed on a
    /// timer.
    pub fn is_dynamic(self) -> bool {
        matches!(self.page_bit(), Some(0 | 2..=11 | 18 | 20 | 21))
    }

    /// What a file in a numbered directory is.
    pub(super) fn file_format(self) -> Option<FileFormat> {
        let (table, i) = match self {
            Self::CpuFile(_, dir, i) => (dir.files(), i),
            Self::NumaFile(_, i) => (NUMA_NODE, i),
            Self::HugepageFile(_, _, i) => (HUGEPAGES, i),
            _ => return None,
        };
        table.get(usize::from(i)).map(|(_, form)| *form)
    }
}

/// The node of that name in a directory; `None` where there is none in this container's tree.
pub fn lookup(parent: ViewNode, name: &str, facts: &ContainerSnapshot) -> Option<ViewNode> {
    let in_table =
        |table: &[(&str, FileFormat)]| table.iter().position(|(file, _)| *file == name).map(|i| i as u8);
    match parent {
        ViewNode::Vulnerabilities => {
            VULNERABILITIES.iter().position(|file| *file == name).map(|i| ViewNode::Vulnerability(i as u8))
        }
        ViewNode::CpuDir(n, dir) => {
            let below = || {
                dir.subdirs().find(|sub| sub.name_and_parent().0 == name).map(|sub| ViewNode::CpuDir(n, sub))
            };
            let file = in_table(dir.files()).map(|i| ViewNode::CpuFile(n, dir, i));
            let node = || numbered(name, "node").map(|node| ViewNode::NodeOfCpu(n, node));
            file.or_else(below).or_else(|| node().filter(|link| links(parent, facts).contains(link)))
        }
        ViewNode::NumaNode(n) => {
            let cpu = || numbered(name, "cpu").map(|cpu| ViewNode::CpuOfNode(n, cpu));
            let file = in_table(NUMA_NODE).map(|i| ViewNode::NumaFile(n, i));
            let below = || (name == "hugepages").then_some(ViewNode::Hugepages(n));
            file.or_else(below).or_else(|| cpu().filter(|link| links(parent, facts).contains(link)))
        }
        ViewNode::Hugepages(n) => {
            let sizes = (0..HUGEPAGE_SIZES.len() as u8).map(|k| ViewNode::HugepageSize(n, k));
            sizes.into_iter().find(|size| size.name() == name)
        }
        ViewNode::HugepageSize(n, k) => in_table(HUGEPAGES).map(|i| ViewNode::HugepageFile(n, k, i)),
        _ => {
            let numbered = |prefix| numbered(name, prefix);
            let single = FIXED_NODES
                .iter()
                .find(|(node, up, n)| *up == parent && *n == name && *node != ViewNode::Root);
            match parent {
                _ if single.is_some() => single.map(|(node, ..)| *node),
                ViewNode::Cpus => numbered("cpu")
                    .filter(|n| cpus_with_directory(facts).contains(u32::from(*n)))
                    .map(|n| ViewNode::CpuDir(n, CpuDir::Itself)),
                ViewNode::CpufreqAll => numbered("policy")
                    .map(ViewNode::CpufreqPolicy)
                    .filter(|policy| links(parent, facts).contains(policy)),
                ViewNode::NumaNodes => numbered("node")
                    .filter(|n| facts.shown_nodes().contains(u32::from(*n)))
                    .map(ViewNode::NumaNode),
                _ => None,
            }
        }
    }
}

/// The bit that says that a file was asked for which has none of its own ([`ViewNode::is_fixed_file`]).
pub const FIXED_FILES_BIT: u8 = 63;

/// The links with a number that are in a directory, ascending. CPUs and nodes link to each other while the CPU is online, as the
/// kernel has it (drivers/base/node.c `register_cpu_under_node`).
fn links(dir: ViewNode, facts: &ContainerSnapshot) -> Vec<ViewNode> {
    let online = facts.shown_online();
    match dir {
        ViewNode::CpufreqAll => {
            cpus_with_directory(facts).iter().map(|n| ViewNode::CpufreqPolicy(n as u16)).collect()
        }
        ViewNode::CpuDir(n, CpuDir::Itself) if online.contains(n.into()) => {
            facts.shown_nodes().iter().map(|node| ViewNode::NodeOfCpu(n, node as u16)).collect()
        }
        ViewNode::NumaNode(n) => online.iter().map(|cpu| ViewNode::CpuOfNode(n, cpu as u16)).collect(),
        _ => Vec::new(),
    }
}

/// What a directory lists, in a fixed order: files and directories of fixed names, then numbered ones, ascending. Empty for
/// a file.
pub fn children(dir: ViewNode, facts: &ContainerSnapshot) -> Vec<(String, ViewNode)> {
    let is_hidden =
        |node| matches!(node, ViewNode::Uncovered | ViewNode::UncoveredProc | ViewNode::UncoveredSys);
    let singles = FIXED_NODES
        .iter()
        .filter(|(node, up, _)| *up == dir && *node != ViewNode::Root && !is_hidden(*node))
        .map(|(node, ..)| *node);
    let mut nodes: Vec<ViewNode> = singles.collect();
    match dir {
        ViewNode::Vulnerabilities => {
            nodes.extend((0..VULNERABILITIES.len()).map(|i| ViewNode::Vulnerability(i as u8)))
        }
        ViewNode::Cpus => {
            nodes.extend(facts.shown_present().iter().map(|n| ViewNode::CpuDir(n as u16, CpuDir::Itself)));
        }
        ViewNode::CpuDir(n, sub) => {
            nodes.extend((0..sub.files().len()).map(|i| ViewNode::CpuFile(n, sub, i as u8)));
            nodes.extend(sub.subdirs().map(|below| ViewNode::CpuDir(n, below)));
        }
        ViewNode::NumaNodes => nodes.extend(facts.shown_nodes().iter().map(|n| ViewNode::NumaNode(n as u16))),
        ViewNode::NumaNode(n) => {
            nodes.extend((0..NUMA_NODE.len()).map(|i| ViewNode::NumaFile(n, i as u8)));
            nodes.push(ViewNode::Hugepages(n));
        }
        ViewNode::Hugepages(n) => {
            nodes.extend((0..HUGEPAGE_SIZES.len()).map(|k| ViewNode::HugepageSize(n, k as u8)));
        }
        ViewNode::HugepageSize(n, k) => {
            nodes.extend((0..HUGEPAGES.len()).map(|i| ViewNode::HugepageFile(n, k, i as u8)));
        }
        _ => {}
    }
    nodes.extend(links(dir, facts));
    nodes.into_iter().map(|node| (node.name(), node)).collect()
}

/// The file or directory of the host that the node stands for, relative to `/`: the file whose text [`super::render::size`] and
/// [`super::render::render`] want, and without which the node is not there. `None` for what needs no host.
pub fn host_path(node: ViewNode) -> Option<String> {
    match node {
        ViewNode::Root
        | ViewNode::Proc
        | ViewNode::Sys
        | ViewNode::SysDevices
        | ViewNode::SysDevicesSystem
        | ViewNode::Uncovered
        | ViewNode::UncoveredProc
        | ViewNode::UncoveredSys
        | ViewNode::Cgroup => None,
        ViewNode::Uptime | ViewNode::Loadavg | ViewNode::ViewPage => None,
        ViewNode::CpuOnline | ViewNode::CpuOffline | ViewNode::CpuPossible | ViewNode::CpuPresent => None,
        ViewNode::CpuFile(..) if node.file_format() == Some(FileFormat::Online) => None,
        ViewNode::MemoryHigh | ViewNode::MemoryMax => Some("proc/meminfo".to_owned()),
        ViewNode::MemoryLimitInBytes | ViewNode::MemorySoftLimitInBytes => Some("proc/meminfo".to_owned()),
        _ if node.parent() == ViewNode::Cgroup => None,
        _ => Some(node.path()),
    }
}

/// All files of a container whose [`ViewNode::page_bit`] is `bit`: what to invalidate when that page changed.
pub fn nodes_with_page_bit(bit: u8, facts: &ContainerSnapshot) -> Vec<ViewNode> {
    let singles = FIXED_NODES.iter().map(|(node, ..)| *node);
    let files = |table: &'static [(&str, FileFormat)]| 0..table.len() as u8;
    let cpus = cpus_with_directory(facts);
    let of_cpus = cpus.iter().flat_map(|n| {
        [CpuDir::Itself, CpuDir::Cpufreq]
            .into_iter()
            .flat_map(move |dir| files(dir.files()).map(move |i| ViewNode::CpuFile(n as u16, dir, i)))
    });
    let nodes = facts.shown_nodes();
    let of_nodes = nodes.iter().flat_map(|n| files(NUMA_NODE).map(move |i| ViewNode::NumaFile(n as u16, i)));
    let pools = nodes.iter().flat_map(|n| (0..HUGEPAGE_SIZES.len() as u8).map(move |k| (n as u16, k)));
    let of_pools = pools.flat_map(|(n, k)| files(HUGEPAGES).map(move |i| ViewNode::HugepageFile(n, k, i)));
    singles
        .chain(of_cpus)
        .chain(of_nodes)
        .chain(of_pools)
        .filter(|node| node.page_bit() == Some(bit))
        .collect()
}

/// The present CPUs, whose directories are listed, and CPU 0.
fn cpus_with_directory(facts: &ContainerSnapshot) -> CpuSet {
    facts.shown_present().iter().chain([0]).collect()
}

/// `cpu12` is 12 after `cpu`; a number has one spelling.
fn numbered(name: &str, prefix: &str) -> Option<u16> {
    let digits = name.strip_prefix(prefix)?;
    let n: u16 = digits.parse().ok().filter(|n| usize::from(*n) < MAX_CPUS)?;
    (n.to_string() == digits).then_some(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn facts() -> ContainerSnapshot {
        ContainerSnapshot {
            present: "0-3,1023".parse().unwrap(),
            online: "0-1".parse().unwrap(),
            nodes: "0-1".parse().unwrap(),
            ..ContainerSnapshot::EMPTY
        }
    }

    fn walk(dir: ViewNode, visit: &mut impl FnMut(&str, ViewNode, ViewNode)) {
        for (name, node) in children(dir, &facts()) {
            visit(&name, node, dir);
            walk(node, visit);
        }
    }

    #[test]
    fn every_node_is_found_by_its_name_and_by_its_number() {
        let mut seen = HashMap::from([(1, ViewNode::ROOT)]);
        walk(ViewNode::ROOT, &mut |name, node, dir| {
            assert_eq!(lookup(dir, name, &facts()), Some(node), "{}", node.path());
            assert_eq!(node.parent(), dir);
            assert_eq!(ViewNode::from_bits(node.to_bits()), Some(node));
            assert!(node.to_bits() < 1 << 24 && node.to_bits() > 1);
            assert_eq!(seen.insert(node.to_bits(), node), None, "{node:?}");
            assert_eq!(node.is_dir(), !children(node, &facts()).is_empty(), "{node:?}");
        });
        assert_eq!(ViewNode::ROOT.to_bits(), 1);
        assert_eq!(ViewNode::ROOT.parent(), ViewNode::ROOT);
        assert!(seen.len() > 5 * 250, "{}", seen.len());
    }

    #[test]
    fn a_number_that_is_no_nodes_is_none() {
        let valid = (0..1u32 << 24).filter(|bits| {
            let node = ViewNode::from_bits(*bits);
            assert!(node.is_none_or(|node| node.to_bits() == *bits));
            node.is_some()
        });
        let below = |dir: CpuDir| dir.subdirs();
        let subs = below(CpuDir::Itself).chain(below(CpuDir::Caches)).chain(below(CpuDir::Registers));
        let subs = subs.chain([CpuDir::Itself]);
        let per_cpu: usize = subs.map(|dir| 1 + dir.files().len()).sum();
        let links = MAX_CPUS + 2 * MAX_CPUS * MAX_CPUS;
        let per_node = 1 + NUMA_NODE.len() + 1 + HUGEPAGE_SIZES.len() * (1 + HUGEPAGES.len());
        let expect = FIXED_NODES.len() + VULNERABILITIES.len() + MAX_CPUS * (per_cpu + per_node) + links;
        assert_eq!(valid.count(), expect);
        assert_eq!(ViewNode::from_bits(0), None);
        assert_eq!(ViewNode::from_bits(u32::MAX), None);
    }

    #[test]
    fn names_that_are_not_there_are_not_found() {
        let refused = [
            (ViewNode::ROOT, ""),
            (ViewNode::ROOT, "meminfo"),
            (ViewNode::Cpus, "cpu4"),
            (ViewNode::Cpus, "cpu00"),
            (ViewNode::Cpus, "cpu+1"),
            (ViewNode::Cpus, "cpu"),
            (ViewNode::NumaNodes, "node2"),
            (ViewNode::Meminfo, "x"),
            (ViewNode::CpuDir(0, CpuDir::Caches), "index16"),
        ];
        for (dir, name) in refused {
            assert_eq!(lookup(dir, name, &facts()), None, "{dir:?}/{name}");
        }
        assert!(lookup(ViewNode::Cpus, "cpu1023", &facts()).is_some());
    }

    #[test]
    fn cpus_and_nodes_link_to_each_other_while_the_cpu_is_online() {
        let names = |dir| -> Vec<String> {
            let links = children(dir, &facts()).into_iter().filter(|(_, node)| node.link_target().is_some());
            links.map(|(name, _)| name).collect()
        };
        assert_eq!(names(ViewNode::NumaNode(1)), ["subsystem", "cpu0", "cpu1"]);
        assert_eq!(names(ViewNode::CpuDir(1, CpuDir::Itself)), ["subsystem", "node0", "node1"]);
        assert_eq!(names(ViewNode::CpuDir(2, CpuDir::Itself)), ["subsystem"], "offline");
        assert_eq!(lookup(ViewNode::NumaNode(0), "cpu2", &facts()), None);
        let target = |node: ViewNode| node.link_target().unwrap();
        assert_eq!(target(ViewNode::CpuOfNode(1, 12)), "../../cpu/cpu12");
        assert_eq!(target(ViewNode::NodeOfCpu(12, 1)), "../../node/node1");
        assert_eq!(target(lookup(ViewNode::CpufreqAll, "policy3", &facts()).unwrap()), "../cpu3/cpufreq");
        assert_eq!(lookup(ViewNode::CpufreqAll, "policy4", &facts()), None);
    }

    #[test]
    fn what_copies_are_mounted_on_is_found_and_not_listed() {
        let found = "sys/devices/system/cpu/.elbowroom/proc".split('/');
        let found = found.fold(ViewNode::ROOT, |dir, name| lookup(dir, name, &facts()).unwrap());
        assert_eq!(found, ViewNode::UncoveredProc);
        assert!(found.is_dir() && found.parent().is_dir());
        assert!(children(ViewNode::Cpus, &facts()).iter().all(|(_, node)| *node != ViewNode::Uncovered));
        assert_eq!(children(ViewNode::Uncovered, &facts()), []);
    }

    #[test]
    fn the_first_cpu_has_a_directory_and_is_listed_where_it_is_possible() {
        let facts = ContainerSnapshot { present: "63".parse().unwrap(), ..facts() };
        let first = lookup(ViewNode::Cpus, "cpu0", &facts);
        assert_eq!(first, Some(ViewNode::CpuDir(0, CpuDir::Itself)));
        assert!(children(ViewNode::Cpus, &facts).iter().all(|(name, _)| name != "cpu0"));
        let online = lookup(ViewNode::CpuDir(0, CpuDir::Itself), "online", &facts).unwrap();
        assert!(nodes_with_page_bit(online.page_bit().unwrap(), &facts).contains(&online));
        assert_eq!(lookup(ViewNode::Cpus, "cpu1", &facts), None);
    }

    #[test]
    fn each_name_is_listed_once() {
        let mut paths = HashMap::new();
        walk(ViewNode::ROOT, &mut |_, node, _| {
            assert_eq!(paths.insert(node.path(), node), None, "{}", node.path())
        });
        assert!(paths.contains_key("sys/devices/system/cpu/cpu3/cache/index0/shared_cpu_map"));
        assert!(paths.contains_key("sys/devices/system/node/node1/cpulist"));
        assert!(paths.contains_key("sys/devices/system/cpu/cpu0/regs/identification/midr_el1"));
        assert!(
            paths.contains_key("sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages")
        );
    }

    #[test]
    fn every_page_that_changes_is_found_by_its_bit_and_topology_never_changes() {
        walk(ViewNode::ROOT, &mut |_, node, _| match node.page_bit() {
            Some(bit) => {
                assert!(bit < 64 && !node.is_dir());
                assert!(nodes_with_page_bit(bit, &facts()).contains(&node), "{node:?}");
            }
            None => assert!(!node.is_dynamic()),
        });
        assert!(!nodes_with_page_bit(17, &facts()).is_empty());
        assert_eq!(ViewNode::CpuFile(0, CpuDir::Topology, 0).page_bit(), None);
        assert!(
            ViewNode::Meminfo.is_dynamic()
                && !ViewNode::CpuMax.is_dynamic()
                && !ViewNode::Cpuinfo.is_dynamic()
        );
    }

    #[test]
    fn host_paths_are_the_nodes_own_or_what_they_are_computed_from() {
        assert_eq!(host_path(ViewNode::Meminfo).as_deref(), Some("proc/meminfo"));
        assert_eq!(host_path(ViewNode::MemoryMax).as_deref(), Some("proc/meminfo"));
        assert_eq!(host_path(ViewNode::CpuMax), None);
        assert_eq!(host_path(ViewNode::CpuOnline), None);
        let index = ViewNode::CpuDir(3, CpuDir::Cache(2));
        assert_eq!(host_path(index).as_deref(), Some("sys/devices/system/cpu/cpu3/cache/index2"));
    }
}
