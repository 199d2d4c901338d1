//! Fixes: writing what a finding suggests, on record before it is written, and taking it back.

pub mod journal;
pub mod placement;
pub mod pretouch;
pub mod write;

pub use journal::{FixEntry, Journal, JournalError};
pub use placement::{apply_placement, revert_placement};
pub use write::{LeasedValue, RevertOutcome, WriteError, revert, revert_failed_write, write};
