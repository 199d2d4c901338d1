//! Limits that are reached, and what happens then.

use super::facts::{CgroupFacts, ControllerVersion, HierarchyController, HostFacts};
use super::fixes::{cgroup_fix, manual_fix, raise_limit_or_ask, with_limit_fix, write_fix};
use crate::checks::DoctorCheck;
use crate::checks::measures::{hard_limit_hits, has_most_in, own_hits, tightest_own_limit, whole_mib};
use elbowroom_types::finding::{DoctorFinding, Severity};
use elbowroom_types::unit::{Bytes, Percent, counted};

fn a_quarter_more(limit: Bytes) -> Bytes {
    whole_mib(limit.saturating_add(Bytes(limit.get() / 4)))
}

/// Whether it is near a limit of its own. v2 counts in every group around as well what happens at a limit further below.
fn is_near(group: &CgroupFacts, limit: Bytes) -> bool {
    group.usage() >= Bytes(Percent::whole(90).of(limit.get()))
}

fn percent(hundredths: u32) -> String {
    format!("{}.{:02}%", hundredths / 100, hundredths % 100)
}

/// Stopped at `memory.high`.
pub(super) const HIGH: DoctorCheck = DoctorCheck {
    id: "high-throttles",
    pitfall: "memory.high puts processes to sleep",
    reads_v1: "",
    reads_v2: "memory.events high and memory.high up to the root, memory.pressure full avg10",
    threshold: "more than 10 events per second, use above 90 % of memory.high, its own or that of a cgroup around it, and all tasks in \
                it stopped for memory more than 5 % of the last 10 s",
    reference: "Documentation/admin-guide/cgroup-v2.rst, memory.high; KEP-2570 on livelock before Linux 5.9",
    run: high,
};

fn high(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .containers()
        .filter_map(|g| {
            let full = g.after.pressure.as_ref()?[2].full.avg10;
            // Where it is the agent's, that knows what for.
            let mut not_ours = facts.self_and_ancestors(g).take_while(|at| !at.is_leased("memory.high"));
            not_ours.find_map(|at| held_up_at(facts, g, at, full))
        })
        .collect()
}

/// How `memory.high` of `at`, which is `group` or around it, stops it.
fn held_up_at(facts: &HostFacts, group: &CgroupFacts, at: &CgroupFacts, full: u32) -> Option<DoctorFinding> {
    let limit = at.limit("memory.high")?.value()?;
    // What happens at limits of cgroups inside the container is the container's.
    let own = (at.path == group.path).then(|| at.event_counts("high").map_or(0, |(now, _)| now));
    let rate = facts.per_second(0, own.unwrap_or_else(|| own_hits(facts, at, "high")));
    (rate > 10.0 && full > 500 && is_near(at, limit)).then(|| {
        // A hard limit, its own or one around it, holds it all the same.
        let around = facts.ancestors(at).filter_map(|around| Some(tightest_own_limit(around)?.1));
        let to = at.hard_limit().into_iter().chain(around).fold(a_quarter_more(limit), Bytes::min);
        let whose = match at.path == group.path {
            true => format!("({limit}), not at its limit"),
            false => format!("of {} around it ({limit})", at.path),
        };
        let found = DoctorFinding::new(
            Severity::Warning,
            format!("It is held up at memory.high {whose}: all of it waits {} of the time.", percent(full)),
        )
        .for_cgroup(group.container_name(), &group.path)
        .with_evidence(at.file(HierarchyController::Memory, "memory.high"), limit)
        .with_evidence(at.file(HierarchyController::Memory, "memory.events high"), format!("+{rate:.0}/s"))
        .with_evidence(group.file(HierarchyController::Unified, "memory.pressure full avg10"), percent(full));
        let fix = (to > limit).then(|| cgroup_fix(at, HierarchyController::Memory, "memory.high", to.get()));
        with_limit_fix(found, at, fix.flatten())
    })
}

/// At its limit, reclaiming.
pub(super) const AT_LIMIT: DoctorCheck = DoctorCheck {
    id: "at-memory-limit",
    pitfall: "at the limit, with what cannot be dropped",
    reads_v1: "memory.failcnt, memory.limit_in_bytes, memory.stat; memory.pressure of the unified hierarchy",
    reads_v2: "memory.events max, memory.max, memory.stat, memory.pressure",
    threshold: "its limit, or that of a cgroup around it, hit more than once per second, use above 90 % of it, less than 10 % of it page \
                cache, dentries and inodes; waiting for memory more than 1 % of the last 10 s where pressure is known",
    reference: "Documentation/admin-guide/cgroup-v2.rst, memory.events",
    run: at_limit,
};

