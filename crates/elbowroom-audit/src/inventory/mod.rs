//! What is in a root directory or an image, as far as `rules` has a use for it.
//!
//! # Approach
//! Every source becomes a stream of files: [`rootfs`] walks a directory, [`layer`] reads one layer's tar, [`image`] puts
//! layers on top of each other, [`engine`] brings an image out of Docker or Podman. [`file_evidence`] looks at each file once and
//! keeps a few words of it. Nothing is unpacked, run or linked to; nothing is held but the one file being looked at.
//!
//! # Hostile images
//! Paths are keys, never opened; links are never followed; names, files, layers and bytes are counted against [`AuditBounds`]. A
//! file over its bound is passed over and the report says so; an archive over its bound is an error.

mod decompress;
pub mod elf;
pub mod engine;
pub mod file_evidence;
pub mod image;
pub mod layer;
pub mod rootfs;
mod sysconf;
pub mod tar;

use crate::rules::evidence::Inventory;
use std::path::Path;

/// How much of a foreign archive is taken in.
#[derive(Clone, Copy, Debug)]
pub struct AuditBounds {
    /// Bytes of one file that are held in memory. Larger ones are judged by their beginning.
    pub file: u64,
    /// Bytes of all layers together, uncompressed; of a directory, of all files that were read.
    pub total: u64,
    /// Entries of one image or directory; one with a long name, or of which much is kept, counts as several.
    pub entries: u64,
    /// Layers of one image; engines stop at 127.
    pub layers: usize,
    /// Bytes of one manifest or configuration.
    pub json: u64,
}

impl Default for AuditBounds {
    fn default() -> Self {
        Self { file: 256 << 20, total: 128 << 30, entries: 4_000_000, layers: 1000, json: 16 << 20 }
    }
}

/// Why something could not be audited.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The kernel refused.
    #[error("while {operation} {what}: {source}")]
    Io {
        /// What was done: `opening`, `reading`.
        operation: &'static str,
        /// The file, or the image.
        what: String,
        /// Why not.
        source: std::io::Error,
    },
    /// It is no image that this program knows.
    #[error("{what}: {why}")]
    Malformed {
        /// The file, or the image.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// It is larger than any honest image.
    #[error("{what}: more than {bound} {of}, refused")]
    TooMuch {
        /// The file, or the image.
        what: String,
        /// How many.
        bound: u64,
        /// Of what.
        of: &'static str,
    },
}

impl AuditError {
    pub(crate) fn io(
        operation: &'static str,
        what: impl Into<String>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| match source
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<decompress::DecompressionBomb>())
        {
            Some(bomb) => Self::TooMuch { what, bound: bomb.0, of: "bytes unpacked" },
            None => Self::Io { operation, what, source },
        }
    }

    pub(crate) fn malformed(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Malformed { what: what.into(), why: why.into() }
    }
}

/// Looks at what `target` names: a directory that is a root or an OCI layout, an archive, or else an image of the engine.
pub fn inventory(target: &str, bounds: AuditBounds) -> Result<Inventory, AuditError> {
    let path = Path::new(target);
    if path.is_dir() {
        return match path.join("oci-layout").is_file() {
            true => image::oci_directory(path, bounds),
            false => rootfs::inventory(path, bounds),
        };
    }
    if path.is_file() {
        return image::archive(path, bounds);
    }
    // What looks like a path is none of an image's names.
    if target.starts_with(['/', '.']) {
        let is_there = path.metadata().map_err(AuditError::io("opening", target));
        return Err(is_there
            .err()
            .unwrap_or_else(|| AuditError::malformed(target, "it is neither a file nor a directory")));
    }
    image::from_engine(target, bounds)
}
