//! A report on the terminal: sections, tables, notes; below 80 columns where the tables are.

use super::{ProfileDocument, ReportBlock, overhead_text};
use crate::overhead::ProfilerOverhead;
use elbowroom_client::table::table;

const WIDTH: usize = 79;

/// The whole report.
pub(super) fn report(report: &ProfileDocument, overhead: &ProfilerOverhead) -> String {
    let mut text = format!("{}\n", report.title);
    let widest = report.facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, value) in &report.facts {
        text.push_str(&format!("  {name:<widest$}  {value}\n"));
    }
    for section in &report.sections {
        text.push_str(&format!("\n{}\n", section.title));
        wrapped(&mut text, &section.text);
        for block in &section.blocks {
            match block {
                ReportBlock::Table(rows) => {
                    text.push('\n');
                    text.push_str(&table(&rows.columns, &rows.rows));
                }
                ReportBlock::Note(note) => wrapped(&mut text, note),
                ReportBlock::Lines(_) | ReportBlock::Bars(_) | ReportBlock::Flame(_) => {}
            }
        }
    }
    text.push('\n');
    wrapped(&mut text, &overhead_text(overhead));
    text
}

/// A paragraph, broken between words.
fn wrapped(text: &mut String, paragraph: &str) {
    let mut width = 0;
    for word in paragraph.split_whitespace() {
        let length = word.chars().count();
        match width {
            0 => {}
            _ if width + 1 + length > WIDTH => {
                text.push('\n');
                width = 0;
            }
            _ => {
                text.push(' ');
                width += 1;
            }
        }
        text.push_str(word);
        width += length;
    }
    if width > 0 {
        text.push('\n');
    }
}
