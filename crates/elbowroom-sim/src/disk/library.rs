//! Scenarios with a name: the workloads of the paper's figures, and what the paper left out.

use super::program::{DiskProgram, DiskTenant, IoMethod, Pattern};
use super::scenario::{Burst, DiskScenario, Drive, IoCgroupVersion};
use elbowroom_types::claim::{Claim, DiskReservation, ServiceClass};
use elbowroom_types::io::{IoMax, IoWeightMechanism};
use elbowroom_types::unit::{Limit, Micros};

/// How large a disk is, and what requests to it look like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskScale {
    /// As it appears in names.
    pub name: &'static str,
    /// Bytes per second.
    pub bps: f64,
    /// Requests per second.
    pub iops: f64,
    /// What a request takes on an idle disk.
    pub latency: Micros,
    /// How sharply it slows down when it is full.
    pub knee: f64,
    /// Bytes per request.
    pub size: u32,
    /// Requests that a victim keeps under way at most.
    pub depth: u32,
    /// Bytes per request of bursts and hogs, in sizes of a victim's.
    pub coarse: u32,
    /// For how long what a victim did not get is still wanted.
    pub owed: Micros,
}

/// The paper's disk: throttled to 1 MB/s.
pub const PAPER: DiskScale = DiskScale {
    name: "1 MB/s",
    bps: 1e6,
    iops: 1e4,
    latency: Micros(200),
    knee: 4.0,
    size: 4096,
    depth: 1,
    coarse: 1,
    owed: Micros::ZERO,
};

/// Throttled to 200 MB/s, which 64 KiB requests exhaust.
pub const LARGE: DiskScale = DiskScale {
    name: "200 MB/s",
    bps: 200e6,
    iops: 20e3,
    latency: Micros(100),
    knee: 4.0,
    size: 65536,
    depth: 4,
    coarse: 1,
    owed: Micros::ZERO,
};

/// The disk of `lab disk`: bytes are all that counts, and bursts make larger requests than victims.
pub const LAB: DiskScale = DiskScale {
    name: "1 MB/s, lab",
    knee: 2.0,
    latency: Micros(2000),
    depth: 2,
    coarse: 2,
    owed: Micros::secs(1),
    ..PAPER
};

/// Flash with 20 000 requests per second, which 4 KiB requests exhaust.
pub const FLASH: DiskScale = DiskScale { name: "20 kIOPS", knee: 1.0, size: 4096, ..LARGE };

/// Until then all do what they are used to: long enough for the 30 samples of Aridac.
const BURST_FROM: Micros = Micros::secs(40);

/// Every scenario here.
pub fn all() -> Vec<DiskScenario> {
    let figures = [PAPER, LARGE, FLASH, LAB].into_iter().flat_map(figures);
    let others = [
        async_hog(),
        latency_victim(),
        reservation(),
        tiers(),
        many(),
        two_disks(),
        overcommit(),
        weights(),
        user_limit(),
        buffered(IoCgroupVersion::V1),
        buffered(IoCgroupVersion::V2),
        journal(),
    ];
    let returns = [PAPER, LARGE, FLASH, LAB].map(hog_returns);
    figures.chain(returns).chain(others).collect()
}

/// The paper's workloads at one scale: W1 to W4.
pub fn figures(scale: DiskScale) -> [DiskScenario; 4] {
    [w1(scale), w2(scale), w3(scale), w4(scale)]
}

/// A victim with 20 % of the disk beside one that has 20 % and then wants all of it twice over, for good.
pub fn w1(scale: DiskScale) -> DiskScenario {
    let lasts = Micros::secs(160);
    let scenario =
        scale.scenario("W1 burst stays", vec![scale.victim(0.2), scale.burst(&[(BURST_FROM, lasts)])]);
    DiskScenario { duration: lasts, bursts: judged(1, &[(BURST_FROM, lasts)]), ..scenario }
}

/// The same with a burst that ends after 40 s, and comes back 30 s later.
pub fn w2(scale: DiskScale) -> DiskScenario {
    let spans = [(40, 80), (110, 150)].map(|(from, to)| (Micros::secs(from), Micros::secs(to)));
    let scenario = scale.scenario("W2 burst returns", vec![scale.victim(0.2), scale.burst(&spans)]);
    DiskScenario { duration: Micros::secs(160), bursts: judged(1, &spans), ..scenario }
}

/// Two that take turns of 20 s, each with 60 % of the disk and then 20 %, on a disk that does 55 % between the 50th and the 110th
/// second: the paper's Figure 8.
pub fn w3(scale: DiskScale) -> DiskScenario {
    let turns = |name, first, second| {
        let [first, second] = [first, second].map(|part| scale.part(part));
        DiskTenant::new(
            name,
            scale
                .program(Pattern::turns(first, second, Micros::secs(20)), 4 * scale.depth)
                .with_lifeline(first.max(second)),
        )
    };
    let mut scenario =
        scale.scenario("W3 turns, slow disk", vec![turns("a", 0.6, 0.2), turns("b", 0.2, 0.6)]);
    scenario.drives[0].changes = vec![(Micros::secs(50), 0.55), (Micros::secs(110), 1.0)];
    DiskScenario { duration: Micros::secs(180), ..scenario }
}

