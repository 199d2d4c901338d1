//! What a container really has: effective CPU and effective memory (Adaptive Resource Views, sections 3.1 and 3.2).
//!
//! # Problem
//! A program in a container sizes itself by what it is shown: threads by CPUs, heaps and caches by memory. The machine's
//! numbers are too large, the limits in its cgroup say what it may use at most, and neither says what it can use now.
//!
//! # Approach
//! [`ViewTable`] takes [`elbowroom_types::sample::HostEvent`]s and keeps a [`View`] per container: bounds from settings whenever those
//! change, one step inside the bounds per tick. The two algorithms are [`cpu`] and [`memory`], pure functions that read like
//! the paper; [`hierarchy`] says where a container stands in the tree of cgroups, [`waterfill`] is another rule for CPU, and `calm` keeps
//! its views from following noise. Every [`ViewChange`] carries its reason.
//!
//! # Terminology
//! - *Effective*: what a container can use now; LOWER, UPPER, *soft*, *hard*: the bounds of that.
//! - *Slack*: CPU time that no container used.
//! - *Period*: the time between two ticks; the sender of ticks decides how long that is. *CPU period*: one period by the paper, and a
//!   few by [`waterfill`].
//!
//! # Properties
//! In `tests/view_properties.rs`, each with a test of its name:
//! - `bounds_hold_after_every_event`
//! - `the_same_events_give_the_same_decisions`
//! - `the_order_in_which_containers_appear_is_irrelevant`
//! - `looking_only_at_the_active_decides_like_looking_at_all`
//! - `an_idle_container_never_gets_more`
//! - `busy_waterfill_containers_add_up_to_no_more_than_the_machine`
//! - `no_event_whatever_its_numbers_can_panic`
//! - `changes_tell_the_whole_story`

mod bounds;
mod calm;
pub mod cpu;
mod explain;
mod explain_view;
mod file_refaults;
mod harm_mark;
pub mod hierarchy;
pub mod memory;
mod policy;
mod slots;
mod tick;
mod tick_cpu;
mod tick_memory;
mod views;
pub mod waterfill;

pub use explain::{
    CpuUtilization, GrowthHold, MAX_VIEW_CHANGES, ViewChange, ViewChangeReason, ViewDelta, ViewExplanation,
    ViewInputs,
};
pub use policy::{CpuRule, ViewRules};
pub use views::ViewTable;

use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::unit::{Bytes, Limit, Millicpu};
use serde::{Deserialize, Serialize};

/// A container's view at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct View {
    /// Effective CPU in whole CPUs, as count-like surfaces show it; at least one.
    pub cpus: u32,
    /// Effective CPU, exact where a quota is a fraction of a CPU.
    pub millicpu: Millicpu,
    /// `LOWER_i` of Algorithm 1.
    pub cpus_lower: u32,
    /// `UPPER_i` of Algorithm 1.
    pub cpus_upper: u32,
    /// CPUs shown online: the first `cpus` of `present`, under their real numbers.
    pub online: CpuSet,
    /// CPUs shown present: the first `cpus_upper` of its cpuset.
    pub present: CpuSet,
    /// CPUs shown possible: those up to the highest of its cpuset, so that there are more than the highest number of one that it
    /// may run on.
    pub possible: CpuSet,
    /// Effective memory.
    pub memory: Bytes,
    /// The soft limit Algorithm 2 starts from.
    pub memory_soft: Bytes,
    /// The hard limit it never passes: the tightest of the container and its ancestors, at most `MemTotal`.
    pub memory_hard: Bytes,
    /// Swap it may use, the least that it and its ancestors allow; `None` where the kernel does not account it.
    pub swap_max: Option<Limit<Bytes>>,
}
