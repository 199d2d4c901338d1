//! The paper's strategies as plans for one host: IV.A touch memory before it is needed ([`pretouch`]), IV.B keep a container
//! out of swap ([`protect`]) and leave room for its cache ([`size`]), IV.C keep the host's own jobs small ([`housekeeping`]).
//!
//! Properties: a plan never lowers a limit that somebody set and never takes more than what is free or idle; what a plan
//! writes is compared first and can be taken back.

pub mod housekeeping;
pub mod pretouch;
pub mod protect;
pub mod size;
