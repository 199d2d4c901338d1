//! What the memory governor needs of the machine: numbers once a second ([`MemoryReader`]), and what carries out its orders
//! ([`MemoryActuator`]).
//!
//! **Problem.** A governor says how much of a container's memory should go. Kernels differ in what they offer for it, and the
//! older ways limit the container for a moment: one that dies in that moment would leave it squeezed.
//!
//! **Approach.** The gentlest of three ways that the kernel offers:
//! - `memory.reclaim` (cgroup v2, Linux 5.19), which sets nothing;
//! - a transient `memory.high`, lowered so far that the kernel reclaims, and put back at once;
//! - v1 `memory.limit_in_bytes`, asked for and given up before it is in force: v1 reclaims first and sets it only when usage fits
//!   (mm/memcontrol-v1.c, `mem_cgroup_resize_max`).
//!
//! Each is a lease like every other limit, on record before it is written. A process of its own does what may block, and is killed
//! when its time is over ([`bounded_write`]). `memory.max` is never touched: v2 sets it first and kills then (mm/memcontrol.c,
//! `memory_max_write`).

mod bounded_write;
mod kernel_log;
mod oom_watch;
mod protect;
mod reader;
mod reclaim;
mod transient_limit;

pub use kernel_log::{FullMemory, KernelLog, LoggedKill, parse_kill};
pub use oom_watch::{OomCounter, OomNotice, OomWatch};
pub use reader::MemoryReader;
pub use reclaim::{MemoryActuator, ReclaimMethod, UserLimits};
