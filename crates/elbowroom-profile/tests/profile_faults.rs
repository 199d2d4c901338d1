//! Page faults of real programs, by every tier that works here, against the number that they have taken. Needs root.
#![cfg(feature = "bpf")]

#[path = "../../elbowroom-linux/tests/rig/mod.rs"]
mod rig;

mod program;

use elbowroom_linux::bpf::TrackedHierarchy;
use elbowroom_linux::cgroup::{CgroupController, CgroupVersion};
use elbowroom_linux::containers::ContainerSelector;
use elbowroom_linux::discover::ContainerSources;
use elbowroom_profile::counter;
use elbowroom_profile::counter::{CounterScope, PerfCounterEvent};
use elbowroom_profile::faults::fault_counter::FaultCounter;
use elbowroom_profile::faults::measure::FaultProfiler;
use elbowroom_profile::faults::model::{FaultClass, FaultCounts, FaultTier, TIMED_ONE_IN};
use rig::Rig;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

const COUNT: u64 = 1000;

/// What a program takes beside those it was told to: its first `read`, its buffers, its end.
const NOISE: u64 = 12;

/// A program that has come to its line: see `lab/programs/faults.c`.
struct Case {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Case {
    /// In a group of the rig; it has no faults to take but those it is told to.
    fn ready(rig: &Rig, group: &str, name: &str, file: &Path) -> Option<Self> {
        let mut child = Command::new("sh")
            .args(["-c", "read go; exec \"$@\"", "sh"])
            .arg(program())
            .args([name, &COUNT.to_string()])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        for hierarchy in rig.layout.hierarchies() {
            let procs = hierarchy.mount_point.join(rig.path(group)).join("cgroup.procs");
            std::fs::write(procs, child.id().to_string()).unwrap();
        }
        let mut input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        input.write_all(b"go\n").unwrap();
        let ready = said(&mut output) == "ready\n";
        let case = Self { child, input, output };
        ready.then_some(case)
    }

    fn take(&mut self) {
        self.input.write_all(b"\n").unwrap();
        assert_eq!(said(&mut self.output), "done\n");
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        let _ = self.input.write_all(b"\n");
        let _ = self.child.wait();
    }
}

fn said(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line
}

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| program::compiled("faults", &["-O1", "-static"]))
}

/// A file with as many pages as the cases want, all of them in memory. Written page by page: what is written at once may lie
/// in one large folio, and one fault maps all of it.
fn file(dir: &Path) -> PathBuf {
    let path = dir.join("file");
    let mut file = std::fs::File::create(&path).unwrap();
    for _ in 0..COUNT * 17 {
        file.write_all(&[1; 4096]).unwrap();
    }
    path
}

/// Runs `test` with every tier that works here, and with latencies where it has them; says why another does not.
fn with_every_tier(wanted: &[String], test: impl FnMut(&mut FaultProfiler, bool)) {
    with_every_tier_of(|| ContainerSelector::open(&ContainerSources::default()).unwrap(), wanted, test);
}

fn with_every_tier_of(
    open: impl Fn() -> ContainerSelector,
    wanted: &[String],
    mut test: impl FnMut(&mut FaultProfiler, bool),
) {
    for (tier, latency) in
        [(FaultTier::Functions, false), (FaultTier::Functions, true), (FaultTier::Tracepoints, false)]
    {
        match FaultProfiler::start(open(), wanted, Some(tier), latency) {
            Ok(mut profiler) => test(&mut profiler, latency),
            Err(error) => {
                let must = std::env::var("ELBOWROOM_TEST_BPF").unwrap_or_default();
                assert!(must.is_empty() || must == "tracepoints" && tier == FaultTier::Functions, "{error}");
                eprintln!("skipped: {error}");
            }
        }
    }
}

fn paths(rig: &Rig, groups: &[&str]) -> Vec<String> {
    groups.iter().map(|group| format!("/{}", rig.path(group))).collect()
}

