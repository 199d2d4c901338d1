//! Views in real mount namespaces: needs root, /dev/fuse and util-linux.

mod stand_in;

use elbowroom_linux::mount::{
    EntryStage, MountError, MountPlan, MountSurface, NamespaceRoot, SkipReason, SurfaceTarget, ViewParts,
    detach_all, detach_group,
};
use elbowroom_types::id::DeviceNumber;
use stand_in::{Container, Views, skip, wait_until};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn fixed(source: &str, target: &str) -> MountSurface {
    MountSurface { source: source.into(), kind: SurfaceTarget::Fixed(target.into()) }
}

/// Two files and a directory.
fn surfaces() -> Vec<MountSurface> {
    vec![
        fixed("proc/meminfo", "/proc/meminfo"),
        fixed("proc/stat", "/proc/stat"),
        fixed("sys/devices/system/cpu", "/sys/devices/system/cpu"),
    ]
}

struct Rig {
    views: Views,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { views: Views::mount(dir.path().join("views"), name), _dir: dir }
    }

    fn one(&self) -> PathBuf {
        self.views.dir.join("one")
    }

    fn device(&self) -> DeviceNumber {
        let device = rustix::fs::stat(&self.views.dir).unwrap().st_dev;
        DeviceNumber { major: rustix::fs::major(device), minor: rustix::fs::minor(device) }
    }

    fn plan(&self, container: &Container) -> MountPlan {
        let plan = container.place().plan(&surfaces(), &self.one()).unwrap();
        assert_eq!((plan.binds.len(), plan.skipped.len()), (3, 0), "{plan:?}");
        plan
    }
}

fn paths(paths: &[&str]) -> Vec<PathBuf> {
    paths.iter().map(PathBuf::from).collect()
}

#[test]
fn attached_views_are_read_and_attaching_again_changes_nothing() {
    if skip() {
        return;
    }
    let (rig, container) = (Rig::new("a"), Container::start());
    let before = container.mount_points();
    let done = container.place().attach(&rig.plan(&container)).unwrap();
    assert_eq!((done.mounted, done.replaced, done.present), (3, 0, 0));
    assert_eq!(container.read("/proc/meminfo").unwrap(), "a one/proc/meminfo\n");
    assert_eq!(
        container.read("/sys/devices/system/cpu/online").unwrap(),
        "a one/sys/devices/system/cpu/online\n"
    );
    assert!(std::fs::read_to_string("/proc/meminfo").unwrap().contains("MemTotal"), "the host sees itself");
    let once = container.mount_points();
    assert_eq!(once.len(), before.len() + 3);

    let again = container.place().attach(&rig.plan(&container)).unwrap();
    assert_eq!((again.mounted, again.replaced, again.present), (0, 0, 3));
    assert_eq!(container.mount_points(), once);
    assert_eq!(
        container.place().attached().unwrap(),
        paths(&["/proc/meminfo", "/proc/stat", "/sys/devices/system/cpu"])
    );

    assert_eq!(container.place().detach(None).unwrap(), 3);
    assert_eq!(container.mount_points(), before);
    assert_eq!(container.place().detach(None).unwrap(), 0);
}

#[test]
fn a_view_whose_agent_died_is_replaced() {
    if skip() {
        return;
    }
    let (mut dead, container) = (Rig::new("dead"), Container::start());
    container.place().attach(&dead.plan(&container)).unwrap();
    let once = container.mount_points();
    dead.views.kill();
    let error = container.read("/proc/meminfo").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotConnected, "{error}");

    let alive = Rig::new("alive");
    let done = container.place().attach(&alive.plan(&container)).unwrap();
    assert_eq!((done.mounted, done.replaced, done.present), (0, 3, 0));
    assert_eq!(container.read("/proc/meminfo").unwrap(), "alive one/proc/meminfo\n");
    assert_eq!(container.mount_points().len(), once.len(), "no layer is left below");
}

