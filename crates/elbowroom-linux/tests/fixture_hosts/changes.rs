//! What the sensor tells of groups that come, change and go.

use super::{BATCH, HYBRID, UNIFIED, WEB, groups, open};
use elbowroom_linux::fixture::Fixture;
use elbowroom_linux::sensor::MAX_GROUPS_PER_TENANT;
use elbowroom_linux::{Sensor, SensorConfig};
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::{Bytes, Limit, Micros};
use std::fmt::Write;
use std::process::Command;
use std::time::{Duration, Instant};

/// Writes a file of a cgroup without a notification, as the kernel does when it changes effective cpusets: by another name.
fn write_unseen(host: &Fixture, file: &str, text: &str) {
    let other_name = host.path().join("unseen");
    std::fs::hard_link(host.path().join(file), &other_name).unwrap();
    std::fs::write(&other_name, text).unwrap();
    std::fs::remove_file(other_name).unwrap();
}

#[test]
fn cpus_that_a_partition_takes_are_gone_around_it_at_once() {
    let (node, _) = UNIFIED.split_once("-- sys/fs/cgroup/").unwrap();
    let mut text = format!("{node}-- sys/fs/cgroup/cgroup.controllers --\ncpuset cpu memory\n");
    for group in ["", "a/", "b/"] {
        writeln!(text, "-- sys/fs/cgroup/{group}cpuset.cpus.effective --\n0-3").unwrap();
    }
    let (host, mut sensor, _) = open(&(text + "-- sys/fs/cgroup/b/cpuset.cpus.partition --\nmember\n"));
    for (group, cpus) in [("", "0-1\n"), ("a/", "0-1\n"), ("b/", "2-3\n")] {
        write_unseen(&host, &format!("sys/fs/cgroup/{group}cpuset.cpus.effective"), cpus);
    }
    assert_eq!(sensor.changes(), []);
    host.write("sys/fs/cgroup/b/cpuset.cpus.partition", "root\n").unwrap();
    let told = groups(&sensor.changes());
    let cpus = |path: &str| told[path].limits.cpuset.unwrap().to_string();
    assert_eq!(["/", "/a", "/b"].map(cpus), ["0-1", "0-1", "2-3"]);
}

#[test]
fn what_changes_is_told_and_nothing_else() {
    let (host, mut sensor, events) = open(HYBRID);
    let before = groups(&events);
    assert_eq!(sensor.changes(), []);
    let quota = format!("sys/fs/cgroup/cpu/{WEB}/cpu.cfs_quota_us");
    host.write(&quota, "-1\n").unwrap();
    let told = groups(&sensor.changes());
    assert_eq!(told.len(), 1);
    assert_eq!(told[&format!("/{WEB}")].limits.cpu_max.unwrap().quota, Limit::Max);
    assert_eq!(told[&format!("/{WEB}")].id, before[&format!("/{WEB}")].id);
    host.write(&quota, "-1\n").unwrap();
    assert_eq!(sensor.changes(), [], "the same value again");

    for hierarchy in ["cpu", "cpuacct", "memory", "cpuset"] {
        host.remove(&format!("sys/fs/cgroup/{hierarchy}/{BATCH}")).unwrap();
    }
    assert_eq!(sensor.changes(), [HostEvent::Gone(before[&format!("/{BATCH}")].id)]);

    host.write("sys/fs/cgroup/cpu/batch/one/cgroup.procs", "1\n").unwrap();
    let told = groups(&sensor.changes());
    assert_eq!(told["/batch/one"].container.as_ref().unwrap().id, "/batch/one");
    assert_eq!(told["/batch/one"].parent, Some(told["/batch"].id));
    assert!(told["/batch"].populated, "processes below are processes");
    host.remove("sys/fs/cgroup/cpu/batch/one").unwrap();
    assert!(!groups(&sensor.changes())["/batch"].populated, "and go with what is below");
}

