//! Leases as others see them: what a cgroup's file would say if the agent held nothing in it.

use super::ledger::{LeaseRecord, Ledger};
use super::{LeaseError, ledgers};
use crate::cgroup;
use crate::root::Root;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::Path;

/// The leases on record at one moment, by their cgroups' inodes. One that began since is not among them.
#[derive(Debug, Default)]
pub struct LeaseSnapshot(BTreeMap<u64, Vec<LeaseRecord>>);

impl LeaseSnapshot {
    /// The leases of a ledger and of the one for disks in it, which need not exist. Empty for a user who may not read the ledger,
    /// and so may not write the leased files either.
    ///
    /// # Errors
    /// [`LeaseError::Insecure`], [`LeaseError::Io`].
    pub fn read(dir: &Path) -> Result<Self, LeaseError> {
        let mut held = Self::default();
        for dir in ledgers(dir) {
            let ledger = match Ledger::open(&dir) {
                Err(LeaseError::Io { source: Errno::ACCESS | Errno::PERM, .. }) => None,
                opened => opened?,
            };
            for record in ledger.map(|ledger| ledger.read_records()).transpose()?.unwrap_or_default().valid {
                held.0.entry(record.knob.inode).or_default().push(record);
            }
        }
        Ok(held)
    }

    /// Those in a cgroup's files.
    pub fn in_cgroup(&self, inode: Option<u64>) -> &[LeaseRecord] {
        inode.and_then(|inode| self.0.get(&inode)).map_or(&[], Vec::as_slice)
    }

    /// What `file`, by its path, said before the leases in it; `None` where `text` has no value of ours.
    pub fn value_before_leases(&self, root: &Root, file: &str, text: &str) -> Option<String> {
        let (dir, name) = file.rsplit_once('/')?;
        let (_, inode) = cgroup::open_cgroup(root, dir).ok()?;
        value_before_leases(self.in_cgroup(Some(inode)), name, text)
    }
}

/// What a file of a cgroup said before the cgroup's leases; `None` where `text` has no value of ours.
pub fn value_before_leases(leases: &[LeaseRecord], file: &str, text: &str) -> Option<String> {
    leases.iter().filter(|record| record.knob.file == file).fold(None, |found, record| {
        let text = found.as_deref().unwrap_or(text);
        // A value that another program wrote since is its own, whatever is on record.
        let ours = record.knob.parse_value(text).is_ok_and(|value| record.ours.contains(&value));
        if ours { Some(record.knob.with_value(text, record.before)) } else { found }
    })
}
