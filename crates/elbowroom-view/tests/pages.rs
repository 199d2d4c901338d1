//! What holds for every page, whatever the host's text and the container's numbers are.

use crate::common::{Host, files, find, hosts, middle, number, page, text_of};
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::io::IoStat;
use elbowroom_types::psi::{Pressure, Stall};
use elbowroom_types::sample::MemoryStat;
use elbowroom_types::unit::{Bytes, Micros};
use elbowroom_view::pages::snapshot::{ContainerSnapshot, CpuTimes, MAX_DISKS};
use elbowroom_view::pages::view_node::ViewNode;
use elbowroom_view::pages::{render, tree};
use proptest::prelude::*;
use std::sync::LazyLock;

static HOSTS: LazyLock<Vec<Host>> = LazyLock::new(hosts);

/// Numbers of all magnitudes, so that both sensible values and overflows are met.
fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..1_000, 0..1u64 << 40, any::<u64>(), Just(u64::MAX)]
}

fn any_cpus() -> impl Strategy<Value = CpuSet> {
    proptest::collection::btree_set(prop_oneof![0u32..20, 0..1024u32], 0..40)
        .prop_map(|c| c.into_iter().collect())
}

prop_compose! {
    /// Facts that share nothing but what they are told.
    fn any_facts()(
        n in proptest::collection::vec(any_number(), 40), sets in proptest::collection::vec(any_cpus(), 6),
    ) -> ContainerSnapshot {
        let b = |i: usize| Bytes(n[i]);
        let stall = |i: usize| {
            Stall { avg10: n[i] as u32, avg60: n[i + 1] as u32, avg300: n[i + 2] as u32, reserved: 0, total: Micros(n[i]) }
        };
        let io = IoStat {
            device: DeviceNumber::new(254, n[0] as u32 % 2 * 16), rbytes: b(1), wbytes: b(2), dbytes: b(3), rios: n[4],
            wios: n[5], dios: n[6],
        };
        ContainerSnapshot {
            online: sets[0], present: sets[1], possible: sets[5], nodes: sets[2], cpu_nodes: sets[3], mems: sets[4],
            millicpu: n[7], cpu_period: Micros(n[8]), cpu_share: n[9], memory: b(10), memory_soft: n[11],
            mems_total: b(9), memory_high: n[12], memory_usage: b(13), oom_kills: n[2], swap_max: n[14],
            cpu_user: Micros(n[15]), cpu_system: Micros(n[16]), started: Micros(n[17]), taken: Micros(n[18]),
            load: [n[19] as u32, n[20] as u32, n[21] as u32], nr_running: n[22] as u32, nr_threads: n[23] as u32,
            nr_processes: n[24] as u32, nr_disks: n[25] as u32, has_pressure: n[26] as u32 % 2,
            pressure: [Pressure { some: stall(0), full: stall(3) }; 3], io: [io; MAX_DISKS],
            memory_stat: MemoryStat {
                anon: b(27), anon_thp: b(28), file: b(29), file_mapped: b(30), shmem: b(31), inactive_anon: b(32),
                active_anon: b(33), inactive_file: b(34), active_file: b(35), slab_reclaimable: b(36),
                slab_unreclaimable: b(37), swapcached: b(38), swap: b(39), pgfault: n[0], pgmajfault: n[1], pswpin: n[3],
                pswpout: n[4],
                ..MemoryStat::EMPTY
            },
            page_size: b(6),
        }
    }
}

prop_compose! {
    fn any_times()(n in proptest::collection::vec(any_number(), 0..60)) -> Vec<CpuTimes> {
        n.chunks(3)
            .map(|n| CpuTimes {
                user: Micros(n[0]),
                system: Micros(*n.get(1).unwrap_or(&0)),
                idle: Micros(*n.get(2).unwrap_or(&0)),
            })
            .collect()
    }
}

/// Arbitrary bytes, and pieces of real files: cut anywhere, repeated, glued together.
fn any_host() -> impl Strategy<Value = String> {
    let real: Vec<String> = HOSTS.iter().flat_map(|host| host.values().cloned()).collect();
    let piece =
        (proptest::sample::select(real), any::<proptest::sample::Index>(), any::<proptest::sample::Index>())
            .prop_map(|(text, a, b)| {
                let (a, b) = (a.index(text.len() + 1), b.index(text.len() + 1));
                text.get(a.min(b)..a.max(b)).unwrap_or_default().to_owned()
            });
    let noise =
        proptest::collection::vec(any::<u8>(), 0..200).prop_map(|b| String::from_utf8_lossy(&b).into_owned());
    proptest::collection::vec(prop_oneof![3 => piece, 1 => noise], 0..4).prop_map(|pieces| pieces.concat())
}

