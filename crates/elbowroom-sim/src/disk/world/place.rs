//! One container on one disk: what it asks in a slice, and what becomes of it.

use super::knob::Knob;
use super::report::{Completed, Counters};
use super::{Home, Share};
use crate::disk::device::{Ask, Speed, THINK};
use crate::disk::program::{Program, Tenant, Way};
use crate::disk::random::Random;
use crate::disk::scenario::Kernel;
use elbowroom_types::sample::IoMax;
use elbowroom_types::unit::{Limit, Micros};

/// Of buffered writes on cgroup v1, this part is in their container's name: what it waits for itself, mostly metadata.
const METADATA: f64 = 0.01;

/// A container on a disk.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) tenant: usize,
    pub(super) program: Program,
    pub(super) knob: Knob,
    /// What a sensor sees of it.
    pub(super) done: Counters,
    /// Parts of a read and of a write that are under way.
    begun: [f64; 2],
    /// Of writes that are nobody's, which part of one is its own.
    own: f64,
    /// Whether a limit of ours held it back in the last slice.
    is_held: bool,
    /// Requests per second that limits allow in this slice.
    limit: f64,
    /// Requests that it still wants from earlier.
    owed: f64,
    /// Requests per second that it wants in this slice.
    wanted: f64,
    /// What it asks in this slice.
    pub(super) ask: Ask,
    /// What it would ask without limits of ours.
    pub(super) free: Ask,
}

/// One slice of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    pub(super) now: Micros,
    pub(super) seconds: f64,
    pub(super) kernel: Kernel,
    pub(super) noise: f64,
    /// The part of the period.
    pub(super) part: f64,
    /// Whom we hold back may keep a lock that everybody else waits for.
    pub(super) journal: bool,
}

impl Place {
    pub(super) fn new(tenant: usize, program: &Program) -> Self {
        Self {
            tenant,
            program: program.clone(),
            knob: Knob::default(),
            done: Counters::default(),
            begun: [0.0; 2],
            own: 0.0,
            is_held: false,
            limit: f64::INFINITY,
            owed: 0.0,
            wanted: 0.0,
            ask: Ask::NOTHING,
            free: Ask::NOTHING,
        }
    }

    /// Sets what it asks of a device that can do `speed`, and where somebody else may hold a lock that it waits for.
    pub(super) fn ask(
        &mut self,
        tenant: &Tenant,
        slice: &Slice,
        speed: &Speed,
        is_locked: bool,
        random: &mut Random,
    ) {
        let Self { program, knob, .. } = self;
        let size = f64::from(program.size);
        self.wanted = match program.wants.at(slice.now.saturating_sub(tenant.from)) {
            Limit::Max => f64::INFINITY,
            Limit::At(rate) => rate as f64 / size * random.noise(slice.noise),
        };
        let escapes = program.way == Way::Buffered && slice.kernel == Kernel::V1;
        let most = |limits: IoMax| if escapes { f64::INFINITY } else { program.most(&limits) };
        let wanted = self.wanted + self.owed / slice.seconds;
        self.free = Ask {
            cost: speed.cost(size, program.read_part()),
            rate: wanted.min(most(knob.theirs())),
            depth: if wanted > 0.0 { f64::from(program.depth) } else { 0.0 },
            weight: f64::from(knob.weight.unwrap_or(100)),
        };
        self.limit = most(knob.in_force());
        let mut rate = self.free.rate.min(self.limit);
        if is_locked && !self.holds_lock() {
            rate = rate.min(self.program.depth.into()) * 0.1;
        }
        self.ask = Ask { rate, ..self.free };
    }

    /// Takes note of the `x` requests per second it got, each of which took `wait` seconds, during `part` of the period.
    pub(super) fn got(&mut self, x: f64, wait: f64, slice: &Slice, home: &mut Home, share: &mut Share) {
        let program = &self.program;
        let (size, part) = (f64::from(program.size), slice.part);
        self.is_held = self.limit < self.free.rate && x >= self.limit * 0.999;
        share.wanted += self.wanted * size * part;
        share.got += x * size * part;
        share.cost += self.ask.cost / size * part;
        share.held += if self.is_held { part } else { 0.0 };
        if self.wanted.is_finite() {
            let most = self.owed.max(self.wanted * program.owed.get() as f64 / 1e6);
            self.owed = (self.owed + (self.wanted - x) * slice.seconds).clamp(0.0, most);
        }
        if program.way == Way::Sync {
            home.calm *= 1.0 - self.stalled(x, wait);
        }
    }

    /// Counts the requests that end in a slice with `x` of them per second; which those are.
    pub(super) fn complete(&mut self, x: f64, wait: f64, slice: &Slice) -> Completed {
        let (program, n) = (&self.program, x * slice.seconds);
        let parts = [program.read_part(), 1.0 - program.read_part()];
        let [reads, writes] = [0, 1].map(|op| whole(&mut self.begun[op], n * parts[op]));
        let done = Completed { reads, writes, size: f64::from(program.size) };
        let escapes = program.way == Way::Buffered && slice.kernel == Kernel::V1;
        let own = if escapes { whole(&mut self.own, writes * METADATA) } else { writes };
        self.done.add(Completed { writes: own, ..done }, wait);
        done
    }

    /// A buffered writer that we hold back: with a file system's lock in its hands, perhaps.
    pub(super) fn holds_lock(&self) -> bool {
        self.is_held && self.program.way == Way::Buffered
    }

    /// Bytes written into the page cache and not yet to the disk.
    pub(super) fn dirty(&self) -> f64 {
        if self.program.way == Way::Buffered { self.owed * f64::from(self.program.size) } else { 0.0 }
    }

    /// The part of the time in which one of its tasks waits, when each request takes `wait` seconds.
    fn stalled(&self, x: f64, wait: f64) -> f64 {
        if self.ask.depth == 0.0 || self.free.rate == 0.0 {
            return 0.0;
        }
        let per_task = x / self.ask.depth;
        let wants_more = x < self.free.rate * 0.999;
        let one = if wants_more { 1.0 - per_task * THINK } else { per_task * wait };
        1.0 - (1.0 - one.clamp(0.0, 0.99)).powf(self.ask.depth.min(4.0))
    }
}

/// The whole requests in what was begun and `n` more; the rest stays begun.
fn whole(begun: &mut f64, n: f64) -> f64 {
    *begun += n;
    let whole = begun.floor();
    *begun -= whole;
    whole
}
