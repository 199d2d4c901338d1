//! Facts about cgroups.

use super::{CONTROLLERS, text};
use crate::checks as doctor;
use crate::checks::{Counters, Group};
use elbowroom_linux::cgroup;
use elbowroom_linux::cgroup::{Controller, Dir, Layout, Version, v1, v2};
use elbowroom_linux::discover::Discover;
use elbowroom_linux::lease;
use elbowroom_linux::lease::{Held, Record};
use elbowroom_linux::root::Root;
use elbowroom_linux::warn::Warnings;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What the memory hierarchy (or the one that shares out CPU time) holds.
#[derive(Default)]
pub(super) struct Walk {
    /// The root, every container, and every cgroup that is not inside a container.
    pub(super) groups: Vec<Group>,
    /// All directories.
    pub(super) directories: u64,
}

/// Lists the cgroups, parents first.
pub(super) fn walk(root: &Root, layout: &Layout, discover: &mut Discover, warnings: &mut Warnings) -> Walk {
    let mut walk = Walk::default();
    let spine = [Controller::Memory, Controller::Cpu, Controller::Cpuacct]
        .into_iter()
        .find(|c| layout.index(*c).is_some())
        .unwrap_or(Controller::Cpu);
    // A path and its inode, the place of its parent among the groups, and whether it is inside a container.
    let mut queue = std::collections::VecDeque::from([(PathBuf::new(), None, None, false)]);
    while let Some((path, inode, parent, inside)) = queue.pop_front() {
        let Some((_, dir)) = layout.dir(spine, &path) else { break };
        let Some(mut children) = warnings.keep(dir.children()).flatten() else { continue };
        walk.directories += 1;
        let shown = path.to_string_lossy();
        let found = if shown.is_empty() {
            None
        } else {
            warnings.keep(discover.find(root, &shown, inside)).flatten()
        };
        let container = found.map(|f| f.container);
        let inside_this = inside || container.is_some();
        let place = (!inside || container.is_some()).then(|| {
            walk.groups.push(Group {
                path: format!("/{shown}"),
                inode,
                parent,
                container,
                dirs: dirs(layout, &path),
                ..Group::default()
            });
            walk.groups.len() - 1
        });
        children.sort();
        for (name, inode) in children {
            queue.push_back((path.join(name), Some(inode), place.or(parent), inside_this));
        }
    }
    walk
}

fn dirs(layout: &Layout, path: &Path) -> BTreeMap<doctor::Controller, String> {
    let mut dirs = BTreeMap::new();
    for (here, core) in CONTROLLERS {
        if let Some((version, dir)) = layout.dir(here, path)
            && has(version, here, &dir)
        {
            dirs.insert(core, dir.path().to_string_lossy().into_owned());
        }
    }
    if let Some(dir) = layout.unified_dir(path).filter(Dir::exists) {
        dirs.insert(doctor::Controller::Unified, dir.path().to_string_lossy().into_owned());
    }
    dirs
}

/// On v2 every cgroup has a directory, and a controller's files only where it is enabled. The root has few files of any.
fn has(version: Version, controller: Controller, dir: &Dir<'_>) -> bool {
    let file = match controller {
        Controller::Memory => "memory.events",
        Controller::Io => "io.stat",
        Controller::Pids => "pids.events",
        Controller::Cpuset => "cpuset.cpus.effective",
        Controller::Cpu | Controller::Cpuacct => "cpu.weight",
    };
    dir.exists() && (version == Version::V1 || dir.is_root() || dir.has(file))
}

fn path_of(group: &Group) -> PathBuf {
    PathBuf::from(group.path.trim_start_matches('/'))
}