fn at_limit(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .containers()
        .filter_map(|g| {
            if g.after.pressure.as_ref().is_some_and(|p| p[2].some.avg10 < 100) {
                return None;
            }
            // Where no file says which container waits, a limit around many is that of the one with most.
            let is_its = |at: &&CgroupFacts| {
                g.after.pressure.is_some() || has_most_in(facts, g, at, |g| g.usage().get())
            };
            facts.self_and_ancestors(g).filter(is_its).find_map(|at| full_at(facts, g, at))
        })
        .collect()
}

/// How the limit of `at`, which is `group` or around it, is full.
fn full_at(facts: &HostFacts, group: &CgroupFacts, at: &CgroupFacts) -> Option<DoctorFinding> {
    let limit = at.hard_limit()?;
    let (counter, hits) = match at.path == group.path {
        true => hard_limit_hits(facts, group),
        false => (at, own_hits(facts, at, "max")),
    };
    let rate = facts.per_second(0, hits);
    // Page cache grows to any limit and gives way at once, and so do dentries and inodes: that is no trouble.
    let stat = at.stat();
    let gives: Bytes = [stat.inactive_file, stat.active_file, stat.slab_reclaimable].into_iter().sum();
    if rate < 1.0 || !is_near(at, limit) || gives > Bytes(limit.get() / 10) {
        return None;
    }
    let sentence = match at.path == group.path {
        true => format!(
            "It is at its limit of {limit} with hardly anything to give: the next step is an OOM kill."
        ),
        false => format!(
            "The limit of {limit} of {} around it is reached, with hardly anything to give: the next step is an OOM kill, here or of \
             a neighbour.",
            at.path
        ),
    };
    let hits = counter.file(HierarchyController::Memory, counter.limit_hits_file());
    let found = DoctorFinding::new(Severity::Warning, sentence)
        .for_cgroup(group.container_name(), &group.path)
        .with_evidence(at.file(HierarchyController::Memory, at.hard_limit_file()), limit)
        .with_evidence(hits, format!("+{rate:.0}/s"))
        .with_evidence(at.file(HierarchyController::Memory, "memory.stat file"), stat.file);
    Some(with_limit_fix(found, at, raise_limit_or_ask(facts, at, a_quarter_more(limit))))
}

/// Killed for its limit.
pub(super) const OOM_KILLED: DoctorCheck = DoctorCheck {
    id: "oom-killed",
    pitfall: "processes were killed at a limit",
    reads_v1: "memory.oom_control oom_kill, memory.limit_in_bytes, memory.max_usage_in_bytes",
    reads_v2: "memory.events (oom_kill, oom), memory.max, memory.peak",
    threshold: "any kill since the container started; critical between the looks",
    reference: "Documentation/admin-guide/cgroup-v2.rst, memory.events oom_kill",
    run: oom_killed,
};

fn oom_killed(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .containers()
        .filter_map(|g| {
            let (now, ever) = g.event_counts("oom_kill").filter(|(_, ever)| *ever > 0)?;
            let file = if g.hard_limit_file() == "memory.max" { "memory.events oom_kill" } else { "memory.oom_control oom_kill" };
            let mut found = DoctorFinding::new(
                if now > 0 { Severity::Critical } else { Severity::Warning },
                match now {
                    0 => format!("The kernel killed {ever} of its processes for memory since it started."),
                    _ => format!("The kernel is killing its processes for memory: {now} between the looks, {ever} since it started."),
                },
            )
            .for_cgroup(g.container_name(), &g.path)
            .with_evidence(g.file(HierarchyController::Memory, file), ever);
            // v2 counts when a limit of its own, or one below it, was why. A pod's limit is full before that of its only container.
            let pods = facts.ancestors(g).next().filter(|_| g.container.as_ref().is_some_and(|container| container.pod.is_some()));
            let is_own = std::iter::once(g).chain(pods).any(|g| g.event_counts("oom").is_none_or(|(_, ever)| ever > 0));
            let Some(limit) = g.hard_limit().filter(|_| is_own) else {
                let full = facts.ancestors(g).find_map(|around| {
                    let limit = around.hard_limit().filter(|_| around.event_counts("oom").is_some_and(|(_, ever)| ever > 0))?;
                    Some(format!("It was at no limit of its own: that of {} around it, {limit}, may have been full.", around.path))
                });
                let advice = full.unwrap_or_else(|| "It was at no limit of its own: one around it, or the host, was full.".into());
                return Some(found.with_advice(advice));
            };
            found = found.with_evidence(g.file(HierarchyController::Memory, g.hard_limit_file()), limit);
            Some(found.with_fix(raise_limit_or_ask(facts, g, a_quarter_more(limit))))
        })
        .collect()
}

