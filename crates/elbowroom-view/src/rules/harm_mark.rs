//! How much must be left after growth of memory hurt.
//!
//! Problem: views that fall and grow again at the same pace hurt a neighbour again, several times a minute.
//!
//! Approach: as CUBIC (Ha, Rhee, Xu 2008) keeps from filling a network, but in memory that is left. Growth is fast down to a mark: what was
//! left when it began to hurt, and a part of what views had taken. The mark wears off while it keeps views from growing, hardly at first,
//! then faster: they look for more. Growth hurts again at the same place, and the mark is back, or it does not, and all is had. Memory that
//! is left above the mark, because a program ends or the machine gets more, is had at once.

use elbowroom_types::unit::{Bytes, Micros};

/// This part of what views had above their soft limits stays away at first: one in so many.
const KEPT_AWAY: u64 = 8;
/// A mark in the way is worn off after this time, an eighth of it after half.
const WORN_OFF_AFTER: Micros = Micros::secs(600);

/// What must be left; nothing before growth hurt.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HarmMark {
    left: Bytes,
    /// For how long it was in the way.
    worn: Micros,
}

impl HarmMark {
    /// It hurt with so much left, while views had so much above their soft limits.
    pub(super) fn new(left: Bytes, given: Bytes) -> Self {
        Self { left: left.saturating_add(Bytes(given.get() / KEPT_AWAY)), worn: Micros::ZERO }
    }

    /// It was in the way for so long.
    pub(super) fn decay(&mut self, time: Micros) {
        self.worn = self.worn.saturating_add(time).min(WORN_OFF_AFTER);
    }

    /// What must be left now.
    pub(super) fn left(&self) -> Bytes {
        let worn = u128::from(self.worn.get() * 1_024 / WORN_OFF_AFTER.get());
        let gone = (u128::from(self.left.get()) * worn.pow(3)) >> 30;
        self.left.saturating_sub(Bytes(gone as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_mark_hardly_moves_at_first_and_is_gone_after_ten_minutes() {
        let mut mark = HarmMark::new(Bytes::mib(192), Bytes::mib(512));
        let mut left = || {
            let now = mark.left();
            mark.decay(Micros::secs(150));
            now.get() >> 20
        };
        assert_eq!([left(), left(), left(), left(), left(), left()], [256, 252, 224, 148, 0, 0]);
        assert_eq!(HarmMark::default().left(), Bytes::ZERO);
    }

    proptest! {
        #[test]
        fn it_only_falls(left: u64, given: u64, waits in proptest::collection::vec(any::<u64>(), 0..9)) {
            let mut mark = HarmMark::new(Bytes(left), Bytes(given));
            for wait in waits {
                let before = mark.left();
                mark.decay(Micros(wait));
                prop_assert!(mark.left() <= before);
            }
        }
    }
}
