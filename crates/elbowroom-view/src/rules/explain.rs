//! What changed, because of what, and what a container's view is made of.

use super::cpu::{self, Slack};
use super::{View, memory};
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::id::CgroupId;
use elbowroom_types::unit::{Bytes, CpuShare, Limit, Micros, Millicpu, counted};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How many changes [`ViewExplanation`] remembers.
pub const MAX_VIEW_CHANGES: usize = 20;

/// One change of one container's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ViewChange {
    /// Whose view.
    pub id: CgroupId,
    /// When: the tick that decided it; for a change of settings the last tick before it, zero before the first.
    pub at: Micros,
    /// What changed.
    #[serde(flatten)]
    pub what: ViewDelta,
    /// Why.
    pub because: ViewChangeReason,
}

/// The part of a view that changed. `from` is zero for a container that appeared, `to` is zero for one that is gone, and
/// the two are equal where only the bounds or the CPUs behind the amount changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum ViewDelta {
    /// Effective CPU.
    Cpu {
        /// Before.
        from: Millicpu,
        /// Now.
        to: Millicpu,
    },
    /// Effective memory.
    Memory {
        /// Before.
        from: Bytes,
        /// Now.
        to: Bytes,
    },
}

impl fmt::Display for ViewChange {
    /// `cpu 3 -> 4: it used 97% of 3 CPUs while 412ms of CPU time went unused: one CPU more`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.because)
    }
}

impl fmt::Display for ViewDelta {
    /// `cpu 3 -> 4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu { from, to } => write!(f, "cpu {from} -> {to}"),
            Self::Memory { from, to } => write!(f, "memory {from} -> {to}"),
        }
    }
}

/// Why a view changed, with the numbers that decided it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum ViewChangeReason {
    /// The container is new.
    Appeared,
    /// It was there before the program that keeps its view, and keeps what it was shown.
    Resumed,
    /// The container is gone.
    Gone,
    /// A setting changed, of the container, of one that competes with it, or of the machine; or a sibling fell asleep or
    /// woke up.
    CpuBounds(cpu::CpuBounds),
    /// A memory setting changed, or the machine's memory did.
    MemoryBounds(memory::MemoryBounds),
    /// It is busy and there is slack: one CPU more.
    Busy {
        /// How busy.
        load: CpuUtilization,
        /// Unused CPU time it could reach.
        slack: Slack,
    },
    /// There is no slack: one CPU less, towards LOWER.
    NoSlack {
        /// Unused CPU time it could reach.
        slack: Slack,
        /// Where it ends.
        lower: u32,
    },
    /// Max-min fairness gives this much.
    Fairness {
        /// How busy.
        load: CpuUtilization,
        /// What it got for so long at most, where the view falls, or at least, where it rises, if it asked for everything.
        gets: Millicpu,
        /// For how long.
        #[serde(default)]
        over: Micros,
        /// Whether it used all it has.
        busy: bool,
    },
    /// It fills its memory and the machine has free memory.
    Pressed {
        /// Memory charged to it.
        usage: Bytes,
        /// Its effective memory until now.
        of: Bytes,
        /// Free memory of the machine.
        free: Bytes,
        /// Free memory that the growth is expected to cost.
        predict: Bytes,
        /// What must stay free.
        high_mark: Bytes,
    },
    /// Reclaim hurts: what was in use is lost.
    ReclaimHurts {
        /// Pages that were swapped out, or had to be read again.
        lost: u64,
        /// Time that some task waited for memory; absent without PSI.
        stalled: Option<Micros>,
        /// In what time.
        period: Micros,
    },
    /// Reclaim is running.
    Reclaim {
        /// Free memory of the machine.
        free: Bytes,
        /// The mark below which it runs.
        low_mark: Bytes,
    },
}

