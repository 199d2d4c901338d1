//! The black box: what the agent knew, second by second, in a bounded ring of files.
//!
//! ```text
//! Snapshot ─► without newcomers ─► parts ─► delta::Encoder ─► deflate ─► frame (length, CRC32C) ─► segment ─► the oldest segment goes
//! ```
//!
//! A directory holds *segments*, files of at most a sixteenth of the ring and of [`MAX_SEGMENT`], named by a number that only grows. A segment is a
//! sequence of frames and begins with a key frame; a further one comes at least once in [`KEY_EVERY`] frames. Writes only
//! append to the newest segment, and a writer that starts begins a new one. So only the last frame of a segment can be torn, and only that
//! frame is lost. Why so, and what it costs: `docs/decisions/0020-black-box.md`.

pub mod delta;
pub mod frame;
mod newcomers;
pub(crate) mod parts;
pub mod reader;
pub mod settings;
#[cfg(test)]
mod tests;
pub mod timestamp;
pub mod writer;

/// A key frame comes at least once in this many frames.
pub(crate) const KEY_EVERY: u32 = 60;
/// Segments of a ring.
pub(crate) const SEGMENTS: u64 = 16;
/// Bytes after which a segment ends in the largest ring, for its reader has it in memory.
const MAX_SEGMENT: u64 = 256 << 20;
/// How the name of a segment ends.
const EXTENSION: &str = "ring";
