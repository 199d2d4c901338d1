//! What a disk can do, for alerts, shares and plans. No limit follows from it.
//!
//! The largest load that the disk did while it was slow, as one number: bytes per second, where an operation is as much as
//! [`LifelineConstants::operation_bytes`]. It follows at once what is larger, and within seconds what a saturated disk does less.

use super::super::constants::LifelineConstants;
use super::super::flow::{Flow, OPS};
use super::super::meter::DiskLoad;
use elbowroom_types::io::IoMax;

/// A learned capacity.
#[derive(Debug)]
pub(in super::super) struct Capacity {
    operation: f64,
    /// Weighted bytes per second, now and normally.
    speed: f64,
    normal: f64,
    /// Mean bytes per read and per write of what made the disk slow; nothing where none did.
    sizes: [Option<f64>; 2],
}

impl Capacity {
    /// What the first period of a slow disk says.
    pub(in super::super) fn from_load(load: &DiskLoad, operation: f64) -> Option<Self> {
        let speed = load.flow.weighted_bytes(operation);
        let mut new = Self { operation, speed, normal: speed, sizes: [None; 2] };
        new.record_sizes(load.flow);
        (load.flow.operations() * load.seconds >= 2.0 && speed.is_finite()).then_some(new)
    }

    /// What was learned before a restart; nothing where that says nothing.
    pub(in super::super) fn from_remembered(rates: IoMax, operation: f64) -> Option<Self> {
        let rates = Flow::from(rates);
        let known = OPS.map(|(bytes, _)| Some(rates.0[bytes]).filter(|rate| rate.is_finite() && *rate > 0.0));
        let speed = known[0].or(known[1])?;
        // Sizes are not remembered: until requests are seen, what bytes alone could be is said.
        let sizes = known.map(|rate| rate.map(|_| f64::INFINITY));
        Some(Self { operation, speed, normal: speed, sizes })
    }

    /// Takes in a period: a disk that was not slow can do what it did, one that was at its end no more.
    pub(in super::super) fn learn(
        &mut self,
        load: &DiskLoad,
        slow: bool,
        saturated: bool,
        k: &LifelineConstants,
    ) {
        let done = load.flow.weighted_bytes(self.operation);
        if load.flow.operations() * load.seconds < 2.0 || !done.is_finite() {
            return;
        }
        if slow {
            self.record_sizes(load.flow);
        }
        if done > self.speed || saturated {
            self.speed += LifelineConstants::part(load.seconds, k.settle_seconds) * (done - self.speed);
        }
        let forgets = LifelineConstants::part(load.seconds, k.normal_seconds);
        self.normal = self.speed.max(self.normal - forgets * (self.normal - self.speed));
    }

    fn record_sizes(&mut self, flow: Flow) {
        for ((bytes, ios), size) in OPS.into_iter().zip(&mut self.sizes) {
            if flow.0[ios] > 0.0 && flow.0[bytes] > 0.0 {
                *size = Some(flow.0[bytes] / flow.0[ios]);
            }
        }
    }

    /// The part of the disk that a load takes.
    pub(in super::super) fn share(&self, flow: Flow) -> f64 {
        flow.weighted_bytes(self.operation) / self.speed.max(1.0)
    }

    /// What it can do if it does only reads, or only writes, of the size they had; no limit where they never made it slow.
    pub(in super::super) fn max_rates(&self) -> IoMax {
        let mut out = Flow([f64::INFINITY; 4]);
        for ((bytes, ios), size) in OPS.into_iter().zip(self.sizes) {
            if let Some(size) = size {
                out.0[ios] = self.speed / (size + self.operation);
                out.0[bytes] = self.speed / (1.0 + self.operation / size);
            }
        }
        if self.sizes.contains(&Some(f64::INFINITY)) {
            (out.0[OPS[0].1], out.0[OPS[1].1]) = (f64::INFINITY, f64::INFINITY);
        }
        out.to_io_max()
    }

    /// What it could do of each kind if the others were free: what is remembered.
    pub(in super::super) fn rates_by_kind(&self) -> IoMax {
        let mut out = Flow([f64::INFINITY; 4]);
        for ((bytes, ios), size) in OPS.into_iter().zip(self.sizes) {
            if size.is_some() {
                (out.0[bytes], out.0[ios]) = (self.speed, self.speed / self.operation);
            }
        }
        out.to_io_max()
    }

    /// The part of what it normally does that it does now.
    pub(in super::super) fn condition(&self) -> f64 {
        self.speed / self.normal.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(rate: f64) -> DiskLoad {
        DiskLoad { seconds: 1.0, flow: Flow([rate * 65536.0, 0.0, rate, 0.0]), ..DiskLoad::default() }
    }

    #[test]
    fn it_follows_more_at_once_and_less_only_where_the_disk_is_at_its_end() {
        let k = LifelineConstants::DEFAULT;
        let mut capacity = Capacity::from_load(&load(1000.0), 32768.0).unwrap();
        let reads = |capacity: &Capacity| capacity.max_rates().riops.value().unwrap();
        assert_eq!(reads(&capacity), 1000);
        (0..60).for_each(|_| capacity.learn(&load(300.0), true, false, &k));
        assert_eq!(reads(&capacity), 1000, "a disk that has room says nothing of its end");
        (0..8).for_each(|_| capacity.learn(&load(1500.0), false, false, &k));
        assert!(reads(&capacity) > 1450, "{capacity:?}");
        (0..60).for_each(|_| capacity.learn(&load(700.0), true, true, &k));
        assert!((700..720).contains(&reads(&capacity)), "{capacity:?}");
        assert!((0.45..0.55).contains(&capacity.condition()), "{capacity:?}");
        assert_eq!(capacity.share(load(350.0).flow), 350.0 * 98304.0 / capacity.speed);
    }

    #[test]
    fn what_was_remembered_is_known_again() {
        let before = Capacity::from_load(&load(1000.0), 32768.0).unwrap();
        let after = Capacity::from_remembered(before.rates_by_kind(), 32768.0).unwrap();
        assert_eq!(after.rates_by_kind(), before.rates_by_kind());
        assert!(Capacity::from_remembered(IoMax::MAX, 32768.0).is_none());
    }
}
