//! What page faults are spent on.
//!
//! The classes are the branches of the kernel's handler (`mm/memory.c`), as the thesis counts them. A fault is *duplicated* if it is
//! on a page of a file on which a process of another container has faulted before: both containers have paid for mapping the same
//! page. For the thesis it is one that ends in a mapping that another container has, so a copy (CoW) is none. It is *major* if it waited
//! for a disk.

use elbowroom_types::unit::Micros;
use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// What the kernel did about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultClass {
    /// Mapped a page of a file, or of shared memory, to be read (`do_read_fault`).
    Read,
    /// Copied a page of a private file mapping at its first write (`do_cow_fault`).
    Cow,
    /// Mapped a page of a shared mapping to be written (`do_shared_fault`).
    Shared,
    /// Gave memory of its own, or the page of zeros (`do_anonymous_page`, `do_huge_pmd_anonymous_page`).
    Anonymous,
    /// Brought a page back from swap (`do_swap_page`).
    Swap,
    /// Let a page be written that could only be read: after `fork`, after a read of zeros, after write-back (`do_wp_page`).
    WriteProtect,
    /// None that is known: an address where nothing is mapped, or an area that changed at that moment.
    Unknown,
}

/// How many classes there are, with the unknown one.
pub(crate) const CLASSES: usize = 7;

/// Where latencies are asked for, and a tier sees the end of a fault, it times one in so many, by chance: looking at the clock costs as
/// much as counting.
pub const TIMED_ONE_IN: u64 = 16;

/// Buckets of the histogram of latencies: the bucket of a fault is the logarithm of its nanoseconds to base 2, rounded down.
pub(crate) const BUCKETS: usize = 32;

impl FaultClass {
    /// Every class, in the order of [`FaultCounts`].
    pub const ALL: [Self; CLASSES] =
        [Self::Read, Self::Cow, Self::Shared, Self::Anonymous, Self::Swap, Self::WriteProtect, Self::Unknown];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Cow => "cow",
            Self::Shared => "shared",
            Self::Anonymous => "anonymous",
            Self::Swap => "swap",
            Self::WriteProtect => "write-protect",
            Self::Unknown => "unknown",
        }
    }
}

/// How faults are followed, and hence what is known of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultTier {
    /// Programs on the functions of the fault handler: exact classes, latencies.
    Functions,
    /// Programs on the processor's reports of faults: no latencies; pages found in the swap cache look anonymous, and swapped
    /// copies of private files' pages like faults on the file.
    Tracepoints,
}

impl FaultTier {
    /// As `--tier` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Functions => "functions",
            Self::Tracepoints => "tracepoints",
        }
    }
}

/// Faults of one container, since counting began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// By class.
    pub faults: [u64; CLASSES],
    /// Of those, how many were timed, by class: one in [`TIMED_ONE_IN`] where that was asked for and the tier sees their end, else
    /// none.
    pub timed: [u64; CLASSES],
    /// Nanoseconds in the handler of those that were timed, by class.
    pub ns: [u64; CLASSES],
    /// Waited for a disk.
    pub major: u64,
    /// On a page that another container has faulted on.
    pub duplicates: u64,
    /// Timed faults by the logarithm of their nanoseconds.
    pub latency: [u64; BUCKETS],
}

impl FaultCounts {
    /// Faults of every class.
    pub fn total(&self) -> u64 {
        self.faults.iter().sum()
    }

    /// Of one class.
    pub fn of(&self, class: FaultClass) -> u64 {
        self.faults[class as usize]
    }

