//! A subject's points at one scale.

use super::block::{POINTS, SeriesBlock};
use super::{SERIES_COUNT, is_averaged};
use std::collections::VecDeque;

/// The newest points, [`POINTS`] to a block.
#[derive(Clone, Debug)]
pub(super) struct HistoryRing {
    step_ms: u64,
    /// Full blocks that are kept beside the one being filled.
    max_blocks: usize,
    /// By the number of the block: slot / [`POINTS`].
    blocks: VecDeque<(u64, SeriesBlock)>,
    /// Whether there ever were others.
    has_evicted: bool,
    open_slot: OpenSlot,
}

/// The slot that is being filled.
#[derive(Clone, Debug, Default)]
struct OpenSlot {
    slot: Option<u64>,
    averages: [SeriesAverage; SERIES_COUNT],
}

/// Several values of one series as one.
#[derive(Clone, Copy, Debug, Default)]
struct SeriesAverage {
    sum: f64,
    count: u32,
    last: f32,
}

impl SeriesAverage {
    fn add(&mut self, value: Option<f32>) {
        if let Some(value) = value {
            *self = Self { sum: self.sum + f64::from(value), count: self.count + 1, last: value };
        }
    }

    fn value(&self, series: usize) -> Option<f32> {
        match self.count {
            0 => None,
            n if is_averaged(series) => Some((self.sum / f64::from(n)) as f32),
            _ => Some(self.last),
        }
    }
}

impl HistoryRing {
    pub(super) fn new(step_ms: u64, keep: usize) -> Self {
        Self {
            step_ms,
            max_blocks: keep,
            blocks: VecDeque::new(),
            has_evicted: false,
            open_slot: OpenSlot::default(),
        }
    }

    /// Takes a point; time must not run backwards.
    pub(super) fn record(&mut self, at: u64, point: &[Option<f32>; SERIES_COUNT]) {
        let slot = at / self.step_ms;
        if self.open_slot.slot != Some(slot) {
            self.open_slot = OpenSlot { slot: Some(slot), ..OpenSlot::default() };
        }
        let mut folded = [f32::NAN; SERIES_COUNT];
        for (n, (fold, value)) in self.open_slot.averages.iter_mut().zip(point).enumerate() {
            fold.add(*value);
            folded[n] = fold.value(n).unwrap_or(f32::NAN);
        }
        let number = slot / POINTS as u64;
        if self.blocks.back().is_none_or(|(last, _)| *last != number) {
            while self.blocks.front().is_some_and(|(first, _)| number - first > self.max_blocks as u64) {
                self.blocks.pop_front();
                self.has_evicted = true;
            }
            self.blocks.push_back((number, SeriesBlock::new()));
        }
        let (_, block) = self.blocks.back_mut().expect("one was just pushed, or is there");
        block.write((slot % POINTS as u64) as usize, &folded);
    }

    /// Whether nothing of that time was forgotten here: it is kept still, or was before anything was known.
    pub(super) fn covers(&self, from: u64) -> bool {
        let first = self.blocks.front().map_or(0, |(first, _)| first * POINTS as u64 * self.step_ms);
        !self.has_evicted || from >= first
    }

    /// At most `points` points of a time: their step, when each begins, and each series.
    pub(super) fn read(
        &self,
        from: u64,
        to: u64,
        points: usize,
    ) -> (u64, Vec<u64>, [Vec<Option<f32>>; SERIES_COUNT]) {
        let none = (self.step_ms, Vec::new(), std::array::from_fn(|_| Vec::new()));
        let (Some((front, _)), Some(newest)) = (self.blocks.front(), self.open_slot.slot) else {
            return none;
        };
        let begin = (from / self.step_ms).max(front * POINTS as u64);
        let end = (to / self.step_ms).min(newest);
        let Some(begin) = (begin..=end).find(|slot| self.is_written(*slot)) else { return none };
        // Buckets begin at multiples of their size, so that asking again a second later moves no point.
        let mut size = ((end - begin) / points as u64).max(1);
        while end / size - begin / size >= points as u64 {
            size += 1;
        }
        let buckets = (end / size - begin / size + 1) as usize;
        let mut folds = vec![[SeriesAverage::default(); SERIES_COUNT]; buckets];
        for (number, block) in &self.blocks {
            for offset in 0..POINTS {
                let slot = number * POINTS as u64 + offset as u64;
                if (begin..=end).contains(&slot) {
                    let folds = &mut folds[(slot / size - begin / size) as usize];
                    folds.iter_mut().enumerate().for_each(|(n, fold)| fold.add(block.get(offset, n)));
                }
            }
        }
        let step_ms = self.step_ms * size;
        let time = (begin / size..=end / size).map(|bucket| bucket * step_ms).collect();
        (step_ms, time, std::array::from_fn(|n| folds.iter().map(|folds| folds[n].value(n)).collect()))
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<(u64, SeriesBlock)>()
            + self.blocks.iter().map(|(_, block)| block.allocated_bytes()).sum::<usize>()
    }

    fn is_written(&self, slot: u64) -> bool {
        let number = slot / POINTS as u64;
        let offset = (slot % POINTS as u64) as usize;
        let block = self.blocks.iter().find(|(n, _)| *n == number);
        block.is_some_and(|(_, block)| (0..SERIES_COUNT).any(|series| block.get(offset, series).is_some()))
    }
}
