//! The words that all other crates speak: units, CPU sets, samples, labels, claims, findings, alerts.
//!
//! Begin with [`unit`] (a byte is not a microsecond), then [`sample`] (what a sensor says, as a stream of events).
//!
//! What stays true: everything here is a value or a function of its arguments; `clippy.toml` beside the manifest refuses clocks,
//! files and the environment.

#![forbid(unsafe_code)]

pub mod alert;
pub mod claim;
pub mod container;
pub mod cpuset;
pub mod finding;
pub mod glob;
pub mod id;
pub mod io;
pub mod label;
pub mod launch;
pub mod lookup;
pub mod memory;
pub mod metric;
pub mod probe;
pub mod psi;
pub mod psi_trigger;
pub mod resource_command;
pub mod sample;
pub mod unit;
pub mod verdict;
pub mod visible;
