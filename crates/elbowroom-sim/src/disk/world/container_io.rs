//! One container on one disk: what it asks in a slice, and what becomes of it.

use super::io_limits::SimIoLimits;
use super::report::{CompletedRequests, SimIoCounters};
use super::{ContainerIoTruth, SimDiskContainer};
use crate::disk::device::{DeviceDemand, Speed, THINK_TIME};
use crate::disk::program::{DiskProgram, DiskTenant, IoMethod};
use crate::disk::random::SplitMix64;
use crate::disk::scenario::IoCgroupVersion;
use elbowroom_types::io::IoMax;
use elbowroom_types::unit::{Limit, Micros};

/// Of buffered writes on cgroup v1, this part is in their container's name: what it waits for itself, mostly metadata.
const METADATA: f64 = 0.01;

/// A container on a disk.
#[derive(Debug)]
pub(super) struct SimContainerIo {
    pub(super) tenant: usize,
    pub(super) program: DiskProgram,
    pub(super) limits: SimIoLimits,
    /// What a sensor sees of it.
    pub(super) counters: SimIoCounters,
    /// Parts of a read and of a write that are under way.
    partial_requests: [f64; 2],
    /// Of writes that belong to no container, which part of one is its own.
    own_partial_write: f64,
    /// Whether a limit of ours held it back in the last slice.
    is_limited: bool,
    /// Requests per second that limits allow in this slice.
    limit: f64,
    /// Requests that it still wants from earlier.
    backlog: f64,
    /// Requests per second that it wants in this slice.
    wanted: f64,
    /// What it asks in this slice.
    pub(super) demand: DeviceDemand,
    /// What it would ask without limits of ours.
    pub(super) unlimited_demand: DeviceDemand,
}

/// One slice of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeSlice {
    pub(super) now: Micros,
    pub(super) seconds: f64,
    pub(super) kernel: IoCgroupVersion,
    pub(super) noise: f64,
    /// The part of the period.
    pub(super) part: f64,
    /// A container that we hold back may keep a lock that all others wait for.
    pub(super) journal: bool,
}

impl SimContainerIo {
    pub(super) fn new(tenant: usize, program: &DiskProgram) -> Self {
        Self {
            tenant,
            program: program.clone(),
            limits: SimIoLimits::default(),
            counters: SimIoCounters::default(),
            partial_requests: [0.0; 2],
            own_partial_write: 0.0,
            is_limited: false,
            limit: f64::INFINITY,
            backlog: 0.0,
            wanted: 0.0,
            demand: DeviceDemand::NOTHING,
            unlimited_demand: DeviceDemand::NOTHING,
        }
    }

    /// Sets what it asks of a device that can do `speed`, and where another may hold a lock that it waits for.
    pub(super) fn set_demand(
        &mut self,
        tenant: &DiskTenant,
        slice: &TimeSlice,
        speed: &Speed,
        is_locked: bool,
        random: &mut SplitMix64,
    ) {
        let Self { program, limits: knob, .. } = self;
        let size = f64::from(program.size);
        self.wanted = match program.wants.at(slice.now.saturating_sub(tenant.from)) {
            Limit::Max => f64::INFINITY,
            Limit::At(rate) => rate as f64 / size * random.noise(slice.noise),
        };
        let escapes = program.method == IoMethod::Buffered && slice.kernel == IoCgroupVersion::V1;
        let most = |limits: IoMax| if escapes { f64::INFINITY } else { program.max_rate(&limits) };
        let wanted = self.wanted + self.backlog / slice.seconds;
        self.unlimited_demand = DeviceDemand {
            cost: speed.cost(size, program.read_part()),
            rate: wanted.min(most(knob.without_agent())),
            depth: if wanted > 0.0 { f64::from(program.depth) } else { 0.0 },
            weight: f64::from(knob.weight.unwrap_or(100)),
        };
        self.limit = most(knob.in_force());
        let mut rate = self.unlimited_demand.rate.min(self.limit);
        if is_locked && !self.holds_lock() {
            rate = rate.min(self.program.depth.into()) * 0.1;
        }
        self.demand = DeviceDemand { rate, ..self.unlimited_demand };
    }

    /// Takes note of the `x` requests per second it got, each of which took `wait` seconds, during `part` of the period.
    pub(super) fn record_served(
        &mut self,
        x: f64,
        wait: f64,
        slice: &TimeSlice,
        home: &mut SimDiskContainer,
        share: &mut ContainerIoTruth,
    ) {
        let program = &self.program;
        let (size, part) = (f64::from(program.size), slice.part);
        self.is_limited = self.limit < self.unlimited_demand.rate && x >= self.limit * 0.999;
        share.wanted += self.wanted * size * part;
        share.got += x * size * part;
        share.cost += self.demand.cost / size * part;
        share.limited += if self.is_limited { part } else { 0.0 };
        if self.wanted.is_finite() {
            let most = self.backlog.max(self.wanted * program.backlog.get() as f64 / 1e6);
            self.backlog = (self.backlog + (self.wanted - x) * slice.seconds).clamp(0.0, most);
        }
        if program.method == IoMethod::Sync {
            home.unstalled_part *= 1.0 - self.stalled_part(x, wait);
        }
    }

    /// Counts the requests that end in a slice with `x` of them per second; which those are.
    pub(super) fn complete(&mut self, x: f64, wait: f64, slice: &TimeSlice) -> CompletedRequests {
        let (program, n) = (&self.program, x * slice.seconds);
        let parts = [program.read_part(), 1.0 - program.read_part()];
        let [reads, writes] = [0, 1].map(|op| take_whole(&mut self.partial_requests[op], n * parts[op]));
        let done = CompletedRequests { reads, writes, size: f64::from(program.size) };
        let escapes = program.method == IoMethod::Buffered && slice.kernel == IoCgroupVersion::V1;
        let own = if escapes { take_whole(&mut self.own_partial_write, writes * METADATA) } else { writes };
        self.counters.add(CompletedRequests { writes: own, ..done }, wait);
        done
    }

    /// A buffered writer that we hold back: with a file system's lock in its hands, perhaps.
    pub(super) fn holds_lock(&self) -> bool {
        self.is_limited && self.program.method == IoMethod::Buffered
    }

    /// Bytes written into the page cache and not yet to the disk.
    pub(super) fn dirty(&self) -> f64 {
        if self.program.method == IoMethod::Buffered {
            self.backlog * f64::from(self.program.size)
        } else {
            0.0
        }
    }

    /// The part of the time in which one of its tasks waits, when each request takes `wait` seconds.
    fn stalled_part(&self, x: f64, wait: f64) -> f64 {
        if self.demand.depth == 0.0 || self.unlimited_demand.rate == 0.0 {
            return 0.0;
        }
        let per_task = x / self.demand.depth;
        let wants_more = x < self.unlimited_demand.rate * 0.999;
        let one = if wants_more { 1.0 - per_task * THINK_TIME } else { per_task * wait };
        1.0 - (1.0 - one.clamp(0.0, 0.99)).powf(self.demand.depth.min(4.0))
    }
}

/// The whole requests in what was begun and `n` more; the rest stays begun.
fn take_whole(begun: &mut f64, n: f64) -> f64 {
    *begun += n;
    let whole = begun.floor();
    *begun -= whole;
    whole
}