fn counts(profiler: &mut FaultProfiler, place: usize) -> FaultCounts {
    profiler.sample().unwrap().containers[place].counts
}

#[test]
fn every_class_is_counted_exactly() {
    let Some(mut rig) = Rig::new() else { return };
    rig.mkdir("a");
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path());
    let table = [
        ("read", FaultClass::Read),
        ("cow", FaultClass::Cow),
        ("shared", FaultClass::Shared),
        ("anonymous", FaultClass::Anonymous),
        ("zero", FaultClass::Anonymous),
        ("stack", FaultClass::Anonymous),
        ("unzero", FaultClass::WriteProtect),
        ("fork", FaultClass::WriteProtect),
    ];
    with_every_tier(&paths(&rig, &["a"]), |profiler, latency| {
        for (name, class) in table {
            let mut case = Case::ready(&rig, "a", name, &file).expect("it gets ready");
            let before = counts(profiler, 0);
            case.take();
            let found = counts(profiler, 0).since(&before);
            let tier = profiler.tier();
            for other in FaultClass::ALL {
                let expected = if other == class { COUNT } else { 0 };
                let count = found.of(other);
                assert!(
                    count >= expected && count <= expected + NOISE,
                    "{tier:?} {name}: {other:?} {count} {found:?}"
                );
            }
            assert_eq!(found.mean_ns(class).is_some(), latency);
            let timed: u64 = found.latency.iter().sum();
            assert_eq!(timed, found.timed.iter().sum::<u64>());
            // By chance: of a thousand, a third of what is expected is five standard deviations away.
            let expected = if latency { found.total() / TIMED_ONE_IN } else { 0 };
            assert!(expected / 3 <= timed && timed <= expected * 3, "{tier:?} {name}: {timed} of {found:?}");
        }
    });
}

#[test]
fn faults_without_a_place_are_counted_as_lost() {
    let Some(mut rig) = Rig::new() else { return };
    rig.mkdir("a");
    rig.mkdir("b");
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path());
    let mut cases =
        ["a", "b"].map(|group| Case::ready(&rig, group, "anonymous", &file).expect("it gets ready"));
    let hierarchy = match rig.layout.dir(CgroupController::Memory, Path::new("")) {
        Some((CgroupVersion::V1, _)) => TrackedHierarchy::Memory,
        _ => TrackedHierarchy::Unified,
    };
    for tier in [FaultTier::Functions, FaultTier::Tracepoints] {
        let Ok(counter) = FaultCounter::open(tier, false, hierarchy, 1, &[0]) else { continue };
        cases.iter_mut().for_each(Case::take);
        let (found, lost) = counter.read().unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(lost >= COUNT, "{lost}");
        return;
    }
}

#[test]
fn pages_come_back_from_swap() {
    let Some(mut rig) = Rig::new() else { return };
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().count() < 2 {
        eprintln!("skipped: needs swap, and this machine has none");
        return;
    }
    rig.mkdir("a");
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path());
    with_every_tier(&paths(&rig, &["a"]), |profiler, _| {
        let Some(mut case) = Case::ready(&rig, "a", "swap", &file) else {
            eprintln!("skipped: this kernel pages nothing out when asked");
            return;
        };
        let pid = case.child.id();
        let swapped = || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmSwap:")).unwrap_or("0").to_owned();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 4
        };
        let out = swapped();
        let before = counts(profiler, 0);
        case.take();
        let found = counts(profiler, 0).since(&before);
        let back = out - swapped();
        eprintln!("{:?}: {out} pages were in swap, {back} came back: {found:?}", profiler.tier());
        // Read-ahead brings several pages with one fault into the swap cache; each of them still takes a fault.
        match profiler.tier() {
            FaultTier::Functions => {
                assert!(found.of(FaultClass::Swap).abs_diff(out) <= NOISE, "{out} {found:?}")
            }
            FaultTier::Tracepoints => {
                assert_eq!(found.of(FaultClass::Swap), found.major);
                let both = found.of(FaultClass::Swap) + found.of(FaultClass::Anonymous);
                assert!(both.abs_diff(COUNT) <= NOISE, "{found:?}");
            }
        }
    });
}

