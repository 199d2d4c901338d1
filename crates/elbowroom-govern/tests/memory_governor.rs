//! The memory governor on single events: what hosts have that no scenario of the six phases has.

use elbowroom_govern::memory::{ColourSource, LendingState, MemoryGovernor, MemorySettings};
use elbowroom_types::alert::AlertKind;
use elbowroom_types::claim::{Claim, MemoryClaim};
use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
use elbowroom_types::id::CgroupId;
use elbowroom_types::label::ContainerLabels;
use elbowroom_types::memory::{
    GroupMemory, MemoryOrder, MemoryTick, NodeMemory, OrderCompletion, OrderKind, OrderOutcome, ProbeUpdate,
    ReclaimProtection, StallTotals,
};
use elbowroom_types::probe;
use elbowroom_types::probe::{Measure, ProbeReport};
use elbowroom_types::sample::{CgroupProperties, CgroupSettings, HostEvent, NodeProperties};
use elbowroom_types::unit::Limit::{At, Max};
use elbowroom_types::unit::{Bytes, Limit, Micros};
use std::collections::BTreeMap;

const GIB: u64 = 1 << 30;

/// What is counted of a group, with the seconds that passed and what it uses.
type Counted = fn(u64, Bytes) -> GroupMemory;

struct Host {
    memory: MemoryGovernor,
    seconds: u64,
    usage: Vec<(CgroupId, Bytes)>,
    counted: BTreeMap<CgroupId, Counted>,
    free: Bytes,
    /// Whether a user makes what is told of from now on.
    made_by_user: bool,
}

impl Host {
    fn new(total: u64, free: u64) -> Self {
        let mut memory = MemoryGovernor::new(MemorySettings::default(), Vec::new());
        memory.apply(&HostEvent::Node(NodeProperties {
            mem_total: Bytes(total * GIB),
            page_size: Bytes(4096),
            ..NodeProperties::default()
        }));
        Self {
            memory,
            seconds: 0,
            usage: Vec::new(),
            counted: BTreeMap::new(),
            free: Bytes(free * GIB),
            made_by_user: false,
        }
    }

    /// A group that uses `gib` GiB; a container where it has a name.
    fn group(
        &mut self,
        id: u64,
        parent: u64,
        name: Option<&str>,
        limits: CgroupSettings,
        gib: u64,
    ) -> CgroupId {
        self.usage.push((CgroupId(id), Bytes(gib * GIB)));
        self.tell(id, parent, name, limits);
        CgroupId(id)
    }

    /// What a group is.
    fn tell(&mut self, id: u64, parent: u64, name: Option<&str>, limits: CgroupSettings) -> Vec<MemoryOrder> {
        self.tell_at(id, parent, &format!("/group{id}"), name, limits)
    }

    fn tell_at(
        &mut self,
        id: u64,
        parent: u64,
        path: &str,
        name: Option<&str>,
        limits: CgroupSettings,
    ) -> Vec<MemoryOrder> {
        let container = name.map(|name| ContainerIdentity {
            id: name.to_owned(),
            name: Some(name.to_owned()),
            engine: ContainerEngine::Docker,
            pod: None,
            labels: ContainerLabels::default(),
        });
        let (path, id) = (path.to_owned(), CgroupId(id));
        let parent = (parent > 0).then_some(CgroupId(parent));
        self.memory.apply(&HostEvent::Group(CgroupProperties {
            id,
            parent,
            path,
            container,
            limits,
            populated: true,
            made_by_user: self.made_by_user,
        }))
    }

    /// Some seconds pass, in ticks of one.
    fn pass(&mut self, seconds: u64) -> Vec<MemoryOrder> {
        let mut orders = Vec::new();
        for _ in 0..seconds {
            self.seconds += 1;
            let group = |(id, usage): &(CgroupId, Bytes)| {
                let quiet = GroupMemory { anon: *usage, ..GroupMemory::default() };
                let counted = self.counted.get(id).map_or(quiet, |counted| counted(self.seconds, *usage));
                (*id, GroupMemory { usage: *usage, populated: true, ..counted })
            };
            let groups = self.usage.iter().map(group).collect();
            let node = NodeMemory { mem_free: self.free, mem_available: self.free, ..NodeMemory::default() };
            orders.extend(self.memory.apply(&HostEvent::MemoryTick(MemoryTick {
                now: self.now(),
                node,
                groups,
            })));
        }
        orders
    }