/// In a user namespace of its own, where no inotify instance is to be had until the test allows some: on a node whose containers' shims
/// have taken all of root's, an agent goes on by looking.
#[test]
fn without_notifications_everything_is_looked_at_again_until_there_are_some() {
    const INSIDE: &str = "ELBOWROOM_TEST_WITHOUT_INOTIFY";
    const NAME: &str = "changes::without_notifications_everything_is_looked_at_again_until_there_are_some";
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user"]);
        command
    };
    if std::env::var_os(INSIDE).is_none() {
        if !unshare().arg("true").output().is_ok_and(|done| done.status.success()) {
            return println!("skipped: needs user namespaces");
        }
        let this = std::env::current_exe().unwrap();
        let inside = unshare().arg(this).args(["--exact", NAME, "--nocapture"]).env(INSIDE, "1").output();
        let inside = inside.unwrap();
        let said = [inside.stdout, inside.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
        assert!(inside.status.success() && said[0].contains("1 passed"), "{said:?}");
        return;
    }
    let allow = |instances: &str| std::fs::write("/proc/sys/user/max_inotify_instances", instances);
    if let Err(error) = allow("0") {
        return println!("skipped: needs /proc/sys to be written to: {error}");
    }
    let (host, mut sensor, events) = open(HYBRID);
    assert_eq!(sensor.notifications(), "none");
    let mut told = Vec::new();
    let mut eventually = |sensor: &mut Sensor, seen: &dyn Fn(&[HostEvent], &Sensor) -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !seen(&told, sensor) {
            assert!(Instant::now() < deadline, "{told:?}");
            told.extend(sensor.changes());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    host.write("sys/fs/cgroup/cpu/batch/one/cgroup.procs", "1\n").unwrap();
    host.write(&format!("sys/fs/cgroup/cpu/{WEB}/cpu.cfs_quota_us"), "-1\n").unwrap();
    let web = format!("/{WEB}");
    let quota = |events: &[HostEvent]| groups(events).get(&web)?.limits.cpu_max.map(|max| max.quota);
    eventually(&mut sensor, &|told, _| {
        groups(told).contains_key("/batch/one") && quota(told) == Some(Limit::Max)
    });
    let gone = HostEvent::Gone(groups(&events)[&format!("/{BATCH}")].id);
    for hierarchy in ["cpu", "cpuacct", "memory", "cpuset"] {
        host.remove(&format!("sys/fs/cgroup/{hierarchy}/{BATCH}")).unwrap();
    }
    eventually(&mut sensor, &|told, _| told.contains(&gone));
    allow("8").unwrap();
    eventually(&mut sensor, &|_, sensor| sensor.notifications() == "inotify");
    // Told at once from then on, by the next look at the latest.
    host.write("sys/fs/cgroup/cpu/batch/two/cgroup.procs", "1\n").unwrap();
    eventually(&mut sensor, &|told, _| groups(told).contains_key("/batch/two"));
}

#[test]
fn a_directory_beside_the_spine_is_told_only_with_a_container_in_it() {
    let extra = "-- sys/fs/cgroup/memory/other/deep/memory.limit_in_bytes --\n1048576\n";
    let (host, mut sensor, events) = open(&format!("{HYBRID}{extra}"));
    assert!(groups(&events).keys().all(|path| !path.starts_with("/other")));
    host.write("sys/fs/cgroup/memory/elbowroom/web/memory.limit_in_bytes", "1048576\n").unwrap();
    let told = sensor.changes();
    let paths: Vec<_> =
        told.iter().map(|e| if let HostEvent::Group(g) = e { g.path.as_str() } else { "" }).collect();
    assert_eq!(paths, ["/elbowroom", "/elbowroom/web"]);
    assert_eq!(groups(&told)["/elbowroom/web"].limits.memory_max, Some(Limit::At(Bytes::mib(1))));
}

#[test]
fn hostile_directories_are_groups_like_others() {
    use std::os::unix::ffi::OsStrExt;
    let (host, mut sensor, events) = open(HYBRID);
    let cpu = host.path().join("sys/fs/cgroup/cpu");
    let names: [&[u8]; 4] = [b"bad\xff\xfename", b"with\nnewline", b"-- x --", &[b'x'; 255]];
    for name in names {
        std::fs::create_dir_all(cpu.join("elbowroom").join(std::ffi::OsStr::from_bytes(name))).unwrap();
    }
    let told = groups(&sensor.changes());
    assert_eq!(told.len(), 5, "{:?}", told.keys());
    assert!(told.values().all(|g| g.container.is_none()));
    assert!(told.contains_key("/elbowroom/bad\u{fffd}\u{fffd}name"));
    // Deeper than a path can be long: what cannot be opened is not there, and nothing else suffers.
    let mut deep = cpu.join("deep");
    for _ in 0..12 {
        deep.push("y".repeat(250));
    }
    std::fs::create_dir_all(&deep).unwrap();
    assert!(!sensor.changes().is_empty());
    sensor.tick(Micros::secs(1));
    assert!(groups(&events).contains_key("/docker"));
}

#[test]
fn of_the_groups_below_a_container_so_many_are_followed_and_its_neighbour_is_as_before() {
    let host = Fixture::new(HYBRID).unwrap();
    let below = host.path().join("sys/fs/cgroup/cpu").join(BATCH);
    for n in 0..MAX_GROUPS_PER_TENANT + 1_500 {
        std::fs::create_dir(below.join(format!("g{n}"))).unwrap();
    }
    let config = SensorConfig { root: host.path().into(), ..SensorConfig::default() };
    let mut sensor = Sensor::open(&config).unwrap();
    let told = groups(&sensor.start());
    let is_below = |path: &&String| path.starts_with(&format!("/{BATCH}/"));
    let followed: Vec<&String> = told.keys().filter(is_below).collect();
    assert_eq!(followed.len(), MAX_GROUPS_PER_TENANT);

    host.write(&format!("sys/fs/cgroup/cpu/{WEB}/cpu.cfs_quota_us"), "-1\n").unwrap();
    host.write(&format!("sys/fs/cgroup/cpu/{BATCH}/cpu.cfs_quota_us"), "50000\n").unwrap();
    let changed = groups(&sensor.changes());
    assert_eq!(changed[&format!("/{WEB}")].limits.cpu_max.unwrap().quota, Limit::Max);
    assert_ne!(changed[&format!("/{BATCH}")].limits.cpu_max.unwrap().quota, Limit::Max);

    // What is listed in part is not gone.
    std::fs::create_dir(below.join("one-more")).unwrap();
    assert!(!sensor.changes().iter().any(|event| matches!(event, HostEvent::Gone(_))));
}

#[test]
fn a_container_renamed_keeps_its_id_and_gets_its_name() {
    let host = Fixture::new(HYBRID).unwrap();
    let config = SensorConfig { root: host.path().into(), rescan: Micros(1), ..SensorConfig::default() };
    let mut sensor = Sensor::open(&config).unwrap();
    let id = groups(&sensor.start())[&format!("/{WEB}")].id;
    let state = WEB.replace("docker/", "var/lib/docker/containers/") + "/config.v2.json";
    host.write(&state, "{\"Name\":\"/renamed\"}").unwrap();
    let told = groups(&sensor.changes());
    let web = &told[&format!("/{WEB}")];
    assert_eq!((web.id, web.container.as_ref().unwrap().name.as_deref()), (id, Some("renamed")));
}

#[test]
fn cpus_that_are_plugged_are_told_of_long_before_a_rescan_with_the_cpusets_that_got_them() {
    let (host, mut sensor, events) = open(HYBRID);
    let before = groups(&events)[&format!("/{BATCH}")].limits.cpuset;
    write_unseen(&host, &format!("sys/fs/cgroup/cpuset/{BATCH}/cpuset.effective_cpus"), "0-1\n");
    host.write("sys/devices/system/cpu/online", "0\n").unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let told = loop {
        let events = sensor.changes();
        if events.iter().any(|event| matches!(event, HostEvent::Node(_))) || Instant::now() > until {
            break events;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(matches!(&told[..], [HostEvent::Node(node), ..] if node.online.count() == 1), "{told:?}");
    let after = groups(&told)[&format!("/{BATCH}")].limits.cpuset;
    assert_ne!(after, before);
    assert_eq!(after.unwrap().to_string(), "0-1");
}
