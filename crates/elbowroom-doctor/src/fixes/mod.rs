//! Fixes: writing what a finding suggests, on record before it is written, and taking it back.

pub mod journal;
pub mod place;
pub mod touch;
pub mod write;

pub use journal::{Entry, Journal, JournalError};
pub use place::{place, unplace};
pub use write::{Lent, Outcome, WriteError, retreat, revert, write};
