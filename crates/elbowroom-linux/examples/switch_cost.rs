//! What the BPF program adds to a context switch: two processes on one CPU pass a byte to and fro, with the program and
//! without it by turns. Run as root on a quiet machine: `cargo run --release -p elbowroom-linux --features bpf --example
//! switch_cost -- /sys/fs/cgroup/cpuacct` (or `/sys/fs/cgroup` on version 2).
//!
//! Two figures, both per switch: the growth of the whole round trip, and what the kernel counts for the program itself
//! (`bpf_stats_enabled`, whose own two clock reads are in it).

use elbowroom_linux::bpf::{ActiveSet, TrackedHierarchy};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use std::{env, fs};

const ROUND_TRIPS: u32 = 100_000;
const TURNS: usize = 5;
const STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Where the two processes are, and which of their cgroups are tracked.
struct Case {
    name: &'static str,
    cgroups: [Option<&'static str>; 2],
    tracked: bool,
}

const CASES: [Case; 4] = [
    Case { name: "both in the root", cgroups: [None, None], tracked: false },
    Case { name: "two groups, not tracked", cgroups: [Some("a"), Some("b")], tracked: false },
    Case { name: "one tracked group", cgroups: [Some("a"), Some("a")], tracked: true },
    Case { name: "two tracked groups", cgroups: [Some("a"), Some("b")], tracked: true },
];

fn main() {
    pin();
    let root = env::args().nth(1).unwrap_or_else(|| "/sys/fs/cgroup/cpuacct".into());
    if root == "echo" {
        return echo();
    }
    let root = PathBuf::from(root);
    let hierarchy = match root.join("cgroup.controllers").exists() {
        true => TrackedHierarchy::Unified,
        false if root.join("cpu.shares").exists() => TrackedHierarchy::Cpu,
        false => TrackedHierarchy::Cpuacct,
    };
    println!("{:26} {:>10} {:>10} {:>8} {:>10}", "ns per switch", "without", "with", "added", "bpf_stats");
    for case in &CASES {
        let (mut without, mut with, mut counted) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TURNS {
            without.push(round(&root, case, None).0);
            with.push(round(&root, case, Some((hierarchy, false))).0);
            counted.push(round(&root, case, Some((hierarchy, true))).1);
        }
        let (without, with, counted) = (median(without), median(with), median(counted));
        println!("{:26} {without:10.0} {with:10.0} {:8.0} {counted:10.0}", case.name, with - without);
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nanoseconds per switch of one measurement, and of the program by the kernel's statistics.
fn round(root: &Path, case: &Case, set: Option<(TrackedHierarchy, bool)>) -> (f64, f64) {
    let cgroup = |name: Option<&str>| {
        name.map_or(root.into(), |name| root.join(format!("elbowroom-switch-cost-{name}")))
    };
    let [ours, other] = case.cgroups.map(cgroup);
    for path in [&ours, &other] {
        let _exists_already = fs::create_dir(path);
    }
    let mut child = Command::new(env::current_exe().expect("this program has a path"))
        .arg("echo")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program can be started again");
    enter(&ours, std::process::id());
    enter(&other, child.id());
    let statistics = set.is_some_and(|(_, statistics)| statistics);
    let set = set.map(|(hierarchy, _)| {
        let mut set = ActiveSet::open(hierarchy).unwrap_or_else(|error| panic!("{error}"));
        for (path, slot) in [&ours, &other].into_iter().zip(0..).filter(|_| case.tracked) {
            set.track(fs::metadata(path).expect("it was made above").ino(), slot).expect("it can be tracked");
        }
        set
    });
    let (mut to, mut from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let mut trips = |count: u32| {
        let mut byte = [0];
        for _ in 0..count {
            to.write_all(&byte).expect("the child reads");
            from.read_exact(&mut byte).expect("the child answers");
        }
    };
    trips(ROUND_TRIPS / 10);
    if statistics {
        fs::write(STATS, "1").expect("root may turn statistics on");
    }
    let start = Instant::now();
    trips(ROUND_TRIPS);
    let each = start.elapsed().as_nanos() as f64 / f64::from(2 * ROUND_TRIPS);
    if statistics {
        fs::write(STATS, "0").expect("root may turn statistics off");
    }
    let counted = set.as_ref().map_or(0.0, |_| program_ns());
    drop((to, set));
    child.wait().expect("it ends when its input does");
    enter(root, std::process::id());
    for path in [ours, other].iter().filter(|path| *path != root) {
        let _gone_or_the_same = fs::remove_dir(path);
    }
    (each, counted)
}

fn program_ns() -> f64 {
    libbpf_rs::query::ProgInfoIter::default()
        .find(|program| program.name == "elbowroom_activ")
        .map_or(0.0, |program| program.run_time_ns as f64 / program.run_cnt.max(1) as f64)
}

fn enter(cgroup: &Path, pid: u32) {
    fs::write(cgroup.join("cgroup.procs"), pid.to_string()).expect("root may move its own processes");
}

fn pin() {
    let mut cpus = CpuSet::new();
    cpus.set(0);
    sched_setaffinity(None, &cpus).expect("CPU 0 is online");
}

fn echo() {
    let (mut input, mut output) = (std::io::stdin(), std::io::stdout());
    let mut byte = [0];
    while input.read_exact(&mut byte).is_ok() {
        output.write_all(&byte).and_then(|()| output.flush()).expect("the parent reads");
    }
}
