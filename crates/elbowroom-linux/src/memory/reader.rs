//! Memory of containers and of the machine, once a second.

use crate::cgroup::{self, CgroupController, CgroupDir, CgroupLayout, CgroupVersion, v1, v2};
use crate::parse::{Malformed, flat_keyed};
use crate::proc;
use crate::root::{ReadError, Root, if_present};
use crate::sensor::MAX_GROUPS_PER_TENANT;
use crate::warnings::Warnings;
use crate::zfs;
use elbowroom_types::id::CgroupId;
use elbowroom_types::memory::{GroupMemory, NodeMemory, StallTotals};
use elbowroom_types::sample::MemoryStat;
use elbowroom_types::unit::{Bytes, Limit};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Reads the memory of the machine and of groups. A group that has its path's second life is another one: it is known by its
/// inode.
#[derive(Debug)]
pub struct MemoryReader {
    root: Root,
    layout: CgroupLayout,
    warnings: Warnings,
    /// The inode of each group's directory when it was first seen.
    inodes: BTreeMap<CgroupId, u64>,
}

impl MemoryReader {
    /// A reader of the machine below `root`, with cgroups as `layout` has them.
    pub fn new(root: Root, layout: CgroupLayout) -> Self {
        Self { root, layout, warnings: Warnings::default(), inodes: BTreeMap::new() }
    }

    /// The machine.
    pub fn node(&mut self) -> NodeMemory {
        let root = &self.root;
        let parse = |path: &str| -> Result<proc::MemInfo, ReadError> {
            proc::meminfo(&root.read(path)?).map_err(|e| ReadError::malformed(path, e))
        };
        let meminfo = self.warnings.ok_or_warn(parse("/proc/meminfo")).unwrap_or_default();
        let path = "/proc/pressure/memory";
        let pressure = if_present(self.root.read(path)).and_then(|text| {
            text.map(|text| proc::pressure(&text).map_err(|e| ReadError::malformed(path, e))).transpose()
        });
        NodeMemory {
            mem_free: meminfo.mem_free,
            mem_available: meminfo
                .mem_available
                .unwrap_or(meminfo.mem_free)
                .saturating_add(zfs::evictable_cache(&self.root)),
            swap_free: meminfo.swap_free,
            swap_total: meminfo.swap_total,
            stalled: self.warnings.ok_or_warn(pressure).flatten().map(|pressure| pressure.some.total),
        }
    }

    /// The group at `path` below the root of the hierarchy, with `swap_free` bytes of swap free. `None` where the group is gone or
    /// another has its path.
    pub fn group(&mut self, id: CgroupId, path: &str, swap_free: Bytes) -> Option<GroupMemory> {
        let path = PathBuf::from(path.trim_start_matches('/'));
        let inode = self.layout.dir(CgroupController::Memory, &path)?.1.inode()?;
        if *self.inodes.entry(id).or_insert(inode) != inode {
            return None;
        }
        let read = group(&self.layout, &path, swap_free);
        self.warnings.ok_or_warn(read).flatten()
    }

    /// The group is gone.
    pub fn forget(&mut self, id: CgroupId) {
        self.inodes.remove(&id);
    }
}

/// One group; `None` where it is not there, or has no memory controller.
pub(super) fn group(
    layout: &CgroupLayout,
    path: &Path,
    swap_free: Bytes,
) -> Result<Option<GroupMemory>, ReadError> {
    let Some((version, dir)) = layout.dir(CgroupController::Memory, path) else { return Ok(None) };
    let Some(usage) = usage(version, &dir)? else { return Ok(None) };
    let Some((stat, refaults)) = dir.parse("memory.stat", |text| parse_stat_and_refaults(version, text))?
    else {
        return Ok(None);
    };
    let mut memory = GroupMemory {
        usage,
        anon: stat.anon,
        file: stat.file,
        shmem: stat.shmem,
        inactive_file: stat.inactive_file,
        active_file: stat.active_file,
        mapped: stat.file_mapped,
        dirty: stat.file_dirty.saturating_add(stat.file_writeback),
        unevictable: stat.unevictable,
        slab_reclaimable: stat.slab_reclaimable,
        swap: stat.swap,
        refault_file: refaults.file,
        refault_anon: refaults.anon,
        rbytes: cgroup::io_stat(layout, path)?.iter().map(|row| row.rbytes).sum(),
        stalls: stalls(layout, path)?,
        ..GroupMemory::default()
    };
    match version {
        CgroupVersion::V1 => {
            memory.oom_kill =
                dir.parse("memory.oom_control", |text| keyed_number_or_zero(text, "oom_kill"))?.unwrap_or(0);
            let mut most = MAX_GROUPS_PER_TENANT;
            memory.populated = populated_v1(&dir, &mut most)?;
            memory.swap_room = usable_swap_v1(&dir, swap_free)?;
        }
        CgroupVersion::V2 => {
            memory.swap = Bytes(dir.number("memory.swap.current")?.unwrap_or(0));
            if let Some(text) = dir.read("memory.events")? {
                let event = |name| {
                    keyed_number_or_zero(&text, name)
                        .map_err(|e| ReadError::malformed(dir.path().join("memory.events"), e))
                };
                (memory.oom, memory.oom_kill) = (event("oom")?, event("oom_kill")?);
            }
            memory.populated = v2::populated(&dir)?.unwrap_or(true);
            memory.swap_room = usable_swap_v2(layout, path, swap_free)?;
        }
    }
    Ok(Some(memory))
}

