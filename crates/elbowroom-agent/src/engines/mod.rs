//! How container engines call the agent before a container's first instruction.

pub mod nri;
pub mod oci;
