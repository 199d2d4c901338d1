//! Saving on a small model: a container has pages that it reads and pages that it does not. The kernel, asked for some, takes first
//! the pages that are not read, and a few that are.

use elbowroom_govern::GovernorMode;
use elbowroom_govern::memory::{MemoryGovernor, MemorySettings, SavingStatus};
use elbowroom_types::claim::{Claim, MemoryClaim};
use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
use elbowroom_types::id::CgroupId;
use elbowroom_types::label::{ContainerLabels, LabelPolicy};
use elbowroom_types::memory::{
    GroupMemory, MemoryOrder, MemoryTick, NodeMemory, OrderCompletion, OrderKind, OrderOutcome,
    ReclaimRequest, StallTotals,
};
use elbowroom_types::sample::{CgroupProperties, CgroupSettings, HostEvent, NodeProperties};
use elbowroom_types::unit::{Bytes, Limit, Micros};

const MIB: f64 = (1 << 20) as f64;
const BUDGET: f64 = 0.001;

/// A container; sizes in MiB.
#[derive(Clone, Debug)]
struct Program {
    labels: &'static [(&'static str, &'static str)],
    /// What it reads, what of that is in memory, and how much of it it reads in a second, evenly.
    working_set: f64,
    resident: f64,
    reads: f64,
    /// Page cache that it does not read any more.
    idle: f64,
    anon: f64,
    /// The part of what the kernel takes that was in use, though there are pages that are not.
    mistaken: f64,
    /// Seconds that it waits for a MiB that it has to read back.
    wait_per_mib: f64,
    counts_pressure: bool,
    /// How the kernel answers.
    answers: Option<OrderOutcome>,
    refault: f64,
    waited: f64,
    rbytes: f64,
}

const PROGRAM: Program = Program {
    labels: &[],
    working_set: 100.0,
    resident: 100.0,
    reads: 50.0,
    idle: 200.0,
    anon: 0.0,
    mistaken: 0.0,
    wait_per_mib: 0.001,
    counts_pressure: true,
    answers: None,
    refault: 0.0,
    waited: 0.0,
    rbytes: 0.0,
};

impl Program {
    fn usage(&self) -> f64 {
        self.resident + self.idle + self.anon
    }

    fn second(&mut self) {
        let missing = self.working_set - self.resident;
        let back = (self.reads * missing / self.working_set).min(missing);
        self.resident += back;
        self.refault += back;
        self.rbytes += back;
        self.waited += (back * self.wait_per_mib).min(1.0);
    }

    /// What the kernel takes of what is asked.
    fn give(&mut self, asked: f64, swap: bool) -> f64 {
        let before = self.usage();
        let wrong = (asked * self.mistaken).min(self.resident);
        let idle = (asked - wrong).min(self.idle);
        let swapped = if swap { (asked - wrong - idle).min(self.anon) } else { 0.0 };
        let rest = (asked - wrong - idle - swapped).min(self.resident - wrong);
        self.resident -= wrong + rest;
        self.idle -= idle;
        self.anon -= swapped;
        before - self.usage()
    }

    fn sample(&self, swap_room: Bytes) -> GroupMemory {
        let size = |mib: f64| Bytes((mib * MIB) as u64);
        let time = |seconds: f64| Micros((seconds * 1e6) as u64);
        GroupMemory {
            usage: size(self.usage()),
            anon: size(self.anon),
            file: size(self.resident + self.idle),
            inactive_file: size(self.idle),
            active_file: size(self.resident),
            swap_room,
            refault_file: size(self.refault),
            rbytes: size(self.rbytes),
            stalls: self
                .counts_pressure
                .then(|| StallTotals { memory_some: time(self.waited), ..StallTotals::default() }),
            populated: true,
            ..GroupMemory::default()
        }
    }
}

/// A machine with containers.
struct Host {
    governor: MemoryGovernor,
    programs: Vec<Program>,
    seconds: u64,
    node: NodeMemory,
    /// What was ordered last.
    saves: Vec<ReclaimRequest>,
}

impl Host {
    fn new(programs: &[Program], claims: Vec<Claim>) -> Self {
        let settings =
            MemorySettings { mode: GovernorMode::Enforce, saving: true, ..MemorySettings::default() };
        Self::with(settings, programs, claims)
    }