    fn now(&self) -> Micros {
        Micros::secs(self.seconds)
    }

    fn answer(&mut self, group: CgroupId, what: OrderKind, outcome: OrderOutcome) {
        let done = OrderCompletion { now: self.now(), group, what, outcome, reclaimed: Bytes::ZERO };
        self.memory.apply(&HostEvent::MemoryDone(done));
    }

    /// What its probe says from now on.
    fn hears(&mut self, group: CgroupId, measure: Measure) {
        let heard = ProbeUpdate {
            group,
            at: self.now(),
            until: Micros(u64::MAX),
            report: ProbeReport::Measure(measure),
        };
        self.memory.apply(&HostEvent::Probe(heard));
    }

    /// Until something is to be taken from a container, which then gives it.
    fn until_it_gives(&mut self, group: CgroupId) {
        let ordered = (0..60).find_map(|_| self.pass(1).into_iter().find_map(|order| taken(&order, group)));
        let amount = ordered.unwrap_or_else(|| panic!("{:?}", self.memory.status(group)));
        let done = OrderCompletion {
            now: self.now(),
            group,
            what: OrderKind::Reclaim,
            outcome: OrderOutcome::Done,
            reclaimed: amount,
        };
        self.memory.apply(&HostEvent::MemoryDone(done));
    }
}

fn max(gib: u64) -> CgroupSettings {
    CgroupSettings { memory_max: Some(At(Bytes(gib * GIB))), ..CgroupSettings::default() }
}

fn protections(orders: &[MemoryOrder]) -> Vec<ReclaimProtection> {
    orders
        .iter()
        .filter_map(|order| if let MemoryOrder::Protect(p) = order { Some(*p) } else { None })
        .collect()
}

/// What an order takes from a container.
fn taken(order: &MemoryOrder, group: CgroupId) -> Option<Bytes> {
    if let MemoryOrder::Reclaim(reclaim) = order {
        (reclaim.group == group).then_some(reclaim.amount)
    } else {
        None
    }
}

fn has_begun(orders: &[MemoryOrder], kind: AlertKind) -> bool {
    orders.iter().any(|order| matches!(order, MemoryOrder::Alert(alert) if alert.kind == kind))
}

#[test]
fn what_a_pool_inside_a_pool_uses_is_not_missing_twice() {
    let mut host = Host::new(64, 2);
    let slice = host.group(1, 0, None, max(60), 56);
    let pod = host.group(2, slice.0, None, max(50), 40);
    host.group(3, slice.0, Some("best-effort"), CgroupSettings::default(), 16);
    host.group(4, pod.0, Some("burstable"), CgroupSettings::default(), 40);
    let db =
        host.group(5, 0, Some("db"), CgroupSettings { memory_low: Some(At(Bytes(2 * GIB))), ..max(8) }, 3);
    let orders = host.pass(60);
    // 64 GiB less 3 GiB that are used outside of containers, and a margin of 3 %.
    let pools: Vec<(&str, u64)> =
        host.memory.pools().iter().map(|pool| (&*pool.path, pool.size.get() / GIB)).collect();
    assert_eq!(pools, [("/", 59), ("/group1", 60)], "the inner one is around a single container");
    // It waits for nothing, and lends three quarters of what is its own.
    assert_eq!(host.memory.status(db).unwrap().minimum, Bytes(GIB / 2));
    assert!(!has_begun(&orders, AlertKind::Overcommit), "{orders:?}");
}

#[test]
fn reservations_that_fill_the_limit_around_them_are_not_too_much() {
    let mut host = Host::new(16, 8);
    let pool = host.group(1, 0, None, max(8), 8);
    let low =
        |gib: u64| CgroupSettings { memory_low: Some(At(Bytes(gib * GIB))), ..CgroupSettings::default() };
    host.group(2, pool.0, Some("a"), low(5), 5);
    host.group(3, pool.0, Some("b"), low(3), 3);
    let orders = host.pass(60);
    let sizes: Vec<Bytes> = host.memory.pools().iter().map(|pool| pool.size).collect();
    assert!(sizes.contains(&Bytes(8 * GIB)), "{sizes:?}");
    assert!(!has_begun(&orders, AlertKind::Overcommit), "{orders:?}");
}