/// Memory charged now.
pub(super) fn usage(version: CgroupVersion, dir: &CgroupDir<'_>) -> Result<Option<Bytes>, ReadError> {
    let file = match version {
        CgroupVersion::V1 => "memory.usage_in_bytes",
        CgroupVersion::V2 => "memory.current",
    };
    Ok(dir.number(file)?.map(Bytes))
}

/// Memory of a group that was reclaimed and came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Refaults {
    file: Bytes,
    anon: Bytes,
}

fn parse_stat_and_refaults(version: CgroupVersion, text: &str) -> Result<(MemoryStat, Refaults), Malformed> {
    Ok(match version {
        CgroupVersion::V1 => (v1::parse_memory_stat(text)?, parse_refaults(text, "total_")?),
        CgroupVersion::V2 => (v2::parse_memory_stat(text)?, parse_refaults(text, "")?),
    })
}

/// The keys of `memory.stat` that only the governor reads. Before Linux 5.9 all refaults were of files.
fn parse_refaults(text: &str, prefix: &str) -> Result<Refaults, Malformed> {
    let mut refaults = Refaults::default();
    let page = rustix::param::page_size() as u64;
    for entry in flat_keyed(text) {
        let (key, pages) = entry?;
        let Some(key) = key.strip_prefix(prefix) else { continue };
        let bytes = Bytes(pages.saturating_mul(page));
        match key {
            "workingset_refault_file" | "workingset_refault" => refaults.file = bytes,
            "workingset_refault_anon" => refaults.anon = bytes,
            _ => {}
        }
    }
    Ok(refaults)
}

/// On a hybrid host the same path of the unified hierarchy counts stalls, where the engine has made it.
fn stalls(layout: &CgroupLayout, path: &Path) -> Result<Option<StallTotals>, ReadError> {
    let Some(dir) = layout.unified_dir(path) else { return Ok(None) };
    let memory = dir.parse("memory.pressure", proc::pressure)?;
    let io = dir.parse("io.pressure", proc::pressure)?;
    let cpu = dir.parse("cpu.pressure", proc::pressure)?;
    Ok(memory.zip(io).zip(cpu).map(|((memory, io), cpu)| StallTotals {
        memory_some: memory.some.total,
        memory_full: memory.full.total,
        io_some: io.some.total,
        cpu_some: cpu.some.total,
    }))
}

/// The number after a key, 0 where there is none.
fn keyed_number_or_zero(text: &str, wanted: &str) -> Result<u64, Malformed> {
    for entry in flat_keyed(text) {
        if let (key, n) = entry?
            && key == wanted
        {
            return Ok(n);
        }
    }
    Ok(0)
}

