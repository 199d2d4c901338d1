//! The sensor on this machine's own cgroups, whichever version they are. Needs root; says so and passes where it is not.

mod rig;

use elbowroom_linux::cgroup::{CgroupController, CgroupVersion};
use elbowroom_linux::containers::ContainerSelector;
use elbowroom_linux::discover::ContainerSources;
use elbowroom_linux::{Sensor, SensorConfig, timer};
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::{CgroupProperties, CpuMax, HostEvent};
use elbowroom_types::unit::{Bytes, CpuShare, Limit, Micros};
use rig::{DEADLINE, Rig};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::os::linux::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// A sensor with what it has told so far.
struct Told {
    sensor: Sensor,
    groups: HashMap<CgroupId, CgroupProperties>,
    gone: Vec<CgroupId>,
}

impl Told {
    fn open(config: &SensorConfig) -> Self {
        let mut sensor = Sensor::open(config).unwrap();
        let events = sensor.start();
        let mut told = Self { sensor, groups: HashMap::new(), gone: Vec::new() };
        assert!(
            matches!(events.first(), Some(HostEvent::Node(node)) if node.mem_total > Bytes::ZERO && !node.online.is_empty())
        );
        told.take(events);
        told
    }

    fn take(&mut self, events: Vec<HostEvent>) {
        for event in events {
            match event {
                HostEvent::Group(group) => {
                    if let Some(parent) = group.parent {
                        assert!(self.groups.contains_key(&parent), "{} before its parent", group.path);
                    }
                    self.groups.insert(group.id, group);
                }
                HostEvent::Gone(id) => {
                    assert!(self.groups.remove(&id).is_some(), "{id:?} goes twice or was never there");
                    self.gone.push(id);
                }
                _ => {}
            }
        }
    }

    fn group(&self, path: &str) -> Option<&CgroupProperties> {
        let path = format!("/{path}");
        self.groups.values().find(|group| group.path == path)
    }

    /// Waits for notifications until `seen` holds.
    fn until(&mut self, what: &str, mut seen: impl FnMut(&Self) -> bool) {
        let until = Instant::now() + DEADLINE;
        while !seen(self) {
            assert!(Instant::now() < until, "not seen within {DEADLINE:?}: {what}");
            let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            poll(&mut [PollFd::from_borrowed_fd(self.sensor.fd(), PollFlags::IN)], Some(&wait)).unwrap();
            let events = self.sensor.changes();
            self.take(events);
        }
    }
}

/// The rescan is put off, so that what is seen was notified.
fn notified_only(fanotify: bool) -> SensorConfig {
    SensorConfig { fanotify, rescan: Micros::secs(3_600), ..SensorConfig::default() }
}

fn with_both(test: impl Fn(Rig, Told)) {
    for fanotify in [true, false] {
        let Some(rig) = Rig::new() else { return };
        let told = Told::open(&notified_only(fanotify));
        println!("{:?} {}", told.sensor.layout().mode, told.sensor.notifications());
        test(rig, told);
    }
}

#[test]
fn a_group_is_told_when_it_is_made_and_gone_when_it_is_removed() {
    with_both(|mut rig, mut told| {
        rig.mkdir("a");
        let path = rig.path("a");
        told.until("made", |t| t.group(&path).is_some());
        let id = told.group(&path).unwrap().id;
        assert_eq!(told.group(&rig.path("")).map(|g| g.id), told.group(&path).unwrap().parent);
        rig.rmdir("a");
        told.until("removed", |t| t.gone.contains(&id));
    });
}

#[test]
fn groups_that_go_at_one_moment_are_each_told() {
    with_both(|mut rig, mut told| {
        let all = ["a", "a/b", "a/b/c"];
        all.iter().for_each(|below| rig.mkdir(below));
        let paths = all.map(|below| rig.path(below));
        told.until("made", |t| paths.iter().all(|path| t.group(path).is_some()));
        all.iter().rev().for_each(|below| rig.rmdir(below));
        told.until("removed", |t| paths.iter().all(|path| t.group(path).is_none()));
    });
}

