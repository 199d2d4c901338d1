//! Cgroups for the lab's own containers, on v1, hybrid and v2 machines, and the two counters the figures need.

use crate::scope::{Created, Scope};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Controllers a container is put under where the machine has them. `""` is the unified hierarchy: all there is on v2,
/// a hierarchy without controllers (but with pressure files) on a hybrid machine.
const CONTROLLERS: [&str; 7] = ["cpu", "cpuacct", "cpuset", "memory", "blkio", "pids", ""];

/// The v2 controllers that limits need.
const V2_CONTROLLERS: [&str; 4] = ["cpu", "memory", "cpuset", "io"];

const V1_LIMITS: [&str; 4] = [
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
];

const V2_LIMITS: [&str; 4] = ["rbps", "wbps", "riops", "wiops"];

const PERIOD_US: u64 = 100_000;

/// Where this machine's hierarchies are mounted.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// (controller, mount point), one entry per controller also where controllers share a mount.
    mounts: Vec<(String, PathBuf)>,
}

/// What a container may use. `None` leaves the kernel's default.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// CPU quota, in CPUs.
    pub(crate) cpus: Option<f64>,
    /// Hard memory limit, in MiB.
    pub(crate) memory_mib: Option<u64>,
    /// Soft memory limit (v1) or `memory.low` (v2), in MiB.
    pub(crate) soft_mib: Option<u64>,
}

/// The cgroups of one container, one directory per hierarchy.
#[derive(Debug)]
pub(crate) struct Cgroups {
    dirs: Vec<(String, PathBuf)>,
    owner: Option<Arc<Scope>>,
}

impl Layout {
    /// Reads `/proc/self/mountinfo`.
    pub(crate) fn detect() -> Result<Self> {
        let text = fs::read_to_string("/proc/self/mountinfo").context("while reading mounts")?;
        let layout = Self::parse(&text);
        if !layout.mounts.iter().any(|(c, _)| c == "memory" || (c.is_empty() && layout.is_v2())) {
            bail!("no cgroup hierarchy with a memory controller is mounted");
        }
        Ok(layout)
    }

    /// Whether all controllers are on the unified hierarchy.
    pub(crate) fn is_v2(&self) -> bool {
        !self.mounts.iter().any(|(controller, _)| controller == "cpu")
    }

    /// `v2`, `v1` or `v1 with an empty unified hierarchy`.
    pub(crate) fn describe(&self) -> &'static str {
        match (self.is_v2(), self.mount("").is_some()) {
            (true, _) => "v2",
            (false, true) => "v1 with an empty unified hierarchy",
            (false, false) => "v1",
        }
    }

    fn parse(mountinfo: &str) -> Self {
        let mut mounts: Vec<(String, PathBuf)> = Vec::new();
        for line in mountinfo.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let Some(at) = left.split(' ').nth(4).map(PathBuf::from) else { continue };
            let mut right = right.split(' ');
            let (kind, options) = (right.next(), right.nth(1).unwrap_or(""));
            let found: Vec<&str> = match kind {
                Some("cgroup2") => vec![""],
                Some("cgroup") => options.split(',').filter(|c| CONTROLLERS.contains(c)).collect(),
                _ => continue,
            };
            for controller in found {
                if !mounts.iter().any(|(known, _)| known == controller) {
                    mounts.push((controller.to_owned(), at.clone()));
                }
            }
        }
        Self { mounts }
    }

    fn mount(&self, controller: &str) -> Option<&Path> {
        self.mounts.iter().find(|(c, _)| c == controller).map(|(_, at)| at.as_path())
    }
}

impl Cgroups {
    /// Makes `parent/name` in every hierarchy and sets `limits`. The name may have a slash: below a group made before.
    pub(crate) fn create(
        layout: &Layout,
        scope: &Arc<Scope>,
        parent: &str,
        name: &str,
        limits: &Limits,
    ) -> Result<Self> {
        let mut made = Self { dirs: Vec::new(), owner: Some(Arc::clone(scope)) };
        for (controller, root) in &layout.mounts {
            let above = root.join(parent);
            let dir = above.join(name);
            if made.dirs.iter().any(|(_, other)| *other == dir) {
                made.dirs.push((controller.clone(), dir)); // co-mounted, as cpu,cpuacct often is
                continue;
            }
            if layout.is_v2() {
                delegate(scope, root)?;
            }
            make_dir(scope, &above, false)?;
            let between = dir.parent().filter(|between| *between != above);
            for outer in std::iter::once(above.as_path()).chain(between).filter(|_| layout.is_v2()) {
                delegate(scope, outer)?;
            }
            make_dir(scope, &dir, true)?;
            if controller == "cpuset" {
                inherit_cpuset(&above)?;
                inherit_cpuset(&dir)?;
            }
            made.dirs.push((controller.clone(), dir));
        }
        made.limit(layout.is_v2(), limits)?;
        Ok(made)
    }

