//! State files of engines: JSON below a root, with the instant of its last change.

use crate::root::{ReadError, Root, if_present};
use rustix::fs::OFlags;
use serde::de::DeserializeOwned;
use std::path::Path;

/// A file's last change and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateStamp(i64, i64, i64);

impl StateStamp {
    /// The last change of a state file; `None` when it is gone.
    pub fn of(root: &Root, file: &Path) -> Option<Self> {
        let stat = rustix::fs::fstat(root.open(file, OFlags::PATH).ok()?).ok()?;
        Some(Self(stat.st_mtime as i64, stat.st_mtime_nsec as i64, stat.st_size))
    }
}

/// A JSON file with the stamp it had before it was read.
pub(super) fn read_json_stamped<T: DeserializeOwned>(
    root: &Root,
    file: &Path,
) -> Result<Option<(T, StateStamp)>, ReadError> {
    let Some(stamp) = StateStamp::of(root, file) else { return Ok(None) };
    Ok(read_json(root, file)?.map(|value| (value, stamp)))
}

pub(super) fn read_json<T: DeserializeOwned>(root: &Root, file: &Path) -> Result<Option<T>, ReadError> {
    let Some(text) = if_present(root.read(file))? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).map_err(|e| {
        // These files are one long line: quote what is before the place.
        let before: Vec<&str> = text.lines().take(e.line()).collect();
        let line = before.last().copied().unwrap_or("");
        let skip = line.chars().count().min(e.column()).saturating_sub(60);
        let line: String = line.chars().skip(skip).collect();
        ReadError::malformed(file, crate::parse::malformed(&line, "the JSON this engine writes"))
    })
}
