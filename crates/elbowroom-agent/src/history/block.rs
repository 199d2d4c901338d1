//! Sixty points of all series, as small as they are dull.

use super::SERIES_COUNT;

/// Points in a block: a bit each in a word.
pub(super) const POINTS: usize = 60;

/// Consecutive slots.
#[derive(Clone, Debug)]
pub(super) struct SeriesBlock {
    /// Which slots were written.
    written: u64,
    columns: [SeriesColumn; SERIES_COUNT],
}

/// One series in a block. An unknown value is NaN.
#[derive(Clone, Debug)]
enum SeriesColumn {
    /// Every slot that was written has this value.
    Same(f32),
    /// They differ.
    Each(Box<[f32; POINTS]>),
}

impl SeriesBlock {
    pub(super) fn new() -> Self {
        Self { written: 0, columns: std::array::from_fn(|_| SeriesColumn::Same(f32::NAN)) }
    }

    /// Writes a slot, again or for the first time.
    pub(super) fn write(&mut self, slot: usize, point: &[f32; SERIES_COUNT]) {
        let others = self.written & !(1 << slot);
        for (column, value) in self.columns.iter_mut().zip(point) {
            column.write(slot, *value, others);
        }
        self.written = others | 1 << slot;
    }

    /// The value of a series in a slot, where it is known.
    pub(super) fn get(&self, slot: usize, series: usize) -> Option<f32> {
        if self.written & (1 << slot) == 0 {
            return None;
        }
        let value = match &self.columns[series] {
            SeriesColumn::Same(value) => *value,
            SeriesColumn::Each(values) => values[slot],
        };
        (!value.is_nan()).then_some(value)
    }

    /// Allocated bytes behind this block.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.columns
            .iter()
            .map(|c| if let SeriesColumn::Each(values) = c { size_of_val(&**values) } else { 0 })
            .sum()
    }
}

impl SeriesColumn {
    fn write(&mut self, slot: usize, value: f32, others: u64) {
        match self {
            Self::Same(same) if same.to_bits() == value.to_bits() => {}
            Self::Same(same) if others == 0 => *same = value,
            Self::Same(same) => {
                let mut values = Box::new([f32::NAN; POINTS]);
                for (n, each) in values.iter_mut().enumerate() {
                    if others & (1 << n) != 0 {
                        *each = *same;
                    }
                }
                values[slot] = value;
                *self = Self::Each(values);
            }
            Self::Each(values) => values[slot] = value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_that_stays_takes_no_memory_and_one_that_moves_sixty_numbers() {
        let mut block = SeriesBlock::new();
        for slot in 0..POINTS {
            let mut point = [4.0; SERIES_COUNT];
            point[3] = slot as f32;
            block.write(slot, &point);
        }
        assert_eq!(block.allocated_bytes(), POINTS * size_of::<f32>());
        assert_eq!((block.get(7, 3), block.get(59, 0)), (Some(7.0), Some(4.0)));
    }

    #[test]
    fn what_was_never_written_and_what_is_not_known_are_both_absent() {
        let mut block = SeriesBlock::new();
        block.write(1, &[f32::NAN; SERIES_COUNT]);
        block.write(2, &[0.0; SERIES_COUNT]);
        assert_eq!([0, 1, 2].map(|slot| block.get(slot, 0)), [None, None, Some(0.0)]);
    }

    #[test]
    fn a_slot_may_be_written_again() {
        let mut block = SeriesBlock::new();
        block.write(0, &[1.0; SERIES_COUNT]);
        block.write(0, &[2.0; SERIES_COUNT]);
        assert_eq!((block.get(0, 0), block.allocated_bytes()), (Some(2.0), 0));
        block.write(1, &[2.0; SERIES_COUNT]);
        block.write(1, &[3.0; SERIES_COUNT]);
        assert_eq!([0, 1].map(|slot| block.get(slot, 0)), [Some(2.0), Some(3.0)]);
    }
}
