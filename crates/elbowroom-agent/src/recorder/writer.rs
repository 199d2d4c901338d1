//! Writes the ring.

use super::newcomers::Newcomers;
use super::{EXTENSION, KEY_EVERY, MAX_SEGMENT, SEGMENTS, frame, parts, reader};
use crate::recorder::delta::Encoder;
use anyhow::{Context, Result, bail};
use elbowroom_client::api::AgentSnapshot;
use elbowroom_types::unit::Bytes;
use rustix::fs::{FlockOperation, OFlags, flock};
use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Locked by the writer.
const LOCK_FILE: &str = "lock";

/// No recorder comes to this number with a segment a second for a million years.
const MAX_NUMBER: u64 = 1 << 45;

/// A ring that is being written.
#[derive(Debug)]
pub struct RingWriter {
    dir: PathBuf,
    max_size: u64,
    newcomers: Newcomers,
    encoder: Encoder,
    /// The segment at whose end is written.
    open: Option<OpenSegment>,
    /// Those before it, oldest first, with their sizes.
    older: VecDeque<(PathBuf, u64)>,
    next_number: u64,
    /// Frames since the last key frame.
    since_key: u32,
    /// Held for as long as this writes.
    _lock: File,
}

#[derive(Debug)]
struct OpenSegment {
    path: PathBuf,
    file: File,
    length: u64,
    last_unix_ms: u64,
}

/// Numbers segments from 0 on in the order that they are in: of one with the last number there is, as another program may have left it,
/// nothing can come after.
fn number_anew(dir: &Path, found: &[(u64, PathBuf)]) -> Result<()> {
    tracing::warn!(directory = %dir.display(), "a segment with a number that no recorder gives: all are numbered anew");
    let mut number = 0;
    for (_, path) in found {
        // Another may have that name, of the same number as this one and a later one in their order.
        while segment_path(dir, number) != *path && segment_path(dir, number).symlink_metadata().is_ok() {
            number += 1;
        }
        let to = segment_path(dir, number);
        fs::rename(path, &to).with_context(|| format!("renaming {} to {}", path.display(), to.display()))?;
        number += 1;
    }
    Ok(())
}

fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:012}.{EXTENSION}"))
}

impl RingWriter {
    /// Opens the ring of a directory, made where it is not there.
    pub fn open(dir: &Path, max_size: Bytes) -> Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .with_context(|| format!("making {}", dir.display()))?;
        let path = dir.join(LOCK_FILE);
        let mut options = OpenOptions::new();
        // Where others can write to the directory, it may be a link or a pipe of theirs.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let lock =
            options.create(true).truncate(false).write(true).mode(0o600).custom_flags(flags).open(&path);
        let lock = lock.with_context(|| format!("opening {}", path.display()))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("{}: another program records into it: choose another directory", dir.display());
        }
        let mut found = reader::segments(dir)?;
        if found.last().is_some_and(|(number, _)| *number > MAX_NUMBER) {
            number_anew(dir, &found)?;
            found = reader::segments(dir)?;
        }
        let next_number = found.last().map_or(0, |(number, _)| number + 1);
        let sized = |(_, path): (u64, PathBuf)| {
            let length = fs::metadata(&path).map_or(0, |file| file.len());
            (path, length)
        };
        Ok(Self {
            dir: dir.to_owned(),
            max_size: max_size.get(),
            newcomers: Newcomers::default(),
            encoder: Encoder::default(),
            open: None,
            older: found.into_iter().map(sized).collect(),
            next_number,
            since_key: 0,
            _lock: lock,
        })
    }

    /// Writes a snapshot. After an error nothing of it is there, and the next one may be written.
    pub fn write(&mut self, mut snapshot: AgentSnapshot) -> Result<()> {
        self.newcomers.leave_out(&mut snapshot);
        let time = snapshot.time_unix_ms;
        let parts = parts::split(snapshot)?;
        let full = |open: &OpenSegment| open.length >= (self.max_size / SEGMENTS).min(MAX_SEGMENT);
        // A clock that was set back makes a new segment, so that times only grow within one.
        if self.open.as_ref().is_some_and(|open| full(open) || time < open.last_unix_ms) {
            self.close();
        }
        // A user who empties the directory takes no more than what was recorded.
        if self.since_key >= KEY_EVERY && self.open.as_ref().is_some_and(|open| !open.path.exists()) {
            self.open = None;
        }
        let key = self.open.is_none() || self.since_key >= KEY_EVERY;
        let bytes = frame::encode(time, key, &self.encoder.frame(&parts, key));
        self.make_room(bytes.len() as u64);
        let outcome = self.append(&bytes, time);
        self.since_key = if key { 1 } else { self.since_key + 1 };
        if outcome.is_err() {
            // Whatever comes next must not depend on what is not there.
            self.since_key = KEY_EVERY;
        }
        outcome
    }

    /// What the ring takes.
    #[cfg(test)]
    pub(crate) fn size(&self) -> u64 {
        self.older.iter().map(|(_, length)| length).sum::<u64>()
            + self.open.as_ref().map_or(0, |open| open.length)
    }

    fn append(&mut self, bytes: &[u8], time: u64) -> Result<()> {
        if self.open.is_none() {
            let path = segment_path(&self.dir, self.next_number);
            let made = OpenOptions::new().create_new(true).append(true).mode(0o600).open(&path);
            let file = made.with_context(|| format!("making {}", path.display()))?;
            self.next_number += 1;
            self.open = Some(OpenSegment { path, file, length: 0, last_unix_ms: time });
        }
        let open = self.open.as_mut().expect("it was opened");
        if let Err(error) = open.file.write_all(bytes) {
            // A part of it may be there.
            let _ = open.file.set_len(open.length);
            let outcome = Err(error).with_context(|| format!("writing {}", open.path.display()));
            if open.length == 0 {
                let _ = fs::remove_file(&open.path);
                self.open = None;
            }
            return outcome;
        }
        open.length += bytes.len() as u64;
        open.last_unix_ms = time;
        // A power cut costs at most what came since the last key frame; a process that is killed costs nothing of this.
        if self.since_key >= KEY_EVERY {
            let _ = open.file.sync_data();
        }
        Ok(())
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            let _ = open.file.sync_data();
            self.older.push_back((open.path, open.length));
        }
    }

    fn make_room(&mut self, bytes: u64) {
        let mut size = self.older.iter().map(|(_, length)| length).sum::<u64>()
            + self.open.as_ref().map_or(0, |open| open.length)
            + bytes;
        while size > self.max_size
            && let Some((path, length)) = self.older.pop_front()
        {
            let _ = fs::remove_file(path);
            size -= length;
        }
    }
}
