//! Which file of a view goes where in one container.

use super::namespace::{FileId, NamespaceRoot, file_id, open_dir, path_of};
use super::{FSTYPE, MountError, PAGE_TARGET, SOURCE, TRIGGERS_DIR};
use crate::mountinfo::{CgroupLine, MountEntry, MountTable, is_deleted};
use elbowroom_types::id::DeviceNumber;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// One file or directory of a view and the name by which containers know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountSurface {
    /// Path below the view's directory.
    pub source: PathBuf,
    /// Where it belongs.
    #[serde(flatten)]
    pub kind: SurfaceTarget,
}

/// Where a surface belongs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SurfaceTarget {
    /// Always at this absolute path.
    Fixed(PathBuf),
    /// In the container's own directory of a cgroup hierarchy, wherever that is mounted.
    Cgroup {
        /// v1 controller; empty on cgroup v2.
        controller: String,
        /// Name of the file.
        file: String,
    },
}

/// What [`NamespaceRoot::attach`] will do.
#[derive(Clone, Debug)]
pub struct MountPlan {
    pub(super) view: ViewDirectory,
    /// The mounts to make, in this order.
    pub binds: Vec<BindMount>,
    /// The surfaces this container has no place for.
    pub skipped: Vec<SkippedSurface>,
}

/// One mount to make.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct BindMount {
    /// Path below the view's directory.
    pub source: PathBuf,
    /// Absolute path inside the container.
    pub target: PathBuf,
}

/// A surface without a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SkippedSurface {
    /// The target; for a cgroup file without a directory `controller/file`.
    pub target: PathBuf,
    /// The reason.
    pub why: SkipReason,
}

/// Why a surface has no place in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// There is no such file: an older kernel, a masked `/proc`, no `/sys`.
    Missing,
    /// A symbolic link is on the way.
    Symlink,
    /// The hierarchy is not mounted in the container, or its own directory is outside of what is mounted.
    NotMounted,
    /// The path leads to, or through, another filesystem than procfs, sysfs or cgroup.
    Foreign(String),
    /// Something of this filesystem type is mounted there already.
    Occupied(String),
    /// Another container that shares the mount namespace shows its view there.
    Taken,
}

/// A view's directory on the host and how mountinfo spells what is mounted from it.
#[derive(Clone, Debug)]
pub(super) struct ViewDirectory {
    pub(super) dir: PathBuf,
    pub(super) device: DeviceNumber,
    /// The directory within its filesystem.
    pub(super) root: PathBuf,
}

impl NamespaceRoot {
    /// Plans the view in `view_dir` for the process's own cgroup, from its mountinfo and cgroup. A surface without a place is
    /// skipped and reported; errors are a vanished process, a missing view and unreadable tables.
    pub fn plan(&self, surfaces: &[MountSurface], view_dir: &Path) -> Result<MountPlan, MountError> {
        let (table, view) = self.table_checked(|own| ViewDirectory::inspect(view_dir, own))?;
        plan_at(self, &table, view, surfaces)
    }
}

/// Has the kernel look up the files of the view in `view_dir`, as far as there are any. Each first lookup asks the view server,
/// tens of microseconds that the process that mounts them then does not wait for.
pub fn prefetch(view_dir: &Path, surfaces: &[MountSurface]) {
    let Ok(dir) = open_dir(view_dir) else { return };
    let page = Path::new(PAGE_TARGET.trim_start_matches('/'));
    let sources = surfaces.iter().map(|surface| surface.source.as_path());
    for source in sources.chain([page]) {
        let _ = file_id(dir.as_fd(), source);
    }
}

