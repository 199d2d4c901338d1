//! Reads the ring, also while it is written.

use super::frame::{self, HEADER_SIZE, SegmentDecoder, SegmentFrame};
use super::{EXTENSION, parts, timestamp};
use anyhow::{Context, Result, bail, ensure};
use elbowroom_client::api::{AgentSnapshot, ChangeView};
use elbowroom_linux::bounded;
use elbowroom_linux::probe::file::open_in;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The segments of a directory with their numbers, oldest first.
pub(crate) fn segments(dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok());
        if let Some(number) = number
            && path.extension().is_some_and(|extension| extension == EXTENSION)
        {
            found.push((number, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// A recording, at one of its moments.
#[derive(Debug)]
pub struct RecordingCursor {
    dir: PathBuf,
    /// The segment it is in.
    number: u64,
    bytes: Vec<u8>,
    frames: Vec<SegmentFrame>,
    /// Which frame.
    index: usize,
    decoder: SegmentDecoder,
}

/// The first and the last moment that are recorded, in milliseconds since 1970.
pub(crate) type RecordedRange = (u64, u64);

impl RecordingCursor {
    /// Goes to the last moment at or before `time`.
    ///
    /// # Errors
    /// Where nothing is recorded, or `time` is not in what is: the error says what is.
    pub fn at(dir: &Path, time: u64) -> Result<Self> {
        let (first, last) = recorded_range(dir)?;
        ensure!(
            (first..=last.saturating_add(SLACK_MS)).contains(&time),
            "nothing is recorded of {}: {} has {} to {}",
            timestamp::format_local(time),
            dir.display(),
            timestamp::format_local(first),
            timestamp::format_local(last)
        );
        let began =
            segments(dir)?.into_iter().filter_map(|(number, path)| Some((segment_start(&path)?, number)));
        let began: Vec<(u64, u64)> = began.filter(|(start, _)| *start <= time).collect();
        // The last that began before. Where the clock was set back there are two, and the newer one counts if it has come as far.
        let newest = began.iter().map(|(_, number)| *number).max();
        let last = began.iter().max().map(|(_, number)| *number);
        if newest != last
            && let Some(cursor) = newest.map(|number| Self::load(dir, number)).transpose()?.flatten()
            && cursor.frames.last().is_some_and(|frame| frame.time_unix_ms >= time)
            && let Some(cursor) = cursor.not_after(time)?
        {
            return Ok(cursor);
        }
        let mut number = last;
        while let Some(at) = number {
            if let Some(cursor) = Self::load(dir, at)?
                && let Some(cursor) = cursor.not_after(time)?
            {
                return Ok(cursor);
            }
            number = adjacent_segment(dir, at, false)?;
        }
        bail!("{}: the recording of {} cannot be read", dir.display(), timestamp::format_local(time))
    }

    /// Goes to the first moment.
    pub(crate) fn first(dir: &Path) -> Result<Self> {
        for (number, _) in segments(dir)? {
            // What a crash tore may have been the first of all.
            if let Some(mut cursor) = Self::load(dir, number)? {
                cursor.seek_to(0)?;
                return Ok(cursor);
            }
        }
        bail!("{}: nothing is recorded there", dir.display())
    }

    /// Goes to the last moment.
    pub fn last(dir: &Path) -> Result<Self> {
        for (number, _) in segments(dir)?.into_iter().rev() {
            if let Some(mut cursor) = Self::load(dir, number)? {
                cursor.seek_to(cursor.frames.len() - 1)?;
                return Ok(cursor);
            }
        }
        bail!("{}: nothing is recorded there", dir.display())
    }

    /// At the first moment of the same recording.
    pub fn to_first(&self) -> Result<Self> {
        Self::first(&self.dir)
    }

    /// At the last moment of the same recording.
    pub fn to_last(&self) -> Result<Self> {
        Self::last(&self.dir)
    }

    /// When that is, in milliseconds since 1970.
    pub fn time(&self) -> u64 {
        self.frames[self.index].time_unix_ms
    }

    /// Where in the ring that is: later moments come later, whatever the clock said.
    pub(crate) fn position(&self) -> (u64, usize) {
        (self.number, self.index)
    }

    /// What had changed in the seconds before.
    pub(crate) fn changes(&self) -> Result<Vec<ChangeView>> {
        parts::changes(&self.decoder.parts_matching(parts::changes_filter()))
    }

    /// What the agent knew then.
    pub fn snapshot(&self) -> Result<AgentSnapshot> {
        parts::join(&self.decoder.parts())
    }

    /// Goes on by one; false where this is the last. What was written meanwhile counts.
    pub fn advance(&mut self) -> Result<bool> {
        if self.index + 1 >= self.frames.len() {
            return self.next_segment();
        }
        let to = self.index + 1;
        self.decoder.decode(&self.bytes, &self.frames[to])?;
        self.index = to;
        Ok(true)
    }

    /// Goes back by one; false where this is the first.
    pub fn previous(&mut self) -> Result<bool> {
        if let Some(to) = self.index.checked_sub(1) {
            self.seek_to(to)?;
            return Ok(true);
        }
        let mut number = self.number;
        while let Some(before) = adjacent_segment(&self.dir, number, false)? {
            if let Some(mut cursor) = Self::load(&self.dir, before)? {
                cursor.seek_to(cursor.frames.len() - 1)?;
                *self = cursor;
                return Ok(true);
            }
            number = before;
        }
        Ok(false)
    }

    /// Goes by that many milliseconds, as far as there is something.
    pub fn step(&mut self, by_ms: i64) -> Result<()> {
        let (first, last) = recorded_range(&self.dir)?;
        let to = self.time().saturating_add_signed(by_ms).clamp(first, last.max(first));
        *self = if to == first { Self::first(&self.dir)? } else { Self::at(&self.dir, to)? };
        Ok(())
    }

    fn next_segment(&mut self) -> Result<bool> {
        // The newest one may have grown.
        if let Some(mut again) = Self::load(&self.dir, self.number)?
            && again.frames.len() > self.frames.len()
        {
            again.seek_to(self.index + 1)?;
            *self = again;
            return Ok(true);
        }
        let mut number = self.number;
        while let Some(after) = adjacent_segment(&self.dir, number, true)? {
            if let Some(mut cursor) = Self::load(&self.dir, after)? {
                cursor.seek_to(0)?;
                *self = cursor;
                return Ok(true);
            }
            number = after;
        }
        Ok(false)
    }

    /// The segment of that number; `None` where it is gone, or nothing in it can be read.
    fn load(dir: &Path, number: u64) -> Result<Option<Self>> {
        let Some((_, path)) = segments(dir)?.into_iter().find(|(of, _)| *of == number) else {
            return Ok(None);
        };
        let bytes = match open_segment(&path).and_then(|file| bounded::bytes(file, MAX_SEGMENT_BYTES)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        let frames = frame::scan(&bytes);
        let cursor =
            Self { dir: dir.to_owned(), number, bytes, frames, index: 0, decoder: SegmentDecoder::default() };
        Ok((!cursor.frames.is_empty()).then_some(cursor))
    }

    /// At the last moment of the segment that is not after `time`; `None` where all are.
    fn not_after(mut self, time: u64) -> Result<Option<Self>> {
        let Some(frame) = self.frames.iter().rposition(|frame| frame.time_unix_ms <= time) else {
            return Ok(None);
        };
        self.seek_to(frame)?;
        Ok(Some(self))
    }

    fn seek_to(&mut self, to: usize) -> Result<()> {
        let key = self.frames[..=to].iter().rposition(|frame| frame.key).unwrap_or(0);
        self.decoder = SegmentDecoder::default();
        for frame in &self.frames[key..=to] {
            self.decoder.decode(&self.bytes, frame)?;
        }
        self.index = to;
        Ok(())
    }
}

/// The most bytes of a segment that are read: several times [`super::MAX_SEGMENT`].
const MAX_SEGMENT_BYTES: u64 = 1 << 30;

/// A plain file: the directory may be a stranger's, and have pipes, devices and links of such names.
fn open_segment(path: &Path) -> io::Result<File> {
    let (dir, name) = path.parent().zip(path.file_name()).ok_or(ErrorKind::InvalidInput)?;
    open_in(dir, Path::new(name))
}

/// A time up to this long after the last recorded moment means that moment.
const SLACK_MS: u64 = 10_000;

/// What is recorded.
///
/// # Errors
/// Where nothing is.
pub(crate) fn recorded_range(dir: &Path) -> Result<RecordedRange> {
    let segments = segments(dir)?;
    let starts: Vec<u64> = segments.iter().filter_map(|(_, path)| segment_start(path)).collect();
    let last = segments.iter().rev().find_map(|(number, _)| {
        let cursor = RecordingCursor::load(dir, *number).ok().flatten()?;
        cursor.frames.last().map(|frame| frame.time_unix_ms)
    });
    match (starts.iter().min(), starts.iter().copied().max().max(last)) {
        (Some(first), Some(last)) => Ok((*first, last)),
        _ => bail!("{}: nothing is recorded there", dir.display()),
    }
}

fn adjacent_segment(dir: &Path, number: u64, after: bool) -> Result<Option<u64>> {
    let numbers = segments(dir)?.into_iter().map(|(number, _)| number);
    Ok(match after {
        true => numbers.filter(|of| *of > number).min(),
        false => numbers.filter(|of| *of < number).max(),
    })
}

/// When a segment begins.
fn segment_start(path: &Path) -> Option<u64> {
    let mut head = [0; HEADER_SIZE];
    open_segment(path).ok()?.read_exact(&mut head).ok()?;
    frame::first_time(&head)
}