impl fmt::Display for ViewChangeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Appeared => write!(f, "it appeared, and starts at its fair share and its soft limit"),
            Self::Resumed => {
                write!(f, "it keeps what it was shown before the agent's process was started anew")
            }
            Self::Gone => write!(f, "it is gone"),
            Self::CpuBounds(cpu::CpuBounds { lower, upper }) => {
                let lower = if lower == upper { String::new() } else { format!("from {lower} to ") };
                write!(
                    f,
                    "its settings or its neighbours changed: it gets {lower}{} now",
                    counted(upper, "CPU")
                )
            }
            Self::MemoryBounds(memory::MemoryBounds { soft, hard }) if soft == hard => {
                write!(f, "its limit is now {hard}")
            }
            Self::MemoryBounds(memory::MemoryBounds { soft, hard }) => {
                write!(f, "settings now give it from {soft} to {hard} of memory")
            }
            Self::Busy { load, slack } => {
                write!(f, "it used {load} while {} of CPU time went unused: one CPU more", slack.unused)
            }
            Self::NoSlack { slack, lower } => {
                write!(f, "none of {} of CPU time went unused: one CPU less, towards {lower}", slack.capacity)
            }
            Self::Fairness { load, gets, over, busy: true } => {
                write!(f, "it used {load} and is busy: for {over} max-min fairness gave it {gets}")
            }
            Self::Fairness { load, gets, over, busy: false } => {
                write!(
                    f,
                    "it used {load} and is not busy: if it were, max-min fairness would for {over} have given it only {gets}"
                )
            }
            Self::Pressed { usage, of, free, predict, high_mark } => write!(
                f,
                "it uses {usage} of {of}, and of {free} left on the machine growth costs {predict}, which leaves more than {high_mark}"
            ),
            Self::Reclaim { free, low_mark } => write!(
                f,
                "only {free} of memory is left and reclaim runs from {low_mark} down: back to its soft limit"
            ),
            Self::ReclaimHurts { lost, stalled, period } => {
                write!(f, "in {period} the machine's reclaim lost {lost} pages that were in use")?;
                stalled.map_or(Ok(()), |stalled| write!(f, " and tasks waited {stalled} for memory"))?;
                write!(f, ": back to its soft limit")
            }
        }
    }
}

/// What holds growth of a container that fills its memory, where it is what growth costs others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum GrowthHold {
    /// Reclaim hurt a moment ago.
    Hurt {
        /// How long ago.
        ago: Micros,
    },
    /// More files' pages come back than usual: growth waits until that is over.
    FilesComeBack {
        /// For how long already.
        over: Micros,
    },
    /// Growth has hurt before with as little memory left.
    HurtBefore {
        /// What is left of the machine's memory, free or to be had by reclaim.
        free: Bytes,
        /// What must be left; it wears off.
        mark: Bytes,
    },
}

impl fmt::Display for GrowthHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hurt { ago } => write!(f, "the machine's reclaim took pages that were in use, {ago} ago"),
            Self::FilesComeBack { over } => {
                write!(f, "for {over} programs have been reading back more of their files than usual")
            }
            Self::HurtBefore { free, mark } => write!(
                f,
                "growth has hurt other programs with less than {mark} left on the machine, which has {free} now"
            ),
        }
    }
}

/// CPU time used in one period, beside the CPUs it could have been used on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CpuUtilization {
    /// `u`: CPU time used.
    pub used: Micros,
    /// `t`: the period.
    pub period: Micros,
    /// `E`: effective CPU in that period.
    pub cpus: u32,
}

impl fmt::Display for CpuUtilization {
    /// `97% of 3 CPUs`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = u128::from(self.period.get()) * u128::from(self.cpus);
        write!(f, "{}% of {}", u128::from(self.used.get()) * 100 / whole.max(1), counted(self.cpus, "CPU"))
    }
}

/// Everything behind one container's view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ViewExplanation {
    /// Whose view.
    pub id: CgroupId,
    /// Path below the hierarchy's root.
    pub path: String,
    /// The view.
    pub view: View,
    /// What it was computed from.
    pub inputs: ViewInputs,
    /// The rule in words, with those numbers.
    pub rule: String,
    /// The last changes, oldest first, at most [`MAX_VIEW_CHANGES`].
    pub changes: Vec<ViewChange>,
}

