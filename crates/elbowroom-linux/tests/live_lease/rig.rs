//! Cgroups and a loop device of a test's own, and processes that hold leases on them.

use crate::trace::Tracee;
use elbowroom_linux::cgroup;
use elbowroom_linux::cgroup::{CgroupController, CgroupLayout, CgroupVersion};
use elbowroom_linux::lease::io::IoTarget;
use elbowroom_linux::lease::{CgroupKnob, KnobKey, Leases, UnsetValue};
use elbowroom_linux::root::Root;
use elbowroom_types::id::{CgroupId, DeviceNumber};
use elbowroom_types::io::IoMax;
use elbowroom_types::unit::Limit;
use elbowroom_types::unit::Limit::{At, Max};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub const MIB: u64 = 1 << 20;

/// A cgroup with a limit of its user's, a ledger, and a disk.
pub struct Rig {
    pub layout: Rc<CgroupLayout>,
    pub disk: DeviceNumber,
    dir: tempfile::TempDir,
    path: String,
    loop_device: Rc<LoopDevice>,
}

/// What the user of a rig's cgroup has set: bytes read, bytes written, reads, writes.
pub const USERS: [Limit<u64>; 4] = [At(8 * MIB), Max, Max, At(700)];

/// A word why, where no rig can be had.
pub fn cannot_run() -> Option<String> {
    let layout = CgroupLayout::detect(&Root::host().unwrap()).unwrap();
    let why = if !rustix::process::geteuid().is_root() {
        "needs root"
    } else if layout.dir(CgroupController::Io, Path::new("")).is_none() {
        "needs the blkio or io controller"
    } else if LoopDevice::new(std::env::temp_dir().as_path()).is_none() {
        "needs losetup and a free loop device"
    } else {
        return None;
    };
    Some(format!("skipped: {why}"))
}

/// A rig, or the end of the test with a word why there is none.
macro_rules! rig {
    () => {{
        if let Some(why) = crate::rig::cannot_run() {
            println!("{why}");
            return;
        }
        crate::rig::Rig::new()
    }};
}
pub(crate) use rig;

impl Rig {
    pub fn new() -> Self {
        let dir = temp_dir();
        let loop_device = LoopDevice::new(dir.path()).expect("there was one a moment ago");
        let layout = Rc::new(CgroupLayout::detect(&Root::host().unwrap()).unwrap());
        Self::with(dir, layout, Rc::new(loop_device))
    }

    /// Another cgroup and another ledger, the same disk.
    pub fn another(&self) -> Self {
        Self::with(temp_dir(), Rc::clone(&self.layout), Rc::clone(&self.loop_device))
    }

    fn with(dir: tempfile::TempDir, layout: Rc<CgroupLayout>, loop_device: Rc<LoopDevice>) -> Self {
        let path = unique();
        let disk = loop_device.number();
        let rig = Self { layout, disk, dir, path, loop_device };
        rig.make_cgroup();
        for (i, value) in USERS.into_iter().enumerate().filter(|(_, value)| *value != Max) {
            rig.knob(i).write(value).unwrap();
        }
        rig
    }

    pub fn make_cgroup(&self) {
        let dir = self.cgroup();
        if self.version() == CgroupVersion::V2 {
            std::fs::write(dir.parent().unwrap().join("cgroup.subtree_control"), "+io").unwrap();
        }
        std::fs::create_dir(dir).unwrap();
    }

    pub fn remove_cgroup(&self) {
        std::fs::remove_dir(self.cgroup()).unwrap();
    }

    pub fn version(&self) -> CgroupVersion {
        self.layout.dir(CgroupController::Io, Path::new(&self.path)).unwrap().0
    }

    pub fn cgroup(&self) -> PathBuf {
        self.layout.dir(CgroupController::Io, Path::new(&self.path)).unwrap().1.path()
    }

    pub fn run_dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn ledger(&self) -> PathBuf {
        self.dir.path().join("leases")
    }

    /// Has bfq divide the disk by weight; false where it cannot.
    pub fn switch_on_bfq(&self) -> bool {
        let _ = Command::new("modprobe").args(["-q", "bfq"]).status();
        self.loop_device.schedule("bfq")
    }

    /// Has iocost divide the disk by weight; false where it cannot.
    pub fn switch_on_iocost(&self) -> bool {
        let root = self.layout.dir(CgroupController::Io, Path::new("")).unwrap().1.path();
        std::fs::write(root.join("io.cost.qos"), format!("{} enable=1", self.disk)).is_ok()
    }