#[test]
fn the_hosts_file_never_shows_while_a_view_is_replaced() {
    if skip() {
        return;
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let number = |part: Option<&str>| part.and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
    let mut parts = release.split(['.', '-']);
    if (number(parts.next()), number(parts.next())) < (6, 5) {
        println!("skipped: needs MOVE_MOUNT_BENEATH (Linux 6.5), this is {release}");
        return;
    }
    let (first, second, container) = (Rig::new("first"), Rig::new("second"), Container::start());
    container.place().attach(&first.plan(&container)).unwrap();
    let (stop, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let text = container.read("/proc/meminfo").unwrap();
                assert!(text.ends_with(" one/proc/meminfo\n"), "read {text:?}");
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
        for rig in [&second, &first].into_iter().cycle().take(100) {
            let seen = reads.load(Ordering::Relaxed);
            assert_eq!(container.place().attach(&rig.plan(&container)).unwrap().replaced, 3);
            wait_until("the reader", || reads.load(Ordering::Relaxed) > seen || reader.is_finished());
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn stacked_stale_views_are_replaced_and_removed_in_all_layers() {
    if skip() {
        return;
    }
    let mut dead = Rig::new("dead");
    let container = Container::start();
    let before = container.mount_points();
    let source = dead.one().join("proc/stat");
    let bind = format!("mount --bind {} /proc/stat\n", source.display());
    container.sh(&bind.repeat(3));
    dead.views.kill();

    let alive = Rig::new("alive");
    let done = container.place().attach(&alive.plan(&container)).unwrap();
    assert_eq!((done.mounted, done.replaced), (2, 1));
    assert_eq!(container.mount_points().len(), before.len() + 3);
    assert_eq!(container.read("/proc/stat").unwrap(), "alive one/proc/stat\n");

    let source = dead.one().join("proc");
    assert!(std::fs::metadata(source).is_err());
    assert_eq!(container.place().detach(None).unwrap(), 3);
    assert_eq!(container.mount_points(), before);
}

#[test]
fn detach_takes_every_layer_and_leaves_what_is_not_ours() {
    if skip() {
        return;
    }
    let rig = Rig::new("a");
    let container = Container::start();
    let source = rig.one().join("proc/stat");
    let bind = format!("mount --bind {} /proc/stat\n", source.display());
    container.sh(&format!("mount --bind /etc/hostname /proc/version\n{bind}{bind}{bind}"));
    assert_eq!(container.place().attached().unwrap(), paths(&["/proc/stat"]));
    assert_eq!(container.place().detach(None).unwrap(), 3);
    assert!(container.mount_points().contains(&"/proc/version".to_owned()));

    container.sh(&format!("{bind}mount --bind /etc/hostname /proc/stat"));
    container.place().attach(&container.place().plan(&surfaces()[..1], &rig.one()).unwrap()).unwrap();
    match container.place().detach(None) {
        Err(MountError::Covered { target }) => assert_eq!(target, Path::new("/proc/stat")),
        other => panic!("{other:?}"),
    }
    assert_eq!(container.place().attached().unwrap(), paths(&["/proc/stat"]), "the other view is gone");
}

#[test]
fn detach_reaches_copies_of_the_containers_namespace() {
    if skip() {
        return;
    }
    let (rig, container) = (Rig::new("a"), Container::start());
    container.place().attach(&rig.plan(&container)).unwrap();
    let pid = container.pid().to_string();
    let script = "echo ready; exec sleep 1000";
    let mut copy = Command::new("nsenter");
    let copy = Container::spawn(copy.args(["-m", "-t", &pid, "unshare", "-m", "sh", "-ec", script]));
    let host = Container::spawn(Command::new("sh").args(["-c", script]));
    assert_ne!(copy.place().namespace().unwrap(), container.place().namespace().unwrap());
    assert_eq!(copy.place().attached().unwrap().len(), 3);

    let mut gone = Container::start();
    gone.kill();
    gone.reap();
    let pids = [host.pid(), container.pid(), gone.pid(), container.pid(), copy.pid()];
    assert_eq!(detach_group("/another", &pids, None).unwrap(), 0);
    assert_eq!(detach_group("/", &pids, None).unwrap(), 6);
    for left in [container.place(), copy.place()] {
        assert_eq!(left.attached().unwrap(), paths(&[]));
    }
}

#[test]
fn views_of_one_file_system_are_found_without_knowing_where_they_are() {
    if skip() {
        return;
    }
    let (rig, another, containers) = (Rig::new("a"), Rig::new("b"), [(); 3].map(|()| Container::start()));
    for container in &containers[..2] {
        container.place().attach(&rig.plan(container)).unwrap();
    }
    containers[2].place().attach(&another.plan(&containers[2])).unwrap();
    assert_eq!(detach_all(rig.device()), 2);
    assert_eq!(containers.each_ref().map(|c| c.place().attached().unwrap().len()), [0, 0, 3]);
    assert_eq!(detach_all(rig.device()), 0);
}

#[test]
fn a_view_that_stays_with_the_first_process_fails_a_detach_and_no_other_does() {
    if skip() {
        return;
    }
    let (rig, covered, free) = (Rig::new("a"), Container::start(), Container::start());
    for (container, pids) in [(&covered, [covered.pid(), free.pid()]), (&free, [free.pid(), covered.pid()])] {
        covered.place().attach(&rig.plan(&covered)).unwrap();
        free.place().attach(&rig.plan(&free)).unwrap();
        covered.sh("mount --bind /etc/hostname /proc/stat");
        let result = detach_group("/", &pids, None);
        let is_first = container.pid() == covered.pid();
        assert_eq!(matches!(result, Err(MountError::Covered { .. })), is_first, "{result:?}");
        assert_eq!(free.place().attached().unwrap(), paths(&[]));
        covered.sh("umount /proc/stat");
    }
}

#[test]
fn a_failure_in_the_middle_takes_everything_back() {
    if skip() {
        return;
    }
    let (rig, container) = (Rig::new("a"), Container::start());
    let before = container.mount_points();
    let mut wanted = surfaces();
    // A directory cannot be mounted on a file: the third of four mounts fails.
    wanted.insert(2, fixed("proc", "/proc/uptime"));
    let plan = container.place().plan(&wanted, &rig.one()).unwrap();
    match container.place().attach(&plan) {
        Err(MountError::Io { call: "move_mount", path, .. }) => assert_eq!(path, Path::new("/proc/uptime")),
        other => panic!("{other:?}"),
    }
    assert_eq!(container.mount_points(), before);
    assert!(container.read("/proc/meminfo").unwrap().contains("MemTotal"));
}

#[test]
fn a_failed_replacement_leaves_neither_the_stale_nor_the_new_view() {
    if skip() {
        return;
    }
    let (mut dead, container) = (Rig::new("dead"), Container::start());
    let before = container.mount_points();
    container.place().attach(&dead.plan(&container)).unwrap();
    dead.views.kill();
    let alive = Rig::new("alive");
    let mut wanted = surfaces();
    wanted.push(fixed("proc", "/proc/uptime"));
    let plan = container.place().plan(&wanted, &alive.one()).unwrap();
    assert!(container.place().attach(&plan).is_err());
    assert_eq!(container.mount_points(), before);
}

#[test]
fn what_others_mounted_stays_and_what_is_missing_is_reported() {
    if skip() {
        return;
    }
    let rig = Rig::new("a");
    let container = Container::start();
    container.sh("mount --bind /etc/hostname /proc/meminfo; mount -t tmpfs t /sys");
    let mut wanted = surfaces();
    wanted.push(fixed("proc/uptime", "/proc/no-such-file"));
    wanted.push(MountSurface {
        source: "cgroup/cpu.shares".into(),
        kind: SurfaceTarget::Cgroup { controller: "no-such-controller".into(), file: "f".into() },
    });
    let plan = container.place().plan(&wanted, &rig.one()).unwrap();
    let skipped: Vec<String> = plan.skipped.iter().map(ToString::to_string).collect();
    let fstype = match &plan.skipped[1].why {
        SkipReason::Occupied(fstype) => fstype.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        skipped,
        [
            "no-such-controller/f: its cgroup is not mounted in the container".to_owned(),
            format!("/proc/meminfo: something else ({fstype}) is mounted there"),
            "/sys/devices/system/cpu: on tmpfs, not on procfs, sysfs or cgroup".to_owned(),
            "/proc/no-such-file: the container has no such file".to_owned(),
        ]
    );
    let done = container.place().attach(&plan).unwrap();
    assert_eq!((done.mounted, done.skipped.len()), (1, 4));
    assert_eq!(container.read("/proc/stat").unwrap(), "a one/proc/stat\n");
}

#[test]
fn symbolic_links_are_not_followed() {
    if skip() {
        return;
    }
    let (rig, container) = (Rig::new("a"), Container::start());
    let links = [
        fixed("proc/stat", "/proc/mounts"),
        fixed("proc/stat", "/proc/self/status"),
        fixed("proc/stat", "/sys/bus/cpu/devices/cpu0/uevent"),
    ];
    let plan = container.place().plan(&links, &rig.one()).unwrap();
    let why: Vec<&SkipReason> = plan.skipped.iter().map(|skipped| &skipped.why).collect();
    assert_eq!(why, [&SkipReason::Symlink; 3]);
}

#[test]
fn what_is_planted_after_planning_is_refused() {
    if skip() {
        return;
    }
    let rig = Rig::new("a");
    for meminfo in ["ln -s /mnt/victim /mnt/p/meminfo", "touch /mnt/p/meminfo"] {
        let container = Container::start();
        let plan = rig.plan(&container);
        container.sh(&format!(
            "mount -t tmpfs t /mnt; mkdir /mnt/p; touch /mnt/p/stat /mnt/victim; {meminfo}; mount --bind /mnt/p /proc"
        ));
        let before = container.mount_points();
        match container.place().attach(&plan) {
            Err(MountError::Changed { target }) => assert_eq!(target, Path::new("/proc/meminfo")),
            other => panic!("{other:?}"),
        }
        assert_eq!(container.mount_points(), before);
    }
}

#[test]
fn a_vanished_process_is_told_apart() {
    if skip() {
        return;
    }
    let (rig, mut container) = (Rig::new("a"), Container::start());
    let (pid, plan_before) = (container.pid(), rig.plan(&container));
    let opened = container.place();
    let check = |place: &NamespaceRoot, state: &str| {
        let vanished = |error: Option<MountError>, what| {
            assert!(matches!(error, Some(MountError::Vanished { .. })), "{what}, {state}: {error:?}");
        };
        vanished(place.plan(&surfaces(), &rig.one()).err(), "plan");
        vanished(place.attach(&plan_before).err(), "attach");
        vanished(place.attached().err(), "attached");
        vanished(place.detach(None).err(), "detach");
        vanished(place.namespace().err(), "namespace");
    };
    container.kill();
    let stat = format!("/proc/{pid}/stat");
    wait_until("the zombie", || std::fs::read_to_string(&stat).is_ok_and(|text| text.contains(") Z ")));
    check(&opened, "zombie");
    container.reap();
    check(&opened, "reaped");
    assert!(matches!(NamespaceRoot::of(pid), Err(MountError::Vanished { .. })));
}

#[test]
fn a_process_of_another_group_is_not_taken_for_the_containers() {
    if skip() {
        return;
    }
    let container = Container::start();
    let own = elbowroom_linux::process::cgroup_paths(container.pid() as i32);
    for group in own.iter().map(String::as_str).chain(["/"]) {
        assert!(NamespaceRoot::in_group(container.pid(), group).is_ok(), "{group}");
    }
    let error = NamespaceRoot::in_group(container.pid(), "/docker/4f5e").err();
    assert!(matches!(error, Some(MountError::Vanished { .. })), "{error:?}");
}

#[test]
fn the_hosts_namespace_is_refused() {
    if skip() {
        return;
    }
    let rig = Rig::new("a");
    let host = Container::spawn(Command::new("sh").args(["-c", "echo ready; exec sleep 1000"]));
    let plan = host.place().plan(&surfaces(), &rig.one()).unwrap();
    assert!(matches!(host.place().attach(&plan), Err(MountError::HostNamespace { .. })));
    assert!(matches!(host.place().detach(None), Err(MountError::HostNamespace { .. })));
    let container = Container::start();
    assert_eq!(host.place().stage().unwrap(), EntryStage::HostNamespace);
    assert_eq!(container.place().stage().unwrap(), EntryStage::HostRoot);
    assert_ne!(host.place().namespace().unwrap(), container.place().namespace().unwrap());
}

#[test]
fn mounts_that_would_spread_to_the_host_are_refused() {
    if skip() {
        return;
    }
    let Some(busybox) =
        ["/usr/bin/busybox", "/bin/busybox"].into_iter().find(|path| Path::new(path).exists())
    else {
        println!("skipped: needs busybox-static");
        return;
    };
    let rig = Rig::new("a");
    let root = tempfile::tempdir().unwrap();
    let proc = root.path().join("proc");
    std::fs::create_dir(&proc).unwrap();
    std::fs::copy(busybox, root.path().join("busybox")).unwrap();
    // The host: a procfs that is shared with copies of this namespace. A namespace of its own keeps it off the machine.
    let script = format!(
        "mount -t proc proc {proc}; mount --make-shared {proc}; \
         unshare -m --propagation unchanged chroot {root} /busybox sh -c 'echo ready; exec /busybox sleep 1000'",
        proc = proc.display(),
        root = root.path().display()
    );
    let host = Container::spawn(Command::new("unshare").args([
        "-m",
        "--propagation",
        "private",
        "sh",
        "-ec",
        &script,
    ]));
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", host.pid())).unwrap();
    let inner: u32 = children.trim().parse().unwrap();
    // Only the namespace the agent runs in, and that of process 1, count as the host: enter the first.
    let status = Command::new("nsenter")
        .args(["-m", "-t", &host.pid().to_string()])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "inside_the_sharing_host", "--nocapture"])
        .env("ELBOWROOM_TEST_INNER", inner.to_string())
        .env("ELBOWROOM_TEST_VIEW", rig.one())
        .status()
        .unwrap();
    let _ = Command::new("kill").arg(inner.to_string()).status();
    assert!(status.success());
}

/// The second half of the test above; alone it has nothing to do.
#[test]
fn inside_the_sharing_host() {
    let (Ok(inner), Some(view)) =
        (std::env::var("ELBOWROOM_TEST_INNER"), std::env::var_os("ELBOWROOM_TEST_VIEW"))
    else {
        return;
    };
    let inner: u32 = inner.parse().unwrap();
    let place = NamespaceRoot::of(inner).unwrap();
    let shared = place.refuse_shared(Path::new("/proc/meminfo"));
    assert!(matches!(shared, Err(MountError::SharedWithHost { .. })), "{shared:?}");
    let plan = place.plan(&surfaces()[..2], Path::new(&view)).unwrap();
    assert_eq!(plan.binds.len(), 2, "{plan:?}");
    match place.attach(&plan) {
        Err(MountError::SharedWithHost { target }) => assert_eq!(target, Path::new("/proc/meminfo")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_root_directory_below_the_namespaces_is_the_containers_root() {
    if skip() {
        return;
    }
    let Some(busybox) =
        ["/usr/bin/busybox", "/bin/busybox"].into_iter().find(|path| Path::new(path).exists())
    else {
        println!("skipped: needs busybox-static");
        return;
    };
    let rig = Rig::new("a");
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("proc")).unwrap();
    std::fs::copy(busybox, root.path().join("busybox")).unwrap();
    let script = format!(
        "mount -t proc proc {0}/proc; exec chroot {0} /busybox sh -c 'echo ready; exec /busybox sleep 1000'",
        root.path().display()
    );
    let container = Container::spawn(Command::new("unshare").args([
        "-m",
        "--propagation",
        "private",
        "sh",
        "-ec",
        &script,
    ]));
    assert_eq!(container.place().stage().unwrap(), EntryStage::Contained);
    let plan = container.place().plan(&surfaces(), &rig.one()).unwrap();
    assert_eq!((plan.binds.len(), plan.skipped.len()), (2, 1));
    container.place().attach(&plan).unwrap();
    assert_eq!(container.read("/proc/stat").unwrap(), "a one/proc/stat\n");
    assert_eq!(container.place().attached().unwrap(), paths(&["/proc/meminfo", "/proc/stat"]));
    assert_eq!(container.place().detach(None).unwrap(), 2);
}

#[test]
fn a_container_with_its_own_users_gets_views_too() {
    if skip() {
        return;
    }
    if Command::new("unshare").args(["-Ur", "true"]).status().map_or(true, |status| !status.success()) {
        println!("skipped: needs user namespaces");
        return;
    }
    let rig = Rig::new("a");
    let container = Container::with(&["-U", "--map-root-user", "--propagation", "private"], "");
    container.place().attach(&rig.plan(&container)).unwrap();
    assert_eq!(container.read("/proc/meminfo").unwrap(), "a one/proc/meminfo\n");
    assert_eq!(container.place().detach(None).unwrap(), 3);
}

#[test]
fn containers_that_share_a_namespace_do_not_fight() {
    if skip() {
        return;
    }
    let (rig, container) = (Rig::new("a"), Container::start());
    container.place().attach(&rig.plan(&container)).unwrap();
    let second = container.place().plan(&surfaces()[..2], &rig.views.dir.join("two")).unwrap();
    let done = container.place().attach(&second).unwrap();
    assert_eq!((done.mounted, done.replaced, done.present), (0, 0, 0));
    assert_eq!(done.skipped.iter().map(|skipped| &skipped.why).collect::<Vec<_>>(), [&SkipReason::Taken; 2]);
    let pids = [container.pid()];
    assert_eq!(detach_group("/", &pids, Some("two".as_ref())).unwrap(), 0);
    assert_eq!(container.read("/proc/meminfo").unwrap(), "a one/proc/meminfo\n");
    assert_eq!(detach_group("/", &pids, Some("one".as_ref())).unwrap(), 3);
}

#[test]
fn what_a_container_mounts_on_its_view_does_not_reach_the_host() {
    if skip() {
        return;
    }
    let (rig, container) = (Rig::new("a"), Container::start());
    rustix::mount::mount_change(&rig.views.dir, rustix::mount::MountPropagationFlags::SHARED).unwrap();
    container.place().attach(&rig.plan(&container)).unwrap();
    container.sh("mount --bind /etc/hostname /sys/devices/system/cpu/online");
    let on_host = std::fs::read_to_string(rig.one().join("sys/devices/system/cpu/online")).unwrap();
    assert_eq!(on_host, "a one/sys/devices/system/cpu/online\n");
}

#[test]
fn one_at_a_time_attaches_to_a_namespace() {
    if skip() {
        return;
    }
    let (rig, container) = (Rig::new("a"), Container::start());
    let namespace = std::fs::File::open(format!("/proc/{}/ns/mnt", container.pid())).unwrap();
    rustix::fs::flock(&namespace, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert!(matches!(container.place().attach(&rig.plan(&container)), Err(MountError::Busy { .. })));
    drop(namespace);
    // Eight threads attach at once: the first one mounts, and the others find everything there.
    let plan = rig.plan(&container);
    let done: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(|| container.place().attach(&plan).unwrap())).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(done.iter().map(|done| done.mounted).sum::<usize>(), 3, "{done:?}");
    assert_eq!(done.iter().map(|done| done.present).sum::<usize>(), 7 * 3, "{done:?}");
    assert_eq!(container.place().detach(None).unwrap(), 3);
}

#[test]
fn a_missing_view_is_named() {
    if skip() {
        return;
    }
    let (rig, container) = (Rig::new("a"), Container::start());
    let gone = rig.views.dir.join("three");
    let error = container.place().plan(&surfaces(), &gone).unwrap_err();
    assert_eq!(error.to_string(), format!("{}: no such view: is the agent running?", gone.display()));
    let wanted = [surfaces(), vec![fixed("proc/no-such-page", "/proc/version")]].concat();
    let plan = container.place().plan(&wanted, &rig.one()).unwrap();
    let before = container.mount_points();
    assert!(matches!(container.place().attach(&plan), Err(MountError::NoView { .. })));
    assert_eq!(container.mount_points(), before);
}

#[test]
fn cgroup_files_are_covered_in_the_containers_own_directory() {
    if skip() {
        return;
    }
    let group = PathBuf::from(format!("/sys/fs/cgroup/cpu/elbowroom-test-attach-{}", std::process::id()));
    if std::fs::create_dir(&group).is_err() {
        println!("skipped: needs the cgroup v1 cpu hierarchy");
        return;
    }
    let rig = Rig::new("a");
    let mut container = Container::start();
    std::fs::write(group.join("cgroup.procs"), container.pid().to_string()).unwrap();
    let kind = SurfaceTarget::Cgroup { controller: "cpu".into(), file: "cpu.shares".into() };
    let plan =
        container.place().plan(&[MountSurface { source: "cgroup/cpu.shares".into(), kind }], &rig.one());
    let done = plan.and_then(|plan| container.place().attach(&plan));
    let inside = container.read(group.join("cpu.shares").to_str().unwrap());
    let outside = std::fs::read_to_string(group.join("cpu.shares"));
    container.kill();
    container.reap();
    wait_until("the cgroup to empty", || std::fs::remove_dir(&group).is_ok());
    assert_eq!(done.unwrap().mounted, 1);
    assert_eq!(inside.unwrap(), "a one/cgroup/cpu.shares\n");
    assert_eq!(outside.unwrap(), "1024\n");
}

#[test]
fn the_file_that_asks_for_memory_is_in_a_dev_that_is_not_the_hosts_and_goes_with_the_view() {
    if skip() {
        return;
    }
    let (rig, nowhere) = (Rig::new("a"), Path::new("/nowhere"));
    let private = ["--propagation", "private"];
    let own = Container::with(&private, "mount -t tmpfs none /dev");
    let file = Path::new("/dev/elbowroom-pressure");
    let seen = PathBuf::from(format!("/proc/{}/root{}", own.pid(), file.display()));
    let (view, surfaces) = (rig.one(), surfaces());
    let parts = ViewParts { dir: &view, surfaces: &surfaces, page: None, pressure_dir: Some(nowhere) };
    assert_eq!(own.place().attach_view(&parts).unwrap().pressure_file.unwrap().as_deref(), Some(file));
    assert!(seen.exists());
    own.place().detach(None).unwrap();
    assert!(!seen.exists());
    // A user with a mount namespace can mount any directory of the host on /dev.
    let hosts = tempfile::tempdir().unwrap();
    let run = |program: &str, words: &[&std::ffi::OsStr]| {
        assert!(Command::new(program).args(words).status().unwrap().success(), "{program}");
    };
    run("mount", &["-t".as_ref(), "tmpfs".as_ref(), "none".as_ref(), hosts.path().as_os_str()]);
    let users = Container::with(&private, &format!("mount --bind {} /dev", hosts.path().display()));
    let offered = users.place().attach_view(&parts).unwrap().pressure_file;
    let made = std::fs::read_dir(hosts.path()).unwrap().count();
    drop(users);
    run("umount", &[hosts.path().as_os_str()]);
    assert_eq!((offered.unwrap(), made), (None, 0));
}

#[test]
fn the_file_that_asks_for_memory_is_the_first_containers_of_a_namespace_and_needs_no_page() {
    if skip() {
        return;
    }
    let (rig, surfaces) = (Rig::new("a"), surfaces());
    let own = Container::with(&["--propagation", "private"], "mount -t tmpfs none /dev; umount -l /sys");
    let offered = |name: &str, page: &Path| {
        let dir = rig.views.dir.join(name);
        let pressure_dir = Some(Path::new("/nowhere"));
        let parts = ViewParts { dir: &dir, surfaces: &surfaces, page: Some(page), pressure_dir };
        let done = own.place().attach_view(&parts).unwrap();
        (done.page.unwrap().ok(), done.pressure_file.unwrap())
    };
    let file = Some(PathBuf::from("/dev/elbowroom-pressure"));
    let page = tempfile::tempdir().unwrap();
    std::fs::write(page.path().join("one"), "").unwrap();
    std::fs::write(page.path().join("two"), "").unwrap();
    assert_eq!(offered("one", &page.path().join("one")), (Some(false), file.clone()));
    assert_eq!(offered("one", &page.path().join("no-such-page")), (None, file));
    assert_eq!(offered("two", &page.path().join("two")), (Some(false), None));
}