/// Kills on the host.
pub(super) const HOST_OOM: DoctorCheck = DoctorCheck {
    id: "host-out-of-memory",
    pitfall: "processes were killed because the host had no memory",
    reads_v1: "/proc/vmstat oom_kill less memory.oom_control oom_kill of all groups",
    reads_v2: "/proc/vmstat oom_kill; memory.events (oom_kill, oom) of the groups below the root",
    threshold: "v2: kills between the looks in a group where no limit was reached (oom), which are the host's; else, and on v1, \
                a warning of kills that no group tells of",
    reference: "Documentation/admin-guide/cgroup-v2.rst, memory.events oom and oom_kill",
    run: host_oom,
};

fn host_oom(facts: &HostFacts) -> Vec<DoctorFinding> {
    let Some((before, after)) = facts.host.vmstat("oom_kill") else { return Vec::new() };
    let all = after.saturating_sub(before);
    let grown = |g: &CgroupFacts, key: &str| g.event_counts(key).map(|(now, _)| now);
    let kills = |g: &CgroupFacts| grown(g, "oom_kill").unwrap_or(0);
    // v2 counts in every group around as well, also what happened in groups that are gone. `oom_kill` is any kill; `oom` comes
    // before it where a limit was reached.
    let (inside, by_host): (u64, u64) = match facts.version(HierarchyController::Memory) {
        Some(ControllerVersion::V2) => {
            let tops: Vec<&CgroupFacts> =
                facts.root().into_iter().flat_map(|root| facts.children(root)).collect();
            let unlimited = tops.iter().filter(|g| grown(g, "oom") == Some(0));
            (tops.iter().map(|g| kills(g)).sum(), unlimited.map(|g| kills(g)).sum())
        }
        _ => (facts.groups.iter().filter(|g| g.parent.is_some()).map(kills).sum(), 0),
    };
    let untold = all.saturating_sub(inside);
    let (severity, sentence) = match (by_host, untold) {
        (0, 0) => return Vec::new(),
        (0, _) => (
            Severity::Warning,
            format!(
                "Killed for memory between the looks: {}, by the host itself or at the limit of a cgroup that is new, gone, or \
                 inside a container.",
                counted(untold, "process")
            ),
        ),
        _ => (
            Severity::Critical,
            format!(
                "The host itself is out of memory: it killed {} between the looks.",
                counted(by_host, "process")
            ),
        ),
    };
    vec![
        DoctorFinding::new(severity, sentence)
            .with_evidence("/proc/vmstat oom_kill", format!("+{all}"))
            .with_evidence(facts.host.available_file(), facts.host.mem_available())
            .with_fix(manual_fix(&["dmesg --ctime | grep -i 'out of memory'"]))
            .with_advice(
                "Where it was the host, limits promise more than there is: see memory-not-reserved.",
            ),
    ]
}

/// One of several processes killed, the rest limps on.
pub(super) const OOM_GROUP: DoctorCheck = DoctorCheck {
    id: "oom-kills-parts",
    pitfall: "the OOM killer takes a part of a container",
    reads_v1: "",
    reads_v2: "memory.oom.group, memory.events oom_kill, pids.current",
    threshold: "a container with kills since its start, several processes, and memory.oom.group 0",
    reference: "Documentation/admin-guide/cgroup-v2.rst, memory.oom.group",
    run: oom_group,
};

fn oom_group(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .containers()
        .filter_map(|g| {
            let killed = g.event_counts("oom_kill").is_some_and(|(_, ever)| ever > 0);
            let several = g.number("pids.current").is_some_and(|n| n > 1);
            (killed && several && g.text("memory.oom.group") == Some("0")).then(|| {
                DoctorFinding::new(
                    Severity::Info,
                    "A kill for memory takes one of its processes and leaves the others, which may not notice.",
                )
                .for_cgroup(g.container_name(), &g.path)
                .with_evidence(g.file(HierarchyController::Memory, "memory.oom.group"), 0)
                .with_evidence(g.file(HierarchyController::Memory, "memory.events oom_kill"), g.event_counts("oom_kill").map_or(0, |e| e.1))
                .with_fix(cgroup_fix(g, HierarchyController::Memory, "memory.oom.group", 1))
                .with_advice("Only where nothing inside restarts what was killed.")
            })
        })
        .collect()
}