    /// The files of the ledger that are records.
    pub fn records(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.ledger()).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|file| file.extension().is_some_and(|extension| extension == "json")).collect()
    }

    pub fn place(&self) -> IoTarget<'_> {
        IoTarget { layout: &self.layout, group: CgroupId(7), path: &self.path, disk: self.disk }
    }

    /// The limit on bytes read, bytes written, reads, writes.
    pub fn knob(&self, i: usize) -> CgroupKnob {
        let (version, dir) = self.layout.dir(CgroupController::Io, Path::new(&self.path)).unwrap();
        let v1 = ["read_bps", "write_bps", "read_iops", "write_iops"][i];
        let field = ["rbps", "wbps", "riops", "wiops"][i].to_owned();
        let key = |field| Some(KnobKey { device: self.disk, field });
        let knob = match version {
            CgroupVersion::V1 => {
                CgroupKnob::new(&dir, &format!("blkio.throttle.{v1}_device"), key(None), UnsetValue::Zero)
            }
            CgroupVersion::V2 => CgroupKnob::new(&dir, "io.max", key(Some(field)), UnsetValue::Max),
        };
        knob.expect("the rig's cgroup is there")
    }

    pub fn knobs(&self) -> [CgroupKnob; 4] {
        std::array::from_fn(|i| self.knob(i))
    }

    /// What is in force, as the sensor reads it.
    pub fn io_max(&self) -> IoMax {
        let all = cgroup::io_max(&self.layout, Path::new(&self.path)).unwrap();
        all.into_iter().find(|(disk, _)| *disk == self.disk).map_or(IoMax::MAX, |(_, max)| max)
    }

    /// What is in force.
    pub fn limits(&self) -> [Limit<u64>; 4] {
        std::array::from_fn(|i| self.knob(i).read().unwrap())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(self.cgroup());
    }
}

fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("elbowroom-test-lease-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn temp_dir() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("elbowroom-test-lease-").tempdir().unwrap()
}

struct LoopDevice(String);

impl LoopDevice {
    fn new(dir: &Path) -> Option<Self> {
        let image = dir.join(unique());
        std::fs::File::create(&image).unwrap().set_len(MIB).unwrap();
        let _ = Command::new("modprobe").args(["-q", "loop"]).status();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
        // The device keeps the file.
        std::fs::remove_file(&image).unwrap();
        let made = made.ok().filter(|made| made.status.success())?;
        let device = Self(String::from_utf8(made.stdout).unwrap().trim().to_owned());
        device.schedule("none");
        Some(device)
    }

    /// Sets its I/O scheduler, which the kernel keeps when the device is attached again; false where there is no such scheduler.
    fn schedule(&self, scheduler: &str) -> bool {
        let name = self.0.strip_prefix("/dev/").unwrap();
        std::fs::write(format!("/sys/block/{name}/queue/scheduler"), scheduler).is_ok()
    }

    fn number(&self) -> DeviceNumber {
        let name = self.0.strip_prefix("/dev/").unwrap();
        std::fs::read_to_string(format!("/sys/block/{name}/dev")).unwrap().trim().parse().unwrap()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        self.schedule("none");
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// Times that a slower machine needs to be told are stretched.
pub fn patience(time: Duration) -> Duration {
    let factor = std::env::var("ELBOWROOM_TEST_PATIENCE").ok().and_then(|text| text.parse().ok());
    time * factor.unwrap_or(1)
}

/// This program once more, as a process that holds leases on a rig's cgroup.
pub struct Holder {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The thread that holds them.
    tid: i32,
    tracee: Option<Tracee>,
}

/// What such a process does.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// What it is told: `VALUE KNOB` sets, `beat` beats.
    Obey,
    /// Each step that a lease can go through, once, when told to.
    Cycle,
    /// One change of a limit that it made, when told to; says how it went and how many leases it holds. And another one.
    Change,
    /// Changes all limits as fast as it can, from when it is told to.
    Storm,
}

impl Holder {
    pub fn start(rig: &Rig, part: Part) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rig::part", "--nocapture", "--test-threads=1"])
            .env(PART, format!("{part:?}"))
            .env(LEDGER, rig.ledger())
            .env(KNOBS, serde_json::to_string(&rig.knobs()).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut holder = Self { input, output, child, tid: 0, tracee: None };
        // The test harness says something first.
        holder.tid = loop {
            if let Some(tid) = holder.line().strip_prefix("ready ") {
                break tid.parse().unwrap();
            }
        };
        holder
    }

    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Stops the thread that holds the leases, for [`Self::step`].
    pub fn trace(&mut self) {
        self.tracee = Some(Tracee::seize(self.tid));
    }

