//! What the peer, LXCFS, is known to get wrong (measured on 5.0.3 and 7.0.0, and its issue tracker), one test each.

use crate::common::{find, host, middle, number, page, small, text_of};
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::sample::MemoryStat;
use elbowroom_types::unit::{Bytes, Micros};
use elbowroom_view::pages::snapshot::{ContainerSnapshot, CpuTimes};
use elbowroom_view::pages::view_node::ViewNode;
use elbowroom_view::pages::{render, tree};
use std::collections::BTreeMap;

const V1: &str = "v1-2cpu-6.18";
const V2: &str = "v2-16cpu-6.12";
const CPU: &str = "sys/devices/system/cpu";

/// A page of the middle container on the cgroup v2 host.
fn v2(path: &str) -> String {
    let (facts, times) = middle();
    page(path, &host(V2), &facts, &times)
}

fn meminfo(facts: &ContainerSnapshot) -> String {
    page("proc/meminfo", &host(V1), facts, &[])
}

#[test]
fn anon_huge_pages_mapped_dirty_and_writeback_are_not_always_zero() {
    // `total_rss` caught `total_rss_huge`, `file` caught `file_mapped`, `file_dirty` was never read.
    for page in [v2("proc/meminfo"), meminfo(&small().0)] {
        assert_eq!(number(&page, "AnonHugePages"), 62 << 10);
        assert_eq!(number(&page, "Mapped"), 16 << 10);
        assert_eq!(number(&page, "Dirty"), 400);
        assert_eq!(number(&page, "Writeback"), 44);
    }
}

#[test]
fn a_container_without_a_limit_does_not_see_more_free_memory_than_the_machine_has() {
    let facts = ContainerSnapshot {
        memory: Bytes(u64::MAX),
        memory_usage: Bytes::mib(1),
        ..ContainerSnapshot::EMPTY
    };
    let busy = host(V1)["proc/meminfo"].clone();
    let native = number(&busy, "MemFree");
    let page = meminfo(&facts);
    assert!(number(&page, "MemTotal") == number(&busy, "MemTotal") && number(&page, "MemFree") <= native);
}

#[test]
fn usage_above_the_limit_is_not_a_huge_number() {
    // Issue 84: negative used; an unsigned difference wraps.
    let facts = ContainerSnapshot {
        memory: Bytes::mib(100),
        memory_usage: Bytes::mib(150),
        ..ContainerSnapshot::EMPTY
    };
    let page = meminfo(&facts);
    assert_eq!([number(&page, "MemFree"), number(&page, "MemAvailable")], [0, 0]);
}

#[test]
fn reclaimable_slab_counts_as_available() {
    // Issues 670 and 671.
    let facts = |slab| ContainerSnapshot {
        memory: Bytes::mib(512),
        memory_usage: Bytes::mib(200),
        memory_stat: MemoryStat { slab_reclaimable: Bytes::mib(slab), ..MemoryStat::EMPTY },
        ..ContainerSnapshot::EMPTY
    };
    let available = |slab| number(&meminfo(&facts(slab)), "MemAvailable");
    assert_eq!(available(12) - available(0), 12 << 10);
}

#[test]
fn kernel_memory_of_the_host_is_not_the_containers() {
    let page = v2("proc/meminfo");
    assert_eq!(number(&page, "KReclaimable"), number(&page, "SReclaimable"));
    assert_eq!([number(&page, "KernelStack"), number(&page, "PageTables")], [272, 900]);
    for key in ["Percpu", "Committed_AS", "Mlocked", "VmallocUsed", "HugePages_Total", "Hugetlb"] {
        assert_eq!(number(&page, key), 0, "{key}");
    }
    assert_eq!(number(&page, "CommitLimit"), number(&page, "MemTotal") / 2 + number(&page, "SwapTotal"));
}

#[test]
fn possible_present_and_the_directories_agree_with_online() {
    // Issue 731: only `online` is virtual, so that _SC_NPROCESSORS_CONF and lscpu see the host.
    let (facts, times) = middle();
    let host = host(V2);
    let list = |file: &str| page(&format!("{CPU}/{file}"), &host, &facts, &times).trim_end().to_owned();
    assert_eq!(["online", "offline", "possible", "present"].map(list), ["4-6", "7-11", "0-15", "4-11"]);
    let dirs: Vec<String> = tree::children(ViewNode::Cpus, &facts)
        .into_iter()
        .filter(|(_, node)| matches!(node, ViewNode::CpuDir(..)))
        .map(|(name, _)| name)
        .collect();
    assert!(dirs.iter().map(String::as_str).eq([4, 5, 6, 7, 8, 9, 10, 11].map(|n| format!("cpu{n}")).iter()));
}

