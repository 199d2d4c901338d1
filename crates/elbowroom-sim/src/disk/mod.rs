//! A toy machine with disks: containers that want to read and write, devices that serve the container with most requests under way.
//!
//! # Problem
//! A governor of disks forms a loop with what it limits: caps decide what is measured, and what was measured decides the next
//! caps. Whether a burst starves a neighbour, whether a slow device makes all containers poorer for ever: properties of the loop,
//! not of a step.
//!
//! # Approach
//! Time goes in slices of 200 ms. In each, every program asks for what it wants, as far as its container's limits let
//! it, and the device (`device`) divides itself. A slice may end with a glance at the disks, or with a measurement. What a sensor would see
//! of this comes out as [`HostEvent`](elbowroom_types::sample::HostEvent)s, and [`DiskOrder`](elbowroom_govern::disk::DiskOrder)s go in and
//! take effect after a delay; what really happened is in [`DiskTruth`], from which a [`Judge`] makes a [`DiskScore`]. A [`DiskScenario`] is
//! data: a library of them makes the paper's figures ([`library`]), a seed makes any other ([`DiskScenario::random`];
//! [`DiskScenario::contest`] where each has a victim and a hog).
//!
//! # Simplifications
//! Nothing is drawn per request: within a slice, rates are those of the steady state. So there are no tail latencies, and a
//! limit holds in every slice, not every 100 ms with jumps between. Reads and writes of one program come in a fixed ratio.
//!
//! # Properties
//! - `a_device_never_does_more_than_it_can`
//! - `limits_hold_from_the_period_after_the_order`
//! - `three_states_look_as_they_were_measured`
//! - `the_same_seed_gives_the_same_events`

mod arbitrary;
mod contest;
mod device;
mod judge;
pub mod library;
mod program;
mod random;
mod scenario;
mod world;

pub use device::Speed;
pub use judge::{DiskScore, DiskSimStep, Judge, judge, judge_with, play, play_with};
pub use program::{DiskProgram, DiskTenant, IoMethod, Pattern};
pub use random::SplitMix64;
pub use scenario::{Burst, DiskScenario, Drive, IoCgroupVersion};
pub use world::{ContainerIoTruth, DiskSimulator, DiskTruth, DriveTruth};