/// The same, where `table` is what is mounted there.
pub(super) fn plan_at(
    place: &NamespaceRoot,
    table: &MountTable,
    view: ViewDirectory,
    surfaces: &[MountSurface],
) -> Result<MountPlan, MountError> {
    if let Some(bad) = surfaces.iter().find(|surface| !stays_inside(&surface.source)) {
        return Err(MountError::BadSource { source_path: bad.source.clone() });
    }
    let (wanted, mut skipped) = targets(table, &place.cgroups()?, place.group(), surfaces);
    let mut binds = Vec::new();
    for bind in wanted {
        // The table comes first: a walk into a filesystem that the container serves itself might never return.
        let why = match covered_filesystem(table, &view, &bind.target, &|mount| place.is_hosts(mount)) {
            Err(why) => Some(why),
            Ok(()) => match place.open(&bind.target) {
                Ok(_) => None,
                Err(Errno::NOENT | Errno::NOTDIR) => Some(SkipReason::Missing),
                Err(Errno::LOOP) => Some(SkipReason::Symlink),
                Err(errno) => return place.or_vanished(Err(MountError::of("openat2", bind.target, errno))),
            },
        };
        match why {
            None => binds.push(bind),
            Some(why) => skipped.push(SkippedSurface { target: bind.target, why }),
        }
    }
    Ok(MountPlan { view, binds, skipped })
}

/// The paths of all surfaces, whether or not they exist.
fn targets(
    table: &MountTable,
    cgroups: &[CgroupLine],
    group: Option<&Path>,
    surfaces: &[MountSurface],
) -> (Vec<BindMount>, Vec<SkippedSurface>) {
    let (mut binds, mut skipped, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    for MountSurface { source, kind } in surfaces {
        let found = match kind {
            SurfaceTarget::Fixed(path) => vec![path.clone()],
            SurfaceTarget::Cgroup { controller, file } => own_directories(table, cgroups, group, controller)
                .into_iter()
                .map(|dir| dir.join(file))
                .collect(),
        };
        if let (true, SurfaceTarget::Cgroup { controller, file }) = (found.is_empty(), kind) {
            skipped.push(SkippedSurface {
                target: Path::new(controller).join(file),
                why: SkipReason::NotMounted,
            });
        }
        for target in found {
            let bind = BindMount { source: source.clone(), target };
            if seen.insert(bind.clone()) {
                binds.push(bind);
            }
        }
    }
    (binds, skipped)
}

/// The container's own directories at every place where the hierarchy of `controller` is mounted: that of its cgroup `group`, as far as
/// the container sees it, and that of the process, which an entry point may have moved below.
fn own_directories(
    table: &MountTable,
    cgroups: &[CgroupLine],
    group: Option<&Path>,
    controller: &str,
) -> Vec<PathBuf> {
    let line = cgroups.iter().find(|line| match controller {
        "" => line.controllers.is_empty(),
        name => line.controllers.iter().any(|candidate| candidate == name),
    });
    let Some(line) = line else { return Vec::new() };
    // systemd as a container's init moves itself one level down; the container is the level above.
    let own = match line.path.file_name() {
        Some(name) if name == "init.scope" => line.path.parent().unwrap_or(&line.path),
        _ => &line.path,
    };
    let top = group.and_then(|group| enclosing(&line.path, group));
    let mut found = Vec::new();
    for mount in table.iter().filter(|mount| mount.has_controller(controller) && !is_deleted(&mount.root)) {
        let inside = |dir: &Path| Some(mount.mount_point.join(dir.strip_prefix(&mount.root).ok()?));
        // A container may see only what is below its cgroup: where a runtime, or nspawn, has put its processes.
        let root = top.filter(|top| mount.root.starts_with(top) && line.path.starts_with(&mount.root));
        let dirs = [top.and_then(inside), root.map(|_| mount.mount_point.clone()), inside(own)];
        for dir in dirs.into_iter().flatten().map(strip_trailing_slash) {
            if !found.contains(&dir) {
                found.push(dir);
            }
        }
    }
    found
}

/// The cgroup `group` as it is spelled in the path of a process in it: an agent in a cgroup namespace of its own reads other beginnings.
fn enclosing<'a>(path: &'a Path, group: &Path) -> Option<&'a Path> {
    let is_it =
        |at: &&Path| *at == group || (!path.starts_with(group) && at.file_name() == group.file_name());
    path.ancestors().find(is_it)
}

