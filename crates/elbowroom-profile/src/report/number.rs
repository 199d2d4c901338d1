//! Numbers in narrow columns.

/// A number that fits a narrow column: exact below a hundred thousand.
pub(crate) fn short_count(n: u64) -> String {
    match n {
        0..100_000 => n.to_string(),
        100_000..10_000_000 => format!("{:.0}k", n as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.0}M", n as f64 / 1e6),
        _ => format!("{:.0}G", n as f64 / 1e9),
    }
}

/// A part of a whole, in percent.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1} %", 100.0 * part as f64 / whole as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_their_column() {
        let numbers = [0, 99_999, 123_456, 12_345_678, 12_345_678_901];
        assert_eq!(numbers.map(short_count), ["0", "99999", "123k", "12M", "12G"]);
        assert_eq!((percent(1, 3), percent(0, 0)), ("33.3 %".to_owned(), "-".to_owned()));
    }
}