#[test]
fn online_is_listed_once() {
    let names = tree::children(ViewNode::Cpus, &middle().0);
    assert_eq!(names.iter().filter(|(name, _)| name == "online").count(), 1);
}

#[test]
fn a_list_of_cpus_is_never_cut_to_half_a_range() {
    // `cat` printed `0-` when two containers shared one inode's size.
    let (mut facts, _) = middle();
    let online = find(&format!("{CPU}/online"), &facts);
    let size = render::size(online, &facts, "");
    for n in 1..=8 {
        facts.online = facts.present.lowest(n);
        let page = render::render(online, &facts, &[], "", Micros::ZERO, size);
        let text = String::from_utf8(page).unwrap();
        assert_eq!(text.trim_end().parse::<CpuSet>().unwrap(), facts.online);
    }
}

#[test]
fn cpus_keep_their_numbers() {
    // Renumbered CPUs disagree with sched_getaffinity and with every pinned thread.
    let cpuinfo = v2("proc/cpuinfo");
    let numbers = cpuinfo.lines().filter_map(|line| line.strip_prefix("processor\t: "));
    assert!(numbers.eq(["4", "5", "6"]));
    assert!(
        v2("proc/stat")
            .lines()
            .skip(1)
            .take(3)
            .map(|l| l.split(' ').next().unwrap())
            .eq(["cpu4", "cpu5", "cpu6"])
    );
}

#[test]
fn effective_cpus_count_whatever_made_them_so() {
    // Shares and weights never mattered to the peer, quotas only on request: every surface here says the same.
    let page = v2("cgroup/cpu.max");
    assert_eq!(page.trim_end(), "300000 100000");
    assert_eq!(v2(&format!("{CPU}/online")).trim_end().parse::<CpuSet>().unwrap().count(), 3);
    assert_eq!(v2("proc/cpuinfo").matches("processor\t:").count(), 3);
}

#[test]
fn stat_on_cgroup_v2_is_not_the_hosts() {
    let page = v2("proc/stat");
    let columns: Vec<&str> = page.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(columns, ["cpu4", "1000", "0", "234", "8800", "0", "0", "0", "0", "0", "0"]);
}

#[test]
fn interrupts_and_switches_are_those_of_the_files_beside_stat_and_the_rest_is_not_the_hosts() {
    let native = host(V2)["proc/stat"].clone();
    let page = v2("proc/stat");
    for key in ["intr", "ctxt", "softirq"] {
        assert!(number(&native, key) > 0 && number(&page, key) == number(&native, key), "{key}");
    }
    assert_eq!([number(&page, "processes"), number(&page, "procs_running")], [42, 2]);
}

#[test]
fn processes_do_not_start_in_the_future() {
    // Pull request 164 of LXCFS, taken back; issue 189. `btime` and the start time of `/proc/PID/stat`, which is the host's, are added.
    for (name, (facts, times)) in [(V1, small()), (V2, middle())] {
        let host = host(name);
        assert!(facts.started > Micros::ZERO);
        assert_eq!(
            number(&page("proc/stat", &host, &facts, &times), "btime"),
            number(&host["proc/stat"], "btime")
        );
    }
}

#[test]
fn stat_does_not_go_back_when_the_number_of_cpus_changes() {
    // Issues 554 and 643: counters that decrease or start again.
    let (facts, times) = middle();
    let host = host(V2);
    let first: Vec<String> = (1..=8)
        .map(|n| {
            let mut shown = facts;
            shown.online = shown.present.lowest(n);
            page("proc/stat", &host, &shown, &times).lines().next().unwrap().to_owned()
        })
        .collect();
    assert!(first.windows(2).all(|pair| pair[0] == pair[1]), "{first:?}");
}

