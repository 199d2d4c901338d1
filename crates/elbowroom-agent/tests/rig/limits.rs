//! A governor that changes limits as fast as it can, and a cgroup for it.

use elbowroom_linux::cgroup::{CgroupController, CgroupLayout, CgroupVersion};
use elbowroom_linux::lease;
use elbowroom_linux::lease::{CgroupKnob, KnobKey, Leases, UnsetValue};
use elbowroom_linux::root::Root;
use elbowroom_types::unit::Limit;
use elbowroom_types::unit::Limit::{At, Max};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Where the policy process finds the knobs, below its run directory.
pub const KNOBS: &str = "rig.knobs";
/// Leases that the governor was told it had lost.
pub static LOST: AtomicU64 = AtomicU64::new(0);

/// Starts the governor, in the policy process.
pub fn storm(run_dir: &Path) {
    let text = std::fs::read_to_string(run_dir.join(KNOBS)).expect("the test wrote it");
    let knobs: Vec<CgroupKnob> = serde_json::from_str(&text).expect("the test wrote JSON");
    let mut leases = Leases::open(&run_dir.join(lease::DIR)).expect("there is one policy process");
    std::thread::spawn(move || {
        let mut beaten = Instant::now();
        for value in (1_000..2_000).cycle() {
            let knob = &knobs[value as usize % knobs.len()];
            leases.tighten(knob, At(value), "storm").expect("the ledger can be written");
            if beaten.elapsed() > Duration::from_millis(100) {
                LOST.fetch_add(leases.heartbeat().len() as u64, Ordering::Relaxed);
                beaten = Instant::now();
            }
        }
    });
}

/// A cgroup with a limit of its user's.
pub struct Group {
    dir: PathBuf,
    pub knobs: [CgroupKnob; 2],
}

/// What the user set: bytes read, and written.
pub const USERS: [Limit<u64>; 2] = [At(8 << 20), Max];

impl Group {
    /// `None`, with a word why, where there can be none.
    pub fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = format!("elbowroom-test-lease-agent-{}-{n}", std::process::id());
        let layout = CgroupLayout::detect(&Root::host().expect("/ is there")).expect("cgroups are mounted");
        let Some((version, dir)) = layout.dir(CgroupController::Io, Path::new(&path)) else {
            println!("skipped: needs the blkio or io controller");
            return None;
        };
        if version == CgroupVersion::V2 {
            let parent = dir.path().parent().expect("the root is above it").join("cgroup.subtree_control");
            std::fs::write(parent, "+io").expect("io can be enabled");
        }
        std::fs::create_dir(dir.path()).expect("root may make cgroups");
        // Nothing runs in the cgroup, so any disk does. A machine without one can have loop devices.
        let _ = Command::new("modprobe").args(["-q", "loop"]).status();
        let disks = std::fs::read_dir("/sys/block").expect("there is a kernel").flatten();
        let numbers = disks.filter_map(|disk| std::fs::read_to_string(disk.path().join("dev")).ok());
        let knobs = numbers.filter_map(|number| {
            let device = number.trim().parse().ok()?;
            let key = |field: &str| Some(KnobKey { device, field: Some(field.to_owned()) });
            let whole = || Some(KnobKey { device, field: None });
            let knobs = match version {
                CgroupVersion::V1 => ["read", "write"].map(|kind| {
                    CgroupKnob::new(
                        &dir,
                        &format!("blkio.throttle.{kind}_bps_device"),
                        whole(),
                        UnsetValue::Zero,
                    )
                }),
                CgroupVersion::V2 => {
                    ["rbps", "wbps"].map(|field| CgroupKnob::new(&dir, "io.max", key(field), UnsetValue::Max))
                }
            };
            let knobs = knobs.map(|knob| knob.expect("the cgroup is there"));
            knobs[0].write(USERS[0]).is_ok().then_some(knobs)
        });
        let found = { knobs }.next();
        let group = found.map(|knobs| Self { dir: dir.path(), knobs });
        if group.is_none() {
            println!("skipped: needs a disk that takes limits");
            let _ = std::fs::remove_dir(dir.path());
        }
        group
    }

    pub fn limits(&self) -> [Limit<u64>; 2] {
        self.knobs.each_ref().map(|knob| knob.read().expect("the cgroup is there"))
    }

    /// Waits until the user's own limits are in force, and says how long that took.
    pub fn wait_for_users(&self, deadline: Duration) -> Duration {
        let began = Instant::now();
        while self.limits() != USERS {
            assert!(began.elapsed() < deadline, "{:?} are in force after {deadline:?}", self.limits());
            std::thread::sleep(Duration::from_micros(500));
        }
        began.elapsed()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.dir);
    }
}
