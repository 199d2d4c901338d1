//! The numbers of the policy, in one place.

/// The constants of [`super::super::DiskPolicy::Lifeline`]. None but `elasticity` is a setting; the sensitivity of each is in
/// `docs/decisions/0006-lifeline.md`, printed by the example `disk_contest`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LifelineConstants {
    /// A disk is slow when its requests take this many times as long as on a quiet day. By queueing theory (M/M/1) that is half of what
    /// it can do; below it, no container is hurt.
    pub slow: f64,
    /// Part of a need. Less than this below it is no shortage, this close to where harm was seen is near, and a container that takes less
    /// than this part of what the disk does is no aggressor. Demand varies by as much from second to second.
    pub tolerance: f64,
    /// Requests that a container must have under way, as a mean, to be short: one that asks for little gets little.
    pub in_flight: f64,
    /// Seconds in which a lifeline follows a demand that grew (time constant).
    pub rise_seconds: f64,
    /// Seconds in which it follows one that shrank (time constant): a pause of a minute is no end.
    pub fall_seconds: f64,
    /// A cut is this many times what the others miss: disks that are less full answer sooner.
    pub gain: f64,
    /// Part by which a cap grows per second while no container is short.
    pub growth: f64,
    /// Seconds from a cut until the next decision about the same container: two measurements of a second, which jitter. As long does
    /// a container have to be seen before its lifeline counts, and be blocked before limits go.
    pub settle_seconds: f64,
    /// Seconds without harm after which no container has a cap, and for which limits stay away after they held others up.
    pub keep_seconds: f64,
    /// As many bytes cost as much as one operation: on flash (read and write units of 16 to 64 KiB), and on a disk that turns (4 to 8 ms
    /// at 100 MB/s).
    pub operation_bytes: [f64; 2],
    /// Seconds over which it is remembered what the disk did at its best, for the alert that it does less (time constant): a day.
    pub normal_seconds: f64,
}

impl Default for LifelineConstants {
    fn default() -> Self {
        Self {
            slow: 2.0,
            tolerance: 0.05,
            in_flight: 0.7,
            rise_seconds: 10.0,
            fall_seconds: 120.0,
            gain: 1.2,
            growth: 0.01,
            settle_seconds: 1.8,
            keep_seconds: 600.0,
            operation_bytes: [32.0 * 1024.0, 512.0 * 1024.0],
            normal_seconds: 86_400.0,
        }
    }
}

impl LifelineConstants {
    /// How far something with this time constant moves in so many seconds, of 1.
    pub(super) fn part(seconds: f64, constant: f64) -> f64 {
        1.0 - (-seconds / constant).exp()
    }
}
