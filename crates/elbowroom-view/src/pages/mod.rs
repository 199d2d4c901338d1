//! Container text from host text and a container's numbers.
//!
//! One small module per family of files, each opening with a table of what every field shows: the *container's* own number, one
//! *computed* from it, or the *host's* where it is the same for all. What is left is zero: no page shows a counter of the host that a
//! neighbour could move. The exceptions are two lines that *bound* the container's (`MemFree` and `MemAvailable` of `/proc/meminfo`),
//! the host's pressure where a kernel keeps none for cgroups, and what `/proc/stat` shares with files beside it that no view covers.

pub mod mapped;
pub mod snapshot;
pub mod syscalls;
pub mod tree;
pub mod view_node;

mod cgroups;
mod cpuinfo;
mod cpulist;
mod diskstats;
pub mod files;
mod limits;
mod loadavg;
mod meminfo;
mod memory;
mod node;
mod pressure;
pub mod render;
mod stat;
mod swaps;
mod text;
mod uptime;
pub mod view_mounts;
mod vmstat;
mod zoneinfo;