/// What a view was computed from: settings as they bind, and the last period's measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ViewInputs {
    /// `P`: online CPUs of the machine.
    pub online: u32,
    /// `w`: the container's own share.
    pub cpu_share: Option<CpuShare>,
    /// Its weight as it counts.
    pub weight: u64,
    /// The sum of weights it is counted in.
    pub weight_sum: u64,
    /// `w / sum_w * P`, carried down the tree.
    pub fair: Millicpu,
    /// `L/t`: the quota that binds.
    pub quota: Limit<Millicpu>,
    /// Path of the cgroup that sets it.
    pub quota_of: Option<String>,
    /// `M`: the CPUs it may use.
    pub cpuset: CpuSet,
    /// Path of the cgroup that sets the hard limit, or what else does; `None` where the machine's memory does.
    pub memory_hard_of: Option<String>,
    /// `t`: the last CPU period; `None` before the first.
    pub period: Option<Micros>,
    /// `u`: CPU time it used in that period.
    pub used: Micros,
    /// Time its quota held it back in that period, where it was read.
    pub throttled: Option<Micros>,
    /// `p_slack` on its CPUs in that period; `None` where it could not be measured, or bounds changed since.
    pub slack: Option<Slack>,
    /// `c_mem`: memory charged to it.
    pub usage: Bytes,
    /// `p_mem`: the same a period ago.
    pub usage_before: Bytes,
    /// The narrowest group above it whose memory is sold twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oversold: Option<OvercommittedCgroup>,
    /// `c_free`: what is left of the machine's memory, free or to be had by reclaim; by the paper what is free.
    pub mem_free: Bytes,
    /// `p_free`: the same a period ago.
    pub mem_free_before: Bytes,
    /// LOW_MARK.
    pub low_mark: Bytes,
    /// HIGH_MARK.
    pub high_mark: Bytes,
    /// What holds growth of its memory, though it fills what it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth_hold: Option<GrowthHold>,
}

/// A group with a limit that is less than what the containers below it may take together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OvercommittedCgroup {
    /// Its path.
    pub path: String,
    /// Its hard limit.
    pub limit: Bytes,
    /// What of that no container has taken or been promised.
    pub left: Bytes,
}

impl ViewInputs {
    /// The rule in words: where the bounds come from, where between them the container is.
    pub(super) fn rule(&self, view: &View) -> String {
        let quota = match (&self.quota_of, self.quota) {
            (Some(path), Limit::At(quota)) => format!("a quota of {quota} ({path})"),
            _ => "no quota".to_owned(),
        };
        let hard = self.memory_hard_of.as_deref().unwrap_or("the machine");
        format!(
            "{} now, between {} and {}: {quota}, {} allowed, and weight {} of {} which is worth {} of {}; \
             {} of memory now, between soft {} and hard {} ({hard}).",
            counted(view.cpus, "CPU"),
            view.cpus_lower,
            view.cpus_upper,
            self.cpuset.count(),
            self.weight,
            self.weight_sum,
            self.fair,
            counted(self.online, "CPU"),
            view.memory,
            view.memory_soft,
            view.memory_hard,
        )
    }
}

