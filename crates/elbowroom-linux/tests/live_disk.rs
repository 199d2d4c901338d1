//! The disk sensor with real transfer on this machine, whichever cgroup version it has. Needs root and loop devices; says so
//! and passes where it has none.

mod rig;

use elbowroom_linux::cgroup::{CgroupController, CgroupVersion};
use elbowroom_linux::disk::BlockDeviceKind;
use elbowroom_linux::root::Root;
use elbowroom_linux::{Sensor, SensorConfig, disk, timer};
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::io::{CgroupIo, DiskProperties, DiskTick, IoLimits, IoMax, IoStat};
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::{Limit, Micros};
use rig::Rig;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

const MIB: u64 = 1 << 20;

/// A loop device over a file, both removed at the end.
struct Loop {
    path: String,
    number: DeviceNumber,
    file: PathBuf,
}

impl Loop {
    /// `None`, with a word why, where there are no loop devices.
    fn new(dir: &Path, mib: u64) -> Option<Self> {
        let file = dir.join(format!(
            "elbowroom-test-sense-{}-{:?}.img",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::File::create(&file).unwrap().set_len(mib * MIB).unwrap();
        let _ = Command::new("modprobe").args(["-q", "loop"]).status();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
        let path = match &made {
            Ok(output) if output.status.success() => {
                String::from_utf8_lossy(&output.stdout).trim().to_owned()
            }
            other => {
                println!("skipped: needs loop devices: {other:?}");
                std::fs::remove_file(&file).unwrap();
                return None;
            }
        };
        let name = path.trim_start_matches("/dev/");
        let number = std::fs::read_to_string(format!("/sys/class/block/{name}/dev")).unwrap();
        Some(Self { number: number.trim().parse().unwrap(), path, file })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.path]).status();
        let _ = std::fs::remove_file(&self.file);
    }
}

/// What a sensor told of disks so far.
struct Told {
    sensor: Sensor,
    disks: BTreeMap<DeviceNumber, DiskProperties>,
    limits: Vec<IoLimits>,
    tick: DiskTick,
    groups: BTreeMap<u64, CgroupIo>,
    names: BTreeMap<String, u64>,
}

impl Told {
    fn open(rig: &Rig, patterns: &[&str]) -> Self {
        let config = SensorConfig {
            container_patterns: vec![format!("/{}", rig.path("*"))],
            ..SensorConfig::default()
        };
        let mut sensor = Sensor::open(&config).unwrap();
        let names = sensor.start().into_iter().filter_map(|event| match event {
            HostEvent::Group(group) => Some((group.path, group.id.0)),
            _ => None,
        });
        let names = names.collect();
        let patterns: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
        sensor.watch_disks(&patterns);
        Self {
            sensor,
            disks: BTreeMap::new(),
            limits: Vec::new(),
            tick: DiskTick::default(),
            groups: BTreeMap::new(),
            names,
        }
    }

    fn look(&mut self) {
        for event in self.sensor.disks(timer::now()) {
            match event {
                HostEvent::Disk(disk) => drop(self.disks.insert(disk.number, disk)),
                HostEvent::DiskGone(number) => drop(self.disks.remove(&number)),
                HostEvent::IoLimits(limits) => self.limits.push(limits),
                HostEvent::DiskTick(tick) => {
                    self.groups.extend(tick.groups.iter().map(|io| (io.group.0, io.clone())));
                    self.tick = tick;
                }
                other => panic!("{other:?} is not about disks"),
            }
        }
    }

    fn id(&self, path: &str) -> u64 {
        self.names[&format!("/{path}")]
    }

    fn io(&self, path: &str, disk: DeviceNumber) -> IoStat {
        let none = IoStat { device: disk, ..IoStat::EMPTY };
        let io = self.groups.get(&self.id(path)).map_or(&[][..], |io| &io.io);
        io.iter().find(|row| row.device == disk).copied().unwrap_or(none)
    }
}

#[track_caller]
fn about(what: &str, counted: u64, moved: u64) {
    assert!(counted.abs_diff(moved) * 100 <= moved, "{what}: {counted} counted, {moved} moved");
}

fn write(to: &Loop, mib: u64) -> String {
    format!("dd if=/dev/zero of={} bs=1M count={mib} oflag=direct conv=notrunc", to.path)
}

fn read(from: &Loop, mib: u64) -> String {
    format!("dd if={} of=/dev/null bs=64k count={} iflag=direct", from.path, mib * 16)
}

