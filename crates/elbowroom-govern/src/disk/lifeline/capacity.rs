//! What a disk can do, learned from what it does.
//!
//! # Problem
//! Aridac takes `MAX_DISK_IO` as given. Nobody knows it: it depends on the mix of reads and writes and on their sizes, it changes
//! (cloud credits, a degraded array, a noisy neighbour), and a benchmark would hurt everybody.
//!
//! # Approach
//! Every byte and every operation, read and written, has a *price*: the part of the disk's time it takes. What a load costs is
//! its sum; at 1 the disk can do no more. Prices are learned from periods in which the disk was saturated: then cost should have
//! been 1, and the prices that had most part in it move most (the Kaczmarz step). A period that was not saturated and cost more
//! than 1 shows that the disk can do more. While limits of ours bind and all is quiet, prices are lowered a little per second
//! (a *probe*, with real demand, never synthetic I/O) until the disk saturates; after a failure, the next probe waits longer.
//!
//! Whether bytes or operations are dear cannot be seen in one saturated period. The first prices take it that an operation costs
//! as much as a certain number of bytes ([`BYTES_PER_OPERATION`]); [`OperationCost`] learns better from loads of other sizes.
//!
//! # Terminology
//! Cost, shares, lifelines: parts of the disk. *Plain*: what a load costs at the first prices, which never change, for
//! comparing what the disk did at different times.

use super::super::flow::{Flow, OPS, RBPS, RIOPS};
use super::capacity_history::CapacityHistory;
use super::operation_cost::OperationCost;
use elbowroom_types::io::IoMax;
use elbowroom_types::unit::Micros;

/// As many bytes cost as much as one operation, before anything is known: on flash, and on a disk that turns.
pub(super) const BYTES_PER_OPERATION: [f64; 2] = [32.0 * 1024.0, 512.0 * 1024.0];
/// The first saturated periods are believed in full.
const TRUSTED_SAMPLES: u32 = 5;
/// How far prices move when a saturated disk does less, and more, than it should be able to.
const STEP_DOWN: f64 = 0.5;
const STEP_UP: f64 = 0.3;
/// Capacity falls by no more than this part per period, for one period may be an accident.
const MAX_FALL: f64 = 1.6;
/// A saturated disk that does less than this part of what it did is another one now.
const CHANGED_BELOW: f64 = 0.8;
/// A disk that does this much more than it can, without being saturated, can do more.
const EXCEEDED: f64 = 1.05;
/// Probes: growth in the first second, and how much faster it gets every second; at most, and while what an operation costs is a
/// guess.
const PROBE_GROWTH: f64 = 0.015;
const PROBE_ACCELERATION: f64 = 1.35;
const PROBE_MAX_GROWTH: f64 = 0.03;
const PROBE_MAX_GROWTH_GUESSED: f64 = 0.07;
/// A disk that is known to have done more, up to [`RECOVERY_TARGET`] of that: first to the end of what it can do now, by this part at
/// most; then by small steps, which show in longer waits before anybody gets less; and when it has done so many seconds' work
/// more than it can do now, which no disk that is throttled by tokens has saved up, by large ones.
const RECOVERY_FIRST_STEP: f64 = 0.08;
const RECOVERY_STEP: f64 = 0.04;
const RECOVERY_PROVEN_STEP: f64 = 0.4;
const PROVEN_EXCESS_SECONDS: f64 = 0.12;
const RECOVERY_TARGET: f64 = 0.97;
/// A disk is known to have done more where that is more by this part.
const RECOVERY_MARGIN: f64 = 0.07;
/// Requests to a slow disk that took longer than so many times as on a quiet day, and suddenly hardly longer, show that it became
/// faster: it is probed at once.
const SLOW_LATENCY_RATIO: f64 = 3.0;
const NORMAL_LATENCY_RATIO: f64 = 1.5;
/// A probe of a disk of which little is known begins as if it had lasted for so many seconds.
const GUESS_HEAD_START_SECONDS: f64 = 5.0;
/// Quiet seconds before a probe: after the first that failed, and at most; at most on a disk that is known to have done more.
const PROBE_BACKOFF_MIN: f64 = 8.0;
const PROBE_BACKOFF_MAX: f64 = 24.0;
const PROBE_BACKOFF_DEGRADED: f64 = 4.0;
/// Before the first. What was seen of a disk then, or since it is another one, was its end for one mix of requests, mostly of
/// whoever filled it; how much room there is for the mix that follows is asked sooner.
const PROBE_BACKOFF_FIRST: f64 = 2.0;
/// A probe makes sense where this part of the capacity is really used; one that grew goes on where this part is, although nobody
/// has reached his new limit yet.
const PROBE_MIN_USE: f64 = 0.7;
const PROBE_CONTINUE_USE: f64 = 0.8;
/// Requests that take this much longer than usual, while only our limits hold containers back, show that those are too loose.
const OVERRUN_LATENCY_RATIO: f64 = 12.0;
/// A probe that ends with requests that take this much longer has found the end of the disk, not the first signs of it.
const DEEP_LATENCY_RATIO: f64 = 8.0;
/// What was learned in a slow spell is doubted after so many quiet seconds.
const RESET_AFTER_SECONDS: f64 = 60.0;
/// A disk below this part of what it can normally do is slow.
const DEGRADED_BELOW: f64 = 0.8;

