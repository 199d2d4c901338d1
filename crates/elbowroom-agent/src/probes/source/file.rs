//! A file that the application replaces with each record.

use super::ProbeProblem;
use elbowroom_linux::probe::file::{ContentStamp, read_in};
use elbowroom_types::probe::{MAX_RECORD_LEN, ProbeRecord};
use elbowroom_types::unit::Micros;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// What was read last: a file that is not written any more says nothing.
#[derive(Default)]
pub(super) struct FileSource {
    last: Option<ContentStamp>,
}

impl FileSource {
    pub(super) fn poll(
        &mut self,
        pid: u32,
        path: &Path,
        ttl: Micros,
    ) -> Result<Option<ProbeRecord>, ProbeProblem> {
        let said = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound => format!("{}: not there (yet)", path.display()),
            _ => format!("{}: {error}", path.display()),
        };
        let content = read_in(pid, path, MAX_RECORD_LEN + 1).map_err(said)?;
        let age = content.stamp.age(SystemTime::now());
        if self.last == Some(content.stamp) || age > Duration::from_micros(ttl.get()) {
            return Ok(None);
        }
        // An empty file is one that is just being written; it has another stamp when it is.
        if content.bytes.is_empty() {
            return Ok(None);
        }
        self.last = Some(content.stamp);
        ProbeRecord::parse(&content.bytes).map(Some).map_err(|e| format!("{}: {e}", path.display()))
    }
}
