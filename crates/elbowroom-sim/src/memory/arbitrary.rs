//! A scenario from a seed: whatever can be set is.

use super::library::machine;
use super::program::{MemoryProgram, MemoryTenant, OfferedLoad, ProbeBehaviour};
use super::scenario::{MemcgVersion, MemoryScenario};
use crate::disk::SplitMix64;
use elbowroom_types::claim::{Claim, MemoryClaim};
use elbowroom_types::probe::Colour;
use elbowroom_types::unit::{Bytes, Limit, Micros, Percent};

impl MemoryScenario {
    /// The scenario of a seed: one to two minutes, up to six containers, some of which lie, stop, or have limits.
    pub fn random(seed: u64) -> Self {
        let random = &mut SplitMix64::new(seed);
        let mib = random.magnitude(256.0, 65_536.0);
        let lasts = Micros::secs(60 + random.below(60) as u64);
        let count = 1 + random.below(6);
        let tenants = (0..count).map(|i| tenant(random, i, mib, lasts)).collect();
        let machine = machine(mib as u64);
        Self {
            name: format!("seed {seed}"),
            tenants,
            pool_limit: random.one_in(4).then(|| size(random, 0.5 * mib, 0.9 * mib)),
            swap: if random.one_in(3) { size(random, 0.05 * mib, 0.5 * mib) } else { Bytes::ZERO },
            duration: lasts,
            kernel: random.pick(&[MemcgVersion::V1, MemcgVersion::V2]),
            stalls: !random.one_in(5),
            enforced: !random.one_in(8),
            foreign_write_at: random.one_in(6).then(|| Micros::secs(random.below(60) as u64)),
            noise: random.between(0.0, 0.1),
            ..machine
        }
    }
}

fn tenant(random: &mut SplitMix64, i: usize, mib: f64, lasts: Micros) -> MemoryTenant {
    let name = format!("t{i}");
    let limited = random.one_in(4);
    let behaviours = [
        ProbeBehaviour::Honest,
        ProbeBehaviour::Honest,
        ProbeBehaviour::Honest,
        ProbeBehaviour::Silent,
        ProbeBehaviour::Silent,
        ProbeBehaviour::Fixed(Colour::Red),
        ProbeBehaviour::Fixed(Colour::Green),
        ProbeBehaviour::Scaled(0.3),
        ProbeBehaviour::Scaled(3.0),
        ProbeBehaviour::Scaled(f64::NAN),
    ];
    MemoryTenant {
        claim: (!random.one_in(3)).then(|| claim(random, &name, mib)),
        name,
        max: Limit::At(size(random, 0.1 * mib, mib)),
        keeps_max: limited,
        low: size(random, 0.0, 0.5 * mib),
        program: program(random, mib, lasts),
        probe: random.pick(&behaviours),
        stops_at: random.one_in(6).then(|| Micros::secs(20 + random.below(60) as u64)),
    }
}

fn claim(random: &mut SplitMix64, name: &str, mib: f64) -> Claim {
    let memory = MemoryClaim {
        reservation: (!random.one_in(3)).then(|| size(random, 0.01 * mib, 0.6 * mib)),
        promised: None,
        lend: random.one_in(3).then(|| Percent::whole(random.below(101) as u16)),
        guaranteed: random.one_in(8),
        objective: None,
        saving: None,
    };
    Claim {
        container: name.to_owned(),
        weight: random.magnitude(1.0, 10_000.0) as u32,
        tier: random.pick(&[0, 0, 0, 1, 2]),
        memory,
        ..Claim::default()
    }
}

fn program(random: &mut SplitMix64, mib: f64, lasts: Micros) -> MemoryProgram {
    let serve = random.magnitude(1e-4, 1e-2);
    let workers = random.pick(&[1.0, 4.0, 16.0]);
    let most = random.pick(&[0.02, 0.1, 0.3]);
    let peak = workers / serve;
    let mut froms: Vec<u64> =
        (0..random.below(5)).map(|_| random.below((lasts.get() / 1_000_000) as usize) as u64).collect();
    froms.push(0);
    froms.sort_unstable();
    let load = |random: &mut SplitMix64| peak * random.pick(&[0.0, 0.01, 0.1, 0.5, 1.0, 5.0]);
    MemoryProgram {
        anon: size(random, 0.001 * mib, most * mib),
        data: size(random, 0.01 * mib, 1.5 * mib),
        skew: random.between(0.2, 1.0),
        bytes_per_request: Bytes(random.magnitude(4096.0, 4e6) as u64),
        workers,
        service_seconds: serve,
        miss_seconds: serve * random.magnitude(0.1, 20.0),
        loads: froms
            .into_iter()
            .map(|from| OfferedLoad { from: Micros::secs(from), offered: load(random) })
            .collect(),
        objective: peak * random.between(0.05, 1.2),
        mapped: 0.0,
        ambush: false,
        elastic: random.one_in(4),
    }
}

fn size(random: &mut SplitMix64, low: f64, high: f64) -> Bytes {
    Bytes((random.between(low, high.max(low)) * f64::from(1 << 20)) as u64)
}
