//! Edges of the profilers: what the kernel samples, whose code an address is, how engines are driven, what a profiler itself
//! costs.

pub mod containers;
pub mod counter;
pub mod engine;
#[cfg(feature = "bpf")]
pub mod faults;
pub mod overhead;
pub mod pages;
pub mod perf;
pub mod processes;
pub mod symbols;