    /// What was counted after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        fn less<const N: usize>(now: &[u64; N], then: &[u64; N]) -> [u64; N] {
            std::array::from_fn(|at| now[at].saturating_sub(then[at]))
        }
        Self {
            faults: less(&self.faults, &earlier.faults),
            timed: less(&self.timed, &earlier.timed),
            ns: less(&self.ns, &earlier.ns),
            major: self.major.saturating_sub(earlier.major),
            duplicates: self.duplicates.saturating_sub(earlier.duplicates),
            latency: less(&self.latency, &earlier.latency),
        }
    }

    /// Nanoseconds of an average fault of a class; `None` where none was timed.
    pub fn mean_ns(&self, class: FaultClass) -> Option<u64> {
        self.ns[class as usize].checked_div(self.timed[class as usize])
    }

    /// Nanoseconds that `part` (0 to 1) of the faults did not take, within the factor of 2 of a bucket, of which it is the middle.
    pub fn quantile_ns(&self, part: f64) -> Option<u64> {
        let all: u64 = self.latency.iter().sum();
        let wanted = (all as f64 * part).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.latency.iter().position(|faults| {
            seen += faults;
            all > 0 && seen >= wanted
        })?;
        let first = 1u64 << bucket;
        Some(first + first / 2)
    }
}

impl AddAssign<&FaultCounts> for FaultCounts {
    fn add_assign(&mut self, other: &Self) {
        let add = |sum: &mut [u64], more: &[u64]| sum.iter_mut().zip(more).for_each(|(sum, n)| *sum += n);
        add(&mut self.faults, &other.faults);
        add(&mut self.timed, &other.timed);
        add(&mut self.ns, &other.ns);
        add(&mut self.latency, &other.latency);
        self.major += other.major;
        self.duplicates += other.duplicates;
    }
}

/// What the work was in which faults happened: what a processor without counters cannot tell is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutedWork {
    /// CPU time.
    pub cpu: Micros,
    /// Instructions.
    pub instructions: Option<u64>,
}

/// Faults relative to the work.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultRate {
    /// In a million instructions, the thesis' unit.
    PerMillionInstructions(f64),
    /// In a second of CPU time, where instructions are not counted.
    PerCpuSecond(f64),
}

impl ExecutedWork {
    /// The rate of `faults`; `None` where no work was done.
    pub fn rate(&self, faults: u64) -> Option<FaultRate> {
        match self.instructions {
            Some(0) => None,
            Some(n) => Some(FaultRate::PerMillionInstructions(faults as f64 * 1e6 / n as f64)),
            None if self.cpu == Micros::ZERO => None,
            None => Some(FaultRate::PerCpuSecond(faults as f64 * 1e6 / self.cpu.get() as f64)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classes_have_the_order_of_their_counts() {
        assert!(FaultClass::ALL.iter().enumerate().all(|(at, class)| *class as usize == at));
    }

    #[test]
    fn rates_are_of_instructions_where_they_are_counted() {
        let cpu = Micros(2_000_000);
        let counted = ExecutedWork { cpu, instructions: Some(4_000_000) };
        assert_eq!(counted.rate(8), Some(FaultRate::PerMillionInstructions(2.0)));
        assert_eq!(ExecutedWork { cpu, instructions: None }.rate(8), Some(FaultRate::PerCpuSecond(4.0)));
        assert_eq!(ExecutedWork::default().rate(8), None);
    }

    #[test]
    fn no_latency_is_no_number() {
        let mut counts = FaultCounts::default();
        assert_eq!((counts.quantile_ns(0.5), counts.mean_ns(FaultClass::Read)), (None, None));
        (counts.faults[0], counts.timed[0], counts.ns[0]) = (64, 4, 8_000);
        (counts.latency[10], counts.latency[12]) = (3, 1);
        assert_eq!(counts.mean_ns(FaultClass::Read), Some(2_000));
        assert_eq!((counts.quantile_ns(0.5), counts.quantile_ns(0.99)), (Some(1536), Some(6144)));
    }

    proptest! {
        #[test]
        fn what_is_added_and_taken_away_is_what_was(a in prop::array::uniform7(0u64..1 << 40), b in prop::array::uniform7(0u64..1 << 40)) {
            let of = |faults| FaultCounts { faults, timed: faults, ns: faults, major: faults[0], duplicates: faults[1], ..FaultCounts::default() };
            let mut sum = of(a);
            sum += &of(b);
            prop_assert_eq!(sum.since(&of(a)), of(b));
            prop_assert_eq!(sum.total(), a.iter().sum::<u64>() + b.iter().sum::<u64>());
        }
    }
}
