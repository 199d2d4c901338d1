//! Plain text tables: columns as wide as they must be, numbers to the right, no colour, no frames.

use elbowroom_types::visible::Visible;

/// How a column is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows under a heading, two spaces between columns, no trailing spaces. A cell stays on its line ([`Visible`]).
pub fn table(heading: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<Visible>> =
        rows.iter().map(|row| row.iter().map(|cell| Visible::line(cell)).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heading[column].0.len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let mut text = String::new();
        for ((cell, width), (_, align)) in cells.iter().zip(&widths).zip(heading) {
            match align {
                Align::Left => text.push_str(&format!("{cell:<width$}  ")),
                Align::Right => text.push_str(&format!("{cell:>width$}  ")),
            }
        }
        text.truncate(text.trim_end().len());
        text + "\n"
    };
    let mut text = line(heading.iter().map(|(name, _)| *name).collect());
    rows.iter().for_each(|row| text.push_str(&line(row.iter().map(|cell| &**cell).collect())));
    text
}

/// The beginning of `text` on one line, at most `width` characters, as it may be shown.
pub fn clip(text: &str, width: usize) -> String {
    let text = Visible::line(text);
    if text.chars().count() <= width {
        return text.to_string();
    }
    text.chars().take(width.saturating_sub(1)).chain(['~']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_where_text_ends() {
        let rows = vec![vec!["web".into(), "4".into()], vec!["database".into(), "16".into()]];
        let text = table(&[("NAME", Align::Left), ("CPUS", Align::Right)], &rows);
        assert_eq!(text, "NAME      CPUS\nweb          4\ndatabase    16\n");
    }

    #[test]
    fn hostile_names_stay_on_their_line() {
        assert_eq!(clip("a\nb", 10), "a\\nb");
        assert_eq!(clip("abcdef", 4), "abc~");
        let rows = [vec!["a\nb\x1b[2J".to_owned()]];
        assert_eq!(table(&[("NAME", Align::Left)], &rows), "NAME\na\\nb\\u{1b}[2J\n");
    }
}
