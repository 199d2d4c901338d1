//! What profilers make of what the kernel tells: who could share page tables, what page faults and starts are spent on.
//!
//! The questions are those of *Characterization of Containers in Emerging Applications* (2018); `docs/papers/characterisation.md`
//! says which section is answered where.

pub mod breakdown;
pub mod family;
pub mod faults;
pub mod gpu;
pub mod pages;
pub mod pclntab;
pub mod stack;
pub mod startup;
