//! What applications say about themselves, from how it comes to what governors are told.
//!
//! Datagrams come to a thread of their own ([`listener`]), which knows from the kernel who sent them; files, pages of metrics
//! and programs are asked by a thread each ([`poller`]), which one that hangs holds up alone. What is said ends with the owner,
//! in [`ProbeRegistry`]: so a container speaks of itself, or the host's administrator of it, and no other does.

mod listener;
mod poller;
mod probe_registry;
pub mod settings;
pub mod source;

pub use listener::{ProbeEvent, socket_path};
pub use poller::{PollerCount, ProbePoller};
pub(crate) use probe_registry::ProbeRegistry;

#[cfg(test)]
mod tests;
