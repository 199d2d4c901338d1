//! The experiments, one file each.

pub(crate) mod density;
pub(crate) mod disk;
pub(crate) mod disk_buffered;
pub(crate) mod disk_two;
pub(crate) mod kills;
pub(crate) mod pitfalls;
pub(crate) mod read;
pub(crate) mod swarm;
pub(crate) mod tick;
pub(crate) mod views;