#[test]
fn a_group_made_again_under_its_name_is_another_one() {
    with_both(|mut rig, mut told| {
        rig.mkdir("a");
        let path = rig.path("a");
        told.until("made", |t| t.group(&path).is_some());
        let first = told.group(&path).unwrap().id;
        rig.rmdir("a");
        rig.mkdir("a");
        told.until("made again", |t| t.group(&path).is_some_and(|g| g.id != first));
        assert!(told.gone.contains(&first));
    });
}

/// Engines make a group in one v1 hierarchy after another, and by then it is known from the first.
#[test]
fn what_is_made_in_another_hierarchy_later_is_noticed_with_its_settings() {
    with_both(|mut rig, mut told| {
        if rig.version(CgroupController::Memory) == CgroupVersion::V2 {
            println!("skipped: needs a memory controller of cgroup v1, where hierarchies are several");
            return;
        }
        let path = rig.path("a/b");
        for below in ["a", "a/b"] {
            rig.mkdir_in(CgroupController::Memory, true, below);
        }
        told.until("made", |t| t.group(&path).is_some());
        for below in ["a", "a/b"] {
            rig.mkdir_in(CgroupController::Memory, false, below);
        }
        rig.write(CgroupController::Memory, "a/b", "memory.limit_in_bytes", "256M");
        told.until("limited", |t| {
            t.group(&path).unwrap().limits.memory_max == Some(Limit::At(Bytes::mib(256)))
        });
    });
}

#[test]
fn settings_are_told_when_they_are_written() {
    with_both(|mut rig, mut told| {
        rig.mkdir("a");
        let path = rig.path("a");
        told.until("made", |t| t.group(&path).is_some_and(|g| g.limits.memory_max == Some(Limit::Max)));
        match rig.version(CgroupController::Cpu) {
            CgroupVersion::V1 => {
                rig.write(CgroupController::Cpu, "a", "cpu.cfs_quota_us", "150000");
                rig.write(CgroupController::Cpu, "a", "cpu.shares", "512");
            }
            CgroupVersion::V2 => {
                rig.write(CgroupController::Cpu, "a", "cpu.max", "150000 100000");
                rig.write(CgroupController::Cpu, "a", "cpu.weight", "50");
            }
        }
        match rig.version(CgroupController::Memory) {
            CgroupVersion::V1 => {
                rig.write(CgroupController::Memory, "a", "memory.limit_in_bytes", "256M");
                rig.write(CgroupController::Memory, "a", "memory.soft_limit_in_bytes", "64M");
            }
            CgroupVersion::V2 => {
                rig.write(CgroupController::Memory, "a", "memory.max", "256M");
                rig.write(CgroupController::Memory, "a", "memory.low", "64M");
            }
        }
        let share = match rig.version(CgroupController::Cpu) {
            CgroupVersion::V1 => CpuShare::Shares(512),
            CgroupVersion::V2 => CpuShare::Weight(50),
        };
        rig.write(CgroupController::Cpuset, "a", "cpuset.cpus", "0");
        told.until("limits", |t| {
            let limits = t.group(&path).unwrap().limits;
            // v1 has the first, v2 the second.
            let low = limits.memory_soft.or(limits.memory_low);
            limits.cpu_max == Some(CpuMax { quota: Limit::At(Micros(150_000)), period: Micros(100_000) })
                && limits.cpu_share == Some(share)
                && limits.memory_max == Some(Limit::At(Bytes::mib(256)))
                && low == Some(Limit::At(Bytes::mib(64)))
                && limits.cpuset == Some("0".parse().unwrap())
        });
    });
}

/// A limit that is set on a new group while the sensor looks at the group for the first time.
#[test]
fn a_limit_that_is_set_as_soon_as_its_group_is_made_is_told() {
    with_both(|mut rig, mut told| {
        const GROUPS: usize = 150;
        let prefix = format!("/{}/s", rig.name);
        let watcher = std::thread::spawn(move || {
            told.until("every limit", |t| {
                let made = t.groups.values().filter(|group| group.path.starts_with(&prefix));
                let is_limited = |group: &&CgroupProperties| {
                    group.limits.cpu_max.is_some_and(|max| max.quota != Limit::Max)
                };
                made.filter(is_limited).count() == GROUPS
            });
        });
        let (file, value) = match rig.version(CgroupController::Cpu) {
            CgroupVersion::V1 => ("cpu.cfs_quota_us", "100000"),
            CgroupVersion::V2 => ("cpu.max", "100000 100000"),
        };
        for n in 0..GROUPS {
            let below = format!("s{n}");
            rig.mkdir(&below);
            // Each a little later than the one before, so that some are in the middle of that look.
            let made = Instant::now();
            while made.elapsed() < Duration::from_micros(4 * n as u64) {}
            rig.write(CgroupController::Cpu, &below, file, value);
        }
        watcher.join().unwrap();
    });
}

