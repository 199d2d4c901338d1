//! Sets of CPUs in the kernel's list format (`0-3,8`), `Documentation/admin-guide/cgroup-v2.rst`, "List" format of cpusets.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// How many CPUs a set can name: x86-64 kernels go to 8,192, distributions to 512 or 8,192; machines of 1,024 CPUs are
/// the largest that a view page has room for.
pub const MAX_CPUS: usize = 1024;
const WORD_COUNT: usize = MAX_CPUS / 64;

/// A set of CPU numbers below [`MAX_CPUS`]. Plain bytes, fixed size: it is copied into the memory that views share.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(with = "String"))]
#[repr(C)]
pub struct CpuSet {
    words: [u64; WORD_COUNT],
}

/// Why a CPU list was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not a CPU list ({reason}): write for example \"0-3,8\"")]
pub struct CpuSetError {
    text: String,
    reason: &'static str,
}

impl CpuSet {
    /// No CPU.
    pub const EMPTY: Self = Self { words: [0; WORD_COUNT] };

    /// The CPUs `0..n`.
    pub fn first_n(n: u32) -> Self {
        (0..n).collect()
    }

    /// How many CPUs are in the set.
    pub fn count(&self) -> u32 {
        self.words.iter().map(|w| w.count_ones()).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|w| *w == 0)
    }

    /// Whether `cpu` is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.words.get(cpu as usize / 64).is_some_and(|w| w & (1 << (cpu % 64)) != 0)
    }

    /// Adds `cpu`; numbers of [`MAX_CPUS`] and above are left out.
    pub fn insert(&mut self, cpu: u32) {
        if let Some(w) = self.words.get_mut(cpu as usize / 64) {
            *w |= 1 << (cpu % 64);
        }
    }

    /// The CPUs in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let mut words = self.words;
        words.iter_mut().zip(other.words).for_each(|(a, b)| *a &= b);
        Self { words }
    }

    /// The CPUs in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut words = self.words;
        words.iter_mut().zip(other.words).for_each(|(a, b)| *a |= b);
        Self { words }
    }

    /// The CPUs in `self` and not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut words = self.words;
        words.iter_mut().zip(other.words).for_each(|(a, b)| *a &= !b);
        Self { words }
    }

    /// The `n` lowest CPUs of the set, or all where it has fewer.
    #[must_use]
    pub fn lowest(&self, n: u32) -> Self {
        let mut left = n;
        let words = self.words.map(|word| {
            let mut rest = word;
            (left..word.count_ones()).for_each(|_| rest &= !(1 << (63 - rest.leading_zeros())));
            left -= rest.count_ones();
            rest
        });
        Self { words }
    }

    /// The CPU numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(i, w)| {
            let mut rest = *w;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                (rest != 0).then(|| {
                    rest &= rest - 1;
                    i as u32 * 64 + bit
                })
            })
        })
    }
}

impl Default for CpuSet {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut set = Self::EMPTY;
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    /// Reads the kernel's list format; surrounding white space is allowed, an empty list is the empty set.
    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        let refuse = |reason| CpuSetError { text: text.chars().take(64).collect(), reason };
        let number = |t: &str| -> Result<u32, CpuSetError> {
            let n: u32 = match t.bytes().all(|b| b.is_ascii_digit()) {
                true => t.parse().map_err(|_| refuse("not a number"))?,
                false => return Err(refuse("not a number")),
            };
            if (n as usize) < MAX_CPUS { Ok(n) } else { Err(refuse("CPU number above 1023")) }
        };
        let mut set = Self::EMPTY;
        for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
            let (first, last) = match part.split_once('-') {
                Some((a, b)) => (number(a)?, number(b)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(refuse("range runs backwards"));
            }
            (first..=last).for_each(|cpu| set.insert(cpu));
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    /// The kernel's list format; the empty set is an empty string.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        let mut cpus = self.iter().peekable();
        while let Some(first) = cpus.next() {
            let mut last = first;
            while cpus.peek() == Some(&(last + 1)) {
                last += 1;
                cpus.next();
            }
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(&first.to_string());
            if last > first {
                text.push_str(&format!("-{last}"));
            }
        }
        f.pad(&text)
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_kernels_lists_read_and_print_back() {
        for list in ["", "0", "0-3", "0-3,8", "1,3,5-7", "63-64", "1023"] {
            assert_eq!(list.parse::<CpuSet>().unwrap().to_string(), list);
        }
        assert_eq!(" 0-1\n".parse::<CpuSet>().unwrap(), CpuSet::first_n(2));
    }

    #[test]
    fn bad_lists_are_refused() {
        for list in ["a", "0-", "-1", "3-1", "0,,1", "1024", "0 - 3", "+1", "99999999999"] {
            assert!(list.parse::<CpuSet>().is_err(), "{list}");
        }
    }

    proptest! {
        #[test]
        fn taking_keeps_the_lowest(cpus in proptest::collection::btree_set(0u32..1024, 0..200), n in 0u32..210) {
            let set: CpuSet = cpus.iter().copied().collect();
            prop_assert!(set.lowest(n).iter().eq(cpus.iter().copied().take(n as usize)));
        }

        #[test]
        fn printing_and_parsing_are_inverse(cpus in proptest::collection::btree_set(0u32..1024, 0..64)) {
            let set: CpuSet = cpus.iter().copied().collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
            prop_assert_eq!(set.count() as usize, cpus.len());
            prop_assert!(set.iter().eq(cpus));
        }
    }
}
