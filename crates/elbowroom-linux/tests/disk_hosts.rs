//! Disks of captured machines: which device is governed, what is told about it, and where a path leads.

use elbowroom_linux::fixture::Fixture;
use elbowroom_linux::root::Root;
use elbowroom_linux::{Sensor, SensorConfig, disk};
use elbowroom_types::io::{IoMax, IoWeightMechanism};
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::{Bytes, Limit, Micros};
use std::fmt::Write;
use std::path::Path;

macro_rules! host {
    ($name:literal) => {
        include_str!(concat!("../../../tests/hosts/disk-", $name, ".txt"))
    };
}

fn open(archive: &str, patterns: &[&str]) -> (Fixture, Sensor) {
    let host = Fixture::new(archive).unwrap();
    let config = SensorConfig {
        root: host.path().into(),
        container_patterns: vec!["/x".to_owned()],
        ..SensorConfig::default()
    };
    let mut sensor = Sensor::open(&config).unwrap();
    sensor.start();
    sensor.watch_disks(&patterns.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>());
    (host, sensor)
}

/// A line per disk, and the container's transfer there.
fn table(events: &[HostEvent]) -> String {
    let mut text = String::new();
    for event in events {
        match event {
            HostEvent::Disk(disk) => {
                write!(text, "{} {} \"{}\" {}", disk.number, disk.name, disk.identity, disk.scheduler)
                    .unwrap();
                for (word, holds) in [
                    ("rotational", disk.rotational),
                    ("swap", disk.swap),
                    ("iocost", disk.weights == Some(IoWeightMechanism::Iocost)),
                    ("bfq", disk.weights == Some(IoWeightMechanism::Bfq)),
                ] {
                    text.push_str(&if holds { format!(" {word}") } else { String::new() });
                }
                text.push('\n');
            }
            HostEvent::DiskTick(tick) => {
                for io in tick.groups.iter().flat_map(|group| &group.io) {
                    writeln!(text, "x {} r {} w {}", io.device, io.rbytes.get(), io.wbytes.get()).unwrap();
                }
                let named: Vec<_> = tick.disks.iter().map(|(number, _)| number).collect();
                let told: Vec<_> = events
                    .iter()
                    .filter_map(|e| if let HostEvent::Disk(disk) = e { Some(&disk.number) } else { None })
                    .collect();
                assert_eq!(named, told, "every disk that is told is measured");
            }
            _ => {}
        }
    }
    text
}

/// A line per device below a path, the governed ones with a star.
fn chain(archive: &str, path: &str) -> String {
    let host = Fixture::new(archive).unwrap();
    let links = disk::resolve(&Root::at(host.path()).unwrap(), Path::new(path)).unwrap();
    links
        .iter()
        .map(|link| format!("{}{} {}\n", link.name, if link.governed { "*" } else { "" }, link.kind))
        .collect()
}

fn lines(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect()
}

#[track_caller]
fn check(archive: &str, disks: &str, path: &str, below: &str) {
    let (_host, mut sensor) = open(archive, &[]);
    assert_eq!(table(&sensor.disks(Micros::secs(1))), lines(disks));
    assert_eq!(chain(archive, path), lines(below), "{path}");
}

#[test]
fn partitions_stand_for_their_disk() {
    check(
        host!("nvme-partitions"),
        r#"259:0 nvme0n1 "QEMU NVMe Ctrl disk0" none swap
           x 259:0 r 5120 w 8388608"#,
        "/srv/some/file",
        "nvme0n1p1 partition
         nvme0n1* disk",
    );
}

#[test]
fn volumes_stand_for_their_disks_but_for_what_lvm_builds_of_its_own_volumes() {
    let disks = r#"
        8:0 sda "naa.33333330000007d0" none
        8:16 sdb "naa.3333333000000fa0" none
        254:10 dm-10 "LVM-xsPvWwYs3Pf0rJWTV3WJPGCUW4Xka0dAfuxlbbcDNy1KEIrkFfVbTlPTMItuY6UO" none
        x 8:0 r 10240 w 10485760
        x 8:16 r 0 w 6291456
        x 254:10 r 0 w 2097152"#;
    let striped = "dm-0 LVM volume vg-striped
                   sda* disk
                   sdb* disk";
    check(host!("lvm"), disks, "/srv", striped);
    let thin = "dm-5 LVM volume vg-thin
                dm-3 LVM volume vg-pool-tpool
                dm-1 LVM volume vg-pool_tmeta
                sdb* disk
                dm-2 LVM volume vg-pool_tdata
                sda* disk";
    check(host!("lvm"), disks, "/mnt2", thin);
}