#[test]
fn a_cpuset_narrowed_above_is_told_below() {
    with_both(|mut rig, mut told| {
        let cpus = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
        if rig.version(CgroupController::Cpuset) == CgroupVersion::V1 || cpus.trim() == "0" {
            println!(
                "skipped: needs a v2 cpuset and two CPUs: a v1 cpuset cannot be made narrower than one below it"
            );
            return;
        }
        rig.mkdir("a");
        let path = rig.path("a");
        told.until("made", |t| t.group(&path).is_some_and(|g| g.limits.cpuset.is_some()));
        rig.write(CgroupController::Cpuset, "", "cpuset.cpus", "0");
        told.until("narrowed", |t| t.group(&path).unwrap().limits.cpuset == Some("0".parse().unwrap()));
    });
}

#[test]
fn usage_grows_by_what_the_processes_used_and_a_quota_by_what_it_took() {
    with_both(|mut rig, mut told| {
        rig.mkdir("a");
        let path = rig.path("a");
        match rig.version(CgroupController::Cpu) {
            CgroupVersion::V1 => rig.write(CgroupController::Cpu, "a", "cpu.cfs_quota_us", "20000"),
            CgroupVersion::V2 => rig.write(CgroupController::Cpu, "a", "cpu.max", "20000 100000"),
        }
        told.until("quota", |t| {
            t.group(&path).is_some_and(|g| g.limits.cpu_max.is_some_and(|m| m.quota != Limit::Max))
        });
        let id = told.group(&path).unwrap().id;
        told.sensor.tick(timer::now());
        let pid = rig.spawn("a", "while :; do :; done");
        let (mut cpu, mut throttled) = (Micros::ZERO, None);
        let ticker = timer::Ticker::new(Micros::millis(24)).unwrap();
        let until = Instant::now() + DEADLINE;
        while cpu < Micros::millis(60) || throttled.is_none_or(|t| t == Micros::ZERO) {
            assert!(Instant::now() < until, "used {cpu}, throttled {throttled:?}");
            ticker.wait().unwrap();
            let tick = told.sensor.tick(timer::now());
            for (_, usage) in tick.usage.iter().filter(|(named, _)| *named == id) {
                assert!(usage.cpu >= cpu && tick.busy >= usage.cpu);
                (cpu, throttled) = (usage.cpu, usage.throttled);
            }
            assert!(tick.mem_free > Bytes::ZERO);
        }
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
        let real = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>() * 10_000;
        assert!(cpu.get() <= real + 30_000, "{cpu} against {real} us in /proc/{pid}/stat");
        match rig.version(CgroupController::Cpu) {
            CgroupVersion::V1 => rig.write(CgroupController::Cpu, "a", "cpu.cfs_quota_us", "-1"),
            CgroupVersion::V2 => rig.write(CgroupController::Cpu, "a", "cpu.max", "max"),
        }
        let until = Instant::now() + DEADLINE;
        rig.spawn("a", "x=$(head -c 3000000 /dev/zero | tr '\\0' x); while :; do :; done");
        let mut memory = Bytes::ZERO;
        while memory < Bytes::mib(2) {
            assert!(Instant::now() < until, "{memory}");
            ticker.wait().unwrap();
            let tick = told.sensor.tick(timer::now());
            memory =
                tick.usage.iter().find(|(named, _)| *named == id).map_or(memory, |(_, usage)| usage.memory);
        }
        told.until("populated", |t| t.group(&path).unwrap().populated);
    });
}