/// Page cache, with tasks that all wait at once for `waited` milliseconds a second, and read back `back` bytes a second.
fn cache(usage: Bytes, second: u64, waited: u64, back: u64) -> GroupMemory {
    let time = Micros::millis(second * waited);
    let stalls =
        StallTotals { memory_some: time, memory_full: time, io_some: time, ..StallTotals::default() };
    let refault_file = Bytes(second * back);
    GroupMemory {
        file: usage,
        inactive_file: usage,
        stalls: Some(stalls),
        refault_file,
        ..GroupMemory::default()
    }
}

/// A poor container that waits for memory, and a lender without a probe that waits for nothing.
fn poor_and_lender(host: &mut Host, reservation: CgroupSettings) -> [CgroupId; 3] {
    let pool = host.group(1, 0, None, max(8), 8);
    let poor = host.group(2, pool.0, Some("poor"), CgroupSettings::default(), 4);
    let lender = host.group(3, pool.0, Some("lender"), reservation, 4);
    host.counted.insert(poor, |second, usage| cache(usage, second, 500, GIB));
    host.counted.insert(lender, |second, usage| cache(usage, second, 0, 0));
    [pool, poor, lender]
}

/// What a database counts that reads a part of what it is asked for from its disk: idle for half of the time, or never.
fn misses(usage: Bytes, second: u64, waits: u64) -> GroupMemory {
    let [io_some, cpu] = [waits, 200].map(|ms| Micros::millis(second * ms));
    let memory = cache(usage, second, 30, 24 << 20);
    let stalls = memory.stalls.map(|stalls| StallTotals { io_some, ..stalls });
    GroupMemory { stalls, cpu: Some(cpu), rbytes: memory.refault_file, ..memory }
}

#[test]
fn a_container_that_says_no_load_and_is_idle_at_times_lends_though_it_reads_from_its_disk() {
    let mut host = Host::new(16, 8);
    let [_, _, lender] = poor_and_lender(&mut host, CgroupSettings::default());
    let served = |host: &mut Host| {
        let kind = probe::MeasureKind::Throughput;
        host.hears(lender, Measure { kind, served: 2_400.0, offered: None, objective: Some(3_900.0) });
    };
    host.counted.insert(lender, |second, usage| misses(usage, second, 850));
    served(&mut host);
    host.pass(20);
    assert_eq!(host.memory.status(lender).unwrap().colour, probe::Colour::Red, "perhaps more is asked");

    host.counted.insert(lender, |second, usage| misses(usage, second, 300));
    host.pass(20);
    served(&mut host);
    host.until_it_gives(lender);
    host.pass(3);
    let status = host.memory.status(lender).unwrap();
    assert_eq!((status.state, status.failures), (LendingState::Lending, 0), "{status:?}");
    // Its load returns.
    host.counted.insert(lender, |second, usage| misses(usage, second + 1_000, 850));
    host.pass(4);
    let status = host.memory.status(lender).unwrap();
    assert_eq!((status.colour, status.lent), (probe::Colour::Red, Bytes::ZERO), "{status:?}");
}

#[test]
fn a_latency_of_nothing_says_nothing_though_there_is_idle_time() {
    let mut host = Host::new(16, 8);
    let [_, _, waiting] = poor_and_lender(&mut host, CgroupSettings::default());
    host.counted.insert(waiting, |second, usage| misses(usage, second, 300));
    let kind = probe::MeasureKind::Latency;
    host.hears(waiting, Measure { kind, served: 0.0, offered: None, objective: Some(10.0) });
    host.pass(20);
    assert_eq!(host.memory.status(waiting).unwrap().source, ColourSource::Stalls);
}