    fn with(settings: MemorySettings, programs: &[Program], claims: Vec<Claim>) -> Self {
        let mut governor = MemoryGovernor::new(settings, claims);
        let (mem_total, page_size) = (Bytes::gib(8), Bytes(4096));
        governor.apply(&HostEvent::Node(NodeProperties {
            mem_total,
            page_size,
            ..NodeProperties::default()
        }));
        for (n, program) in programs.iter().enumerate() {
            governor.apply(&group(n, program, CgroupSettings::default()));
        }
        let free = Bytes::gib(6);
        let node = NodeMemory { mem_free: free, mem_available: free, ..NodeMemory::default() };
        Self { governor, programs: programs.to_vec(), seconds: 0, node, saves: Vec::new() }
    }

    /// A container has other settings.
    fn tell(&mut self, n: usize, limits: CgroupSettings) {
        self.governor.apply(&group(n, &self.programs[n], limits));
    }

    /// Some seconds pass; how many steps were ordered.
    fn pass(&mut self, seconds: u64) -> usize {
        self.saves.clear();
        for _ in 0..seconds {
            self.seconds += 1;
            self.programs.iter_mut().for_each(Program::second);
            let room = self.node.swap_free;
            let named = self.programs.iter().enumerate();
            let groups = named.map(|(n, program)| (CgroupId(n as u64 + 1), program.sample(room))).collect();
            let now = Micros::secs(self.seconds);
            let tick = MemoryTick { now, node: self.node, groups };
            for order in self.governor.apply(&HostEvent::MemoryTick(tick)) {
                let MemoryOrder::Reclaim(order) = order else { continue };
                assert!(order.saving, "nothing else is to be taken here: {order:?}");
                self.saves.push(order);
                let program = &mut self.programs[order.group.0 as usize - 1];
                let asked = order.amount.get() as f64 / MIB;
                let taken = match program.answers {
                    None => program.give(asked, order.swap),
                    Some(_) => 0.0,
                };
                let outcome = program.answers.clone().unwrap_or(OrderOutcome::Done);
                let (group, what) = (order.group, OrderKind::Reclaim);
                let reclaimed = Bytes((taken * MIB) as u64);
                self.governor.apply(&HostEvent::MemoryDone(OrderCompletion {
                    now,
                    group,
                    what,
                    outcome,
                    reclaimed,
                }));
            }
        }
        self.saves.len()
    }

    fn saving(&self, n: u64) -> SavingStatus {
        self.governor.status(CgroupId(n + 1)).unwrap().saving.unwrap()
    }

    fn saved(&self, n: u64) -> f64 {
        self.saving(n).saved.get() as f64 / MIB
    }
}

fn group(n: usize, program: &Program, limits: CgroupSettings) -> HostEvent {
    let name = format!("c{n}");
    let container = ContainerIdentity {
        id: name.clone(),
        name: Some(name.clone()),
        engine: ContainerEngine::Docker,
        pod: None,
        labels: ContainerLabels::parse(program.labels.iter().copied(), LabelPolicy::All),
    };
    HostEvent::Group(CgroupProperties {
        id: CgroupId(n as u64 + 1),
        parent: None,
        path: format!("/{name}"),
        container: Some(container),
        limits: CgroupSettings { memory_max: Some(Limit::Max), ..limits },
        populated: true,
        made_by_user: false,
    })
}

fn reservation(mib: u64, guaranteed: bool) -> Claim {
    let memory = MemoryClaim { reservation: Some(Bytes::mib(mib)), guaranteed, ..MemoryClaim::default() };
    Claim { container: "*".into(), memory, ..Claim::default() }
}

#[test]
fn what_is_not_read_is_saved_and_what_is_read_stays() {
    let mut host = Host::new(&[PROGRAM], Vec::new());
    assert_eq!(host.pass(1), 0);
    assert!(host.saving(0).because.contains("not measured for long enough"), "{:?}", host.saving(0));
    assert_eq!(host.pass(59), 0, "it starts");
    assert!(host.saving(0).because.contains("less than a minute"), "{:?}", host.saving(0));
    assert!(host.pass(60) > 10);
    assert!(host.saved(0) >= 0.2 * 300.0, "{:?}", host.saving(0));
    assert!(host.saving(0).active);
    assert_eq!(host.programs[0].resident, 100.0);
    // For long, where nothing is left but what it reads.
    host.pass(1_200);
    let program = &host.programs[0];
    assert!(program.idle < 2.0 && program.resident > 97.0, "{program:?}");
    assert!(program.waited < BUDGET * 1_260.0, "{program:?}");
    assert!((host.saved(0) - (300.0 - program.usage())).abs() < 3.0, "{:?} {program:?}", host.saving(0));
}

