//! A scenario from a seed: whatever can be set is.

use super::program::{DiskProgram, DiskTenant, IoMethod, Pattern};
use super::random::SplitMix64;
use super::scenario::{DiskScenario, Drive, IoCgroupVersion, SLICE};
use elbowroom_types::claim::{Claim, DiskReservation, MemoryClaim, ServiceClass};
use elbowroom_types::io::{IoMax, IoWeightMechanism};
use elbowroom_types::unit::{Limit, Micros};

const IO_METHODS: [IoMethod; 3] = [IoMethod::Sync, IoMethod::Async, IoMethod::Buffered];

impl DiskScenario {
    /// The scenario of a seed: 20 to 60 periods, one or two disks, up to six containers. In every third, all requests are alike.
    pub fn random(seed: u64) -> Self {
        let random = &mut SplitMix64::new(seed);
        let period = random.pick(&[Micros::secs(1), Micros::secs(1), Micros::millis(500)]);
        let lasts = Micros(period.get() * (20 + random.below(40) as u64));
        let drives: Vec<Drive> = (0..1 + random.below(2)).map(|_| drive(random, lasts)).collect();
        let count = 1 + random.below(6);
        let mut tenants: Vec<DiskTenant> = (0..count).map(|i| tenant(random, i, &drives, lasts)).collect();
        if random.one_in(3) {
            let (size, reads) = (size(random), random.pick(&[1.0, 0.0]));
            let ways: &[IoMethod] = if reads == 0.0 { &IO_METHODS } else { &IO_METHODS[..2] };
            for program in tenants.iter_mut().flat_map(|tenant| &mut tenant.programs) {
                (program.size, program.reads, program.method) = (size, reads, random.pick(ways));
            }
        }
        Self {
            name: format!("seed {seed}"),
            tenants,
            drives,
            duration: lasts,
            period,
            slice: SLICE,
            delay: random.below(2) as u32,
            kernel: random.pick(&[IoCgroupVersion::V1, IoCgroupVersion::V2]),
            pressure: !random.one_in(4),
            enforced: !random.one_in(8),
            journal: random.one_in(8),
            noise: random.between(0.0, 0.15),
            bursts: Vec::new(),
        }
    }
}

fn drive(random: &mut SplitMix64, lasts: Micros) -> Drive {
    let bps = random.magnitude(1e6, 2e9);
    let mut drive =
        Drive::new(bps, bps / random.magnitude(4e3, 64e3), Micros(random.magnitude(50.0, 5e3) as u64));
    drive.knee = random.pick(&[1.0, 2.0, 4.0]);
    drive.speed.wbps *= random.between(0.3, 1.0);
    drive.speed.wiops *= random.between(0.3, 1.0);
    if random.one_in(3) {
        drive.changes = vec![
            (instant(random, lasts), random.between(0.2, 1.0)),
            (instant(random, lasts), random.between(0.5, 1.5)),
        ];
        drive.changes.sort_by_key(|(from, _)| *from);
    }
    drive.weights =
        random.pick(&[None, None, None, Some(IoWeightMechanism::Iocost), Some(IoWeightMechanism::Bfq)]);
    drive.swap = random.one_in(20);
    drive
}

fn tenant(random: &mut SplitMix64, i: usize, drives: &[Drive], lasts: Micros) -> DiskTenant {
    let everywhere = random.one_in(3);
    let favourite = random.below(drives.len());
    let disks = drives.iter().enumerate().filter(|(disk, _)| everywhere || *disk == favourite);
    let programs: Vec<DiskProgram> = disks.map(|(disk, drive)| program(random, disk, drive, lasts)).collect();
    let whole = drives[favourite].speed.rbps;
    let name = format!("container-{i}");
    let from = if random.one_in(3) { instant(random, lasts) } else { Micros::ZERO };
    DiskTenant {
        claim: random.one_in(2).then(|| claim(random, &name, &drives[favourite])),
        name,
        from,
        until: random.one_in(4).then(|| from.saturating_add(instant(random, lasts))),
        programs,
        user_max: if random.one_in(5) { limits(random, whole) } else { IoMax::MAX },
        foreign: random.one_in(8).then(|| (instant(random, lasts), limits(random, whole))),
    }
}

