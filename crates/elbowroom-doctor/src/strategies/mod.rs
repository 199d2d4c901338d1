//! The paper's strategies as plans for one host:
//! - IV.A touch memory before it is needed ([`pretouch`]);
//! - IV.B leave room for the cache ([`size`]);
//! - IV.C keep the host's own jobs small ([`housekeeping`]);
//! - V.A keep a container out of swap ([`protect`]).
//!
//! Properties: a plan never lowers a limit that a user set and never takes more than what is free or idle; what a plan
//! writes is compared first and can be taken back.

pub mod housekeeping;
pub mod pretouch;
pub mod protect;
pub mod size;
