//! What is true about containers, given numbers.
//!
//! Everything in this crate is a function of its arguments: no clock, no file, no environment, no `unsafe`. A recorded
//! stream of [`sample::Event`]s replays to the same views and decisions on a laptop, without root. The wall is kept by
//! `clippy.toml` beside this crate's manifest.

#![forbid(unsafe_code)]

pub mod alert;
pub mod audit;
pub mod cpuset;
pub mod delta;
pub mod doctor;
pub mod fleet;
pub mod follow;
pub mod glob;
pub mod govern;
pub mod history;
pub mod label;
pub mod launch;
pub mod metric;
pub mod page;
pub mod probe;
pub mod profile;
pub mod psi;
pub mod sample;
pub mod sim;
pub mod unit;
pub mod view;
