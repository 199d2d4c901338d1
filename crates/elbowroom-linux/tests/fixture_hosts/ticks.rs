//! What a tick reads, and how often.

use super::{BATCH, HYBRID, UNIFIED, WEB, groups, open};
use elbowroom_linux::activity::{ActivitySource, ActivityTracker};
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::ReclaimCounters;
use elbowroom_types::unit::{Bytes, Micros};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

#[test]
fn the_machine_is_read_from_the_most_precise_file_there_is() {
    let kept = |archive: &str| archive.to_owned();
    let cut = |archive: &str, file: &str| archive.replace(&format!("/{file} --"), "/renamed --");
    let only_v1 = HYBRID.replace(" - cgroup2 ", " - tmpfs ");
    for (archive, source, busy) in [
        (kept(HYBRID), "cpuacct.usage", true),
        (kept(UNIFIED), "cpu.stat", true),
        (cut(&only_v1, "cpuacct.usage"), "/proc/stat", true),
    ] {
        let (_host, mut sensor, _) = open(&archive);
        let tick = sensor.tick(Micros::secs(1));
        assert_eq!(sensor.busy_source(), source);
        assert_eq!(tick.busy > Micros::ZERO, busy);
        assert!(tick.mem_free > Bytes::mib(100));
    }
}

#[test]
fn what_could_be_had_is_read_in_every_tick_where_a_group_has_a_soft_limit_and_else_once_a_second() {
    let vmstat = "-- sys/kernel/mm/lru_gen/enabled --\n0x0007\n-- proc/vmstat --\npswpout 7\nworkingset_refault_file 3\npgscan_kswapd 100\npgscan_anon 40\npgscan_file 90\n\
                  -- proc/pressure/memory --\nsome avg10=0.00 avg60=0.00 avg300=0.00 total=5\n\
                  full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
    let (_host, mut sensor, _) = open(&format!("{UNIFIED}{vmstat}"));
    let mut looks = 0;
    for n in 1..=50 {
        let tick = sensor.tick(Micros::millis(24 * n));
        // Less the cache of the container, all of which is protected.
        assert_eq!(tick.mem_available, Some(Bytes::kib(1_899_732 - 192)));
        looks += u32::from(tick.reclaim.is_some());
        let expect = ReclaimCounters {
            stalled: Some(Micros(5)),
            scanned: 100,
            scanned_for_limits: 30,
            lost: 7,
            refaulted_files: 3,
            refaulted_at_limits: 0,
        };
        assert_eq!(tick.reclaim.unwrap_or(expect), expect);
    }
    assert_eq!(looks, 5, "four times a second");

    let (_host, mut sensor, _) = open(&HYBRID.replace("134217728", "9223372036854771712"));
    let ticks = (1..=100).map(|n| sensor.tick(Micros::millis(24 * n)));
    let read: Vec<bool> = ticks.map(|tick| tick.mem_available.is_some() || tick.reclaim.is_some()).collect();
    assert_eq!(read.iter().filter(|read| **read).count(), 3, "{read:?}");
}

#[test]
fn files_that_come_back_to_a_container_at_its_own_limit_are_told_apart() {
    let pod = "sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod3b7c1d52_9a44_4f0e_8d1b_6f2a90c3e571.slice";
    let container = format!(
        "{pod}/cri-containerd-4f1c2a9be07d53c8a6e1d4b70935fa8210c7be694d3528af71e60b9c8d2f5a34.scope"
    );
    let vmstat = "-- sys/kernel/mm/lru_gen/enabled --\n0x0007\n-- proc/vmstat --\n";
    let told = |usage: &str, pod_usage: &str, pages: u64| {
        let text = UNIFIED.replace("\n2527232\n", usage).replace("\n2539520\n", pod_usage);
        let (host, mut sensor, _) = open(&format!("{text}{vmstat}"));
        let came_back = |file: &str, pages: u64| {
            host.write(file, &format!("workingset_refault_file {pages}\n")).unwrap();
        };
        [1, 2, 3, 4].map(|n| {
            came_back("proc/vmstat", n * pages);
            came_back(&format!("{container}/memory.stat"), n * 60);
            came_back(&format!("{pod}/memory.stat"), n * 61);
            sensor.tick(Micros::millis(250 * n)).reclaim.unwrap().refaulted_at_limits
        })
    };
    let (at_limit, below, pod_at_limit) = ("\n536870000\n", "\n300000000\n", "\n629140000\n");
    // The first look knows no usage, the second nothing from before.
    assert_eq!(told(at_limit, below, 65), [0, 0, 60, 120]);
    assert_eq!(told(below, below, 65), [0; 4]);
    assert_eq!(told(at_limit, pod_at_limit, 65), [0, 0, 61, 122], "the outermost limit counts for all below");
    assert_eq!(told(at_limit, below, 64), [0; 4], "few: nothing is read");
}

