//! Where time and memory of containers go: start-up, page tables, page faults, GPU programs.
//!
//! Each profile is a room of its own with its model (pure), its measurement and its verb: [`startup`], [`pages`], [`faults`],
//! [`gpu`]. They share [`perf`] events, [`symbols`], the [`engine`]s that start containers, and the [`report`].
//!
//! What stays true: a profile needs no agent, and takes away what it made (containers, perf events, BPF programs).

pub mod counter;
pub mod engine;
pub mod faults;
pub mod gpu;
pub mod overhead;
pub mod pages;
pub mod perf;
pub mod processes;
pub mod report;
mod selection;
pub mod stack;
pub mod startup;
pub mod stored;
pub mod symbols;
mod tenants;
pub mod verb;