fn program(random: &mut SplitMix64, disk: usize, drive: &Drive, lasts: Micros) -> DiskProgram {
    let rate = |random: &mut SplitMix64, part: f64| (drive.speed.rbps * random.magnitude(0.01, part)) as u64;
    let base = rate(random, 0.6);
    let wants = match random.below(5) {
        0 => Pattern::constant(Limit::Max),
        1 => Pattern::constant(Limit::At(base)),
        2 => Pattern::turns(base, rate(random, 1.0), Micros(lasts.get() / (2 + random.below(6) as u64))),
        n => {
            let from = instant(random, lasts);
            let peak = if n == 3 { Limit::Max } else { Limit::At(rate(random, 3.0)) };
            Pattern::bursts(base, peak, &[(from, from.saturating_add(instant(random, lasts)))])
        }
    };
    DiskProgram {
        disk,
        wants,
        method: random.pick(&[IoMethod::Sync, IO_METHODS[0], IO_METHODS[1], IO_METHODS[2]]),
        depth: random.magnitude(1.0, 256.0) as u32,
        size: size(random),
        reads: random.pick(&[1.0, 1.0, 0.0, 0.7]),
        backlog: random.pick(&[Micros::ZERO, Micros::millis(500), Micros::secs(10)]),
        lifeline: None,
    }
}

fn size(random: &mut SplitMix64) -> u32 {
    512 << random.below(12)
}

fn claim(random: &mut SplitMix64, name: &str, drive: &Drive) -> Claim {
    let reservation = |random: &mut SplitMix64, whole: f64| {
        random.one_in(6).then(|| (whole * random.magnitude(0.02, 0.8)) as u64)
    };
    let speed = drive.speed;
    Claim {
        container: name.to_owned(),
        weight: random.magnitude(1.0, 10_000.0) as u32,
        tier: random.pick(&[0, 0, 0, 1, 2]),
        memory: MemoryClaim::default(),
        disk_is_asked: false,
        disk: DiskReservation {
            rbps: reservation(random, speed.rbps),
            wbps: reservation(random, speed.wbps),
            riops: reservation(random, speed.riops),
            wiops: reservation(random, speed.wiops),
        },
        class: random.pick(&[ServiceClass::Throughput, ServiceClass::Throughput, ServiceClass::Latency]),
    }
}

fn limits(random: &mut SplitMix64, whole: f64) -> IoMax {
    let mut limit = |per: f64| match random.one_in(2) {
        true => Limit::At((whole / per * random.magnitude(0.02, 1.5)) as u64),
        false => Limit::Max,
    };
    IoMax { rbps: limit(1.0), wbps: limit(1.0), riops: limit(4e4), wiops: limit(4e4) }
}

fn instant(random: &mut SplitMix64, lasts: Micros) -> Micros {
    Micros(random.between(0.0, lasts.get() as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_make_valid_and_different_scenarios() {
        let scenarios: Vec<DiskScenario> = (0..200).map(DiskScenario::random).collect();
        assert_eq!(scenarios[3], DiskScenario::random(3));
        for scenario in &scenarios {
            for tenant in &scenario.tenants {
                let mut disks: Vec<usize> = tenant.programs.iter().map(|program| program.disk).collect();
                disks.dedup();
                assert_eq!(disks.len(), tenant.programs.len(), "one program per disk: {scenario:?}");
                assert!(disks.iter().all(|disk| *disk < scenario.drives.len()), "{scenario:?}");
            }
        }
        assert!(scenarios.windows(2).all(|pair| pair[0].tenants != pair[1].tenants));
    }
}