#[test]
fn files_that_come_back_at_a_limit_are_told_apart_on_cgroup_v1() {
    let (usage, limit) = ("memory.usage_in_bytes", "memory.limit_in_bytes");
    let text = HYBRID.replace(&format!("{WEB}/{usage} --\n323584"), &format!("{WEB}/{usage} --\n536870000"));
    assert!(text.contains(&format!("{WEB}/{limit} --\n536870912")) && text != HYBRID);
    let text = text.replace("\n134217728\n", "\n9223372036854771712\n");
    let (host, mut sensor, _) = open(&format!("{text}-- sys/kernel/mm/lru_gen/enabled --\n0x0007\n"));
    assert!((1..=10).all(|n| sensor.tick(Micros::millis(24 * n)).reclaim.is_none()), "no soft limit yet");
    host.write(&format!("sys/fs/cgroup/memory/{WEB}/memory.soft_limit_in_bytes"), "134217728\n").unwrap();
    sensor.changes();
    let told = [1, 2, 3, 4].map(|n| {
        host.write("proc/vmstat", &format!("workingset_refault_file {}\n", n * 65)).unwrap();
        let stat = format!("workingset_refault_file 7\ntotal_workingset_refault_file {}\n", n * 60);
        host.write(&format!("sys/fs/cgroup/memory/{WEB}/memory.stat"), &stat).unwrap();
        sensor.tick(Micros::millis(250 * n)).reclaim.unwrap().refaulted_at_limits
    });
    assert_eq!(
        told,
        [0, 60, 120, 180],
        "with what is below it, but not what came back before the first look"
    );
}

/// What came back at limits in each of so many looks: to sixty groups of `usage` at a limit of `limit`, one page each, and to a later one
/// of 64 MiB, 1,000 pages.
fn told_beside_sixty(usage: Bytes, limit: Bytes, looks: u64) -> Vec<u64> {
    let (host, mut sensor, _) = open(&format!("{UNIFIED}-- sys/kernel/mm/lru_gen/enabled --\n0x0007\n"));
    let write = |group: &str, file: &str, number: u64| {
        host.write(&format!("sys/fs/cgroup/batch/{group}/{file}"), &format!("{number}\n")).unwrap();
    };
    let add = |group: &str, usage: Bytes, limit: Bytes| {
        write(group, "memory.current", usage.get());
        write(group, "memory.max", limit.get());
    };
    let decoys: Vec<String> = (0..60).map(|n| format!("decoy-{n}")).collect();
    decoys.iter().for_each(|group| add(group, usage, limit));
    sensor.changes();
    add("reads", Bytes::mib(64), Bytes::mib(64));
    sensor.changes();
    let mut last = 0;
    let look = |n| {
        let stat = |pages: u64| format!("workingset_refault_file {pages}\n");
        host.write("proc/vmstat", &stat(n * 1_100)).unwrap();
        for (group, pages) in decoys.iter().map(|group| (group.as_str(), n)).chain([("reads", n * 1_000)]) {
            host.write(&format!("sys/fs/cgroup/batch/{group}/memory.stat"), &stat(pages)).unwrap();
        }
        let now = sensor.tick(Micros::millis(250 * n)).reclaim.unwrap().refaulted_at_limits;
        now - std::mem::replace(&mut last, now)
    };
    (1..=looks).map(look).collect()
}

#[test]
fn of_many_groups_at_their_limits_those_are_read_to_which_most_comes_back() {
    let told = told_beside_sixty(Bytes::mib(64), Bytes::mib(64), 40);
    assert!(told[8..].iter().all(|pages| (1_000..1_040).contains(pages)), "within two seconds: {told:?}");
    assert!(told.iter().all(|pages| *pages <= 1_060), "never more than came back: {told:?}");
}

