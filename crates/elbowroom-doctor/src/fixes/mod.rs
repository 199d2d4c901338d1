//! Fixes: writing what a finding suggests, on record before it is written, and taking it back.

pub mod journal;
pub mod placement;
pub mod pretouch;
pub mod write;

pub use journal::{FixEntry, Journal, JournalError};
pub use write::{LeasedValue, RevertOutcome, WriteError, write};