#[test]
fn what_a_container_moves_is_counted_at_its_disk_to_one_per_cent() {
    let Some(mut rig) = Rig::new() else { return };
    let Some(disk) = Loop::new(Path::new("/dev/shm"), 64) else { return };
    rig.mkdir("busy");
    rig.mkdir("still");
    rig.run("still", &read(&disk, 1));
    let mut told = Told::open(&rig, &[]);
    // Where v1 counts nothing yet, this look makes it.
    told.look();
    let (busy, still) = (rig.path("busy"), rig.path("still"));
    let before = told.io(&busy, disk.number);
    rig.run("busy", &format!("{} && {}", write(&disk, 32), read(&disk, 48)));
    told.look();
    let after = told.io(&busy, disk.number);
    about("written", after.wbytes.get() - before.wbytes.get(), 32 * MIB);
    about("read", after.rbytes.get() - before.rbytes.get(), 48 * MIB);
    about("reads", after.rios - before.rios, 48 * 16);
    assert!(told.io(&still, disk.number).wbytes.get() == 0, "the neighbour wrote nothing");
    let device = &told.disks[&disk.number];
    assert_eq!(device.identity, disk.file.to_str().unwrap());
    assert!(!device.swap && device.weights.is_none());
    let (_, stat) = told.tick.disks.iter().find(|(number, _)| *number == disk.number).unwrap();
    assert!(stat.wbytes.get() >= 32 * MIB && stat.rbytes.get() >= 48 * MIB && stat.io_ticks > Micros::ZERO);
}

#[test]
fn limits_that_were_there_are_told_with_the_first_transfer() {
    let Some(mut rig) = Rig::new() else { return };
    let Some(disk) = Loop::new(Path::new("/dev/shm"), 16) else { return };
    rig.mkdir("capped");
    let limit = |file: &str, value: &str| rig.write(CgroupController::Io, "capped", file, value);
    match rig.version(CgroupController::Io) {
        CgroupVersion::V1 => {
            limit("blkio.throttle.read_bps_device", &format!("{} 104857600", disk.number));
            limit("blkio.throttle.write_iops_device", &format!("{} 5000", disk.number));
        }
        CgroupVersion::V2 => limit("io.max", &format!("{} rbps=104857600 wiops=5000", disk.number)),
    }
    let mut told = Told::open(&rig, &["loop*"]);
    told.look();
    assert!(told.limits.iter().all(|limits| limits.disk != disk.number), "it has not used the disk");
    rig.run("capped", &read(&disk, 1));
    told.look();
    told.look();
    let mine: Vec<_> = told.limits.iter().filter(|limits| limits.disk == disk.number).collect();
    let user = IoMax { rbps: Limit::At(100 << 20), wiops: Limit::At(5_000), ..IoMax::MAX };
    assert_eq!(mine.len(), 1, "once");
    assert_eq!((mine[0].user, mine[0].ours), (user, IoMax::MAX));
    // Another program may have changed them and changed them back meanwhile.
    (0..30).for_each(|_| told.look());
    let mine = told.limits.iter().filter(|limits| limits.disk == disk.number);
    assert_eq!(mine.map(|limits| limits.user).collect::<Vec<_>>(), [user, user], "once more in thirty looks");
}

#[test]
fn a_loop_device_stands_for_the_disk_its_file_is_on_unless_it_is_named() {
    let Some(mut rig) = Rig::new() else { return };
    let root = Root::host().unwrap();
    let dir = std::env::temp_dir();
    let chain = disk::resolve(&root, &dir).unwrap();
    println!("{}: {chain:?}", dir.display());
    let Some(below) = chain.iter().find(|link| link.governed) else {
        return println!("skipped: {} is on no disk", dir.display());
    };
    let Some(file) = Loop::new(&dir, 16) else { return };
    let _ = Command::new("losetup").args(["--direct-io=on", &file.path]).status();
    rig.mkdir("c");
    for (patterns, governed) in [(&[][..], below.number), (&["loop*"][..], file.number)] {
        let mut told = Told::open(&rig, patterns);
        rig.run("c", &write(&file, 1));
        told.look();
        let before = told.io(&rig.path("c"), governed);
        rig.run("c", &write(&file, 8));
        told.look();
        let after = told.io(&rig.path("c"), governed);
        assert!(after.wbytes.get() - before.wbytes.get() >= 8 * MIB, "{patterns:?}: {after:?}");
        let io = &told.groups[&told.id(&rig.path("c"))].io;
        let other = if governed == below.number { file.number } else { below.number };
        assert!(io.iter().all(|row| row.device != other), "{patterns:?}: never both of one chain: {io:?}");
    }
}

#[test]
fn a_container_that_goes_takes_its_open_files_with_it() {
    let Some(mut rig) = Rig::new() else { return };
    let Some(disk) = Loop::new(Path::new("/dev/shm"), 16) else { return };
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    rig.mkdir("short");
    let mut told = Told::open(&rig, &[]);
    told.look();
    let before = open();
    rig.run("short", &read(&disk, 1));
    told.look();
    rig.rmdir("short");
    // Between the removal and the news of it, its files are there and dead.
    told.look();
    while told.sensor.changes().iter().all(|event| !matches!(event, HostEvent::Gone(_))) {
        std::thread::yield_now();
    }
    told.look();
    assert!(open() <= before, "{} files were open, now {}", before, open());
}