    /// The cgroups that process `pid` is in, which somebody else made.
    pub(crate) fn of(layout: &Layout, pid: i32) -> Result<Self> {
        let path = format!("/proc/{pid}/cgroup");
        let text = fs::read_to_string(&path).with_context(|| format!("while reading {path}"))?;
        let mut dirs = Vec::new();
        for line in text.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(below)) = (parts.next(), parts.next()) else { continue };
            for controller in controllers.split(',') {
                if let Some(root) = layout.mount(controller) {
                    dirs.push((controller.to_owned(), root.join(below.trim_start_matches('/'))));
                }
            }
        }
        Ok(Self { dirs, owner: None })
    }

    /// (controller, directory) pairs.
    pub(crate) fn dirs(&self) -> &[(String, PathBuf)] {
        &self.dirs
    }

    /// CPU time used so far, in microseconds.
    pub(crate) fn cpu_us(&self) -> Result<u64> {
        if let Some(dir) = self.dir("cpuacct") {
            return Ok(read_number(&dir.join("cpuacct.usage"))? / 1_000);
        }
        let path = self.unified()?.join("cpu.stat");
        let text = fs::read_to_string(&path).with_context(|| format!("while reading {}", path.display()))?;
        let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok());
        usage.with_context(|| format!("{} has no usage_usec", path.display()))
    }

    /// Memory charged now, in bytes.
    pub(crate) fn memory_bytes(&self) -> Result<u64> {
        match self.dir("memory") {
            Some(dir) => read_number(&dir.join("memory.usage_in_bytes")),
            None => read_number(&self.unified()?.join("memory.current")),
        }
    }

    /// `memory.stat`, and the events of its limit as `failcnt` or `max`. v1's `cache` and `rss` are called `file` and `anon`, as
    /// on v2, and v2's `memory.swap.current` is called `swap`, as on v1.
    pub(crate) fn memory_stat(&self) -> Result<BTreeMap<String, u64>> {
        let read = |path: PathBuf| {
            fs::read_to_string(&path).with_context(|| format!("while reading {}", path.display()))
        };
        match self.dir("memory") {
            Some(dir) => {
                let mut stat = pairs(&read(dir.join("memory.stat"))?);
                for (v1, v2) in [("cache", "file"), ("rss", "anon")] {
                    stat.extend(stat.get(v1).copied().map(|bytes| (v2.to_owned(), bytes)));
                }
                stat.insert("limit_hit".into(), read_number(&dir.join("memory.failcnt"))?);
                Ok(stat)
            }
            None => {
                let dir = self.unified()?;
                let mut stat = pairs(&read(dir.join("memory.stat"))?);
                let hit = pairs(&read(dir.join("memory.events"))?).get("max").copied();
                stat.extend(hit.map(|times| ("limit_hit".to_owned(), times)));
                // Without swap in the kernel there is no such file.
                stat.extend(
                    read_number(&dir.join("memory.swap.current")).ok().map(|b| ("swap".to_owned(), b)),
                );
                Ok(stat)
            }
        }
    }

    /// Processes of it that the kernel killed for memory.
    pub(crate) fn oom_kills(&self) -> Result<u64> {
        let path = match self.dir("memory") {
            Some(dir) => dir.join("memory.oom_control"),
            None => self.unified()?.join("memory.events"),
        };
        let text = fs::read_to_string(&path).with_context(|| format!("while reading {}", path.display()))?;
        Ok(pairs(&text).get("oom_kill").copied().unwrap_or(0))
    }

    /// Writes a memory setting: the file and value of v1 or those of v2.
    pub(crate) fn set_memory(&self, v1: (&str, &str), v2: (&str, &str)) -> Result<()> {
        match self.dir("memory") {
            Some(dir) => write(&dir.join(v1.0), v1.1),
            None => write(&self.unified()?.join(v2.0), v2.1),
        }
    }

    /// v2: `memory.low`, here and in every group around, for a group is protected as far as those around it are.
    pub(crate) fn protect(&self, bytes: u64) -> Result<()> {
        let outward = self.unified()?.ancestors().map(|dir| dir.join("memory.low"));
        outward.take_while(|file| file.exists()).try_for_each(|file| write(&file, &bytes.to_string()))
    }

    /// Bytes read from and written to a disk so far.
    pub(crate) fn io_bytes(&self, disk: &str) -> Result<[u64; 2]> {
        let (path, keys) = match self.dir("blkio") {
            Some(dir) => (dir.join("blkio.throttle.io_service_bytes_recursive"), ["Read ", "Write "]),
            None => (self.unified()?.join("io.stat"), ["rbytes=", "wbytes="]),
        };
        let text = fs::read_to_string(&path).with_context(|| format!("while reading {}", path.display()))?;
        Ok(keys.map(|key| io_value(&text, disk, key).unwrap_or(0)))
    }

    /// The limits in force on a disk: bytes read, bytes written, reads and writes, each per second.
    pub(crate) fn io_limits(&self, disk: &str) -> Result<[Option<u64>; 4]> {
        let read = |path: &Path| {
            fs::read_to_string(path).with_context(|| format!("while reading {}", path.display()))
        };
        let Some(dir) = self.dir("blkio") else {
            let text = read(&self.unified()?.join("io.max"))?;
            return Ok(V2_LIMITS.map(|key| io_value(&text, disk, &format!("{key}="))));
        };
        let mut limits = [None; 4];
        for (limit, file) in limits.iter_mut().zip(V1_LIMITS) {
            *limit = io_value(&read(&dir.join(file))?, disk, "");
        }
        Ok(limits)
    }

    /// Limits bytes read and bytes written on a disk, each to as much per second.
    pub(crate) fn limit_io(&self, disk: &str, bytes_per_s: u64) -> Result<()> {
        match self.dir("blkio") {
            Some(dir) => V1_LIMITS[..2]
                .iter()
                .try_for_each(|file| write(&dir.join(file), &format!("{disk} {bytes_per_s}"))),
            None => write(
                &self.unified()?.join("io.max"),
                &format!("{disk} rbps={bytes_per_s} wbps={bytes_per_s}"),
            ),
        }
    }

    /// Makes the kernel count this disk's I/O by cgroup. On v1 it does so from the first rule that anybody writes for the disk
    /// (block/blk-throttle.c, `blk_throtl_init`, since Linux 6.10); this is a rule that says nothing.
    pub(crate) fn count_io(&self, disk: &str) -> Result<()> {
        match self.dir("blkio") {
            Some(dir) => write(&dir.join(V1_LIMITS[0]), &format!("{disk} 0")),
            None => Ok(()),
        }
    }

    fn dir(&self, controller: &str) -> Option<&Path> {
        self.dirs.iter().find(|(c, _)| c == controller).map(|(_, dir)| dir.as_path())
    }

    fn unified(&self) -> Result<&Path> {
        self.dir("").context("the container has no unified cgroup")
    }

    fn limit(&self, v2: bool, limits: &Limits) -> Result<()> {
        let quota_us = limits.cpus.map(|cpus| (cpus * PERIOD_US as f64).round() as u64);
        let bytes = |mib: Option<u64>| mib.map(|mib| (mib << 20).to_string());
        let settings = if v2 {
            [
                ("", "cpu.max", quota_us.map(|us| format!("{us} {PERIOD_US}"))),
                ("", "memory.max", bytes(limits.memory_mib)),
                ("", "memory.low", bytes(limits.soft_mib)),
            ]
        } else {
            [
                ("cpu", "cpu.cfs_quota_us", quota_us.map(|us| us.to_string())),
                ("memory", "memory.limit_in_bytes", bytes(limits.memory_mib)),
                ("memory", "memory.soft_limit_in_bytes", bytes(limits.soft_mib)),
            ]
        };
        for (controller, file, value) in settings {
            if let Some(value) = value {
                let dir = self
                    .dir(controller)
                    .with_context(|| format!("{file} needs the {controller} controller"))?;
                write(&dir.join(file), &value)?;
            }
        }
        Ok(())
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        if let Some(scope) = &self.owner {
            for (i, (_, dir)) in self.dirs.iter().enumerate() {
                if !self.dirs[..i].iter().any(|(_, earlier)| earlier == dir) {
                    scope.take_down(&Created::Cgroup(dir.clone()));
                }
            }
        }
    }
}

