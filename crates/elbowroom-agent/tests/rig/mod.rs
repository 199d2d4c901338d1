//! A whole agent with a toy policy process, readers that know what they must see, and a storm that kills processes.
//! Shared by `tests/fuse.rs` and `examples/fuse_rig.rs`; the latter is the program that runs as the agent.

pub mod agent;
pub mod limits;
pub mod policy;
pub mod readers;
pub mod slots;
pub mod storm;

/// Containers are named `c0`, `c1`, ...
pub fn name(container: usize) -> String {
    format!("c{container}")
}