#[test]
fn a_group_that_vanishes_between_reads_is_a_normal_value() {
    with_both(|mut rig, mut told| {
        rig.mkdir("a");
        let path = rig.path("a");
        told.until("made", |t| t.group(&path).is_some());
        let id = told.group(&path).unwrap().id;
        let tick = told.sensor.tick(timer::now());
        assert!(tick.usage.iter().any(|(named, _)| *named == id));
        assert!(told.sensor.details(id, true).is_some());
        rig.rmdir("a");
        told.sensor.tick(timer::now());
        assert_eq!(told.sensor.details(id, true), None);
        assert!(told.sensor.processes(id).is_empty() && told.sensor.cgroup_dirs(id).is_empty());
        told.until("removed", |t| t.gone.contains(&id));
    });
}

#[test]
fn details_speak_of_the_whole_subtree() {
    with_both(|mut rig, mut told| {
        rig.mkdir("a");
        let path = rig.path("a");
        told.until("made", |t| t.group(&path).is_some());
        let id = told.group(&path).unwrap().id;
        rig.spawn("a", "x=$(head -c 3000000 /dev/zero | tr '\\0' x); sleep 1000 & wait");
        let until = Instant::now() + DEADLINE;
        loop {
            let details = told.sensor.details(id, true).unwrap();
            let stat = details.memory_stat.unwrap();
            if stat.anon > Bytes::mib(2) && details.nr_threads >= Some(2) {
                assert!(details.cpu_user.is_some() && details.cpu_system.is_some());
                assert_eq!(
                    details.pressure.is_some(),
                    rig.layout
                        .unified_dir(Path::new(&path))
                        .is_some_and(|d| d.read("cpu.pressure").unwrap().is_some())
                );
                break;
            }
            assert!(Instant::now() < until, "{details:?}");
            std::thread::yield_now();
        }
        let dirs = told.sensor.cgroup_dirs(id);
        assert!(
            !dirs.is_empty() && dirs.iter().all(|(_, dir)| dir.join("cgroup.procs").exists()),
            "{dirs:?}"
        );
        match rig.version(CgroupController::Memory) {
            CgroupVersion::V1 => {
                assert!(dirs.iter().any(|(c, d)| c == "memory" && d.join("memory.limit_in_bytes").exists()))
            }
            CgroupVersion::V2 => {
                assert!(dirs.iter().any(|(c, d)| c.is_empty() && d.join("memory.max").exists()))
            }
        }
    });
}

#[test]
fn the_first_process_of_a_pid_namespace_comes_first() {
    let Some(mut rig) = Rig::new() else { return };
    let mut told = Told::open(&notified_only(true));
    let id = told.group(&rig.path("")).unwrap().id;
    rig.mkdir("a");
    told.until("made", |t| t.group(&rig.path("a")).is_some());
    let outer = rig.spawn("a", "exec unshare --pid --fork --kill-child sh -c 'sleep 1000 & wait'");
    let until = Instant::now() + DEADLINE;
    loop {
        let pids = told.sensor.processes(id);
        if pids.len() == 3 {
            let status = std::fs::read_to_string(format!("/proc/{}/status", pids[0])).unwrap();
            let ns = status.lines().find(|l| l.starts_with("NSpid:")).unwrap();
            assert!(ns.ends_with("\t1") && pids[1..].contains(&(outer as i32)), "{ns} {pids:?} {outer}");
            break;
        }
        assert!(Instant::now() < until, "{pids:?}");
        std::thread::yield_now();
    }
}

#[test]
fn a_group_whose_last_process_ended_is_not_populated() {
    with_both(|mut rig, mut told| {
        rig.mkdir("a");
        let path = rig.path("a");
        let pid = rig.spawn("a", "exec sleep 1000");
        told.until("populated", |t| t.group(&path).is_some_and(|g| g.populated));
        assert!(told.group(&rig.path("")).unwrap().populated, "and so is what is above it");
        rig.stop(pid);
        // v1 announces nothing: ticks find the group idle, and then it is looked at.
        let ticker = timer::Ticker::new(Micros::millis(24)).unwrap();
        let until = Instant::now() + DEADLINE;
        while told.group(&path).unwrap().populated {
            assert!(Instant::now() < until);
            ticker.wait().unwrap();
            told.sensor.tick(timer::now());
            let events = told.sensor.changes();
            told.take(events);
        }
        told.until("above", |t| !t.group(&rig.path("")).unwrap().populated);
    });
}