#[test]
fn a_group_with_hardly_any_memory_is_not_at_its_limit() {
    for usage in [0, 3] {
        let told = told_beside_sixty(Bytes::mib(usage), Bytes::mib(usage.max(1)), 4);
        assert_eq!(told, [0, 0, 1_000, 1_000], "{usage} MiB each");
    }
}

#[test]
fn busy_time_per_cpu_is_read_where_a_container_is_kept_to_some() {
    let (host, mut sensor, _) = open(HYBRID);
    let tick = sensor.tick(Micros::secs(1));
    assert_eq!(tick.busy_per_cpu.len(), 2);
    assert_eq!(tick.busy_per_cpu.into_iter().sum::<Micros>(), tick.busy);
    host.write(&format!("sys/fs/cgroup/cpuset/{BATCH}/cpuset.effective_cpus"), "0-1\n").unwrap();
    sensor.changes();
    assert_eq!(sensor.tick(Micros::secs(2)).busy_per_cpu, []);
}

#[test]
fn an_idle_group_is_read_ever_more_seldom_and_an_active_one_every_tick() {
    let (host, mut sensor, events) = open(HYBRID);
    let ids = groups(&events);
    let (web, batch) = (ids[&format!("/{WEB}")].id, ids[&format!("/{BATCH}")].id);
    let usage = |hierarchy_path: &str, ns: u64| {
        host.write(&format!("sys/fs/cgroup/cpuacct/{hierarchy_path}/cpuacct.usage"), &format!("{ns}\n"))
            .unwrap();
    };
    let (mut named, mut reads) = (HashMap::<CgroupId, u32>::new(), 0);
    for n in 1..=100u64 {
        usage(WEB, 1_000_000_000 + n * 10_000_000);
        usage("docker", 1_000_000_000 + n * 10_000_000);
        let tick = sensor.tick(Micros::millis(24 * n));
        tick.usage.iter().for_each(|(id, _)| *named.entry(*id).or_default() += 1);
        reads += sensor.cost().groups;
    }
    assert_eq!(named[&web], 100);
    assert_eq!(named[&batch], 1, "the first time, and it has not changed since");
    // docker and web every tick, batch at 0, 24, 72, 168, ... ms.
    assert!((200..215).contains(&reads), "{reads}");

    // batch wakes while it backs off: docker's time is not explained by web's.
    usage(BATCH, 7_000_000);
    usage("docker", 3_000_000_000);
    let tick = sensor.tick(Micros::millis(24 * 101));
    assert!(tick.usage.iter().any(|(id, usage)| *id == batch && usage.cpu == Micros::millis(7)));
    assert_eq!(sensor.cost().probes, 1);
}

#[test]
fn memory_of_a_busy_group_is_read_every_tick_while_it_moves_and_once_in_eight_while_it_does_not() {
    let without_soft_limit = HYBRID.replace("134217728", "9223372036854771712");
    let (host, mut sensor, events) = open(&without_soft_limit);
    let web = groups(&events)[&format!("/{WEB}")].id;
    let mut n = 0;
    let mut tick = |memory: Bytes| {
        n += 1;
        for group in [WEB, "docker"] {
            let path = format!("sys/fs/cgroup/cpuacct/{group}/cpuacct.usage");
            host.write(&path, &format!("{}\n", 1_000_000_000 + n * 10_000_000)).unwrap();
        }
        host.write(
            &format!("sys/fs/cgroup/memory/{WEB}/memory.usage_in_bytes"),
            &format!("{}\n", memory.get()),
        )
        .unwrap();
        let usage = sensor.tick(Micros::millis(24 * n)).usage;
        let (_, usage) = usage.into_iter().find(|(id, _)| *id == web).expect("it used CPU time");
        (usage.memory, sensor.cost().syscalls)
    };
    let still = Bytes::mib(100);
    for _ in 0..20 {
        tick(still);
    }
    let rested: u64 = (0..16).map(|_| tick(still).1).sum();

    let ticks = (1..100).find(|_| tick(Bytes::mib(200)).0 == Bytes::mib(200)).unwrap();
    assert!((2..=8).contains(&ticks), "seen after {ticks} ticks");
    let mut moving = 0;
    for mib in (0..16).map(|i| 210 + 10 * i) {
        let (seen, calls) = tick(Bytes::mib(mib));
        assert_eq!(seen, Bytes::mib(mib));
        moving += calls;
    }
    // Two reads of sixteen are left; the idle neighbour is read now and then, and what the machine could give once a second.
    assert!((12..=18).contains(&(moving - rested)), "{moving} against {rested}");
}

