//! The experiments, one file each.

pub(crate) mod api;
pub(crate) mod density;
pub(crate) mod disk;
pub(crate) mod disk_buffered;
pub(crate) mod disk_two;
pub(crate) mod kills;
pub(crate) mod memory;
pub(crate) mod memory_harm;
pub(crate) mod pitfalls;
pub(crate) mod profile_applications;
pub(crate) mod profile_faults;
pub(crate) mod profile_gpu;
pub(crate) mod profile_pages;
pub(crate) mod profile_startup;
pub(crate) mod read;
pub(crate) mod runtimes;
pub(crate) mod swarm;
pub(crate) mod tick;
pub(crate) mod views;