#[test]
fn a_loan_that_hurt_is_held_and_forgiven_by_loans_that_did_not() {
    let mut host = Host::new(16, 8);
    let [.., lender] = poor_and_lender(&mut host, CgroupSettings::default());
    let mut holds = Vec::new();
    for _ in 0..2 {
        host.until_it_gives(lender);
        // Half of what was taken comes back.
        host.counted.insert(lender, |_, usage| cache(usage, 1, 0, 40 << 20));
        host.pass(1);
        let status = host.memory.status(lender).unwrap();
        assert_eq!(status.state, LendingState::Hold, "{status:?}");
        holds.push(status.until.unwrap().saturating_sub(host.now()));
        host.counted.insert(lender, |_, usage| cache(usage, 0, 0, 0));
        host.pass(holds.last().unwrap().get() / 1_000_000 + 10);
    }
    assert_eq!(holds, [Micros::secs(10), Micros::secs(20)]);
    // Harmless ones let steps grow; each of the largest halves the next hold.
    for _ in 0..8 {
        host.until_it_gives(lender);
        host.pass(2);
    }
    host.until_it_gives(lender);
    host.counted.insert(lender, |_, usage| cache(usage, 1, 0, 400 << 20));
    host.pass(1);
    let status = host.memory.status(lender).unwrap();
    assert_eq!(
        status.until.map(|until| until.saturating_sub(host.now())),
        Some(Micros::secs(10)),
        "{status:?}"
    );
    assert_eq!(status.failures, 3);
}

#[test]
fn an_owner_whose_own_load_returns_ends_a_loan_that_did_no_harm() {
    let failures = |told: Option<(Measure, Measure)>, back: Counted| {
        let mut host = Host::new(16, 8);
        let [.., lender] = poor_and_lender(&mut host, CgroupSettings::default());
        if let Some((before, _)) = told {
            host.hears(lender, before);
        }
        host.until_it_gives(lender);
        host.counted.insert(lender, back);
        if let Some((_, after)) = told {
            host.hears(lender, after);
        }
        host.pass(1);
        let status = host.memory.status(lender).unwrap();
        assert_eq!((status.state, status.lent), (LendingState::Hold, Bytes::ZERO), "{status:?}");
        status.failures
    };
    let some: Counted = |_, usage| cache(usage, 1, 0, 2 << 20);
    let much: Counted = |_, usage| cache(usage, 1, 0, GIB);
    let misses = |offered| Measure { offered: Some(offered), ..serves(100.0) };
    // A probe says how much is asked.
    assert_eq!(failures(Some((misses(100.0), misses(110.0))), some), 1);
    assert_eq!(failures(Some((misses(100.0), misses(300.0))), some), 0);
    // Without one: more than twice what was taken is more than the loan.
    assert_eq!(failures(None, much), 0);
}

#[test]
fn what_is_reserved_is_kept_but_for_the_last_page() {
    let mut host = Host::new(16, 8);
    let low =
        |gib: u64| CgroupSettings { memory_low: Some(At(Bytes(gib * GIB))), ..CgroupSettings::default() };
    let pool = host.group(1, 0, None, max(8), 8);
    // It uses less than it has reserved, and waits: what it grows by is kept for it as well.
    let poor = host.group(2, pool.0, Some("poor"), low(5), 4);
    let rich = host.group(3, pool.0, Some("rich"), low(3), 4);
    for id in [poor, rich] {
        host.counted.insert(id, |second, usage| cache(usage, second, 500, GIB));
    }
    let orders = host.pass(60);
    let last =
        |id| protections(&orders).iter().rfind(|p| p.group == id).map(|p| p.low.get() as f64 / GIB as f64);
    let kept = [poor, rich].map(|id| last(id).unwrap());
    assert!((4.9..5.0).contains(&kept[0]) && (2.9..3.0).contains(&kept[1]), "{kept:?}");
}

/// It serves `served` requests a second, which is all that is asked of it.
fn serves(served: f64) -> Measure {
    Measure { kind: probe::MeasureKind::Throughput, served, offered: Some(served), objective: None }
}

