//! Scenarios with a name.

use super::program::{MemoryProgram, MemoryTenant, OfferedLoad, ProbeBehaviour};
use super::scenario::{MemcgVersion, MemoryScenario};
use elbowroom_types::claim::{Claim, MemoryClaim};
use elbowroom_types::probe::Colour;
use elbowroom_types::unit::{Bytes, Limit, Micros};

/// A load that is more than can be served, and one that is not noticed.
const HIGH: f64 = 3000.0;
const LOW: f64 = 5.0;
/// How long both run before the first phase, so that memory is full.
const WARM: Micros = Micros::secs(120);
/// What each container of the six phases is promised, and what static limits give it.
const A: (Bytes, Bytes) = (Bytes::mib(2400), Bytes::mib(2500));
const B: (Bytes, Bytes) = (Bytes::mib(1300), Bytes::mib(1400));

/// The experiment of the paper: two databases that are larger than memory together, both busy, one, the other, none; each phase
/// this long. Before the first, both fill memory.
pub fn six_phases(kernel: MemcgVersion, phase: Micros) -> MemoryScenario {
    let at = |n: u64| WARM.saturating_add(Micros(phase.get() * n));
    let loads = |offered: [f64; 6]| {
        let loads = offered.iter().enumerate().map(|(n, offered)| OfferedLoad {
            from: if n == 0 { Micros::ZERO } else { at(n as u64) },
            offered: *offered,
        });
        loads.collect::<Vec<_>>()
    };
    let a = MemoryProgram {
        loads: loads([HIGH, HIGH, HIGH, LOW, LOW, 0.0]),
        objective: 1600.0,
        miss_seconds: 7.1e-3,
        service_seconds: 2.96e-3,
        ..database(3600)
    };
    let b = MemoryProgram {
        loads: loads([HIGH, LOW, HIGH, LOW, HIGH, HIGH]),
        objective: 1200.0,
        miss_seconds: 6.2e-3,
        service_seconds: 3.07e-3,
        ..database(3400)
    };
    let mut a = tenant("a", a, A);
    a.stops_at = Some(at(5));
    MemoryScenario {
        name: format!("six phases, {kernel:?}").to_lowercase(),
        tenants: vec![a, tenant("b", b, B)],
        duration: at(6),
        kernel,
        phases: (0..6).map(at).collect(),
        ..machine(4096)
    }
}

/// One that lies beside one that does not: it says that it serves nothing of what it should, whatever it gets.
pub fn liar(kernel: MemcgVersion, behaviour: ProbeBehaviour) -> MemoryScenario {
    let mut scenario = six_phases(kernel, Micros::secs(60));
    scenario.name = format!("liar, {kernel:?}, {behaviour:?}").to_lowercase();
    let [a, b] = &mut scenario.tenants[..] else { return scenario };
    a.program.loads = vec![OfferedLoad { from: Micros::ZERO, offered: HIGH }];
    a.stops_at = None;
    b.program.loads = vec![OfferedLoad { from: Micros::ZERO, offered: HIGH }];
    b.program.data = Bytes::gib(16);
    b.probe = behaviour;
    scenario
}

/// Two databases: one idle and busy in turn, twenty times; the other always busy.
pub fn cycles(kernel: MemcgVersion) -> MemoryScenario {
    const TURN: u64 = 30;
    let mut scenario = six_phases(kernel, Micros::secs(TURN));
    scenario.name = format!("twenty cycles, {kernel:?}").to_lowercase();
    let at = |n: u64| WARM.saturating_add(Micros::secs(TURN * n));
    let [a, b] = &mut scenario.tenants[..] else { return scenario };
    a.stops_at = None;
    a.program.loads = (0..=40)
        .map(|n| OfferedLoad {
            from: if n == 0 { Micros::ZERO } else { at(n - 1) },
            offered: if n % 2 == 0 { HIGH } else { LOW },
        })
        .collect();
    b.program.loads = vec![OfferedLoad { from: Micros::ZERO, offered: HIGH }];
    scenario.phases = (0..40).map(at).collect();
    scenario.duration = at(40);
    scenario
}

/// One that is idle until memory was lent of it, and wants all of it back in that moment.
pub fn ambush(kernel: MemcgVersion) -> MemoryScenario {
    let mut scenario = cycles(kernel);
    scenario.name = format!("ambush, {kernel:?}").to_lowercase();
    let a = &mut scenario.tenants[0];
    a.program.loads =
        vec![OfferedLoad { from: Micros::ZERO, offered: HIGH }, OfferedLoad { from: WARM, offered: LOW }];
    a.program.ambush = true;
    scenario.phases = (0..40).map(|n| WARM.saturating_add(Micros::secs(30 * n))).collect();
    scenario
}

/// The usual lies.
pub fn lies() -> [ProbeBehaviour; 3] {
    [ProbeBehaviour::Fixed(Colour::Red), ProbeBehaviour::Scaled(0.1), ProbeBehaviour::Fixed(Colour::Yellow)]
}

/// A machine with nothing on it.
pub(super) fn machine(mib: u64) -> MemoryScenario {
    MemoryScenario {
        name: String::new(),
        memory: Bytes::mib(mib + mib / 16),
        system: Bytes::mib(mib / 32),
        swap: Bytes::ZERO,
        tenants: Vec::new(),
        pool_limit: None,
        duration: Micros::ZERO,
        kernel: MemcgVersion::V2,
        stalls: true,
        reclaims: true,
        enforced: true,
        foreign_write_at: None,
        noise: 0.01,
        phases: Vec::new(),
    }
}

/// A database with this many MiB of data.
fn database(mib: u64) -> MemoryProgram {
    MemoryProgram {
        anon: Bytes::mib(250),
        data: Bytes::mib(mib),
        skew: 0.6,
        bytes_per_request: Bytes::kib(128),
        workers: 8.0,
        service_seconds: 3e-3,
        miss_seconds: 6e-3,
        loads: Vec::new(),
        objective: 1000.0,
        mapped: 0.0,
        ambush: false,
        elastic: false,
    }
}

fn tenant(name: &str, program: MemoryProgram, (reservation, max): (Bytes, Bytes)) -> MemoryTenant {
    let memory = MemoryClaim { reservation: Some(reservation), ..MemoryClaim::default() };
    MemoryTenant {
        name: name.to_owned(),
        claim: Some(Claim { container: name.to_owned(), memory, ..Claim::default() }),
        max: Limit::At(max),
        keeps_max: false,
        low: max,
        program,
        probe: ProbeBehaviour::Honest,
        stops_at: None,
    }
}