#[test]
fn a_fault_on_what_another_container_has_mapped_is_a_duplicate() {
    let Some(mut rig) = Rig::new() else { return };
    ["a", "b", "b/inner"].into_iter().for_each(|group| rig.mkdir(group));
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path());
    with_every_tier(&paths(&rig, &["a", "b"]), |profiler, _| {
        let mut run = |group: &str, place: usize, name: &str| {
            let mut case = Case::ready(&rig, group, name, &file).expect("it gets ready");
            let before = counts(profiler, place);
            case.take();
            counts(profiler, place).since(&before).duplicates
        };
        // Once: no other process was there before. Again: only oneself was.
        assert!(run("a", 0, "read") <= NOISE);
        assert!(run("a", 0, "read") <= NOISE);
        let inside = run("b/inner", 1, "read");
        assert!((COUNT..=COUNT + NOISE).contains(&inside), "{inside}");
        let copied = run("b", 1, "cow");
        assert!((COUNT..=COUNT + NOISE).contains(&copied), "{copied}");
        assert!(run("b", 1, "anonymous") <= NOISE);
    });
}

#[test]
fn a_container_that_begins_meanwhile_is_not_another_when_it_becomes_known() {
    let Some(mut rig) = Rig::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path());
    let all = format!("/{}", rig.path("late-*"));
    let open = || {
        ContainerSelector::open(&ContainerSources { patterns: vec![all.clone()], ..Default::default() })
            .unwrap()
    };
    with_every_tier_of(open, &[], |profiler, latency| {
        let name = format!("late-{:?}-{latency}", profiler.tier());
        rig.mkdir(&name);
        Case::ready(&rig, &name, "read", &file).expect("it gets ready").take();
        let sample = profiler.sample().unwrap();
        let place = sample.containers.iter().position(|one| one.subject.cgroup.ends_with(&name)).unwrap();
        let mut case = Case::ready(&rig, &name, "read", &file).expect("it gets ready");
        let before = counts(profiler, place);
        case.take();
        let found = counts(profiler, place).since(&before);
        assert!(found.total() >= COUNT && found.duplicates <= NOISE, "{found:?}");
    });
}

#[test]
fn a_cgroup_that_becomes_known_as_a_part_of_its_container_is_no_other() {
    let Some(mut rig) = Rig::new() else { return };
    rig.mkdir("a");
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [first, second] = dirs.each_ref().map(|dir| file(dir.path()));
    let paths = paths(&rig, &["a"]);
    with_every_tier(&paths, |profiler, latency| {
        let inner = format!("a/late-{:?}-{latency}", profiler.tier());
        rig.mkdir(&inner);
        // It stands for itself, until it was looked up.
        Case::ready(&rig, &inner, "read", &first).expect("it gets ready").take();
        profiler.sample().unwrap();
        Case::ready(&rig, &inner, "read", &second).expect("it gets ready").take();
        let mut case = Case::ready(&rig, "a", "read", &second).expect("it gets ready");
        let before = counts(profiler, 0);
        case.take();
        let found = counts(profiler, 0).since(&before);
        assert!(found.total() >= COUNT && found.duplicates <= NOISE, "{found:?}");
    });
}

#[test]
fn a_fault_that_waits_for_a_disk_is_a_major_one() {
    let Some(mut rig) = Rig::new() else { return };
    rig.mkdir("a");
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path());
    if rustix::fs::statfs(&file).unwrap().f_type == libc::TMPFS_MAGIC {
        eprintln!("skipped: needs files on a disk, and temporary ones are in memory here");
        return;
    }
    with_every_tier(&paths(&rig, &["a"]), |profiler, _| {
        let mut case = Case::ready(&rig, "a", "read", &file).expect("it gets ready");
        let data = std::fs::File::open(&file).unwrap();
        data.sync_all().unwrap();
        rustix::fs::fadvise(&data, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let before = counts(profiler, 0);
        case.take();
        let found = counts(profiler, 0).since(&before);
        assert!(found.major > 0, "{:?}: {found:?}", profiler.tier());
    });
}

