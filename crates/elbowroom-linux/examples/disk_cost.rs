//! What a look at disks costs: makes containers, each of which uses some of a number of loop devices once. The sensor
//! looks, the governor decides, and the CPU time of both is printed as JSON. Needs root. Publishes nothing but
//! numbers of the machine it runs on: say what else ran.
//!
//! ```text
//! cargo run --release -p elbowroom-linux --example disk_cost [-- GROUPS DISKS DISKS_PER_GROUP]
//! ```
//!
//! Without numbers: 500 containers, 20 disks, 2 disks each. Everything made is removed at the end; on a signal, not.

use elbowroom_govern::disk::{DiskGovernor, DiskSettings};
use elbowroom_linux::cgroup::{CgroupLayout, CgroupVersion};
use elbowroom_linux::root::Root;
use elbowroom_linux::{Sensor, SensorConfig};
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::Micros;
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Calls, one second apart. In these, every device and every container's page cache is read again twelve times.
const LOOKS: u64 = 60;
/// Calls after those, each after every container has read from each of its disks.
const BUSY_LOOKS: u64 = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<usize> = std::env::args().skip(1).map(|a| a.parse()).collect::<Result<_, _>>()?;
    let (groups, disks, each) = match args[..] {
        [groups, disks, each] => (groups, disks.max(each), each),
        _ => (500, 20, 2),
    };
    let crowd = Crowd::new(groups, disks, each)?;
    let plain = vec![format!("/{}/*", crowd.name)];
    let mut sensor =
        Sensor::open(&SensorConfig { container_patterns: plain, bpf: false, ..SensorConfig::default() })?;
    let mut governor = DiskGovernor::new(DiskSettings::default(), Vec::new());
    sensor.start().iter().for_each(|event| drop(governor.apply(event)));
    sensor.watch_disks(&["loop*".to_owned()]);
    sensor.disks(Micros::ZERO);
    // On v1, counting begins with the first look.
    crowd.read()?;
    let (mut idle_us, mut scan_us, mut busy_us, mut decide_us, mut glance_us) = Default::default();
    let (mut told, mut rows) = (0, 0);
    for n in 1..=LOOKS + BUSY_LOOKS {
        let busy = n > LOOKS;
        if busy || n == LOOKS / 2 {
            crowd.read()?;
        }
        sensor.tick(Micros::secs(n));
        timed(&mut glance_us, || {
            let stats = sensor.disk_stats();
            governor.glance(Micros::millis(n * 1000 - 500), &stats);
        });
        // Every fifth second swap and iocost are looked at anew, a few devices every second.
        let kind = if busy {
            &mut busy_us
        } else if n % 5 == 0 {
            &mut scan_us
        } else {
            &mut idle_us
        };
        let events = timed(kind, || sensor.disks(Micros::secs(n)));
        timed(&mut decide_us, || events.iter().for_each(|event| drop(governor.apply(event))));
        let Some(HostEvent::DiskTick(tick)) = events.last() else { continue };
        told = told.max(tick.disks.len());
        rows = rows.max(tick.groups.iter().map(|group| group.io.len()).sum());
    }
    let report = serde_json::json!({
        "kernel": rustix::system::uname().release().to_string_lossy(),
        "layout": format!("{:?}", sensor.layout().mode).to_lowercase(),
        "loadavg": std::fs::read_to_string("/proc/loadavg")?.trim_end(),
        "groups": groups, "disks": disks, "disks_told": told, "rows_told": rows,
        "look_us": spread(&mut idle_us), "look_and_rescan_us": spread(&mut scan_us), "busy_look_us": spread(&mut busy_us),
        "decide_us": spread(&mut decide_us), "glance_us": spread(&mut glance_us),
    });
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}

/// Cgroups and loop devices, removed when dropped.
struct Crowd {
    name: String,
    mounts: Vec<PathBuf>,
    groups: usize,
    each: usize,
    loops: Vec<String>,
    image: PathBuf,
}

