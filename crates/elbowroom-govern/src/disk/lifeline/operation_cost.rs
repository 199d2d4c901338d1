//! What an operation costs beside its bytes.
//!
//! # Problem
//! A disk that is short of bytes and one that is short of operations look alike while all requests are of one size. Whoever takes
//! the one for the other overrates what a container with small requests needs, and leaves idle what it keeps for it.
//!
//! # Approach
//! All loads that fill a disk cost the same. With `b` bytes and `n` operations per second, `b + theta * n` is what does not
//! change: `theta` is as many bytes as an operation costs. Of two full loads, one with more bytes and one with more
//! operations, it follows; loads that have more of both come from a disk that changed, and no `theta` makes them equal. A load that
//! leaves a disk idle for most of the time costs no more than one that fills it, which may already tell that `theta` is less, or
//! more. Reads, writes and mixtures are compared among themselves only.
//!
//! # Properties
//! - `two_sizes_tell_what_an_operation_costs`
//! - `one_size_tells_nothing`
//! - `what_a_disk_did_with_ease_does_not_cost_more_than_what_filled_it`
//! - `a_disk_that_changed_starts_again`

use super::super::flow::{Flow, RIOPS};

/// Mean sizes of requests that are told apart: so many to an octave.
const SIZES_PER_OCTAVE: f64 = 8.0;
/// By how much measurements of a full disk deviate, as a logarithm; two loads that tell `theta` differ by more.
const NOISE: f64 = 0.04;
/// By how many octaves the guess may be wrong before that counts like a measurement that deviates by [`NOISE`].
const GUESS_OCTAVES: f64 = 12.0;
/// What is known stays while nothing else explains all loads better by so many measurements that deviate by [`NOISE`].
const MIN_IMPROVEMENT: f64 = 1.0;
/// Loads that no `theta` brings closer to each other than this come from a disk that changed.
const CHANGED_DISTANCE: f64 = 0.15;
/// The least and the most that an operation costs, in bytes; less is nothing.
const MIN_COST: f64 = 512.0;
const MAX_COST: f64 = 4.0 * 1024.0 * 1024.0;
/// How many loads are remembered.
const MAX_SAMPLES: usize = 12;

