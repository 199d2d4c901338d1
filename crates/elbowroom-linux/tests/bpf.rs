//! The BPF tier on the kernel that runs the tests, against its own accounting files. Needs root; works on version 1 and
//! version 2 hosts alike.
#![cfg(feature = "bpf")]

use elbowroom_linux::bpf::{ActiveSet, BpfError, TrackedHierarchy};
use elbowroom_linux::cgroup::{CgroupController, CgroupLayout};
use elbowroom_linux::root::Root;
use elbowroom_linux::timer::Ticker;
use elbowroom_linux::{Sensor, SensorConfig, timer};
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::Micros;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Tests that count programs in the kernel, or busy CPUs, must not see each other's.
static ALONE: Mutex<()> = Mutex::new(());

/// The hierarchy this machine accounts CPU time in.
struct Machine {
    hierarchy: TrackedHierarchy,
    root: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Machine {
    /// `None`, having said why, where the tests cannot run.
    fn find() -> Option<Self> {
        let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return None;
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mut unified = None;
        for line in mounts.lines() {
            let fields: Vec<_> = line.split(' ').collect();
            let has = |option| fields[3].split(',').any(|o| o == option);
            match fields[2] {
                "cgroup" if has("cpuacct") => {
                    let hierarchy =
                        if has("cpu") { TrackedHierarchy::Cpu } else { TrackedHierarchy::Cpuacct };
                    return Some(Self { hierarchy, root: fields[1].into(), _alone: alone });
                }
                "cgroup2" => unified = Some(fields[1].into()),
                _ => {}
            }
        }
        let Some(root) = unified else {
            eprintln!("skipped: needs a mounted cgroup hierarchy that accounts CPU time");
            return None;
        };
        Some(Self { hierarchy: TrackedHierarchy::Unified, root, _alone: alone })
    }

    /// An open set; `None`, having said why, where this kernel has no BPF for us.
    fn open(&self) -> Option<ActiveSet> {
        match ActiveSet::open(self.hierarchy) {
            Ok(set) => Some(set),
            Err(error) => {
                assert!(std::env::var_os("ELBOWROOM_TEST_BPF").is_none(), "{error}");
                eprintln!("skipped: {error} (ELBOWROOM_TEST_BPF=1 makes this a failure)");
                None
            }
        }
    }

    fn cgroup(&self, name: &str) -> Cgroup {
        Cgroup::new(self.root.join(format!("elbowroom-test-bpf-{}-{name}", std::process::id())))
    }
}

/// A cgroup of the test, and the processes started in it; gone with it.
struct Cgroup {
    path: PathBuf,
    children: Vec<Child>,
}

impl Cgroup {
    fn new(path: PathBuf) -> Self {
        fs::create_dir(&path).unwrap();
        Self { path, children: Vec::new() }
    }

    fn inode(&self) -> u64 {
        fs::metadata(&self.path).unwrap().ino()
    }

    fn below(&self, name: &str) -> Cgroup {
        Cgroup::new(self.path.join(name))
    }

    /// Starts a process that is moved into the cgroup while it waits, as container runtimes do, and then runs `script`.
    fn start(&mut self, script: &str) {
        self.start_in(&[], script);
    }

