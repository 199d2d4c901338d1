//! Memory is lent to containers that need it while its owner does not, and is back when the owner's load returns.
//!
//! # Problem
//! *Highlighting the Container Memory Consolidation Problems in Linux* (NCA 2019): limits isolate, and waste what an idle container
//! keeps; without limits memory is used, and whichever container touches most pages takes it from the others. Soft limits isolate
//! too (Table I), and waste as much, for the kernel does not know how containers are doing. The paper's last sentence asks that they
//! say so.
//!
//! # Approach
//! Every second each container gets a colour ([`ColourSource`]): red, its objective is missed; yellow, it is met; green, more memory
//! cannot help. From colours, reservations and weights follows what each is owed (`entitle`), which the kernel keeps for those that
//! are not green (`protect`). When memory is short and some container needs it:
//! - one that uses more than it is owed gives the excess back, a quarter per second ([`MemoryAction::Recall`]);
//! - one that is green lends, in small steps that grow while nothing happens and stop at the first sign of harm
//!   ([`MemoryAction::Lend`]).
//!
//! While no container needs any, and only where `memory.saving` says so, what a green container does not use is taken in small steps
//! ([`saving`]).
//!
//! Before memory is lent, and at the moment when it is recalled, the container's view shows less, so that programs that size
//! themselves by it give it back themselves (Algorithm 2 of Adaptive Resource Views, from the other side). Protection stays in force
//! (`memory.low`); memory is taken once, and that leaves nothing behind; no limit is set. What each mechanism buys:
//! `docs/decisions/0046-memory-ablation.md`.
//!
//! # Terminology
//! - *Floor*: never taken.
//! - *Entitlement*: what is owed now, given the colours. *Nominal*: what would be if every container wanted all it can get.
//! - *Pool*: what is divided, the machine and inside of it each cgroup with a hard limit around several containers. A limit around
//!   a single container is that container's own.
//! - *Room*: what of a pool is free.
//!
//! # Properties
//! In `tests/memory_scenarios_random.rs`, each with a test of its name:
//! - `nothing_is_taken_below_a_floor`
//! - `nothing_is_taken_without_a_needer`
//! - `a_reservation_in_use_is_never_taken`
//! - `what_is_owed_fits_the_pool`
//! - `steps_are_small`
//! - `failed_loans_become_rare`
//! - `a_container_without_an_answer_gets_no_second_order`
//! - `no_container_dies_that_would_have_lived`

mod alerts;
mod colour;
mod entitle;
mod explain;
mod governor;
mod lend;
mod mechanisms;
mod member;
mod meter;
mod pool;
mod pool_pass;
mod pressure_notice;
mod protect;
mod recall;
mod saving;
mod saving_state;
mod settings;
mod state;
mod tuning;

pub use colour::ColourSource;
pub use governor::MemoryGovernor;
pub use mechanisms::MemoryMechanisms;
pub use pressure_notice::PressureNotices;

pub use settings::MemorySettings;

use elbowroom_types::probe::Colour;
use elbowroom_types::unit::{Bytes, Limit, Micros};
use serde::{Deserialize, Serialize};

/// How many decisions are remembered per container.
pub(crate) const DECISION_HISTORY: usize = 20;

/// One decision about a container, with what it was made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryDecision {
    /// When, on the monotonic clock.
    pub at: Micros,
    /// What was decided.
    #[serde(flatten)]
    pub what: MemoryAction,
    /// The numbers that decided.
    pub inputs: DecisionInputs,
    /// One line: which rule, for whom.
    pub because: String,
}

/// What can be decided about a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum MemoryAction {
    /// It has no use for this much, and another container has: it is taken, as a loan.
    Lend {
        /// How much.
        amount: Bytes,
    },
    /// Its view shows no more than this; its programs may give back what is above.
    Ask {
        /// Effective memory at most.
        ceiling: Bytes,
    },
    /// It uses more than its entitlement, and another container less: this much is taken back.
    Recall {
        /// How much.
        amount: Bytes,
    },
    /// No process is in it: what it left behind goes.
    Drain {
        /// How much.
        amount: Bytes,
    },
    /// It does not use this much, and no container needs any: it is taken, a little at a time.
    Save {
        /// How much.
        amount: Bytes,
    },
    /// A loan hurt: nothing is taken from it for a while.
    Hold {
        /// Until when.
        until: Micros,
    },
}

impl MemoryAction {
    /// Its kind, in a word.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Lend { .. } => "lend",
            Self::Ask { .. } => "ask",
            Self::Recall { .. } => "recall",
            Self::Drain { .. } => "drain",
            Self::Save { .. } => "save",
            Self::Hold { .. } => "hold",
        }
    }
}

