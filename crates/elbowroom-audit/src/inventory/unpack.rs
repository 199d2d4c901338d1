//! Compressed streams, and the end of patience with them.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::rc::Rc;

/// How many bytes may still come out of all streams of one image.
#[derive(Clone, Debug)]
pub(super) struct Allowance {
    bound: u64,
    left: Rc<Cell<u64>>,
}

/// More came out than any honest image holds; how much was allowed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("more than {0} bytes unpacked")]
pub struct Bomb(pub u64);

impl Allowance {
    pub(super) fn new(bound: u64) -> Self {
        Self { bound, left: Rc::new(Cell::new(bound)) }
    }
}

/// A stream that counts against an allowance.
pub(super) struct Counted<R> {
    inner: R,
    allowance: Allowance,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(buffer)?;
        match self.allowance.left.get().checked_sub(got as u64) {
            Some(left) => self.allowance.left.set(left),
            None => return Err(io::Error::other(Bomb(self.allowance.bound))),
        }
        Ok(got)
    }
}

/// What comes out of a stream that may be compressed, by its first bytes, counted against an allowance.
pub(super) fn unpacked<'a>(
    reader: impl Read + 'a,
    allowance: &Allowance,
) -> io::Result<Counted<Box<dyn Read + 'a>>> {
    let mut reader = BufReader::with_capacity(64 << 10, reader);
    let inner: Box<dyn Read + 'a> = match reader.fill_buf()? {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(reader)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
            Box::new(Zstd { state: State::Between(Box::new(reader)) })
        }
        _ => Box::new(reader),
    };
    Ok(Counted { inner, allowance: allowance.clone() })
}

/// zstd frames one after another, with skippable ones between (`zstd:chunked` has its table of contents there).
struct Zstd<'a> {
    state: State<'a>,
}

type Source<'a> = Box<dyn Read + 'a>;
type Frame<'a> = io::Chain<Cursor<[u8; 4]>, Source<'a>>;

enum State<'a> {
    Between(Source<'a>),
    In(Box<ruzstd::decoding::StreamingDecoder<Frame<'a>, ruzstd::decoding::FrameDecoder>>),
    End,
}

impl Read for Zstd<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // A stream that fails stays at its end.
            self.state = match std::mem::replace(&mut self.state, State::End) {
                State::End => return Ok(0),
                State::In(mut decoder) => {
                    let got = decoder.read(buffer)?;
                    if got > 0 || buffer.is_empty() {
                        self.state = State::In(decoder);
                        return Ok(got);
                    }
                    State::Between(decoder.into_inner().into_inner().1)
                }
                State::Between(source) => next_frame(source)?,
            }
        }
    }
}

fn next_frame(mut source: Source<'_>) -> io::Result<State<'_>> {
    let mut magic = [0; 4];
    if source.read(&mut magic[..1])? == 0 {
        return Ok(State::End);
    }
    source.read_exact(&mut magic[1..])?;
    if let [0x50..=0x5f, 0x2a, 0x4d, 0x18] = magic {
        let mut length = [0; 4];
        source.read_exact(&mut length)?;
        io::copy(&mut source.by_ref().take(u32::from_le_bytes(length).into()), &mut io::sink())?;
        return Ok(State::Between(source));
    }
    let frame = Cursor::new(magic).chain(source);
    let decoder = ruzstd::decoding::StreamingDecoder::new(frame)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
    Ok(State::In(Box::new(decoder)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn out(bytes: &[u8], bound: u64) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        unpacked(bytes, &Allowance::new(bound))?.read_to_end(&mut all)?;
        Ok(all)
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[test]
    fn streams_are_told_by_their_first_bytes() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"text").unwrap();
        for bytes in [b"text".to_vec(), gzip.finish().unwrap(), zstd(b"text")] {
            assert_eq!(out(&bytes, 100).unwrap(), b"text");
        }
    }

    #[test]
    fn zstd_goes_on_behind_skippable_frames() {
        let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"toc"].concat();
        assert_eq!(out(&[zstd(b"one "), skippable, zstd(b"two")].concat(), 100).unwrap(), b"one two");
    }

    #[test]
    fn a_bomb_ends_where_the_allowance_does() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&vec![0; 8 << 20]).unwrap();
        let error = out(&gzip.finish().unwrap(), 1 << 20).unwrap_err();
        assert!(error.to_string().contains("more than 1048576 bytes"), "{error}");
    }

    #[test]
    fn damaged_streams_are_errors() {
        assert!(out(&zstd(b"some text that is long enough")[..12], 100).is_err());
        assert!(out(&[0x28, 0xb5, 0x2f, 0xfd, 0xff, 0xff], 100).is_err());
        assert!(out(&[0x1f, 0x8b, 8, 0], 100).is_err());
    }
}