#[test]
fn what_counting_costs_is_measured_and_work_is_counted() {
    let Some(mut rig) = Rig::new() else { return };
    rig.mkdir("a");
    with_every_tier(&paths(&rig, &["a"]), |profiler, _| {
        let pid = rig.spawn("a", "while :; do (:) ; done");
        // On a busy machine the loop may not run at once.
        let until = std::time::Instant::now() + rig::DEADLINE;
        let mut cost = profiler.measure(Duration::from_millis(300)).unwrap();
        while cost.runs == 0 && std::time::Instant::now() < until {
            cost = profiler.measure(Duration::from_millis(300)).unwrap();
        }
        assert!(cost.runs > 0 && cost.ns > cost.runs, "{cost:?}");
        let sample = profiler.sample().unwrap();
        let work = sample.containers[0].work;
        assert!(work.cpu.get() > 0, "{work:?}");
        assert!(work.rate(sample.containers[0].counts.total()).is_some());
        eprintln!(
            "{:?}: {} ns per call; instructions: {:?}",
            profiler.tier(),
            cost.ns / cost.runs,
            work.instructions
        );
        rig.stop(pid);
    });
}

/// The path that instructions take, with an event that every machine counts.
#[test]
fn events_are_counted_by_cgroup() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let fields = |line: &'static str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mounts: Vec<Vec<String>> = mounts.leak().lines().map(fields).collect();
    let of = |wanted: &dyn Fn(&Vec<String>) -> bool| {
        mounts.iter().find(|m| wanted(m)).map(|m| PathBuf::from(&m[1]))
    };
    let v1 = of(&|m| m[2] == "cgroup" && m[3].split(',').any(|o| o == "perf_event"));
    let Some(root) = v1.or_else(|| of(&|m| m[2] == "cgroup2")) else {
        eprintln!("skipped: needs a hierarchy that events are counted by");
        return;
    };
    let group = root.join(format!("elbowroom-test-events-{}", std::process::id()));
    std::fs::create_dir(&group).unwrap();
    let dir = std::fs::File::open(&group).unwrap();
    let cpus = std::thread::available_parallelism().unwrap().get() as u32;
    let counters: Vec<_> = (0..cpus)
        .map(|cpu| {
            counter::open(
                PerfCounterEvent::TaskClock,
                CounterScope::Cgroup(std::os::fd::AsFd::as_fd(&dir)),
                cpu,
            )
            .unwrap()
        })
        .collect();
    let mut busy = Command::new("sh")
        .args(["-c", "read go; while :; do :; done"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    std::fs::write(group.join("cgroup.procs"), busy.id().to_string()).unwrap();
    let mut input = busy.stdin.take().unwrap();
    let until = std::time::Instant::now() + rig::DEADLINE;
    let ran = || {
        let schedstat = std::fs::read_to_string(format!("/proc/{}/schedstat", busy.id())).unwrap();
        schedstat.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    // Starting a shell takes an emulated CPU long.
    let before = ran();
    input.write_all(b"go\n").unwrap();
    let counted = || counters.iter().map(|counter| counter::read(counter).unwrap()).sum::<u64>();
    while counted() < 100_000_000 && std::time::Instant::now() < until {
        std::thread::yield_now();
    }
    let (counted, ran) = (counted(), ran() - before);
    busy.kill().unwrap();
    busy.wait().unwrap();
    drop(counters);
    while std::fs::remove_dir(&group).is_err() && std::time::Instant::now() < until {
        std::thread::yield_now();
    }
    // The run in progress is in one and not yet in the other.
    assert!(counted >= 100_000_000 && counted.abs_diff(ran) < counted / 2, "{counted} of {ran} ns");
}