/// Every kind of file: all singles, and the files of one CPU and one NUMA node.
fn all_files() -> Vec<ViewNode> {
    let facts = ContainerSnapshot { present: "3".parse().unwrap(), ..ContainerSnapshot::EMPTY };
    let mut rest = vec![ViewNode::ROOT];
    let mut found = Vec::new();
    while let Some(node) = rest.pop() {
        if !node.is_dir() {
            found.push(node);
        }
        rest.extend(tree::children(node, &facts).into_iter().map(|(_, node)| node));
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_page_has_exactly_its_size_whatever_the_host_says(
        facts in any_facts(), times in any_times(), host in any_host(), later in any_host(), now in any_number(),
    ) {
        for node in all_files() {
            let size = render::size(node, &facts, &host);
            for host in [&host, &later] {
                let page = render::render(node, &facts, &times, host, Micros(now), size);
                prop_assert_eq!(page.len() as u32, size, "{:?}", node);
                prop_assert!(page.last().is_none_or(|b| *b == b'\n'), "{:?}", node);
            }
        }
    }

    #[test]
    fn size_depends_on_possible_cpus_only(a in any_facts(), b in any_facts(), host in any_host()) {
        let b =
            ContainerSnapshot { present: a.present, possible: a.possible, nodes: a.nodes, page_size: a.page_size, ..b };
        for node in all_files() {
            prop_assert_eq!(render::size(node, &a, &host), render::size(node, &b, &host), "{:?}", node);
        }
    }

    #[test]
    fn fewer_cpus_make_no_page_longer_but_a_list(a in any_facts(), kept in any_cpus()) {
        for host in HOSTS.iter() {
            let real = ContainerSnapshot { present: "0-3".parse().unwrap(), nodes: "0-1".parse().unwrap(), ..a };
            for a in [a, real] {
                let part = |all: &CpuSet| if all.intersection(&kept).is_empty() { all.lowest(1) } else { all.intersection(&kept) };
                let fewer = ContainerSnapshot {
                    present: part(&a.shown_present()),
                    possible: a.possible.intersection(&kept),
                    nodes: part(&a.nodes),
                    ..a
                };
                for node in files(host, &fewer).into_iter().filter(|node| !render::is_cpu_list(*node)) {
                    let text = text_of(host, node);
                    prop_assert!(render::size(node, &fewer, &text) <= render::size(node, &a, &text), "{:?}", node);
                }
            }
        }
    }

    #[test]
    fn nothing_is_cut_while_numbers_and_online_cpus_change(a in any_facts(), b in any_facts(), n in 0u32..40, times in any_times()) {
        for host in HOSTS.iter() {
            let present = a.shown_present();
            let b = ContainerSnapshot { present, online: present.lowest(n), possible: a.possible, nodes: a.nodes, page_size: a.page_size, ..b };
            let a = ContainerSnapshot { present, online: present, ..a };
            for node in files(host, &a) {
                let text = text_of(host, node);
                let size = render::size(node, &a, &text);
                let whole = render::render(node, &b, &times, &text, b.taken, size + 4096);
                let page = render::render(node, &b, &times, &text, b.taken, size);
                let words = |page: &[u8]| -> Vec<String> {
                    String::from_utf8_lossy(page).split_whitespace().map(str::to_owned).collect()
                };
                prop_assert_eq!(words(&page), words(&whole), "{:?}", node);
            }
        }
    }

    #[test]
    fn meminfo_adds_up(facts in any_facts()) {
        for host in HOSTS.iter() {
            let page = page("proc/meminfo", host, &facts, &[]);
            let kib = |key| number(&page, key);
            prop_assert!(kib("MemFree") <= kib("MemAvailable") && kib("MemAvailable") <= kib("MemTotal"));
            prop_assert!(kib("SwapFree") <= kib("SwapTotal"));
            prop_assert_eq!(kib("Slab"), kib("SReclaimable") + kib("SUnreclaim"));
            prop_assert_eq!(kib("Active"), kib("Active(anon)") + kib("Active(file)"));
            prop_assert_eq!(kib("Inactive"), kib("Inactive(anon)") + kib("Inactive(file)"));
            prop_assert_eq!(kib("KReclaimable"), kib("SReclaimable"));
            let used = kib("MemTotal") - kib("MemFree");
            // procps and htop subtract these from what is used.
            prop_assert!(kib("Cached") + kib("Buffers") + kib("SReclaimable") <= used);
            prop_assert!(kib("Shmem") <= kib("Cached"));
        }
    }

    #[test]
    fn stat_has_a_line_for_each_online_cpu_and_its_first_is_their_sum(facts in any_facts(), times in any_times()) {
        for host in HOSTS.iter() {
            let present = facts.shown_present().iter().chain(0..times.len() as u32).collect();
            let facts = ContainerSnapshot { present, online: present, ..facts };
            let page = page("proc/stat", host, &facts, &times);
            let columns = |line: &str| -> Vec<u64> {
                line.split_whitespace().skip(1).map(|word| word.parse().unwrap()).collect()
            };
            let cpus: Vec<&str> = page.lines().skip(1).take_while(|line| line.starts_with("cpu")).collect();
            let names = cpus.iter().map(|line| line[3..].split(' ').next().unwrap().parse::<u32>().unwrap());
            prop_assert!(names.eq(facts.shown_present().iter()));
            let sums = cpus.iter().map(|line| columns(line)).fold(vec![0; 10], |mut sums: Vec<u64>, line| {
                sums.iter_mut().zip(line).for_each(|(sum, n)| *sum += n);
                sums
            });
            prop_assert_eq!(columns(page.lines().next().unwrap()), sums);
        }
    }
}

/// A number that no container here has.
const MARKER: &str = "7373737";

/// The words of a page that a counter of the host would show up in: every number of the host's text is the marker but for
/// what names things and what is the same for all.
#[test]
fn no_counter_of_the_host_is_on_any_page() {
    let (facts, times) = middle();
    let names = |line: &str| match line.split_whitespace().next() {
        // Names of devices, zones and CPUs; the page size and the address space.
        Some(word) if word.bytes().all(|b| b.is_ascii_digit()) => 3,
        Some("Node") => 2,
        // A controller and its hierarchy.
        Some(_) if line.matches('\t').count() == 3 => 2,
        Some("cpu:" | "Hugepagesize:" | "VmallocTotal:") => usize::MAX,
        // Start times of processes count from it, whatever a page says; and what is in files beside it that no view covers.
        Some("btime" | "intr" | "ctxt" | "softirq") => usize::MAX,
        _ => 0,
    };
    let mark = |line: &str| {
        let mut word = 0;
        let mut out = String::new();
        for piece in line.split_inclusive([' ', '\t', '=', '(', ',']) {
            let number = piece.trim_end_matches([' ', '\t', '=', '(', ',']);
            let plain =
                !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.' || b == b')');
            word += usize::from(!number.is_empty());
            if plain && word > names(line) {
                out.push_str(&piece.replace(number.trim_end_matches(')'), MARKER));
            } else {
                out.push_str(piece);
            }
        }
        out + "\n"
    };
    for host in HOSTS.iter() {
        for node in files(host, &facts) {
            let dynamic =
                matches!(node.parent(), ViewNode::Proc | ViewNode::Pressure | ViewNode::NumaNode(_));
            let tells = ["cpuinfo", "cpulist", "cpumap", "distance"].contains(&node.name().as_str());
            if !dynamic || tells {
                continue;
            }
            let marked: String = text_of(host, node).lines().map(mark).collect();
            // A header alone (`swaps` without swap) and pages made without the host have nothing to mark.
            let numbers = text_of(host, node).contains(|c: char| c.is_ascii_digit());
            assert!(!numbers || marked.contains(MARKER), "{} was not marked:\n{marked}", node.path());
            let page = render::render(node, &facts, &times, &marked, facts.taken, 1 << 16);
            let page = String::from_utf8(page).unwrap();
            assert!(!page.contains(MARKER), "{} shows the host's:\n{page}", node.path());
        }
    }
}

#[test]
fn a_machine_of_256_cpus_is_rendered_in_pages_that_programs_can_read() {
    let record = &HOSTS[1]["proc/cpuinfo"];
    let record = &record[..record.find("\n\n").unwrap() + 2];
    let host: String =
        (0..256).map(|n| record.replacen("processor\t: 0", &format!("processor\t: {n}"), 1)).collect();
    let facts = ContainerSnapshot {
        present: CpuSet::first_n(256),
        online: CpuSet::first_n(4),
        ..ContainerSnapshot::EMPTY
    };
    for path in ["proc/cpuinfo", "proc/stat"] {
        let node = find(path, &facts);
        let size = render::size(node, &facts, &host);
        let page = String::from_utf8(render::render(node, &facts, &[], &host, Micros::ZERO, size)).unwrap();
        assert!(page.lines().all(|line| line.len() < 64 << 10), "{path}: a line Go's Scanner refuses");
        assert_eq!(
            page.lines().filter(|l| l.starts_with("processor") || l.starts_with("cpu3")).count(),
            match path {
                "proc/cpuinfo" => 4,
                _ => 1,
            }
        );
    }
}
