//! The directory of records: one small file per lease, written before the knob is.
//!
//! It outlives processes, not the machine: after a restart of the machine there are no cgroups for it to speak of, and its
//! records, marked with the boot they are of, are thrown away. So `fsync` is there to learn of a full disk before the knob
//! is written, and directories are not synced.

use super::LeaseError;
use super::knob::CgroupKnob;
use crate::bounded;
use elbowroom_types::unit::Limit;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The form of records that this program writes and reads.
const VERSION: u32 = 1;
/// Records end in this.
const RECORD_SUFFIX: &str = ".json";
/// The record that is being written. Nothing that bears this name was ever in force.
const TEMPORARY_NAME: &str = "unfinished";
/// No record is longer: two paths' worth.
const MAX_RECORD_BYTES: usize = 16 << 10;
/// How long to wait for another process that restores. It takes microseconds per lease; one that was stopped while it did
/// must not keep others from it, and restoring twice does no harm.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// What is known about one knob that a value of ours is, or may be, in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    version: u32,
    /// `/proc/sys/kernel/random/boot_id`.
    boot: String,
    /// Where.
    pub knob: CgroupKnob,
    /// What was there before us, and will be again.
    pub before: Limit<u64>,
    /// The values of ours that may be in force: one, or while it is being changed the old and the new one.
    pub ours: Vec<Limit<u64>>,
    /// Why ours is there, for people.
    pub because: String,
}

