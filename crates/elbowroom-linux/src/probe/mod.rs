//! What it takes to hear an application: a datagram socket that knows the sending process ([`DatagramSocket`]), and ways to look into a
//! container without trusting it ([`file`], [`network`], [`confined`]).

pub mod confined;
pub mod file;
pub mod network;
mod socket;

pub use socket::{Datagram, DatagramSocket, KnownSenders, SenderAddress, send};