impl Crowd {
    fn new(groups: usize, disks: usize, each: usize) -> Result<Self, Box<dyn Error>> {
        let layout = CgroupLayout::detect(&Root::host()?)?;
        let name = format!("elbowroom-test-sense-cost-{}", std::process::id());
        let mounts = layout.hierarchies().iter().map(|h| h.mount_point.clone()).collect();
        let image = PathBuf::from(format!("/dev/shm/{name}.img"));
        let mut crowd = Self { name, mounts, groups, each, loops: Vec::new(), image };
        std::fs::File::create(&crowd.image)?.set_len(1 << 20)?;
        for _ in 0..disks {
            let made = Command::new("losetup").args(["--find", "--show"]).arg(&crowd.image).output()?;
            if !made.status.success() {
                return Err(String::from_utf8_lossy(&made.stderr).into_owned().into());
            }
            crowd.loops.push(String::from_utf8(made.stdout)?.trim().to_owned());
        }
        for (hierarchy, mount) in layout.hierarchies().iter().zip(&crowd.mounts) {
            let top = mount.join(&crowd.name);
            std::fs::create_dir(&top)?;
            if hierarchy.version == CgroupVersion::V2 {
                let controllers = std::fs::read_to_string(top.join("cgroup.controllers"))?;
                for controller in
                    controllers.split_ascii_whitespace().filter(|c| ["io", "memory", "cpu"].contains(c))
                {
                    std::fs::write(top.join("cgroup.subtree_control"), format!("+{controller}"))?;
                }
            }
            for n in 0..groups {
                std::fs::create_dir(top.join(format!("c{n}")))?;
            }
        }
        crowd.read()?;
        Ok(crowd)
    }

    /// Reads a block of each of its disks in each container.
    fn read(&self) -> Result<(), Box<dyn Error>> {
        let mut script = String::new();
        for n in 0..self.groups {
            for mount in &self.mounts {
                let procs = mount.join(&self.name).join(format!("c{n}/cgroup.procs"));
                script.push_str(&format!("echo $$ 2>/dev/null >{} || :\n", procs.display()));
            }
            for at in 0..self.each {
                let disk = &self.loops[(n + at) % self.loops.len()];
                script
                    .push_str(&format!("dd if={disk} of=/dev/null bs=4k count=1 iflag=direct status=none\n"));
            }
        }
        for mount in &self.mounts {
            script.push_str(&format!("echo $$ >{}\n", mount.join("cgroup.procs").display()));
        }
        let mut shell = Command::new("sh").arg("-eu").stdin(Stdio::piped()).spawn()?;
        shell.stdin.take().expect("it was asked for").write_all(script.as_bytes())?;
        match shell.wait()?.success() {
            true => Ok(()),
            false => Err("the containers could not read their disks".into()),
        }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for disk in &self.loops {
            let _ = Command::new("losetup").args(["--detach", disk]).status();
        }
        let _ = std::fs::remove_file(&self.image);
        for mount in &self.mounts {
            let top = mount.join(&self.name);
            for n in 0..self.groups {
                let _ = std::fs::remove_dir(top.join(format!("c{n}")));
            }
            let _ = std::fs::remove_dir(top);
        }
    }
}

fn spread(values: &mut [f64]) -> serde_json::Value {
    values.sort_by(f64::total_cmp);
    let at = |q: f64| values.get((values.len() as f64 * q) as usize).map(|us| us.round());
    serde_json::json!({ "median": at(0.5), "p95": at(0.95), "most": values.last().map(|us| us.round()) })
}

/// Does something, and adds what CPU time that took, in microseconds.
fn timed<T>(took_us: &mut Vec<f64>, what: impl FnOnce() -> T) -> T {
    let start = thread_cpu();
    let done = what();
    took_us.push((thread_cpu() - start).as_secs_f64() * 1e6);
    done
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