#[test]
fn the_budget_of_harm_is_kept_on_a_slow_disk_and_with_a_kernel_that_errs() {
    let slow = Program { mistaken: 0.3, wait_per_mib: 0.05, reads: 20.0, ..PROGRAM };
    let mut host = Host::new(&[slow], Vec::new());
    host.pass(660);
    let waited = host.programs[0].waited;
    assert!(waited > 0.0 && waited <= BUDGET * 600.0, "{waited}");
    let before = (host.programs[0].waited, host.pass(600));
    assert!(host.programs[0].waited - before.0 <= BUDGET * 600.0, "{:?}", host.programs[0]);
}

#[test]
fn an_owner_that_returns_has_its_memory_at_once_and_is_left_alone() {
    let idle = Program { reads: 0.0, idle: 0.0, working_set: 300.0, resident: 300.0, ..PROGRAM };
    let mut host = Host::new(&[idle], Vec::new());
    host.pass(180);
    let taken = host.saved(0);
    assert!(taken > 60.0 && host.programs[0].resident < 240.0, "{taken}");
    host.programs[0].reads = 300.0;
    host.pass(1);
    // From now on it has harm, and nothing is taken.
    assert_eq!(host.pass(15), 0, "{:?}", host.saving(0));
    assert!(host.programs[0].resident > 299.0);
    assert!(host.saved(0) < 1.0, "what came back is not saved: {:?}", host.saving(0));
    let status = host.saving(0);
    assert!(!status.active && status.because.contains(" may"), "{status:?}");
    // It waits for nothing any more: less is tried each time.
    let steps = host.pass(600);
    assert!(steps > 0 && steps < 40, "{steps}");
    assert!(host.programs[0].resident > 290.0);
}

#[test]
fn a_reservation_and_a_users_protection_are_never_taken() {
    for guaranteed in [false, true] {
        let idle = Program { reads: 0.0, ..PROGRAM };
        let mut host = Host::new(&[idle], vec![reservation(250, guaranteed)]);
        host.pass(1_200);
        let usage = host.programs[0].usage();
        assert!((250.0..252.0).contains(&usage), "{usage} {:?}", host.saving(0));
        assert_eq!(host.saving(0).because, "the rest is kept for it");
    }
    let mut host =
        Host::new(&[Program { working_set: 1.0, resident: 1.0, idle: 20.0, ..PROGRAM }], Vec::new());
    host.pass(1_200);
    assert!(
        (8.0..9.0).contains(&host.programs[0].usage()),
        "a little is left of any: {:?}",
        host.programs[0]
    );
}

#[test]
fn what_a_user_protects_whole_is_not_taken_beside_a_reservation() {
    let mut host = Host::new(&[Program { reads: 0.0, ..PROGRAM }], vec![reservation(100, false)]);
    host.tell(0, CgroupSettings { memory_low: Some(Limit::Max), ..CgroupSettings::default() });
    assert_eq!(host.pass(600), 0);
    assert_eq!(host.saving(0).because, "the rest is kept for it");
}

#[test]
fn where_nothing_is_enforced_nothing_is_said_to_be_taken() {
    let observes = MemorySettings { saving: true, ..MemorySettings::default() };
    let mut host = Host::with(observes, &[PROGRAM], Vec::new());
    assert_eq!(host.pass(300), 0);
    let status = host.saving(0);
    assert!(!status.active && status.because == "memory.mode is not enforce", "{status:?}");
}

#[test]
fn all_that_is_saved_is_no_more_than_the_machine_has() {
    let log_writer = Program { idle: 4_000.0, ..PROGRAM };
    let mut host = Host::new(&[log_writer.clone(), log_writer.clone(), log_writer], Vec::new());
    let mut taken = 0;
    for _ in 0..60 {
        host.programs.iter_mut().for_each(|program| program.idle = 4_000.0);
        host.pass(10);
        taken += host.saves.iter().map(|order| order.amount.get()).sum::<u64>();
    }
    let saved: u64 = (0..3).map(|n| host.saving(n).saved.get()).sum();
    assert!(taken > 10 << 30 && (7 << 30..=8 << 30).contains(&saved), "{taken} {saved}");
}

