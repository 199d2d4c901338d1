//! Which of many nodes have room for one more container, and why.
//!
//! # Problem
//! A scheduler that adds up requests and limits leaves most of a fleet idle, and still puts containers beside neighbours that
//! use more than they asked for. What is really used, what is really free and what may be called back is known to the agent of
//! each node.
//!
//! # Approach
//! A node's [`Room`] is what nobody uses and nobody can call back, less a *headroom* for what moves. Whether a container fits is
//! one question asked of every resource: how many such containers would fit? The least answer counts, and names the *scarce*
//! resource. Nodes are ranked by that number, so that what comes hurts its neighbours as little as possible. Of a node with
//! several disks the roomiest counts.
//!
//! # Properties
//! - `what_is_placed_never_exceeds_the_room`
//! - `more_room_never_ranks_lower`
//! - `the_order_of_nodes_does_not_change_the_ranking`

mod judge;
mod room;

pub use judge::{Ask, Ranked, Scarce, Verdict, judge, rank};
pub use room::{DiskRoom, Room, lendable};