/// Learned prices.
#[derive(Debug)]
pub(in super::super) struct Capacity {
    prices: Flow,
    operation_cost: OperationCost,
    /// Whether reads, and writes, had part in saturating the disk.
    measured: [bool; 2],
    /// Mean bytes per read, and per write.
    mean_sizes: [f64; 2],
    rotational: bool,
    samples: u32,
    /// Seconds since the disk was last saturated.
    unsaturated_seconds: f64,
    probe_backoff: f64,
    probe: Option<CapacityProbe>,
    /// The last load that filled the disk.
    last_full_load: Flow,
    /// How much longer than usual requests took, over the last ten seconds or so.
    mean_latency_ratio: f64,
    history: CapacityHistory,
    /// What the disk does lately.
    mix: Flow,
}

/// A probe under way.
#[derive(Clone, Copy, Debug)]
struct CapacityProbe {
    /// For how many seconds.
    seconds: f64,
    /// How much the disk is taken to do more than before it.
    growth: f64,
    /// It grew in the last period.
    grew: bool,
    /// What the disk did since beyond what it was taken to do before, in seconds of all of that.
    excess_seconds: f64,
    /// It is on the way back to what the disk is known to have done.
    is_recovery: bool,
}

impl Default for CapacityProbe {
    fn default() -> Self {
        Self { seconds: 0.0, growth: 1.0, grew: false, excess_seconds: 0.0, is_recovery: false }
    }
}

/// What a period says about the capacity.
#[derive(Clone, Copy, Debug)]
pub(super) struct CapacitySample {
    pub(super) now: Micros,
    pub(super) seconds: f64,
    /// What the disk did.
    pub(super) flow: Flow,
    /// It looked saturated in this period.
    pub(super) looks_saturated: bool,
    /// It is saturated.
    pub(super) saturated: bool,
    /// It rested in between, but its requests waited as if it were saturated: more of that would tell.
    pub(super) may_saturate: bool,
    /// It rested most of the time.
    pub(super) mostly_idle: bool,
    /// How much longer than usual requests took.
    pub(super) latency_ratio: f64,
    /// It is the disk, not limits of ours, that holds containers back.
    pub(super) is_disk_bound: bool,
    /// The part of the capacity that is given away.
    pub(super) target: f64,
    /// A container that no limit holds gets a little less than it needs.
    pub(super) is_short: bool,
    /// A limit of ours holds a container back.
    pub(super) cap_binds: bool,
}

impl CapacitySample {
    /// A disk that hangs completes a request now and then.
    fn is_active(&self) -> bool {
        self.flow.operations() * self.seconds >= 2.0
    }
}

/// What a load costs before anything is known; in bytes.
pub(super) fn baseline_cost(flow: Flow, rotational: bool) -> f64 {
    flow.weighted_bytes(BYTES_PER_OPERATION[usize::from(rotational)])
}

