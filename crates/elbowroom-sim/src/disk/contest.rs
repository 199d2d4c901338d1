//! Random victims beside random hogs: what a policy was not tuned on. Seeds from 1000 on are kept for a last look.

use super::program::{DiskProgram, DiskTenant, IoMethod, Pattern};
use super::random::SplitMix64;
use super::scenario::{DiskScenario, Drive};
use elbowroom_types::unit::{Limit, Micros};

/// Disks: bytes and requests per second, microseconds of a lone request, how sharply it slows down when full.
const DISKS: [(f64, f64, u64, f64); 5] = [
    (1e6, 1e4, 200, 4.0),
    (100e6, 25e3, 100, 4.0),
    (200e6, 20e3, 100, 1.0),
    (2e9, 150e3, 80, 1.0),
    (150e6, 180.0, 8000, 1.0),
];

impl DiskScenario {
    /// One to four victims that together want a tenth to half of a disk, and one or two hogs that want all of it for a while: reads,
    /// writes and both, of 4 KiB to 1 MiB. A third of the disks become slower and recover. Equal seeds give equal scenarios.
    pub fn contest(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let (bps, iops, latency, knee) = random.pick(&DISKS);
        let mut drive = Drive { knee, ..Drive::new(bps, iops, Micros(latency)) };
        if random.unit() < 0.3 {
            let part = 0.4 + 0.5 * random.unit();
            drive.changes = vec![(Micros::secs(90), part), (Micros::secs(150), 1.0)];
        }
        let victims = random.pick(&[1usize, 1, 2, 4]);
        let part = (0.1 + 0.4 * random.unit()) / victims as f64;
        let mut tenants: Vec<DiskTenant> =
            (0..victims).map(|at| victim(&mut random, &drive, at, part)).collect();
        let hogs = random.pick(&[1usize, 1, 2]);
        tenants.extend((0..hogs).map(|at| hog(&mut random, &drive, at)));
        Self { duration: Micros::secs(200), ..Self::new(&format!("contest {seed}"), drive, tenants) }
    }
}

/// Wants no more than it could have alone.
fn victim(random: &mut SplitMix64, drive: &Drive, at: usize, part: f64) -> DiskTenant {
    let size = random.pick(&[4096u32, 16384, 65536, 262_144]);
    let reads = random.pick(&[1.0, 1.0, 0.7, 0.0]);
    let depth = random.pick(&[1u32, 4, 16]);
    let cost = drive.speed.cost(f64::from(size), reads);
    let alone = 0.6 * f64::from(depth) / (drive.latency.get() as f64 / 1e6 + cost);
    let rate = (f64::from(size) * (part / cost).min(alone)) as u64;
    let wants = match random.unit() < 0.6 {
        true => Pattern::constant(Limit::At(rate)),
        false => Pattern::turns(rate, rate / 3, Micros::secs(15)),
    };
    let backlog = Micros::secs(random.pick(&[0, 1]));
    let program = DiskProgram { size, reads, depth, backlog, ..DiskProgram::reads(wants) };
    DiskTenant::new(&format!("victim-{at}"), program.with_lifeline(rate))
}

fn hog(random: &mut SplitMix64, drive: &Drive, at: usize) -> DiskTenant {
    let size = random.pick(&[4096u32, 16384, 65536, 262_144, 1 << 20]);
    let reads = random.pick(&[1.0, 1.0, 0.5, 0.0]);
    let from = random.pick(&[0u64, 40, 40, 60]);
    let base = 0.1 * random.unit() * f64::from(size) / drive.speed.cost(f64::from(size), reads);
    let until = random.pick(&[100u64, 140, 200]);
    let wants = Pattern::bursts(base as u64, Limit::Max, &[(Micros::secs(from), Micros::secs(until))]);
    let method = random.pick(&[IoMethod::Sync, IoMethod::Async]);
    let depth = random.pick(&[8, 32, 128]);
    DiskTenant::new(
        &format!("hog-{at}"),
        DiskProgram { size, reads, depth, method, ..DiskProgram::reads(wants) },
    )
}