/// The loads that filled a disk since it last changed, those that it did with ease, and what follows from them.
#[derive(Debug)]
pub(super) struct OperationCost {
    guess: f64,
    theta: f64,
    /// `theta` follows from loads that filled the disk.
    is_measured: bool,
    full_loads: Vec<CostSample>,
    light_loads: Vec<CostSample>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct CostSample {
    mixture: Mixture,
    /// Bytes per operation, in parts of an octave.
    size: i32,
    bytes: f64,
    operations: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mixture {
    Reads,
    Both,
    Writes,
}

impl CostSample {
    fn from_flow(flow: Flow) -> Option<Self> {
        let (bytes, operations) = (flow.bytes(), flow.operations());
        let mixture = match flow.0[RIOPS] / operations {
            reads if reads > 0.8 => Mixture::Reads,
            reads if reads < 0.2 => Mixture::Writes,
            _ => Mixture::Both,
        };
        let size = (bytes / operations).log2() * SIZES_PER_OCTAVE;
        size.is_finite().then(|| Self { mixture, size: size.round() as i32, bytes, operations })
    }

    /// Whether it is of the same mixture and size.
    fn is_like(&self, other: &Self) -> bool {
        (self.mixture, self.size) == (other.mixture, other.size)
    }

    /// The logarithm of what it costs.
    fn cost(&self, theta: f64) -> f64 {
        (self.bytes + theta * self.operations).ln()
    }
}

impl OperationCost {
    /// Nothing seen, and a guess in bytes.
    pub(super) fn new(guess: f64) -> Self {
        let guess = if guess.is_nan() { MAX_COST } else { guess.clamp(0.0, MAX_COST) };
        Self { guess, theta: guess, is_measured: false, full_loads: Vec::new(), light_loads: Vec::new() }
    }

    /// As many bytes as cost as much as one operation.
    pub(super) fn theta(&self) -> f64 {
        self.theta
    }

    /// Whether no two loads that filled the disk have told yet what an operation costs.
    pub(super) fn is_guess(&self) -> bool {
        !self.is_measured
    }

    /// Takes in a load that filled the disk.
    pub(super) fn learn(&mut self, flow: Flow) {
        let Some(new) = CostSample::from_flow(flow) else { return };
        match self.full_loads.iter_mut().find(|full| full.is_like(&new)) {
            Some(same) => {
                if (same.cost(0.0) - new.cost(0.0)).abs() > CHANGED_DISTANCE {
                    return self.restart(new);
                }
                same.bytes += 0.3 * (new.bytes - same.bytes);
                same.operations += 0.3 * (new.operations - same.operations);
            }
            None => push_bounded(&mut self.full_loads, new),
        }
        let [full, easy] = self.comparable(new.mixture);
        let theta = self.fit(&full, &easy);
        if full.iter().any(|full| (full.cost(theta) - new.cost(theta)).abs() > CHANGED_DISTANCE) {
            self.restart(new);
        } else if full.len() > 1 {
            (self.theta, self.is_measured) = (theta, true);
        }
    }

    /// Takes in a load that left the disk idle for most of the time; whether that told something. One that costs more than what
    /// filled the disk, whatever an operation costs, comes from a disk that changed and tells nothing.
    pub(super) fn learn_light(&mut self, flow: Flow) -> bool {
        let Some(new) = CostSample::from_flow(flow) else { return false };
        let [full, mut easy] = self.comparable(new.mixture);
        if full.is_empty() || new.cost(self.theta) <= mean_cost(&full, self.theta) + NOISE {
            return false;
        }
        easy.retain(|load| !load.is_like(&new));
        easy.push(new);
        let theta = self.fit(&full, &easy);
        let told = new.cost(theta) <= mean_cost(&full, theta) + NOISE;
        if told {
            self.theta = theta;
            self.light_loads.retain(|load| !load.is_like(&new));
            push_bounded(&mut self.light_loads, new);
        }
        told
    }

    /// Loads of a mixture: those that filled the disk, and those that it did with ease.
    fn comparable(&self, mixture: Mixture) -> [Vec<CostSample>; 2] {
        [&self.full_loads, &self.light_loads]
            .map(|loads| loads.iter().filter(|load| load.mixture == mixture).copied().collect())
    }

    /// The `theta` at which full loads cost most alike, and easy ones no more, of nothing, every half octave and the present one.
    fn fit(&self, full: &[CostSample], easy: &[CostSample]) -> f64 {
        let score = |theta: f64| {
            let mean = mean_cost(full, theta);
            let spread: f64 = full.iter().map(|full| ((full.cost(theta) - mean) / NOISE).powi(2)).sum();
            let beyond: f64 =
                easy.iter().map(|easy| ((easy.cost(theta) - mean).max(0.0) / NOISE).powi(2)).sum();
            spread
                + beyond
                + ((theta.max(MIN_COST) / self.guess.max(MIN_COST)).log2() / GUESS_OCTAVES).powi(2)
        };
        let steps = ((MAX_COST / MIN_COST).log2() * 2.0) as i32;
        let grid = (0..=steps).map(|half| MIN_COST * (0.5 * f64::from(half)).exp2());
        let best = std::iter::once(0.0).chain(grid).min_by(|a, b| score(*a).total_cmp(&score(*b)));
        best.filter(|best| score(*best) + MIN_IMPROVEMENT < score(self.theta)).unwrap_or(self.theta)
    }

    fn restart(&mut self, full: CostSample) {
        self.full_loads.clear();
        self.light_loads.clear();
        self.full_loads.push(full);
    }
}

fn push_bounded(loads: &mut Vec<CostSample>, load: CostSample) {
    if loads.len() == MAX_SAMPLES {
        loads.remove(0);
    }
    loads.push(load);
}

fn mean_cost(loads: &[CostSample], theta: f64) -> f64 {
    loads.iter().map(|load| load.cost(theta)).sum::<f64>() / loads.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GUESS: f64 = 32.0 * 1024.0;

    /// Reads of this size that fill a disk on which an operation costs `theta` bytes.
    fn full(size: f64, theta: f64) -> Flow {
        let operations = 100e6 / (size + theta);
        Flow([operations * size, 0.0, operations, 0.0])
    }

    fn learned(loads: impl IntoIterator<Item = Flow>) -> f64 {
        let mut split = OperationCost::new(GUESS);
        loads.into_iter().for_each(|load| split.learn(load));
        split.theta()
    }

    #[test]
    fn two_sizes_tell_what_an_operation_costs() {
        let check = |theta: f64, expect: std::ops::RangeInclusive<f64>| {
            let is = learned([full(8192.0, theta), full(6144.0, theta)]);
            assert!(expect.contains(&is), "{theta}: {is}");
        };
        check(0.0, 0.0..=2048.0);
        check(8192.0, 4096.0..=16384.0);
        check(524_288.0, 32_768.0..=MAX_COST);
    }

    #[test]
    fn one_size_tells_nothing() {
        assert_eq!(learned((0..10).map(|_| full(8192.0, 0.0))), GUESS);
    }

    #[test]
    fn a_disk_that_changed_starts_again() {
        let slower = |flow: Flow| flow.map(|x| 0.55 * x);
        let check = |name, loads: &[Flow]| {
            let is = learned(loads.iter().copied());
            assert!(is <= 2048.0, "{name}: {is}");
        };
        let [coarse, fine] = [8192.0, 6144.0].map(|size| full(size, 0.0));
        check("the same size", &[coarse, fine, slower(coarse), slower(fine)]);
        check("another size", &[coarse, fine, slower(full(7000.0, 0.0))]);
    }

    #[test]
    fn what_a_disk_did_with_ease_does_not_cost_more_than_what_filled_it() {
        let mut split = OperationCost::new(GUESS);
        assert!(!split.learn_light(full(4096.0, 0.0)), "nothing to compare with");
        split.learn(full(8192.0, 0.0));
        assert!(!split.learn_light(full(4096.0, 0.0).map(|x| 0.5 * x)), "no more of anything");
        assert!(split.learn_light(full(4096.0, 0.0).map(|x| 0.9 * x)));
        assert!(split.theta() <= 2048.0, "{}", split.theta());
        assert!(split.is_guess(), "of no two full loads");
        let theta = split.theta();
        assert!(!split.learn_light(full(8192.0, 0.0).map(|x| 1.3 * x)), "the disk changed");
        assert_eq!(split.theta(), theta);
    }

    #[test]
    fn reads_say_nothing_of_writes() {
        let written = |Flow([bytes, _, operations, _]): Flow| Flow([0.0, bytes, 0.0, operations]);
        assert_eq!(learned([full(8192.0, 0.0), written(full(4096.0, 0.0))]), GUESS);
    }

    proptest! {
        #[test]
        fn nothing_learned_is_absurd(loads in prop::collection::vec(prop::array::uniform4(prop::num::f64::ANY), 0..40)) {
            let theta = learned(loads.into_iter().map(Flow));
            prop_assert!((0.0..=MAX_COST).contains(&theta));
        }
    }
}