/// Whether there is a process in it or below it; v1 does not say so by itself. One with more groups below it than `most` that are
/// all empty counts as in use: no further ones are looked at.
fn populated_v1(dir: &CgroupDir<'_>, most: &mut usize) -> Result<bool, ReadError> {
    if *most == 0 || dir.read("cgroup.procs")?.is_some_and(|text| !text.trim().is_empty()) {
        return Ok(true);
    }
    *most -= 1;
    for (name, _) in dir.children(*most + 1)?.unwrap_or_default() {
        if dir.with_child(&name, |child| populated_v1(&child, most))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What of the free swap it may use: nothing where swappiness 0 keeps it out.
fn usable_swap_v1(dir: &CgroupDir<'_>, free: Bytes) -> Result<Bytes, ReadError> {
    if free == Bytes::ZERO || dir.number("memory.swappiness")? == Some(0) {
        return Ok(Bytes::ZERO);
    }
    // Memory and swap together: what is free of it could all be swap.
    let limit = dir.parse("memory.memsw.limit_in_bytes", v1::limit)?;
    let used = dir.number("memory.memsw.usage_in_bytes")?.map(Bytes);
    Ok(match (limit, used) {
        (Some(Limit::At(limit)), Some(used)) => limit.saturating_sub(used).min(free),
        _ => free,
    })
}

/// The same, with the groups above it, and the one that all of it is in.
fn usable_swap_v2(layout: &CgroupLayout, path: &Path, free: Bytes) -> Result<Bytes, ReadError> {
    let mut room = free;
    let innermost = cgroup::subgroup(layout, path);
    for group in
        innermost.as_deref().unwrap_or(path).ancestors().take_while(|group| !group.as_os_str().is_empty())
    {
        if room == Bytes::ZERO {
            break;
        }
        let Some((_, dir)) = layout.dir(CgroupController::Memory, group) else { break };
        if let Some(Limit::At(max)) = v2::memory_limit(&dir, "memory.swap.max")? {
            let used = Bytes(dir.number("memory.swap.current")?.unwrap_or(0));
            room = room.min(max.saturating_sub(used));
        }
    }
    Ok(room)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;
    use elbowroom_types::unit::Micros;

    const ID: CgroupId = CgroupId(7);

    fn reader(host: &Fixture) -> MemoryReader {
        let root = Root::at(host.path()).unwrap();
        let layout = CgroupLayout::detect(&root).unwrap();
        MemoryReader::new(root, layout)
    }

    fn read(archive: &str, path: &str) -> (NodeMemory, Option<GroupMemory>) {
        let host = Fixture::new(archive).unwrap();
        let mut reader = reader(&host);
        let node = reader.node();
        (node, reader.group(ID, path, node.swap_free))
    }

    const V2: &str = "\
-- proc/self/mountinfo --
30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
-- proc/meminfo --
MemTotal:       4194304 kB
MemFree:        1048576 kB
MemAvailable:   2097152 kB
SwapTotal:       524288 kB
SwapFree:        262144 kB
-- proc/pressure/memory --
some avg10=0.00 avg60=0.00 avg300=0.00 total=1500
full avg10=0.00 avg60=0.00 avg300=0.00 total=500
-- sys/fs/cgroup/cgroup.controllers --
cpu io memory
-- sys/fs/cgroup/pod/memory.swap.max --
100000000
-- sys/fs/cgroup/pod/memory.swap.current --
40000000
-- sys/fs/cgroup/pod/web/memory.current --
300000000
-- sys/fs/cgroup/pod/web/memory.swap.max --
max
-- sys/fs/cgroup/pod/web/memory.swap.current --
4096
-- sys/fs/cgroup/pod/web/memory.stat --
anon 200000000
file 90000000
shmem 1000
file_mapped 2000
file_dirty 3000
file_writeback 4000
inactive_file 50000000
active_file 30000000
unevictable 5000
slab_reclaimable 6000
workingset_refault_file 10
workingset_refault_anon 20
-- sys/fs/cgroup/pod/web/memory.events --
low 0
high 0
max 5
oom 1
oom_kill 2
-- sys/fs/cgroup/pod/web/cgroup.events --
populated 1
frozen 0
-- sys/fs/cgroup/pod/web/io.stat --
8:0 rbytes=1000 wbytes=0 rios=1 wios=0
8:16 rbytes=24 wbytes=0 rios=1 wios=0
-- sys/fs/cgroup/pod/web/memory.pressure --
some avg10=0.00 avg60=0.00 avg300=0.00 total=70
full avg10=0.00 avg60=0.00 avg300=0.00 total=60
-- sys/fs/cgroup/pod/web/io.pressure --
some avg10=0.00 avg60=0.00 avg300=0.00 total=90
full avg10=0.00 avg60=0.00 avg300=0.00 total=0
-- sys/fs/cgroup/pod/web/cpu.pressure --
some avg10=0.00 avg60=0.00 avg300=0.00 total=50
";

    #[test]
    fn a_limit_of_swap_in_the_one_cgroup_below_a_scope_counts() {
        let below = |name: &str| {
            let files = format!(
                "-- sys/fs/cgroup/pod/web.scope/{name}/memory.swap.max --\n9000\n\
                 -- sys/fs/cgroup/pod/web.scope/{name}/memory.swap.current --\n1000\n"
            );
            let (_, group) = read(&(V2.replace("pod/web/", "pod/web.scope/") + &files), "/pod/web.scope");
            group.unwrap().swap_room
        };
        assert_eq!([below("container"), below("other")], [Bytes(8_000), Bytes(60_000_000)]);
    }

    #[test]
    fn what_the_cache_of_zfs_gives_back_is_available() {
        let keys =
            ["mru_evictable_data", "mru_evictable_metadata", "mfu_evictable_data", "mfu_evictable_metadata"];
        let stats: String = keys.iter().map(|key| format!("{key} 4 268435456\n")).collect();
        let stats = format!("-- proc/spl/kstat/zfs/arcstats --\n{stats}c_min 4 0\nsize 4 2147483648\n");
        let (node, _) = read(&(V2.to_owned() + &stats), "/pod/web");
        assert_eq!((node.mem_free, node.mem_available), (Bytes::gib(1), Bytes::gib(3)));
    }

    #[test]
    fn a_group_of_v2_is_read_whole_with_what_the_groups_above_leave_of_swap() {
        let (node, group) = read(V2, "/pod/web");
        let page = rustix::param::page_size() as u64;
        assert_eq!(
            node,
            NodeMemory {
                mem_free: Bytes::gib(1),
                mem_available: Bytes::gib(2),
                swap_free: Bytes::mib(256),
                swap_total: Bytes::mib(512),
                stalled: Some(Micros(1500)),
            }
        );
        assert_eq!(
            group,
            Some(GroupMemory {
                usage: Bytes(300_000_000),
                anon: Bytes(200_000_000),
                file: Bytes(90_000_000),
                shmem: Bytes(1000),
                inactive_file: Bytes(50_000_000),
                active_file: Bytes(30_000_000),
                mapped: Bytes(2000),
                dirty: Bytes(7000),
                unevictable: Bytes(5000),
                slab_reclaimable: Bytes(6000),
                swap: Bytes(4096),
                swap_room: Bytes(60_000_000),
                refault_file: Bytes(10 * page),
                refault_anon: Bytes(20 * page),
                rbytes: Bytes(1024),
                cpu: None,
                stalls: Some(StallTotals {
                    memory_some: Micros(70),
                    memory_full: Micros(60),
                    io_some: Micros(90),
                    cpu_some: Micros(50)
                }),
                oom: 1,
                oom_kill: 2,
                populated: true,
            })
        );
    }

    #[test]
    fn what_the_kernel_does_not_count_is_absent_and_a_group_that_is_not_there_is_left_out() {
        let bare = V2.replace("sys/fs/cgroup/pod/web/io.pressure", "elsewhere");
        let group = read(&bare, "/pod/web").1.unwrap();
        assert_eq!(group.stalls, None);
        assert_eq!(read(V2, "/pod/none").1, None);
        // Malformed is not zero either.
        assert_eq!(read(&V2.replace("anon 200000000", "anon many"), "/pod/web").1, None);
    }

    #[test]
    fn a_group_made_anew_under_a_path_is_not_the_one_that_was_read_there() {
        let host = Fixture::new(V2).unwrap();
        let mut reader = reader(&host);
        let (dir, aside) = (host.path().join("sys/fs/cgroup/pod/web"), host.path().join("aside"));
        assert!(reader.group(ID, "/pod/web", Bytes::ZERO).is_some());
        let copied = std::process::Command::new("cp").arg("-r").args([&dir, &aside]).status().unwrap();
        assert!(copied.success());
        std::fs::rename(&dir, host.path().join("gone")).unwrap();
        std::fs::rename(&aside, &dir).unwrap();
        assert_eq!(reader.group(ID, "/pod/web", Bytes::ZERO), None);
        reader.forget(ID);
        assert!(reader.group(ID, "/pod/web", Bytes::ZERO).is_some());
    }

    #[test]
    fn v1_says_less_and_refaults_of_old_kernels_are_of_files() {
        let text = "cache 1\ntotal_cache 4096\ntotal_workingset_refault 3\nworkingset_refault 1\n";
        let (stat, refaults) = parse_stat_and_refaults(CgroupVersion::V1, text).unwrap();
        let page = rustix::param::page_size() as u64;
        assert_eq!((stat.file, refaults.file), (Bytes(4096), Bytes(3 * page)));
    }
}
