//! What the guard leaves behind for the alerts: `<run-dir>/leases.restored`, one JSON object a line.
//!
//! The guard acts while the process that tells people is dead, so it cannot be told directly. A note that is lost costs an alert and
//! no limit: nothing here is an error.

use super::guard::RestoreReport;
use super::{EndedLease, LeaseEnding};
use crate::{bounded, timer};
use elbowroom_types::unit::Micros;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Notes that are not taken do not pile up beyond this.
const MAX_BYTES: u64 = 1 << 20;

/// Limits of ours that were dealt with for a holder that could not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreNotice {
    /// When, on the monotonic clock.
    pub at: Micros,
    /// The leases and what became of them; those whose cgroup is gone, or that were back already, are left out.
    pub leases: Vec<EndedLease>,
}

/// The notes of the ledger in `dir` since the last call, oldest first.
pub fn take_restore_notices(dir: &Path) -> Vec<RestoreNotice> {
    let path = path_of(dir);
    let Ok(text) = bounded::file_text(&path, bounded::KERNEL_FILE) else { return Vec::new() };
    // Between the two calls the guard acts only if this process dies, which is then what the next one cannot read.
    remove(dir);
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Writes a note where there is something to tell.
pub(super) fn write(dir: &Path, remains: RestoreReport) {
    let told = |fate: &LeaseEnding| {
        matches!(fate, LeaseEnding::Restored | LeaseEnding::Foreign(_) | LeaseEnding::Failed(_))
    };
    let leases: Vec<EndedLease> = remains.leases.into_iter().filter(|ended| told(&ended.fate)).collect();
    let path = path_of(dir);
    if leases.is_empty() || fs::metadata(&path).is_ok_and(|file| file.len() > MAX_BYTES) {
        return;
    }
    let mut line =
        serde_json::to_vec(&RestoreNotice { at: timer::now(), leases }).expect("a note is numbers and text");
    line.push(b'\n');
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    if let Err(error) = file.and_then(|mut file| file.write_all(&line)) {
        tracing::warn!(file = %path.display(), %error, "no alert will tell of these limits");
    }
}

/// Removes what was not taken.
pub(super) fn remove(dir: &Path) {
    let _ = fs::remove_file(path_of(dir));
}

fn path_of(dir: &Path) -> PathBuf {
    dir.with_extension("restored")
}
