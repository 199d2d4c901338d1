//! Strategies on hosts made for them: what they plan, what they leave alone, and what they refuse.

use crate::doctor_host::Sim;
use elbowroom_doctor::checks::sizing::{LimitSizing, estimate_need};
use elbowroom_doctor::checks::{CgroupFacts, ControllerVersion, HostFacts};
use elbowroom_doctor::strategies::housekeeping::{
    HousekeepingJob, JobKind, JobLocation, PARENT_CGROUP, RootProcess,
};
use elbowroom_doctor::strategies::pretouch::PretouchBound;
use elbowroom_doctor::strategies::protect::{ProtectError, protect};
use elbowroom_doctor::strategies::size::{LimitAdvice, limit_advice};
use elbowroom_doctor::strategies::{housekeeping, pretouch};
use elbowroom_types::finding::FindingFix;
use elbowroom_types::unit::Bytes;
use proptest::prelude::*;

use ControllerVersion::{V1, V2};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn web(host: &Sim) -> &CgroupFacts {
    host.facts.containers().next().expect("made with one")
}

/// `file's name: from -> to` of each write.
fn writes(fix: &FindingFix) -> Vec<String> {
    let name = |file: &str| file.trim_start_matches("/sys/fs/cgroup/").to_owned();
    fix.writes.iter().map(|w| format!("{}: {} -> {}", name(&w.file), w.from, w.to)).collect()
}

// ---- size ----

/// 40 MiB of a heap, 8 of it shared or the kernel's, 120 of page cache, 30 of which were read more than once.
fn reader(version: ControllerVersion, limit: u64) -> Sim {
    let mut host = Sim::new(version);
    host.limit(limit * MIB);
    host.usage(168 * MIB);
    host.anon(40 * MIB);
    let group = host.facts.groups.iter_mut().find(|group| group.container.is_some()).unwrap();
    let stat = group.after.memory.as_mut().unwrap();
    (stat.file, stat.active_file, stat.inactive_file) = (Bytes(120 * MIB), Bytes(30 * MIB), Bytes(90 * MIB));
    host
}

#[test]
fn cache_that_was_read_once_needs_no_room() {
    for version in [V1, V2] {
        let host = reader(version, 100);
        let size = estimate_need(&host.facts, web(&host));
        assert_eq!((size.anon, size.other), (Bytes(40 * MIB), Bytes(8 * MIB)));
        assert_eq!((size.working_cache, size.idle_cache), (Bytes(30 * MIB), Bytes(90 * MIB)));
        // 78 MiB and a tenth, in whole MiB.
        assert_eq!(size.need, Bytes(86 * MIB));
        assert_eq!(limit_advice(&host.facts, web(&host), &size), LimitAdvice::Enough);
    }
}

#[test]
fn cache_that_comes_back_gets_room_beside_all_that_is_there_and_a_limit_only_grows() {
    for version in [V1, V2] {
        let mut host = reader(version, 170);
        host.refaults(10_240);
        let size = estimate_need(&host.facts, web(&host));
        assert_eq!((size.reread, size.working_cache), (Bytes(40 * MIB), Bytes(160 * MIB)));
        assert_eq!(size.need, Bytes(229 * MIB));
        let LimitAdvice::Raise(fix) = limit_advice(&host.facts, web(&host), &size) else {
            panic!("{version:?}")
        };
        let to = |write: &elbowroom_types::finding::FileWrite| write.to.parse::<u64>().unwrap();
        assert!(fix.writes.iter().any(|write| to(write) == 229 * MIB), "{fix:?}");
        assert!(fix.writes.iter().all(|write| to(write) > write.from.parse().unwrap_or(0)), "{fix:?}");
        // A working set is not learned from more than the limit could lose.
        host.refaults(1 << 30);
        assert_eq!(sized(&host).reread, Bytes(170 * MIB));
        host.available(60 * MIB);
        assert_eq!(limit_advice(&host.facts, web(&host), &sized(&host)), LimitAdvice::Blocked);
    }
}

