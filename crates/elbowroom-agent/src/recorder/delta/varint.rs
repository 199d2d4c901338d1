//! Numbers in as few bytes as they need, seven bits each, the lowest first (LEB128).

use super::InvalidFrame;

/// Appends a number.
pub(super) fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Appends bytes with their length before them.
pub(super) fn put_slice(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend(bytes);
}

/// What is still to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl<'a> Bytes<'a> {
    /// One byte; `None` at the end.
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// A number.
    pub(super) fn number(&mut self) -> Result<u64, InvalidFrame> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte().ok_or(InvalidFrame)?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(InvalidFrame);
            }
            n |= bits << shift;
            if byte < 0x80 {
                return Ok(n);
            }
        }
        Err(InvalidFrame)
    }

    /// A number that is at most `most`.
    pub(super) fn length(&mut self, most: usize) -> Result<usize, InvalidFrame> {
        usize::try_from(self.number()?).ok().filter(|n| *n <= most).ok_or(InvalidFrame)
    }

    /// The next `N` bytes.
    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], InvalidFrame> {
        let (first, rest) = self.0.split_first_chunk().ok_or(InvalidFrame)?;
        self.0 = rest;
        Ok(*first)
    }

    /// Bytes with their length before them.
    pub(super) fn slice(&mut self) -> Result<&'a [u8], InvalidFrame> {
        let length = self.number()?;
        let length = usize::try_from(length).ok().filter(|n| *n <= self.0.len()).ok_or(InvalidFrame)?;
        let (first, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_back_and_too_large_ones_refused() {
        for n in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put(&mut out, n);
            assert_eq!(Bytes(&out).number(), Ok(n));
        }
        assert_eq!(Bytes(&[0xff; 11]).number(), Err(InvalidFrame));
        assert_eq!(Bytes(&[0x80]).number(), Err(InvalidFrame));
    }
}