/// One look at what a group has used. Groups that are no containers tell memory only.
pub(super) fn counters(layout: &Layout, group: &Group, warnings: &mut Warnings) -> Counters {
    let path = path_of(group);
    let mut counters = Counters::default();
    if let Some((version, dir)) = layout.dir(Controller::Memory, &path) {
        memory(version, &dir, &mut counters, group.container.is_some(), warnings);
    }
    if group.container.is_none() {
        return counters;
    }
    if let Some((version, dir)) = layout.dir(Controller::Cpu, &path) {
        counters.cpu = warnings.keep(dir.parse("cpu.stat", text::keyed)).flatten().unwrap_or_default();
        if let (Version::V1, Some(nanos)) = (version, counters.cpu.remove("throttled_time")) {
            counters.cpu.insert("throttled_usec".into(), nanos / 1_000);
        }
    }
    counters.pressure = warnings.keep(cgroup::pressure(layout, &path)).flatten();
    counters.io = warnings.keep(cgroup::io_stat(layout, &path)).unwrap_or_default();
    counters
}

fn memory(version: Version, dir: &Dir<'_>, counters: &mut Counters, full: bool, warnings: &mut Warnings) {
    let stat = warnings.keep(dir.read("memory.stat")).flatten();
    let parse = match version {
        Version::V1 => v1::parse_memory_stat,
        Version::V2 => v2::parse_memory_stat,
    };
    let fault = |e| elbowroom_linux::root::ReadError::malformed(dir.path().join("memory.stat"), e);
    counters.memory = stat.as_deref().and_then(|t| warnings.keep(parse(t).map_err(fault)));
    match version {
        Version::V1 => {
            counters.usage = warnings
                .keep(dir.number("memory.usage_in_bytes"))
                .flatten()
                .map(elbowroom_types::unit::Bytes);
            if let Some(n) = warnings.keep(dir.number("memory.failcnt")).flatten() {
                counters.events.insert("max".into(), n);
            }
            let control = warnings.keep(dir.parse("memory.oom_control", text::keyed)).flatten();
            if let Some(n) = control.and_then(|c| c.get("oom_kill").copied()) {
                counters.events.insert("oom_kill".into(), n);
            }
        }
        Version::V2 => {
            counters.usage =
                warnings.keep(dir.number("memory.current")).flatten().map(elbowroom_types::unit::Bytes);
            counters.events =
                warnings.keep(dir.parse("memory.events", text::keyed)).flatten().unwrap_or_default();
            if let Some(stat) = counters.memory.as_mut() {
                stat.swap.0 = warnings.keep(dir.number("memory.swap.current")).flatten().unwrap_or(0);
            }
            if full {
                const MORE: [&str; 2] = ["sock", "percpu"];
                let all = stat.as_deref().and_then(|t| text::keyed(t).ok()).unwrap_or_default();
                counters.more = all.into_iter().filter(|(key, _)| MORE.contains(&key.as_str())).collect();
            }
        }
    }
}

/// Files whose text is kept as it is.
const MEMORY_V1: [&str; 5] = [
    "memory.limit_in_bytes",
    "memory.soft_limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.swappiness",
    "memory.kmem.usage_in_bytes",
];
const MEMORY_V2: [&str; 6] =
    ["memory.max", "memory.high", "memory.low", "memory.min", "memory.swap.max", "memory.oom.group"];
const CPU_V1: [&str; 3] = ["cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares"];
const CPU_V2: [&str; 2] = ["cpu.max", "cpu.weight"];
const CPUSET_V1: [&str; 3] = ["cpuset.cpus", "cpuset.effective_cpus", "cpuset.mems"];
const CPUSET_V2: [&str; 3] = ["cpuset.cpus", "cpuset.cpus.effective", "cpuset.mems"];
const IO_V1: [&str; 2] = ["blkio.weight", "blkio.bfq.weight"];
const IO_V2: [&str; 2] = ["io.weight", "io.bfq.weight"];
const PIDS: [&str; 2] = ["pids.current", "pids.max"];
const LIMITS_V1: [&str; 4] = [
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
];