#[test]
fn where_only_memory_high_is_too_small_that_alone_is_raised() {
    for max in ["max".to_owned(), (4 * GIB).to_string()] {
        let mut host = reader(V2, 170);
        host.set("memory.max", &max);
        host.set("memory.high", &(170 * MIB).to_string());
        host.refaults(10_240);
        let LimitAdvice::Raise(fix) = limit_advice(&host.facts, web(&host), &sized(&host)) else {
            panic!("max {max}")
        };
        assert_eq!(writes(&fix), [format!("docker/c1/memory.high: {} -> {}", 170 * MIB, 229 * MIB)]);
        fix.writes.iter().for_each(|write| host.facts.apply(write));
        assert_eq!(limit_advice(&host.facts, web(&host), &sized(&host)), LimitAdvice::Enough);
    }
}

fn sized(host: &Sim) -> LimitSizing {
    estimate_need(&host.facts, web(host))
}

// ---- protect ----

#[test]
fn on_v1_swappiness_is_zero_only_where_that_cannot_kill() {
    let at = |limit: u64, both: &str, no_swap| {
        let mut host = Sim::new(V1);
        host.limit(limit);
        host.set("memory.memsw.limit_in_bytes", both);
        writes(&protect(&host.facts, web(&host), &[], no_swap).unwrap())
    };
    let to = |n: u64| vec![format!("memory/docker/c1/memory.swappiness: 60 -> {n}")];
    // At its own limit it could swap, and with 0 would be killed.
    assert_eq!(at(GIB, "9223372036854771712", false), to(1));
    assert_eq!(at(GIB, &(2 * GIB).to_string(), false), to(1));
    assert_eq!(at(GIB, &(2 * GIB).to_string(), true), to(0));
    // It cannot swap there anyhow, or has no limit to reach.
    assert_eq!(at(GIB, &GIB.to_string(), false), to(0));
    assert_eq!(at(i64::MAX as u64 & !0xfff, "9223372036854771712", false), to(0));
}

#[test]
fn on_v1_a_limit_around_the_container_counts_and_groups_inside_follow() {
    let mut host = Sim::new(V1);
    host.set("memory.limit_in_bytes", "9223372036854771712");
    host.set_around("memory.limit_in_bytes", "1073741824");
    let below = [("/cg/a", "60"), ("/cg/b", "1"), ("/cg/c", "0")].map(|(f, t)| (f.to_owned(), t.to_owned()));
    let fix = protect(&host.facts, web(&host), &below, false).unwrap();
    assert_eq!(writes(&fix), ["memory/docker/c1/memory.swappiness: 60 -> 1", "/cg/a: 60 -> 1"]);
    assert_eq!(fix.commands[1], "echo 1 > /cg/a");
    host.set("memory.swappiness", "0");
    assert!(protect(&host.facts, web(&host), &[], false).unwrap().writes.is_empty(), "never raised");
}

#[test]
fn on_v2_the_working_set_is_kept_and_what_is_in_swap_has_room_to_come_home() {
    let mut host = Sim::new(V2);
    host.usage(300 * MIB);
    host.cache(100 * MIB);
    host.swap(50 * MIB);
    let fix = protect(&host.facts, web(&host), &[], false).unwrap();
    let low = 250 * MIB;
    assert_eq!(
        writes(&fix),
        [format!("docker/memory.low: 0 -> {low}"), format!("docker/c1/memory.low: 0 -> {low}")]
    );
    fix.writes.iter().for_each(|w| host.facts.apply(w));
    assert!(protect(&host.facts, web(&host), &[], false).unwrap().writes.is_empty());
}