/// The parent of all containers outlives each of them, so it is not an error that it is there.
fn make_dir(scope: &Scope, dir: &Path, must_be_new: bool) -> Result<()> {
    if !must_be_new && dir.is_dir() {
        return Ok(());
    }
    scope.add(Created::Cgroup(dir.to_owned()))?;
    match fs::create_dir(dir) {
        // Another container that is made at the same time has the same parent.
        Err(e) if !must_be_new && e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        made => made.with_context(|| format!("while making {}", dir.display())),
    }
}

/// Hands the controllers of `dir` down to its children, where they are not handed down yet.
fn delegate(scope: &Scope, dir: &Path) -> Result<()> {
    let list = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
    let (offered, given) = (list("cgroup.controllers"), list("cgroup.subtree_control"));
    let file = dir.join("cgroup.subtree_control");
    for controller in V2_CONTROLLERS {
        let is_in = |list: &str| list.split_whitespace().any(|c| c == controller);
        if is_in(&offered) && !is_in(&given) {
            scope.add(Created::Subtree { file: file.clone(), controller: controller.to_owned() })?;
            write(&file, &format!("+{controller}"))?;
        }
    }
    Ok(())
}

/// A new v1 cpuset is empty, and no process may join it: it starts with all that the one above it has.
fn inherit_cpuset(dir: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = fs::read_to_string(dir.join(file)).unwrap_or_default();
        if own.trim().is_empty() {
            let above = dir.parent().context("a cgroup has a parent")?.join(file);
            let value =
                fs::read_to_string(&above).with_context(|| format!("while reading {}", above.display()))?;
            write(&dir.join(file), value.trim())?;
        }
    }
    Ok(())
}

