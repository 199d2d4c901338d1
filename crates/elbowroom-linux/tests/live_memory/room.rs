//! A cgroup of a test's own with something in its memory.

use crate::rig::{DEADLINE, Rig};
use elbowroom_linux::cgroup::{CgroupController, CgroupVersion};
use elbowroom_types::id::CgroupId;
use rustix::process::{Pid, test_kill_process};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

pub const MIB: u64 = 1 << 20;
/// The group's name in orders.
pub const ID: CgroupId = CgroupId(7);
/// The group, below the rig's own.
const WEB: &str = "web";

pub struct Room {
    rig: Rig,
    disk: Disk,
    dir: tempfile::TempDir,
    held: u32,
}

/// A room, or the end of the test with a word why there is none.
macro_rules! room {
    () => {
        match crate::room::Room::new() {
            Some(room) => room,
            None => return,
        }
    };
}
pub(crate) use room;

impl Room {
    pub fn new() -> Option<Self> {
        let mut rig = Rig::new()?;
        if rig.layout.index(CgroupController::Memory).is_none() {
            println!("skipped: needs the memory controller");
            return None;
        }
        rig.mkdir(WEB);
        let dir = tempfile::Builder::new().prefix("elbowroom-test-memory-").tempdir().unwrap();
        let disk = Disk::new(dir.path())?;
        Some(Self { rig, disk, dir, held: 0 })
    }

    pub fn path(&self) -> String {
        format!("/{}", self.rig.path(WEB))
    }

    pub fn ledger(&self) -> PathBuf {
        self.dir.path().join("leases")
    }

    pub fn dir(&self) -> PathBuf {
        self.rig.dir(CgroupController::Memory, WEB)
    }

    pub fn version(&self) -> CgroupVersion {
        self.rig.version(CgroupController::Memory)
    }

    pub fn has_pressure(&self) -> bool {
        let path = self.rig.path(WEB);
        self.rig.layout.unified_dir(Path::new(&path)).is_some_and(|dir| dir.has("memory.pressure"))
    }

    pub fn swap_free(&self) -> u64 {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap();
        elbowroom_linux::proc::meminfo(&text).unwrap().swap_free.get()
    }