#[test]
fn on_v2_swap_is_forbidden_only_when_asked_and_where_what_is_swapped_fits() {
    let asked = |ill: fn(&mut Sim)| {
        let mut host = Sim::new(V2);
        host.limit(GIB);
        host.usage(500 * MIB);
        ill(&mut host);
        protect(&host.facts, web(&host), &[], true)
            .map(|fix| writes(&fix).last().cloned().unwrap_or_default())
    };
    assert_eq!(asked(|_| ()).unwrap(), "docker/c1/memory.swap.max: max -> 0");
    assert_eq!(asked(|h| h.swap(400 * MIB)).unwrap(), "docker/c1/memory.swap.max: max -> 0");
    assert!(matches!(asked(|h| h.swap(450 * MIB)), Err(ProtectError::DoesNotFit { .. })));
    assert!(matches!(
        asked(|h| {
            h.swap(10 * MIB);
            h.available(11 * MIB);
        }),
        Err(ProtectError::DoesNotFit { .. })
    ));
    // systemd would write its own value back with the unit's next change.
    let mut host = Sim::new(V2);
    host.facts.groups[2].path = "/system.slice/docker-c1.scope".into();
    let fix = protect(&host.facts, web(&host), &[], true).unwrap();
    let command = "systemctl set-property --runtime docker-c1.scope MemorySwapMax=0";
    assert_eq!(fix.commands.last().unwrap(), command);
    // A user who granted swap is not overruled; one who forbade it needs nothing.
    assert!(matches!(asked(|h| h.set("memory.swap.max", "1048576")), Err(ProtectError::SwapGranted { .. })));
    assert!(
        asked(|h| h.set("memory.swap.max", "0"))
            .unwrap()
            .ends_with(&format!("memory.low: 0 -> {}", 500 * MIB))
    );
}

#[test]
fn a_claim_beyond_what_the_host_can_keep_is_refused_with_both_numbers() {
    let mut host = Sim::new(V2);
    host.limit(15 * GIB);
    host.usage(14 * GIB);
    let why = protect(&host.facts, web(&host), &[], false).unwrap_err();
    assert_eq!(why, ProtectError::TooMuch { keep: Bytes::gib(14), others: Bytes::ZERO });
    assert!(why.to_string().contains("14GiB") && why.to_string().contains("80%"), "{why}");
    host.facts.host.versions.clear();
    assert_eq!(protect(&host.facts, web(&host), &[], false), Err(ProtectError::NoController));
}

// ---- housekeeping ----

fn process(pid: i32, name: &str, mib: u64) -> RootProcess {
    RootProcess { pid, started: 1, name: name.into(), held: Bytes::mib(mib) }
}

fn services(version: ControllerVersion) -> Sim {
    let mut host = Sim::new(version);
    for (path, parent) in
        [("/system.slice", 0), ("/system.slice/cron.service", 3), ("/system.slice/docker.service", 3)]
    {
        host.group(path, Some(parent));
        let group = host.facts.groups.last_mut().expect("just made");
        group.after.usage = Some(Bytes::mib(100));
        let stat = group.after.memory.as_mut().expect("made with one");
        (stat.anon, stat.file) = (Bytes::mib(30), Bytes::mib(70));
    }
    host
}

fn names(jobs: &[HousekeepingJob]) -> Vec<&str> {
    jobs.iter().map(|j| j.name.as_str()).collect()
}

fn find<'a>(jobs: &'a [HousekeepingJob], name: &str) -> &'a HousekeepingJob {
    jobs.iter().find(|j| j.name == name).unwrap_or_else(|| panic!("no {name} in {:?}", names(jobs)))
}

#[test]
fn jobs_are_the_root_groups_programs_and_what_nothing_limits() {
    let mut host = services(V2);
    let root = [process(10, "restic", 200), process(11, "sshd", 5), process(12, "sshd", 7)];
    let jobs = housekeeping::jobs(&host.facts, &root);
    // Neither the container, nor the groups around groups.
    assert_eq!(names(&jobs), ["restic", "cron.service", "docker.service", "sshd"]);
    let sshd = find(&jobs, "sshd");
    assert_eq!((sshd.held, sshd.cache, sshd.kind), (Bytes::mib(12), None, JobKind::Remote));
    assert!(matches!(&sshd.place, JobLocation::Root(all) if all.len() == 2));
    assert_eq!(find(&jobs, "cron.service").cache, Some(Bytes::mib(70)));
    assert_eq!(find(&jobs, "docker.service").size, None, "what serves containers has no size");
    // A limit, its own or around it, is a user's decision.
    host.facts.groups[3].files.insert("memory.high".into(), "1073741824".into());
    assert!(housekeeping::jobs(&host.facts, &[]).is_empty());
}

