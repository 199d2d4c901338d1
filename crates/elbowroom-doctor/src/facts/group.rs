//! Facts about cgroups.

use super::CONTROLLERS;
use crate::checks as doctor;
use crate::checks::{CgroupCounters, CgroupFacts};
use crate::host_text;
use elbowroom_linux::cgroup::{CgroupController, CgroupDir, CgroupLayout, CgroupVersion, v1, v2};
use elbowroom_linux::discover::ContainerDiscovery;
use elbowroom_linux::lease::{LeaseRecord, LeaseSnapshot};
use elbowroom_linux::root::Root;
use elbowroom_linux::sensor::{MAX_CONTAINERS_PER_TENANT, MAX_GROUPS_PER_TENANT};
use elbowroom_linux::warnings::Warnings;
use elbowroom_linux::{cgroup, lease};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

/// What the memory hierarchy (or the one that shares out CPU time) holds.
#[derive(Default)]
pub(super) struct CgroupWalk {
    /// The root, every container, and every cgroup that is not inside a container.
    pub(super) groups: Vec<CgroupFacts>,
    /// All directories; `None` where a tenant has more than are looked at.
    pub(super) directories: Option<u64>,
}

/// What was taken in of what a tenant made: in the outermost container, or in a cgroup that was delegated to a user. A tenant makes as
/// many as it likes, and each takes time, of which this process has little.
#[derive(Clone, Copy, Debug, Default)]
struct WalkedTenant {
    groups: usize,
    containers: usize,
}

/// A cgroup that is still to be looked at.
struct FoundCgroup {
    path: PathBuf,
    inode: Option<u64>,
    /// The place of its parent among the groups.
    parent: Option<usize>,
    /// Whether it is inside a container.
    inside: bool,
    /// Whose it is.
    tenant: Option<usize>,
}

/// Lists the cgroups, parents first.
pub(super) fn walk(
    root: &Root,
    layout: &CgroupLayout,
    discover: &mut ContainerDiscovery,
    warnings: &mut Warnings,
) -> CgroupWalk {
    let (mut groups, mut directories, mut is_whole) = (Vec::new(), 0, true);
    let spine = [CgroupController::Memory, CgroupController::Cpu, CgroupController::Cpuacct]
        .into_iter()
        .find(|c| layout.index(*c).is_some())
        .unwrap_or(CgroupController::Cpu);
    let mut tenants: Vec<WalkedTenant> = Vec::new();
    let top = FoundCgroup { path: PathBuf::new(), inode: None, parent: None, inside: false, tenant: None };
    let mut queue = VecDeque::from([top]);
    while let Some(FoundCgroup { path, inode, parent, inside, tenant }) = queue.pop_front() {
        let Some((_, dir)) = layout.dir(spine, &path) else { break };
        let shown = path.to_string_lossy();
        let may_be = !shown.is_empty()
            && tenant.is_none_or(|tenant| tenants[tenant].containers < MAX_CONTAINERS_PER_TENANT);
        let found = if may_be {
            warnings.ok_or_warn(discover.find_in(root, layout, &path, inside)).flatten()
        } else {
            None
        };
        let container = found.map(|f| f.container);
        let is_container = container.is_some();
        let owner = tenant.or_else(|| {
            (is_container || layout.is_delegated(&path)).then(|| {
                tenants.push(WalkedTenant::default());
                tenants.len() - 1
            })
        });
        let most = owner.map_or(usize::MAX, |owner| MAX_GROUPS_PER_TENANT - tenants[owner].groups);
        let Some(mut children) = warnings.ok_or_warn(dir.children(most.saturating_add(1))).flatten() else {
            continue;
        };
        is_whole &= children.len() <= most;
        children.truncate(most);
        if let Some(owner) = owner {
            tenants[owner].groups += children.len();
        }
        if let Some(tenant) = tenant {
            tenants[tenant].containers += usize::from(is_container);
        }
        directories += 1;
        let place = (!inside || is_container).then(|| {
            groups.push(CgroupFacts {
                path: format!("/{shown}"),
                inode,
                parent,
                container,
                dirs: controller_dirs(layout, &path),
                ..CgroupFacts::default()
            });
            groups.len() - 1
        });
        children.sort();
        queue.extend(children.into_iter().map(|(name, inode)| FoundCgroup {
            path: path.join(name),
            inode: Some(inode),
            parent: place.or(parent),
            inside: inside || is_container,
            tenant: owner,
        }));
    }
    CgroupWalk { groups, directories: is_whole.then_some(directories) }
}