    /// The files of the ledger that are records.
    pub fn records(&self) -> usize {
        let Ok(files) = std::fs::read_dir(self.ledger()) else { return 0 };
        files.filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|e| e == "json")).count()
    }

    pub fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.dir().join(file)).unwrap().trim_end().to_owned()
    }

    pub fn write(&self, file: &str, value: &str) {
        self.rig.write(CgroupController::Memory, WEB, file, value);
    }

    pub fn read_above(&self, file: &str) -> String {
        std::fs::read_to_string(self.rig.dir(CgroupController::Memory, "").join(file))
            .unwrap()
            .trim_end()
            .to_owned()
    }

    pub fn write_above(&self, file: &str, value: &str) {
        self.rig.write(CgroupController::Memory, "", file, value);
    }

    /// Gives the cgroup above to a user of the host.
    pub fn give_above_to(&self, uid: u32) {
        std::os::unix::fs::chown(self.rig.dir(CgroupController::Memory, ""), Some(uid), None).unwrap();
    }

    pub fn usage(&self) -> u64 {
        let file =
            if self.version() == CgroupVersion::V1 { "memory.usage_in_bytes" } else { "memory.current" };
        self.read(file).parse().unwrap()
    }

    /// Everything that limits the group.
    pub fn limits(&self) -> Vec<String> {
        let files: &[&str] = match self.version() {
            CgroupVersion::V1 => &["memory.limit_in_bytes", "memory.swappiness"],
            CgroupVersion::V2 => &["memory.max", "memory.high"],
        };
        files.iter().map(|file| self.read(file)).collect()
    }

    /// Sets the user's limit, in MiB.
    pub fn set_limit(&self, mib: u64) {
        let file = if self.version() == CgroupVersion::V1 { "memory.limit_in_bytes" } else { "memory.max" };
        self.write(file, &(mib * MIB).to_string());
    }

    /// What [`Self::limits`] is with that limit.
    pub fn set(&self, mib: u64) -> Vec<String> {
        let other = match self.version() {
            CgroupVersion::V1 => {
                std::fs::read_to_string(self.dir().parent().unwrap().join("memory.swappiness")).unwrap()
            }
            CgroupVersion::V2 => "max".to_owned(),
        };
        vec![(mib * MIB).to_string(), other.trim_end().to_owned()]
    }

    /// A process that keeps `mib` MiB of anonymous memory.
    pub fn hold_anon(&mut self, mib: u64) -> u32 {
        let before = self.usage();
        let program = format!("import time; held = bytearray(b'x') * ({mib} << 20); time.sleep(1000)");
        let pid = self.rig.spawn(WEB, &format!("exec /usr/bin/python3 -c \"{program}\""));
        self.until(|room| room.usage() >= before + mib * MIB);
        pid
    }

    /// A process that has read a file of `mib` MiB, and lives on.
    pub fn hold_file(&mut self, mib: u64) -> u32 {
        let file = self.disk.file(self.held, mib);
        let read = self.dir.path().join(format!("read{}", self.held));
        self.held += 1;
        let script = format!("cat {} >/dev/null; : >{}; exec sleep 1000", file.display(), read.display());
        let pid = self.rig.spawn(WEB, &script);
        self.until(|_| read.exists());
        pid
    }

    /// A process that reads a file of `mib` MiB again and again.
    pub fn reread(&mut self, mib: u64) -> u32 {
        let file = self.disk.file(self.held, mib);
        self.held += 1;
        let pid = self.rig.spawn(WEB, &format!("while :; do cat {} >/dev/null; done", file.display()));
        self.until(|room| room.usage() >= mib * MIB);
        pid
    }

    /// A process that allocates `mib` MiB and frees them, again and again.
    pub fn churn(&mut self, mib: u64) -> u32 {
        let before = self.usage();
        let program = format!("while True: bytearray(b'x') * ({mib} << 20)");
        let pid = self.rig.spawn(WEB, &format!("exec /usr/bin/python3 -c \"{program}\""));
        self.until(|room| room.usage() >= before + mib * MIB);
        pid
    }

    pub fn end(&mut self, pid: u32) {
        self.rig.stop(pid);
        self.until(|room| room.read("cgroup.procs").is_empty());
    }

    pub fn is_alive(&self, pid: u32) -> bool {
        test_kill_process(Pid::from_raw(pid as i32).unwrap()).is_ok()
    }

    /// Another group at the same path.
    pub fn remake(&mut self) {
        let pids = self.read("cgroup.procs");
        for pid in pids.lines() {
            let _ = rustix::process::kill_process(
                Pid::from_raw(pid.parse().unwrap()).unwrap(),
                rustix::process::Signal::KILL,
            );
        }
        self.rig.rmdir(WEB);
        self.rig.mkdir(WEB);
    }

    pub fn until(&self, mut done: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + DEADLINE * 6;
        while !done(self) {
            assert!(Instant::now() < deadline, "usage is {}", self.usage());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

/// Where files have page cache of their own: not a tmpfs, whose files are memory.
struct Disk {
    dir: PathBuf,
    mounted: bool,
}

impl Disk {
    fn new(dir: &Path) -> Option<Self> {
        const EXT4: i64 = 0xef53;
        if rustix::fs::statfs(dir).unwrap().f_type == EXT4 {
            return Some(Self { dir: dir.to_owned(), mounted: false });
        }
        let (image, at) = (dir.join("image"), dir.join("disk"));
        std::fs::File::create(&image).unwrap().set_len(400 * MIB).unwrap();
        std::fs::create_dir(&at).unwrap();
        let run = |words: &[&str]| {
            Command::new(words[0]).args(&words[1..]).output().is_ok_and(|o| o.status.success())
        };
        run(&["modprobe", "-q", "loop"]);
        let (image, place) = (image.to_str().unwrap(), at.to_str().unwrap());
        if !run(&["mkfs.ext4", "-q", "-O", "^has_journal", image])
            || !run(&["mount", "-o", "loop", image, place])
        {
            println!("skipped: needs mkfs.ext4 and a loop device");
            return None;
        }
        Some(Self { dir: at, mounted: true })
    }

    /// A file that is not in the page cache.
    fn file(&self, number: u32, mib: u64) -> PathBuf {
        let path = self.dir.join(format!("file{number}"));
        std::fs::write(&path, vec![b'x'; (mib * MIB) as usize]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted {
            // Killed processes that read files there may not have ended yet.
            let deadline = Instant::now() + DEADLINE;
            while !Command::new("umount").arg(&self.dir).output().is_ok_and(|o| o.status.success())
                && Instant::now() < deadline
            {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
}
