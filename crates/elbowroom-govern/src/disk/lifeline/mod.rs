//! The default policy: a container that takes more than it needs is cut, only while another is short of what it needs.
//!
//! # Problem
//! Aridac's idea is right: what a container is used to get is what neighbours must leave it. Three things break it. A sample of
//! a starved container looks like little demand, so on a disk that becomes slower caps fall for ever (its Fig. 8). A burst
//! has to grow into idle bandwidth by 20 % at a time. And the capacity is a constant in a configuration.
//!
//! # Rule
//! One period, in this order; the numbers are in [`super::LifelineConstants`]:
//! 1. *Slow*: requests take twice as long as on a quiet day ([`super::model`]).
//! 2. *Need*: a lifeline, which follows what a container does, and only while the disk is not slow and the container is at no limit. What
//!    was reserved counts where it is more; for one that came just now, the same part as the others.
//! 3. *Short*: the disk is slow, a container gets less than it needs, has requests under way, and is at no limit. One of class `latency`
//!    is short on every slow disk; one of a higher tier while it waits and a lower one takes something.
//! 4. *Cut*: if any is short, a container that takes more than `need * (1 + P)` loses its part of what is missing; then nothing for
//!    `settle_seconds`, so that the cut can be seen to work. A period in which the disk only became slow tells too
//!    little of the burst: a short period follows, and the cut is made after it.
//! 5. *Grow*: if none is short, caps grow: halfway back to where harm was seen, then by little, and the faster the farther they are beyond
//!    it. Ten minutes after the last harm they go.
//! 6. *Priority inversion*: if a container is blocked on a disk that is not slow, while limits of ours bind, it waits for one that we
//!    hold back (a journal, a lock): all limits go for ten minutes.
//!
//! No container is cut on a guess: a disk that hangs, a clock that stops or a container that vanishes leaves caps as they are or lets
//! them grow. On a disk that divides by weight there are weights and no caps.
//!
//! # Terminology
//! *Cost*: bytes per second, where an operation counts as `operation_bytes`. Caps, needs and what is missing are costs.
//!
//! # Properties
//! In `tests/disk_policy_properties.rs` and `tests/disk_scenarios_random.rs`, each with a test of its name.

mod report;
mod rule;

pub(super) use rule::tick;