    /// The same in its namesakes of other hierarchies.
    fn start_in(&mut self, others: &[Cgroup], script: &str) {
        let mut child = Command::new("sh")
            .args(["-c", &format!("echo ready; read go; {script}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0; 6]).unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        until("the process waits", || fs::read_to_string(&stat).unwrap().contains("(sh) S"));
        for path in others.iter().map(|other| &other.path).chain([&self.path]) {
            fs::write(path.join("cgroup.procs"), child.id().to_string()).unwrap();
        }
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        self.children.push(child);
    }

    fn start_busy(&mut self) {
        self.start("while :; do :; done");
    }

    fn stop(&mut self) {
        for mut child in self.children.drain(..) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// All that was started has ended.
    fn ended(&mut self) -> bool {
        self.children.iter_mut().all(|child| child.try_wait().unwrap().is_some())
    }

    /// The kernel's own count.
    fn usage(&self) -> Micros {
        self.try_usage().unwrap()
    }

    /// `None` in a hierarchy that does not account CPU time.
    fn try_usage(&self) -> Option<Micros> {
        if let Ok(text) = fs::read_to_string(self.path.join("cpuacct.usage")) {
            return Some(Micros::nanos(text.trim().parse().unwrap()));
        }
        let text = fs::read_to_string(self.path.join("cpu.stat")).ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
        Some(Micros(value.parse().unwrap()))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.stop();
        // A killed task leaves its cgroup a moment after it can be waited for.
        let start = Instant::now();
        while fs::remove_dir(&self.path).is_err() {
            if start.elapsed() > Duration::from_secs(5) {
                eprintln!("left behind: {}", self.path.display());
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    // An emulated CPU is slow.
    let patience = std::env::var("ELBOWROOM_TEST_PATIENCE").ok().and_then(|text| text.parse().ok());
    let deadline = Duration::from_secs(60) * patience.unwrap_or(1);
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn drained(set: &mut ActiveSet) -> BTreeMap<u32, Micros> {
    let mut seen = BTreeMap::new();
    set.drain(|slot, cpu| assert!(seen.insert(slot, cpu).is_none(), "slot {slot} twice"));
    seen
}

/// What a slot has, if it ran since the last look.
fn of(slot: u32, set: &mut ActiveSet) -> Micros {
    drained(set).get(&slot).copied().unwrap_or_default()
}

/// What we counted, what the kernel did, and what we had counted after it was asked.
type Counts = (Micros, Micros, Micros);

/// The kernel's account, read between two of ours, lies between them but for 1 %. The first of a few measurements in which
/// the kernel hid no switch counts: a run that ends in a hidden switch is in no total until the sensor reads the kernel's
/// own.
fn assert_agree(set: &mut ActiveSet, mut measure: impl FnMut(&mut ActiveSet) -> Counts) {
    for _ in 0..10 {
        let missed = set.stats().missed;
        let (before, kernel, after) = measure(set);
        let said = format!("kernel {} us, bpf {} to {} us", kernel.get(), before.get(), after.get());
        println!("{said}");
        let slack = Micros(kernel.get() / 100);
        if before <= kernel.saturating_add(slack) && kernel <= after.saturating_add(slack) {
            return;
        }
        // The next switch on that CPU proves that a switch was hidden.
        let start = Instant::now();
        while set.stats().missed == missed {
            assert!(start.elapsed() < Duration::from_secs(2), "{said}, and every switch was seen");
            thread::sleep(Duration::from_millis(5));
        }
        eprintln!("measured again: {} switches were hidden", set.stats().missed - missed);
    }
    panic!("switches were hidden in every measurement");
}

#[test]
fn totals_equal_the_kernels_account_while_running_and_after() {
    let Some(machine) = Machine::find() else { return };
    let Some(mut set) = machine.open() else { return };
    assert_agree(&mut set, |set| {
        let mut group = machine.cgroup("busy");
        set.track(group.inode(), 0).unwrap();
        group.start_busy();
        thread::sleep(Duration::from_secs(2));
        let running = of(0, set);
        let file = group.usage();
        let later = of(0, set).max(running);
        group.stop();
        set.untrack(group.inode()).unwrap();
        // The kernel brings a running task's account up to date at its tick, 1 to 10 ms apart; in an emulator whose CPUs are
        // taken away ticks come late, up to 100 ms.
        (running.saturating_sub(Micros::millis(100)), file, later)
    });
    assert_agree(&mut set, |set| {
        let mut group = machine.cgroup("busy");
        set.track(group.inode(), 1).unwrap();
        group.start_busy();
        until("it ran for a second", || group.usage() > Micros::millis(1_000));
        let running = of(1, set);
        if thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1) {
            until("a run is seen again and again before it ends", || {
                (0..100).all(|_| drained(set).contains_key(&1))
            });
        } else {
            eprintln!("partly skipped: needs a second CPU, for what runs while it is looked at");
        }
        group.stop();
        let after = of(1, set).max(running);
        set.untrack(group.inode()).unwrap();
        (after, group.usage(), after)
    });
}

#[test]
fn many_short_runs_add_up_to_the_kernels_account() {
    let Some(machine) = Machine::find() else { return };
    let Some(mut set) = machine.open() else { return };
    assert_agree(&mut set, |set| {
        let mut group = machine.cgroup("short");
        set.track(group.inode(), 9).unwrap();
        group.start("i=0; while [ $i -lt 100 ]; do /bin/true; i=$((i+1)); done");
        let mut last = Micros::ZERO;
        until("the loop is done", || {
            let done = group.ended();
            let total = of(9, set);
            assert!(total == Micros::ZERO || total >= last, "decreased from {last:?} to {total:?}");
            last = last.max(total);
            done
        });
        set.untrack(group.inode()).unwrap();
        (last, group.usage(), last)
    });
}

#[test]
fn groups_that_sleep_never_appear_among_a_thousand() {
    let Some(machine) = Machine::find() else { return };
    let Some(mut set) = machine.open() else { return };
    let parent = machine.cgroup("thousand");
    let mut groups: Vec<_> = (0..1_000).map(|n| parent.below(&n.to_string())).collect();
    for (group, slot) in groups.iter().zip(0..) {
        set.track(group.inode(), slot).unwrap();
    }
    assert_eq!((set.stats().groups, set.stats().slots), (1_000, 1_000));
    groups[3].start("exec sleep 1000");
    until("the sleeper ran", || drained(&mut set).contains_key(&3));
    let mut quiet = 0;
    until("the sleeper sleeps for good", || {
        quiet = if drained(&mut set).is_empty() { quiet + 1 } else { 0 };
        quiet == 20
    });
    groups[700].start_busy();
    let mut sightings = 0;
    until("the busy group was seen often", || {
        let seen = drained(&mut set);
        assert!(seen.keys().all(|&slot| slot == 700), "{seen:?}");
        sightings += seen.len();
        sightings >= 50
    });
}

#[test]
fn a_nested_group_counts_for_its_container() {
    let Some(machine) = Machine::find() else { return };
    let Some(mut set) = machine.open() else { return };
    assert_agree(&mut set, |set| {
        let outer = machine.cgroup("nest");
        let mut inner = outer.below("inner");
        set.track(outer.inode(), 5).unwrap();
        set.track(inner.inode(), 5).unwrap();
        inner.start("i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done");
        until("the loop is done", || inner.ended());
        let total = of(5, set);
        let kernel = outer.usage();
        set.untrack(inner.inode()).unwrap();
        set.untrack(outer.inode()).unwrap();
        (total, kernel, total)
    });
}

#[test]
fn a_run_that_began_in_a_hidden_switch_is_counted_where_it_ends() {
    let Some(machine) = Machine::find() else { return };
    let Some(mut set) = machine.open() else { return };
    assert_agree(&mut set, |set| {
        let mut group = machine.cgroup("hidden");
        set.track(group.inode(), 3).unwrap();
        group.start_busy();
        let pid = rustix::process::Pid::from_raw(group.children[0].id() as i32);
        let mut one = rustix::thread::CpuSet::new();
        one.set(0);
        rustix::thread::sched_setaffinity(pid, &one).unwrap();
        until("it ran", || group.usage() > Micros::millis(300));
        let missed = set.stats().missed;
        // Others run there too, and each that comes and goes is seen.
        until("it ran on", || {
            forget_running_threads(0);
            group.usage() > Micros::millis(600)
        });
        // sched_autogroup_exit_task() puts an exiting task on its CPU once more: only what it ran since then is known.
        rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::STOP).unwrap();
        until("a switch was missed", || set.stats().missed > missed);
        group.stop();
        let total = of(3, set);
        set.untrack(group.inode()).unwrap();
        (total, group.usage(), total)
    });
}

/// Makes the program's note of a CPU be of a task that is none, as if the switch to the one that runs had been hidden.
fn forget_running_threads(cpu: u32) {
    use libbpf_rs::query::MapInfoIter;
    use libbpf_rs::{MapCore, MapFlags, MapHandle};
    let ours = MapInfoIter::default().filter(|map| map.name == "cpus" && map.value_size == 64);
    let map = MapHandle::from_map_id(ours.last().unwrap().id).unwrap();
    let mut record = map.lookup(&cpu.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    // `pid` in struct cpu.
    record[48..52].copy_from_slice(&u32::MAX.to_ne_bytes());
    map.update(&cpu.to_ne_bytes(), &record, MapFlags::ANY).unwrap();
}

#[test]
fn an_untracked_slot_is_silent_and_starts_again_at_zero() {
    let Some(machine) = Machine::find() else { return };
    let Some(mut set) = machine.open() else { return };
    let mut group = machine.cgroup("again");
    set.track(group.inode(), 2).unwrap();
    group.start_busy();
    until("it ran", || drained(&mut set).get(&2).is_some_and(|&cpu| cpu > Micros::millis(100)));
    set.untrack(group.inode()).unwrap();
    set.untrack(group.inode()).unwrap();
    thread::sleep(Duration::from_millis(50));
    assert_eq!(drained(&mut set), BTreeMap::new());
    group.stop();
    set.track(group.inode(), 2).unwrap();
    group.start("exec sleep 1000");
    let mut total = Micros::ZERO;
    until("the sleeper ran", || {
        total = drained(&mut set).get(&2).copied().unwrap_or_default();
        total > Micros::ZERO
    });
    assert!(total < Micros::millis(100), "{total}");
}

#[test]
fn the_sensor_names_groups_that_ran_with_the_kernels_account_and_leaves_sleepers_alone() {
    let Some(machine) = Machine::find() else { return };
    let Some(_) = machine.open() else { return };
    let layout = CgroupLayout::detect(&Root::host().unwrap()).unwrap();
    let make = |name: &str| -> Vec<Cgroup> {
        let path = format!("elbowroom-test-bpf-{}-{name}", std::process::id());
        let dirs = [CgroupController::Cpu, CgroupController::Cpuacct, CgroupController::Memory]
            .map(|controller| layout.dir(controller, Path::new(&path)).unwrap().1.path());
        BTreeSet::from(dirs).into_iter().map(Cgroup::new).collect()
    };
    let (mut busy, mut idle) = (make("sensor-busy"), make("sensor-idle"));
    let mut sensor = Sensor::open(&SensorConfig::default()).unwrap();
    assert_eq!(sensor.source().name(), "bpf");
    let ids: BTreeMap<_, _> = sensor
        .start()
        .into_iter()
        .filter_map(|event| match event {
            HostEvent::Group(group) => Some((group.path, group.id)),
            _ => None,
        })
        .collect();
    let id = |name: &str| ids[&format!("/elbowroom-test-bpf-{}-{name}", std::process::id())];
    let (busy_id, idle_id) = (id("sensor-busy"), id("sensor-idle"));
    for (group, script) in [(&mut busy, "while :; do :; done"), (&mut idle, "exec sleep 1000")] {
        let (first, rest) = group.split_first_mut().unwrap();
        first.start_in(rest, script);
    }
    let ticker = Ticker::new(Micros::millis(24)).unwrap();
    let (mut quiet, usage) = (0, Cell::new(Micros::ZERO));
    let mut tick = || {
        ticker.wait().unwrap();
        let mut named = false;
        for (id, now) in sensor.tick(timer::now()).usage {
            if id == busy_id {
                usage.set(now.cpu);
            }
            named |= id == idle_id;
        }
        named
    };
    until("the sleeper sleeps for good", || {
        quiet = if tick() { 0 } else { quiet + 1 };
        quiet == 40
    });
    let named = (0..64).filter(|_| tick()).count();
    // The process may have run since the last tick; a tick and a busy machine between them are worth 50 ms. What ran behind a
    // switch that the kernel hid is there with the next round.
    until("the kernel's account is known", || {
        tick();
        let kernel = busy.iter().find_map(Cgroup::try_usage).unwrap();
        let usage = usage.get();
        println!("sensor {} us, kernel {} us", usage.get(), kernel.get());
        assert!(usage <= kernel.saturating_add(Micros(kernel.get() / 100 + 10_000)));
        kernel <= usage.saturating_add(Micros(kernel.get() / 100 + 50_000))
    });
    // Its memory may move once more when a round reads it.
    assert!(named <= 2);
    busy[0].stop();
    idle[0].stop();
}

#[test]
fn what_cannot_be_tracked_is_refused_by_name() {
    let Some(machine) = Machine::find() else { return };
    let Some(mut set) = machine.open() else { return };
    let root = fs::metadata(&machine.root).unwrap().ino();
    assert!(matches!(set.track(root, 0), Err(BpfError::Root { .. })), "the root has inode {root}");
    assert!(matches!(set.track(2, 1 << 20), Err(BpfError::Slot { .. })));
}

#[test]
fn dropping_the_set_leaves_no_program_behind() {
    let Some(machine) = Machine::find() else { return };
    until("earlier programs are gone", || programs() == 0);
    let Some(set) = machine.open() else { return };
    assert_eq!(programs(), 1);
    until("a switch is seen", || set.stats().switches > 0);
    drop(set);
    until("the program is gone", || programs() == 0);
    assert!(!Path::new("/sys/fs/bpf/elbowroom").exists());
}

/// Ours in the kernel; names are cut to 15 bytes there.
fn programs() -> usize {
    libbpf_rs::query::ProgInfoIter::default().filter(|info| info.name == "elbowroom_activ").count()
}

#[test]
fn a_refusal_names_the_step_and_the_cause() {
    let Some(machine) = Machine::find() else { return };
    let hierarchy = machine.hierarchy;
    // Capabilities belong to a thread: only this one gives them up.
    let refusal = thread::spawn(move || {
        let none = rustix::thread::CapabilitySet::empty();
        let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets).unwrap();
        ActiveSet::open(hierarchy).unwrap_err().to_string()
    })
    .join()
    .unwrap();
    println!("{refusal}");
    assert!(refusal.contains("Load") && refusal.contains("not permitted"), "{refusal}");
}
