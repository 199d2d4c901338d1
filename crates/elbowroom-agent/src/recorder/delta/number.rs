//! Numbers of a document, and their differences.

use super::InvalidFrame;
use super::varint::{self, Bytes};
use std::fmt;

/// A number as JSON has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Int(i64),
    /// Above the range of an `Int`.
    Uint(u64),
    /// Finite.
    Float(f32),
    /// Finite, and beyond the range of a `Float`.
    Double(f64),
}

const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const DOUBLE: u8 = 3;

impl Number {
    /// Reads a number of a JSON text; `None` for what is none.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if let Ok(n) = text.parse() {
            return Some(Self::Int(n));
        }
        if let Ok(n) = text.parse() {
            return Some(Self::Uint(n));
        }
        let n: f64 = text.parse().ok().filter(|n: &f64| n.is_finite())?;
        let short = n as f32;
        Some(if short.is_finite() { Self::Float(short) } else { Self::Double(n) })
    }

    /// Appends the whole number.
    pub(super) fn put(self, out: &mut Vec<u8>) {
        match self {
            Self::Int(n) => {
                out.push(INT);
                varint::put(out, zigzag(n));
            }
            Self::Uint(n) => {
                out.push(UINT);
                varint::put(out, n);
            }
            Self::Float(n) => {
                out.push(FLOAT);
                out.extend(n.to_le_bytes());
            }
            Self::Double(n) => {
                out.push(DOUBLE);
                out.extend(n.to_le_bytes());
            }
        }
    }

    /// Reads a whole number.
    pub(super) fn take(bytes: &mut Bytes<'_>) -> Result<Self, InvalidFrame> {
        match bytes.byte().ok_or(InvalidFrame)? {
            INT => Ok(Self::Int(unzigzag(bytes.number()?))),
            UINT => Ok(Self::Uint(bytes.number()?)),
            FLOAT => float(bytes),
            DOUBLE => double(bytes),
            _ => Err(InvalidFrame),
        }
    }

    /// Appends the difference to one of the same kind; false, and nothing, where it is of another.
    fn put_difference(self, out: &mut Vec<u8>, before: Self) -> bool {
        match (self, before) {
            (Self::Int(n), Self::Int(before)) => varint::put(out, zigzag(n.wrapping_sub(before))),
            (Self::Uint(n), Self::Uint(before)) => {
                varint::put(out, zigzag(n.wrapping_sub(before).cast_signed()));
            }
            (Self::Float(n), Self::Float(_)) => out.extend(n.to_le_bytes()),
            (Self::Double(n), Self::Double(_)) => out.extend(n.to_le_bytes()),
            _ => return false,
        }
        true
    }

    fn take_difference(bytes: &mut Bytes<'_>, before: Self) -> Result<Self, InvalidFrame> {
        match before {
            Self::Int(before) => Ok(Self::Int(before.wrapping_add(unzigzag(bytes.number()?)))),
            Self::Uint(before) => Ok(Self::Uint(before.wrapping_add_signed(unzigzag(bytes.number()?)))),
            Self::Float(_) => float(bytes),
            Self::Double(_) => double(bytes),
        }
    }
}

impl fmt::Display for Number {
    /// As JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(n) => n.fmt(f),
            Self::Uint(n) => n.fmt(f),
            // The shortest that reads back the same, with a point or an exponent.
            Self::Float(n) => write!(f, "{n:?}"),
            Self::Double(n) => write!(f, "{n:?}"),
        }
    }
}

/// Appends what became of numbers, of which there are as many as before.
pub(super) fn put_changes(out: &mut Vec<u8>, before: &[Number], now: &[Number]) {
    let changed: Vec<usize> = (0..now.len()).filter(|at| now[*at] != before[*at]).collect();
    varint::put(out, changed.len() as u64);
    let mut next = 0;
    for at in changed {
        let gap = ((at - next) as u64) << 1;
        let mut value = Vec::new();
        if now[at].put_difference(&mut value, before[at]) {
            varint::put(out, gap);
        } else {
            varint::put(out, gap | 1);
            now[at].put(&mut value);
        }
        out.extend(value);
        next = at + 1;
    }
}

/// Reads what became of numbers.
pub(super) fn take_changes(bytes: &mut Bytes<'_>, numbers: &mut [Number]) -> Result<(), InvalidFrame> {
    let count = bytes.length(numbers.len())?;
    let mut next = 0usize;
    for _ in 0..count {
        let gap = bytes.number()?;
        let at = usize::try_from(gap >> 1).ok().and_then(|gap| next.checked_add(gap)).ok_or(InvalidFrame)?;
        let number = numbers.get_mut(at).ok_or(InvalidFrame)?;
        *number = match gap & 1 {
            0 => Number::take_difference(bytes, *number)?,
            _ => Number::take(bytes)?,
        };
        next = at + 1;
    }
    Ok(())
}

fn float(bytes: &mut Bytes<'_>) -> Result<Number, InvalidFrame> {
    let n = f32::from_le_bytes(bytes.take()?);
    if n.is_finite() { Ok(Number::Float(n)) } else { Err(InvalidFrame) }
}

fn double(bytes: &mut Bytes<'_>) -> Result<Number, InvalidFrame> {
    let n = f64::from_le_bytes(bytes.take()?);
    if n.is_finite() { Ok(Number::Double(n)) } else { Err(InvalidFrame) }
}

/// Small numbers of either sign become small ones.
const fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)).cast_unsigned()
}

const fn unzigzag(n: u64) -> i64 {
    (n >> 1).cast_signed() ^ -((n & 1).cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_kind_and_differ_in_any_direction() {
        let texts = [
            "0",
            "-7",
            "9223372036854775807",
            "18446744073709551615",
            "0.25",
            "1e300",
            "-9223372036854775808",
        ];
        for a in texts {
            for b in texts {
                let (a, b) = ([Number::parse(a).unwrap()], [Number::parse(b).unwrap()]);
                let mut out = Vec::new();
                put_changes(&mut out, &a, &b);
                let mut got = a;
                take_changes(&mut Bytes(&out), &mut got).unwrap();
                assert_eq!(got, b);
            }
        }
        for (text, shown) in
            [("0.1", "0.1"), ("5.0", "5.0"), ("1e300", "1e300"), ("123456789.125", "123456790.0")]
        {
            assert_eq!(Number::parse(text).unwrap().to_string(), shown);
        }
        assert_eq!(Number::parse("1e999"), None);
    }
}