/// Tasks that hang instead of dying.
pub(super) const OOM_DISABLED: DoctorCheck = DoctorCheck {
    id: "oom-killer-off",
    pitfall: "the OOM killer is off, so a full container stands still",
    reads_v1: "memory.oom_control (oom_kill_disable, under_oom)",
    reads_v2: "",
    threshold: "oom_kill_disable is 1; critical when under_oom is 1 too",
    reference: "Documentation/admin-guide/cgroup-v1/memory.rst, 10. OOM Control",
    run: oom_disabled,
};

fn oom_disabled(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .containers()
        .filter(|g| g.text("oom_kill_disable") == Some("1"))
        .map(|g| {
            let stuck = g.text("under_oom") == Some("1");
            let file = g.file(HierarchyController::Memory, "memory.oom_control");
            DoctorFinding::new(
                if stuck { Severity::Critical } else { Severity::Warning },
                if stuck {
                    "It is out of memory with its OOM killer off: its processes hang, and so do programs that wait for them."
                } else {
                    "Its OOM killer is off: when it reaches its limit its processes hang instead of ending."
                },
            )
            .for_cgroup(g.container_name(), &g.path)
            .with_evidence(format!("{file} oom_kill_disable"), 1)
            .with_evidence(format!("{file} under_oom"), u8::from(stuck))
            .with_fix(write_fix("0", &file))
        })
        .collect()
}

/// Files in memory count.
pub(super) const SHMEM: DoctorCheck = DoctorCheck {
    id: "tmpfs-fills-limit",
    pitfall: "files in memory count as memory",
    reads_v1: "memory.stat total_shmem and memory.limit_in_bytes up to the root",
    reads_v2: "memory.stat shmem and memory.max up to the root",
    threshold: "use above 80 % of the limit, its own or that of a cgroup around it, and more than 30 % of the limit in tmpfs or shared memory",
    reference: "Documentation/filesystems/tmpfs.rst",
    run: shmem,
};

fn shmem(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .containers()
        .filter_map(|g| facts.self_and_ancestors(g).find_map(|at| shmem_fills(facts, g, at)))
        .collect()
}

/// How files in memory fill the limit of `at`, which is `group` or around it. A volume in memory outlives the containers of its pod,
/// and what one that is gone wrote there is charged to the pod.
fn shmem_fills(facts: &HostFacts, group: &CgroupFacts, at: &CgroupFacts) -> Option<DoctorFinding> {
    let (limit, shmem) = (at.hard_limit()?, at.stat().shmem);
    let full = at.usage() > Bytes(Percent::whole(80).of(limit.get()));
    let whose = match at.path == group.path {
        true => format!("its limit of {limit}"),
        false => format!("the limit of {limit} of {} around it", at.path),
    };
    let is_told = || has_most_in(facts, group, at, |g| g.stat().shmem.get());
    (full && shmem > Bytes(Percent::whole(30).of(limit.get())) && is_told()).then(|| {
        let found = DoctorFinding::new(
            Severity::Warning,
            format!(
                "{shmem} of {whose} are files in memory (/dev/shm, /tmp on tmpfs): only deleting frees them."
            ),
        )
        .for_cgroup(group.container_name(), &group.path)
        .with_evidence(at.file(HierarchyController::Memory, "memory.stat shmem"), shmem)
        .with_evidence(at.file(HierarchyController::Memory, at.hard_limit_file()), limit);
        with_limit_fix(found, at, raise_limit_or_ask(facts, at, a_quarter_more(limit)))
    })
}

/// Memory of the kernel's own.
pub(super) const KERNEL_MEMORY: DoctorCheck = DoctorCheck {
    id: "kernel-memory",
    pitfall: "kernel memory fills the limit",
    reads_v1: "memory.kmem.usage_in_bytes, memory.limit_in_bytes",
    reads_v2: "memory.stat (slab_unreclaimable, sock, percpu), memory.max",
    threshold: "use above 80 % of the limit, and more than 30 % of the limit in memory of the kernel that it cannot give back",
    reference: "Documentation/admin-guide/cgroup-v2.rst, memory.stat",
    run: kernel_memory,
};