    /// Lets it go on to where it enters its next system call or comes back from it; false when it ended instead.
    pub fn step(&mut self) -> bool {
        let stopped = self.tracee.as_ref().expect("it is traced").step();
        if !stopped {
            self.tracee = None;
        }
        stopped
    }

    /// Lets it run on.
    pub fn let_go(&mut self) {
        self.tracee.take().expect("it is traced").let_go();
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.line()
    }

    /// Sets a limit, which must succeed.
    pub fn set(&mut self, knob: &CgroupKnob, value: u64) {
        let said = self.ask(&format!("{value} {}", serde_json::to_string(knob).unwrap()));
        assert_eq!(said, "Ok(Written)", "{knob}");
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// SIGKILL; returns when it has ended.
    pub fn kill(self) {
        drop(self);
    }

    /// Whether there is something to read.
    pub fn has_spoken(&self) -> bool {
        let mut fds = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the holder ended");
        line.trim_end().to_owned()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        if let Some(tracee) = self.tracee.take() {
            tracee.reap();
        }
        let _ = self.child.wait();
    }
}

const PART: &str = "ELBOWROOM_TEST_LEASE_PART";
const LEDGER: &str = "ELBOWROOM_TEST_LEASE_LEDGER";
const KNOBS: &str = "ELBOWROOM_TEST_LEASE_KNOBS";

/// Not a test: what the processes that tests start do.
#[test]
fn part() {
    let Ok(part) = std::env::var(PART) else { return };
    let mut leases = Leases::open(Path::new(&std::env::var_os(LEDGER).unwrap())).unwrap();
    let knobs: [CgroupKnob; 4] = serde_json::from_str(&std::env::var(KNOBS).unwrap()).unwrap();
    if part == "Change" {
        // Before it says that it is ready: its stops are counted from there, and all of them belong to the change.
        let _ = leases.set(&knobs[0], At(5 * MIB), "first");
    }
    println!("\nready {}", rustix::thread::gettid().as_raw_nonzero());
    let mut lines = std::io::stdin().lines().map(Result::unwrap);
    match part.as_str() {
        "Obey" => lines.for_each(|line| println!("{}", obey(&mut leases, &line))),
        "Cycle" => {
            lines.next();
            cycle(&mut leases, &knobs);
            // Not through the test harness, which would take its time.
            std::process::exit(0);
        }
        "Change" => {
            lines.next();
            let done = leases.set(&knobs[0], At(6 * MIB), "change").unwrap();
            println!("{done:?} {}", leases.held().count());
            lines.next();
            println!("{:?}", leases.set(&knobs[0], At(7 * MIB), "again").unwrap());
        }
        "Storm" => {
            lines.next();
            let mut random = Random(u64::from(std::process::id()));
            loop {
                let (knob, value) = (&knobs[random.below(4) as usize], Limit::At(100 + random.below(10_000)));
                match random.below(8) {
                    0 => drop(leases.release(knob)),
                    _ => drop(leases.tighten(knob, value, "storm").unwrap()),
                }
            }
        }
        part => panic!("no part {part}"),
    }
}

fn obey(leases: &mut Leases, line: &str) -> String {
    if line == "beat" {
        return format!("{}", leases.heartbeat().len());
    }
    let (value, knob) = line.split_once(' ').unwrap();
    let knob: CgroupKnob = serde_json::from_str(knob).unwrap();
    let done = leases.set(&knob, At(value.parse().unwrap()), "test");
    format!("{:?}", done.map_err(|error| error.to_string()))
}

/// A first lease, a change, another lease, a release, a beat.
fn cycle(leases: &mut Leases, knobs: &[CgroupKnob; 4]) {
    let _ = leases.set(&knobs[0], At(5 * MIB), "first");
    let _ = leases.set(&knobs[0], At(6 * MIB), "change");
    let _ = leases.tighten(&knobs[1], At(4 * MIB), "another");
    leases.release(&knobs[0]);
    leases.heartbeat();
}

/// xorshift64*: good enough to be somewhere else each time.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}