/// What a decision was made of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DecisionInputs {
    /// Its colour.
    pub colour: Colour,
    /// What is served over what should be, where a probe says.
    pub sigma: Option<f64>,
    /// The part of the last ten periods that it waited for memory, where the kernel counts it.
    pub stall: Option<f64>,
    /// What it used.
    pub usage: Bytes,
    /// Its minimum.
    pub minimum: Bytes,
    /// Its entitlement.
    pub entitlement: Bytes,
    /// What was free in its pool.
    pub free: Bytes,
}

/// Where a container stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LendingState {
    /// It is new, not watched for long enough, and lends nothing yet.
    #[default]
    Observe,
    /// It has use for what it is entitled to, which is protected.
    Protected,
    /// It can lend.
    Spare,
    /// It lends.
    Lending,
    /// A loan hurt: nothing is taken for a while.
    Hold,
    /// No process is in it.
    Dead,
}

/// One container's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContainerMemoryStatus {
    /// Whether more memory would help it: red needs more, yellow is fine, green: more will not help.
    pub colour: Colour,
    /// The source of that.
    pub source: ColourSource,
    /// What is served over what should be, where a probe says.
    pub sigma: Option<f64>,
    /// The part of the last ten periods that it waited for memory, where the kernel counts it.
    pub stall: Option<f64>,
    /// Its state.
    pub state: LendingState,
    /// Until when nothing is lent of it.
    pub until: Option<Micros>,
    /// Memory charged to it.
    pub usage: Bytes,
    /// What it waited for over the last second, and its kills.
    #[serde(default)]
    pub pressure: MemoryPressure,
    /// What the kernel could take of that without a swap.
    pub reclaimable: Bytes,
    /// Its reservation.
    pub reservation: Bytes,
    /// Its minimum now.
    pub minimum: Bytes,
    /// Its entitlement now.
    pub entitlement: Bytes,
    /// What it has lent out: taken from it since it last needed all.
    pub lent: Bytes,
    /// What the kernel is to protect of it, as ordered: `memory.low`, or on v1 the soft limit.
    pub protected: Bytes,
    /// Whether that is in force: `false` when only observing, or when it could not be written.
    pub enforced: bool,
    /// The most its view shows on our account.
    pub view_ceiling: Limit<Bytes>,
    /// Loans that hurt, so far.
    pub failures: u32,
    /// What is saved of it; absent where saving is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saving: Option<SavingStatus>,
    /// Why nothing is ever taken from it, where that is so.
    pub exempt_reason: Option<String>,
    /// The last decisions, oldest first, at most [`DECISION_HISTORY`].
    pub decisions: Vec<MemoryDecision>,
}

/// What is saved of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SavingStatus {
    /// What saving took and what did not come back (`workingset_refault_*`, whatever for), since the policy process started; at most
    /// what is free of its limit. What its programs would have freed since, or read no more, counts.
    pub saved: Bytes,
    /// Whether memory is being taken.
    pub active: bool,
    /// Why, or why not.
    pub because: String,
}

/// What a container waited for over the last second, and how often the kernel killed in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryPressure {
    /// The part of the time that at least one task waited for memory, `some` of `memory.pressure`; `None` without PSI.
    pub memory_some: Option<f64>,
    /// The same for I/O, `io.pressure`.
    pub io_some: Option<f64>,
    /// Memory that was reclaimed and came back (`workingset_refault_*`), in bytes per second.
    pub refault: Bytes,
    /// Processes that the kernel killed in it for memory since its cgroup was made: `oom_kill`.
    pub oom_kill: u64,
}

/// A pool as the governor sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PoolView {
    /// The cgroup whose limit it is; `/` for the machine.
    pub path: String,
    /// What there is to divide.
    pub size: Bytes,
    /// What is free, and on the machine what cache of no container could be reclaimed.
    pub free: Bytes,
    /// What is reserved.
    pub reserved: Bytes,
    /// Whether memory is short.
    pub short: bool,
    /// How many containers share it, those in pools inside of it too.
    pub containers: usize,
    /// How many of those need more than they have.
    pub needing_more: usize,
}

impl PoolView {
    /// Whether the cgroup at `path` is below.
    pub fn holds(&self, path: &str) -> bool {
        self.path == "/" || path.strip_prefix(&self.path).is_some_and(|rest| rest.starts_with('/'))
    }
}

/// What is free to lend of `free` memory: not what containers have reserved and do not use, for they may call it back. Each is its
/// reservation and what it uses.
pub fn lendable(free: Bytes, containers: impl IntoIterator<Item = (Bytes, Bytes)>) -> Bytes {
    let callable: Bytes =
        containers.into_iter().map(|(reservation, usage)| reservation.saturating_sub(usage)).sum();
    free.saturating_sub(callable)
}

/// Bytes as a number to divide.
fn to_f64(bytes: Bytes) -> f64 {
    bytes.get() as f64
}

/// Back again: whole bytes, zero for what is not a size.
fn to_bytes(amount: f64) -> Bytes {
    // A cast saturates, and NaN is zero.
    Bytes(amount as u64)
}