impl Capacity {
    /// What the first saturated period says; nothing where nothing was done.
    pub(super) fn from_first_sample(seen: &CapacitySample, rotational: bool) -> Option<Self> {
        let plain = baseline_cost(seen.flow, rotational);
        if !seen.is_active() || !plain.is_finite() {
            return None;
        }
        let operation = BYTES_PER_OPERATION[usize::from(rotational)] / plain;
        let mut capacity =
            Self::with_prices(Flow([1.0 / plain, 1.0 / plain, operation, operation]), rotational);
        capacity.update_mix(seen);
        capacity.mark_measured(seen.flow);
        capacity.operation_cost.learn(seen.flow);
        capacity.last_full_load = seen.flow;
        capacity.samples = 1;
        capacity.record_history(seen.now);
        Some(capacity)
    }

    /// What was learned before a restart; nothing where that says nothing.
    pub(super) fn from_remembered(parts: IoMax, rotational: bool) -> Option<Self> {
        let parts = Flow::from(parts);
        let price = |k: usize| (parts.0[k].is_finite() && parts.0[k] > 0.0).then(|| 1.0 / parts.0[k]);
        let read = [OPS[0].0, OPS[0].1].map(price);
        let write = [OPS[1].0, OPS[1].1].map(price);
        let known = [read, write].map(|[bytes, operations]| Some((bytes?, operations?)));
        let (reads, writes) = (known[0].or(known[1])?, known[1].or(known[0])?);
        let mut capacity = Self::with_prices(Flow([reads.0, writes.0, reads.1, writes.1]), rotational);
        capacity.measured = known.map(|known| known.is_some());
        capacity.samples = TRUSTED_SAMPLES;
        Some(capacity)
    }

    fn with_prices(prices: Flow, rotational: bool) -> Self {
        Self {
            prices,
            operation_cost: OperationCost::new(prices.0[RIOPS] / prices.0[RBPS]),
            measured: [false; 2],
            mean_sizes: [0.0; 2],
            rotational,
            samples: 0,
            unsaturated_seconds: 0.0,
            probe_backoff: PROBE_BACKOFF_FIRST,
            probe: None,
            last_full_load: Flow::ZERO,
            mean_latency_ratio: 1.0,
            history: CapacityHistory::default(),
            mix: Flow::ZERO,
        }
    }

    /// The part of the disk that a load takes.
    pub(in super::super) fn share(&self, flow: Flow) -> f64 {
        flow.cost_at(self.prices)
    }

    pub(super) fn prices(&self) -> Flow {
        self.prices
    }

    /// The part of the disk that a container with such requests takes at rates of which only some are given: of bytes and
    /// operations the dearer, reads and writes together.
    pub(super) fn share_at_rates(&self, rates: Flow, shape: Flow) -> f64 {
        let ops = OPS.into_iter().enumerate().map(|(op, (bytes, ios))| {
            let own = shape.0[bytes] / shape.0[ios];
            let size = [own, self.mean_sizes[op], self.bytes_per_operation()];
            let size = size.into_iter().find(|size| size.is_finite() && *size > 0.0).unwrap_or(4096.0);
            let byte = self.prices.0[bytes] + self.prices.0[ios] / size;
            let cost = |rate: f64, price: f64| if rate.is_finite() { rate * price } else { 0.0 };
            cost(rates.0[bytes], byte).max(cost(rates.0[ios], byte * size))
        });
        ops.sum()
    }

    /// The least part of the disk that a load can take, whatever an operation costs: as many bytes, or operations, as what
    /// filled it.
    fn min_share(&self, flow: Flow) -> f64 {
        let part = |of: fn(Flow) -> f64| of(flow) / of(self.last_full_load).max(1.0);
        part(Flow::bytes).min(part(Flow::operations))
    }

    fn bytes_per_operation(&self) -> f64 {
        BYTES_PER_OPERATION[usize::from(self.rotational)]
    }

    /// What it can do if it does only reads, or only writes, of the size they have lately; no limit where they never had part
    /// in saturating it.
    pub(in super::super) fn max_rates(&self) -> IoMax {
        let mut out = Flow([f64::INFINITY; 4]);
        for (op, (bytes, ios)) in OPS.into_iter().enumerate() {
            if self.measured[op] && self.mean_sizes[op] > 0.0 {
                let byte = self.prices.0[bytes] + self.prices.0[ios] / self.mean_sizes[op];
                out.0[bytes] = 1.0 / byte;
                out.0[ios] = 1.0 / byte / self.mean_sizes[op];
            }
        }
        out.to_io_max()
    }