#[test]
fn a_path_leads_to_the_devices_below_it() {
    let Some(disk) = Loop::new(Path::new("/dev/shm"), 16) else { return };
    let dir = tempfile::tempdir().unwrap();
    let ran = |program: &str, args: &[&str]| {
        Command::new(program).args(args).output().is_ok_and(|o| o.status.success())
    };
    let mounted =
        ran("mkfs.ext4", &["-q", &disk.path]) && ran("mount", &[&disk.path, dir.path().to_str().unwrap()]);
    if !mounted {
        return println!("skipped: needs ext4 and the right to mount");
    }
    let chain = disk::resolve(&Root::host().unwrap(), &dir.path().join("below"));
    assert!(ran("umount", &[dir.path().to_str().unwrap()]));
    let chain = chain.unwrap();
    assert_eq!((chain.len(), chain[0].number, chain[0].governed), (1, disk.number, true));
    assert_eq!(chain[0].kind, BlockDeviceKind::Loop { file: disk.file.clone(), direct: false });
    assert!(disk::resolve(&Root::host().unwrap(), Path::new("/proc/self")).unwrap().is_empty());
}

/// A device-mapper device, removed at the end.
struct Mapped(String);

impl Mapped {
    /// `None`, with a word why, where the kernel has no such target.
    fn new(uuid: &str, table: &str) -> Option<Self> {
        let modules = ["-aq", "dm-mod", "dm-crypt", "dm-multipath", "dm-round-robin"];
        let _ = Command::new("modprobe").args(modules).output();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("elbowroom-test-sense-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let made = Command::new("dmsetup").args(["create", &name, "--uuid", uuid, "--table", table]).output();
        if made.as_ref().is_ok_and(|output| output.status.success()) {
            return Some(Self(name));
        }
        println!("skipped: needs the device mapper: {made:?}");
        None
    }

    fn path(&self) -> String {
        let info = ["info", "-c", "--noheadings", "-o", "blkdevname", &self.0];
        let output = Command::new("dmsetup").args(info).output().unwrap();
        format!("/dev/{}", String::from_utf8(output.stdout).unwrap().trim())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = Command::new("dmsetup").args(["remove", &self.0]).status();
    }
}

#[test]
fn what_passes_a_volume_or_encryption_is_counted_and_limited_at_the_disk_alone() {
    let Some(mut rig) = Rig::new() else { return };
    let key = "0123456789abcdef".repeat(4);
    for (group, uuid, target) in [
        ("lvm", format!("LVM-{}", "x".repeat(64)), "linear DISK 0".to_owned()),
        ("crypt", "CRYPT-PLAIN-test".to_owned(), format!("crypt aes-xts-plain64 {key} 0 DISK 0")),
    ] {
        let Some(disk) = Loop::new(Path::new("/dev/shm"), 32) else { return };
        let table = format!("0 65536 {}", target.replace("DISK", &disk.path));
        let Some(volume) = Mapped::new(&uuid, &table) else { return };
        rig.mkdir(group);
        let mut told = Told::open(&rig, &[]);
        rig.run(group, &read(&disk, 1));
        told.look();
        let before = told.io(&rig.path(group), disk.number);
        let write = |mib: u64| format!("dd if=/dev/zero of={} bs=1M count={mib} oflag=direct", volume.path());
        rig.run(group, &write(16));
        told.look();
        let after = told.io(&rig.path(group), disk.number);
        about(&uuid, after.wbytes.get() - before.wbytes.get(), 16 * MIB);
        assert_eq!(told.groups[&told.id(&rig.path(group))].io.len(), 1, "{uuid}: never both of one chain");

        let (file, limit) = match rig.version(CgroupController::Io) {
            CgroupVersion::V1 => ("blkio.throttle.write_bps_device", format!("{} 4194304", disk.number)),
            CgroupVersion::V2 => ("io.max", format!("{} wbps=4194304", disk.number)),
        };
        rig.write(CgroupController::Io, group, file, &limit);
        let start = Instant::now();
        rig.run(group, &write(4));
        let took = start.elapsed().as_millis();
        assert!(took > 700, "{uuid}: 4 MiB at 4 MiB/s took {took} ms");
    }
}

#[test]
fn a_multipath_disk_is_governed_and_its_path_is_not() {
    let Some(mut rig) = Rig::new() else { return };
    let Some(disk) = Loop::new(Path::new("/dev/shm"), 32) else { return };
    let table = format!("0 65536 multipath 0 0 1 1 round-robin 0 1 1 {} 1", disk.path);
    let Some(mpath) = Mapped::new("mpath-test", &table) else { return };
    rig.mkdir("c");
    rig.run("c", &format!("dd if={} of=/dev/null bs=1M count=4 iflag=direct", mpath.path()));
    let mut told = Told::open(&rig, &[]);
    told.look();
    let io = &told.groups[&told.id(&rig.path("c"))].io;
    let names: Vec<_> = told.disks.values().map(|disk| disk.identity.as_str()).collect();
    assert!(names.contains(&"mpath-test"), "{names:?}");
    assert!(io.len() == 1 && io[0].device != disk.number, "{io:?}");
    about("read", io[0].rbytes.get(), 4 * MIB);
}