/// Lines of a key and a number.
pub(crate) fn pairs(text: &str) -> BTreeMap<String, u64> {
    let pair = |line: &str| {
        let (key, value) = line.split_once(' ')?;
        Some((key.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

fn write(path: &Path, value: &str) -> Result<()> {
    fs::write(path, value).with_context(|| format!("while writing \"{value}\" to {}", path.display()))
}

/// The number behind `key` in a line of `disk`: `7:0 rbps=max wbps=5`, `7:0 Read 4096`, `7:0 5`.
fn io_value(text: &str, disk: &str, key: &str) -> Option<u64> {
    let mut rests = text.lines().filter_map(|line| line.strip_prefix(disk)?.strip_prefix(' '));
    rests.find_map(|rest| {
        let at = if key.is_empty() { 0 } else { rest.find(key)? + key.len() };
        rest[at..].split(' ').next()?.parse().ok()
    })
}

fn read_number(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("while reading {}", path.display()))?;
    text.trim().parse().with_context(|| format!("{} is not a number: \"{}\"", path.display(), text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
33 32 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
34 32 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
35 32 0:31 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
36 32 0:32 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const V2: &str = "36 32 0:32 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn controllers_that_share_a_mount_are_both_found() {
        let layout = Layout::parse(V1);
        assert!(!layout.is_v2());
        assert_eq!(layout.mount("cpuacct"), Some(Path::new("/sys/fs/cgroup/cpu,cpuacct")));
        assert_eq!(layout.mount(""), Some(Path::new("/sys/fs/cgroup/unified")));
        assert_eq!(layout.describe(), "v1 with an empty unified hierarchy");
    }

    #[test]
    fn a_line_that_is_no_number_is_left_out() {
        let stat = pairs("cache 4096\nhierarchical 18446744073709551616\nrss\nmax 3\n");
        assert_eq!(stat, BTreeMap::from([("cache".to_owned(), 4096), ("max".to_owned(), 3)]));
    }

    #[test]
    fn a_disk_is_found_among_others_whose_numbers_begin_alike() {
        let v1 = "7:10 Read 1\n7:1 Read 4096\n7:1 Write 512\n7:1 Total 4608\nTotal 4609\n";
        assert_eq!(io_value(v1, "7:1", "Read "), Some(4096));
        assert_eq!(io_value(v1, "7:1", "Write "), Some(512));
        assert_eq!(io_value("7:1 900\n", "7:1", ""), Some(900));
        let v2 = "259:0 rbytes=1 wbytes=2 rios=3\n259:1 rbps=max wbps=7 riops=max wiops=max\n";
        assert_eq!(io_value(v2, "259:0", "wbytes="), Some(2));
        assert_eq!(io_value(v2, "259:1", "rbps="), None, "max is no number");
        assert_eq!(io_value(v2, "259:1", "wbps="), Some(7));
        assert_eq!(io_value(v2, "259:2", "wbps="), None);
    }

    #[test]
    fn a_machine_with_only_the_unified_hierarchy_is_v2() {
        let layout = Layout::parse(V2);
        assert!(layout.is_v2());
        assert_eq!(layout.mount(""), Some(Path::new("/sys/fs/cgroup")));
    }
}