    /// The prices, as what it could do of each kind if the others were free.
    pub(in super::super) fn rates_by_kind(&self) -> IoMax {
        let mut out = Flow([f64::INFINITY; 4]);
        for ((bytes, ios), shown) in OPS.into_iter().zip(self.measured) {
            if shown {
                out.0[bytes] = 1.0 / self.prices.0[bytes];
                out.0[ios] = 1.0 / self.prices.0[ios];
            }
        }
        out.to_io_max()
    }

    /// What it does now and normally did with such loads, in the same unit, where that is much less.
    pub(super) fn degradation(&self, now: Micros) -> Option<(f64, f64)> {
        let (is, was) = (self.speed()?, self.normal_speed(now)?);
        (is < DEGRADED_BELOW * was).then_some((is, was))
    }

    /// Whether more is allowed than it is known to do.
    pub(super) fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// Takes in a period.
    pub(super) fn learn(&mut self, seen: &CapacitySample) {
        self.update_mix(seen);
        if seen.looks_saturated && seen.is_active() {
            self.operation_cost.learn(seen.flow);
            self.rebalance_prices(seen.flow);
            self.last_full_load = seen.flow;
        } else if seen.mostly_idle && !seen.may_saturate && self.operation_cost.learn_light(seen.flow) {
            self.rebalance_prices(self.last_full_load);
        }
        let probed = seen.looks_saturated && self.end_probe(seen);
        let cost = self.share(seen.flow);
        if seen.latency_ratio.is_finite() {
            self.mean_latency_ratio += (1.0 - (-seen.seconds / 10.0).exp())
                * (seen.latency_ratio.min(OVERRUN_LATENCY_RATIO) - self.mean_latency_ratio);
        }
        if seen.looks_saturated && seen.saturated {
            self.on_saturated(seen, cost);
        } else if !seen.looks_saturated {
            self.on_unsaturated(seen, cost);
        } else if !probed && seen.is_short && cost < CHANGED_BELOW {
            self.on_saturated(seen, cost);
        } else if !probed {
            // One period may be an accident.
            self.unsaturated_seconds /= 2.0;
        }
    }

    /// Takes back what a probe that saturated the disk had assumed, but for what the disk did; whether there was one.
    fn end_probe(&mut self, seen: &CapacitySample) -> bool {
        let Some(CapacityProbe { growth: grown, .. }) = self.probe.take() else { return false };
        self.probe_backoff = (self.probe_backoff * 2.0).clamp(PROBE_BACKOFF_MIN, PROBE_BACKOFF_MAX);
        (self.unsaturated_seconds, self.mean_latency_ratio) = (0.0, 1.0);
        let deep = seen.latency_ratio >= DEEP_LATENCY_RATIO || seen.is_short;
        let shown = self.share(seen.flow);
        // At the first signs of its end, what the disk did is what may be given away. Deep in it, that is what it can do; after
        // such a measurement, a quarter of the target's margin is enough.
        let most = if deep { shown * (1.0 + 0.75 * (1.0 - seen.target)) } else { f64::INFINITY };
        let least = if deep { shown } else { shown / seen.target };
        let factor = least.max(1.0 / grown).min(most);
        self.scale_capacity(factor.clamp(1.0 / MAX_FALL, 1.0));
        if deep {
            self.record_history(seen.now);
        }
        true
    }

    /// The disk does all it can: its load should cost 1.
    fn on_saturated(&mut self, seen: &CapacitySample, cost: f64) {
        self.unsaturated_seconds = 0.0;
        if !seen.is_active() || cost <= 0.0 {
            // It hangs. That is no speed.
            return;
        }
        let first = self.samples < TRUSTED_SAMPLES;
        self.samples = self.samples.saturating_add(1);
        let step = match cost >= 1.0 {
            true if first => 1.0,
            true => STEP_UP,
            false if seen.is_disk_bound => STEP_DOWN,
            false if seen.latency_ratio >= OVERRUN_LATENCY_RATIO || seen.is_short => {
                self.scale_capacity(0.99);
                return;
            }
            false => return,
        };
        if cost < CHANGED_BELOW {
            // The disk is another one now: what probes found is not true any more.
            self.probe_backoff = PROBE_BACKOFF_FIRST;
        }
        self.adjust_prices(seen.flow, step);
        self.mark_measured(seen.flow);
        self.record_history(seen.now);
    }