#[test]
fn encryption_stands_for_the_disk_below() {
    check(
        host!("luks"),
        r#"8:0 sda "naa.33333330000007d0" none
           x 8:0 r 5120 w 8388608"#,
        "/srv",
        "dm-1 LVM volume vg-root
         dm-0 encrypted safe
         sda2 partition
         sda* disk",
    );
}

#[test]
fn a_mirror_stands_for_its_disks_and_a_raid_5_for_itself() {
    check(
        host!("raid1"),
        r#"8:0 sda "naa.33333330000007d0" none
           8:16 sdb "naa.3333333000000fa0" none
           x 8:0 r 4198400 w 8388608
           x 8:16 r 4196352 w 8388608"#,
        "/srv",
        "md0 raid1
         sda* disk
         sdb* disk",
    );
    check(
        host!("raid5"),
        r#"9:0 md0 "54ad54be-3105-08dd-f9b7-fae93a42ea54" none
           x 9:0 r 8393728 w 8388608"#,
        "/srv",
        "md0* raid5
         sda disk
         sdb disk
         sdc disk",
    );
}

#[test]
fn a_multipath_disk_is_governed_above_its_paths() {
    check(
        host!("multipath"),
        r#"254:0 dm-0 "mpath-353333330000007d0" none
           x 254:0 r 0 w 8388608"#,
        "/srv",
        "",
    );
}

#[test]
fn a_loop_device_stands_for_its_files_disk_only_past_the_page_cache_and_where_there_is_one() {
    check(
        host!("loops"),
        r#"7:32 loop2 "/run/t/c.img" none
           7:48 loop3 "/srv/a.img" none
           8:48 sdd "naa.3333333000001f40" none
           x 7:32 r 0 w 2097152
           x 7:48 r 0 w 2097152
           x 8:48 r 0 w 4194304"#,
        "/mnt2/on/an/overlay",
        "sdd* disk",
    );
    for served in ["fuse.sshfs", "fuseblk", "nfs4"] {
        let remote = host!("loops").replace(" - ext4 ", &format!(" - {served} "));
        let remote = match served {
            "nfs4" => remote.replace(" 8:48 / /srv ", " 0:99 / /srv "),
            _ => remote,
        };
        let (_host, mut sensor) = open(&remote, &[]);
        let text = table(&sensor.disks(Micros::secs(1)));
        assert!(text.contains("7:0 loop0 \"/srv/a.img\""), "{served}: {text}");
    }
}

#[test]
fn a_loop_device_that_is_named_is_governed_itself() {
    let names = |patterns: &[&str]| {
        let (_host, mut sensor) = open(host!("loops"), patterns);
        let text = table(&sensor.disks(Micros::secs(1)));
        let names =
            text.lines().filter(|line| !line.starts_with("x ")).map(|line| line.split(' ').nth(1).unwrap());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names(&["loop0"]), ["loop0"]);
    assert_eq!(names(&["loop1", "sd?"]), ["loop1", "sdd"]);
    assert_eq!(names(&["*"]), ["loop2", "loop3", "sdd"], "a pattern of any device means none in particular");
    assert_eq!(names(&["nvme*"]), [] as [&str; 0]);
}

#[test]
fn every_disk_of_a_btrfs_is_below_its_files() {
    check(
        host!("btrfs"),
        r#"8:16 sdb "naa.3333333000000fa0" none
           8:32 sdc "naa.3333333000001770" none
           x 8:16 r 0 w 8388608
           x 8:32 r 0 w 2097152"#,
        "/srv",
        "sdb* disk
         sdc* disk",
    );
}

