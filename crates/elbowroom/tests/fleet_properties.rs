//! The properties that `fleet` promises.

use elbowroom::fleet::placement::{PlacementRequest, evaluate, rank};
use elbowroom::fleet::resources::{NodeDisk, NodeResources};
use elbowroom_types::claim::DiskReservation;
use elbowroom_types::io::IoMax;
use elbowroom_types::unit::{Bytes, Limit, Millicpu, Percent};
use proptest::prelude::*;

/// Its name is for [`resources`] to give.
fn disk() -> impl Strategy<Value = NodeDisk> {
    (1u64..1 << 32, prop::option::of(0.0f64..1.2), 0.0f64..1.2).prop_map(|(most, used, promised)| NodeDisk {
        name: String::new(),
        capacity: IoMax { rbps: Limit::At(most), wbps: Limit::At(most / 2 + 1), ..IoMax::MAX },
        used,
        promised,
    })
}

prop_compose! {
    fn room()(
        cpu in 1u64..128, cpu_used in prop::option::of(0u64..40_000), memory in 1u64 << 30..1 << 40,
        part in prop::option::of(0u64..100), memory_short in prop::bool::weighted(0.1), mut disks in prop::collection::vec(disk(), 0..3),
    ) -> NodeResources {
        // No node has two of one name.
        disks.iter_mut().zip(["sda", "sdb"]).for_each(|(disk, name)| disk.name = name.to_owned());
        NodeResources {
            cpu: Millicpu::cpus(cpu),
            cpu_used: cpu_used.map(Millicpu),
            memory: Bytes(memory),
            memory_free: part.map(|part| Bytes(memory / 100 * part)),
            memory_short,
            disks,
            ..NodeResources::default()
        }
    }
}

prop_compose! {
    fn ask()(cpu in 0u64..2_000, memory in 0u64..1 << 30, rbps in prop::option::of(0u64..1 << 24), wbps in prop::option::of(0u64..1 << 24)) -> PlacementRequest {
        PlacementRequest { cpu: Millicpu(cpu), memory: Bytes(memory), disk: DiskReservation { rbps, wbps, ..DiskReservation::default() } }
    }
}

fn headroom() -> impl Strategy<Value = Percent> {
    (0u16..60).prop_map(Percent::whole)
}