    fn on_unsaturated(&mut self, seen: &CapacitySample, cost: f64) {
        self.unsaturated_seconds += seen.seconds;
        let slow = self.degradation(seen.now).is_some();
        let more = self
            .normal_speed(seen.now)
            .zip(self.speed())
            .map_or(0.0, |(was, is)| RECOVERY_TARGET * was / is - 1.0);
        let relief =
            self.mean_latency_ratio > SLOW_LATENCY_RATIO && seen.latency_ratio < NORMAL_LATENCY_RATIO && slow;
        let hold = if slow { self.probe_backoff.min(PROBE_BACKOFF_DEGRADED) } else { self.probe_backoff };
        if self.unsaturated_seconds > 10.0 * self.probe_backoff {
            self.probe_backoff = (self.probe_backoff / 2.0).max(PROBE_BACKOFF_MIN);
        }
        let mut probe = self.probe.unwrap_or_default();
        probe.excess_seconds += (cost * probe.growth - 1.0).max(0.0) * seen.seconds;
        self.probe = self.probe.map(|_| probe);
        if cost > EXCEEDED {
            if more > RECOVERY_MARGIN {
                self.probe = Some(CapacityProbe { growth: probe.growth * cost, is_recovery: true, ..probe });
            }
            self.adjust_prices(seen.flow, 1.0);
            self.record_history(seen.now);
        } else if seen.may_saturate {
            // The next period tells whether there is room for more, or was too little already.
        } else if let Some(probe) = self.probe.as_mut()
            && probe.grew
            && !seen.cap_binds
            && cost < PROBE_CONTINUE_USE
        {
            // Who was held back has not reached his new limit yet.
            probe.grew = false;
        } else if more <= RECOVERY_MARGIN && self.probe.is_some_and(|probe| probe.is_recovery) {
            // It does what it is known to have done. How much more that is of the mix that follows is asked soon, and slowly.
            (self.probe, self.unsaturated_seconds, self.probe_backoff) = (None, 0.0, PROBE_BACKOFF_FIRST);
        } else if (seen.cap_binds || self.probe.is_some_and(|probe| probe.grew))
            && cost > PROBE_MIN_USE
            && (self.unsaturated_seconds >= hold || relief || self.probe.is_some())
        {
            if self.probe.is_none() && self.operation_cost.is_guess() {
                probe.seconds = GUESS_HEAD_START_SECONDS;
            }
            let growth = 1.0 + self.probe_step(&probe, seen, cost, more) * seen.seconds.min(1.0);
            self.probe = Some(CapacityProbe {
                seconds: probe.seconds + seen.seconds,
                growth: probe.growth * growth,
                grew: true,
                is_recovery: more > RECOVERY_MARGIN,
                ..probe
            });
            self.scale_capacity(growth);
        } else if self.unsaturated_seconds >= RESET_AFTER_SECONDS
            && let (Some(is), Some(was)) = (self.speed(), self.normal_speed(seen.now))
            && is < was
        {
            self.scale_capacity(was / is);
        } else {
            self.probe = None;
        }
    }

    /// By how much a probe goes on in a second.
    fn probe_step(&self, probe: &CapacityProbe, seen: &CapacitySample, cost: f64, more: f64) -> f64 {
        let steady = PROBE_GROWTH * PROBE_ACCELERATION.powf(probe.seconds);
        match () {
            () if more > RECOVERY_MARGIN && probe.excess_seconds > PROVEN_EXCESS_SECONDS => {
                RECOVERY_PROVEN_STEP.min(more)
            }
            () if more > RECOVERY_MARGIN && self.probe.is_none() => {
                (1.0 / cost - 1.0).clamp(RECOVERY_STEP, RECOVERY_FIRST_STEP).min(more)
            }
            () if more > RECOVERY_MARGIN => RECOVERY_STEP.min(more),
            () if self.operation_cost.is_guess() => {
                let room = seen.target / self.min_share(seen.flow) - 1.0;
                steady.min(PROBE_MAX_GROWTH_GUESSED).min(room.max(PROBE_MAX_GROWTH))
            }
            () => steady.min(PROBE_MAX_GROWTH),
        }
    }