#[test]
fn a_label_or_a_claim_says_of_whom() {
    let off = Program { labels: &[("elbowroom.dev/memory-saving", "off")], ..PROGRAM };
    let on = Program { labels: &[("elbowroom.dev/memory-saving", "on")], ..PROGRAM };
    let mut host = Host::new(&[off.clone(), on.clone(), PROGRAM], Vec::new());
    host.pass(120);
    let is_saved =
        |host: &Host| [0, 1, 2].map(|n| host.governor.status(CgroupId(n + 1)).unwrap().saving.is_some());
    assert_eq!(is_saved(&host), [false, true, true]);
    assert_eq!(host.programs[0].usage(), 300.0);
    let enforces = MemorySettings { mode: GovernorMode::Enforce, ..MemorySettings::default() };
    let mut host = Host::with(enforces, &[off, on, PROGRAM], Vec::new());
    host.pass(120);
    assert_eq!(is_saved(&host), [false, true, false]);
    assert!(host.programs[1].usage() < 260.0 && host.programs[2].usage() == 300.0);
}

#[test]
fn without_pressure_of_the_kernel_nothing_is_saved_and_that_is_said() {
    let mut host = Host::new(&[Program { counts_pressure: false, ..PROGRAM }], Vec::new());
    assert_eq!(host.pass(300), 0);
    assert!(host.saving(0).because.contains("memory.pressure: cgroup v2"), "{:?}", host.saving(0));
}

#[test]
fn anonymous_memory_goes_where_there_is_swap_and_a_fifth_of_it_stays_free() {
    let heap = Program { idle: 0.0, working_set: 0.25, resident: 0.25, anon: 300.0, ..PROGRAM };
    let mut host = Host::new(&[heap], Vec::new());
    assert_eq!(host.pass(180), 0, "there is no swap");
    host.node.swap_total = Bytes::gib(1);
    host.node.swap_free = Bytes::mib(150);
    assert_eq!(host.pass(60), 0, "it is nearly full");
    host.node.swap_free = Bytes::mib(900);
    assert!(host.pass(60) > 10 && host.saves.iter().all(|order| order.swap));
    assert!(host.programs[0].anon < 260.0);
}

#[test]
fn memory_that_is_short_and_needed_is_not_saved_but_lent() {
    let needy =
        Program { working_set: 3_000.0, resident: 300.0, reads: 3_000.0, wait_per_mib: 0.0005, ..PROGRAM };
    let mut host = Host::new(&[PROGRAM, needy], Vec::new());
    let (mem_free, mem_available) = (Bytes::mib(20), Bytes::mib(20));
    host.node = NodeMemory { mem_free, mem_available, ..host.node };
    for _ in 0..120 {
        host.programs[1].resident = 300.0; // it never has what it needs
        host.seconds += 1;
        host.programs.iter_mut().for_each(Program::second);
        let now = Micros::secs(host.seconds);
        let groups = vec![
            (CgroupId(1), host.programs[0].sample(Bytes::ZERO)),
            (CgroupId(2), host.programs[1].sample(Bytes::ZERO)),
        ];
        let orders = host.governor.apply(&HostEvent::MemoryTick(MemoryTick { now, node: host.node, groups }));
        let saving =
            orders.iter().filter(|order| matches!(order, MemoryOrder::Reclaim(order) if order.saving));
        assert_eq!(saving.count(), 0, "second {}", host.seconds);
    }
    assert_eq!(host.saving(0).because, "memory moves between containers: lending goes first");
}

#[test]
fn a_kernel_that_refuses_or_finds_nothing_is_not_asked_again_at_once() {
    let refuses = Some(OrderOutcome::Refused("no memory.reclaim here".to_owned()));
    let mut host = Host::new(&[Program { answers: refuses, ..PROGRAM }], Vec::new());
    assert_eq!(host.pass(600), 1);
    assert_eq!(host.saving(0).because, "no memory.reclaim here");
    assert_eq!(host.saved(0), 0.0);
    let mut host = Host::new(&[Program { answers: Some(OrderOutcome::Partly), ..PROGRAM }], Vec::new());
    assert!((4..=6).contains(&host.pass(600)), "{}", host.saves.len());
    assert!(host.saving(0).because.starts_with("the kernel found 0B of "), "{:?}", host.saving(0));
}

#[test]
fn of_many_containers_a_few_give_at_a_time_and_all_in_turn() {
    let mut host = Host::new(&vec![PROGRAM; 40], Vec::new());
    host.pass(60);
    for _ in 0..20 {
        assert!(host.pass(1) <= 8);
    }
    let usages: Vec<f64> = host.programs.iter().map(Program::usage).collect();
    assert!(usages.iter().all(|usage| *usage < 290.0), "{usages:?}");
}