/// A victim with 30 % of the disk beside a hog that did 10 % and wants all of it from the 40th second until 10 s before the
/// end; the disk does 55 % between the 105th and the 170th second.
pub fn w4(scale: DiskScale) -> DiskScenario {
    let hog_wants = (BURST_FROM, Micros::secs(235));
    let wants = Pattern::bursts(scale.part(0.1), Limit::Max, &[hog_wants]);
    let hog = DiskTenant::new("hog", scale.coarse(wants, 64));
    let mut scenario = scale.scenario("W4 hog, slow disk", vec![scale.victim(0.3), hog]);
    scenario.drives[0].changes = vec![(Micros::secs(105), 0.55), (Micros::secs(170), 1.0)];
    DiskScenario { duration: Micros::secs(245), bursts: judged(1, &[hog_wants]), ..scenario }
}

/// A victim with 30 % of the disk beside a hog that did 10 %, wants all of it for a minute, goes, and comes back after half of one. Twice,
/// while the hog is there, the disk does half for 20 s.
pub fn hog_returns(scale: DiskScale) -> DiskScenario {
    let spans = [(40, 100), (130, 190)].map(|(from, to)| (Micros::secs(from), Micros::secs(to)));
    let wants = Pattern::bursts(scale.part(0.1), Limit::Max, &spans);
    let hog = DiskTenant::new("hog", scale.coarse(wants, 64));
    let mut scenario = scale.scenario("hog returns, slow disk", vec![scale.victim(0.3), hog]);
    scenario.drives[0].changes =
        [(60, 0.5), (80, 1.0), (145, 0.5), (165, 1.0)].map(|(at, part)| (Micros::secs(at), part)).to_vec();
    DiskScenario { duration: Micros::secs(200), bursts: judged(1, &spans), ..scenario }
}

/// W1 with a burst whose requests are submitted and collected: pressure does not show that it waits.
pub fn async_hog() -> DiskScenario {
    let mut scenario = w1(LARGE);
    let burst = &mut scenario.tenants[1].programs[0];
    (burst.method, burst.depth) = (IoMethod::Async, 256);
    scenario.named("async hog")
}

/// W1 with a victim that reads little, one request at a time, and says that time is what it cares for.
pub fn latency_victim() -> DiskScenario {
    let mut scenario = w1(LARGE);
    let victim = DiskProgram::reads(Pattern::constant(Limit::At(5_000_000)));
    let claim = Claim { class: ServiceClass::Latency, ..Claim::default() };
    scenario.tenants[0] = DiskTenant::new("victim", victim.with_lifeline(5_000_000)).with_claim(claim);
    scenario.named("latency class victim")
}

/// A container that comes when a hog has long had the disk, with a reservation of a quarter of it.
pub fn reservation() -> DiskScenario {
    let rate = LARGE.part(0.25);
    let claim = Claim {
        disk: DiskReservation { rbps: Some(rate), ..DiskReservation::default() },
        ..Claim::default()
    };
    let late =
        DiskTenant::new("late", LARGE.program(Pattern::constant(Limit::At(rate)), 8).with_lifeline(rate))
            .with_claim(claim);
    let late = DiskTenant { from: Micros::secs(60), ..late };
    LARGE.scenario("reservation", vec![late, LARGE.hog()])
}

/// One of a higher tier that wants 60 % of the disk from the 40th second on, beside a hog.
pub fn tiers() -> DiskScenario {
    let rate = LARGE.part(0.6);
    let wants = Pattern::bursts(0, Limit::At(rate), &[(Micros::secs(40), Micros::secs(120))]);
    let upper = DiskTenant::new("upper", LARGE.program(wants, 8).with_lifeline(rate));
    LARGE.scenario("tiers", vec![upper.with_claim(Claim { tier: 1, ..Claim::default() }), LARGE.hog()])
}

/// Twenty victims with 2 % each, and a burst.
pub fn many() -> DiskScenario {
    let victim = |i| {
        let rate = LARGE.part(0.02);
        DiskTenant::new(
            &format!("victim-{i}"),
            LARGE.program(Pattern::constant(Limit::At(rate)), 1).with_lifeline(rate),
        )
    };
    let mut tenants: Vec<DiskTenant> = (0..20).map(victim).collect();
    let mut burst = LARGE.burst(&[(BURST_FROM, Micros::secs(120))]);
    burst.programs[0].depth = 256;
    tenants.push(burst);
    DiskScenario {
        bursts: judged(20, &[(BURST_FROM, Micros::secs(120))]),
        ..LARGE.scenario("many containers", tenants)
    }
}

