//! Page tables of containers: what they map, and what they have in common.

pub mod measure;
pub mod model;
pub mod verb;