#[test]
fn stat_and_idle_time_do_not_go_back_when_a_quota_or_a_cpuset_changes() {
    let times = crate::common::times(6);
    let host = host(V2);
    let counters = |present: &str| {
        let present: CpuSet = present.parse().unwrap();
        let facts = ContainerSnapshot {
            present,
            online: present,
            taken: Micros::secs(3),
            ..ContainerSnapshot::EMPTY
        };
        let stat = page("proc/stat", &host, &facts, &times);
        let idle = page("proc/uptime", &host, &facts, &times).split_whitespace().nth(1).unwrap().to_owned();
        let lines = stat.lines().take_while(|line| line.starts_with("cpu"));
        let of = |line: &str| line.split_once(' ').map(|(name, rest)| (name.to_owned(), rest.to_owned()));
        (lines.filter_map(of).collect::<BTreeMap<_, _>>(), idle)
    };
    for [before, after] in [["0-3", "0-1"], ["2-5", "0-3"], ["0-1", "0-3"]] {
        let ((before, idle_before), (after, idle_after)) = (counters(before), counters(after));
        assert_eq!(idle_before, idle_after);
        let both = before.keys().filter(|name| after.contains_key(*name));
        assert!(both.clone().count() >= 3 && both.clone().any(|name| name == "cpu"));
        both.for_each(|name| assert_eq!(before[name], after[name], "{name}"));
    }
}

#[test]
fn the_first_read_of_stat_and_loadavg_is_not_zeros() {
    let (facts, times) = small();
    let host = host(V1);
    assert!(page("proc/stat", &host, &facts, &times).starts_with("cpu  2100 "));
    assert!(page("proc/loadavg", &host, &facts, &times).starts_with("1.47 0.12 0.03 2/17 "));
}

#[test]
fn the_last_pid_of_the_host_is_not_told() {
    assert_eq!(v2("proc/loadavg").split_whitespace().last(), Some("0"));
}

#[test]
fn swap_is_the_containers_share_whatever_cgroups_existed_at_start() {
    let page = v2("proc/meminfo");
    assert_eq!([number(&page, "SwapTotal"), number(&page, "SwapFree")], [64 << 10, 61 << 10]);
    let swaps = v2("proc/swaps");
    let row: Vec<&str> = swaps.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, ["none", "virtual", "65536", "3072", "0"]);
}

#[test]
fn idle_time_is_not_uptime_and_counts_every_cpu() {
    // On v2 the peer's idle equals uptime; on v1 it is not multiplied by the CPUs.
    let facts = ContainerSnapshot {
        present: CpuSet::first_n(4),
        online: CpuSet::first_n(4),
        ..ContainerSnapshot::EMPTY
    };
    let times = [CpuTimes { idle: Micros::millis(9_500), ..CpuTimes::default() }; 4];
    let node = find("proc/uptime", &facts);
    let page = render::render(node, &facts, &times, "", Micros::secs(10), render::size(node, &facts, ""));
    assert_eq!(String::from_utf8(page).unwrap().trim_end(), "10.00 38.00");
}

#[test]
fn diskstats_on_cgroup_v2_is_not_the_hosts() {
    // Issue 653.
    let page = v2("proc/diskstats");
    let row: Vec<&str> = page.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(row[..10], ["254", "0", "vda", "700", "0", "16384", "0", "90", "0", "4096"]);
    assert!(page.lines().nth(1).unwrap().split_whitespace().skip(3).all(|n| n == "0"));
}

#[test]
fn vmstat_zoneinfo_and_the_nodes_are_not_the_hosts() {
    let free = |page: &str| number(page, "nr_free_pages");
    let native = host(V2);
    assert!(free(&v2("proc/vmstat")) != free(&native["proc/vmstat"]));
    assert_eq!(free(&v2("proc/vmstat")), number(&v2("proc/meminfo"), "MemFree") / 4);
    let node = v2("sys/devices/system/node/node0/meminfo").replace("Node 0 ", "");
    assert_eq!(number(&node, "MemTotal"), 1 << 20);
    let managed = |page: &str| -> u64 {
        page.lines()
            .filter_map(|line| line.trim().strip_prefix("managed "))
            .map(|n| n.trim().parse::<u64>().unwrap())
            .sum()
    };
    assert_eq!(managed(&v2("proc/zoneinfo")), (1 << 30) / 4096);
}

#[test]
fn pressure_is_there_and_is_the_containers() {
    assert!(v2("proc/pressure/cpu").starts_with("some avg10=1.23 avg60=0.45 avg300=0.06 total=78901 "));
}

#[test]
fn reading_again_after_the_container_changed_never_changes_the_size() {
    // Issue 694: files cut short made Cassandra fail.
    let (facts, times) = middle();
    let host = host(V2);
    let grown =
        ContainerSnapshot { online: facts.present, memory: Bytes::gib(2), memory_usage: Bytes(1), ..facts };
    for node in crate::common::files(&host, &facts) {
        let text = text_of(&host, node);
        let size = render::size(node, &facts, &text);
        assert_eq!(size, render::size(node, &grown, &text));
        let page = render::render(node, &grown, &times, &text, facts.taken, size);
        assert_eq!(page.len() as u32, size);
    }
}