/// Its settings, into `group`, as those set them whose they are: without what the agent holds by lease.
pub(super) fn settings(
    root: &Root,
    layout: &Layout,
    held: &Held,
    group: &mut Group,
    warnings: &mut Warnings,
) {
    let path = path_of(group);
    let mut wanted = vec![(Controller::Memory, &MEMORY_V1[..], &MEMORY_V2[..])];
    if group.parent.is_none() {
        wanted.push((Controller::Io, &[], &["io.cost.qos"]));
    }
    if group.container.is_some() {
        wanted.extend([
            (Controller::Cpu, &CPU_V1[..], &CPU_V2[..]),
            (Controller::Cpuset, &CPUSET_V1, &CPUSET_V2),
            (Controller::Io, &IO_V1, &IO_V2),
            (Controller::Pids, &PIDS, &PIDS),
        ]);
    }
    for (controller, v1, v2) in wanted {
        let Some((version, dir)) = layout.dir(controller, &path) else { continue };
        let leases = held.of(dir.inode());
        for file in if version == Version::V1 { v1 } else { v2 } {
            take(&dir, leases, file, group, warnings);
        }
    }
    let unified = layout.unified_dir(&path);
    if let Some(dir) = unified.filter(|_| group.parent.is_none()) {
        let stat = warnings.keep(dir.parse("cgroup.stat", text::keyed)).flatten().unwrap_or_default();
        let dying = stat.into_iter().filter(|(key, _)| key == "nr_dying_descendants");
        group.files.extend(dying.map(|(key, n)| (format!("cgroup.stat {key}"), n.to_string())));
    }
    if group.container.is_none() {
        return;
    }
    if let Some(dir) = unified {
        take(&dir, &[], "cgroup.pressure", group, warnings);
    }
    if let Some((Version::V1, dir)) = layout.dir(Controller::Memory, &path) {
        let control =
            warnings.keep(dir.parse("memory.oom_control", text::keyed)).flatten().unwrap_or_default();
        group.files.extend(control.into_iter().map(|(key, n)| (key, n.to_string())));
    }
    if let Some((version, dir)) = layout.dir(Controller::Io, &path) {
        let leases = held.of(dir.inode());
        for file in if version == Version::V1 { &LIMITS_V1[..] } else { &["io.max"] } {
            let text =
                without(leases, file, warnings.keep(dir.read(file)).flatten().unwrap_or_default(), group);
            let rows = text::device_rows(&text).into_iter();
            group.io_limits.extend(rows.map(|(device, rest)| ((*file).to_owned(), device, rest)));
        }
    }
    group.heaps = super::jobs::heaps(root, group);
}

fn take(dir: &Dir<'_>, leases: &[Record], file: &str, group: &mut Group, warnings: &mut Warnings) {
    if let Some(text) = warnings.keep(dir.read(file)).flatten() {
        let text = without(leases, file, text, group);
        group.files.insert(file.to_owned(), text.trim_end().to_owned());
    }
}

/// A file's text without the agent's values; that it has some is noted in `group`.
fn without(leases: &[Record], file: &str, text: String, group: &mut Group) -> String {
    match lease::before(leases, file, &text) {
        Some(before) => {
            group.held.insert(file.to_owned());
            before
        }
        None => text,
    }
}

/// Removes groups that ended between the looks; what was below them hangs from what was above.
pub(super) fn forget_gone(groups: &mut Vec<Group>) {
    let gone: Vec<bool> = groups
        .iter()
        .map(|g| g.parent.is_some() && g.before.usage.is_some() && g.after.usage.is_none())
        .collect();
    if !gone.contains(&true) {
        return;
    }
    let mut places: Vec<Option<usize>> = Vec::with_capacity(groups.len());
    let mut kept = 0;
    for (at, is_gone) in gone.iter().enumerate() {
        let place = if *is_gone { groups[at].parent.and_then(|p| places[p]) } else { Some(kept) };
        kept += usize::from(!is_gone);
        places.push(place);
    }
    let mut at = 0;
    groups.retain_mut(|g| {
        g.parent = g.parent.and_then(|p| places[p]);
        at += 1;
        !gone[at - 1]
    });
}
