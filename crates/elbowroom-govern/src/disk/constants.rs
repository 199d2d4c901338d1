//! The numbers of the policy, in one place.

use elbowroom_types::unit::Micros;

/// The constants of [`super::DiskPolicy::Lifeline`]. Beside them there is one setting, the elasticity `P`. What each is worth, halved
/// and doubled, is in `docs/decisions/0006-lifeline.md`, printed by the example `disk_contest`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LifelineConstants {
    /// A disk is slow when its requests take this many times as long as on a quiet day. By queueing theory (M/M/1) that is half of what
    /// it can do; below it, no container is hurt.
    pub slow: f64,
    /// Part of a need. Less than this below it is no shortage, and a container that takes less than this part of what the disk does is no
    /// aggressor. Demand varies by as much from second to second.
    pub tolerance: f64,
    /// Requests that a container must have under way, as a mean, to be short: one that asks for little gets little.
    pub in_flight: f64,
    /// Part of the time. A container that waits for more of it than requests and limits explain is blocked.
    pub blocked: f64,
    /// Part by which a cap grows per second at least, while no container is short. A change of less is not worth a write.
    pub growth: f64,
    /// Seconds in which a lifeline follows a demand that grew (time constant).
    pub rise_seconds: f64,
    /// Seconds in which a lifeline forgets, and the base latency (time constant), after which caps without harm go, and for which limits
    /// stay away after they held others up.
    pub keep_seconds: f64,
    /// Seconds from a cut until the next decision about the same container: two measurements of a second, which jitter. As long does
    /// a container have to be seen before its lifeline counts, and be blocked before limits go.
    pub settle_seconds: f64,
    /// Seconds after which a disk that was slow all the time has a new base latency.
    pub busy_seconds: f64,
    /// Seconds over which it is remembered what a disk does at its best, for the alert that it does less (time constant).
    pub normal_seconds: f64,
    /// How often disks are glanced at, how soon one that has just become slow is measured again, and the shortest period that says
    /// something: a burst is answered within two of them, and flash has served hundreds of requests.
    pub early_period: Micros,
    /// With fewer requests in an early period, one more or less would look like a shortage: a tenth of a container's need.
    pub early_requests: f64,
    /// As many bytes cost as much as one operation: on flash (read and write units of 16 to 64 KiB), and on a disk that turns (4 to 8 ms
    /// at 100 MB/s).
    pub operation_bytes: [f64; 2],
    /// Microseconds that a lone request takes before its bytes move: at least, at most on flash, at most on a disk that turns. Faster disks
    /// are not told apart; a disk that was met saturated must not seem to be quiet.
    pub request_us: [f64; 3],
    /// How its bytes move then at least, per microsecond: on flash, and on a disk that turns.
    pub bytes_per_us: [f64; 2],
}

impl LifelineConstants {
    /// What they are.
    pub const DEFAULT: Self = Self {
        slow: 2.0,
        tolerance: 0.05,
        in_flight: 0.7,
        blocked: 0.3,
        growth: 0.01,
        rise_seconds: 10.0,
        keep_seconds: 600.0,
        settle_seconds: 1.8,
        busy_seconds: 3_600.0,
        normal_seconds: 86_400.0,
        early_period: Micros::millis(150),
        early_requests: 10.0,
        operation_bytes: [32.0 * 1024.0, 512.0 * 1024.0],
        request_us: [20.0, 1_000.0, 10_000.0],
        bytes_per_us: [200.0, 100.0],
    };

    /// The part of the way to a new value that a lag with this time constant (in seconds) moves in `seconds`.
    pub(super) fn part(seconds: f64, constant: f64) -> f64 {
        1.0 - (-seconds / constant).exp()
    }
}