#[test]
fn idle_groups_are_read_seldom_and_one_that_wakes_is_seen_soon() {
    let Some(mut rig) = Rig::new() else { return };
    for n in 0..20 {
        rig.mkdir(&format!("g{n}"));
    }
    let mut told = Told::open(&notified_only(true));
    let ids: HashMap<CgroupId, String> = told
        .groups
        .values()
        .filter(|g| g.path.starts_with(&format!("/{}/", rig.name)))
        .map(|g| (g.id, g.path.clone()))
        .collect();
    assert_eq!(ids.len(), 20);
    // Time is an argument: five seconds of ticks take milliseconds.
    let mut now = timer::now();
    for _ in 0..200 {
        now = now.saturating_add(Micros::millis(24));
        told.sensor.tick(now);
    }
    let mut reads = 0;
    for _ in 0..62 {
        now = now.saturating_add(Micros::millis(24));
        told.sensor.tick(now);
        reads += told.sensor.cost().groups;
    }
    // Others of the machine's groups may be at work.
    let groups = told.groups.len() as u64;
    assert!(
        reads < 62 * (groups - 10),
        "{reads} reads in 62 ticks over {groups} groups, 20 of which are idle"
    );

    let pid = rig.spawn("g7", "while :; do :; done");
    let woken = format!("/{}/g7", rig.name);
    // A busy machine does not run it at once, and until then there is nothing to see.
    let has_run = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let mut fields = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace();
        fields.nth(11).is_some_and(|ticks| ticks != "0")
    };
    let used = Instant::now();
    let mut ticks = 0;
    loop {
        // The process needs real time to use some.
        std::thread::sleep(Duration::from_millis(24));
        now = now.saturating_add(Micros::millis(24));
        ticks += u32::from(has_run());
        let tick = told.sensor.tick(now);
        if tick.usage.iter().any(|(id, usage)| ids.get(id) == Some(&woken) && usage.cpu > Micros::ZERO) {
            break;
        }
        assert!(used.elapsed() < DEADLINE);
    }
    // Backing off alone would take up to 62 ticks.
    assert!(ticks <= 15, "seen after {ticks} ticks");
}

#[test]
fn a_storm_of_groups_is_told_whole_and_leaves_no_file_open() {
    with_both(|mut rig, mut told| {
        // The machine has other groups, which come and go: count the files of this rig's.
        let name = format!("/{}/", rig.name);
        let files = || {
            let fds = std::fs::read_dir("/proc/self/fd").unwrap();
            let links = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
            links.filter(|link| link.to_string_lossy().contains(&name)).count()
        };
        told.sensor.tick(timer::now());
        let before = files();
        for n in 0..200 {
            rig.mkdir(&format!("s{n}"));
            if n % 50 == 49 {
                let events = told.sensor.changes();
                told.take(events);
                told.sensor.tick(timer::now());
            }
        }
        let prefix = format!("/{}/s", rig.name);
        let count = |t: &Told| t.groups.values().filter(|g| g.path.starts_with(&prefix)).count();
        told.until("200 groups", |t| count(t) == 200);
        told.sensor.tick(timer::now());
        assert!(files() >= before + 400, "{} files: counters are kept open", files());
        for n in 0..200 {
            rig.rmdir(&format!("s{n}"));
        }
        told.until("none of them", |t| count(t) == 0);
        told.sensor.tick(timer::now());
        assert_eq!(files(), before);
    });
}

