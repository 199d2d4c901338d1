//! Four numbers that belong together: bytes and operations, read and written.

use elbowroom_types::claim::DiskReservation;
use elbowroom_types::io::{DiskStat, IoMax, IoStat};
use elbowroom_types::unit::{Bytes, Limit};

/// Bytes read, bytes written, reads and writes: per second, in total, or a price for each.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Flow(pub [f64; 4]);

/// Which of a [`Flow`]'s numbers is which.
pub(super) const RBPS: usize = 0;
pub(super) const WBPS: usize = 1;
pub(super) const RIOPS: usize = 2;
pub(super) const WIOPS: usize = 3;

/// The two operations, as their bytes and their number in a [`Flow`].
pub(super) const OPS: [(usize, usize); 2] = [(RBPS, RIOPS), (WBPS, WIOPS)];

impl Flow {
    pub(super) const ZERO: Self = Self([0.0; 4]);

    /// What was reserved, and nothing where nothing was.
    pub(super) fn from_reservation(reservation: DiskReservation) -> Self {
        Self(
            [reservation.rbps, reservation.wbps, reservation.riops, reservation.wiops]
                .map(|n| n.unwrap_or(0) as f64),
        )
    }

    pub(super) fn map(self, f: impl Fn(f64) -> f64) -> Self {
        Self(self.0.map(f))
    }

    pub(super) fn zip(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self(std::array::from_fn(|k| f(self.0[k], other.0[k])))
    }

    pub(super) fn plus(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    /// What is left, and nothing where `other` has more.
    pub(super) fn saturating_sub(self, other: Self) -> Self {
        self.zip(other, |a, b| (a - b).max(0.0))
    }

    /// Operations of both kinds.
    pub(super) fn operations(self) -> f64 {
        self.0[RIOPS] + self.0[WIOPS]
    }

    /// Bytes of both kinds.
    pub(super) fn bytes(self) -> f64 {
        self.0[RBPS] + self.0[WBPS]
    }

    /// In bytes, where an operation is as much as so many.
    pub(super) fn weighted_bytes(self, theta: f64) -> f64 {
        self.bytes() + theta * self.operations()
    }

    /// As limits; a number that is not finite is no limit, and no limit is below 1, which kernels read as none.
    pub(super) fn to_io_max(self) -> IoMax {
        let limit = |x: f64| if x.is_finite() { Limit::At(x.ceil().max(1.0) as u64) } else { Limit::Max };
        IoMax {
            rbps: limit(self.0[RBPS]),
            wbps: limit(self.0[WBPS]),
            riops: limit(self.0[RIOPS]),
            wiops: limit(self.0[WIOPS]),
        }
    }
}

impl From<IoMax> for Flow {
    /// Infinite where there is no limit.
    fn from(max: IoMax) -> Self {
        let number = |limit: Limit<u64>| limit.value().map_or(f64::INFINITY, |n| n as f64);
        Self([max.rbps, max.wbps, max.riops, max.wiops].map(number))
    }
}

/// Counters of transfer that only grow, until they start again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct IoCounters([u64; 4]);

impl IoCounters {
    /// What was added since `before`. Counters that went backwards started again some time in between: nothing is known.
    pub(super) fn since(self, before: Self) -> Flow {
        let restarted = self.0.iter().zip(before.0).any(|(now, before)| *now < before);
        if restarted {
            return Flow::ZERO;
        }
        Flow(std::array::from_fn(|k| self.0[k].saturating_sub(before.0[k]) as f64))
    }
}

impl From<&IoStat> for IoCounters {
    fn from(io: &IoStat) -> Self {
        Self([io.rbytes.get(), io.wbytes.get(), io.rios, io.wios])
    }
}

impl From<&DiskStat> for IoCounters {
    fn from(disk: &DiskStat) -> Self {
        Self([disk.rbytes.get(), disk.wbytes.get(), disk.rios, disk.wios])
    }
}

/// Bytes per second as people read them.
pub(super) fn per_second(bytes: f64) -> String {
    format!("{}/s", Bytes(bytes.round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(rbytes: u64, wios: u64) -> IoCounters {
        IoCounters([rbytes, 0, 0, wios])
    }

    #[test]
    fn counters_that_started_again_grew_by_nothing() {
        let check =
            |now, before, expect| assert_eq!(counters(now, 7).since(counters(before, 7)).0[RBPS], expect);
        check(10, 4, 6.0);
        check(4, 4, 0.0);
        check(4, 10, 0.0);
        assert_eq!(
            counters(100, 3).since(counters(10, 7)),
            Flow::ZERO,
            "one that fell says all started again"
        );
        assert!(counters(u64::MAX, 0).since(counters(0, 0)).0[RBPS].is_finite());
    }

    #[test]
    fn limits_are_whole_numbers_above_zero() {
        let max = Flow([0.0, f64::INFINITY, 2.1, f64::NAN]).to_io_max();
        assert_eq!(
            max,
            IoMax { rbps: Limit::At(1), wbps: Limit::Max, riops: Limit::At(3), wiops: Limit::Max }
        );
        assert_eq!(Flow::from(max), Flow([1.0, f64::INFINITY, 3.0, f64::INFINITY]));
    }
}