proptest! {
    #[test]
    fn what_is_placed_never_exceeds_the_room(room in room(), ask in ask(), headroom in headroom()) {
        let verdict = evaluate(&room, &ask, headroom);
        let n = if verdict.times.is_finite() { verdict.whole_containers() } else { 0 };
        if n == 0 {
            return Ok(());
        }
        if ask.cpu > Millicpu::ZERO {
            let used = room.cpu_used.unwrap().get() + n * ask.cpu.get();
            prop_assert!(used <= room.cpu.get() - headroom.of(room.cpu.get()));
        }
        if ask.memory > Bytes::ZERO {
            prop_assert!(!room.memory_short);
            prop_assert!(n * ask.memory.get() + headroom.of(room.memory.get()) <= room.memory_free.unwrap().get());
        }
        if !ask.disk.is_empty() {
            let holds = room.disks.iter().any(|disk| {
                let taken = disk.used.map_or(f64::INFINITY, |used| used.max(disk.promised));
                let part = disk.utilization(ask.disk).unwrap_or(f64::INFINITY);
                taken + n as f64 * part <= 1.0 - headroom.fraction() + 1e-9
            });
            prop_assert!(holds, "{verdict:?}");
        }
    }

    #[test]
    fn more_room_never_ranks_lower(room in room(), ask in ask(), headroom in headroom(), cpu in 0u64..1_000, memory in 0u64..1 << 30, less in 0.0f64..0.5) {
        let roomier = NodeResources {
            cpu_used: room.cpu_used.map(|used| used.saturating_sub(Millicpu(cpu))),
            memory_free: room.memory_free.map(|free| free.saturating_add(Bytes(memory))),
            memory_short: false,
            disks: room.disks.iter().map(|disk| NodeDisk {
                used: disk.used.map(|used| (used - less).max(0.0)),
                promised: (disk.promised - less).max(0.0),
                ..disk.clone()
            }).collect(),
            ..room.clone()
        };
        prop_assert!(evaluate(&roomier, &ask, headroom).times >= evaluate(&room, &ask, headroom).times);
        // The same name sorts after the other where both are as good.
        let ranked = rank([("a", &room), ("b", &roomier)], &ask, headroom);
        let (first, second) = (&ranked[0], &ranked[1]);
        prop_assert!(first.node == "b" || first.verdict.times == second.verdict.times, "{ranked:?}");
    }

    #[test]
    fn the_order_of_nodes_does_not_change_the_ranking(rooms in prop::collection::vec(room(), 1..20), ask in ask(), turn in 0usize..20) {
        let named: Vec<(String, NodeResources)> = rooms.into_iter().enumerate().map(|(n, room)| (format!("n{n}"), room)).collect();
        let mut turned = named.clone();
        turned.rotate_left(turn % named.len());
        let refs = |named: &[(String, NodeResources)]| rank(named.iter().map(|(name, room)| (name.as_str(), room)), &ask, Percent::whole(10));
        let ranked = refs(&named);
        prop_assert_eq!(&ranked, &refs(&turned));
        prop_assert!(ranked.windows(2).all(|pair| pair[0].verdict.times >= pair[1].verdict.times));
    }

    #[test]
    fn the_least_of_two_looks_has_no_more_room_than_either(a in room(), b in room(), ask in ask()) {
        let b = NodeResources { disks: a.disks.iter().zip(&b.disks).map(|(a, b)| NodeDisk { used: b.used, promised: b.promised, ..a.clone() }).collect(), ..b };
        let least = evaluate(&a.min_of(&b), &ask, Percent::whole(0)).times;
        let seen = |room: &NodeResources| room.disks.iter().filter(|disk| disk.used.is_some()).count();
        let all_seen = seen(&a) == a.disks.len() && seen(&b) == a.disks.len();
        let (a, b) = (evaluate(&a, &ask, Percent::whole(0)), evaluate(&b, &ask, Percent::whole(0)));
        // What only one look knew is better than nothing known, of a disk beside others too.
        let known = |v: &elbowroom::fleet::placement::PlacementVerdict| !v.because.contains("not known") && !v.because.contains("not seen") && !v.because.contains("governs no disk");
        if known(&a) && known(&b) && (all_seen || ask.disk.is_empty()) {
            prop_assert!(least <= a.times.min(b.times) + 1e-9, "{least} {a:?} {b:?}");
        }
    }
}

#[test]
fn what_is_not_known_does_not_fit_and_says_so() {
    let ask = PlacementRequest {
        cpu: Millicpu(500),
        memory: Bytes::mib(64),
        disk: DiskReservation { rbps: Some(1 << 20), ..DiskReservation::default() },
    };
    let known = NodeResources {
        cpu: Millicpu::cpus(4),
        cpu_used: Some(Millicpu(1_000)),
        memory: Bytes::gib(8),
        memory_free: Some(Bytes::gib(2)),
        disks: vec![NodeDisk {
            name: "sda".into(),
            capacity: IoMax { rbps: Limit::At(100 << 20), ..IoMax::MAX },
            used: Some(0.1),
            promised: 0.4,
        }],
        ..NodeResources::default()
    };
    let check = |room: NodeResources, expect: &str| {
        let verdict = evaluate(&room, &ask, Percent::whole(10));
        assert!(verdict.because.contains(expect), "{verdict:?}");
        assert!(!verdict.fits(), "{verdict:?}");
    };
    let verdict = evaluate(&known, &ask, Percent::whole(10));
    assert_eq!((verdict.whole_containers(), verdict.because.as_str()), (5, "2.6 CPUs idle of 4"));
    check(NodeResources { cpu_used: None, ..known.clone() }, "not known yet");
    check(NodeResources { memory_free: None, ..known.clone() }, "not known yet");
    check(NodeResources { memory_short: true, ..known.clone() }, "compete for memory");
    check(NodeResources { disks: Vec::new(), ..known.clone() }, "governs no disk");
    let unseen = |disk: &NodeDisk| NodeDisk { capacity: IoMax::MAX, ..disk.clone() };
    check(NodeResources { disks: known.disks.iter().map(unseen).collect(), ..known.clone() }, "not seen yet");
}
