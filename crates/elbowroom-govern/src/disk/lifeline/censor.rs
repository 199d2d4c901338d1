//! What a sample says about demand, and what it cannot say.
//!
//! # Problem
//! A container that reads 10 MB/s either wants 10 MB/s, or wants more and gets no more. Whoever takes the second for the first
//! learns that starved containers need little, lowers their caps, and starves them further (Aridac, Fig. 8).
//!
//! # Approach
//! A sample of a container that waits while it is at a limit, while the disk is saturated, or while limits of ours on others may
//! be what holds it up, is *censored*: demand was at least that much. Only other samples may lower a lifeline.

/// A container whose tasks waited for I/O for more than this part of a period is held up by it.
const STALLED_ABOVE: f64 = 0.3;
/// Below this it did not wait at all, although it did I/O: its I/O is asynchronous, and tells nothing about waiting.
const ASYNC_BELOW: f64 = 0.01;

/// What one container looked like in one period.
#[derive(Clone, Copy, Debug)]
pub(super) struct DemandSample {
    /// Part of the period in which some task waited for I/O; `None` where the kernel does not count it.
    pub(super) io_stall: Option<f64>,
    /// It did any I/O.
    pub(super) active: bool,
    /// It was at a limit, ours or the user's.
    pub(super) at_limit: bool,
    /// The disk was saturated.
    pub(super) saturated: bool,
    /// It waited for I/O that neither a disk nor a limit was busy with, while others were under limits of ours.
    pub(super) blocked: bool,
}

impl DemandSample {
    /// Whether it waited for I/O, as far as can be told. Where nobody counts, or I/O is asynchronous, whoever is at a limit or on
    /// a saturated disk is taken to wait: that keeps a lifeline that could have been lowered, the other error starves.
    pub(super) fn is_waiting(self) -> bool {
        match self.io_stall {
            Some(part) if part > STALLED_ABOVE => true,
            Some(part) if part >= ASYNC_BELOW => false,
            Some(_) | None => self.active && (self.at_limit || self.saturated),
        }
    }

    /// Whether demand may have been larger than what was seen.
    pub(super) fn is_censored(self) -> bool {
        self.is_waiting() && (self.at_limit || self.saturated || self.blocked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_censored_as_in_the_table() {
        let check = |name, stalled, active, bound, saturated, expect| {
            let sample =
                DemandSample { io_stall: stalled, active, at_limit: bound, saturated, blocked: false };
            assert_eq!((sample.is_waiting(), sample.is_censored()), expect, "{name}");
        };
        check("reduced demand", Some(0.05), true, false, false, (false, false));
        check("synchronous, nothing wrong", Some(0.6), true, false, false, (true, false));
        check("a cap binds", Some(0.97), true, true, false, (true, true));
        check("a cap binds, asynchronous", Some(0.0), true, true, false, (true, true));
        check("slow device", Some(0.98), true, false, true, (true, true));
        check("slow device, asynchronous", Some(0.0), true, false, true, (true, true));
        check("slow device, few requests", Some(0.1), true, false, true, (false, false));
        check("slow device, idle", Some(0.0), false, false, true, (false, false));
        check("no PSI, contention", None, true, false, true, (true, true));
        check("no PSI, quiet", None, true, false, false, (false, false));
        check("near its cap by choice", Some(0.2), true, true, false, (false, false));
        let blocked = DemandSample {
            io_stall: Some(0.9),
            active: true,
            at_limit: false,
            saturated: false,
            blocked: true,
        };
        assert!(blocked.is_censored(), "behind a lock of somebody whom we limit");
    }
}