#[test]
fn a_member_of_a_raid_5_with_a_file_system_beside_it_is_governed_too() {
    let array = "-- sys/devices/virtual/block/md5/uevent --\nMAJOR=9\nMINOR=5\nDEVNAME=md5\nDEVTYPE=disk\n\
                 -- sys/devices/virtual/block/md5/dev --\n9:5\n-- sys/dev/block/9:5 -> ../../devices/virtual/block/md5 --\n\
                 -- sys/devices/virtual/block/md5/md/level --\nraid5\n";
    let luks = host!("luks");
    let disk = luks.lines().find_map(|line| line.strip_prefix("-- sys/dev/block/8:0 -> ../..")).unwrap();
    let disk = format!("sys{}", disk.trim_end_matches(" --"));
    let holder = format!("-- {disk}/sda2/holders/md5 -> /sys/devices/virtual/block/md5 --\n");
    // The encrypted volume makes way for the array.
    let (before, rest) = luks.split_once(&format!("-- {disk}/sda2/holders/dm-0")).unwrap();
    let luks = format!("{before}{holder}{}{array}", rest.split_once('\n').unwrap().1);
    for (fstype, governed) in [("ext4", true), ("vfat", false)] {
        let host = luks.replace(" /mnt2 rw,relatime - ext4 ", &format!(" /mnt2 rw,relatime - {fstype} "));
        let (_host, mut sensor) = open(&host, &[]);
        let text = table(&sensor.disks(Micros::secs(1)));
        assert_eq!(text.contains("sda"), governed, "{fstype} beside it: {text}");
    }
}

#[test]
fn changes_are_told_once_and_only_they() {
    let (host, mut sensor) = open(host!("nvme-partitions"), &[]);
    let first = sensor.disks(Micros::secs(1));
    let [HostEvent::Disk(disk), HostEvent::IoLimits(limits), HostEvent::DiskTick(tick)] = &first[..] else {
        panic!("{first:?}")
    };
    let user = IoMax { wbps: Limit::At(2 << 20), wiops: Limit::At(120), ..IoMax::MAX };
    assert_eq!((limits.disk, limits.user, limits.ours), (disk.number, user, IoMax::MAX));
    assert_eq!(tick.pressure.unwrap().some.total, Micros(735_907));
    let (_, stat) = tick.disks[0];
    assert_eq!((stat.rbytes, stat.wios, stat.io_ticks), (Bytes(4_621 * 512), 76, Micros::millis(344)));
    assert_eq!(tick.groups[0].stalled, Some(Micros(19_683)));

    let next = |sensor: &mut Sensor, s| sensor.disks(Micros::secs(s));
    let still = next(&mut sensor, 2);
    assert!(
        matches!(&still[..], [HostEvent::DiskTick(tick)] if tick.groups.is_empty() && tick.disks.len() == 1),
        "{still:?}"
    );

    // Iocost is switched on, swap off: seen with the next rescan.
    host.write("sys/fs/cgroup/io.cost.qos", "259:0 enable=1 ctrl=auto\n").unwrap();
    host.write("proc/swaps", "Filename Type Size Used Priority\n").unwrap();
    assert_eq!(next(&mut sensor, 4).len(), 1);
    let told = next(&mut sensor, 6);
    assert!(
        matches!(&told[0], HostEvent::Disk(disk) if disk.weights == Some(IoWeightMechanism::Iocost) && !disk.swap),
        "{told:?}"
    );

    // A counter that starts anew never goes back.
    let io = |bytes: u64| {
        host.write("sys/fs/cgroup/x/io.stat", &format!("259:0 wbytes={bytes} wios=1\n")).unwrap()
    };
    let mut wbytes = |s| {
        let events = next(&mut sensor, s);
        let Some(HostEvent::DiskTick(tick)) = events.last() else { panic!("{events:?}") };
        tick.groups.first().map(|group| group.io[0].wbytes.get())
    };
    io(8_388_608 + 100);
    assert_eq!(wbytes(7), Some(8_388_708));
    io(50);
    assert_eq!(wbytes(8), None, "no news");
    io(80);
    assert_eq!(wbytes(9), Some(8_388_738));

    // The container's user lifts one limit: seen within half a minute.
    host.write("sys/fs/cgroup/x/io.max", "259:0 rbps=max wbps=2097152 riops=max wiops=max\n").unwrap();
    let again: Vec<HostEvent> = (10..45).flat_map(|s| next(&mut sensor, s)).collect();
    let limits: Vec<_> = again
        .iter()
        .filter_map(|e| if let HostEvent::IoLimits(limits) = e { Some(limits.user) } else { None })
        .collect();
    assert_eq!(limits, [IoMax { wiops: Limit::Max, ..user }]);

    host.remove("sys/devices").unwrap();
    let gone = next(&mut sensor, 60);
    assert!(matches!(&gone[0], HostEvent::DiskGone(number) if number.to_string() == "259:0"), "{gone:?}");
}