/// Says what a test tells it to say.
#[derive(Debug, Default, Clone)]
struct Said(Arc<Mutex<SaidState>>);

#[derive(Debug, Default)]
struct SaidState {
    tracked: HashMap<u64, u32>,
    ran: Vec<(u32, Micros)>,
}

impl ActivityTracker for Said {
    fn track(&mut self, inode: u64, slot: u32) -> bool {
        self.0.lock().unwrap().tracked.insert(inode, slot);
        true
    }

    fn untrack(&mut self, inode: u64) {
        self.0.lock().unwrap().tracked.remove(&inode);
    }

    fn drain_active(&mut self, each: &mut dyn FnMut(u32, Micros)) {
        self.0.lock().unwrap().ran.drain(..).for_each(|(slot, total)| each(slot, total));
    }
}

#[test]
fn an_active_tier_adds_what_it_saw_up_to_the_top_without_reading_cpu_files() {
    use std::os::unix::fs::MetadataExt;
    let (host, mut sensor, events) = open(HYBRID);
    let said = Said::default();
    sensor.set_source(ActivitySource::Tracked(Box::new(said.clone())));
    let inode =
        |path: &str| std::fs::metadata(host.path().join("sys/fs/cgroup/cpu").join(path)).unwrap().ino();
    let ids = groups(&events);
    let (web, docker) = (ids[&format!("/{WEB}")].id, ids["/docker"].id);
    let first: HashMap<_, _> = sensor.tick(Micros::secs(1)).usage.into_iter().collect();
    assert_eq!(first.len(), 3, "everything is read once");

    let slot = said.0.lock().unwrap().tracked[&inode(WEB)];
    for (n, total) in [(2, 5), (3, 12)] {
        said.0.lock().unwrap().ran = vec![(slot, Micros::millis(total))];
        let tick: HashMap<_, _> = sensor.tick(Micros::millis(1_000 + 24 * n)).usage.into_iter().collect();
        assert_eq!(tick.len(), 2, "web and what is above it");
        for id in [web, docker] {
            assert_eq!(tick[&id].cpu.saturating_sub(first[&id].cpu), Micros::millis(total));
        }
    }
    assert_eq!(sensor.tick(Micros::millis(1_100)).usage, [], "no group ran");

    for hierarchy in ["cpu", "cpuacct", "memory", "cpuset"] {
        host.remove(&format!("sys/fs/cgroup/{hierarchy}/{WEB}")).unwrap();
    }
    sensor.changes();
    assert!(!said.0.lock().unwrap().tracked.values().any(|s| *s == slot), "forgotten with its group");
}

#[test]
fn in_an_active_tier_the_kernels_own_account_is_read_of_groups_that_ran_and_of_no_other() {
    use std::os::unix::fs::MetadataExt;
    let (host, mut sensor, events) = open(HYBRID);
    let said = Said::default();
    sensor.set_source(ActivitySource::Tracked(Box::new(said.clone())));
    let inode = std::fs::metadata(host.path().join("sys/fs/cgroup/cpu").join(WEB)).unwrap().ino();
    let (web, docker) = (groups(&events)[&format!("/{WEB}")].id, groups(&events)["/docker"].id);
    sensor.tick(Micros::secs(1));
    let slot = said.0.lock().unwrap().tracked[&inode];
    for group in [WEB, "docker"] {
        host.write(&format!("sys/fs/cgroup/cpuacct/{group}/cpuacct.usage"), "9000000000000\n").unwrap();
    }
    // Two rounds are over after 128 periods.
    let mut cpu_of = |ran: bool| {
        let mut last = HashMap::new();
        for n in 0..128 {
            if ran && n == 0 {
                said.0.lock().unwrap().ran = vec![(slot, Micros::millis(1))];
            }
            last.extend(sensor.tick(Micros::millis(2_000 + 24 * n + if ran { 10_000 } else { 0 })).usage);
        }
        [web, docker].map(|id| last.get(&id).map(|usage| usage.cpu))
    };
    assert_eq!(cpu_of(false), [None, None], "no group ran, and memory did not move");
    assert_eq!(cpu_of(true), [Some(Micros::secs(9_000)); 2], "what is above it, too");
}