fn kernel_memory(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .containers()
        .filter_map(|g| {
            let limit = g.hard_limit()?;
            let more = |key: &str| Bytes(g.after.more.get(key).copied().unwrap_or(0));
            let (file, kernel) = match g.number("memory.kmem.usage_in_bytes") {
                Some(n) => ("memory.kmem.usage_in_bytes", Bytes(n)),
                None => {
                    let sum = [g.stat().slab_unreclaimable, more("sock"), more("percpu")].into_iter().sum();
                    ("memory.stat slab_unreclaimable+sock+percpu", sum)
                }
            };
            let full = g.usage() > Bytes(Percent::whole(80).of(limit.get()));
            (full && kernel > Bytes(Percent::whole(30).of(limit.get()))).then(|| {
                DoctorFinding::new(
                    Severity::Warning,
                    format!("The kernel holds {kernel} for it (sockets, file handles, dentries), {limit} is its limit."),
                )
                .for_cgroup(g.container_name(), &g.path)
                .with_evidence(g.file(HierarchyController::Memory, file), kernel)
                .with_evidence(g.file(HierarchyController::Memory, g.hard_limit_file()), limit)
                .with_fix(raise_limit_or_ask(facts, g, a_quarter_more(limit)))
            })
        })
        .collect()
}

/// A heap that its limit cannot hold.
pub(super) const HEAP: DoctorCheck = DoctorCheck {
    id: "heap-over-limit",
    pitfall: "a runtime does not see the limit",
    reads_v1: "/proc/PID/cmdline (-Xmx, --max-old-space-size), memory.limit_in_bytes",
    reads_v2: "/proc/PID/cmdline (-Xmx, --max-old-space-size), memory.max up to the root",
    threshold: "a heap that may grow beyond 95 % of the tightest limit around it, or of the machine's memory where that is less",
    reference: "JDK-8146115; docs/papers/memory-pitfalls.md",
    run: heap,
};

fn heap(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .containers()
        .flat_map(|g| {
            let own = facts.self_and_ancestors(g);
            let tightest = own.filter_map(|a| Some((a, a.hard_limit()?))).min_by_key(|(_, hard)| *hard);
            g.heaps.iter().filter_map(move |heap| {
                let (at, limit) = tightest?;
                let machine = facts.host.mem_total();
                let (limit, file, whose) = match limit > machine && machine > Bytes::ZERO {
                    true => (machine, "/proc/meminfo MemTotal".to_owned(), "a machine"),
                    false => (limit, at.file(HierarchyController::Memory, at.hard_limit_file()), "a limit"),
                };
                (heap.size > Bytes(Percent::whole(95).of(limit.get()))).then(|| {
                    DoctorFinding::new(
                        Severity::Warning,
                        format!("{} lets its heap grow to {} within {whose} of {limit}: it will be killed, not collected.", heap.argument, heap.size),
                    )
                    .for_cgroup(g.container_name(), &g.path)
                    .with_evidence(format!("/proc/{}/cmdline", heap.pid), &heap.argument)
                    .with_evidence(file, limit)
                    .with_fix(raise_limit_or_ask(facts, g, a_quarter_more(heap.size)))
                    .with_advice("Or no size at all: with a view of Elbowroom, or -XX:MaxRAMPercentage, it follows the limit.")
                })
            })
        })
        .collect()
}

/// A JVM that does not know its container.
pub(super) const JVM_MISSES_CONTAINER: DoctorCheck = DoctorCheck {
    id: "jvm-misses-container",
    pitfall: "a runtime does not see the limit",
    reads_v1: "",
    reads_v2: "/proc/cgroups memory, /proc/PID/comm, /proc/PID/mountinfo, memory.max up to the root",
    threshold: "a program named java below a limit, on a kernel that does not list memory in /proc/cgroups, without a view of that file",
    reference: "JDK-8349988",
    run: jvm_misses_container,
};

fn jvm_misses_container(facts: &HostFacts) -> Vec<DoctorFinding> {
    let is_v2 = facts.version(HierarchyController::Memory) == Some(ControllerVersion::V2);
    if !is_v2 || facts.host.setting("/proc/cgroups memory").is_some() {
        return Vec::new();
    }
    facts
        .containers()
        .filter_map(|g| {
            let pid = g.jvms_without_view.first()?;
            let own = facts.self_and_ancestors(g);
            let (at, limit) = own.filter_map(|a| Some((a, a.hard_limit()?))).min_by_key(|(_, hard)| *hard)?;
            let finding = DoctorFinding::new(
                Severity::Info,
                "A JVM before JDK 25 sees the machine's memory and CPUs here: this kernel does not list the controllers by which \
                 it knows a container.",
            );
            Some(
                finding
                    .for_cgroup(g.container_name(), &g.path)
                    .with_evidence("/proc/cgroups memory", "not listed")
                    .with_evidence(format!("/proc/{pid}/comm"), "java")
                    .with_evidence(at.file(HierarchyController::Memory, at.hard_limit_file()), limit)
                    .with_advice(
                        "A view of Elbowroom lists them for JVMs that start after it; or use JDK 25, or set -Xmx and \
                         -XX:ActiveProcessorCount.",
                    ),
            )
        })
        .collect()
}