fn controller_dirs(layout: &CgroupLayout, path: &Path) -> BTreeMap<doctor::HierarchyController, String> {
    let mut dirs = BTreeMap::new();
    for (here, core) in CONTROLLERS {
        if let Some((version, dir)) = layout.dir(here, path)
            && has_controller_files(version, here, &dir)
        {
            dirs.insert(core, dir.path().to_string_lossy().into_owned());
        }
    }
    if let Some(dir) = layout.unified_dir(path).filter(CgroupDir::exists) {
        dirs.insert(doctor::HierarchyController::Unified, dir.path().to_string_lossy().into_owned());
    }
    dirs
}

/// On v2 every cgroup has a directory, and a controller's files only where it is enabled. The root has few files of any.
fn has_controller_files(version: CgroupVersion, controller: CgroupController, dir: &CgroupDir<'_>) -> bool {
    let file = match controller {
        CgroupController::Memory => "memory.events",
        CgroupController::Io => "io.stat",
        CgroupController::Pids => "pids.events",
        CgroupController::Cpuset => "cpuset.cpus.effective",
        CgroupController::Cpu | CgroupController::Cpuacct => "cpu.weight",
    };
    dir.exists() && (version == CgroupVersion::V1 || dir.is_root() || dir.has(file))
}

fn path_of(group: &CgroupFacts) -> PathBuf {
    PathBuf::from(group.path.trim_start_matches('/'))
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Which groups have containers in them.
pub(super) fn around_containers(groups: &[CgroupFacts]) -> Vec<bool> {
    let mut around = vec![false; groups.len()];
    // Parents come first.
    for (at, group) in groups.iter().enumerate().rev() {
        if let Some(parent) = group.parent.filter(|_| around[at] || group.container.is_some()) {
            around[parent] = true;
        }
    }
    around
}

/// One look at what a group has used. Groups that are no containers tell memory only; those around containers also how their quota
/// stopped them.
pub(super) fn counters(
    layout: &CgroupLayout,
    group: &CgroupFacts,
    is_around: bool,
    warnings: &mut Warnings,
) -> CgroupCounters {
    let path = path_of(group);
    let mut counters = CgroupCounters::default();
    if let Some((version, dir)) = layout.dir(CgroupController::Memory, &path) {
        memory(version, &dir, &mut counters, group.container.is_some(), warnings);
    }
    if group.container.is_none() && !is_around {
        return counters;
    }
    if let Some((version, dir)) = layout.dir(CgroupController::Cpu, &path) {
        counters.cpu =
            warnings.ok_or_warn(dir.parse("cpu.stat", host_text::keyed)).flatten().unwrap_or_default();
        if let (CgroupVersion::V1, Some(nanos)) = (version, counters.cpu.remove("throttled_time")) {
            counters.cpu.insert("throttled_usec".into(), nanos / 1_000);
        }
    }
    if group.container.is_none() {
        return counters;
    }
    // Each cgroup counts its own quota alone.
    if let Some(below) = cgroup::subgroup(layout, &path)
        && let Some((_, dir)) = layout.dir(CgroupController::Cpu, &below)
    {
        let counts = warnings.ok_or_warn(dir.parse("cpu.stat", host_text::keyed)).flatten();
        counters.cpu_below = counts.map(|counts| (name_of(&below), counts));
    }
    counters.pressure = warnings.ok_or_warn(cgroup::pressure(layout, &path)).flatten();
    counters.io = warnings.ok_or_warn(cgroup::io_stat(layout, &path)).unwrap_or_default();
    counters
}

fn memory(
    version: CgroupVersion,
    dir: &CgroupDir<'_>,
    counters: &mut CgroupCounters,
    full: bool,
    warnings: &mut Warnings,
) {
    let stat = warnings.ok_or_warn(dir.read("memory.stat")).flatten();
    let parse = match version {
        CgroupVersion::V1 => v1::parse_memory_stat,
        CgroupVersion::V2 => v2::parse_memory_stat,
    };
    let fault = |e| elbowroom_linux::root::ReadError::malformed(dir.path().join("memory.stat"), e);
    counters.memory = stat.as_deref().and_then(|t| warnings.ok_or_warn(parse(t).map_err(fault)));
    match version {
        CgroupVersion::V1 => {
            counters.usage = warnings
                .ok_or_warn(dir.number("memory.usage_in_bytes"))
                .flatten()
                .map(elbowroom_types::unit::Bytes);
            if let Some(n) = warnings.ok_or_warn(dir.number("memory.failcnt")).flatten() {
                counters.events.insert("max".into(), n);
            }
            let control = warnings.ok_or_warn(dir.parse("memory.oom_control", host_text::keyed)).flatten();
            if let Some(n) = control.and_then(|c| c.get("oom_kill").copied()) {
                counters.events.insert("oom_kill".into(), n);
            }
        }
        CgroupVersion::V2 => {
            counters.usage =
                warnings.ok_or_warn(dir.number("memory.current")).flatten().map(elbowroom_types::unit::Bytes);
            counters.events = warnings
                .ok_or_warn(dir.parse("memory.events", host_text::keyed))
                .flatten()
                .unwrap_or_default();
            if let Some(stat) = counters.memory.as_mut() {
                stat.swap.0 = warnings.ok_or_warn(dir.number("memory.swap.current")).flatten().unwrap_or(0);
            }
            if full {
                const EXTRA_MEMORY_KEYS: [&str; 2] = ["sock", "percpu"];
                let all = stat.as_deref().and_then(|t| host_text::keyed(t).ok()).unwrap_or_default();
                counters.more =
                    all.into_iter().filter(|(key, _)| EXTRA_MEMORY_KEYS.contains(&key.as_str())).collect();
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

/// Its settings, into `group`, as its user set them: without what the agent holds by lease.
pub(super) fn settings(
    root: &Root,
    layout: &CgroupLayout,
    held: &LeaseSnapshot,
    group: &mut CgroupFacts,
    is_around: bool,
    warnings: &mut Warnings,
) {
    let path = path_of(group);
    let mut wanted = vec![(CgroupController::Memory, &MEMORY_V1[..], &MEMORY_V2[..])];
    if group.parent.is_none() {
        wanted.push((CgroupController::Io, &[], &["io.cost.qos"]));
    }
    if group.container.is_some() || is_around {
        wanted.extend([
            (CgroupController::Cpu, &CPU_V1[..], &CPU_V2[..]),
            (CgroupController::Pids, &PIDS[..], &PIDS[..]),
        ]);
    }
    if group.container.is_some() {
        wanted.extend([
            (CgroupController::Cpuset, &CPUSET_V1[..], &CPUSET_V2[..]),
            (CgroupController::Io, &IO_V1, &IO_V2),
        ]);
    }
    for (controller, v1, v2) in wanted {
        let Some((version, dir)) = layout.dir(controller, &path) else { continue };
        let leases = held.in_cgroup(dir.inode());
        for file in if version == CgroupVersion::V1 { v1 } else { v2 } {
            read_setting(&dir, leases, file, group, warnings);
        }
    }
    if group.container.is_some() {
        settings_below(layout, &path, group, warnings);
    }
    let unified = layout.unified_dir(&path);
    if let Some(dir) = unified.filter(|_| group.parent.is_none()) {
        let stat =
            warnings.ok_or_warn(dir.parse("cgroup.stat", host_text::keyed)).flatten().unwrap_or_default();
        let dying = stat.into_iter().filter(|(key, _)| key == "nr_dying_descendants");
        group.files.extend(dying.map(|(key, n)| (format!("cgroup.stat {key}"), n.to_string())));
    }
    if group.container.is_none() {
        return;
    }
    if let Some(dir) = unified {
        read_setting(&dir, &[], "cgroup.pressure", group, warnings);
    }
    if let Some((CgroupVersion::V1, dir)) = layout.dir(CgroupController::Memory, &path) {
        let control = warnings
            .ok_or_warn(dir.parse("memory.oom_control", host_text::keyed))
            .flatten()
            .unwrap_or_default();
        group.files.extend(control.into_iter().map(|(key, n)| (key, n.to_string())));
    }
    if let Some((version, dir)) = layout.dir(CgroupController::Io, &path) {
        let leases = held.in_cgroup(dir.inode());
        for file in if version == CgroupVersion::V1 { &LIMITS_V1[..] } else { &["io.max"] } {
            let text = without_leases(
                leases,
                file,
                warnings.ok_or_warn(dir.read(file)).flatten().unwrap_or_default(),
                group,
            );
            let rows = host_text::device_rows(&text).into_iter();
            group.io_limits.extend(rows.map(|(device, rest)| ((*file).to_owned(), device, rest)));
        }
    }
    group.heaps = super::processes::heap_sizes(root, group);
    group.jvms_without_view = super::processes::jvms_without_view(root, group);
}

/// Those limits of the cgroup that all of a container is in ([`cgroup::subgroup`]) that are tighter than the container's own.
fn settings_below(layout: &CgroupLayout, path: &Path, group: &mut CgroupFacts, warnings: &mut Warnings) {
    const LIMITS: [(CgroupController, &str); 5] = [
        (CgroupController::Memory, "memory.max"),
        (CgroupController::Memory, "memory.high"),
        (CgroupController::Memory, "memory.swap.max"),
        (CgroupController::Cpu, "cpu.max"),
        (CgroupController::Cpuset, "cpuset.cpus.effective"),
    ];
    let Some(subgroup) = cgroup::subgroup(layout, path) else { return };
    let name = name_of(&subgroup);
    for file in IO_V2 {
        let Some((CgroupVersion::V2, dir)) = layout.dir(CgroupController::Io, &subgroup) else { break };
        let Some(text) = warnings.ok_or_warn(dir.read(file)).flatten() else { continue };
        let is_default = |text: &str| text.trim_start_matches("default ").trim() == "100";
        if group.text(file).is_some_and(is_default) && !is_default(&text) {
            group.files.insert(file.to_owned(), text.trim_end().to_owned());
            group.below.insert(file.to_owned(), name.clone());
        }
    }
    for (controller, file) in LIMITS {
        let Some((_, dir)) = layout.dir(controller, &subgroup) else { continue };
        let Some(text) = warnings.ok_or_warn(dir.read(file)).flatten() else { continue };
        let text = text.trim_end();
        if group.text(file).is_none_or(|own| is_tighter(file, text, own)) {
            group.files.insert(file.to_owned(), text.to_owned());
            group.below.insert(file.to_owned(), name.clone());
        }
    }
}

/// Whether a limit allows less than that of the same file in the cgroup above.
fn is_tighter(file: &str, below: &str, own: &str) -> bool {
    match file {
        // The kernel has taken what is not allowed above out of these.
        "cpuset.cpus.effective" => true,
        "cpu.max" => match (v2::parse_cpu_max(own), v2::parse_cpu_max(below)) {
            (Ok(own), Ok(below)) => own.min(below) != own,
            _ => false,
        },
        _ => match (v2::limit(own), v2::limit(below)) {
            (Ok(own), Ok(below)) => own.min(below) != own,
            _ => false,
        },
    }
}

fn read_setting(
    dir: &CgroupDir<'_>,
    leases: &[LeaseRecord],
    file: &str,
    group: &mut CgroupFacts,
    warnings: &mut Warnings,
) {
    if let Some(text) = warnings.ok_or_warn(dir.read(file)).flatten() {
        let text = without_leases(leases, file, text, group);
        group.files.insert(file.to_owned(), text.trim_end().to_owned());
    }
}

/// A file's text without the agent's values; that it has some is noted in `group`.
fn without_leases(leases: &[LeaseRecord], file: &str, text: String, group: &mut CgroupFacts) -> String {
    match lease::value_before_leases(leases, file, &text) {
        Some(before) => {
            group.held.insert(file.to_owned());
            before
        }
        None => text,
    }
}

/// Removes groups that ended between the looks; what was below them hangs from what was above.
pub(super) fn forget_gone(groups: &mut Vec<CgroupFacts>) {
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