#[test]
fn a_container_that_waits_for_a_disk_is_read_every_time() {
    let host = host!("nvme-partitions").replace("file_dirty 12288", "file_dirty 0");
    let used = "-- sys/fs/cgroup/x/cpu.stat --\nusage_usec 5\nuser_usec 5\nsystem_usec 0\n";
    let (host, mut sensor) = open(&format!("{host}{used}"), &[]);
    let mut told = |second: u64, waited: u64| {
        let line = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={waited}\n");
        host.write("sys/fs/cgroup/x/io.pressure", &format!("{line}{}", line.replace("some", "full")))
            .unwrap();
        sensor.tick(Micros::secs(second));
        let events = sensor.disks(Micros::secs(second));
        let Some(HostEvent::DiskTick(tick)) = events.last() else { panic!("{events:?}") };
        tick.groups.first().and_then(|group| group.stalled)
    };
    // It has done nothing for so long that it is read now and then.
    let quiet: Vec<_> = (1..20).map(|second| told(second, 20_000)).collect();
    let since = (20..40).map(|second| told(second, second * 1_000_000)).collect::<Vec<_>>();
    let first = since.iter().position(Option::is_some).expect("it is read again");
    assert!(first < 4 && since[first..].iter().all(Option::is_some), "{quiet:?} {since:?}");
}

#[test]
fn what_is_malformed_or_missing_is_absent_and_the_rest_is_told() {
    let broken = host!("nvme-partitions")
        .replace("some avg10=1.19", "none avg10=1.19")
        .replace("-- proc/swaps --\nFilename", "-- proc/swaps --\nFilename\nrubbish")
        .replace("sys/fs/cgroup/x/memory.stat", "sys/fs/cgroup/x/renamed")
        .replace("-- sys/fs/cgroup/x/io.stat --\n", "-- sys/fs/cgroup/x/io.stat --\n(unknown) rbytes=1\n");
    let (_host, mut sensor) = open(&broken, &[]);
    let events = sensor.disks(Micros::secs(1));
    assert!(table(&events).starts_with("259:0 nvme0n1 \"QEMU NVMe Ctrl disk0\" none\n"));
    let Some(HostEvent::DiskTick(tick)) = events.last() else { panic!("{events:?}") };
    assert_eq!((tick.pressure, tick.groups[0].dirty, tick.groups[0].io.len()), (None, None, 1));
    let none = host!("nvme-partitions").replace("-- proc/diskstats --", "-- proc/renamed --");
    let (_host, mut sensor) = open(&none, &[]);
    let events = sensor.disks(Micros::secs(1));
    assert!(
        matches!(events.last(), Some(HostEvent::DiskTick(tick)) if tick.disks.is_empty() && tick.groups.len() == 1)
    );
}

#[test]
fn v1_is_made_to_count_a_disk_that_moves_and_has_no_line() {
    let v1 = host!("nvme-partitions").replace(
        "-- proc/self/mountinfo --\n",
        "-- proc/self/mountinfo --\n30 23 0:28 / /blkio rw - cgroup cgroup rw,blkio,cpu,memory\n",
    );
    let root = |file: &str, text: &str| format!("-- blkio/blkio.throttle.{file} --\n{text}");
    let with = |counted: &str| {
        format!(
            "{v1}{}{}-- blkio/x/blkio.throttle.io_serviced_recursive --\n",
            root("io_serviced", counted),
            root("read_bps_device", ""),
        )
    };
    for (counted, written) in [("Total 0\n", "259:0 0"), ("259:0 Read 1\nTotal 1\n", "")] {
        let (host, mut sensor) = open(&with(counted), &[]);
        sensor.disks(Micros::secs(1));
        let rule = std::fs::read_to_string(host.path().join("blkio/blkio.throttle.read_bps_device")).unwrap();
        assert_eq!(rule, written, "{counted:?}");
        let (host, mut sensor) = open(&with(counted), &["sd*"]);
        sensor.disks(Micros::secs(1));
        let rule = std::fs::read_to_string(host.path().join("blkio/blkio.throttle.read_bps_device")).unwrap();
        assert_eq!(rule, "", "a disk that is not to be governed");
    }
}