#[test]
fn what_its_user_protects_is_its_reservation() {
    let reserved = |low: Option<Limit<Bytes>>, min: Option<Limit<Bytes>>| {
        let mut host = Host::new(64, 30);
        let limits = CgroupSettings { memory_low: low, memory_min: min, ..CgroupSettings::default() };
        let id = host.group(1, 0, Some("db"), limits, 3);
        host.pass(10);
        let status = host.memory.status(id).unwrap();
        (status.reservation.get() / GIB, status.exempt_reason.is_some())
    };
    let gib = |n: u64| Some(At(Bytes(n * GIB)));
    assert_eq!(reserved(gib(1), gib(0)), (1, false));
    assert_eq!(reserved(gib(0), gib(2)), (2, false));
    assert_eq!(reserved(gib(2), gib(1)), (2, false));
    // All that it uses, and nothing is to be taken of that.
    assert_eq!(reserved(Some(Max), gib(0)), (3, true));
    assert_eq!(reserved(gib(0), Some(Max)), (3, true));
}

#[test]
fn what_a_user_writes_reserves_and_exempts_nothing() {
    for low in [At(Bytes(60 * GIB)), Max] {
        let mut host = Host::new(64, 30);
        host.made_by_user = true;
        let limits =
            CgroupSettings { memory_low: Some(low), memory_min: Some(low), ..CgroupSettings::default() };
        let id = host.group(1, 0, Some("db"), limits, 3);
        host.pass(10);
        let status = host.memory.status(id).unwrap();
        assert_eq!((status.reservation, status.exempt_reason), (Bytes::ZERO, None), "{low:?}");
    }
}

#[test]
fn a_container_that_is_governed_no_more_has_its_own_limits_again() {
    type Ends = fn(&mut Host, CgroupId) -> Vec<MemoryOrder>;
    let ends: [Ends; 3] = [
        |host, lender| host.memory.apply(&HostEvent::Gone(lender)),
        |host, lender| host.tell(lender.0, 1, None, CgroupSettings::default()),
        // The group around it is a container now.
        |host, _| host.tell(1, 0, Some("outer"), max(8)),
    ];
    for end in ends {
        let mut host = Host::new(16, 8);
        let [.., lender] = poor_and_lender(&mut host, CgroupSettings::default());
        host.until_it_gives(lender);
        let orders = end(&mut host, lender);
        let shows = |order: &MemoryOrder| matches!(order, MemoryOrder::ViewCeiling(e) if e.group == lender && e.ceiling == Max);
        assert!(orders.iter().any(shows), "{orders:?}");
        let kept = |p: &ReclaimProtection| {
            p.group == lender && (p.low, p.min, p.soft) != (Bytes::ZERO, Bytes::ZERO, Max)
        };
        assert!(!protections(&orders).iter().any(kept), "{orders:?}");
        assert!(
            host.pass(5)
                .iter()
                .all(|order| !matches!(order, MemoryOrder::ViewCeiling(e) if e.group == lender))
        );
    }
}

#[test]
fn protection_that_failed_is_asked_for_again_and_is_no_strangers_work() {
    let mut host = Host::new(64, 30);
    let limits = CgroupSettings { memory_low: Some(At(Bytes(2 * GIB))), ..CgroupSettings::default() };
    let id = host.group(1, 0, Some("db"), limits, 3);
    let last = protections(&host.pass(60)).pop().unwrap();
    host.answer(id, OrderKind::Protect, OrderOutcome::Refused("no space left".into()));
    let orders = host.pass(29);
    assert!(protections(&orders).is_empty() && !has_begun(&orders, AlertKind::ForeignWriter), "{orders:?}");
    let again = protections(&host.pass(2));
    assert_eq!(again.iter().map(|p| (p.low, p.soft)).collect::<Vec<_>>(), [(last.low, last.soft)]);

    host.answer(id, OrderKind::Protect, OrderOutcome::Foreign);
    let orders = host.pass(598);
    assert!(protections(&orders).is_empty() && has_begun(&orders, AlertKind::ForeignWriter), "{orders:?}");
    assert_eq!(protections(&host.pass(4)).len(), 1);
}

