//! A toy machine with memory: programs whose data fits or does not, a kernel that takes pages back without knowing whose they are.
//!
//! # Problem
//! A governor of memory forms a loop with what it takes: a container that was taken from reads back, waits, and turns red; one that was
//! given to grows. Whether satisfied containers stay satisfied and idle memory is used is a property of the loop, not of a step.
//!
//! # Approach
//! Time goes in slices of a quarter of a second. A [`MemoryProgram`] serves requests that need pages of its data; those that are not in
//! memory are read from a disk, which takes time, and stay. When the machine is full, the kernel ([`kernel`]) takes pages back:
//! from all, by size, a little less from those that use theirs, and on v2 not from those below `memory.low`. What a sensor would
//! see comes out as [`HostEvent`](elbowroom_types::sample::HostEvent)s, [`MemoryOrder`](elbowroom_types::memory::MemoryOrder)s go in, and
//! what really happened is in [`MemoryTruth`]. The peers are in [`MemoryPolicy`].
//!
//! # Simplifications
//! Which page is requested follows one number, the skew: of the requests `(resident / data)^skew` find theirs in memory. Pages are
//! taken coldest first. Disks do not slow each other down. Within a slice rates are those of the steady state.
//!
//! # Properties
//! - `memory_is_neither_made_nor_lost`
//! - `more_memory_never_serves_less`
//! - `the_same_seed_gives_the_same_events`

mod arbitrary;
mod judge;
mod kernel;
pub mod library;
mod peers;
mod program;
mod scenario;
mod world;

pub use judge::{MemoryScore, MemorySimStep, judge, judge_with, play, play_with};
pub use program::{MemoryProgram, MemoryTenant, OfferedLoad, ProbeBehaviour};
pub use scenario::{MemcgVersion, MemoryPolicy, MemoryScenario};
pub use world::{ContainerMemoryTruth, MemorySimulator, MemoryTruth};
