//! How every page is laid out: files of constant size, and lines of constant length inside them.

/// No line of padding is longer than this: readers with a fixed line buffer exist (Go's `bufio.Scanner` stops at 64 KiB).
const LONGEST_PADDING: usize = 16 << 10;

/// What fills a file up to its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Padding {
    /// Spaces before the last newline: for tables, where a blank line is a malformed line to many parsers.
    Spaces,
    /// Newlines at the end: for single values and lists, where a space is a malformed value to many parsers.
    Newlines,
}

/// `text` in exactly `size` bytes, the last of which is a newline. What does not fit is cut at the end of a line; a single
/// line at a comma or a space, so that no number is ever cut in two.
pub(super) fn fit(text: &str, size: u32, pad: Padding) -> Vec<u8> {
    let size = size as usize;
    let Some(room) = size.checked_sub(1) else { return Vec::new() };
    let body = text.strip_suffix('\n').unwrap_or(text).as_bytes();
    let kept = if body.len() <= room {
        body
    } else {
        let head = &body[..=room];
        let end = |stops: &[u8]| head.iter().rposition(|b| stops.contains(b));
        let end = end(b"\n").or_else(|| if pad == Padding::Newlines { end(b", ") } else { None });
        &body[..end.unwrap_or(0)]
    };
    let mut out = Vec::with_capacity(size);
    out.extend_from_slice(kept);
    match pad {
        Padding::Newlines => out.resize(size, b'\n'),
        Padding::Spaces => {
            let mut blank = 0;
            while out.len() < room {
                let full = blank == LONGEST_PADDING;
                out.push(if full { b'\n' } else { b' ' });
                blank = if full { 0 } else { blank + 1 };
            }
            out.push(b'\n');
        }
    }
    out
}

/// A line filled with spaces up to `width` characters, with its newline.
pub(super) fn push_line(out: &mut String, line: &str, width: usize) {
    out.push_str(line);
    out.extend(std::iter::repeat_n(' ', width.saturating_sub(line.len())));
    out.push('\n');
}

/// `line` with every number in it replaced by zero: what is shown of a counter that is the host's. Digits that belong to a
/// word (`dma32`) stay.
pub(super) fn zeroed(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut last = ' ';
    let mut in_number = false;
    for c in line.chars() {
        let digit = c.is_ascii_digit();
        if !digit {
            out.push(c);
        } else if in_number {
            // The number has its zero already.
        } else if last.is_alphanumeric() || last == '_' {
            out.push(c);
        } else {
            out.push('0');
            in_number = true;
        }
        in_number &= digit;
        last = c;
    }
    out
}

/// How many characters `n` takes.
pub(super) const fn digits(n: u64) -> usize {
    match n.checked_ilog10() {
        Some(log) => log as usize + 1,
        None => 1,
    }
}

/// The largest number of `width` digits: counters stop there, so that their column stays where it is.
pub(super) const fn max_of_width(width: u32) -> u64 {
    match 10u64.checked_pow(width) {
        Some(n) => n - 1,
        None => u64::MAX,
    }
}

/// The first number among the words of `text`.
pub(super) fn first_number(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().find_map(|word| word.parse().ok())
}

/// The value of the first line of `text` whose first word is `key`.
pub(super) fn value_of_key(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.trim_start().strip_prefix(key)?.strip_prefix([' ', '\t']).and_then(first_number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, size: u32, pad: Padding, expect: &str) {
        assert_eq!(String::from_utf8(fit(text, size, pad)).unwrap(), expect, "{text:?} in {size}");
    }

    #[test]
    fn a_table_is_filled_before_its_last_newline() {
        check("a 1\nb 2\n", 12, Padding::Spaces, "a 1\nb 2    \n");
        check("a 1\nb 2\n", 8, Padding::Spaces, "a 1\nb 2\n");
        check("", 3, Padding::Spaces, "  \n");
    }

    #[test]
    fn a_table_is_cut_at_the_end_of_a_line() {
        check("a 1\nb 2\n", 7, Padding::Spaces, "a 1   \n");
        check("a 1\nb 2\n", 4, Padding::Spaces, "a 1\n");
        check("a 1\nb 2\n", 2, Padding::Spaces, " \n");
    }

    #[test]
    fn a_value_is_filled_with_newlines_and_never_cut_inside_a_number() {
        check("0-3\n", 6, Padding::Newlines, "0-3\n\n\n");
        check("0-3,18,20\n", 9, Padding::Newlines, "0-3,18\n\n\n");
        check("123456\n", 4, Padding::Newlines, "\n\n\n\n");
        check("on", 3, Padding::Newlines, "on\n");
        check("x", 0, Padding::Newlines, "");
    }

    #[test]
    fn long_padding_is_broken_into_lines_a_scanner_can_hold() {
        let page = String::from_utf8(fit("a 1\n", 200_000, Padding::Spaces)).unwrap();
        assert_eq!(page.len(), 200_000);
        assert!(page.lines().all(|line| line.len() <= LONGEST_PADDING + 3));
    }

    #[test]
    fn numbers_become_zero_and_names_keep_their_digits() {
        assert_eq!(zeroed("pgalloc_dma32 4818560"), "pgalloc_dma32 0");
        assert_eq!(zeroed("        protection: (0, 3019, 4555)"), "        protection: (0, 0, 0)");
        assert_eq!(zeroed("              high:     3800"), "              high:     0");
        assert_eq!(zeroed("12 34"), "0 0");
    }

    #[test]
    fn values_are_found_by_their_whole_key() {
        let text = "nr_free_pages_blocks 7\nnr_free_pages 1060759\n        managed  393216\n";
        assert_eq!(value_of_key(text, "nr_free_pages"), Some(1_060_759));
        assert_eq!(value_of_key(text, "managed"), Some(393_216));
        assert_eq!(value_of_key(text, "absent"), None);
        assert_eq!((digits(0), digits(9), digits(10), digits(u64::MAX)), (1, 1, 2, 20));
        assert_eq!((max_of_width(2), max_of_width(30)), (99, u64::MAX));
    }
}
