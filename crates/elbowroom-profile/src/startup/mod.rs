//! How long containers take to start, and where the CPU time goes.

pub mod breakdown;
pub mod family;
pub mod timeline;
pub mod verb;
