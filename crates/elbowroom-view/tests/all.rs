//! The tests of rules and pages: one program, which is linked once.

mod common;
mod golden;
mod pages;
mod peer;
mod view_calm;
mod view_extensions;
mod view_paper;
mod view_properties;
mod view_warm;
mod view_waterfill;
mod world;
