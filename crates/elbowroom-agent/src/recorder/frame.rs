//! Frames of a segment: how they lie in a file, and what is found in one that is damaged.
//!
//! | bytes | |
//! |---|---|
//! | 4 | `EBR1` |
//! | 4 | length of the payload, little endian |
//! | 4 | CRC32C of everything behind it |
//! | 8 | milliseconds since 1970 |
//! | 1 | 1 for a key frame, else 0 |
//! | | the payload, deflated ([RFC 1951](https://www.rfc-editor.org/rfc/rfc1951)): a frame of `crate::recorder::delta` |

use crate::recorder::delta::{Decoder, InvalidFrame, Part};
use elbowroom_linux::bounded;
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use std::io::Write;
use std::ops::Range;

const MAGIC: [u8; 4] = *b"EBR1";
/// Bytes before the payload.
pub const HEADER_SIZE: usize = 21;
/// Where the checksum begins to count.
const CHECKSUM_START: usize = 12;
/// No payload is longer, and none is longer when it is inflated; five hundred containers have one of a megabyte.
const MAX_PAYLOAD: u64 = 64 << 20;

/// Where a frame is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFrame {
    /// When it was made, in milliseconds since 1970.
    pub time_unix_ms: u64,
    /// Whether it depends on no other.
    pub key: bool,
    payload: Range<usize>,
}

/// A frame as it is written.
pub(crate) fn encode(time_unix_ms: u64, key: bool, delta: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_SIZE];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[12..20].copy_from_slice(&time_unix_ms.to_le_bytes());
    bytes[20] = u8::from(key);
    let mut deflate = DeflateEncoder::new(bytes, Compression::fast());
    let written = deflate.write_all(delta).and_then(|()| deflate.finish());
    let mut bytes = written.expect("writing to memory does not fail");
    let length = u32::try_from(bytes.len() - HEADER_SIZE).expect("a snapshot is far smaller than 4 GiB");
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    let sum = crc32c::crc32c(&bytes[CHECKSUM_START..]);
    bytes[8..12].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The time of the frame that a segment begins with, which is in its first [`HEADER_SIZE`] bytes.
pub(crate) fn first_time(head: &[u8]) -> Option<u64> {
    let time = head.get(12..20)?.try_into().ok().map(u64::from_le_bytes);
    time.filter(|_| head.starts_with(&MAGIC))
}

/// The frames of a segment that can be read: whole, with the right sum, and with everything they depend on. Of a file in which frames
/// seem to begin in each other, as none that was damaged has them, those before are all.
pub fn scan(bytes: &[u8]) -> Vec<SegmentFrame> {
    let (mut frames, mut at, mut chained, mut summed_in_vain) = (Vec::new(), 0, false, 0);
    while summed_in_vain <= bytes.len()
        && let Some(found) = bytes.get(at..).and_then(|rest| rest.windows(4).position(|four| four == MAGIC))
    {
        if found > 0 {
            // Something is missing here, and what follows may depend on it.
            chained = false;
            at += found;
        }
        match frame_at(bytes, at) {
            Ok(frame) => {
                at = frame.payload.end;
                chained |= frame.key;
                frames.extend(chained.then_some(frame));
            }
            // Not a frame after all, or a torn one: the next may begin anywhere behind it.
            Err(summed) => {
                summed_in_vain += summed;
                chained = false;
                at += 1;
            }
        }
    }
    frames
}

/// The frame that begins there; where none does, how many bytes were summed up to see that.
fn frame_at(bytes: &[u8], at: usize) -> Result<SegmentFrame, usize> {
    let head = at.checked_add(HEADER_SIZE).and_then(|end| bytes.get(at..end)).ok_or(0_usize)?;
    let word = |from: usize| u32::from_le_bytes(head[from..from + 4].try_into().expect("four bytes"));
    let length =
        usize::try_from(word(4)).ok().filter(|length| *length as u64 <= MAX_PAYLOAD).ok_or(0_usize)?;
    let payload = at + HEADER_SIZE..(at + HEADER_SIZE).checked_add(length).ok_or(0_usize)?;
    let checked = bytes.get(at + CHECKSUM_START..payload.end).ok_or(0_usize)?;
    if crc32c::crc32c(checked) != word(8) {
        return Err(checked.len());
    }
    let time_unix_ms = u64::from_le_bytes(head[12..20].try_into().expect("eight bytes"));
    Ok(SegmentFrame { time_unix_ms, key: head[20] == 1, payload })
}

/// Reads frames of one segment, in order from a key frame on.
#[derive(Debug, Default)]
pub(crate) struct SegmentDecoder {
    decoder: Decoder,
}

impl SegmentDecoder {
    /// Takes the next frame.
    ///
    /// # Errors
    /// [`InvalidFrame`] for an invalid payload: with a correct checksum, only a forged frame has one.
    pub fn decode(&mut self, bytes: &[u8], frame: &SegmentFrame) -> Result<(), InvalidFrame> {
        let payload = bytes.get(frame.payload.clone()).ok_or(InvalidFrame)?;
        let delta = bounded::bytes(DeflateDecoder::new(payload), MAX_PAYLOAD).map_err(|_| InvalidFrame)?;
        self.decoder.frame(&delta, frame.key)
    }

    /// What the last frame says.
    pub fn parts(&self) -> Vec<Part> {
        self.decoder.parts()
    }

    /// As [`Self::parts`], of some keys only.
    pub(super) fn parts_matching(&self, is_wanted: impl FnMut(&str) -> bool) -> Vec<Part> {
        self.decoder.wanted(is_wanted)
    }
}

/// What of a segment of any bytes can be read, every frame of it: for tests and the fuzzer.
pub fn read_all(bytes: &[u8]) -> Vec<(u64, Vec<Part>)> {
    let mut frames = SegmentDecoder::default();
    let mut read = Vec::new();
    for frame in scan(bytes) {
        if frames.decode(bytes, &frame).is_ok() {
            read.push((frame.time_unix_ms, frames.parts()));
        } else {
            frames = SegmentDecoder::default();
        }
    }
    read
}
