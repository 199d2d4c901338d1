//! What applications say about themselves, from how it comes to what governors are told.
//!
//! Datagrams come to a thread of their own ([`listener`]), which knows the sender from the kernel. Each file, page of metrics or program
//! is asked by its own thread ([`poller`]), so one that hangs holds up no other. All records end in the owner's [`ProbeRegistry`]. So
//! records about a container come from that container or from the host's administrator, and from no other.

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