#[test]
fn what_the_kubelet_protects_is_the_owners_claim_and_no_strangers_work() {
    let reserved = |path: &str| {
        let mut host = Host::new(64, 30);
        let claim = Claim {
            container: "db".into(),
            memory: MemoryClaim { reservation: Some(Bytes(GIB)), ..MemoryClaim::default() },
            ..Claim::default()
        };
        let node = NodeProperties {
            mem_total: Bytes(64 * GIB),
            page_size: Bytes(4096),
            ..NodeProperties::default()
        };
        host.memory = MemoryGovernor::new(MemorySettings::default(), vec![claim]);
        host.memory.apply(&HostEvent::Node(node));
        let limits = CgroupSettings { memory_low: Some(At(Bytes(2 * GIB))), ..CgroupSettings::default() };
        host.usage.push((CgroupId(1), Bytes(3 * GIB)));
        host.tell_at(1, 0, path, Some("db"), limits);
        host.pass(60);
        host.answer(CgroupId(1), OrderKind::Protect, OrderOutcome::Foreign);
        let alarmed = has_begun(&host.pass(2), AlertKind::ForeignWriter);
        let again = !protections(&host.pass(31)).is_empty();
        (host.memory.status(CgroupId(1)).unwrap().reservation.get() / GIB, alarmed, again)
    };
    assert_eq!(reserved("/kubepods.slice/kubepods-pod1.slice/db"), (2, false, true));
    assert_eq!(reserved("/kubepods/burstable/pod1/db"), (2, false, true));
    assert_eq!(
        reserved("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod1.slice/db"),
        (2, false, true)
    );
    assert_eq!(reserved("/docker/db"), (1, true, false));
}

#[test]
fn what_the_kubelet_may_have_written_over_is_put_in_force_again() {
    for (path, again) in [("/kubepods/burstable/pod1/db", true), ("/docker/db", false)] {
        let mut host = Host::new(64, 30);
        let limits = CgroupSettings { memory_low: Some(At(Bytes(2 * GIB))), ..CgroupSettings::default() };
        host.usage.push((CgroupId(1), Bytes(3 * GIB)));
        host.tell_at(1, 0, path, Some("db"), limits);
        host.pass(60);
        host.answer(CgroupId(1), OrderKind::Protect, OrderOutcome::Done);
        assert_eq!(!protections(&host.pass(31)).is_empty(), again, "{path}");
    }
}

#[test]
fn a_container_that_waits_for_memory_for_a_tenth_of_the_time_is_pressed() {
    let mut host = Host::new(16, 8);
    let waits = host.group(1, 0, Some("waits"), CgroupSettings::default(), 2);
    let hardly = host.group(2, 0, Some("hardly"), CgroupSettings::default(), 2);
    let uncounted = host.group(3, 0, Some("uncounted"), CgroupSettings::default(), 2);
    host.group(4, 0, Some("quiet"), CgroupSettings::default(), 2);
    host.counted.insert(waits, |second, usage| cache(usage, second, 120, 0));
    host.counted.insert(hardly, |second, usage| cache(usage, second, 80, 0));
    let reads_back = |second, usage| GroupMemory { stalls: None, ..cache(usage, second, 0, GIB / 10) };
    host.counted.insert(uncounted, reads_back);
    host.pass(1);
    assert_eq!(host.memory.stalled_containers().count(), 0, "nothing is known of a period yet");
    host.pass(15);
    assert_eq!(host.memory.stalled_containers().collect::<Vec<_>>(), [waits, uncounted]);
    // The last period alone: what was is over.
    host.counted.insert(waits, |_, usage| cache(usage, 16, 120, 0));
    host.pass(1);
    assert_eq!(host.memory.stalled_containers().collect::<Vec<_>>(), [uncounted]);
}

/// Two neighbours below one limit, the first of which waits for memory and is owed more than it has.
fn poor_and_rich(host: &mut Host, rich: Counted) -> [CgroupId; 2] {
    let pool = host.group(1, 0, None, max(8), 8);
    let low =
        |gib: u64| CgroupSettings { memory_low: Some(At(Bytes(gib * GIB))), ..CgroupSettings::default() };
    let ids =
        [host.group(2, pool.0, Some("poor"), low(4), 2), host.group(3, pool.0, Some("rich"), low(1), 6)];
    host.counted.insert(ids[0], |second, usage| cache(usage, second, 500, GIB));
    host.counted.insert(ids[1], rich);
    ids
}

