//! What applications say about themselves, from how it comes to what governors are told.
//!
//! Datagrams come to a thread of their own ([`listen`]), which knows from the kernel who sent them; files, pages of metrics
//! and programs are asked by a thread each ([`poll`]), which one that hangs holds up alone. What is said ends with the owner,
//! in [`Voices`]: so a container speaks of itself, or the host's administrator of it, and nobody else.

mod listen;
mod poll;
pub mod settings;
pub mod source;
mod voices;

pub use listen::{Said, socket_path};
pub use poll::Poller;
pub(crate) use voices::Voices;

#[cfg(test)]
mod tests;
