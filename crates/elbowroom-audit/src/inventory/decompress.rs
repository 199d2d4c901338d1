//! Compressed streams, and the end of patience with them.

use elbowroom_linux::bounded;
use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::rc::Rc;

/// How many bytes may still come out of all streams of one image.
#[derive(Clone, Debug)]
pub(super) struct DecompressionBudget {
    bound: u64,
    remaining: Rc<Cell<u64>>,
}

/// More came out than any honest image holds; how much was allowed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("more than {0} bytes unpacked")]
pub(crate) struct DecompressionBomb(pub u64);

impl DecompressionBudget {
    pub(super) fn new(bound: u64) -> Self {
        Self { bound, remaining: Rc::new(Cell::new(bound)) }
    }
}

/// A stream that counts against an allowance.
pub(super) struct BudgetedReader<R> {
    inner: R,
    allowance: DecompressionBudget,
}

impl<R: Read> Read for BudgetedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(buffer)?;
        match self.allowance.remaining.get().checked_sub(got as u64) {
            Some(left) => self.allowance.remaining.set(left),
            None => return Err(io::Error::other(DecompressionBomb(self.allowance.bound))),
        }
        Ok(got)
    }
}

/// What comes out of a stream that may be compressed, by its first bytes, counted against an allowance.
pub(super) fn decompressed<'a>(
    reader: impl Read + 'a,
    allowance: &DecompressionBudget,
) -> io::Result<BudgetedReader<Box<dyn Read + 'a>>> {
    let mut reader = BufReader::with_capacity(64 << 10, reader);
    let inner: Box<dyn Read + 'a> = match reader.fill_buf()? {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(reader)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
            Box::new(ZstdReader { state: ZstdState::BetweenFrames(Box::new(reader)) })
        }
        _ => Box::new(reader),
    };
    Ok(BudgetedReader { inner, allowance: allowance.clone() })
}

/// zstd frames one after another, with skippable ones between (`zstd:chunked` has its table of contents there).
struct ZstdReader<'a> {
    state: ZstdState<'a>,
}

type CompressedSource<'a> = Box<dyn Read + 'a>;
type ZstdFrame<'a> = io::Chain<Cursor<[u8; 4]>, CompressedSource<'a>>;

enum ZstdState<'a> {
    BetweenFrames(CompressedSource<'a>),
    InFrame(Box<ruzstd::decoding::StreamingDecoder<ZstdFrame<'a>, ruzstd::decoding::FrameDecoder>>),
    End,
}

impl Read for ZstdReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // A stream that fails stays at its end.
            self.state = match std::mem::replace(&mut self.state, ZstdState::End) {
                ZstdState::End => return Ok(0),
                ZstdState::InFrame(mut decoder) => {
                    let got = decoder.read(buffer)?;
                    if got > 0 || buffer.is_empty() {
                        self.state = ZstdState::InFrame(decoder);
                        return Ok(got);
                    }
                    ZstdState::BetweenFrames(decoder.into_inner().into_inner().1)
                }
                ZstdState::BetweenFrames(source) => next_frame(source)?,
            }
        }
    }
}

fn next_frame(mut source: CompressedSource<'_>) -> io::Result<ZstdState<'_>> {
    let mut magic = [0; 4];
    if source.read(&mut magic[..1])? == 0 {
        return Ok(ZstdState::End);
    }
    source.read_exact(&mut magic[1..])?;
    if let [0x50..=0x5f, 0x2a, 0x4d, 0x18] = magic {
        let mut length = [0; 4];
        source.read_exact(&mut length)?;
        bounded::skip(&mut source, u32::from_le_bytes(length).into())?;
        return Ok(ZstdState::BetweenFrames(source));
    }
    let frame = Cursor::new(magic).chain(source);
    let decoder = ruzstd::decoding::StreamingDecoder::new(frame)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
    Ok(ZstdState::InFrame(Box::new(decoder)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn out(bytes: &[u8], bound: u64) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        decompressed(bytes, &DecompressionBudget::new(bound))?.read_to_end(&mut all)?;
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