#[test]
fn a_service_gets_its_size_from_systemd_and_on_v1_as_a_soft_limit() {
    for (version, expect, command) in [
        (
            V2,
            "system.slice/cron.service/memory.high: max -> 331350016",
            "systemctl set-property --runtime cron.service MemoryHigh=331350016",
        ),
        (
            V1,
            "memory/system.slice/cron.service/memory.soft_limit_in_bytes: 9223372036854771712 -> 331350016",
            "echo 331350016 > /sys/fs/cgroup/memory/system.slice/cron.service/memory.soft_limit_in_bytes",
        ),
    ] {
        let host = services(version);
        let jobs = housekeeping::jobs(&host.facts, &[]);
        let (fix, placing) = housekeeping::plan(&host.facts, find(&jobs, "cron.service")).unwrap();
        assert_eq!((writes(&fix), placing), (vec![expect.to_owned()], None));
        assert_eq!(fix.commands, [command]);
        assert!(housekeeping::plan(&host.facts, find(&jobs, "docker.service")).is_none());
    }
}

#[test]
fn a_soft_limit_that_a_user_set_stays() {
    let mut host = services(V1);
    host.facts.groups[4].files.insert("memory.soft_limit_in_bytes".into(), "1048576".into());
    let jobs = housekeeping::jobs(&host.facts, &[]);
    assert!(housekeeping::plan(&host.facts, find(&jobs, "cron.service")).is_none());
}

#[test]
fn programs_of_the_root_group_get_a_group_whose_name_is_one_directory() {
    let host = services(V2);
    let jobs = housekeeping::jobs(&host.facts, &[process(10, "../tar", 100)]);
    let (fix, placing) = housekeeping::plan(&host.facts, find(&jobs, "../tar")).unwrap();
    let placing = placing.unwrap();
    assert_eq!(placing.dir, format!("/sys/fs/cgroup/{PARENT_CGROUP}/.._tar"));
    assert_eq!((placing.from.as_str(), placing.file.as_str()), ("/sys/fs/cgroup", "memory.high"));
    assert!(
        fix.writes.is_empty() && fix.commands.last().unwrap().ends_with("/.._tar/cgroup.procs"),
        "{fix:?}"
    );
}

// ---- pretouch ----

const MARKS: Bytes = Bytes::mib(512);

/// 16 GiB: 4 free, 6 of idle cache, 1 of it not written yet, 12 available.
fn idle_host(version: ControllerVersion) -> Sim {
    let mut host = Sim::new(version);
    host.meminfo("Inactive(file)", 6 * GIB);
    host.meminfo("Dirty", GIB);
    host.limit(8 * GIB);
    host
}

fn planned(facts: &HostFacts, asked: Option<u64>) -> (u64, PretouchBound) {
    let web = facts.containers().next().expect("made with one");
    let plan = pretouch::plan(facts, web, asked.map(Bytes::mib), MARKS);
    (plan.size.get() / MIB, plan.bound)
}

#[test]
fn a_plan_is_what_is_promised_unless_something_is_in_the_way() {
    let of = |change: fn(&mut Sim), asked| {
        let mut host = idle_host(V2);
        change(&mut host);
        planned(&host.facts, asked)
    };
    assert_eq!(of(|_| (), None), (8 * 1024 - 64, PretouchBound::Promise));
    assert_eq!(of(|_| (), Some(100)), (100, PretouchBound::Promise));
    // A reservation is a better promise than a limit.
    assert_eq!(of(|h| h.set("memory.low", "1073741824"), None), (960, PretouchBound::Promise));
    assert_eq!(of(|h| h.usage(7 * GIB), Some(4096)), (1024, PretouchBound::Limit));
    assert_eq!(of(|h| h.set_around("memory.high", "268435456"), None), (256, PretouchBound::Limit));
    // 3.5 GiB above the watermarks and 2 GiB of cache that is not dirty.
    assert_eq!(of(|h| h.meminfo("Inactive(file)", 3 * GIB), None), (5632, PretouchBound::Idle));
    // The container's own cache is not to be given for it.
    assert_eq!(
        of(
            |h| {
                h.meminfo("Inactive(file)", 3 * GIB);
                h.cache(GIB)
            },
            None
        ),
        (4608, PretouchBound::Idle)
    );
    // A tenth of 16 GiB stays.
    assert_eq!(of(|h| h.available(3 * GIB), None).1, PretouchBound::Reserve);
    assert_eq!(of(|h| h.available(GIB), None), (0, PretouchBound::Reserve));
}

