//! What happens, as data.

use super::program::MemoryTenant;
use elbowroom_types::unit::{Bytes, Micros};

/// The cgroup version, as far as it decides which containers are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemcgVersion {
    /// Soft limits: a container above its own gives first.
    V1,
    /// `memory.low`: a container below its own gives last. `memory.high` can be leased.
    V2,
}

/// What decides about memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPolicy {
    /// The kernel alone.
    None,
    /// Hard limits.
    Max,
    /// Soft limits or `memory.low`, set once.
    Low,
    /// A fiftieth per second from those that are green, and from those that are yellow while one is red, whenever memory is short:
    /// MemOpLight (Laniel et al., NCA 2020), as far as its abstract tells.
    MemOpLight,
    /// The governor, with what probes say.
    Governor,
    /// The governor without probes.
    Silent,
}

/// A machine and what happens on it.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryScenario {
    /// Its name.
    pub name: String,
    /// Memory of the machine.
    pub memory: Bytes,
    /// What its own jobs hold.
    pub system: Bytes,
    /// Swap.
    pub swap: Bytes,
    /// Containers.
    pub tenants: Vec<MemoryTenant>,
    /// A cgroup with this hard limit around all containers.
    pub pool_limit: Option<Bytes>,
    /// How long it lasts.
    pub duration: Micros,
    /// The kernel.
    pub kernel: MemcgVersion,
    /// Whether it counts stalls.
    pub stalls: bool,
    /// Whether it has a way to take memory back on order.
    pub reclaims: bool,
    /// Whether orders are carried out.
    pub enforced: bool,
    /// Another program writes the protection of the first container at this time.
    pub foreign_write_at: Option<Micros>,
    /// Standard deviation of what is served around its mean.
    pub noise: f64,
    /// Phases, for scores: when each begins.
    pub phases: Vec<Micros>,
}
