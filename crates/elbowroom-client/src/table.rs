//! Plain text tables: columns as wide as they must be, numbers to the right, no colour, no frames, no wider than the terminal.

use elbowroom_types::visible::Visible;

/// How a column is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// When a column is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// In every table.
    Always,
    /// While there is room: columns with larger numbers go first.
    Rank(u8),
    /// With `-o wide` only.
    Wide,
}

/// A column: its heading, how it is set, and when it is there.
pub type Column = (&'static str, Align, Keep);

/// How a table is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableStyle {
    /// Whether the first line says what the columns are.
    pub headers: bool,
    /// Whether all columns are there.
    pub wide: bool,
    /// Most characters of a line.
    pub width: Option<usize>,
}

impl TableStyle {
    /// For a reader that is no terminal.
    pub const PLAIN: Self = Self { headers: true, wide: false, width: None };

    /// Rows under a heading. Where they do not fit, columns go, and then the ends of lines.
    pub fn table(self, columns: &[Column], rows: &[Vec<String>]) -> String {
        let mut shown: Vec<usize> =
            (0..columns.len()).filter(|n| self.wide || columns[*n].2 != Keep::Wide).collect();
        loop {
            let text = self.set(columns, rows, &shown);
            let Some(width) = self.width else { return text };
            if text.lines().all(|line| line.chars().count() <= width) {
                return text;
            }
            let rank = |n: usize| if let Keep::Rank(rank) = columns[n].2 { Some((rank, n)) } else { None };
            match shown.iter().filter_map(|n| rank(*n)).max() {
                Some((_, last)) => shown.retain(|n| *n != last),
                None => return text.lines().map(|line| clip(line, width) + "\n").collect(),
            }
        }
    }

    fn set(self, columns: &[Column], rows: &[Vec<String>], shown: &[usize]) -> String {
        let heading: Vec<(&str, Align)> = shown.iter().map(|n| (columns[*n].0, columns[*n].1)).collect();
        let kept = |row: &Vec<String>| shown.iter().map(|n| row[*n].clone()).collect();
        let rows: Vec<Vec<String>> = rows.iter().map(kept).collect();
        let text = table(&heading, &rows);
        match text.split_once('\n') {
            Some((_, rest)) if !self.headers => rest.to_owned(),
            _ => text,
        }
    }
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
    fn where_columns_do_not_fit_those_of_the_highest_rank_go_first() {
        let columns = [
            ("NAME", Align::Left, Keep::Always),
            ("CPUS", Align::Right, Keep::Rank(1)),
            ("STATE", Align::Left, Keep::Rank(2)),
            ("PATH", Align::Left, Keep::Wide),
        ];
        let rows = [["database", "16", "fine", "/a/b"].map(str::to_owned).to_vec()];
        let at = |width| TableStyle { width, ..TableStyle::PLAIN }.table(&columns, &rows);
        assert_eq!(at(None), "NAME      CPUS  STATE\ndatabase    16  fine\n");
        assert_eq!(at(Some(21)), at(None));
        assert_eq!(at(Some(20)), "NAME      CPUS\ndatabase    16\n");
        assert_eq!(at(Some(8)), "NAME\ndatabase\n");
        assert_eq!(at(Some(5)), "NAME\ndata~\n");
        let wide = TableStyle { wide: true, headers: false, width: None };
        assert_eq!(wide.table(&columns, &rows), "database    16  fine   /a/b\n");
    }

    #[test]
    fn hostile_names_stay_on_their_line() {
        assert_eq!(clip("a\nb", 10), "a\\nb");
        assert_eq!(clip("abcdef", 4), "abc~");
        let rows = [vec!["a\nb\x1b[2J".to_owned()]];
        assert_eq!(table(&[("NAME", Align::Left)], &rows), "NAME\na\\nb\\u{1b}[2J\n");
    }
}
