//! Samples by program, by the kernel and programs, and by family.
//!
//! # Properties
//! - `everything_adds_up`: programs, families, and kernel and user, each sum to all samples.

use super::family::{FunctionFamily, StackClassifier};
use crate::stack::{CallStack, ExecutionMode};
use serde::Serialize;
use std::collections::BTreeMap;

/// Samples in the kernel and in programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SampleSplit {
    /// In the kernel.
    pub kernel: u64,
    /// In programs.
    pub user: u64,
}

/// One program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ProgramShare {
    /// As the kernel calls it (`comm`).
    pub name: String,
    /// Its samples.
    #[serde(flatten)]
    pub split: SampleSplit,
    /// Its samples by family, most first.
    pub families: Vec<FamilyShare>,
}

/// One family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct FamilyShare {
    /// Which.
    pub family: FunctionFamily,
    /// Its samples in the kernel and in programs.
    #[serde(flatten)]
    pub split: SampleSplit,
}

/// What samples come to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SampleBreakdown {
    /// All samples.
    #[serde(flatten)]
    pub split: SampleSplit,
    /// Those in a family that says what was done.
    pub told: u64,
    /// How many frames of programs have a name.
    pub resolved: SymbolCoverage,
    /// By program, most samples first.
    pub programs: Vec<ProgramShare>,
    /// By family, most samples first.
    pub families: Vec<FamilyShare>,
}

/// How many frames have a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SymbolCoverage {
    /// Frames of programs whose function is known.
    pub named: u64,
    /// All frames of programs.
    pub frames: u64,
}

impl SampleSplit {
    /// All samples.
    pub fn sum(self) -> u64 {
        self.kernel + self.user
    }

    fn add(&mut self, space: ExecutionMode, count: u64) {
        match space {
            ExecutionMode::Kernel => self.kernel += count,
            ExecutionMode::User => self.user += count,
        }
    }
}

impl SampleBreakdown {
    /// What `stacks`, each with the number of its samples, come to.
    pub fn of<'a>(stacks: impl IntoIterator<Item = (&'a CallStack, u64)>) -> Self {
        let (mut breakdown, mut classifier) = (Self::default(), StackClassifier::default());
        let mut programs: BTreeMap<String, (SampleSplit, BTreeMap<FunctionFamily, SampleSplit>)> =
            BTreeMap::new();
        let mut families: BTreeMap<FunctionFamily, SampleSplit> = BTreeMap::new();
        for (stack, count) in stacks {
            let (space, family) = (stack.mode(), classifier.family(stack));
            breakdown.split.add(space, count);
            breakdown.told += if family.is_specific() { count } else { 0 };
            for frame in stack.frames.iter().filter(|frame| frame.mode == ExecutionMode::User) {
                breakdown.resolved.frames += count;
                breakdown.resolved.named += if frame.is_resolved() { count } else { 0 };
            }
            families.entry(family).or_default().add(space, count);
            let (split, own) = programs.entry(stack.program.to_string()).or_default();
            split.add(space, count);
            own.entry(family).or_default().add(space, count);
        }
        breakdown.families = shares(families);
        breakdown.programs = programs
            .into_iter()
            .map(|(name, (split, families))| ProgramShare { name, split, families: shares(families) })
            .collect();
        breakdown.programs.sort_by_key(|program| std::cmp::Reverse(program.split.sum()));
        breakdown
    }
}

fn shares(families: BTreeMap<FunctionFamily, SampleSplit>) -> Vec<FamilyShare> {
    let mut shares: Vec<FamilyShare> =
        families.into_iter().map(|(family, split)| FamilyShare { family, split }).collect();
    shares.sort_by_key(|share| std::cmp::Reverse(share.split.sum()));
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::StackFrame;
    use proptest::prelude::*;

    fn any_stack() -> impl Strategy<Value = CallStack> {
        let name = prop::sample::select(vec![
            "runtime.mallocgc",
            "zap_pte_range",
            "x",
            "[libc.so.6]",
            "cgroup_mkdir",
        ]);
        let frame = (name, any::<bool>()).prop_map(|(name, kernel)| StackFrame {
            name: name.into(),
            module: "m".into(),
            mode: if kernel { ExecutionMode::Kernel } else { ExecutionMode::User },
        });
        let program = prop::sample::select(vec!["runc", "dockerd"]);
        (program, prop::collection::vec(frame, 0..6))
            .prop_map(|(program, frames)| CallStack { program: program.into(), frames })
    }

    proptest! {
        #[test]
        fn everything_adds_up(stacks in prop::collection::vec((any_stack(), 1u64..100), 0..30)) {
            let all: u64 = stacks.iter().map(|(_, count)| count).sum();
            let breakdown = SampleBreakdown::of(stacks.iter().map(|(stack, count)| (stack, *count)));
            let sum = |shares: &[FamilyShare]| shares.iter().map(|share| share.split.sum()).sum::<u64>();
            prop_assert_eq!(breakdown.split.sum(), all);
            prop_assert_eq!(sum(&breakdown.families), all);
            prop_assert_eq!(breakdown.programs.iter().map(|p| p.split.sum()).sum::<u64>(), all);
            for program in &breakdown.programs {
                prop_assert_eq!(sum(&program.families), program.split.sum());
            }
            prop_assert!(breakdown.told <= all && breakdown.resolved.named <= breakdown.resolved.frames);
        }
    }
}