impl fmt::Display for ViewExplanation {
    /// The rule, what was measured last, and the changes, newest first, with their time on the monotonic clock.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inputs = &self.inputs;
        writeln!(f, "{}", self.rule)?;
        if let Some(period) = inputs.period {
            let load = CpuUtilization { used: inputs.used, period, cpus: self.view.cpus };
            write!(f, "In the last {period} it used {load}")?;
            match inputs.slack {
                Some(slack) => {
                    writeln!(f, "; {} of {} it could reach went unused.", slack.unused, slack.capacity)?
                }
                None => writeln!(f, ".")?,
            }
        }
        writeln!(
            f,
            "It is charged {} of memory; the machine has {} left, starts reclaim at {} and ends it at {}.",
            inputs.usage, inputs.mem_free, inputs.low_mark, inputs.high_mark
        )?;
        if let Some(OvercommittedCgroup { path, limit, left }) = &inputs.oversold
            && self.view.memory < self.view.memory_hard
        {
            writeln!(
                f,
                "Together with others it may have {limit} ({path}), of which {left} can still be granted."
            )?;
        }
        if let Some(hold) = inputs.growth_hold {
            writeln!(f, "Growth of its memory is held: {hold}.")?;
        }
        self.changes.iter().rev().try_for_each(|change| writeln!(f, "at {}: {change}", change.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_one_sentence_with_its_numbers() {
        let slack = Slack { unused: Micros::millis(412), capacity: Micros::millis(480) };
        let check = |because: ViewChangeReason, expect: &str| assert_eq!(because.to_string(), expect);
        check(
            ViewChangeReason::Busy {
                load: CpuUtilization { used: Micros(70_000), period: Micros(24_000), cpus: 3 },
                slack,
            },
            "it used 97% of 3 CPUs while 412ms of CPU time went unused: one CPU more",
        );
        let cpu = |lower, upper| ViewChangeReason::CpuBounds(cpu::CpuBounds { lower, upper });
        check(cpu(1, 1), "its settings or its neighbours changed: it gets 1 CPU now");
        check(cpu(1, 4), "its settings or its neighbours changed: it gets from 1 to 4 CPUs now");
        let memory = |soft, hard| {
            let bounds = memory::MemoryBounds { soft: Bytes::mib(soft), hard: Bytes::mib(hard) };
            ViewChangeReason::MemoryBounds(bounds)
        };
        check(memory(64, 64), "its limit is now 64MiB");
        check(memory(32, 64), "settings now give it from 32MiB to 64MiB of memory");
        check(
            ViewChangeReason::NoSlack { slack: Slack { unused: Micros::ZERO, ..slack }, lower: 4 },
            "none of 480ms of CPU time went unused: one CPU less, towards 4",
        );
        check(
            ViewChangeReason::Reclaim { free: Bytes::mib(90), low_mark: Bytes::mib(120) },
            "only 90MiB of memory is left and reclaim runs from 120MiB down: back to its soft limit",
        );
        check(
            ViewChangeReason::ReclaimHurts {
                lost: 300,
                stalled: Some(Micros::millis(60)),
                period: Micros::millis(250),
            },
            "in 250ms the machine's reclaim lost 300 pages that were in use and tasks waited 60ms for memory: back to its soft limit",
        );
    }

    #[test]
    fn what_keeps_memory_from_growing_is_said_in_words() {
        let check = |hold: GrowthHold, expect: &str| assert_eq!(hold.to_string(), expect);
        check(
            GrowthHold::Hurt { ago: Micros::millis(1_500) },
            "the machine's reclaim took pages that were in use, 1.5s ago",
        );
        check(
            GrowthHold::FilesComeBack { over: Micros::secs(3) },
            "for 3s programs have been reading back more of their files than usual",
        );
        check(
            GrowthHold::HurtBefore { free: Bytes::mib(300), mark: Bytes::mib(256) },
            "growth has hurt other programs with less than 256MiB left on the machine, which has 300MiB now",
        );
    }

    #[test]
    fn a_change_is_flat_json() {
        let change = ViewChange {
            id: CgroupId(7),
            at: Micros(1),
            what: ViewDelta::Cpu { from: Millicpu(2_000), to: Millicpu(3_000) },
            because: ViewChangeReason::CpuBounds(cpu::CpuBounds { lower: 3, upper: 4 }),
        };
        let text = serde_json::to_string(&change).unwrap();
        assert_eq!(
            text,
            r#"{"id":7,"at":1,"what":"cpu","from":2000,"to":3000,"because":{"why":"cpu_bounds","lower":3,"upper":4}}"#
        );
        assert_eq!(serde_json::from_str::<ViewChange>(&text).unwrap(), change);
    }
}
