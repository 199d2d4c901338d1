//! The experiments, one file each.

pub(crate) mod density;
pub(crate) mod kills;
pub(crate) mod read;
pub(crate) mod swarm;
pub(crate) mod tick;
pub(crate) mod views;