#[test]
fn a_container_that_can_give_nothing_is_asked_for_it() {
    let mut host = Host::new(16, 8);
    // Anonymous memory, and no swap; it has use for it.
    let [_, rich] = poor_and_rich(&mut host, |second, usage| GroupMemory {
        anon: usage,
        ..cache(Bytes::ZERO, second, 500, GIB / 64)
    });
    let orders = host.pass(60);
    assert!(!orders.iter().any(|order| taken(order, rich).is_some()), "{orders:?}");
    let status = host.memory.status(rich).unwrap();
    let shown = status.view_ceiling.value().unwrap();
    assert!((status.entitlement..status.usage).contains(&shown), "{status:?}");
}

#[test]
fn shared_memory_that_is_mapped_takes_nothing_off_the_page_cache() {
    let mut host = Host::new(16, 8);
    let [_, rich] = poor_and_rich(&mut host, |second, usage| GroupMemory {
        shmem: Bytes(3 * GIB),
        mapped: Bytes(3 * GIB + GIB / 2),
        inactive_file: Bytes(3 * GIB),
        ..cache(usage, second, 0, 0)
    });
    host.pass(2);
    // Half a GiB is run from.
    assert_eq!(host.memory.status(rich).unwrap().reclaimable, Bytes(5 * GIB / 2));
}

#[test]
fn a_container_that_can_give_nothing_does_not_stand_before_one_that_can() {
    let mut host = Host::new(16, 8);
    let pool = host.group(1, 0, None, max(8), 8);
    let poor = host.group(2, pool.0, Some("poor"), max(2), 1);
    let heap = host.group(3, pool.0, Some("heap"), CgroupSettings::default(), 5);
    let files = host.group(4, pool.0, Some("files"), CgroupSettings::default(), 2);
    // What it can use more would be one step of the largest.
    host.usage[1].1 = Bytes(2 * GIB - GIB / 16);
    host.counted.insert(poor, |second, usage| cache(usage, second, 500, GIB));
    host.counted
        .insert(heap, |second, usage| GroupMemory { anon: usage, ..cache(Bytes::ZERO, second, 0, 0) });
    host.counted.insert(files, |second, usage| cache(usage, second, 0, 0));
    let orders = host.pass(60);
    assert!(orders.iter().any(|order| taken(order, files).is_some()), "{:?}", host.memory.status(files));
    assert!(!orders.iter().any(|order| taken(order, heap).is_some()));
}

#[test]
fn a_limit_around_one_container_is_its_own_and_no_pool() {
    let mut host = Host::new(16, 1);
    // A pod with a limit and one container; and one without, whose reservation the first may not eat.
    let pod = host.group(1, 0, None, max(4), 3);
    let greedy = host.group(2, pod.0, Some("greedy"), CgroupSettings::default(), 3);
    let low = CgroupSettings { memory_low: Some(At(Bytes(12 * GIB))), ..CgroupSettings::default() };
    let poor = host.group(3, 0, Some("poor"), low, 10);
    for id in [greedy, poor] {
        host.counted.insert(id, |second, usage| cache(usage, second, 500, GIB));
    }
    let node = host.free;
    host.free = Bytes(node.get() / 16);
    let orders = host.pass(60);
    let pools: Vec<&str> = host.memory.pools().iter().map(|pool| &*pool.path).collect();
    assert_eq!(pools, ["/"]);
    assert!(host.memory.status(greedy).unwrap().entitlement <= Bytes(4 * GIB));
    assert!(orders.iter().any(|order| taken(order, greedy).is_some()), "{:?}", host.memory.status(greedy));
    // With a second container there is something to divide.
    host.group(4, pod.0, Some("beside"), CgroupSettings::default(), 0);
    host.pass(1);
    assert_eq!(host.memory.pools().len(), 2);
}

