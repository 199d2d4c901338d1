//! What a container sees: effective CPU and memory ([`rules`]), and the texts of the files that show them ([`pages`]).
//!
//! Begin with [`rules::ViewTable`], a state machine over [`elbowroom_types::sample::HostEvent`], and [`pages::tree`], the list of files.
//!
//! What stays true: the same events give the same views, on any machine and without root; `clippy.toml` refuses clocks, files and
//! the environment.

#![forbid(unsafe_code)]

pub mod pages;
pub mod rules;