/// `join` with an empty path leaves a slash at the end.
fn strip_trailing_slash(path: PathBuf) -> PathBuf {
    path.components().collect()
}

/// Whether the filesystem at `target` is one that views cover, and the way there leads through none that the container could
/// serve itself (FUSE, or an overlay of FUSE): a walk into that might never return. What is mounted at `target` already stays, but
/// for what the host has there too (`is_hosts`): that is not the container's.
pub(super) fn covered_filesystem(
    table: &MountTable,
    view: &ViewDirectory,
    target: &Path,
    is_hosts: &dyn Fn(&MountEntry) -> bool,
) -> Result<(), SkipReason> {
    let walk = table.walk(target);
    let Some((end, way)) = walk.split_last() else { return Err(SkipReason::Missing) };
    let may_cover =
        |mount: &MountEntry| mount.mount_point == target && (view.is_ours(mount) || is_hosts(mount));
    let on_target = may_cover(end);
    if end.mount_point == target && !on_target {
        return Err(SkipReason::Occupied(end.fstype.clone()));
    }
    // Of the mounts on the way one may be anything: the container's root filesystem.
    let kernels = |fstype: &str| matches!(fstype, "proc" | "sysfs" | "cgroup" | "cgroup2");
    let passable = |mount: &MountEntry| {
        mount.mount_point == Path::new("/")
            || mount.fstype == "tmpfs"
            || kernels(&mount.fstype)
            || may_cover(mount)
    };
    match way.iter().find(|mount| !passable(mount)) {
        Some(foreign) => Err(SkipReason::Foreign(foreign.fstype.clone())),
        None if on_target || kernels(&end.fstype) => Ok(()),
        None => Err(SkipReason::Foreign(end.fstype.clone())),
    }
}

fn stays_inside(source: &Path) -> bool {
    source.components().count() > 0 && source.components().all(|part| matches!(part, Component::Normal(_)))
}

impl ViewDirectory {
    /// Looks at the view's directory; `own` are this process's mounts.
    pub(super) fn inspect(dir: &Path, own: &MountTable) -> Result<Self, MountError> {
        let (fd, id) = open_view(dir)?;
        let path = path_of(fd.as_fd()).map_err(|e| MountError::of("readlink", dir, e))?;
        let mount = own.by_id(id.mount).ok_or_else(|| MountError::NoView { path: dir.to_owned() })?;
        let inside = path.strip_prefix(&mount.mount_point).unwrap_or(Path::new(""));
        Ok(Self {
            dir: dir.to_owned(),
            device: id.device,
            root: strip_trailing_slash(mount.root.join(inside)),
        })
    }

    /// Opens the view's directory, if it is the one that was looked at.
    pub(super) fn open(&self) -> Result<OwnedFd, MountError> {
        let (fd, id) = open_view(&self.dir)?;
        if id.device == self.device { Ok(fd) } else { Err(MountError::NoView { path: self.dir.clone() }) }
    }

    /// Opens the directory of the files of this view that take triggers, where there is one.
    pub(super) fn open_triggers(&self) -> Option<OwnedFd> {
        let all = self.dir.parent()?.parent()?.join(TRIGGERS_DIR);
        open_dir(&all.join(self.dir.file_name()?)).ok()
    }

    /// Whether a mount is a view of any agent, dead ones included, or comes from this view's filesystem. The mount that
    /// holds all views is not one: its root is the filesystem's own.
    pub(super) fn is_ours(&self, mount: &MountEntry) -> bool {
        is_view(mount) || (mount.device == self.device && mount.root != Path::new("/"))
    }
}

fn open_view(dir: &Path) -> Result<(OwnedFd, FileId), MountError> {
    let no_view = |errno| match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::NOTCONN => MountError::NoView { path: dir.to_owned() },
        errno => MountError::of("open", dir, errno),
    };
    let fd = open_dir(dir).map_err(no_view)?;
    let id = file_id(fd.as_fd(), Path::new("")).map_err(no_view)?;
    Ok((fd, id))
}

