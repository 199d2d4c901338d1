//! Page faults of containers: how many of which kind, and what they cost.

#[cfg(feature = "bpf")]
pub mod fault_counter;
#[cfg(feature = "bpf")]
pub mod measure;
pub mod model;
pub mod verb;