    /// Moves the cost of a load towards 1, by a part of the way: the prices of reads or of writes more, whichever had more part
    /// in it.
    fn adjust_prices(&mut self, flow: Flow, step: f64) {
        let parts =
            OPS.map(|(bytes, ios)| flow.0[bytes] * self.prices.0[bytes] + flow.0[ios] * self.prices.0[ios]);
        let cost: f64 = parts.iter().sum();
        let squares: f64 = parts.iter().map(|part| part * part).sum();
        let target = (cost + step * (1.0 - cost)).min(cost * MAX_FALL);
        if squares > 0.0 && squares.is_finite() {
            for ((bytes, ios), part) in OPS.into_iter().zip(parts) {
                let factor = 1.0 + ((target - cost) * part / squares).max(-0.9);
                self.prices.0[bytes] *= factor;
                self.prices.0[ios] *= factor;
            }
            self.clamp_prices();
        }
    }

    /// Divides prices between bytes and operations as [`OperationCost`] has it; what this load costs stays.
    fn rebalance_prices(&mut self, flow: Flow) {
        let theta = self.operation_cost.theta();
        for (op, (bytes, ios)) in OPS.into_iter().enumerate() {
            let sizes = [flow.0[bytes] / flow.0[ios], self.mean_sizes[op], self.bytes_per_operation()];
            let size = sizes.into_iter().find(|size| size.is_finite() && *size > 0.0).unwrap_or(4096.0);
            let cost = self.prices.0[bytes] * size + self.prices.0[ios];
            self.prices.0[bytes] = cost / (size + theta);
            self.prices.0[ios] = theta * self.prices.0[bytes];
        }
        self.clamp_prices();
    }

    /// Makes the disk able to do `factor` times as much of everything.
    fn scale_capacity(&mut self, factor: f64) {
        self.prices = self.prices.map(|price| price / factor);
        self.clamp_prices();
    }

    /// Keeps prices where arithmetic works: from one unit per second to more than any disk can do.
    fn clamp_prices(&mut self) {
        self.prices = self.prices.map(|price| price.clamp(1e-15, 1.0));
    }

    fn update_mix(&mut self, seen: &CapacitySample) {
        for (op, (bytes, ios)) in OPS.into_iter().enumerate() {
            if seen.flow.0[ios] * seen.seconds >= 1.0 {
                let size = seen.flow.0[bytes] / seen.flow.0[ios];
                let part = if self.mean_sizes[op] > 0.0 { 0.2 } else { 1.0 };
                self.mean_sizes[op] += part * (size - self.mean_sizes[op]);
            }
        }
        if self.share(seen.flow) > 0.1 {
            let part = if self.mix == Flow::ZERO { 1.0 } else { 1.0 - (-seen.seconds / 10.0).exp() };
            self.mix = self.mix.zip(seen.flow, |shape, x| shape + part * (x - shape));
        }
    }

    /// A load that saturates the disk shows what it can do of what is in it.
    fn mark_measured(&mut self, flow: Flow) {
        for (op, (bytes, ios)) in OPS.into_iter().enumerate() {
            let part = flow.0[bytes] * self.prices.0[bytes] + flow.0[ios] * self.prices.0[ios];
            self.measured[op] |= part > 0.1;
        }
    }

    /// Remembers that this was seen, not guessed.
    fn record_history(&mut self, now: Micros) {
        if let Some(full) = self.full_load() {
            self.history.record(now, self.load_class(), full, self.operation_cost.theta());
        }
    }

    /// As much of the present load as it can do.
    fn full_load(&self) -> Option<Flow> {
        let cost = self.share(self.mix);
        let full = self.mix.map(|x| x / cost);
        (full.bytes() > 0.0 && full.bytes().is_finite()).then_some(full)
    }

    /// What it can do now of such loads, and what it could normally: in bytes, an operation being as many as it costs.
    fn speed(&self) -> Option<f64> {
        self.full_load().map(|full| full.weighted_bytes(self.operation_cost.theta()))
    }

    fn normal_speed(&self, now: Micros) -> Option<f64> {
        self.history.normal_speed(now, self.load_class(), self.operation_cost.theta())
    }