/// A victim on a fast disk, which it shares with a modest container, and on a slow one, which it shares with a hog.
pub fn two_disks() -> DiskScenario {
    let slow = DiskScale { bps: 20e6, iops: 2e3, ..LARGE };
    let on_slow =
        |tenant: DiskTenant| tenant.programs.into_iter().map(|program| DiskProgram { disk: 1, ..program });
    let (mut victim, mut hog) = (LARGE.victim(0.2), slow.hog());
    victim.programs.extend(on_slow(slow.victim(0.2)));
    hog.programs = on_slow(slow.hog()).collect();
    let modest = DiskTenant { name: "modest".to_owned(), ..LARGE.victim(0.2) };
    let mut scenario = LARGE.scenario("two disks", vec![victim, modest, hog]);
    scenario.drives.push(slow.drive());
    scenario
}

/// Three reservations of half the disk each, all of them used.
pub fn overcommit() -> DiskScenario {
    let rate = LARGE.part(0.5);
    let claim = Claim {
        disk: DiskReservation { rbps: Some(rate), ..DiskReservation::default() },
        ..Claim::default()
    };
    let tenant = |name| {
        DiskTenant::new(name, LARGE.program(Pattern::constant(Limit::Max), 16).with_lifeline(LARGE.part(0.3)))
            .with_claim(claim.clone())
    };
    LARGE.scenario("overcommit", ["a", "b", "c"].map(tenant).to_vec())
}

/// W4 on a disk that iocost divides by weight.
pub fn weights() -> DiskScenario {
    let mut scenario = w4(LARGE);
    scenario.drives[0].weights = Some(IoWeightMechanism::Iocost);
    scenario.named("W4 with iocost")
}

/// W1 with a burst whose user limited it to 70 % of the disk.
pub fn user_limit() -> DiskScenario {
    let mut scenario = w1(LARGE);
    scenario.tenants[1].user_max = IoMax { rbps: Limit::At(LARGE.part(0.7)), ..IoMax::MAX };
    scenario.named("user's limit")
}

/// A victim that reads beside one that writes through the page cache as much as it can.
pub fn buffered(kernel: IoCgroupVersion) -> DiskScenario {
    let mut scenario = w1(LARGE);
    let burst = &mut scenario.tenants[1].programs[0];
    (burst.method, burst.backlog) = (IoMethod::Buffered, Micros::secs(2));
    DiskScenario { kernel, ..scenario }.named(match kernel {
        IoCgroupVersion::V1 => "buffered writes, v1",
        IoCgroupVersion::V2 => "buffered writes, v2",
    })
}

/// The same on v2 with a file system whose journal waits for the container that we hold back.
pub fn journal() -> DiskScenario {
    DiskScenario { journal: true, ..buffered(IoCgroupVersion::V2) }.named("journal held by a limit")
}

fn judged(tenant: usize, spans: &[(Micros, Micros)]) -> Vec<Burst> {
    spans.iter().map(|&(from, until)| Burst { tenant, from, until }).collect()
}

impl DiskScenario {
    fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }
}

impl DiskScale {
    fn drive(self) -> Drive {
        Drive { knee: self.knee, ..Drive::new(self.bps, self.iops, self.latency) }
    }

    /// This part of the disk, in bytes per second.
    fn part(self, part: f64) -> u64 {
        let size = f64::from(self.size);
        (part * size / self.drive().speed.cost(size, 1.0)) as u64
    }

    fn program(self, wants: Pattern, depth: u32) -> DiskProgram {
        DiskProgram { size: self.size, depth, ..DiskProgram::reads(wants) }
    }

    fn coarse(self, wants: Pattern, depth: u32) -> DiskProgram {
        DiskProgram { size: self.coarse * self.size, ..self.program(wants, depth) }
    }

    fn victim(self, part: f64) -> DiskTenant {
        let rate = self.part(part);
        let program = self.program(Pattern::constant(Limit::At(rate)), self.depth);
        DiskTenant::new("victim", DiskProgram { backlog: self.owed, ..program }.with_lifeline(rate))
    }

    fn burst(self, spans: &[(Micros, Micros)]) -> DiskTenant {
        let wants = Pattern::bursts(self.part(0.2), Limit::At(self.part(2.0)), spans);
        DiskTenant::new("burst", self.coarse(wants, 32))
    }

    fn hog(self) -> DiskTenant {
        DiskTenant::new("hog", self.coarse(Pattern::constant(Limit::Max), 64))
    }

    fn scenario(self, name: &str, tenants: Vec<DiskTenant>) -> DiskScenario {
        DiskScenario::new(&format!("{name}, {}", self.name), self.drive(), tenants)
    }
}
