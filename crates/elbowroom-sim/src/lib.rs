//! Toy machines to test the rules on: a node whose containers want CPUs and memory, a disk that is shared, and memory that is lent.
//!
//! Each is a loop: what a rule decides changes what programs do, and that changes what the rule sees next. Properties of such a
//! loop cannot be seen on one step. This crate is test support; no product code uses it.

pub mod disk;
pub mod memory;
mod node;
mod scheduler;

pub use node::{GroupRole, NodeProgram, NodeSimulator, ProgramDemand};