    /// Which loads the present one may be compared with: what it mostly does, and how large its requests are.
    fn load_class(&self) -> usize {
        let costs = self.mix.zip(self.prices, |x, price| x * price).0;
        let (reads, writes) = (costs[0] + costs[2], costs[1] + costs[3]);
        let kind = match reads / (reads + writes) {
            part if part > 0.8 => 0,
            part if part < 0.2 => 1,
            _ => 2,
        };
        let size = self.mix.bytes() / self.mix.operations().max(1e-9);
        kind * 3 + [16.0 * 1024.0, 128.0 * 1024.0].iter().filter(|limit| size > **limit).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that does this much and no more, whatever the size of requests.
    const SPEED: f64 = 100e6;

    fn reads(bytes: f64, size: f64) -> Flow {
        Flow([bytes, 0.0, bytes / size, 0.0])
    }

    fn seen(second: u64, flow: Flow) -> CapacitySample {
        CapacitySample {
            now: Micros::secs(second),
            seconds: 1.0,
            flow,
            looks_saturated: true,
            saturated: true,
            may_saturate: false,
            mostly_idle: false,
            latency_ratio: 50.0,
            is_disk_bound: true,
            target: 0.92,
            is_short: false,
            cap_binds: false,
        }
    }

    fn calm(second: u64, flow: Flow) -> CapacitySample {
        CapacitySample {
            looks_saturated: false,
            saturated: false,
            latency_ratio: 1.0,
            is_disk_bound: false,
            ..seen(second, flow)
        }
    }

    fn learned() -> Capacity {
        Capacity::from_first_sample(&seen(0, reads(SPEED, 4096.0)), false).unwrap()
    }

    /// What the disk is taken to do of such reads.
    fn speed(capacity: &Capacity, size: f64) -> f64 {
        SPEED / capacity.share(reads(SPEED, size))
    }

    #[test]
    fn the_first_saturated_period_is_believed() {
        let capacity = learned();
        assert!((speed(&capacity, 4096.0) - SPEED).abs() < 1.0);
        assert_eq!(capacity.max_rates().rbps.value().map(|n| n.div_ceil(1_000_000)), Some(100));
        assert_eq!(capacity.max_rates().wbps.value(), None, "nobody wrote");
        assert!(Capacity::from_first_sample(&seen(0, Flow::ZERO), false).is_none());
    }

    #[test]
    fn loads_of_other_sizes_correct_what_bytes_and_operations_cost() {
        let mut capacity = learned();
        assert!(speed(&capacity, 65536.0) > 5.0 * SPEED, "it is taken to be short of operations");
        for second in 1..200 {
            let size = if second % 20 < 10 { 65536.0 } else { 4096.0 };
            capacity.learn(&seen(second, reads(SPEED, size)));
        }
        for size in [4096.0, 65536.0, 16384.0] {
            let error = speed(&capacity, size) / SPEED - 1.0;
            assert!(error.abs() < 0.3, "{size}: {error}");
        }
    }

    #[test]
    fn a_disk_that_slows_down_is_known_in_seconds() {
        let mut capacity = learned();
        let seconds = (1..60).find(|second| {
            capacity.learn(&seen(*second, reads(0.55 * SPEED, 4096.0)));
            speed(&capacity, 4096.0) < 0.6 * SPEED
        });
        assert_eq!(seconds, Some(3));
        let (is, was) = capacity.degradation(Micros::secs(60)).unwrap();
        assert!((is / was - 0.58).abs() < 0.05, "{is} {was}");
    }

    #[test]
    fn a_saturated_disk_that_does_what_limits_allow_is_not_slow() {
        let mut capacity = learned();
        for second in 1..100 {
            let seen = CapacitySample {
                is_disk_bound: false,
                latency_ratio: 10.0,
                ..seen(second, reads(0.9 * SPEED, 4096.0))
            };
            capacity.learn(&seen);
        }
        assert!((speed(&capacity, 4096.0) - SPEED).abs() < 1.0);
    }

    #[test]
    fn a_disk_that_hangs_has_no_speed() {
        let mut capacity = learned();
        capacity.learn(&CapacitySample { latency_ratio: f64::INFINITY, ..seen(1, Flow::ZERO) });
        assert!((speed(&capacity, 4096.0) - SPEED).abs() < 1.0);
    }

    #[test]
    fn a_probe_finds_a_faster_disk_and_one_that_fails_is_taken_back() {
        let mut capacity = learned();
        let used = |capacity: &Capacity| (0.92 * speed(capacity, 4096.0)).min(2.0 * SPEED);
        let mut second = 0;
        while used(&capacity) < 1.99 * SPEED && second < 60 {
            second += 1;
            let flow = reads(used(&capacity), 4096.0);
            capacity.learn(&CapacitySample { cap_binds: true, ..calm(second, flow) });
        }
        assert!((10..30).contains(&second), "it takes {second} s to twice as much");
        capacity.learn(&CapacitySample { cap_binds: true, ..seen(second, reads(2.0 * SPEED, 4096.0)) });
        let found = speed(&capacity, 4096.0) / SPEED;
        assert!((1.95..2.15).contains(&found), "{found}");
    }

    #[test]
    fn a_disk_that_is_fast_again_is_known_in_seconds() {
        let mut capacity = learned();
        (1..20).for_each(|second| capacity.learn(&seen(second, reads(0.55 * SPEED, 4096.0))));
        let ease = |second: u64, capacity: &mut Capacity| {
            let flow = reads((0.92 * speed(capacity, 4096.0)).min(SPEED), 4096.0);
            capacity.learn(&CapacitySample { cap_binds: true, ..calm(second, flow) });
        };
        let seconds = (20..80).find(|second| {
            ease(*second, &mut capacity);
            speed(&capacity, 4096.0) > 0.95 * SPEED
        });
        assert!(seconds.is_some_and(|second| second <= 20 + 8), "{seconds:?}");
    }

    #[test]
    fn a_probe_does_not_go_on_before_it_is_known_what_it_did() {
        let mut capacity = learned();
        let mut step = |second, suspect| {
            let before = speed(&capacity, 4096.0);
            let flow = reads(0.92 * before, 4096.0);
            capacity.learn(&CapacitySample { cap_binds: true, may_saturate: suspect, ..calm(second, flow) });
            (capacity.is_probing(), speed(&capacity, 4096.0) > before)
        };
        let grew: Vec<_> = (1..5).map(|second| step(second, false)).collect();
        assert_eq!(grew.last(), Some(&(true, true)), "{grew:?}");
        assert_eq!(step(5, true), (true, false));
        assert_eq!(step(6, false), (true, true));
    }

    #[test]
    fn after_a_quiet_minute_a_slow_spell_is_doubted() {
        let mut capacity = learned();
        (1..20).for_each(|second| capacity.learn(&seen(second, reads(0.5 * SPEED, 4096.0))));
        for second in 20..70 {
            capacity.learn(&calm(second, reads(0.2 * SPEED, 4096.0)));
        }
        assert!(speed(&capacity, 4096.0) < 0.6 * SPEED);
        for second in 70..90 {
            capacity.learn(&calm(second, reads(0.2 * SPEED, 4096.0)));
        }
        assert!((speed(&capacity, 4096.0) / SPEED - 1.0).abs() < 0.05);
    }

    #[test]
    fn what_was_learned_reads_back() {
        let mut capacity = learned();
        for second in 1..20 {
            capacity.learn(&seen(second, Flow([0.5 * SPEED, 0.25 * SPEED, 12e3, 6e3])));
        }
        let again = Capacity::from_remembered(capacity.rates_by_kind(), false).unwrap();
        for flow in [reads(SPEED, 4096.0), Flow([0.0, SPEED, 0.0, 25e3])] {
            assert!((again.share(flow) / capacity.share(flow) - 1.0).abs() < 0.001);
        }
        assert!(Capacity::from_remembered(IoMax::MAX, false).is_none());
    }

    #[test]
    fn reservations_count_by_the_dearer_of_bytes_and_operations() {
        let capacity = learned();
        let check = |rates: [f64; 4], expect: f64| {
            let rates = Flow(rates.map(|rate| if rate > 0.0 { rate } else { f64::INFINITY }));
            let share = capacity.share_at_rates(rates, reads(4096.0, 4096.0));
            assert!((share - expect).abs() < 0.01, "{rates:?}: {share}");
        };
        check([0.5 * SPEED, 0.0, 0.0, 0.0], 0.5);
        check([0.0, 0.0, 0.25 * SPEED / 4096.0, 0.0], 0.25);
        check([0.5 * SPEED, 0.0, 0.25 * SPEED / 4096.0, 0.0], 0.5);
    }
}