/// A machine that is short, a pod of 8 GiB with two containers, and one beside it. Each container `waits` for memory, or else has page
/// cache that it does not read again; `gib` is what each has.
fn pod_and_beside(free: u64, waits: [bool; 3], gib: [u64; 3]) -> (Host, [CgroupId; 3]) {
    let mut host = Host::new(16, free);
    host.free = Bytes(GIB * free / 16);
    let pod = host.group(1, 0, None, max(8), gib[0] + gib[1]);
    let app = host.group(2, pod.0, Some("app"), CgroupSettings::default(), gib[0]);
    let sidecar = host.group(3, pod.0, Some("sidecar"), CgroupSettings::default(), gib[1]);
    let beside = host.group(4, 0, Some("beside"), CgroupSettings::default(), gib[2]);
    let all = [app, sidecar, beside];
    for (id, waits) in all.into_iter().zip(waits) {
        let counted: Counted = match waits {
            true => |second, usage| cache(usage, second, 500, GIB),
            false => |second, usage| cache(usage, second, 0, 0),
        };
        host.counted.insert(id, counted);
    }
    (host, all)
}

#[test]
fn a_pod_of_several_containers_lends_to_others_outside_of_it() {
    let (mut host, [app, sidecar, beside]) = pod_and_beside(1, [false, false, true], [6, 1, 8]);
    let orders = host.pass(60);
    let gives = |id| orders.iter().any(|order| taken(order, id).is_some());
    assert!(gives(app) && !gives(beside), "{:?}", host.memory.status(app));
    assert!(host.memory.status(sidecar).is_some());
    let pools: Vec<(&str, usize)> =
        host.memory.pools().iter().map(|pool| (&*pool.path, pool.containers)).collect();
    assert_eq!(pools, [("/", 3), ("/group1", 2)]);
}

#[test]
fn no_container_outside_gives_for_a_pod_that_is_full() {
    // The pod's own limit is what its container meets: only the other one in it can help.
    let (mut host, [app, sidecar, beside]) = pod_and_beside(1, [true, false, false], [5, 3, 7]);
    let orders = host.pass(60);
    let gives = |id| orders.iter().any(|order| taken(order, id).is_some());
    assert!(gives(sidecar) && !gives(beside) && !gives(app), "{:?}", host.memory.status(beside));
}

#[test]
fn in_a_pod_no_container_is_owed_more_than_its_limit() {
    let (mut host, all) = pod_and_beside(8, [true; 3], [4, 4, 7]);
    host.pass(60);
    let owed = all.map(|id| host.memory.status(id).unwrap().entitlement.get() as f64 / GIB as f64);
    assert!((owed[0] - 4.0).abs() < 0.1 && (owed[1] - 4.0).abs() < 0.1, "{owed:?}");
    // The third is owed what the pod's limit of 8 GiB leaves: 16 GiB less the margin, 0.5 GiB outside of containers, and 8 GiB.
    assert!((6.9..7.1).contains(&owed[2]), "{owed:?}");
}

#[test]
fn what_containers_in_a_slice_are_owed_leaves_others_theirs() {
    let mut host = Host::new(16, 1);
    let slice = host.group(1, 0, None, max(14), 10);
    let pod = host.group(2, slice.0, None, CgroupSettings::default(), 6);
    let low = CgroupSettings { memory_low: Some(At(Bytes(3 * GIB))), ..CgroupSettings::default() };
    let all = [
        host.group(3, pod.0, Some("poor"), low, 6),
        host.group(4, slice.0, Some("beside"), CgroupSettings::default(), 4),
        host.group(5, 0, Some("alone"), low, 5),
    ];
    for id in all {
        host.counted.insert(id, |second, usage| cache(usage, second, 500, GIB));
    }
    let orders = protections(&host.pass(60));
    let kept = all.map(|id| orders.iter().rfind(|p| p.group == id).unwrap().low.get() as f64 / GIB as f64);
    // 15.5 for all three, of which 3 and 3 are reserved, and the rest is divided evenly.
    let close = |kept: f64, owed: f64| (0.94 * owed..0.96 * owed).contains(&kept);
    assert!(close(kept[0], 6.17) && close(kept[1], 3.17) && close(kept[2], 6.17), "{kept:?}");
}