#[test]
fn donors_are_hosts_jobs_first_then_the_idlest_and_keep_their_reservation() {
    let mut host = idle_host(V2);
    for (path, at, idle) in [("/docker/c2", 1, 700), ("/system.slice", 0, 300), ("/docker/c3", 1, 900)] {
        host.group(path, Some(at));
        let group = host.facts.groups.last_mut().expect("just made");
        group.after.usage = Some(Bytes::mib(1000));
        group.after.memory.as_mut().expect("made with one").inactive_file = Bytes::mib(idle);
    }
    for at in [3, 5] {
        host.contain(at, &format!("c{at}"));
    }
    // c3 keeps 800 MiB of its 1000.
    for at in [1, 5] {
        host.facts.groups[at].files.insert("memory.low".into(), (800 * MIB).to_string());
    }
    let web = host.facts.containers().next().expect("made with one");
    let donors = |mib| {
        let plan = pretouch::plan(&host.facts, web, Some(Bytes::mib(mib)), MARKS);
        let all = plan.donors.iter().map(|d| format!("{} {}", d.cgroup, d.gives)).collect::<Vec<_>>();
        (plan.reclaim.get() / MIB, all)
    };
    // 3.5 GiB are free above the watermarks.
    assert_eq!(donors(3584), (0, vec![]));
    assert_eq!(donors(3684), (100, vec!["/system.slice 100MiB".into()]));
    let all = ["/system.slice 300MiB", "/docker/c2 700MiB", "/docker/c3 200MiB"].map(str::to_owned);
    assert_eq!(donors(6144), (2560, all.to_vec()));
}

#[test]
fn on_v1_no_container_can_be_asked() {
    let mut host = idle_host(V1);
    host.set("memory.soft_limit_in_bytes", &(6 * GIB).to_string());
    let web = host.facts.containers().next().expect("made with one");
    let plan = pretouch::plan(&host.facts, web, None, MARKS);
    assert_eq!(
        (plan.size.get() / MIB, plan.bound, plan.donors),
        (6 * 1024 - 64, PretouchBound::Promise, vec![])
    );
}

proptest! {
    #[test]
    fn a_plan_never_goes_beyond_what_is_promised_free_or_safe(
        asked in prop::option::of(0u64..1 << 36),
        free in 0u64..1 << 34,
        available in 0u64..1 << 34,
        inactive in 0u64..1 << 34,
        dirty in 0u64..1 << 32,
        usage in 0u64..1 << 34,
        limit in 0u64..1 << 34,
        marks in 0u64..1 << 30,
    ) {
        let mut host = Sim::new(V2);
        host.meminfo("MemFree", free);
        host.meminfo("Inactive(file)", inactive);
        host.meminfo("Dirty", dirty);
        host.available(available);
        host.usage(usage);
        host.limit(limit);
        let web = host.facts.containers().next().expect("made with one");
        let plan = pretouch::plan(&host.facts, web, asked.map(Bytes), Bytes(marks));
        prop_assert!(plan.size <= plan.promised);
        prop_assert!(plan.size.get() <= limit.saturating_sub(usage));
        prop_assert!(plan.size.get() <= free.saturating_sub(marks) + inactive.saturating_sub(dirty));
        prop_assert!(plan.size.get() == 0 || available - plan.size.get() >= (16 << 30) / 10);
        prop_assert!(plan.donors.iter().map(|d| d.gives).sum::<Bytes>() <= plan.reclaim);
    }
}