/// Why a file in the ledger is not taken for a record.
#[derive(Debug, thiserror::Error)]
pub enum DamagedRecord {
    /// It cannot be read.
    #[error("{0}")]
    Io(#[from] Errno),
    /// It is no regular file of ours.
    #[error("not a regular file, or another user's")]
    NotOurs,
    /// It is not what this program writes.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// Its contents do not go together.
    #[error("{0}")]
    Inconsistent(&'static str),
}

impl LeaseRecord {
    pub(super) fn new(boot: &str, knob: &CgroupKnob, before: Limit<u64>) -> Self {
        let boot = boot.to_owned();
        Self { version: VERSION, boot, knob: knob.clone(), before, ours: Vec::new(), because: String::new() }
    }

    /// Reads a record as it was found under `name`; nothing in it is believed that could do harm.
    ///
    /// # Errors
    /// See [`DamagedRecord`].
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Self, DamagedRecord> {
        let record: Self = serde_json::from_slice(bytes)?;
        if record.version != VERSION {
            return Err(DamagedRecord::Inconsistent("of another version"));
        }
        if !record.knob.is_plausible() {
            return Err(DamagedRecord::Inconsistent("no knob in a cgroup"));
        }
        if record.name() != name {
            return Err(DamagedRecord::Inconsistent("another knob's name"));
        }
        Ok(record)
    }

    /// The name of its file: one per knob.
    pub fn name(&self) -> String {
        let CgroupKnob { inode, file, key, .. } = &self.knob;
        let mut name = format!("{inode}.{file}");
        if let Some(key) = key {
            name += &format!(".{}", key.device);
            if let Some(field) = &key.field {
                name += &format!(".{field}");
            }
        }
        name + RECORD_SUFFIX
    }
}

/// The directory, open.
#[derive(Debug)]
pub(super) struct Ledger {
    dir: OwnedFd,
    path: PathBuf,
    boot: String,
}

/// The records of a ledger, and the files in it that are none.
#[derive(Debug, Default)]
pub(super) struct LedgerContents {
    pub(super) valid: Vec<LeaseRecord>,
    /// Those of another boot: of cgroups that are no more.
    pub(super) stale: Vec<LeaseRecord>,
    pub(super) damaged: Vec<(PathBuf, DamagedRecord)>,
}

impl Ledger {
    /// Opens the directory, making it where it is not there.
    pub(super) fn create(path: &Path) -> Result<Self, LeaseError> {
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(source) => return Err(LeaseError::io("making", path)(source)),
        }
        Self::open(path)?.ok_or_else(|| LeaseError::io("opening", path)(Errno::NOENT))
    }

    /// Opens the directory; `None` where it is not there. It must be a directory that only this user can write to, in one
    /// where only this user can put another in its place: a user who can write here decides what is written to cgroups.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, LeaseError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                return Err(LeaseError::Insecure { path: path.into(), what: "is not a directory" });
            }
            Err(source) => return Err(LeaseError::io("opening", path)(source)),
        };
        let me = rustix::process::geteuid().as_raw();
        for (name, what) in [(".", "can be written by others"), ("..", "lies where others can replace it")] {
            let stat = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(LeaseError::io("looking at", path))?;
            let mode = Mode::from_raw_mode(stat.st_mode);
            let shared =
                mode.intersects(Mode::WGRP | Mode::WOTH) && !(name == ".." && mode.contains(Mode::SVTX));
            if shared || (stat.st_uid != me && stat.st_uid != 0) {
                return Err(LeaseError::Insecure { path: path.into(), what });
            }
        }
        let boot =
            bounded::file_text("/proc/sys/kernel/random/boot_id", bounded::KERNEL_FILE).unwrap_or_default();
        Ok(Some(Self { dir, path: path.into(), boot: boot.trim().to_owned() }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A record without values of ours.
    pub(super) fn record(&self, knob: &CgroupKnob, before: Limit<u64>) -> LeaseRecord {
        LeaseRecord::new(&self.boot, knob, before)
    }

    /// Waits until no other process restores, or long enough. For as long as the result lives, none will begin to.
    pub(super) fn lock_restore(&self) -> Option<OwnedFd> {
        let dir = self.reopen().ok()?;
        let until = Instant::now() + LOCK_TIMEOUT;
        while rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err()
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        Some(dir)
    }

    /// Puts a record in place of the one before. `durable`: it must survive whatever comes next.
    pub(super) fn write(&self, record: &LeaseRecord, durable: bool) -> Result<(), LeaseError> {
        let name = record.name();
        let fail = |operation| LeaseError::io(operation, self.path.join(&name));
        let bytes = serde_json::to_vec(record).map_err(|_| fail("writing")(Errno::INVAL))?;
        // No process would read it.
        if bytes.len() >= MAX_RECORD_BYTES {
            return Err(fail("writing")(Errno::FBIG));
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, TEMPORARY_NAME, flags, Mode::RUSR | Mode::WUSR)
            .map_err(fail("making"))?;
        let mut left = bytes.as_slice();
        while !left.is_empty() {
            match rustix::io::write(&file, left) {
                Ok(n) => left = &left[n..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(fail("writing")(errno)),
            }
        }
        if durable {
            rustix::fs::fdatasync(&file).map_err(fail("writing"))?;
        }
        rustix::fs::renameat(&self.dir, TEMPORARY_NAME, &self.dir, name.as_str()).map_err(fail("renaming"))
    }

    /// Takes a record out. One that cannot be taken out does no harm: its value is no longer in force.
    pub(super) fn remove(&self, record: &LeaseRecord) {
        match rustix::fs::unlinkat(&self.dir, record.name().as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => {
                tracing::warn!(record = record.name(), %error, "a lease's record cannot be removed")
            }
        }
    }

    /// Reads all records. Those of another boot, and what was never finished, are removed.
    pub(super) fn records(&self, holder_is_gone: bool) -> Result<LedgerContents, LeaseError> {
        let records = self.read_records()?;
        records.stale.iter().for_each(|record| self.remove(record));
        if holder_is_gone {
            let _ = rustix::fs::unlinkat(&self.dir, TEMPORARY_NAME, AtFlags::empty());
        }
        Ok(records)
    }

    /// Reads all records, and changes nothing.
    pub(super) fn read_records(&self) -> Result<LedgerContents, LeaseError> {
        let fail = |operation| LeaseError::io(operation, &self.path);
        let listed = self.reopen().map_err(fail("listing"))?;
        let mut buffer = [MaybeUninit::<u8>::uninit(); 8192];
        let mut entries = rustix::fs::RawDir::new(listed, &mut buffer);
        let mut records = LedgerContents::default();
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(fail("listing"))?;
            let name = entry.file_name().to_string_lossy();
            if !name.ends_with(RECORD_SUFFIX) {
                continue;
            }
            match self.read(&name).and_then(|bytes| LeaseRecord::parse(&name, &bytes)) {
                Ok(record) if record.boot != self.boot => records.stale.push(record),
                Ok(record) => records.valid.push(record),
                // Removed by another process since it was listed.
                Err(DamagedRecord::Io(Errno::NOENT)) => {}
                Err(why) => records.damaged.push((self.path.join(&*name), why)),
            }
        }
        Ok(records)
    }

    /// Removes the directory, if nothing is left in it.
    pub(super) fn remove_dir(self) {
        let _ = rustix::fs::unlinkat(&self.dir, TEMPORARY_NAME, AtFlags::empty());
        let _ = rustix::fs::rmdir(&self.path);
    }

    /// The directory once more, with a position and a lock of its own.
    fn reopen(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.dir, ".", flags, Mode::empty())
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, DamagedRecord> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
            || stat.st_uid != rustix::process::geteuid().as_raw()
        {
            return Err(DamagedRecord::NotOurs);
        }
        let mut bytes = vec![0; MAX_RECORD_BYTES];
        let mut length = 0;
        while length < MAX_RECORD_BYTES {
            match rustix::io::read(&file, &mut bytes[length..]) {
                Ok(0) => {
                    bytes.truncate(length);
                    return Ok(bytes);
                }
                Ok(n) => length += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(DamagedRecord::Inconsistent("longer than any record"))
    }
}

impl AsFd for Ledger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}