/// A setting of the kernel, which has its own value again at the end.
struct Setting(&'static str, String);

impl Setting {
    fn to(path: &'static str, value: &str) -> Option<Self> {
        let setting = Self(path, std::fs::read_to_string(path).ok()?);
        std::fs::write(path, value).unwrap();
        Some(setting)
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        std::fs::write(self.0, &self.1).unwrap();
    }
}

/// The most notifications that a queue holds for its reader. A queue keeps the length from when it was opened.
const QUEUES: [&str; 2] =
    ["/proc/sys/fs/fanotify/max_queued_events", "/proc/sys/fs/inotify/max_queued_events"];

#[test]
fn what_a_full_queue_could_not_take_is_found() {
    for fanotify in [true, false] {
        let Some(mut rig) = Rig::new() else { return };
        rig.mkdir("known");
        let mut told = {
            let short = QUEUES.map(|path| Setting::to(path, "16"));
            if short.iter().any(Option::is_none) {
                println!("skipped: needs {}: Linux 5.13", QUEUES[0]);
                return;
            }
            Told::open(&notified_only(fanotify))
        };
        for n in 0..200 {
            rig.mkdir(&format!("s{n}"));
        }
        let limit = match rig.version(CgroupController::Memory) {
            CgroupVersion::V1 => "memory.limit_in_bytes",
            CgroupVersion::V2 => "memory.max",
        };
        rig.write(CgroupController::Memory, "known", limit, "256M");
        let (known, prefix) = (rig.path("known"), format!("/{}/s", rig.name));
        told.until("200 groups and the limit", |t| {
            t.groups.values().filter(|group| group.path.starts_with(&prefix)).count() == 200
                && t.group(&known).unwrap().limits.memory_max == Some(Limit::At(Bytes::mib(256)))
        });
    }
}

/// The kernel gives up no watch of a cgroup that was removed.
#[test]
fn what_is_gone_is_watched_no_longer() {
    let Some(mut rig) = Rig::new() else { return };
    let config = SensorConfig { fanotify: false, rescan: Micros::millis(200), ..SensorConfig::default() };
    let mut told = Told::open(&config);
    let fdinfo = format!("/proc/self/fdinfo/{}", told.sensor.fd().as_raw_fd());
    let watched = |inode: u64| {
        let ino = format!(" ino:{inode:x} ");
        std::fs::read_to_string(&fdinfo).unwrap().lines().any(|line| line.contains(&ino))
    };
    rig.mkdir("a");
    let (path, inode) =
        (rig.path("a"), std::fs::metadata(rig.dir(CgroupController::Cpu, "a")).unwrap().st_ino());
    told.until("watched", |t| t.group(&path).is_some() && watched(inode));
    rig.rmdir("a");
    told.until("watched no longer", |_| !watched(inode));
}

#[test]
fn a_cgroup_that_is_noted_as_a_container_later_is_one_when_another_is_made_in_it() {
    let Some(mut rig) = Rig::new() else { return };
    let state = std::env::temp_dir().join(&rig.name);
    let mut told = Told::open(&SensorConfig { containerd_state: Some(state.clone()), ..notified_only(true) });
    let path = rig.path("web");
    rig.mkdir("web");
    told.until("the cgroup", |t| t.group(&path).is_some());
    assert!(told.group(&path).unwrap().container.is_none());
    let task = state.join("io.containerd.runtime.v2.task").join(&path);
    std::fs::create_dir_all(&task).unwrap();
    std::fs::write(task.join("config.json"), "{}").unwrap();
    rig.mkdir("web/payload");
    told.until("the container", |t| t.group(&path).is_some_and(|group| group.container.is_some()));
    std::fs::remove_dir_all(state).unwrap();
}

/// As crun does it below a scope of systemd's: on cgroup v2 alone.
#[test]
fn limits_of_the_only_cgroup_in_a_scope_come_and_go_with_it() {
    with_both(|mut rig, mut told| {
        if rig.version(CgroupController::Memory) == CgroupVersion::V1 {
            println!("skipped: needs cgroup v2");
            return;
        }
        let scope = format!("libpod-{}.scope", "c".repeat(64));
        let path = rig.path(&scope);
        let limit = |t: &Told| {
            let group = t.group(&path)?;
            assert_eq!(group.container.as_ref().map(|container| container.id.len()), Some(64));
            assert!(
                t.groups
                    .values()
                    .filter(|group| group.path.contains(&scope))
                    .all(|group| { group.container.is_none() || group.path.ends_with(&scope) })
            );
            group.limits.memory_max
        };
        let at = |mib| Some(Limit::At(Bytes::mib(mib)));
        rig.mkdir(&scope);
        told.until("made", |t| limit(t) == Some(Limit::Max));
        let id = told.group(&path).unwrap().id;
        let inner = format!("{scope}/container");
        rig.mkdir(&inner);
        rig.write(CgroupController::Memory, &scope, "cgroup.subtree_control", "+memory");
        rig.write(CgroupController::Memory, &inner, "memory.max", "256M");
        told.until("limited below", |t| limit(t) == at(256));
        rig.write(CgroupController::Memory, &inner, "memory.max", "128M");
        told.until("changed below", |t| limit(t) == at(128));
        rig.write(CgroupController::Memory, &scope, "memory.max", "64M");
        told.until("limited more", |t| limit(t) == at(64));
        rig.write(CgroupController::Memory, &scope, "memory.max", "512M");
        told.until("limited less", |t| limit(t) == at(128));
        // A tenant that makes more cgroups keeps its identity, and limits on a part of it alone do not count.
        let beside = format!("{scope}/beside");
        rig.mkdir(&beside);
        told.until("one beside", |t| limit(t) == at(512));
        rig.rmdir(&beside);
        told.until("alone again", |t| limit(t) == at(128));
        rig.rmdir(&inner);
        told.until("none below", |t| limit(t) == at(512));
        assert_eq!(told.group(&path).unwrap().id, id);
    });
}

#[test]
fn what_a_user_made_is_no_container() {
    let Some(mut rig) = Rig::new() else { return };
    let id = |digit: &str| digit.repeat(64);
    rig.mkdir("user");
    for hierarchy in rig.layout.hierarchies() {
        let dir = hierarchy.mount_point.join(rig.path("user"));
        std::os::unix::fs::chown(dir, Some(65534), Some(65534)).unwrap();
    }
    let users = [format!("user/libpod-{}", id("a")), "user/docker".to_owned()];
    users.iter().for_each(|below| rig.mkdir(below));
    let below_it = format!("user/docker/{}", id("b"));
    let roots = format!("libpod-{}", id("c"));
    [&below_it, &roots].into_iter().for_each(|below| rig.mkdir(below));
    // A container's own directory is its user's, where it has a user namespace.
    for hierarchy in rig.layout.hierarchies() {
        for below in [&users[0], &users[1], &roots] {
            let dir = hierarchy.mount_point.join(rig.path(below));
            std::os::unix::fs::chown(dir, Some(65534), Some(65534)).unwrap();
        }
    }
    let named = SensorConfig { container_patterns: vec![rig.path(&users[0])], ..SensorConfig::default() };
    for (config, users_is) in [(SensorConfig::default(), false), (named, true)] {
        let told = Told::open(&config);
        let is = |below: &str| told.group(&rig.path(below)).is_some_and(|group| group.container.is_some());
        assert_eq!((is(&users[0]), is(&below_it), is(&roots)), (users_is, false, true));
        // The configuration names it, but a user made it.
        let of_user = |below: &str| told.group(&rig.path(below)).is_some_and(|group| group.made_by_user);
        assert_eq!((of_user(&users[0]), of_user(&roots)), (users_is, false));
        // Nor is it one for commands that look for themselves.
        let sources = ContainerSources { patterns: config.container_patterns, ..ContainerSources::default() };
        let mut selector = ContainerSelector::open(&sources).unwrap();
        let walked = selector.select(&[]).unwrap();
        let is = |below: &str| walked.iter().any(|found| found.cgroup == format!("/{}", rig.path(below)));
        assert_eq!((is(&users[0]), is(&below_it), is(&roots)), (users_is, false, true));
        // They can tell that there is one which does not count.
        let left_out = selector.of_users();
        let is = |below: &str| left_out.iter().any(|path| path == Path::new(&rig.path(below)));
        assert_eq!((is(&users[0]), is(&below_it), is(&roots)), (!users_is, true, false));
    }
    // With crun, the container is below.
    let inner = format!("{}/container", users[0]);
    rig.mkdir(&inner);
    let sources = ContainerSources { patterns: vec![rig.path(&inner)], ..ContainerSources::default() };
    let mut selector = ContainerSelector::open(&sources).unwrap();
    let found = selector.select(&[]).unwrap();
    assert!(found.iter().any(|found| found.cgroup == format!("/{}", rig.path(&inner))));
    let outer = rig.path(&users[0]);
    assert!(selector.of_users().iter().all(|path| path != Path::new(&outer)));
}
