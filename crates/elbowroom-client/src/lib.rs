//! Everything that speaks with a running agent or prints what it said: the control socket, the types of its answers, and the forms
//! of output.
//!
//! Begin with [`api::ControlRequest`] and [`control::ControlClient`].
//!
//! What stays true: what is printed is [`elbowroom_types::visible::Visible`], and an error is one line
//! ([`output::one_line`]).

#![forbid(unsafe_code)]

pub mod api;
pub mod change;
pub mod control;
pub mod dated;
pub mod metrics;
pub mod number_format;
pub mod output;
pub mod profile_store;
pub mod table;
mod yaml;
