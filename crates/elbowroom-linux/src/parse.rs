//! The few shapes that kernel text files are made of.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A line that is not what the file's format promises.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line \"{line}\" is not {expected}")]
pub struct Malformed {
    /// The line, escaped, at most 80 characters of it.
    pub line: String,
    /// What was expected in its place.
    pub expected: &'static str,
}

/// Refuses `line`.
pub fn malformed(line: &str, expected: &'static str) -> Malformed {
    Malformed { line: line.chars().take(80).flat_map(char::escape_debug).collect(), expected }
}

/// A decimal number and nothing else: no sign, no space, no overflow.
pub fn number(text: &str, line: &str, expected: &'static str) -> Result<u64, Malformed> {
    match !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse().map_err(|_| malformed(line, expected)),
        false => Err(malformed(line, expected)),
    }
}

/// A file that holds one number.
pub(crate) fn single_number(text: &str) -> Result<u64, Malformed> {
    let line = text.strip_suffix('\n').unwrap_or(text);
    number(line, line, "a number")
}

/// The `key value` lines of a flat keyed file (`Documentation/admin-guide/cgroup-v2.rst`, "Format").
pub fn flat_keyed(text: &str) -> impl Iterator<Item = Result<(&str, u64), Malformed>> {
    text.lines().map(|line| {
        let (key, value) = line.split_once(' ').ok_or_else(|| malformed(line, "\"key number\""))?;
        Ok((key, number(value, line, "\"key number\"")?))
    })
}

/// A share of time such as `12.34`, in hundredths; more decimals are cut off.
pub(crate) fn hundredths(text: &str, line: &str, expected: &'static str) -> Result<u32, Malformed> {
    let (whole, part) = text.split_once('.').ok_or_else(|| malformed(line, expected))?;
    let part = part.get(..2).ok_or_else(|| malformed(line, expected))?;
    let value = number(whole, line, expected)?
        .checked_mul(100)
        .and_then(|n| n.checked_add(number(part, line, expected).ok()?))
        .and_then(|n| u32::try_from(n).ok());
    value.ok_or_else(|| malformed(line, expected))
}

/// The number at the start of `text`, for the reads of every tick: no UTF-8 check, no allocation.
pub(crate) fn leading_number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    let value =
        text[..digits].iter().try_fold(0u64, |n, b| n.checked_mul(10)?.checked_add(u64::from(b - b'0')))?;
    (digits > 0).then_some(value)
}

/// The number after `key ` at the start of a line, for the reads of every tick.
pub(crate) fn keyed_number(text: &[u8], key: &str) -> Option<u64> {
    text.split(|b| *b == b'\n').find_map(|line| {
        let value = line.strip_prefix(key.as_bytes())?.strip_prefix(b" ")?;
        leading_number(value)
    })
}

/// Undoes the kernel's `mangle_path` (fs/seq_file.c): a backslash and three octal digits. Anything else stands for itself.
pub(crate) fn unescape(text: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            _ => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_single_number_is_digits_and_a_newline() {
        for (text, expect) in [
            ("0\n", Some(0)),
            ("42", Some(42)),
            ("18446744073709551615\n", Some(u64::MAX)),
            ("18446744073709551616\n", None),
            ("", None),
            ("\n", None),
            ("-1\n", None),
            ("+1\n", None),
            (" 1\n", None),
            ("1\n2\n", None),
        ] {
            assert_eq!(single_number(text).ok(), expect, "{text:?}");
        }
    }

    #[test]
    fn a_refusal_quotes_the_line_escaped_and_short() {
        let err = single_number(&format!("x\u{7}{}\n", "y".repeat(500))).unwrap_err();
        assert!(err.to_string().starts_with(r#"line "x\u{7}yyy"#), "{err}");
        assert!(err.to_string().len() < 150);
    }

    #[test]
    fn hundredths_read_as_the_kernel_prints_them() {
        for (text, expect) in [
            ("0.00", Some(0)),
            ("1.25", Some(125)),
            ("100.00", Some(10_000)),
            ("1", None),
            ("1.2", None),
            ("a.00", None),
        ] {
            assert_eq!(hundredths(text, text, "a share").ok(), expect, "{text}");
        }
    }

    #[test]
    fn a_key_matches_whole_words_only() {
        let stat = b"usage_usec 12\nuser_usec 7\nthrottled_usec 3\n";
        assert_eq!(keyed_number(stat, "usage_usec"), Some(12));
        assert_eq!(keyed_number(stat, "throttled_usec"), Some(3));
        assert_eq!(keyed_number(stat, "usage"), None);
        assert_eq!(keyed_number(b"usage_usec x", "usage_usec"), None);
    }

    #[test]
    fn escapes_are_undone_and_other_backslashes_kept() {
        for (escaped, plain) in [
            ("a\\040b", "a b"),
            ("\\134040", "\\040"),
            ("\\012", "\n"),
            ("a\\", "a\\"),
            ("\\04", "\\04"),
            ("\\400", "\\400"),
            ("\\08x", "\\08x"),
        ] {
            assert_eq!(unescape(escaped.as_bytes()), PathBuf::from(plain), "{escaped}");
        }
    }

    /// The kernel's `mangle_path` with the characters that mountinfo uses.
    fn escape(path: &[u8]) -> String {
        let escaped = |byte: &u8| match byte {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' => format!("\\{byte:03o}"),
            byte => char::from(*byte).to_string(),
        };
        path.iter().map(escaped).collect()
    }

    proptest! {
        #[test]
        fn any_path_survives_the_kernels_escaping(path in "[ -~\t\n]{0,40}") {
            prop_assert_eq!(unescape(escape(path.as_bytes()).as_bytes()), PathBuf::from(path));
        }

        #[test]
        fn nothing_panics(text in ".*", bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = single_number(&text);
            let _ = flat_keyed(&text).count();
            let _ = hundredths(&text, &text, "");
            let _ = leading_number(&bytes);
            let _ = keyed_number(&bytes, "a");
        }
    }
}