/// Whether a mount is a view of any agent.
pub(super) fn is_view(mount: &MountEntry) -> bool {
    mount.fstype == FSTYPE && mount.source == Path::new(SOURCE) && mount.root != Path::new("/")
}

/// Of which container a view is that [`is_view`] knows: a view's directory has its name.
pub(super) fn view_name(mount: &MountEntry) -> Option<&OsStr> {
    mount.root.components().nth(1).map(Component::as_os_str)
}

impl fmt::Display for SkippedSurface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.target.display(), self.why)
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("the container has no such file"),
            Self::Symlink => f.write_str("a symbolic link is on the way"),
            Self::NotMounted => f.write_str("its cgroup is not mounted in the container"),
            Self::Foreign(fstype) => write!(f, "on {fstype}, not on procfs, sysfs or cgroup"),
            Self::Occupied(fstype) => write!(f, "something else ({fstype}) is mounted there"),
            Self::Taken => f.write_str("the view of a container in the same mount namespace is there"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mountinfo::parse_cgroups;

    /// dockerd 20.10 on cgroup v1: the container's own cgroup is what is mounted.
    const DOCKER_V1: (&str, &str) = (
        "100 90 0:50 / / rw,relatime master:3 - overlay overlay rw\n\
         101 100 0:51 / /proc rw,nosuid - proc proc rw\n\
         102 100 0:22 / /sys ro,nosuid - sysfs sysfs ro\n\
         103 102 0:52 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw,mode=755\n\
         104 103 0:29 /docker/4f5e /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n\
         105 103 0:31 /docker/4f5e /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
         106 101 0:53 / /proc/kcore rw - tmpfs tmpfs rw\n",
        "5:memory:/docker/4f5e\n4:cpu,cpuacct:/docker/4f5e\n1:name=systemd:/docker/4f5e\n0::/docker/4f5e\n",
    );

    /// Docker on cgroup v2 with a private cgroup namespace, read from the host.
    const DOCKER_V2: (&str, &str) = (
        "100 90 0:50 / / rw - overlay overlay rw\n\
         101 100 0:51 / /proc rw - proc proc rw\n\
         102 100 0:22 / /sys ro - sysfs sysfs ro\n\
         103 102 0:26 /system.slice/docker-4f5e.scope /sys/fs/cgroup ro - cgroup2 cgroup rw,nsdelegate\n",
        "0::/system.slice/docker-4f5e.scope\n",
    );

    /// A privileged monitoring pod: the host's hierarchy at /sys/fs/cgroup and once more below /host.
    const K8S: (&str, &str) = (
        "100 90 0:50 / / rw - overlay overlay rw\n\
         101 100 0:51 / /proc rw - proc proc rw\n\
         102 100 0:22 / /sys rw - sysfs sysfs rw\n\
         103 102 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n\
         104 100 0:26 / /host/cgroup ro - cgroup2 cgroup rw\n\
         105 101 0:60 /lxcfs/meminfo /proc/meminfo rw - fuse.lxcfs lxcfs rw\n",
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-77.scope\n",
    );

    /// systemd as the first process of a container.
    const SYSTEMD: (&str, &str) = (
        "100 90 0:50 / / rw - overlay overlay rw\n\
         103 100 0:26 /machine/web /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
        "0::/machine/web/init.scope\n",
    );

    /// A plain process of the host, cgroup v1.
    const HOST: (&str, &str) = (
        "27 1 254:0 / / rw - ext4 /dev/vda rw\n\
         22 27 0:21 / /proc rw - proc proc rw\n\
         23 27 0:22 / /sys rw - sysfs sysfs rw\n\
         31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
         32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
        "3:cpu:/elbowroom/one\n0::/\n",
    );

    fn read(fixture: (&str, &str)) -> (MountTable, Vec<CgroupLine>) {
        let table = MountTable::parse(fixture.0.as_bytes(), Path::new("mountinfo")).unwrap();
        (table, parse_cgroups(fixture.1.as_bytes(), Path::new("cgroup")).unwrap())
    }

    fn check(fixture: (&str, &str), controller: &str, file: &str, expect: &[&str]) {
        check_in(fixture, None, controller, file, expect);
    }

    fn check_in(fixture: (&str, &str), group: Option<&str>, controller: &str, file: &str, expect: &[&str]) {
        let (table, cgroups) = read(fixture);
        let kind = SurfaceTarget::Cgroup { controller: controller.to_owned(), file: file.to_owned() };
        let surface = MountSurface { source: Path::new("cgroup").join(file), kind };
        let (binds, skipped) = targets(&table, &cgroups, group.map(Path::new), &[surface]);
        let found: Vec<&str> = binds.iter().map(|bind| bind.target.to_str().unwrap()).collect();
        assert_eq!(found, expect, "{controller}/{file}");
        let expect = if expect.is_empty() { vec![SkipReason::NotMounted] } else { vec![] };
        assert_eq!(skipped.into_iter().map(|skipped| skipped.why).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn cgroup_files_go_to_the_containers_own_directory() {
        check(DOCKER_V1, "cpu", "cpu.cfs_quota_us", &["/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us"]);
        check(DOCKER_V1, "memory", "memory.limit_in_bytes", &["/sys/fs/cgroup/memory/memory.limit_in_bytes"]);
        check(DOCKER_V1, "cpuset", "cpuset.cpus", &[]);
        check(DOCKER_V1, "", "cpu.max", &[]);
        check(DOCKER_V2, "", "cpu.max", &["/sys/fs/cgroup/cpu.max"]);
        check(DOCKER_V2, "cpu", "cpu.cfs_quota_us", &[]);
        let scope =
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-77.scope";
        let k8s = ["/sys/fs/cgroup", "/host/cgroup"].map(|at| format!("{at}/{scope}/memory.max"));
        check(K8S, "", "memory.max", &[&k8s[0], &k8s[1]]);
        check(SYSTEMD, "", "cpu.max", &["/sys/fs/cgroup/cpu.max"]);
        check(HOST, "cpu", "cpu.shares", &["/sys/fs/cgroup/cpu/elbowroom/one/cpu.shares"]);
    }

    #[test]
    fn a_container_whose_processes_moved_down_shows_its_limits_at_its_root_too() {
        let group = "/system.slice/docker-4f5e.scope";
        let moved = (DOCKER_V2.0, "0::/system.slice/docker-4f5e.scope/init\n");
        check_in(
            moved,
            Some(group),
            "",
            "cpu.max",
            &["/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/init/cpu.max"],
        );
        check_in(DOCKER_V2, Some(group), "", "cpu.max", &["/sys/fs/cgroup/cpu.max"]);
        // An agent in a cgroup namespace of its own.
        let there = (
            "103 102 0:26 /../docker-4f5e.scope /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
            "0::/../docker-4f5e.scope/a/b\n",
        );
        check_in(
            there,
            Some(group),
            "",
            "cpu.max",
            &["/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/a/b/cpu.max"],
        );
        // nspawn shows a container what is below the unit with its limits.
        let unit = "/machine.slice/systemd-nspawn@web.service";
        let nspawn = (
            "103 100 0:26 /machine.slice/systemd-nspawn@web.service/payload /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
            "0::/machine.slice/systemd-nspawn@web.service/payload/init.scope\n",
        );
        check_in(nspawn, Some(unit), "", "memory.max", &["/sys/fs/cgroup/memory.max"]);
        // The whole hierarchy is visible.
        let host = ["/sys/fs/cgroup/a/b/c/cpu.max", "/sys/fs/cgroup/a/b/c/b/cpu.max"];
        check_in(
            ("103 100 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n", "0::/a/b/c/b\n"),
            Some("/a/b/c"),
            "",
            "cpu.max",
            &host,
        );
    }

    #[test]
    fn a_cgroup_that_is_a_prefix_only_of_the_name_is_not_inside() {
        let fixture = (DOCKER_V2.0, "0::/system.slice/docker-4f5e.scope2\n");
        check(fixture, "", "cpu.max", &[]);
        check((DOCKER_V2.0, "0::/\n"), "", "cpu.max", &[]);
    }

    #[test]
    fn only_kernel_filesystems_are_covered_and_other_peoples_mounts_stay() {
        let view = ViewDirectory { dir: "/v".into(), device: DeviceNumber::new(0, 99), root: "/id".into() };
        let stale = "110 101 0:98 /id/proc/stat /proc/stat ro - fuse.elbowroom elbowroom ro\n";
        let same_device = "111 101 0:99 /id/proc/uptime /proc/uptime ro - tmpfs elbowroom ro\n";
        // A directory that the container serves itself, with a real sysfs further down.
        let trap = "112 102 0:70 / /sys/kernel rw - fuse trap rw\n113 112 0:22 / /sys/kernel/real rw - sysfs sysfs rw\n";
        let text = format!("{}{stale}{same_device}{trap}", K8S.0);
        let table = MountTable::parse(text.as_bytes(), Path::new("mountinfo")).unwrap();
        for (target, expect) in [
            ("/proc/cpuinfo", Ok(())),
            ("/proc/stat", Ok(())),
            ("/proc/uptime", Ok(())),
            ("/sys/devices/system/cpu", Ok(())),
            ("/host/cgroup/x/cpu.max", Ok(())),
            ("/proc/meminfo", Err(SkipReason::Occupied("fuse.lxcfs".into()))),
            ("/proc/meminfo/x", Err(SkipReason::Foreign("fuse.lxcfs".into()))),
            ("/etc/passwd", Err(SkipReason::Foreign("overlay".into()))),
            ("/sys/kernel/real/x", Err(SkipReason::Foreign("fuse".into()))),
        ] {
            assert_eq!(covered_filesystem(&table, &view, Path::new(target), &|_| false), expect, "{target}");
        }
        // What the host has there too is covered, once and again.
        let target = Path::new("/proc/meminfo");
        let is_lxcfs = |mount: &MountEntry| mount.fstype == "fuse.lxcfs";
        assert_eq!(covered_filesystem(&table, &view, target, &is_lxcfs), Ok(()));
        let text =
            format!("{text}120 105 0:99 /id/proc/meminfo /proc/meminfo ro - fuse.elbowroom elbowroom ro\n");
        let table = MountTable::parse(text.as_bytes(), Path::new("mountinfo")).unwrap();
        assert_eq!(covered_filesystem(&table, &view, target, &is_lxcfs), Ok(()));
    }

    #[test]
    fn the_mount_that_holds_all_views_is_not_a_view() {
        let text = "40 27 0:99 / /run/elbowroom/views rw - fuse.elbowroom elbowroom rw\n\
                    41 27 0:99 /id/proc/stat /proc/stat rw - fuse.elbowroom elbowroom rw\n";
        let table = MountTable::parse(text.as_bytes(), Path::new("mountinfo")).unwrap();
        let views: Vec<bool> = table.iter().map(is_view).collect();
        assert_eq!(views, [false, true]);
        let names: Vec<Option<&OsStr>> = table.iter().map(view_name).collect();
        assert_eq!(names, [None, Some(OsStr::new("id"))]);
    }

    #[test]
    fn a_source_cannot_leave_the_view() {
        for (source, fine) in [
            ("proc/meminfo", true),
            ("../x", false),
            ("a/../../x", false),
            ("/etc/passwd", false),
            ("", false),
        ] {
            assert_eq!(stays_inside(Path::new(source)), fine, "{source}");
        }
    }

    #[test]
    fn surfaces_read_as_the_control_socket_writes_them() {
        let text = r#"[{"source":"proc/meminfo","fixed":"/proc/meminfo"},
                       {"source":"cgroup/cpu.max","cgroup":{"controller":"","file":"cpu.max"}}]"#;
        let surfaces: Vec<MountSurface> = serde_json::from_str(text).unwrap();
        assert_eq!(surfaces[0].kind, SurfaceTarget::Fixed("/proc/meminfo".into()));
        assert_eq!(
            surfaces[1].kind,
            SurfaceTarget::Cgroup { controller: String::new(), file: "cpu.max".into() }
        );
    }
}
